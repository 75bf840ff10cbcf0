"""Rows of projects, conversations and messages."""

from datetime import datetime
from enum import StrEnum

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, String, Text, false, text
from sqlalchemy.dialects.postgresql import TSVECTOR
from sqlalchemy.orm import Mapped, mapped_column

from luxx.infra.store.tables import (
    Base,
    KnowledgeColumn,
    MemoryColumn,
    ModelSettingsColumns,
    RequestColumns,
    SlidingWindowColumn,
    UtcDateTime,
)
from luxx.wire.turn import MODEL_LENGTH


class ProjectRow(MemoryColumn, Base):
    __tablename__ = "projects"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    name: Mapped[str] = mapped_column(String(200))
    description: Mapped[str] = mapped_column(Text, default="")
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class TitleFrom(StrEnum):
    """`words`: the title is the first words of the conversation. `asked`: a model was asked for another."""

    WORDS = "words"
    ASKED = "asked"


class ConversationRow(
    MemoryColumn, KnowledgeColumn, ModelSettingsColumns, RequestColumns, SlidingWindowColumn, Base
):
    """`selected_leaf_id` is the last message of the path a model sees; `run_id` the active run, if any.
    `title_from` says that a model may still name it (`TitleFrom`); null: it may not.
    `lost_provider` and the like: see `infra/store/tables.py`. `lost_project` is kept only of a project
    with permission rules. `queue_paused`: its queued messages do not start by themselves; `queue_problem` is
    why one could not be sent. `follow_ups`: the messages that are proposed after the newest answer, as JSON
    (`FollowUps`). `temporary_minutes`: a temporary chat, which is deleted after so many minutes
    without use; null: it is kept. Such a chat is in no list and not in the index of the search.
    `comparing_id`: the message whose two answers are compared (`comparing.py`); null: none.

    A row with an `import_id` is hidden (`access.py`): queries for a user's conversations require `import_id
    IS NULL`.
    """

    __tablename__ = "conversations"
    __table_args__ = (
        Index("ix_conversations_user_id_import_id_id", "user_id", "import_id", "id"),
        Index("ix_conversations_user_id_updated_at", "user_id", "updated_at"),
        Index(
            "ix_conversations_run_id",
            "run_id",
            sqlite_where=text("run_id IS NOT NULL"),
            postgresql_where=text("run_id IS NOT NULL"),
        ),
        Index(
            "ix_conversations_temporary_minutes",
            "temporary_minutes",
            sqlite_where=text("temporary_minutes IS NOT NULL"),
            postgresql_where=text("temporary_minutes IS NOT NULL"),
        ),
    )

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    provider_id: Mapped[int | None] = mapped_column(
        ForeignKey("llm_providers.id", ondelete="SET NULL"), index=True
    )
    project_id: Mapped[str | None] = mapped_column(ForeignKey("projects.id", ondelete="SET NULL"), index=True)
    agent_id: Mapped[int | None] = mapped_column(ForeignKey("agents.id", ondelete="SET NULL"), index=True)
    title: Mapped[str] = mapped_column(String(300))
    title_from: Mapped[str | None] = mapped_column(String(10))
    model: Mapped[str | None] = mapped_column(String(200))
    system_prompt: Mapped[str | None] = mapped_column(Text)
    record: Mapped[bool | None] = mapped_column()
    pinned: Mapped[bool] = mapped_column(default=False)
    archived: Mapped[bool] = mapped_column(default=False)
    tags: Mapped[str] = mapped_column(Text, default="[]")
    selected_leaf_id: Mapped[str | None] = mapped_column(String(36))
    run_id: Mapped[str | None] = mapped_column(String(36))
    import_id: Mapped[str | None] = mapped_column(String(36))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)
    lost_provider: Mapped[str | None] = mapped_column(String(100))
    lost_agent: Mapped[str | None] = mapped_column(String(100))
    lost_project: Mapped[str | None] = mapped_column(String(200))
    queue_paused: Mapped[bool] = mapped_column(default=False, server_default=false())
    queue_problem: Mapped[str | None] = mapped_column(Text)
    temporary_minutes: Mapped[int | None] = mapped_column()
    follow_ups: Mapped[str | None] = mapped_column(Text)
    comparing_id: Mapped[str | None] = mapped_column(String(36))


TODOS_MODE = "todos"
"""The `mode` of the row that has a person's change of the to-do list, for the answer that is made."""


