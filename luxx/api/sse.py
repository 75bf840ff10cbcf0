"""A run's log as text/event-stream: raw ASGI, because this is the hot path.

What is sent is decided in `runs/watch.py`; here it is when to stop: the client left, its sign-in was
ended, or the server closes.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import structlog
from litestar import Request
from litestar.response.base import ASGIResponse, Response
from litestar.types import Receive, Scope, Send

from luxx.accounts.caller import Caller
from luxx.accounts.service import AccountService
from luxx.api.afterwards import AFTERWARDS
from luxx.api.errors import UNANSWERED
from luxx.api.kept_open import PATIENCE_SECONDS, KeptOpen, StreamLimit
from luxx.api.leaving import LEAVING, Leaving
from luxx.api.protection import STRAIGHT
from luxx.api.pushing import PIPE, Connection
from luxx.api.sending import CUT
from luxx.runs.watch import Watch

COME_AGAIN = b"retry: 1000\n\n"
"""To clients of a server that stops or cannot read its log: attach again in a second, in milliseconds."""

logger = structlog.get_logger()

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


class EventStream(Response[bytes]):
    """Answer a route with this to stream a watch; `Streams.follow` makes one."""

    def __init__(self, watch: Watch, caller: Caller, streams: "Streams") -> None:
        super().__init__(b"", media_type="text/event-stream")
        self._stream = OpenStream(watch, caller, streams)

    def to_asgi_response(self, app: Any, request: Request[Any, Any, Any], **kwargs: Any) -> ASGIResponse:
        """What Litestar calls to send it; nothing of a plain response applies."""
        del app, request, kwargs
        return self._stream


class OpenStream(ASGIResponse):
    """The answer itself, as an ASGI application."""

    __slots__ = ("_cut", "_cutting", "_streams", "_watch", "caller")

    def __init__(self, watch: Watch, caller: Caller, streams: "Streams") -> None:
        super().__init__(media_type="text/event-stream")
        self.caller = caller
        self._watch = watch
        self._streams = streams
        self._cut: Callable[[], None] | None = None
        self._cutting: asyncio.TimerHandle | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Goes on once the framework is through (`afterwards.py`); where nobody waits for that, now."""
        del receive
        given = cast("dict[str, Any]", scope)
        if STRAIGHT in given:
            given[AFTERWARDS] = self.stream
        else:
            await self.stream(given, send)

    async def stream(self, given: dict[str, Any], send: Send) -> None:
        """Sends all of it; `given` is the request's scope."""
        self._cut = given.get(CUT)
        pipe: Connection | None = given.get(PIPE)
        if pipe is not None:
            self._watch.into(pipe)
        leaving: Leaving = given.get(LEAVING) or Leaving()
        leaving.call(self._watch.stop)
        self._streams.add(self)
        try:
            # Whoever wraps `send` looks at an answer's start only; a wrapper costs each frame a coroutine.
            await self._send(send, given.get(STRAIGHT, send))
        except OSError:
            pass  # The client went away between two frames; the run goes on.
        finally:
            self._streams.remove(self)
            self._streams.limit.release(self.caller.user_id)
            leaving.forget(self._watch.stop)
            if self._cutting is not None:
                self._cutting.cancel()

    async def _send(self, send: Send, straight: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        is_lost = False
        with self._watch.attached():
            try:
                while data := await self._watch.next():
                    await straight({"type": "http.response.body", "body": data, "more_body": True})
            except UNANSWERED as error:
                logger.warning("stream_cut", because=str(error))
                is_lost = True
        last = COME_AGAIN if is_lost or self._watch.is_cut else b""
        await send({"type": "http.response.body", "body": last, "more_body": False})

    def refuse(self) -> None:
        """See `Open`."""
        self._watch.stop()
        if self._cut is not None and self._cutting is None:
            # Else it would go on for as long as the client takes for what is on its way already.
            self._cutting = asyncio.get_running_loop().call_later(PATIENCE_SECONDS, self._cut)


class Streams(KeptOpen[OpenStream]):
    """All that are open at this process."""

    def __init__(self, accounts: AccountService, limit: StreamLimit) -> None:
        super().__init__(accounts)
        self.limit = limit

    async def follow(self, caller: Caller, watch: Callable[[], Awaitable[Watch]]) -> EventStream:
        """Streams what `watch` begins. Raises TooMany before it is begun."""
        self.limit.take(caller.user_id)
        try:
            return EventStream(await watch(), caller, self)
        except BaseException:
            self.limit.release(caller.user_id)
            raise
