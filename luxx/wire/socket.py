"""The messages on a WebSocket, in both directions. `api/http/websockets.py` sends and handles them."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from luxx.wire.message import FollowUps
from luxx.wire.run import MemberRight, RunKind, RunStatus

SessionId: TypeAlias = Annotated[
    str, Meta(min_length=1, max_length=64, description="the id of a conversation, room or task")
]


class _ServerMessageBase(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """A message of the server."""


class _ClientMessageBase(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", forbid_unknown_fields=True
):
    """A message of a client; unknown fields are refused, as in a request body."""


class Subscribe(_ClientMessageBase, frozen=True, kw_only=True, tag="subscribe"):
    """Requests the session's state now, and again whenever it changes."""

    session_id: SessionId


class Unsubscribe(_ClientMessageBase, frozen=True, kw_only=True, tag="unsubscribe"):
    """Ends a subscription; without one it has no effect."""

    session_id: SessionId


class Ping(_ClientMessageBase, frozen=True, kw_only=True, tag="ping"):
    """The server answers with `pong`."""


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
    """A session and its newest run; the run's fields are null without one.

    `message_id` is the answer, or the newest message of a room. `waiting_seq`: the newest event of a run that
    waits for a person; with another number it waits for something else. `members` is how many members a room
    has, `right` that of the reader where the reader is one of them. `queued`: how many messages wait in a
    conversation; `queue_paused`: they do not start by themselves. `follow_ups`: messages
    that a model proposes after an answer of a conversation. What does not apply is left out.
    """

    status: SessionStatus
    title: str
    run_id: str | None = None
    message_id: str | None = None
    waiting_seq: int | UnsetType = UNSET
    members: int | UnsetType = UNSET
    right: MemberRight | UnsetType = UNSET
    queued: int | UnsetType = UNSET
    queue_paused: bool | UnsetType = UNSET
    follow_ups: FollowUps | UnsetType = UNSET
    stop_reason: str | None = None
    error: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None


class SessionUpdate(_ServerMessageBase, frozen=True, kw_only=True, tag="session_update"):
    """The state of a subscribed session; only the newest state is sent."""

    session_id: str
    data: SessionState


class NotificationKind(StrEnum):
    """`message`: a member wrote into a room that does not run. `member`: the reader became a member of a
    room. `title`: a model has named a conversation."""

    MESSAGE = "message"
    MEMBER = "member"
    TITLE = "title"


class NotificationData(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a notification: `title` is the session's, `message` is one sentence.

    `run_id` and `status` are those of the run, null and `idle` where a `kind` says that something else
    happened; `sender` is who wrote the message or added the member. `session_kind` is left out for a
    conversation. `artifact_id`: the artifact that the run made or changed last.
    """

    title: str
    message: str
    session_id: str
    run_id: str | None
    status: SessionStatus
    session_kind: RunKind | UnsetType = UNSET
    kind: NotificationKind | UnsetType = UNSET
    sender: str | UnsetType = UNSET
    artifact_id: str | UnsetType = UNSET


class Notification(_ServerMessageBase, frozen=True, kw_only=True, tag="notification"):
    """Something happened in a session without a subscription of this socket: a run ended, failed or waits for
    a person, a room has a new message or member, or a conversation another title."""

    data: NotificationData


class RefusalDetail(msgspec.Struct, frozen=True, kw_only=True):
    """The detail of a refusal; `fields` maps the JSON path of each invalid field to its problem."""

    kind: str
    fields: dict[str, str] | UnsetType = UNSET


class Refusal(_ServerMessageBase, frozen=True, kw_only=True, tag="error"):
    """The client's message was refused, or a session does not exist (any more); the socket stays open."""

    error: str
    code: int
    detail: RefusalDetail
    session_id: str | UnsetType = UNSET


ServerMessage = SessionUpdate | Notification | Pong | Refusal
