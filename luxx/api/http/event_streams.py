"""Long-lived connections: server-sent events, limits per user, and their end when a sign-in is revoked."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, cast

import structlog
from litestar import Request
from litestar.response.base import ASGIResponse, Response
from litestar.types import Receive, Scope, Send
from sqlalchemy.exc import SQLAlchemyError

from luxx.api.http.envelope import success
from luxx.api.http.errors import DATABASE_DOWN_ERRORS
from luxx.api.http.security import DETACHED_STREAM_KEY, RAW_SEND_KEY
from luxx.domain.accounts.authentication import Authenticator
from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.rights import AccountChange
from luxx.errors import TooMany
from luxx.runs.streams.watch import RunWatch
from luxx.wire.run import Run, RunKind

DISCONNECT_KEY = "luxx.disconnect"
"""Scope key of the connection's `ClientDisconnect`, which `protocol.py` sets."""


def wants_json(request: Request[Any, Any, Any]) -> bool:
    """Whether the client accepts JSON and not an event stream."""
    accept = request.headers.get("accept", "")
    return "application/json" in accept and "text/event-stream" not in accept


class ClientDisconnect:
    """Callbacks for the end of a connection. A waiting task per stream would cost more."""

    __slots__ = ("_callbacks", "is_gone")

    def __init__(self) -> None:
        self.is_gone = False
        self._callbacks: list[Callable[[], None]] = []

    def add_callback(self, callback: Callable[[], None]) -> None:
        """Calls `callback` when the client disconnects; at once if it already has."""
        if self.is_gone:
            callback()
        else:
            self._callbacks.append(callback)

    def remove_callback(self, callback: Callable[[], None]) -> None:
        if callback in self._callbacks:
            self._callbacks.remove(callback)

    def notify(self) -> None:
        """Runs the callbacks. The protocol calls it when the connection is lost."""
        self.is_gone = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


RECHECK_SECONDS = 3.0
"""The interval of checks for ended sign-ins. Their connections end within 5 s, at once with a bus message."""

CLOSE_TIMEOUT_SECONDS = 1.0
"""How long a close waits for a client that does not read."""

RETRY_AFTER_SECONDS = 5  # The Retry-After header of a refused stream.

logger = structlog.get_logger()


class LiveConnection(Protocol):
    """A stream or socket of a signed-in caller."""

    @property
    def caller(self) -> Caller: ...

    def revoke(self) -> None:
        """Ends it within CLOSE_TIMEOUT_SECONDS, even if the client does not read. Callable repeatedly."""
        ...


class StreamLimit:
    """Limits the streams and sockets together of one user in this process; `max_open` 0 means no limit."""

    def __init__(self, max_open: int) -> None:
        self._max_open = max_open
        self._open: Counter[int] = Counter()

    def acquire(self, user_id: int) -> None:
        """Counts one more. Raises TooMany."""
        if self._max_open and self._open[user_id] >= self._max_open:
            raise TooMany(
                f"you have {self._max_open} streams and sockets open, which is the limit; close one "
                "and try again",
                retry_after=RETRY_AFTER_SECONDS,
                kind="too_many_streams",
            )
        self._open[user_id] += 1

    def release(self, user_id: int) -> None:
        self._open[user_id] -= 1
        if not self._open[user_id]:
            del self._open[user_id]


T = TypeVar("T", bound=LiveConnection)


