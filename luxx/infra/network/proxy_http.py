"""Both ends of a proxy's connection, in HTTP/1.1: read into events, and written anew from these.

What one end says reaches the other only as what it was understood to be, so nothing can mean one thing
here and another there. Which host may be spoken to is the proxy's to decide.
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
"""At a time where it is parsed: a parser hands out all the crumbs of a read without a pause."""
MOST_PRELIMINARY = 16
MOST_HEADERS = 200
_MANY_SMALL_CHUNKS = 64
"""Pieces in one read that are too small to be passed over."""
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
    """Makes those who send crumbs, which take long to read, wait for each other: of all that one proxy
    serves, they get a fifth of the time."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def pause(self, seconds: float) -> None:
        """After reading so long."""
        async with self._lock:
            await asyncio.sleep(4 * seconds)


class HttpPeer:
    """One end: a SERVER to the jail, a CLIENT to the host."""

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
        """What came; empty at its end. Raises TimeoutError after a while without traffic either way."""
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
        """Raises TimeoutError where none of it is taken for a while, without traffic either way."""
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
        """The next thing said; ConnectionClosed at the end. Raises RemoteProtocolError."""
        while True:
            event = self.http.next_event()
            if event is h11.PAUSED:
                # More than one request on one connection is never looked at.
                return h11.ConnectionClosed()
            if event is not h11.NEED_DATA:
                assert isinstance(event, h11.Event)
                return event
            if self.http.they_are_waiting_for_100_continue:
                await self.send(h11.InformationalResponse(status_code=100, headers=[]))
            await asyncio.sleep(0)
            self.http.receive_data(await self.read(READ_BYTES))

    async def body(self) -> AsyncGenerator[bytes]:
        """What follows a head, all that one read brought at a time. Raises RemoteProtocolError."""
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
                raise h11.RemoteProtocolError("it broke off")
            if len(pieces) >= _MANY_SMALL_CHUNKS:
                await self._chunk_throttle.pause(seconds)
            event = await self.next()

    async def send(self, event: h11.Event) -> None:
        await self.write(self.http.send(event))

    async def close(self) -> None:
        """Let it read to the end what was said: what it still sends would else break that off."""
        with suppress(OSError, TimeoutError):
            if self.writer.can_write_eof():
                self.writer.write_eof()
            async with asyncio.timeout(LINGER_SECONDS):
                left = LINGER_BYTES
                while left > 0 and (data := await self._reader.read(PIECE)):
                    left -= len(data)
        self.writer.close()

    def abort(self) -> None:
        """Break it off, so that nobody takes what came for all of it."""
        self.writer.transport.abort()


def upstream_request(url: WebUrl, request: h11.Request) -> h11.Request:
    """The request as the host is to get it, whose name is the judged one whatever the program's `Host` says.

    Raises RemoteProtocolError where its length is said in two ways, or too much is said.
    """
    _require_few(request.headers)
    names = {name for name, _ in request.headers}
    if b"transfer-encoding" in names and b"content-length" in names:
        raise h11.RemoteProtocolError("its length is said in two ways", error_status_hint=400)
    headers = [(b"host", url.authority.encode()), (b"connection", b"close")]
    headers += [one for one in _end_to_end(request.headers) if one[0] != b"host"]
    if b"transfer-encoding" in names:
        headers.append((b"transfer-encoding", b"chunked"))
    return h11.Request(method=request.method, target=url.target_on_the_wire, headers=headers)


async def forward_body(client: HttpPeer, upstream: HttpPeer) -> None:
    """The rest of a request. Raises RemoteProtocolError where it breaks off."""
    async with aclosing(client.body()) as pieces:
        async for piece in pieces:
            await upstream.send(h11.Data(data=piece))
    await upstream.send(h11.EndOfMessage())


async def read_response_head(upstream: HttpPeer) -> h11.Response:
    """Raises RemoteProtocolError where there is none."""
    for _ in range(MOST_PRELIMINARY):
        event = await upstream.next()
        if isinstance(event, h11.Response):
            _require_few(event.headers)
            return event
        if not isinstance(event, h11.InformationalResponse):
            break
    raise h11.RemoteProtocolError("it gave no answer")


async def forward_response(answer: h11.Response, upstream: HttpPeer, client: HttpPeer) -> None:
    """The answer whose head has come, to its end."""
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
    """Without those that are for the next hop only, or named as such. Names are in lower case."""
    given = list(headers)
    named = {
        part.strip().lower() for name, value in given if name == b"connection" for part in value.split(b",")
    }
    left_out = _HOP_BY_HOP | (named - {b"host", b"content-length"})
    return [(name, value) for name, value in given if name not in left_out]


async def tunnel(client: HttpPeer, upstream: HttpPeer) -> None:
    """Pass bytes both ways until both have ended, or one breaks off."""
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
