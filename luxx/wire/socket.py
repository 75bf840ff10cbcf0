"""What is said on a socket, both ways: pure values. Who says what when is in `api/sockets.py`."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from luxx.wire.run import RunStatus

SessionId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=64, description="a conversation's id")]


class _ServerMessageBase(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """What the server says."""


class _ClientMessageBase(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", forbid_unknown_fields=True
):
    """What a client says; an unknown field is refused, as in a body."""


class Subscribe(_ClientMessageBase, frozen=True, kw_only=True, tag="subscribe"):
    """Tells the session's state at once, and again whenever it changes."""

    session_id: SessionId


class Unsubscribe(_ClientMessageBase, frozen=True, kw_only=True, tag="unsubscribe"):
    """Ends a subscription; one that there is not is no mistake."""

    session_id: SessionId


class Ping(_ClientMessageBase, frozen=True, kw_only=True, tag="ping"):
    """Is answered with `pong`."""


ClientMessage = Subscribe | Unsubscribe | Ping


class Pong(_ServerMessageBase, frozen=True, kw_only=True, tag="pong"):
    """The answer to `ping`."""


class SessionStatus(StrEnum):
    """`idle` before the first run; else the status of the newest one."""

    IDLE = "idle"
    QUEUED = RunStatus.QUEUED
    RUNNING = RunStatus.RUNNING
    WAITING = RunStatus.WAITING
    PAUSED = RunStatus.PAUSED
    COMPLETED = RunStatus.COMPLETED
    FAILED = RunStatus.FAILED
    CANCELLED = RunStatus.CANCELLED


class SessionState(msgspec.Struct, frozen=True, kw_only=True):
    """A session and its newest run, whose fields are null where there is none; `message_id` is the answer."""

    status: SessionStatus
    title: str
    run_id: str | None = None
    message_id: str | None = None
    stop_reason: str | None = None
    error: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None


class SessionUpdate(_ServerMessageBase, frozen=True, kw_only=True, tag="session_update"):
    """The state of a session that is subscribed to; only the newest is sent."""

    session_id: str
    data: SessionState


class NotificationData(msgspec.Struct, frozen=True, kw_only=True):
    """Something to show: `title` is the session's, `message` one sentence."""

    title: str
    message: str
    session_id: str
    run_id: str
    status: SessionStatus


class Notification(_ServerMessageBase, frozen=True, kw_only=True, tag="notification"):
    """A run ended, failed or waits for a person, in a session that this socket is not subscribed to."""

    data: NotificationData


class RefusalDetail(msgspec.Struct, frozen=True, kw_only=True):
    """`fields` names each wrong place of a message by its JSON path."""

    kind: str
    fields: dict[str, str] | UnsetType = UNSET


class Refusal(_ServerMessageBase, frozen=True, kw_only=True, tag="error"):
    """What was said was refused, or a session is not there (any more); the socket stays open."""

    error: str
    code: int
    detail: RefusalDetail
    session_id: str | UnsetType = UNSET


ServerMessage = SessionUpdate | Notification | Pong | Refusal