class LiveConnections(Generic[T]):
    """The open connections of one kind in this process, by user. Ends those whose sign-in is revoked."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        self._open: dict[int, set[T]] = {}
        authenticator.subscribe(self._revoke_affected)

    def __len__(self) -> int:
        return sum(len(connections) for connections in self._open.values())

    def count_of(self, user_id: int) -> int:
        """The number of connections of this user."""
        return len(self._open.get(user_id, ()))

    def add(self, connection: T) -> None:
        self._open.setdefault(connection.caller.user_id, set()).add(connection)

    def remove(self, connection: T) -> None:
        connections = self._open[connection.caller.user_id]
        connections.remove(connection)
        if not connections:
            del self._open[connection.caller.user_id]

    async def check_sign_ins(self) -> None:
        """Ends connections whose sign-in ended or whose rights shrank, until cancelled."""
        while True:
            await asyncio.sleep(RECHECK_SECONDS)
            # In a method of its own: local variables here would keep connections alive during the sleep.
            await self._check()

    async def _check(self) -> None:
        live = [connection for connections in self._open.values() for connection in connections]
        if not live:
            return
        callers = [connection.caller for connection in live]
        try:
            revoked_callers = await self._authenticator.revoked_callers(callers)
        except SQLAlchemyError:
            return  # The database does not answer; the next check repeats it.
        except Exception:
            logger.exception("sign_ins_not_checked")
            return
        for connection in live:
            if connection.caller in revoked_callers:
                connection.revoke()

    def _revoke_affected(self, change: AccountChange) -> None:
        for connection in tuple(self._open.get(change.user_id, ())):
            if change.concerns(connection.caller):
                connection.revoke()


CONNECTION_KEY = "luxx.connection"
"""Scope key of the request's `ChunkedConnection`, which `protocol.py` sets."""


class WriteFlow(Protocol):
    """The server's flow control: `write_paused` while the client does not read."""

    write_paused: bool


@dataclass(slots=True, eq=False)
class ChunkedConnection:
    """A client's connection as a `Pipe` (`runs/streams/watch.py`), one per request."""

    _transport: asyncio.Transport
    _flow: WriteFlow
    _disconnect: ClientDisconnect

    @property
    def is_writable(self) -> bool:
        return not (self._flow.write_paused or self._disconnect.is_gone or self._transport.is_closing())

    def push(self, data: bytes) -> None:
        """Sends `data` as one HTTP chunk."""
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))


RETRY_FRAME = b"retry: 1000\n\n"
"""Tells clients to reconnect after 1000 ms: sent when the server stops or cannot read the event log."""

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


ABORT_KEY = "luxx.abort"
"""Scope key of the function that aborts the connection, which `protocol.py` sets."""


class PreparedResponse(Response[bytes]):
    """The response of a route that an ASGI application of Luxx sends."""

    def __init__(self, response: ASGIResponse) -> None:
        super().__init__(b"")
        self._response = response

    def to_asgi_response(self, app: Any, request: Request[Any, Any, Any], **kwargs: Any) -> ASGIResponse:
        """Called by Litestar. The arguments of a plain response do not apply."""
        del app, request, kwargs
        return self._response


def is_head(scope: Scope) -> bool:
    """Whether only the headers of the response are wanted."""
    return cast("dict[str, Any]", scope)["method"] == "HEAD"


