"""Sockets that are open: what a client says and is told on one, and who may keep one open.

A socket is a cursor over rows: whatever may have changed is marked and read again before it is sent, so
a slow client costs a mark per session and never sees an old state after a newer one. How one is opened
is `websocket.py`'s affair.
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

from luxx.api.http.bodies import read_body
from luxx.api.http.errors import status_of
from luxx.api.http.streaming import PATIENCE_SECONDS, KeptOpen, StreamLimit
from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.limits import RateLimit
from luxx.domain.accounts.service import AccountService
from luxx.errors import InvalidInput, LuxxError, NotFound, TooMany
from luxx.infra.clock import new_id
from luxx.runs.streams.notices import AT_ONCE, Notices
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

MOST_SOCKETS = 20
"""Of one user at one process; more are turned away."""

MOST_SUBSCRIPTIONS = 500
"""Of one socket."""

MOST_NOTES = 20
"""Notifications that wait for a slow client; of more, the oldest are dropped."""

MESSAGES_PER_MINUTE = 1200
"""Of one socket; at once, so that a client can subscribe to all it may when it comes back."""

RESTATE_SECONDS = 60.0
"""How often all subscriptions are looked at again; only what differs is sent."""

RETRY_SECONDS = 1.0
"""After the database did not answer."""

SIGN_IN_AGAIN = 4401
POLICY_BROKEN = 1008
SERVER_BROKE = 1011
TRY_LATER = 1013

Message = Any
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

logger = structlog.get_logger()
_encode = msgspec.json.Encoder().encode


class Close(msgspec.Struct, frozen=True):
    """How a socket is closed; `reason` is a sentence of at most 123 bytes."""

    code: int
    reason: str


ENDED_SIGN_IN = Close(SIGN_IN_AGAIN, "your sign-in ended or your rights were changed; get a new ticket")
FLOODED = Close(POLICY_BROKEN, "too many messages; connect again and send fewer")
BROKE = Close(SERVER_BROKE, "the server made a mistake; connect again")
TOO_MANY_SOCKETS = Close(TRY_LATER, "you have too many sockets or streams open; close one and try again")


class Socket:
    """One client's line, once it is open. `serve` is its life; it is an `Ear` of the notices."""

    def __init__(
        self, caller: Caller, notices: Notices, limit: RateLimit, *, receive: Receive, send: Send
    ) -> None:
        self.caller = caller
        self.id = new_id()
        self._notices = notices
        self._limit = limit
        self._receive = receive
        self._send = send
        # To each session what was last sent of it, as a number: what is the same is not sent again.
        self._subscribed: dict[str, int] = {}
        self._due: dict[str, None] = {}
        self._notes: deque[NotificationData] = deque(maxlen=MOST_NOTES)
        self._wake = asyncio.Event()
        self._close: Close | None = None
        self._writer: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        """Returns when the client has left, or when it was cut off."""
        reader = asyncio.create_task(self._watched(self._read()))
        self._writer = asyncio.create_task(self._watched(self._write()))
        both = {reader, self._writer}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    def refuse(self) -> None:
        """See `Open`."""
        self.cut(ENDED_SIGN_IN)

    def cut(self, close: Close) -> None:
        """Closes it, whether or not the client reads."""
        if self._close is None and self._writer is not None:
            self._close = close
            self._wake.set()
            asyncio.get_running_loop().call_later(PATIENCE_SECONDS, self._writer.cancel)

    # What happened

    def hears(self, session_id: str) -> bool:
        return session_id in self._subscribed

    def changed(self, session_id: str) -> None:
        self._due[session_id] = None
        self._wake.set()

    def note(self, notification: NotificationData) -> None:
        self._notes.append(notification)
        self._wake.set()

    def restate(self) -> None:
        self._due.update(dict.fromkeys(self._subscribed))
        self._wake.set()

    # What the client says

    async def _read(self) -> None:
        while (message := await self._receive())["type"] != "websocket.disconnect":
            if self._close is None:
                await self._take(message)

    async def _take(self, message: Message) -> None:
        try:
            self._limit.take(self.id)
            await self._answer(_understood(message))
        except TooMany:
            self.cut(FLOODED)
        except LuxxError as error:
            await self._say(refusal(error))

    async def _answer(self, asked: ClientMessage) -> None:
        match asked:
            case Subscribe(session_id=session_id):
                if len(self._subscribed) >= MOST_SUBSCRIPTIONS and session_id not in self._subscribed:
                    problem = f"a socket takes {MOST_SUBSCRIPTIONS} subscriptions; end one first"
                    await self._say(refusal(InvalidInput(problem, kind="too_many_subscriptions"), session_id))
                    return
                self._subscribed[session_id] = 0
                self.changed(session_id)
            case Unsubscribe(session_id=session_id):
                self._subscribed.pop(session_id, None)
                self._due.pop(session_id, None)
            case Ping():
                await self._say(Pong())
            case _:
                assert_never(asked)

    # What the client is told

    async def _write(self) -> None:
        while self._close is None:
            with suppress(TimeoutError):
                # Not all of them in the same moment.
                async with asyncio.timeout(RESTATE_SECONDS * random.uniform(0.8, 1.2)):
                    await self._wake.wait()
            if not self._wake.is_set():
                self.restate()
            self._wake.clear()
            while self._notes and self._close is None:
                await self._say(Notification(data=self._notes.popleft()))
            while self._due and self._close is None:
                await self._tell_states()
        await self._send({"type": "websocket.close", "code": self._close.code, "reason": self._close.reason})

    async def _tell_states(self) -> None:
        due = list(self._due)[:AT_ONCE]
        for session_id in due:
            del self._due[session_id]
        try:
            states = await self._notices.states(self.caller.user_id, due)
        except SQLAlchemyError as error:
            logger.warning("states_not_read", error=str(error))
            self._due.update(dict.fromkeys(due))
            await asyncio.sleep(RETRY_SECONDS)
            return
        for session_id in due:
            known, state = self._subscribed.get(session_id), states.get(session_id)
            if known is None or self._close is not None:
                continue  # Not subscribed to any more.
            if state is None:
                del self._subscribed[session_id]
                missing = NotFound("no conversation with this id", kind="conversation_not_found")
                await self._say(refusal(missing, session_id))
                continue
            update = _encode(SessionUpdate(session_id=session_id, data=state))
            if known != hash(update):
                self._subscribed[session_id] = hash(update)
                await self._send({"type": "websocket.send", "text": update.decode()})

    async def _say(self, message: msgspec.Struct) -> None:
        await self._send({"type": "websocket.send", "text": _encode(message).decode()})

    async def _watched(self, work: Awaitable[None]) -> None:
        """The work to its end; what nobody foresaw is logged and closes the socket."""
        try:
            await work
        except (OSError, WebSocketDisconnect):
            pass  # The client went away between two messages.
        except Exception:
            logger.exception("socket_broke")
            with suppress(OSError, WebSocketDisconnect, TimeoutError):
                closing = {"type": "websocket.close", "code": BROKE.code, "reason": BROKE.reason}
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await self._send(closing)


