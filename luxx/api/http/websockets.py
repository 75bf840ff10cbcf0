"""Open WebSockets: subscriptions to session states, notifications, and limits per user.

The notices say only that a session changed; the socket reads its state from the database when it can send. A
slow client thus needs one id per session, and never gets an old state after a newer one. `routes/auth.py`
does the handshake.
"""

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, assert_never

import msgspec
import structlog
from litestar.exceptions import WebSocketDisconnect
from sqlalchemy.exc import SQLAlchemyError

from luxx.api.http.errors import status_of
from luxx.api.http.event_streams import CLOSE_TIMEOUT_SECONDS, LiveConnections, StreamLimit
from luxx.api.http.request_input import read_body
from luxx.domain.accounts.authentication import Authenticator
from luxx.domain.accounts.caller import Caller, RateLimit
from luxx.errors import InvalidInput, LuxxError, NotFound, TooMany
from luxx.infra.clock import new_id
from luxx.runs.streams.notices import Notices
from luxx.runs.streams.sessions import IDS_PER_QUERY
from luxx.wire.socket import (
    ClientMessage,
    Notification,
    NotificationData,
    Ping,
    Pong,
    Refusal,
    RefusalDetail,
    SessionUpdate,
    Subscribe,
    Unsubscribe,
)

MAX_SOCKETS = 20
"""Sockets of one user in one process."""

MAX_SUBSCRIPTIONS = 500
"""Subscriptions of one socket."""

MAX_PENDING_NOTIFICATIONS = 20
"""Notifications that wait for a slow client. Beyond that the oldest are dropped."""

MESSAGES_PER_MINUTE = 1200
"""Messages of one socket. All may come at once, so that a client can renew its subscriptions on reconnect."""

REFRESH_SECONDS = 60.0
"""The interval at which the socket reads all subscribed states again. It sends only changed ones."""

RETRY_SECONDS = 1.0
"""The pause after the database did not answer."""

CLOSE_SIGN_IN_AGAIN = 4401  # Ours; the others are of RFC 6455.
CLOSE_POLICY_VIOLATION = 1008
CLOSE_INTERNAL_ERROR = 1011
CLOSE_TRY_AGAIN_LATER = 1013

SocketMessage = Any
SocketReceive = Callable[[], Awaitable[SocketMessage]]
SocketSend = Callable[[SocketMessage], Awaitable[None]]

logger = structlog.get_logger()
_encode = msgspec.json.Encoder().encode


class CloseReason(msgspec.Struct, frozen=True):
    """The content of a close frame; `reason` is a sentence of at most 123 bytes."""

    code: int
    reason: str

    @property
    def message(self) -> dict[str, Any]:
        """The ASGI message that closes a socket."""
        return {"type": "websocket.close", "code": self.code, "reason": self.reason}


SIGN_IN_ENDED = CloseReason(
    CLOSE_SIGN_IN_AGAIN, "your sign-in ended or your rights were changed; get a new ticket"
)
TOO_MANY_MESSAGES = CloseReason(CLOSE_POLICY_VIOLATION, "too many messages; connect again and send fewer")
INTERNAL_ERROR = CloseReason(CLOSE_INTERNAL_ERROR, "internal server error; connect again")
TOO_MANY_SOCKETS = CloseReason(
    CLOSE_TRY_AGAIN_LATER, "you have too many sockets or streams open; close one and try again"
)


