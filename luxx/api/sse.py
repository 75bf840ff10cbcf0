"""A run's log as text/event-stream: raw ASGI, because this is the hot path.

What is sent is decided in `runs/watch.py`; here it is when to stop: the client left, its sign-in was
ended, or the server closes.
"""

import asyncio
from typing import Any, cast

from litestar import Request
from litestar.response.base import ASGIResponse, Response
from litestar.types import Receive, Scope, Send
from sqlalchemy.exc import SQLAlchemyError

from luxx.accounts.caller import Caller
from luxx.accounts.changes import AccountChange
from luxx.accounts.service import AccountService
from luxx.api.protection import STRAIGHT
from luxx.errors import LuxxError
from luxx.runs.watch import Watch

RECHECK_SECONDS = 3.0
"""An ended sign-in cuts its streams within 5 s, whichever server ended it."""

COME_AGAIN = b"retry: 1000\n\n"
"""To clients of a server that stops: attach again in a second, in milliseconds."""

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


class EventStream(Response[bytes]):
    """Answer a route with this to stream a watch."""

    def __init__(self, watch: Watch, caller: Caller, accounts: AccountService) -> None:
        super().__init__(b"", media_type="text/event-stream")
        self._stream = _Stream(watch, caller, accounts)

    def to_asgi_response(self, app: Any, request: Request[Any, Any, Any], **kwargs: Any) -> ASGIResponse:
        """What Litestar calls to send it; nothing of a plain response applies."""
        del app, request, kwargs
        return self._stream


class _Stream(ASGIResponse):
    def __init__(self, watch: Watch, caller: Caller, accounts: AccountService) -> None:
        super().__init__(media_type="text/event-stream")
        self._watch = watch
        self._caller = caller
        self._accounts = accounts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        ending = [
            asyncio.create_task(self._stop_when_gone(receive)),
            asyncio.create_task(self._stop_when_refused()),
        ]
        unsubscribe = self._accounts.subscribe(self._stop_when_revoked)
        try:
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            # Whoever wraps `send` looks at an answer's start only; a wrapper costs each frame a coroutine.
            straight: Send = cast("dict[str, Any]", scope).get(STRAIGHT, send)
            with self._watch.attached():
                while data := await self._watch.next():
                    await straight({"type": "http.response.body", "body": data, "more_body": True})
            last = COME_AGAIN if self._watch.is_cut else b""
            await send({"type": "http.response.body", "body": last, "more_body": False})
        except OSError:
            pass  # The client went away between two frames; the run goes on.
        finally:
            unsubscribe()
            for task in ending:
                task.cancel()
            await asyncio.gather(*ending, return_exceptions=True)

    async def _stop_when_gone(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._watch.stop()

    async def _stop_when_refused(self) -> None:
        """Another process (a server of the same database, the command line) tells nobody here."""
        while True:
            await asyncio.sleep(RECHECK_SECONDS)
            try:
                await self._accounts.recheck(self._caller)
            except LuxxError:
                break
            except SQLAlchemyError:
                continue  # The database does not answer just now; ask again.
        self._watch.stop()

    def _stop_when_revoked(self, change: AccountChange) -> None:
        if change.concerns(self._caller):
            self._watch.stop()