class QueuedMessageRow(Base):
    """A message that waits while an answer is made, in the order of `position`: one that steers this answer,
    or one that is sent after it (`mode`). A row of TODOS_MODE is no message; its content is a TodoChange.

    `content` is stored as that of a message; `request` is the JSON of what it is sent with, its images
    included. The transaction that makes a message or a step of it deletes the row.
    """

    __tablename__ = "queued_messages"
    __table_args__ = (Index("ix_queued_messages_conversation_id_position", "conversation_id", "position"),)

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    conversation_id: Mapped[str] = mapped_column(ForeignKey("conversations.id", ondelete="CASCADE"))
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    mode: Mapped[str] = mapped_column(String(10))
    position: Mapped[int] = mapped_column()
    content: Mapped[str] = mapped_column(Text)
    request: Mapped[str] = mapped_column(Text, deferred=True)
    stored_bytes: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class MessageRow(Base):
    """`content` is the stored JSON (wire/message.py); `replay` what adapters want back, per completion;
    `context` the JSON of the ContextRecord of an answer's last prompt.

    `seat_id` is the seat that wrote a message of a room: it stays when the seat is deleted. So does
    `provider_id`, with the name that the provider had. `finish` is why the last model call ended. `reply_to`
    is the message of the same room that a person's one answers; it stays when that is deleted. A trigger
    sets `is_unremembered` where memory is off or asks at that time, and for the answer to such a message: no
    facts are ever extracted from it.

    One statement deletes a message and all below it, not a cascade over `parent_id`: SQLite fails on a
    cascade of a thousand levels.
    """

    __tablename__ = "messages"
    __table_args__ = (
        Index("ix_messages_conversation_id_id", "conversation_id", "id"),
        # Messages of conversations have no entry in it.
        Index(
            "ix_messages_room_id_id",
            "room_id",
            "id",
            sqlite_where=text("room_id IS NOT NULL"),
            postgresql_where=text("room_id IS NOT NULL"),
        ),
    )

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    conversation_id: Mapped[str | None] = mapped_column(ForeignKey("conversations.id", ondelete="CASCADE"))
    room_id: Mapped[str | None] = mapped_column(ForeignKey("chat_rooms.id", ondelete="CASCADE"))
    seat_id: Mapped[int | None] = mapped_column()
    parent_id: Mapped[str | None] = mapped_column(ForeignKey("messages.id"), index=True)
    reply_to: Mapped[str | None] = mapped_column(String(36))
    run_id: Mapped[str | None] = mapped_column(String(36))
    role: Mapped[str] = mapped_column(String(20))
    content: Mapped[str] = mapped_column(Text)
    replay: Mapped[str | None] = mapped_column(Text)
    context: Mapped[str | None] = mapped_column(Text)
    token_count: Mapped[int] = mapped_column(default=0)
    usage: Mapped[str | None] = mapped_column(Text)
    status: Mapped[str] = mapped_column(String(20), default="complete")
    finish: Mapped[str | None] = mapped_column(String(20))
    provider_id: Mapped[int | None] = mapped_column()
    provider_name: Mapped[str | None] = mapped_column(String(100))
    model: Mapped[str | None] = mapped_column(String(MODEL_LENGTH))
    sender_name: Mapped[str | None] = mapped_column(String(200))
    sender_color: Mapped[str | None] = mapped_column(String(20))
    round_number: Mapped[int | None] = mapped_column()
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    is_unremembered: Mapped[bool | None] = mapped_column()


SEARCHED_IDS = ("conversation_id", "message_id", "room_id", "task_id")
"""Columns of which each row of the search index has one: what its words belong to."""


class SearchTextRow(Base):
    """The words of one message, one conversation's title, one room or one task; the database deletes it with
    that row.

    `search_index.py` computes `words`: text on SQLite, where triggers copy it to the FTS5 table
    `search_index`, a tsvector on PostgreSQL. A higher id was stored later.
    """

    __tablename__ = "search_texts"
    __table_args__ = (
        CheckConstraint(
            " + ".join(f"CASE WHEN {name} IS NULL THEN 0 ELSE 1 END" for name in SEARCHED_IDS) + " = 1",
            name="one_subject",
        ),
        # Messages have no entry in them.
        *(
            Index(
                f"ix_search_texts_{name}",
                name,
                unique=True,
                sqlite_where=text(f"{name} IS NOT NULL"),
                postgresql_where=text(f"{name} IS NOT NULL"),
            )
            for name in ("room_id", "task_id")
        ),
        Index("ix_search_texts_words", "words", postgresql_using="gin").ddl_if(dialect="postgresql"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    conversation_id: Mapped[str | None] = mapped_column(
        ForeignKey("conversations.id", ondelete="CASCADE"), unique=True
    )
    message_id: Mapped[str | None] = mapped_column(ForeignKey("messages.id", ondelete="CASCADE"), unique=True)
    words: Mapped[str] = mapped_column(Text().with_variant(TSVECTOR(), "postgresql"))
    room_id: Mapped[str | None] = mapped_column(ForeignKey("chat_rooms.id", ondelete="CASCADE"))
    task_id: Mapped[str | None] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"))