class OpenStream(ASGIResponse):
    """The ASGI application that sends the stream of a watch."""

    __slots__ = ("_abort", "_abort_timer", "_pipe", "_streams", "_watch", "caller")

    def __init__(self, watch: RunWatch, caller: Caller, streams: "Streams") -> None:
        super().__init__(media_type="text/event-stream")
        self.caller = caller
        self._watch = watch
        self._streams = streams
        self._pipe: ChunkedConnection | None = None
        self._abort: Callable[[], None] | None = None
        self._abort_timer: asyncio.TimerHandle | None = None

    @property
    def run(self) -> Run:
        """The run, as it was when the stream began."""
        return self._watch.run

    @property
    def may_have_members(self) -> bool:
        """Whether the caller may see the run only as a member: it is of a room or task, or a subagent's."""
        return self.run.kind != RunKind.CHAT or self.run.parent_run_id is not None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Leaves the stream to `security.py`, or without that middleware streams at once.

        `security.py` runs `stream` after Litestar, so that a long stream keeps no request in memory. HEAD
        follows no run and does not count in the limit.
        """
        del receive
        request_scope = cast("dict[str, Any]", scope)
        if is_head(scope):
            self._streams.limit.release(self.caller.user_id)
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        elif RAW_SEND_KEY in request_scope:
            request_scope[DETACHED_STREAM_KEY] = self.stream
        else:
            await self.stream(request_scope, send)

    async def stream(self, request_scope: dict[str, Any], send: Send) -> None:
        self._abort = request_scope.get(ABORT_KEY)
        self._pipe = request_scope.get(CONNECTION_KEY)
        disconnect: ClientDisconnect = request_scope.get(DISCONNECT_KEY) or ClientDisconnect()
        disconnect.add_callback(self._watch.stop)
        self._streams.add(self)
        try:
            # Middleware that wraps `send` needs only the response start, and costs a coroutine per frame.
            await self._send(send, request_scope.get(RAW_SEND_KEY, send))
        except OSError:
            pass  # The client disconnected; the run continues.
        finally:
            self._streams.remove(self)
            self._streams.limit.release(self.caller.user_id)
            disconnect.remove_callback(self._watch.stop)
            if self._abort_timer is not None:
                self._abort_timer.cancel()

    async def _send(self, send: Send, raw_send: Send) -> None:
        await self._start(send)
        is_database_down = False
        with self._watch.attached():
            try:
                while data := await self._watch.next():
                    await raw_send({"type": "http.response.body", "body": data, "more_body": True})
            except DATABASE_DOWN_ERRORS as error:
                logger.warning("stream_aborted", error=str(error))
                is_database_down = True
        last = RETRY_FRAME if is_database_down or self._watch.is_cut else b""
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _start(self, send: Send) -> None:
        """Starts the response; from then on the watch may write to the connection."""
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        if self._pipe is not None:
            self._watch.write_to(self._pipe)

    def revoke(self) -> None:
        self._watch.stop()
        if self._abort is not None and self._abort_timer is None:
            # Otherwise the stream would last until the client has read all buffered data.
            self._abort_timer = asyncio.get_running_loop().call_later(CLOSE_TIMEOUT_SECONDS, self._abort)


MaySee = Callable[[Sequence[tuple[Caller, str]]], Awaitable[list[bool]]]
"""Whether each caller may still see the run of this id."""


class Streams(LiveConnections[OpenStream]):
    """The open streams of this process. Also ends those of callers who lost the membership of a room."""

    def __init__(self, authenticator: Authenticator, limit: StreamLimit, may_see: MaySee) -> None:
        super().__init__(authenticator)
        self.limit = limit
        self._may_see = may_see

    def end_membership(self, user_id: int, subject_id: str) -> None:
        """Ends the user's streams of a room at once; those in other processes end within 5 s."""
        for stream in tuple(self._open.get(user_id, ())):
            if stream.run.subject_id == subject_id:
                stream.revoke()

    async def _check(self) -> None:
        await super()._check()
        of_members = [
            stream for streams in self._open.values() for stream in streams if stream.may_have_members
        ]
        if not of_members:
            return
        try:
            visible = await self._may_see([(stream.caller, stream.run.id) for stream in of_members])
        except SQLAlchemyError:
            return  # The database does not answer; the next check repeats it.
        for stream, is_visible in zip(of_members, visible, strict=True):
            if not is_visible:
                stream.revoke()

    async def follow(self, caller: Caller, start: Callable[[], Awaitable[RunWatch]]) -> PreparedResponse:
        """The response that streams a run. Raises TooMany before it calls `start`, which begins the watch."""
        self.limit.acquire(caller.user_id)
        try:
            return PreparedResponse(OpenStream(await start(), caller, self))
        except BaseException:
            self.limit.release(caller.user_id)
            raise

    async def follow_started(
        self,
        request: Request[Any, Any, Any],
        caller: Caller,
        start: Callable[[], Awaitable[Run]],
        start_and_watch: Callable[[], Awaitable[RunWatch]],
    ) -> Response[Any]:
        """The stream of a run that is started; 202 and the run for a client that accepts JSON."""
        if wants_json(request):
            run = await start()
            return Response(success(run, "started"), status_code=202, media_type="application/json")
        return await self.follow(caller, start_and_watch)
