"""The body of a provider's response, read in pieces; network errors become ProviderErrors.

Every token passes through `ResponseBody.read`, so it reads aiohttp's stream with no layer between.
`transport.py` sends the request; the parsers interpret the pieces.
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
"""Idle checks per idle timeout: a stalled server is detected at most a quarter of the timeout late."""

EMPTY_STREAM = httpx.ByteStream(b"")
_RAW_RESPONSE_KEY = "luxx_answer"


class RawResponseTransport(AiohttpTransport):
    """httpx-aiohttp's transport; it also puts aiohttp's response into the httpx response's extensions."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        raw_response = getattr(response.stream, "_aiohttp_response", None)
        if isinstance(raw_response, aiohttp.ClientResponse):
            response.extensions[_RAW_RESPONSE_KEY] = raw_response
        return response


class ResponseBody:
    """The body of an open response. The caller must close it, even after the end: that frees the socket.

    A read that gets no bytes for `idle_seconds` raises StreamStalled. `secret` is redacted from errors.
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
            # The iterators of httpx and httpx-aiohttp cost more per piece than splitting and parsing it.
            self._content = raw_response.content
            self._raw_response = raw_response
            self._start_idle_timer(raw_response)
            # The stream refers to the request, whose memory is not needed while the body is read.
            response.stream = EMPTY_STREAM
        else:
            self._response = response
            self._pieces = response.aiter_bytes()

    async def read(self) -> bytes:
        """The next piece, empty at the end. Raises StreamInterrupted, StreamStalled, MalformedStream."""
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
        """Closes the body without waiting for bytes that have not arrived."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        if self._raw_response is not None:
            self._raw_response.release()
            await self._raw_response.wait_for_close()
        if self._response is not None:
            await self._response.aclose()
            # Response and stream refer to each other; this breaks the cycle without the garbage collector.
            self._response.stream = EMPTY_STREAM

    def _start_idle_timer(self, raw_response: aiohttp.ClientResponse) -> None:
        """Replaces aiohttp's read timeout, which sets a new timer for every piece."""
        connection = raw_response.connection
        if connection is None or connection.protocol is None:
            return  # The whole body has arrived.
        connection.protocol.read_timeout = None
        self._schedule_idle_check()

    def _schedule_idle_check(self) -> None:
        self._idle_timer = asyncio.get_running_loop().call_later(
            self._idle_seconds / CHECKS_PER_TIMEOUT, self._check_idle
        )

    def _check_idle(self) -> None:
        # An odd count: a read is waiting. The same count as at the last check: it is the same read.
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
            return MalformedStream(f"The provider's response cannot be decompressed: {detail}")
        phase = "in the middle of its response" if self._has_begun else "before its response began"
        return StreamInterrupted(f"The provider closed the connection {phase}.")


def no_response_error(idle_seconds: float) -> StreamStalled:
    """The error for a server that accepts the request and sends no response."""
    return StreamStalled(f"The provider did not start to respond within {idle_seconds:g} s.")


def stalled_midway_error(idle_seconds: float) -> StreamStalled:
    """The error for a server that stops sending in the middle of its response."""
    return StreamStalled(f"The provider sent nothing for {idle_seconds:g} s in the middle of its response.")
