"""That a client has left, for answers that go on for hours: a call instead of a task each that waits."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Generic, Protocol, TypeVar, cast

import structlog
from litestar import Request
from litestar.response.base import ASGIResponse, Response
from litestar.types import Receive, Scope, Send
from sqlalchemy.exc import SQLAlchemyError
from uvicorn.protocols.http.flow_control import FlowControl

from luxx.api.http.detached import DETACHED_STREAM
from luxx.api.http.errors import DATABASE_DOWN_ERRORS
from luxx.api.http.files import ABORT_KEY
from luxx.api.http.protection import RAW_SEND
from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.changes import AccountChange
from luxx.domain.accounts.service import AccountService
from luxx.errors import TooMany
from luxx.runs.streams.watch import RunWatch

DISCONNECT_KEY = "luxx.leaving"
"""Where a request's scope has its connection's `Leaving`; see `heads.py`."""


class ClientDisconnect:
    """One per connection."""

    __slots__ = ("_callbacks", "is_gone")

    def __init__(self) -> None:
        self.is_gone = False
        self._callbacks: list[Callable[[], None]] = []

    def add_callback(self, callback: Callable[[], None]) -> None:
        """Calls it when the client leaves; at once if it has."""
        if self.is_gone:
            callback()
        else:
            self._callbacks.append(callback)

    def remove_callback(self, callback: Callable[[], None]) -> None:
        """The answer is over."""
        if callback in self._callbacks:
            self._callbacks.remove(callback)

    def left(self) -> None:
        """The connection is gone."""
        self.is_gone = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


RECHECK_SECONDS = 3.0
"""What an ended sign-in has open is cut within 5 s, whoever ended it; at once where the bus tells it."""

CLOSE_TIMEOUT_SECONDS = 1.0
"""How long something that must close waits for a client that does not read."""

RETRY_SECONDS = 5

logger = structlog.get_logger()


class LiveConnection(Protocol):
    """Something that is kept open for a caller."""

    @property
    def caller(self) -> Caller: ...

    def revoke(self) -> None:
        """Ends it within PATIENCE_SECONDS, whether or not the client reads; may come more than once."""
        ...


class StreamLimit:
    """How many streams and sockets together one user has open at this process; `most` 0 means no limit."""

    def __init__(self, max_open: int) -> None:
        self._max_open = max_open
        self._open: Counter[int] = Counter()

    def take(self, user_id: int) -> None:
        """Counts one. Raises TooMany."""
        if self._max_open and self._open[user_id] >= self._max_open:
            raise TooMany(
                f"you have {self._max_open} streams and sockets open and may have no more; close one "
                "and try again",
                retry_after=RETRY_SECONDS,
                kind="too_many_streams",
            )
        self._open[user_id] += 1

    def release(self, user_id: int) -> None:
        """One is closed."""
        self._open[user_id] -= 1
        if not self._open[user_id]:
            del self._open[user_id]


T = TypeVar("T", bound=LiveConnection)


class LiveConnections(Generic[T]):
    """One per process and kind."""

    def __init__(self, accounts: AccountService) -> None:
        self._accounts = accounts
        self._open: dict[int, set[T]] = {}
        accounts.subscribe(self._revoke_changed)

    def __len__(self) -> int:
        return sum(len(each) for each in self._open.values())

    def of(self, user_id: int) -> int:
        """How many this user has."""
        return len(self._open.get(user_id, ()))

    def add(self, one: T) -> None:
        """Looks after it from now on."""
        self._open.setdefault(one.caller.user_id, set()).add(one)

    def remove(self, one: T) -> None:
        """It is closed."""
        connections = self._open[one.caller.user_id]
        connections.remove(one)
        if not connections:
            del self._open[one.caller.user_id]

    async def keep_checking(self) -> None:
        """Refuses those whose sign-in ended or whose rights shrank, until cancelled."""
        while True:
            await asyncio.sleep(RECHECK_SECONDS)
            # Not here: what it looks at would be kept until it looks again.
            await self._check()

    async def _check(self) -> None:
        open_ = [one for each in self._open.values() for one in each]
        if not open_:
            return
        try:
            revoked_callers = await self._accounts.revoked_callers([one.caller for one in open_])
        except SQLAlchemyError:
            return  # The database does not answer just now; ask again.
        except Exception:
            logger.exception("sign_ins_not_checked")
            return
        for one in open_:
            if one.caller in revoked_callers:
                one.revoke()

    def _revoke_changed(self, change: AccountChange) -> None:
        for one in tuple(self._open.get(change.user_id, ())):
            if change.concerns(one.caller):
                one.revoke()


PIPE_KEY = "luxx.pipe"
"""Where a request's scope has its `Connection`; see `heads.py`."""


