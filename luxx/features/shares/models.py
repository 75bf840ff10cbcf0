"""The table of links, and the structs of the API. Reading what a link shows is in `content.py`.

A snapshot of a conversation or a room keeps the ids of its messages, not a copy: a stored message never
changes (an edit makes a sibling), and a message that is deleted must not be shown any longer. A snapshot of
a task keeps a copy, because its next run overwrites the results of the steps.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct
from sqlalchemy import CheckConstraint, ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from luxx.infra.store.tables import Base, UtcDateTime

MAX_SHARES = 200
"""Links of one user."""

MAX_SNAPSHOT_MESSAGES = 20_000
MAX_SNAPSHOT_BYTES = 2_000_000
"""Bytes of the copy of a task's results."""

MAX_STORED_BYTES = 20_000_000
"""Bytes of all snapshots of one user."""


class ShareKind(StrEnum):
    CONVERSATION = "conversation"
    ROOM = "room"
    TASK = "task"


class ShareAudience(StrEnum):
    """`tenant`: people of the tenant who are signed in; `anybody`: also without a sign-in, while the tenant
    allows it."""

    TENANT = "tenant"
    ANYBODY = "anybody"


class ShareRow(Base):
    """`token_hash` is the SHA-256 of the token in hexadecimal. One of the three subjects is set.

    `snapshot` is null for a live link (`is_live`); otherwise the JSON of the ids of messages, oldest first,
    or of the copy of a task. `title` is that of the moment at which the link was made.
    """

    __tablename__ = "shares"
    __table_args__ = (
        CheckConstraint(
            " + ".join(
                f"CASE WHEN {name}_id IS NULL THEN 0 ELSE 1 END" for name in ("conversation", "room", "task")
            )
            + " = 1",
            name="one_subject",
        ),
        Index("ix_shares_user_id_id", "user_id", "id"),
    )

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"), index=True)
    conversation_id: Mapped[str | None] = mapped_column(
        ForeignKey("conversations.id", ondelete="CASCADE"), index=True
    )
    room_id: Mapped[str | None] = mapped_column(ForeignKey("chat_rooms.id", ondelete="CASCADE"), index=True)
    task_id: Mapped[str | None] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"), index=True)
    token_hash: Mapped[str] = mapped_column(String(64), unique=True)
    audience: Mapped[str] = mapped_column(String(10))
    title: Mapped[str] = mapped_column(String(300))
    is_live: Mapped[bool] = mapped_column()
    snapshot: Mapped[str | None] = mapped_column(Text, deferred=True)
    ends_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class NewShare(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`subject_id`: the id of the conversation, room or task. `is_live`: the link shows what is there when it
    is opened; otherwise what is there now. `ends_at`: null for a link that does not expire."""

    kind: ShareKind
    subject_id: Annotated[str, Meta(min_length=1, max_length=64)]
    audience: ShareAudience = ShareAudience.TENANT
    is_live: bool = False
    ends_at: Annotated[datetime, Meta(tz=True)] | None = None


class ShareView(Struct, frozen=True, kw_only=True):
    """A link as its owner sees it, without its token."""

    id: str
    kind: ShareKind
    subject_id: str
    title: str
    audience: ShareAudience
    is_live: bool
    ends_at: datetime | None
    created_at: datetime


class NewShareView(ShareView, frozen=True, kw_only=True):
    """A link that was made. Only this answer has its `token`: the server stores a hash of it. `path` is that
    of the page."""

    token: str
    path: str