class Sockets:
    """All that are open at this process, by user."""

    def __init__(self, accounts: AccountService, notices: Notices, streams: StreamLimit) -> None:
        self._notices = notices
        self._streams = streams
        self._limit = RateLimit(MESSAGES_PER_MINUTE, "too many messages")
        self._open: KeptOpen[Socket] = KeptOpen(accounts)
        self.keep_checking = self._open.keep_checking

    def __len__(self) -> int:
        return len(self._open)

    async def serve(self, caller: Caller, receive: Receive, send: Send) -> None:
        """Serves a socket that was accepted until it is closed; turns it away where the user has too many."""
        try:
            if self._open.of(caller.user_id) >= MOST_SOCKETS:
                raise TooMany(TOO_MANY_SOCKETS.reason, retry_after=1)
            self._streams.take(caller.user_id)
        except TooMany:
            full = TOO_MANY_SOCKETS
            await send({"type": "websocket.close", "code": full.code, "reason": full.reason})
            return
        socket = Socket(caller, self._notices, self._limit, receive=receive, send=send)
        self._open.add(socket)
        leave = self._notices.listen(caller.user_id, socket)
        try:
            await socket.serve()
        finally:
            leave()
            self._open.remove(socket)
            self._streams.release(caller.user_id)


def refusal(error: LuxxError, session_id: str | None = None) -> Refusal:
    """An error of ours as it is said on a socket."""
    return Refusal(
        error=error.message,
        code=status_of(error),
        detail=RefusalDetail(kind=error.kind, fields=error.detail.get("fields", msgspec.UNSET)),
        session_id=msgspec.UNSET if session_id is None else session_id,
    )


def _understood(message: Message) -> ClientMessage:
    """Raises InvalidInput."""
    text = message.get("text")
    if text is None:
        raise InvalidInput("a message is text that holds one JSON object; bytes are not understood")
    asked: ClientMessage = read_body(text.encode(), ClientMessage)
    return asked
