"""What a bus over a network sends on: a PostgreSQL or a Redis that the processes share."""

import asyncio
from binascii import Error as NotBase64
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import Engine

from luxx.errors import ConfigError
from luxx.infra.store.engine import POSTGRESQL_TIMEOUTS

if TYPE_CHECKING:
    import psycopg
    from psycopg.pq.abc import PGconn
    from redis.asyncio import Redis

CHANNEL = "luxx"
"""The channel of all processes; a process's own channel appends its name."""

MAX_PAYLOAD_CHARACTERS = 7_900
APPLICATION = "luxx bus"

STATEMENT = b"luxx_notify"
PREPARE = (
    b"PREPARE luxx_notify (text[], text[]) AS SELECT count(pg_notify(c, p)) FROM unnest($1, $2) AS t(c, p)"
)


class PostgresqlTransport:
    """A transport (`luxx.infra.bus.network.BusTransport`) over the engine's database.

    It uses LISTEN and NOTIFY, on two own connections. A NOTIFY payload is text below 8,000
    bytes, so packets are split and encoded in base64. It needs a real session: a pooler in transaction mode
    cannot carry it.
    """

    max_bytes: int | None = MAX_PAYLOAD_CHARACTERS * 3 // 4

    def __init__(self, engine: Engine) -> None:
        # The driver that the engine has loaded: psycopg is not installed for every database.
        self._driver = cast("Any", engine.dialect.loaded_dbapi)
        _, parameters = engine.dialect.create_connect_args(engine.url)
        self._parameters = {**parameters, **POSTGRESQL_TIMEOUTS, "application_name": APPLICATION}
        self._listening: psycopg.AsyncConnection[Any] | None = None
        self._sending: psycopg.AsyncConnection[Any] | None = None
        self._statement: _Statement | None = None

    async def open(self, process: str) -> None:
        self._listening = await self._connect()
        self._sending = await self._connect()
        for channel in (CHANNEL, _channel(process)):
            await self._listening.execute(f'LISTEN "{channel}"'.encode())
        # NOTIFY writes a commit record; nothing is lost if it reaches the disk later.
        await self._sending.execute(b"SET synchronous_commit TO off")
        await self._sending.execute(PREPARE)
        self._statement = _Statement(self._sending.pgconn)

    async def listen(self, on_packet: Callable[[bytes], None]) -> None:
        """Reads the socket when it is readable: the driver's own way would wake ten times a second."""
        assert self._listening is not None
        pgconn = self._listening.pgconn
        loop, broken = asyncio.get_running_loop(), asyncio.Event()
        errors: list[Exception] = []

        def read() -> None:
            try:
                pgconn.consume_input()
                while notification := pgconn.notifies():
                    _on_notification(on_packet, notification.extra)
            except Exception as error:
                # Raised below where `broken` is awaited; the event loop would only log it, repeatedly.
                errors.append(error)
                loop.remove_reader(socket)
                broken.set()

        socket = pgconn.socket
        loop.add_reader(socket, read)
        read()  # Notifications that arrived with the answers to LISTEN.
        try:
            await broken.wait()
        finally:
            loop.remove_reader(socket)
        raise errors[0]

    async def send(self, packets: list[tuple[str | None, bytes]]) -> None:
        """Sends all packets in one statement."""
        assert self._statement is not None
        # Neither names nor base64 contain a character that an array must quote.
        channels = ",".join(_channel(to) for to, _ in packets).encode("ascii")
        payloads = b",".join(b2a_base64(packet, newline=False) for _, packet in packets)
        await self._statement.run([b"{%s}" % channels, b"{%s}" % payloads])

    async def close(self) -> None:
        if self._statement is not None:
            self._statement.close()
            self._statement = None
        for connection in (self._listening, self._sending):
            if connection is not None:
                await connection.close()
        self._listening = self._sending = None

    async def _connect(self) -> "psycopg.AsyncConnection[Any]":
        return await self._driver.AsyncConnection.connect(**self._parameters, autocommit=True)


class _Statement:
    """The prepared statement on its connection, driven by the readiness of the socket.

    It runs for nearly every delta of an answer that another process follows; the driver's own way costs four
    times as much.
    """

    def __init__(self, pgconn: "PGconn") -> None:
        self._pgconn = pgconn
        self._loop = asyncio.get_running_loop()
        self._socket = pgconn.socket
        self._answer: asyncio.Future[None] | None = None
        self._loop.add_reader(self._socket, self._read)

    async def run(self, parameters: list[bytes]) -> None:
        """Returns once the database has answered. Raises what it reported."""
        self._answer = self._loop.create_future()
        self._pgconn.send_query_prepared(STATEMENT, parameters)
        while self._pgconn.flush():
            await self._until_writable()
        await self._answer

    def close(self) -> None:
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)

    async def _until_writable(self) -> None:
        writable = asyncio.Event()
        self._loop.add_writer(self._socket, writable.set)
        try:
            await writable.wait()
        finally:
            self._loop.remove_writer(self._socket)

    def _read(self) -> None:
        try:
            self._pgconn.consume_input()
            while not self._pgconn.is_busy():
                result = self._pgconn.get_result()
                if result is None:
                    self._resolve(None)
                    return
                if result.error_message:
                    raise ConnectionError(result.error_message.decode("utf-8", "replace"))
        except Exception as error:
            # Raised where the answer is awaited; the event loop would only log it, repeatedly.
            self._loop.remove_reader(self._socket)
            self._resolve(error)

    def _resolve(self, error: Exception | None) -> None:
        answer, self._answer = self._answer, None
        if answer is None or answer.done():
            return
        if error is None:
            answer.set_result(None)
        else:
            answer.set_exception(error)


