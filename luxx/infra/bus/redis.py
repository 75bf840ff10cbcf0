"""The bus of processes that share a Redis: one stream for all and one for each process.

Streams and not publish/subscribe: a process that was disconnected for a moment still finds the messages it
missed. The streams are short and expire, so Redis needs no persistence.
"""

import asyncio
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from luxx.errors import ConfigError

if TYPE_CHECKING:
    from redis.asyncio import Redis

STREAM_LENGTH = 10_000
"""Approximate number of packets kept in a stream."""

EXPIRES_SECONDS = 120
"""A process's stream expires this long after the last message to it."""

BLOCK_MS = 5_000
READ_BATCH_SIZE = 500
PATIENCE_SECONDS = 10.0
FIELD = b"p"


class RedisTransport:
    """A transport (`luxx.infra.bus.network.BusTransport`). `namespace` separates this installation from
    others."""

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
