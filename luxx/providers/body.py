"""An answer's body as it arrives from the network: pieces until the end, or an error that names what broke.

One of these is read for every token, so there is as little between it and the engine as there can be. What
a piece means is the parsers'; how the answer was asked for is `transport.py`'s.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

from luxx.errors import MalformedStream, ProviderError, StreamInterrupted, StreamStalled
from luxx.providers.failures import redact, truncate

CHECKS_PER_TIMEOUT = 4
"""How often within the idle time the watch looks: a silence is noticed at most a quarter of it late."""

EMPTY_STREAM = httpx.ByteStream(b"")
_RAW_RESPONSE_KEY = "luxx_answer"


class RawResponseTransport(AiohttpTransport):
    """The transport of httpx-aiohttp, which also tells where an answer's bytes arrive."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Sends; the answer's head has arrived."""
        response = await super().handle_async_request(request)
        raw_response = getattr(response.stream, "_aiohttp_response", None)
        if isinstance(raw_response, aiohttp.ClientResponse):
            response.extensions[_RAW_RESPONSE_KEY] = raw_response
        return response


class ResponseBody:
    """The body of an open answer. Close it, whether it was read to its end or not: that frees the socket.

    A server that is silent for `idle_seconds` while it is being read is Stalled. `secret` is kept out of
    errors.
    """

    def __init__(self, response: httpx.Response, *, idle_seconds: float, secret: str) -> None:
        self._idle_seconds = idle_seconds
        self._secret = secret
        self._has_begun = False
        self._read_count = 0
        self._last_read_count = self._silent_checks = 0
        self._is_timed_out = False
        self._raw_response: aiohttp.ClientResponse | None = None
        self._response: httpx.Response | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._content: aiohttp.StreamReader | None = None
        self._pieces: AsyncIterator[bytes] | None = None
        raw_response = response.extensions.get(_RAW_RESPONSE_KEY)
        encoding = response.headers.get("content-encoding", "identity")
        if encoding == "identity" and isinstance(raw_response, aiohttp.ClientResponse):
            # Past the iterators of two libraries, which cost more per piece than splitting and parsing it.
            self._content = raw_response.content
            self._raw_response = raw_response
            self._start_idle_timer(raw_response)
            # What has the request in it need not be kept as long as the answer.
            response.stream = EMPTY_STREAM
        else:
            self._response = response
            self._pieces = response.aiter_bytes()

    async def read(self) -> bytes:
        """The next piece, empty at the end. Raises Dropped, Stalled, Garbled."""
        self._read_count += 1
        try:
            if self._content is not None:
                piece = await self._content.readany()
            else:
                piece = await self._read_decoded()
        except (httpx.HTTPError, aiohttp.ClientError) as error:
            raise self._read_error(error) from error
        self._read_count += 1
        self._has_begun = True
        return piece

    async def aclose(self) -> None:
        """Ends it; what had not arrived yet is not awaited."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        if self._raw_response is not None:
            self._raw_response.release()
            await self._raw_response.wait_for_close()
        if self._response is not None:
            await self._response.aclose()
            # The two know each other: a circle that would stay until the collector comes by.
            self._response.stream = EMPTY_STREAM

    def _start_idle_timer(self, raw_response: aiohttp.ClientResponse) -> None:
        """Takes the engine's own read timeout off, which sets a timer anew for every piece."""
        connection = raw_response.connection
        if connection is None or connection.protocol is None:
            return  # All of it has arrived.
        connection.protocol.read_timeout = None
        self._schedule_idle_check()

    def _schedule_idle_check(self) -> None:
        self._idle_timer = asyncio.get_running_loop().call_later(
            self._idle_seconds / CHECKS_PER_TIMEOUT, self._check_idle
        )

    def _check_idle(self) -> None:
        # An odd count: a read waits, and it is the one that waited at the last look.
        self._silent_checks = (
            self._silent_checks + 1
            if self._read_count == self._last_read_count and self._last_read_count % 2
            else 0
        )
        self._last_read_count = self._read_count
        if self._silent_checks < CHECKS_PER_TIMEOUT:
            self._schedule_idle_check()
            return
        self._idle_timer = None
        self._is_timed_out = True
        if self._raw_response is not None:
            self._raw_response.close()

    async def _read_decoded(self) -> bytes:
        assert self._pieces is not None
        with suppress(StopAsyncIteration):
            while not (piece := await anext(self._pieces)):
                pass
            return piece
        return b""

    def _read_error(self, error: Exception) -> ProviderError:
        cause = error.__cause__ or error
        if self._is_timed_out or isinstance(cause, aiohttp.ServerTimeoutError):
            return (
                stalled_midway_error(self._idle_seconds)
                if self._has_begun
                else no_response_error(self._idle_seconds)
            )
        if isinstance(error, httpx.DecodingError):
            detail = truncate(redact(str(error), self._secret))
            return MalformedStream(f"The provider's answer cannot be decompressed: {detail}")
        phase = "in the middle of its answer" if self._has_begun else "before its answer began"
        return StreamInterrupted(f"The provider closed the connection {phase}.")


def no_response_error(idle_seconds: float) -> StreamStalled:
    """The error for a server that took the request and said nothing."""
    return StreamStalled(f"The provider never started to answer ({idle_seconds:g} s).")


def stalled_midway_error(idle_seconds: float) -> StreamStalled:
    """The error for a server that stopped talking."""
    return StreamStalled(f"The provider went silent in the middle of its answer ({idle_seconds:g} s).")
