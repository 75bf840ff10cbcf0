"""Both peers of a proxied HTTP/1.1 connection: parses messages into events and serializes them again.

The proxy forwards parsed events, never raw bytes, so the two peers cannot understand a message differently
(request smuggling). Not here: which hosts are allowed (`proxy`).
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing, suppress

import h11

from luxx.infra.network.egress import Traffic
from luxx.infra.network.urls import WebUrl

HEAD_BYTES = 32 * 1024
PIECE = 64 * 1024
READ_BYTES = 4096
"""Bytes of one read of parsed data: the parser returns all small chunks of a read without a pause."""
MOST_INFORMATIONAL = 16
MOST_HEADERS = 200
_MANY_SMALL_CHUNKS = 64
"""From this many chunks in one read on, the sender is throttled."""
LINGER_SECONDS, LINGER_BYTES = 1.0, 1024 * 1024

HeaderList = list[tuple[bytes, bytes]]
_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"expect",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)


class SmallChunkThrottle:
    """Makes connections that send many small chunks wait for each other, because parsing these takes long.

    All of them together get a fifth of the time.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def pause(self, seconds: float) -> None:
        """Wait four times the `seconds` that parsing took."""
        async with self._lock:
            await asyncio.sleep(4 * seconds)


class HttpPeer:
    """One peer. The proxy's role is SERVER towards the program, CLIENT towards the host."""

    def __init__(
        self,
        role: type[h11.CLIENT] | type[h11.SERVER],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        traffic: Traffic,
        idle_seconds: float,
        chunk_throttle: SmallChunkThrottle,
    ) -> None:
        self.http = h11.Connection(role, max_incomplete_event_size=HEAD_BYTES)
        self.writer = writer
        self._reader = reader
        self._traffic = traffic
        self._idle_seconds = idle_seconds
        self._chunk_throttle = chunk_throttle
        self._is_client = role is h11.SERVER

    async def read(self, most: int) -> bytes:
        """The next bytes; empty at the end. Raises TimeoutError after `idle_seconds` without any traffic."""
        while True:
            try:
                async with asyncio.timeout(self._idle_seconds):
                    data = await self._reader.read(most)
                break
            except TimeoutError:
                if time.monotonic() - self._traffic.last_moved_at >= self._idle_seconds:
                    raise
        if self._is_client:
            self._traffic.count(sent=len(data))
        else:
            self._traffic.count(received=len(data))
        return data

    async def write(self, data: bytes | None) -> None:
        """Raises TimeoutError if the peer takes nothing for `idle_seconds`, without any other traffic."""
        if not data:
            return
        self.writer.write(data)
        while True:
            left = self.writer.transport.get_write_buffer_size()
            try:
                async with asyncio.timeout(self._idle_seconds):
                    await self.writer.drain()
                return
            except TimeoutError:
                if self.writer.transport.get_write_buffer_size() < left:
                    self._traffic.count()
                elif time.monotonic() - self._traffic.last_moved_at >= self._idle_seconds:
                    raise

    async def next(self) -> h11.Event:
        """The next event; ConnectionClosed at the end. Raises RemoteProtocolError."""
        while True:
            event = self.http.next_event()
            if event is h11.PAUSED:
                # A second request on the connection is ignored.
                return h11.ConnectionClosed()
            if event is not h11.NEED_DATA:
                assert isinstance(event, h11.Event)
                return event
            if self.http.they_are_waiting_for_100_continue:
                await self.send(h11.InformationalResponse(status_code=100, headers=[]))
            await asyncio.sleep(0)
            self.http.receive_data(await self.read(READ_BYTES))

    async def body(self) -> AsyncGenerator[bytes]:
        """The body, one piece for each read. Raises RemoteProtocolError."""
        event = await self.next()
        while True:
            began, pieces = time.monotonic(), list[bytes]()
            while isinstance(event, h11.Data):
                pieces.append(event.data)
                event = self.http.next_event()
            seconds = time.monotonic() - began
            if pieces:
                yield b"".join(pieces)
            if isinstance(event, h11.EndOfMessage):
                return
            if event is not h11.NEED_DATA:
                raise h11.RemoteProtocolError("the body is incomplete")
            if len(pieces) >= _MANY_SMALL_CHUNKS:
                await self._chunk_throttle.pause(seconds)
            event = await self.next()

    async def send(self, event: h11.Event) -> None:
        await self.write(self.http.send(event))

    async def close(self) -> None:
        """Read for up to LINGER_SECONDS, then close: unread data would reset the connection."""
        with suppress(OSError, TimeoutError):
            if self.writer.can_write_eof():
                self.writer.write_eof()
            async with asyncio.timeout(LINGER_SECONDS):
                left = LINGER_BYTES
                while left > 0 and (data := await self._reader.read(PIECE)):
                    left -= len(data)
        self.writer.close()

    def abort(self) -> None:
        """Reset the connection, so that the peer does not take a partial message for a complete one."""
        self.writer.transport.abort()


