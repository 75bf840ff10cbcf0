"""Rows of memory: scopes, facts with their sources, entities, episodes, communities, changes and words.

Keys are integers, because joins over text keys are up to 25 times slower; the API and graph queries show the
`uid`, a UUIDv7. Every row has its scope, and a scope its tenant: the database deletes all of it with the
user, project, room, tenant or knowledge base that the scope belongs to. Triggers delete a fact with its last
source, and an episode with one of its messages, and note these deletions.
"""

from datetime import datetime

from sqlalchemy import CheckConstraint, Float, ForeignKey, Index, String, Text, text, true
from sqlalchemy.dialects.postgresql import TSVECTOR
from sqlalchemy.orm import Mapped, mapped_column

from luxx.infra.store.tables import Base, UtcDateTime
from luxx.wire.memory import EpisodeStatus

NAME_LENGTH = 200
"""Characters of the name of an entity."""

TYPE_LENGTH = 50
PREDICATE_LENGTH = 100


class MemoryScopeRow(Base):
    """The memory of one user, project, room, tenant or knowledge base; the column of the target says which.

    `extract_from`: facts are extracted from messages since then, null while that is off; `checked_until`:
    messages until then are in episodes, but for those of answers that are being made.
    """

    __tablename__ = "memory_scopes"
    __table_args__ = (
        *(
            Index(
                f"uq_memory_scopes_{name}",
                name,
                unique=True,
                sqlite_where=text(f"{name} IS NOT NULL"),
                postgresql_where=text(f"{name} IS NOT NULL"),
            )
            for name in ("user_id", "project_id", "room_id", "base_id")
        ),
        Index(
            "uq_memory_scopes_tenant",
            "tenant_id",
            unique=True,
            sqlite_where=text("kind = 'tenant'"),
            postgresql_where=text("kind = 'tenant'"),
        ),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"), index=True)
    kind: Mapped[str] = mapped_column(String(10))
    user_id: Mapped[int | None] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    project_id: Mapped[str | None] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"))
    room_id: Mapped[str | None] = mapped_column(ForeignKey("chat_rooms.id", ondelete="CASCADE"))
    base_id: Mapped[str | None] = mapped_column(ForeignKey("knowledge_bases.id", ondelete="CASCADE"))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    extract_from: Mapped[datetime | None] = mapped_column(UtcDateTime)
    checked_until: Mapped[datetime | None] = mapped_column(UtcDateTime)


class ScopedColumns:
    """The columns of rows that belong to a scope and that the API names by their `uid`."""

    id: Mapped[int] = mapped_column(primary_key=True)
    uid: Mapped[str] = mapped_column(String(36), unique=True)
    scope_id: Mapped[int] = mapped_column(ForeignKey("memory_scopes.id", ondelete="CASCADE"))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class CommunityRow(ScopedColumns, Base):
    """Entities of a scope that facts connect closely, with a summary of them."""

    __tablename__ = "communities"
    __table_args__ = (Index("ix_communities_scope_id", "scope_id"),)

    name: Mapped[str] = mapped_column(String(NAME_LENGTH))
    summary: Mapped[str] = mapped_column(Text, default="")
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class EntityRow(ScopedColumns, Base):
    """Something that facts are about. `folded` is the name as `memory_name` compares it; `aliases` is a JSON
    list of names.

    `canonical_id`: the entity that this one was merged into. Nothing else changes in a merge, so that a split
    restores the exact state; reads follow it once, because a merge points to an entity that is not merged.
    """

    __tablename__ = "entities"
    __table_args__ = (
        Index("ix_entities_scope_id_folded_type", "scope_id", "folded", "type"),
        Index("ix_entities_scope_id_type_id", "scope_id", "type", "id"),
        Index("ix_entities_canonical_id", "canonical_id"),
        Index("ix_entities_community_id", "community_id"),
    )

    name: Mapped[str] = mapped_column(String(NAME_LENGTH))
    folded: Mapped[str] = mapped_column(String(NAME_LENGTH))
    type: Mapped[str] = mapped_column(String(TYPE_LENGTH))
    aliases: Mapped[str] = mapped_column(Text, default="[]")
    summary: Mapped[str] = mapped_column(Text, default="")
    canonical_id: Mapped[int | None] = mapped_column(ForeignKey("entities.id", ondelete="SET NULL"))
    community_id: Mapped[int | None] = mapped_column(ForeignKey("communities.id", ondelete="SET NULL"))
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class EpisodeRow(ScopedColumns, Base):
    """Messages that were looked through for facts together. `source` is `conversation`, `room` or `document`.

    Its text is that of its messages. `user_id` is whose budget the extraction is paid from. `reason`: why it
    was skipped or failed. `hash` is that of the text that was sent, so that no text is sent twice.
    """

    __tablename__ = "episodes"
    __table_args__ = (
        Index("ix_episodes_scope_id_happened_at", "scope_id", "happened_at"),
        Index("ix_episodes_conversation_id", "conversation_id"),
        Index("ix_episodes_room_id", "room_id"),
        Index("ix_episodes_status_id", "status", "id"),
    )

    name: Mapped[str] = mapped_column(String(300), default="")
    source: Mapped[str] = mapped_column(String(20))
    conversation_id: Mapped[str | None] = mapped_column(ForeignKey("conversations.id", ondelete="CASCADE"))
    room_id: Mapped[str | None] = mapped_column(ForeignKey("chat_rooms.id", ondelete="CASCADE"))
    user_id: Mapped[int | None] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    happened_at: Mapped[datetime] = mapped_column(UtcDateTime)
    status: Mapped[str] = mapped_column(String(10), default=EpisodeStatus.PENDING.value)
    reason: Mapped[str | None] = mapped_column(Text)
    run_id: Mapped[str | None] = mapped_column(String(36))
    hash: Mapped[str | None] = mapped_column(String(64))
    trusted: Mapped[bool] = mapped_column(default=True, server_default=true())


class EpisodeMessageRow(Base):
    """A message of an episode. A trigger deletes the episode with one of its messages."""

    __tablename__ = "episode_messages"

    episode_id: Mapped[int] = mapped_column(ForeignKey("episodes.id", ondelete="CASCADE"), primary_key=True)
    message_id: Mapped[str] = mapped_column(
        ForeignKey("messages.id", ondelete="CASCADE"), primary_key=True, index=True
    )


class FactRow(ScopedColumns, Base):
    """A sentence that is known. With a subject and an object it is an edge of the graph, RELATES_TO.

    `valid_at` and `invalid_at` are when it was true, `created_at` and `expired_at` when Luxx knew it; an edit
    keeps the old text as a row of its own, which `superseded_by` connects with the new one. `user_id` is who
    stored it. `trusted` is false for what came from a turn that had read untrusted content.
    """

    __tablename__ = "facts"
    __table_args__ = (
        Index("ix_facts_scope_id_expired_at_id", "scope_id", "expired_at", "id"),
        Index("ix_facts_subject_id_object_id", "subject_id", "object_id"),
        Index("ix_facts_object_id_subject_id", "object_id", "subject_id"),
        Index("ix_facts_superseded_by", "superseded_by"),
        Index(
            "ix_facts_untrusted",
            "scope_id",
            sqlite_where=text("trusted = 0"),
            postgresql_where=text("NOT trusted"),
        ),
    )

    text: Mapped[str] = mapped_column(Text)
    category: Mapped[str] = mapped_column(String(20))
    subject_id: Mapped[int | None] = mapped_column(ForeignKey("entities.id", ondelete="SET NULL"))
    predicate: Mapped[str | None] = mapped_column(String(PREDICATE_LENGTH))
    object_id: Mapped[int | None] = mapped_column(ForeignKey("entities.id", ondelete="SET NULL"))
    valid_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    invalid_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    expired_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    superseded_by: Mapped[int | None] = mapped_column(ForeignKey("facts.id", ondelete="SET NULL"))
    origin: Mapped[str] = mapped_column(String(10))
    user_id: Mapped[int | None] = mapped_column(ForeignKey("users.id", ondelete="SET NULL"), index=True)
    trusted: Mapped[bool] = mapped_column(default=True, server_default=true())
    pinned: Mapped[bool] = mapped_column(default=False)
    weight: Mapped[float] = mapped_column(Float, default=1.0)
    last_used_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class FactSourceRow(Base):
    """Where a fact comes from, with a quotation. A trigger deletes the fact with its last source.

    `kind` says which of the columns names it; of a person, `user_id` who it was, null if their account was
    deleted. `page` is also that of a slide or row.
    """

    __tablename__ = "fact_sources"
    __table_args__ = (
        Index("ix_fact_sources_fact_id", "fact_id"),
        Index("ix_fact_sources_message_id", "message_id"),
        Index("ix_fact_sources_user_id", "user_id"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    fact_id: Mapped[int] = mapped_column(ForeignKey("facts.id", ondelete="CASCADE"))
    kind: Mapped[str] = mapped_column(String(10))
    message_id: Mapped[str | None] = mapped_column(ForeignKey("messages.id", ondelete="CASCADE"))
    user_id: Mapped[int | None] = mapped_column(ForeignKey("users.id", ondelete="SET NULL"))
    url: Mapped[str | None] = mapped_column(Text)
    page: Mapped[int | None] = mapped_column()
    quote: Mapped[str | None] = mapped_column(Text)


class MentionRow(Base):
    """That an episode, or a fact, names an entity. Those of episodes are the edges MENTIONS of the graph."""

    __tablename__ = "mentions"
    __table_args__ = (
        CheckConstraint("(episode_id IS NULL) <> (fact_id IS NULL)", name="one_side"),
        Index("ix_mentions_scope_id_id", "scope_id", "id"),
        Index("ix_mentions_episode_id_entity_id", "episode_id", "entity_id", unique=True),
        Index("ix_mentions_fact_id_entity_id", "fact_id", "entity_id", unique=True),
        Index("ix_mentions_entity_id_episode_id", "entity_id", "episode_id"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    scope_id: Mapped[int] = mapped_column(ForeignKey("memory_scopes.id", ondelete="CASCADE"))
    entity_id: Mapped[int] = mapped_column(ForeignKey("entities.id", ondelete="CASCADE"))
    episode_id: Mapped[int | None] = mapped_column(ForeignKey("episodes.id", ondelete="CASCADE"))
    fact_id: Mapped[int | None] = mapped_column(ForeignKey("facts.id", ondelete="CASCADE"))


class MemoryChangeRow(ScopedColumns, Base):
    """A change of a fact or an entity that can be undone. `before` and `after` are JSON of what changed.

    `fact_id` or `entity_id` is what changed; a deletion of it deletes its changes too, and so their texts.
    `user_id` is who did it, null for a run (`run_id`).
    """

    __tablename__ = "memory_changes"
    __table_args__ = (
        Index("ix_memory_changes_scope_id_id", "scope_id", "id"),
        Index("ix_memory_changes_fact_id", "fact_id"),
        Index("ix_memory_changes_entity_id", "entity_id"),
        Index("ix_memory_changes_user_id", "user_id"),
    )

    kind: Mapped[str] = mapped_column(String(20))
    fact_id: Mapped[int | None] = mapped_column(ForeignKey("facts.id", ondelete="CASCADE"))
    entity_id: Mapped[int | None] = mapped_column(ForeignKey("entities.id", ondelete="CASCADE"))
    before: Mapped[str | None] = mapped_column(Text)
    after: Mapped[str | None] = mapped_column(Text)
    user_id: Mapped[int | None] = mapped_column(ForeignKey("users.id", ondelete="SET NULL"))
    run_id: Mapped[str | None] = mapped_column(String(36))
    undone_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class MemoryDeletionRow(Base):
    """A note of a trigger that a fact or an episode was deleted, until `erasure.py` has erased what is left.

    `entity_id`: an entity that it named; `fact_id`: the fact of which it was an earlier wording. They are no
    foreign keys, because they may be deleted too.
    """

    __tablename__ = "memory_deletions"

    id: Mapped[int] = mapped_column(primary_key=True)
    entity_id: Mapped[int | None] = mapped_column()
    fact_id: Mapped[int | None] = mapped_column()


class RecalledRow(Base):
    """A fact that the prompt of a run's turn was given. `position` counts from 0; `arms` is a JSON list."""

    __tablename__ = "recalled_facts"
    __table_args__ = (Index("ix_recalled_facts_fact_id", "fact_id"),)

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    turn: Mapped[str] = mapped_column(String(100), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    fact_id: Mapped[int] = mapped_column(ForeignKey("facts.id", ondelete="CASCADE"))
    score: Mapped[float] = mapped_column(Float)
    arms: Mapped[str] = mapped_column(Text)
    reason: Mapped[str] = mapped_column(Text)


class MemoryTextRow(Base):
    """The words of one fact, episode or entity; the database deletes it with that row.

    On SQLite triggers copy `words` to the FTS5 table `search_index_memory`; a tsvector on PostgreSQL.
    """

    __tablename__ = "memory_texts"
    __table_args__ = (
        CheckConstraint(
            " + ".join(
                f"CASE WHEN {name} IS NULL THEN 0 ELSE 1 END"
                for name in ("fact_id", "episode_id", "entity_id")
            )
            + " = 1",
            name="one_subject",
        ),
        *(
            Index(
                f"uq_memory_texts_{name}",
                name,
                unique=True,
                sqlite_where=text(f"{name} IS NOT NULL"),
                postgresql_where=text(f"{name} IS NOT NULL"),
            )
            for name in ("fact_id", "episode_id", "entity_id")
        ),
        Index("ix_memory_texts_scope_id", "scope_id"),
        Index("ix_memory_texts_words", "words", postgresql_using="gin").ddl_if(dialect="postgresql"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    scope_id: Mapped[int] = mapped_column(ForeignKey("memory_scopes.id", ondelete="CASCADE"))
    fact_id: Mapped[int | None] = mapped_column(ForeignKey("facts.id", ondelete="CASCADE"))
    episode_id: Mapped[int | None] = mapped_column(ForeignKey("episodes.id", ondelete="CASCADE"))
    entity_id: Mapped[int | None] = mapped_column(ForeignKey("entities.id", ondelete="CASCADE"))
    words: Mapped[str] = mapped_column(Text().with_variant(TSVECTOR(), "postgresql"))
