"""Rows of artifacts: versions with their pages, the texts of pages, and files that were made of them.

The database deletes the rows of an artifact with it. An artifact outlives the conversation, room or task in
which it was made.
"""

from datetime import datetime

from sqlalchemy import ForeignKey, Index, LargeBinary, String, Text, false
from sqlalchemy.orm import Mapped, mapped_column

from luxx.infra.store.tables import Base, UtcDateTime
from luxx.runs.models import CALL_ID_LENGTH

NAME_LENGTH = 200
NOTE_LENGTH = 500
FORMAT_LENGTH = 10


class ArtifactRow(Base):
    """`user_id` owns it: in a room, the owner of the room. At most one of the three subjects is set. `head`
    is the number of the newest version, `stored_bytes` the size of its parts. `is_tainted`: a run that had
    read untrusted content has written in it, so reading it brings that. `run_id`: the run that writes a page
    anew, which may have ended."""

    __tablename__ = "artifacts"
    __table_args__ = (Index("ix_artifacts_user_id_id", "user_id", "id"),)

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"), index=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    type: Mapped[str] = mapped_column(String(10))
    name: Mapped[str] = mapped_column(String(NAME_LENGTH))
    conversation_id: Mapped[str | None] = mapped_column(
        ForeignKey("conversations.id", ondelete="SET NULL"), index=True
    )
    room_id: Mapped[str | None] = mapped_column(ForeignKey("chat_rooms.id", ondelete="SET NULL"), index=True)
    task_id: Mapped[str | None] = mapped_column(ForeignKey("tasks.id", ondelete="SET NULL"), index=True)
    step_id: Mapped[str | None] = mapped_column(String(64))
    head: Mapped[int] = mapped_column()
    stored_bytes: Mapped[int] = mapped_column(default=0)
    is_tainted: Mapped[bool] = mapped_column(default=False, server_default=false())
    run_id: Mapped[str | None] = mapped_column(String(36))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class ArtifactVersionRow(Base):
    """A version, which never changes but for its `problems`. `pages` are a JSON list of `PageEntry`,
    `settings` the JSON of `ArtifactSettings`, `pages_changed` a list of numbers. `run_id` and `call_id` name
    the tool call that made it: each makes one version at most."""

    __tablename__ = "artifact_versions"
    __table_args__ = (Index("uq_artifact_versions_run_id_call_id", "run_id", "call_id", unique=True),)

    artifact_id: Mapped[str] = mapped_column(ForeignKey("artifacts.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    pages: Mapped[str] = mapped_column(Text)
    settings: Mapped[str] = mapped_column(Text)
    pages_changed: Mapped[str] = mapped_column(Text)
    problems: Mapped[str] = mapped_column(Text, default="[]")
    author_kind: Mapped[str] = mapped_column(String(10))
    author_id: Mapped[int | None] = mapped_column(ForeignKey("users.id", ondelete="SET NULL"), index=True)
    author_name: Mapped[str] = mapped_column(String(200))
    run_id: Mapped[str | None] = mapped_column(String(36))
    call_id: Mapped[str | None] = mapped_column(String(CALL_ID_LENGTH))
    note: Mapped[str] = mapped_column(String(NOTE_LENGTH), default="")
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class ArtifactPartRow(Base):
    """The text of a page, by its hash: versions with the same page share it."""

    __tablename__ = "artifact_parts"

    artifact_id: Mapped[str] = mapped_column(ForeignKey("artifacts.id", ondelete="CASCADE"), primary_key=True)
    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    media_type: Mapped[str] = mapped_column(String(100))
    data: Mapped[bytes] = mapped_column(LargeBinary)


class ArtifactRenderRow(Base):
    """A file made of a version, or the picture of a page of it. A cache: the oldest are deleted.

    `format` is that of a download; `page` 0 is the file, higher ones are pictures of its pages with `width`
    pixels. `info` is the JSON of what is known of the file.
    """

    __tablename__ = "artifact_renders"
    __table_args__ = (Index("ix_artifact_renders_used_at", "used_at"),)

    artifact_id: Mapped[str] = mapped_column(ForeignKey("artifacts.id", ondelete="CASCADE"), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    format: Mapped[str] = mapped_column(String(FORMAT_LENGTH), primary_key=True)
    page: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    width: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    renderer: Mapped[str] = mapped_column(String(200))
    sha256: Mapped[str] = mapped_column(String(64))
    size: Mapped[int] = mapped_column()
    info: Mapped[str] = mapped_column(Text)
    data: Mapped[bytes] = mapped_column(LargeBinary)
    used_at: Mapped[datetime] = mapped_column(UtcDateTime)