class Socket:
    """One open WebSocket. It implements `SessionListener` of the notices; `serve` runs it."""

    def __init__(
        self, caller: Caller, notices: Notices, limit: RateLimit, *, receive: SocketReceive, send: SocketSend
    ) -> None:
        self.caller = caller
        self.id = new_id()
        self._notices = notices
        self._rate_limit = limit
        self._receive = receive
        self._send = send
        # The hash of the last update sent for each session, to send only changes; 0 before the first.
        self._subscribed: dict[str, int] = {}
        self._due: dict[str, None] = {}  # The sessions whose state is to be sent: an ordered set.
        self._notifications: deque[NotificationData] = deque(maxlen=MAX_PENDING_NOTIFICATIONS)
        self._wake = asyncio.Event()
        self._close: CloseReason | None = None
        self._writer: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        """Returns when the socket is closed by either side."""
        reader = asyncio.create_task(self._run_logged(self._read()))
        self._writer = asyncio.create_task(self._run_logged(self._write()))
        both = {reader, self._writer}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    def revoke(self) -> None:
        self.force_close(SIGN_IN_ENDED)

    def force_close(self, close: CloseReason) -> None:
        """Closes it within CLOSE_TIMEOUT_SECONDS, whether or not the client reads."""
        if self._close is None and self._writer is not None:
            self._close = close
            self._wake.set()
            asyncio.get_running_loop().call_later(CLOSE_TIMEOUT_SECONDS, self._writer.cancel)

    # Methods of `SessionListener`

    def is_subscribed(self, session_id: str) -> bool:
        return session_id in self._subscribed

    def mark_changed(self, session_id: str) -> None:
        self._due[session_id] = None
        self._wake.set()

    def add_notification(self, notification: NotificationData) -> None:
        self._notifications.append(notification)
        self._wake.set()

    def refresh_all(self) -> None:
        self._due.update(dict.fromkeys(self._subscribed))
        self._wake.set()

    # Client to server

    async def _read(self) -> None:
        while (message := await self._receive())["type"] != "websocket.disconnect":
            if self._close is None:
                await self._handle(message)

    async def _handle(self, message: SocketMessage) -> None:
        try:
            self._rate_limit.consume(self.id)
            await self._execute(_parse_message(message))
        except TooMany:
            self.force_close(TOO_MANY_MESSAGES)
        except LuxxError as error:
            await self._send_struct(refusal_of(error))

    async def _execute(self, command: ClientMessage) -> None:
        match command:
            case Subscribe(session_id=session_id):
                if len(self._subscribed) >= MAX_SUBSCRIPTIONS and session_id not in self._subscribed:
                    problem = f"a socket may have {MAX_SUBSCRIPTIONS} subscriptions; end one first"
                    await self._send_struct(
                        refusal_of(InvalidInput(problem, kind="too_many_subscriptions"), session_id)
                    )
                    return
                self._subscribed[session_id] = 0
                self.mark_changed(session_id)
            case Unsubscribe(session_id=session_id):
                self._subscribed.pop(session_id, None)
                self._due.pop(session_id, None)
            case Ping():
                await self._send_struct(Pong())
            case _:
                assert_never(command)

    # Server to client

    async def _write(self) -> None:
        while self._close is None:
            with suppress(TimeoutError):
                # The random factor spreads the refreshes of many sockets.
                async with asyncio.timeout(REFRESH_SECONDS * random.uniform(0.8, 1.2)):
                    await self._wake.wait()
            if not self._wake.is_set():
                self.refresh_all()
            self._wake.clear()
            while self._notifications and self._close is None:
                await self._send_struct(Notification(data=self._notifications.popleft()))
            while self._due and self._close is None:
                await self._send_states()
        await self._send(self._close.message)

    async def _send_states(self) -> None:
        due = list(self._due)[:IDS_PER_QUERY]
        for session_id in due:
            del self._due[session_id]
        try:
            states = await self._notices.states(self.caller.user_id, due)
        except SQLAlchemyError as error:
            logger.warning("session_states_not_read", error=str(error))
            self._due.update(dict.fromkeys(due))
            await asyncio.sleep(RETRY_SECONDS)
            return
        for session_id in due:
            last_sent, state = self._subscribed.get(session_id), states.get(session_id)
            if last_sent is None or self._close is not None:
                continue  # The client unsubscribed meanwhile.
            if state is None:
                del self._subscribed[session_id]
                missing = NotFound("no conversation, room or task with this id", kind="session_not_found")
                await self._send_struct(refusal_of(missing, session_id))
                continue
            update = _encode(SessionUpdate(session_id=session_id, data=state))
            if last_sent != hash(update):
                self._subscribed[session_id] = hash(update)
                await self._send({"type": "websocket.send", "text": update.decode()})

    async def _send_struct(self, message: msgspec.Struct) -> None:
        await self._send({"type": "websocket.send", "text": _encode(message).decode()})

    async def _run_logged(self, work: Awaitable[None]) -> None:
        """Awaits `work`. An unexpected exception is logged and closes the socket."""
        try:
            await work
        except (OSError, WebSocketDisconnect):
            pass  # The client disconnected.
        except Exception:
            logger.exception("socket_failed")
            with suppress(OSError, WebSocketDisconnect, TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_SECONDS):
                    await self._send(INTERNAL_ERROR.message)


class Sockets:
    """The open sockets of this process, by user."""

    def __init__(self, authenticator: Authenticator, notices: Notices, stream_limit: StreamLimit) -> None:
        self._notices = notices
        self._stream_limit = stream_limit
        self._rate_limit = RateLimit(MESSAGES_PER_MINUTE, "too many messages")
        self._open: LiveConnections[Socket] = LiveConnections(authenticator)
        self.check_sign_ins = self._open.check_sign_ins

    def __len__(self) -> int:
        return len(self._open)

    async def serve(self, caller: Caller, receive: SocketReceive, send: SocketSend) -> None:
        """Serves an accepted socket until it is closed. Closes it at once if the user has too many."""
        try:
            if self._open.count_of(caller.user_id) >= MAX_SOCKETS:
                raise TooMany(TOO_MANY_SOCKETS.reason, retry_after=1)
            self._stream_limit.acquire(caller.user_id)
        except TooMany:
            await send(TOO_MANY_SOCKETS.message)
            return
        socket = Socket(caller, self._notices, self._rate_limit, receive=receive, send=send)
        self._open.add(socket)
        unsubscribe = self._notices.listen(caller.user_id, socket)
        try:
            await socket.serve()
        finally:
            unsubscribe()
            self._open.remove(socket)
            self._stream_limit.release(caller.user_id)


def refusal_of(error: LuxxError, session_id: str | None = None) -> Refusal:
    """The message that tells the client of an error; `session_id` names the subscription concerned."""
    return Refusal(
        error=error.message,
        code=status_of(error),
        detail=RefusalDetail(kind=error.kind, fields=error.fields or msgspec.UNSET),
        session_id=msgspec.UNSET if session_id is None else session_id,
    )


def _parse_message(message: SocketMessage) -> ClientMessage:
    """Raises InvalidInput."""
    text = message.get("text")
    if text is None:
        raise InvalidInput("send each message as text with one JSON object, not as bytes")
    command: ClientMessage = read_body(text.encode(), ClientMessage)
    return command
