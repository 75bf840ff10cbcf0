"""A temporary file as an answer: raw ASGI, piece by piece, not for ever to a client that does not read."""

import asyncio
from collections.abc import Callable, Mapping
from typing import IO, Any, cast

from litestar import Request
from litestar.response.base import ASGIResponse, Response
from litestar.types import Receive, Scope, Send

PIECE = 64 * 1024
"""As much as a server keeps of an answer that is not read; a piece is taken when those before have left."""

STALLED_SECONDS = 60.0
"""How long a client may take for one piece; one that takes longer is cut off."""

CUT = "luxx.cut"
"""Where a request's scope has what ends its connection at once; see `heads.py`."""


class Sending(Response[bytes]):
    """Answer a route with this to send `file` from where it stands; `close` is called at the end."""

    def __init__(
        self,
        file: IO[bytes],
        headers: Mapping[str, str],
        *,
        close: Callable[[], None],
        stalled_seconds: float = STALLED_SECONDS,
    ) -> None:
        super().__init__(b"", media_type=headers["content-type"])
        self._sending = SendingFile(file, headers, close=close, stalled_seconds=stalled_seconds)

    def to_asgi_response(self, app: Any, request: Request[Any, Any, Any], **kwargs: Any) -> ASGIResponse:
        """What Litestar calls to send it; nothing of a plain response applies."""
        del app, request, kwargs
        return self._sending


class SendingFile(ASGIResponse):
    """The answer itself, as an ASGI application."""

    def __init__(
        self,
        file: IO[bytes],
        headers: Mapping[str, str],
        *,
        close: Callable[[], None],
        stalled_seconds: float,
    ) -> None:
        super().__init__(media_type=headers["content-type"])
        self._file = file
        self._fields = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        self._close = close
        self._stalled_seconds = stalled_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        leaving = asyncio.create_task(_left(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self._fields})
            while not leaving.done() and (data := await asyncio.to_thread(self._file.read, PIECE)):
                await self._send(send, data, more=True)
            await self._send(send, b"", more=False)
        except TimeoutError:
            # Closing would wait for what is still to be sent, and that is just what is not taken.
            cut = cast("dict[str, Any]", scope).get(CUT)
            if cut is not None:
                cut()
                await leaving  # Else the server would call it a mistake that the answer is not whole.
        except OSError:
            pass  # The client went away.
        finally:
            leaving.cancel()
            self._close()
            await asyncio.gather(leaving, return_exceptions=True)

    async def _send(self, send: Send, data: bytes, *, more: bool) -> None:
        async with asyncio.timeout(self._stalled_seconds):
            await send({"type": "http.response.body", "body": data, "more_body": more})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