def upstream_request(url: WebUrl, request: h11.Request) -> h11.Request:
    """The request for the host. Its `Host` is the checked name; the program's own `Host` is dropped.

    Raises RemoteProtocolError for a request with two lengths, or with too many headers.
    """
    _require_few(request.headers)
    names = {name for name, _ in request.headers}
    if b"transfer-encoding" in names and b"content-length" in names:
        problem = "it has both Transfer-Encoding and Content-Length"
        raise h11.RemoteProtocolError(problem, error_status_hint=400)
    headers = [(b"host", url.authority.encode()), (b"connection", b"close")]
    headers += [header for header in _end_to_end(request.headers) if header[0] != b"host"]
    if b"transfer-encoding" in names:
        headers.append((b"transfer-encoding", b"chunked"))
    return h11.Request(method=request.method, target=url.target_on_the_wire, headers=headers)


async def forward_body(client: HttpPeer, upstream: HttpPeer) -> None:
    """Forward the body of a request. Raises RemoteProtocolError if it is incomplete."""
    async with aclosing(client.body()) as pieces:
        async for piece in pieces:
            await upstream.send(h11.Data(data=piece))
    await upstream.send(h11.EndOfMessage())


async def read_response_head(upstream: HttpPeer) -> h11.Response:
    """The head after any informational responses. Raises RemoteProtocolError if there is none."""
    for _ in range(MOST_INFORMATIONAL):
        event = await upstream.next()
        if isinstance(event, h11.Response):
            _require_few(event.headers)
            return event
        if not isinstance(event, h11.InformationalResponse):
            break
    raise h11.RemoteProtocolError("it sent no response")


async def forward_response(answer: h11.Response, upstream: HttpPeer, client: HttpPeer) -> None:
    headers = [*_end_to_end(answer.headers), (b"connection", b"close")]
    await client.send(h11.Response(status_code=answer.status_code, headers=headers, reason=answer.reason))
    async with aclosing(upstream.body()) as pieces:
        async for piece in pieces:
            await client.send(h11.Data(data=piece))
    await client.send(h11.EndOfMessage())


def _require_few(headers: Iterable[tuple[bytes, bytes]]) -> None:
    if sum(1 for _ in headers) > MOST_HEADERS:
        raise h11.RemoteProtocolError(f"it has more than {MOST_HEADERS} headers", error_status_hint=431)


def _end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> HeaderList:
    """The headers without hop-by-hop ones and those that `Connection` names. Names are in lower case."""
    all_headers = list(headers)
    named = {
        part.strip().lower()
        for name, value in all_headers
        if name == b"connection"
        for part in value.split(b",")
    }
    dropped = _HOP_BY_HOP | (named - {b"host", b"content-length"})
    return [(name, value) for name, value in all_headers if name not in dropped]


async def tunnel(client: HttpPeer, upstream: HttpPeer) -> None:
    """Copy bytes in both directions until both have ended or one fails."""
    early, _ = client.http.trailing_data
    await upstream.write(early)
    directions = [asyncio.create_task(_copy(client, upstream)), asyncio.create_task(_copy(upstream, client))]
    try:
        await asyncio.gather(*directions)
    finally:
        for direction in directions:
            direction.cancel()
        await asyncio.gather(*directions, return_exceptions=True)


async def _copy(source: HttpPeer, target: HttpPeer) -> None:
    while data := await source.read(PIECE):
        await target.write(data)
    if target.writer.can_write_eof():
        target.writer.write_eof()