class ChunkedConnection:
    """A client's connection as a `Pipe` (`runs/watch.py`). One per request."""

    __slots__ = ("_disconnect", "_flow", "_transport")

    def __init__(self, transport: asyncio.Transport, flow: FlowControl, disconnect: ClientDisconnect) -> None:
        self._transport = transport
        self._flow = flow
        self._disconnect = disconnect

    @property
    def is_writable(self) -> bool:
        """See `Pipe`."""
        return not (self._flow.write_paused or self._disconnect.is_gone or self._transport.is_closing())

    def push(self, data: bytes) -> None:
        """Sends a chunk."""
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))


RETRY_FRAME = b"retry: 1000\n\n"
"""To clients of a server that stops or cannot read its log: attach again in a second, in milliseconds."""


HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


class EventStream(Response[bytes]):
    """Answer a route with this to stream a watch; `Streams.follow` makes one."""

    def __init__(self, watch: RunWatch, caller: Caller, streams: "Streams") -> None:
        super().__init__(b"", media_type="text/event-stream")
        self._stream = OpenStream(watch, caller, streams)

    def to_asgi_response(self, app: Any, request: Request[Any, Any, Any], **kwargs: Any) -> ASGIResponse:
        """What Litestar calls to send it; nothing of a plain response applies."""
        del app, request, kwargs
        return self._stream


class OpenStream(ASGIResponse):
    """The answer itself, as an ASGI application."""

    __slots__ = ("_abort", "_abort_timer", "_streams", "_watch", "caller")

    def __init__(self, watch: RunWatch, caller: Caller, streams: "Streams") -> None:
        super().__init__(media_type="text/event-stream")
        self.caller = caller
        self._watch = watch
        self._streams = streams
        self._abort: Callable[[], None] | None = None
        self._abort_timer: asyncio.TimerHandle | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Goes on once the framework is through (`afterwards.py`); where nobody waits for that, now."""
        del receive
        request_scope = cast("dict[str, Any]", scope)
        if RAW_SEND in request_scope:
            request_scope[DETACHED_STREAM] = self.stream
        else:
            await self.stream(request_scope, send)

    async def stream(self, request_scope: dict[str, Any], send: Send) -> None:
        """Sends all of it; `given` is the request's scope."""
        self._abort = request_scope.get(ABORT_KEY)
        pipe: ChunkedConnection | None = request_scope.get(PIPE_KEY)
        if pipe is not None:
            self._watch.write_to(pipe)
        disconnect: ClientDisconnect = request_scope.get(DISCONNECT_KEY) or ClientDisconnect()
        disconnect.add_callback(self._watch.stop)
        self._streams.add(self)
        try:
            # Whoever wraps `send` looks at an answer's start only; a wrapper costs each frame a coroutine.
            await self._send(send, request_scope.get(RAW_SEND, send))
        except OSError:
            pass  # The client went away between two frames; the run goes on.
        finally:
            self._streams.remove(self)
            self._streams.limit.release(self.caller.user_id)
            disconnect.remove_callback(self._watch.stop)
            if self._abort_timer is not None:
                self._abort_timer.cancel()

    async def _send(self, send: Send, raw_send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        is_database_down = False
        with self._watch.attached():
            try:
                while data := await self._watch.next():
                    await raw_send({"type": "http.response.body", "body": data, "more_body": True})
            except DATABASE_DOWN_ERRORS as error:
                logger.warning("stream_cut", because=str(error))
                is_database_down = True
        last = RETRY_FRAME if is_database_down or self._watch.is_cut else b""
        await send({"type": "http.response.body", "body": last, "more_body": False})

    def revoke(self) -> None:
        """See `Open`."""
        self._watch.stop()
        if self._abort is not None and self._abort_timer is None:
            # Else it would go on for as long as the client takes for what is on its way already.
            self._abort_timer = asyncio.get_running_loop().call_later(CLOSE_TIMEOUT_SECONDS, self._abort)


class Streams(LiveConnections[OpenStream]):
    """All that are open at this process."""

    def __init__(self, accounts: AccountService, limit: StreamLimit) -> None:
        super().__init__(accounts)
        self.limit = limit

    async def follow(self, caller: Caller, watch: Callable[[], Awaitable[RunWatch]]) -> EventStream:
        """Streams what `watch` begins. Raises TooMany before it is begun."""
        self.limit.take(caller.user_id)
        try:
            return EventStream(await watch(), caller, self)
        except BaseException:
            self.limit.release(caller.user_id)
            raise
