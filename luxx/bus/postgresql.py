"""The bus of processes that share a PostgreSQL: LISTEN and NOTIFY, on two connections of their own.

A payload of NOTIFY is a text below 8,000 bytes, so packets are cut and written in base64. It needs a real
session: a pooler that hands sessions around by transaction cannot carry it.
"""

import asyncio
from binascii import Error as NotBase64
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import Engine

from luxx.store.engine import POSTGRESQL_PATIENCE

if TYPE_CHECKING:
    import psycopg

CHANNEL = "luxx"
"""The channel of all; a process's own is this with its name."""

MOST_CHARACTERS = 7_900
APPLICATION = "luxx bus"


class PostgresqlWire:
    """A wire (`luxx.bus.wired.Wire`) over the database that the engine is for."""

    most: int | None = MOST_CHARACTERS * 3 // 4

    def __init__(self, engine: Engine) -> None:
        # The driver that the engine has loaded: a process with another database need not have it.
        self._driver = cast("Any", engine.dialect.loaded_dbapi)
        _, parameters = engine.dialect.create_connect_args(engine.url)
        self._parameters = {**parameters, **POSTGRESQL_PATIENCE, "application_name": APPLICATION}
        self._listening: psycopg.AsyncConnection[Any] | None = None
        self._sending: psycopg.AsyncConnection[Any] | None = None

    async def open(self, process: str) -> None:
        """Connects both, and listens."""
        self._listening = await self._connect()
        self._sending = await self._connect()
        for channel in (CHANNEL, _channel(process)):
            await self._listening.execute(f'LISTEN "{channel}"'.encode())
        # A notification makes a commit record; nothing is lost if the disk gets it later.
        await self._sending.execute(b"SET synchronous_commit TO off")

    async def listen(self, hear: Callable[[bytes], None]) -> None:
        """Reads the socket whenever it has something: the driver's own way would wake ten times a second."""
        assert self._listening is not None
        pgconn = self._listening.pgconn
        loop, broken = asyncio.get_running_loop(), asyncio.Event()
        errors: list[Exception] = []

        def read() -> None:
            try:
                pgconn.consume_input()
                while notification := pgconn.notifies():
                    _hear(hear, notification.extra)
            except Exception as error:
                # Raised where it is awaited; the loop itself would only log it, again and again.
                errors.append(error)
                loop.remove_reader(socket)
                broken.set()

        socket = pgconn.socket
        loop.add_reader(socket, read)
        read()  # What came with the answers to LISTEN.
        try:
            await broken.wait()
        finally:
            loop.remove_reader(socket)
        raise errors[0]

    async def send(self, packets: list[tuple[str | None, bytes]]) -> None:
        """All of them in one statement."""
        assert self._sending is not None
        channels = [_channel(to) for to, _ in packets]
        payloads = [b2a_base64(packet, newline=False).decode("ascii") for _, packet in packets]
        await self._sending.execute(
            b"SELECT count(pg_notify(c, p)) FROM unnest(%s::text[], %s::text[]) AS t(c, p)",
            (channels, payloads),
            prepare=True,
        )

    async def close(self) -> None:
        """Closes both."""
        for connection in (self._listening, self._sending):
            if connection is not None:
                await connection.close()
        self._listening = self._sending = None

    async def _connect(self) -> "psycopg.AsyncConnection[Any]":
        return await self._driver.AsyncConnection.connect(**self._parameters, autocommit=True)


def _channel(process: str | None) -> str:
    return CHANNEL if process is None else f"{CHANNEL}_{process}"


def _hear(hear: Callable[[bytes], None], payload: bytes) -> None:
    try:
        packet = a2b_base64(payload)
    except NotBase64:
        packet = payload  # Somebody else's use of the channel: the bus says so, and goes on.
    hear(packet)
