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

from luxx.errors import Dropped, Garbled, ProviderError, Stalled
from luxx.providers.failures import cut, redact

TICKS = 4
"""How often within the idle time the watch looks: a silence is noticed at most a quarter of it late."""

NOTHING = httpx.ByteStream(b"")
_ANSWER = "luxx_answer"


class Engine(AiohttpTransport):
    """The transport of httpx-aiohttp, which also tells where an answer's bytes arrive."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Sends; the answer's head has arrived."""
        response = await super().handle_async_request(request)
        answer = getattr(response.stream, "_aiohttp_response", None)
        if isinstance(answer, aiohttp.ClientResponse):
            response.extensions[_ANSWER] = answer
        return response


class Body:
    """The body of an open answer. Close it, whether it was read to its end or not: that frees the socket.

    A server that is silent for `idle_seconds` while it is being read is Stalled. `secret` is kept out of
    errors.
    """

    def __init__(self, response: httpx.Response, *, idle_seconds: float, secret: str) -> None:
        self._idle_seconds = idle_seconds
        self._secret = secret
        self._has_begun = False
        self._reads = 0
        self._seen = self._silent = 0
        self._is_silent = False
        self._answer: aiohttp.ClientResponse | None = None
        self._response: httpx.Response | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._content: aiohttp.StreamReader | None = None
        self._pieces: AsyncIterator[bytes] | None = None
        answer = response.extensions.get(_ANSWER)
        encoding = response.headers.get("content-encoding", "identity")
        if encoding == "identity" and isinstance(answer, aiohttp.ClientResponse):
            # Past the iterators of two libraries, which cost more per piece than splitting and parsing it.
            self._content = answer.content
            self._answer = answer
            self._watch_over(answer)
            # What has the request in it need not be kept as long as the answer.
            response.stream = NOTHING
        else:
            self._response = response
            self._pieces = response.aiter_bytes()

    async def read(self) -> bytes:
        """The next piece, empty at the end. Raises Dropped, Stalled, Garbled."""
        self._reads += 1
        try:
            if self._content is not None:
                piece = await self._content.readany()
            else:
                piece = await self._decoded()
        except (httpx.HTTPError, aiohttp.ClientError) as error:
            raise self._broken(error) from error
        self._reads += 1
        self._has_begun = True
        return piece

    async def aclose(self) -> None:
        """Ends it; what had not arrived yet is not awaited."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._answer is not None:
            self._answer.release()
            await self._answer.wait_for_close()
        if self._response is not None:
            await self._response.aclose()
            # The two know each other: a circle that would stay until the collector comes by.
            self._response.stream = NOTHING

    def _watch_over(self, answer: aiohttp.ClientResponse) -> None:
        """Takes the engine's own read timeout off, which sets a timer anew for every piece."""
        connection = answer.connection
        if connection is None or connection.protocol is None:
            return  # All of it has arrived.
        connection.protocol.read_timeout = None
        self._look_later()

    def _look_later(self) -> None:
        self._watch = asyncio.get_running_loop().call_later(self._idle_seconds / TICKS, self._look)

    def _look(self) -> None:
        # An odd count: a read waits, and it is the one that waited at the last look.
        self._silent = self._silent + 1 if self._reads == self._seen and self._seen % 2 else 0
        self._seen = self._reads
        if self._silent < TICKS:
            self._look_later()
            return
        self._watch = None
        self._is_silent = True
        if self._answer is not None:
            self._answer.close()

    async def _decoded(self) -> bytes:
        assert self._pieces is not None
        with suppress(StopAsyncIteration):
            while not (piece := await anext(self._pieces)):
                pass
            return piece
        return b""

    def _broken(self, error: Exception) -> ProviderError:
        cause = error.__cause__ or error
        if self._is_silent or isinstance(cause, aiohttp.ServerTimeoutError):
            return went_silent(self._idle_seconds) if self._has_begun else never_started(self._idle_seconds)
        if isinstance(error, httpx.DecodingError):
            said = cut(redact(str(error), self._secret))
            return Garbled(f"The provider's answer cannot be decompressed: {said}")
        where = "in the middle of its answer" if self._has_begun else "before its answer began"
        return Dropped(f"The provider closed the connection {where}.")


def never_started(idle_seconds: float) -> Stalled:
    """The error for a server that took the request and said nothing."""
    return Stalled(f"The provider never started to answer ({idle_seconds:g} s).")


def went_silent(idle_seconds: float) -> Stalled:
    """The error for a server that stopped talking."""
    return Stalled(f"The provider went silent in the middle of its answer ({idle_seconds:g} s).")