def _channel(process: str | None) -> str:
    return CHANNEL if process is None else f"{CHANNEL}_{process}"


def _on_notification(on_packet: Callable[[bytes], None], payload: bytes) -> None:
    try:
        packet = a2b_base64(payload)
    except NotBase64:
        packet = (
            payload  # Another program uses the channel: the bus logs the packet as invalid and continues.
        )
    on_packet(packet)


STREAM_LENGTH = 10_000
"""Approximate number of packets kept in a stream."""

EXPIRES_SECONDS = 120
"""A process's stream expires this long after the last message to it."""

BLOCK_MS = 5_000
READ_BATCH_SIZE = 500
PATIENCE_SECONDS = 10.0
FIELD = b"p"


class RedisTransport:
    """A transport (`luxx.infra.bus.network.BusTransport`) with one stream for all processes and one for each.
    `namespace` separates this installation from others.

    Streams and not publish/subscribe: a process that was disconnected for a moment still finds the messages
    it missed. The streams are short and expire, so Redis needs no persistence.
    """

    max_bytes: int | None = None

    def __init__(self, url: str, namespace: str) -> None:
        self._url = url
        self._prefix = f"luxx:{namespace}"
        self._all = f"{self._prefix}:all".encode()
        self._own = b""
        self._positions: dict[bytes, bytes] = {}
        self._listening: Any = None
        self._sending: Any = None
        make_client(url)

    async def open(self, process: str) -> None:
        """Connects, and reads the end of the shared stream."""
        pool = make_client(self._url).connection_pool
        self._listening, self._sending = await pool.get_connection(), await pool.get_connection()
        self._own = self._stream(process)
        newest = await _request(self._sending, b"XREVRANGE", self._all, b"+", b"-", b"COUNT", b"1")
        # After a reconnect the positions are set already: reading continues there.
        self._positions.setdefault(self._own, b"0-0")
        self._positions.setdefault(self._all, newest[0][0] if newest else b"0-0")

    async def listen(self, on_packet: Callable[[bytes], None]) -> None:
        """Reads both streams, for ever."""
        assert self._listening is not None
        options = (b"COUNT", READ_BATCH_SIZE, b"BLOCK", BLOCK_MS, b"STREAMS")
        while True:
            async with asyncio.timeout(BLOCK_MS / 1000 + PATIENCE_SECONDS):
                read = await _request(
                    self._listening, b"XREAD", *options, *self._positions, *self._positions.values()
                )
            for stream, entries in read or ():
                for position, fields in entries:
                    self._positions[stream] = position
                    on_packet(fields[1])

    async def send(self, packets: list[tuple[str | None, bytes]]) -> None:
        """Sends all packets in one round trip."""
        assert self._sending is not None
        commands: list[tuple[Any, ...]] = [
            (b"XADD", self._stream(to), b"MAXLEN", b"~", STREAM_LENGTH, b"*", FIELD, packet)
            for to, packet in packets
        ]
        commands += [(b"EXPIRE", self._stream(to), EXPIRES_SECONDS) for to in {to for to, _ in packets}]
        await self._sending.send_packed_command(self._sending.pack_commands(commands))
        for _ in commands:
            await self._sending.read_response()

    async def close(self) -> None:
        """Closes the connections. The process's own stream is left to expire."""
        for connection in (self._listening, self._sending):
            if connection is not None:
                await connection.disconnect(nowait=True)
        self._listening = self._sending = None

    def _stream(self, process: str | None) -> bytes:
        return self._all if process is None else f"{self._prefix}:{process}".encode()


async def _request(connection: Any, *command: Any) -> Any:
    """Sends one command straight on its connection: the client's layers cost more than Redis does."""
    await connection.send_command(*command)
    return await connection.read_response()


def make_client(url: str) -> "Redis":
    """A client that connects on first use. Raises ConfigError for a wrong URL or a missing package."""
    try:
        module: Any = import_module("redis.asyncio")
        retry: Any = import_module("redis.asyncio.retry")
        backoff: Any = import_module("redis.backoff")
    except ImportError as error:
        raise ConfigError("hub.url: Redis needs a package; install luxx with its extra 'redis'") from error
    try:
        return module.Redis.from_url(
            url,
            retry=retry.Retry(backoff.NoBackoff(), 0),
            socket_connect_timeout=PATIENCE_SECONDS,
            # With a socket timeout redis-py sometimes swallows a cancellation; our timeouts are outside.
            socket_timeout=None,
            client_name="luxx",
            protocol=2,
        )
    except ValueError as error:
        raise ConfigError(f"hub.url: {error}; write redis://host:6379/0") from error
