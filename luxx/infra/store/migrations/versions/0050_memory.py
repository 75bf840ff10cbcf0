"""Memory: scopes, facts with their sources, entities, episodes, communities, changes and words; and whether
users, projects, conversations, rooms and agents use it."""

# pyright: basic
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy import Boolean, DateTime, Float, Integer, String, Text
from sqlalchemy.dialects.postgresql import TSVECTOR

revision: str = "0050"
down_revision: str | None = "0048"

ID = String(36)
WORDS = Text().with_variant(TSVECTOR(), "postgresql")
NO_WORDS_TWICE = ("fact_id", "episode_id", "entity_id")
ONE_SUBJECT = " + ".join(f"CASE WHEN {name} IS NULL THEN 0 ELSE 1 END" for name in NO_WORDS_TWICE)

FULL_TEXT_SEARCH = (
    "CREATE VIRTUAL TABLE search_index_memory USING fts5(words, content='memory_texts', content_rowid='id', "
    "prefix='1', tokenize=\"ascii tokenchars '='\")",
    "CREATE TRIGGER memory_texts_inserted AFTER INSERT ON memory_texts BEGIN "
    "INSERT INTO search_index_memory (rowid, words) VALUES (new.id, new.words); END",
    "CREATE TRIGGER memory_texts_deleted AFTER DELETE ON memory_texts BEGIN "
    "INSERT INTO search_index_memory (search_index_memory, rowid, words) "
    "VALUES ('delete', old.id, old.words); END",
    "CREATE TRIGGER memory_texts_updated AFTER UPDATE ON memory_texts BEGIN "
    "INSERT INTO search_index_memory (search_index_memory, rowid, words) "
    "VALUES ('delete', old.id, old.words); "
    "INSERT INTO search_index_memory (rowid, words) VALUES (new.id, new.words); END",
)
LAST_SOURCE = (
    "DELETE FROM facts WHERE id = {old}.fact_id "
    "AND NOT EXISTS (SELECT 1 FROM fact_sources WHERE fact_id = {old}.fact_id)"
)
ITS_EPISODE = "DELETE FROM episodes WHERE id = {old}.episode_id"
DELETIONS = {"fact_sources": LAST_SOURCE, "episode_messages": ITS_EPISODE}
"""What the deletion of a row of a table deletes besides."""


def upgrade() -> None:
    for make in (scopes, entities, episodes, facts, sources, mentions, changes, words, modes):
        make()
    connection = op.get_bind()
    is_sqlite = connection.dialect.name == "sqlite"
    for statement in FULL_TEXT_SEARCH if is_sqlite else ():
        connection.exec_driver_sql(statement)
    for name, deletion in DELETIONS.items():
        statement = deletion.format(old="old")
        if is_sqlite:
            connection.exec_driver_sql(
                f"CREATE TRIGGER {name}_deleted AFTER DELETE ON {name} BEGIN {statement}; END"
            )
            continue
        connection.exec_driver_sql(
            f"CREATE FUNCTION {name}_deleted() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN {statement}; RETURN NULL; END $$"
        )
        connection.exec_driver_sql(
            f"CREATE TRIGGER {name}_deleted AFTER DELETE ON {name} "
            f"FOR EACH ROW EXECUTE FUNCTION {name}_deleted()"
        )


def scopes() -> None:
    table(
        "memory_scopes",
        key(),
        parent("memory_scopes", "tenant_id", "tenants"),
        sa.Column("kind", String(10), nullable=False),
        parent("memory_scopes", "user_id", "users", nullable=True),
        parent("memory_scopes", "project_id", "projects", ID, nullable=True),
        parent("memory_scopes", "room_id", "chat_rooms", ID, nullable=True),
        time("created_at"),
        *(sa.Column(name, DateTime, nullable=True) for name in ("extract_from", "checked_until")),
    )
    op.create_index("ix_memory_scopes_tenant_id", "memory_scopes", ["tenant_id"])
    for name in ("user_id", "project_id", "room_id"):
        partial_index(f"uq_memory_scopes_{name}", "memory_scopes", name, f"{name} IS NOT NULL")
    partial_index("uq_memory_scopes_tenant", "memory_scopes", "tenant_id", "kind = 'tenant'")


def entities() -> None:
    scoped_table(
        "communities",
        sa.Column("name", String(200), nullable=False),
        sa.Column("summary", Text, nullable=False),
        time("updated_at"),
    )
    op.create_index("ix_communities_scope_id", "communities", ["scope_id"])
    scoped_table(
        "entities",
        sa.Column("name", String(200), nullable=False),
        sa.Column("folded", String(200), nullable=False),
        sa.Column("type", String(50), nullable=False),
        sa.Column("aliases", Text, nullable=False),
        sa.Column("summary", Text, nullable=False),
        parent("entities", "canonical_id", "entities", nullable=True, on_delete="SET NULL"),
        parent("entities", "community_id", "communities", nullable=True, on_delete="SET NULL"),
        time("updated_at"),
    )
    op.create_index("ix_entities_scope_id_folded_type", "entities", ["scope_id", "folded", "type"])
    op.create_index("ix_entities_scope_id_type_id", "entities", ["scope_id", "type", "id"])
    op.create_index("ix_entities_canonical_id", "entities", ["canonical_id"])
    op.create_index("ix_entities_community_id", "entities", ["community_id"])


def episodes() -> None:
    scoped_table(
        "episodes",
        sa.Column("name", String(300), nullable=False),
        sa.Column("source", String(20), nullable=False),
        parent("episodes", "conversation_id", "conversations", ID, nullable=True),
        parent("episodes", "room_id", "chat_rooms", ID, nullable=True),
        parent("episodes", "user_id", "users", nullable=True),
        time("happened_at"),
        sa.Column("status", String(10), nullable=False),
        sa.Column("reason", Text, nullable=True),
        sa.Column("run_id", ID, nullable=True),
        sa.Column("hash", String(64), nullable=True),
        sa.Column("trusted", Boolean, nullable=False, server_default=sa.true()),
    )
    op.create_index("ix_episodes_scope_id_happened_at", "episodes", ["scope_id", "happened_at"])
    op.create_index("ix_episodes_conversation_id", "episodes", ["conversation_id"])
    op.create_index("ix_episodes_room_id", "episodes", ["room_id"])
    op.create_index("ix_episodes_user_id", "episodes", ["user_id"])
    op.create_index("ix_episodes_status_id", "episodes", ["status", "id"])
    table(
        "episode_messages",
        parent("episode_messages", "episode_id", "episodes"),
        parent("episode_messages", "message_id", "messages", ID),
        primary="episode_id, message_id",
    )
    op.create_index("ix_episode_messages_message_id", "episode_messages", ["message_id"])


def facts() -> None:
    scoped_table(
        "facts",
        sa.Column("text", Text, nullable=False),
        sa.Column("category", String(20), nullable=False),
        parent("facts", "subject_id", "entities", nullable=True, on_delete="SET NULL"),
        sa.Column("predicate", String(100), nullable=True),
        parent("facts", "object_id", "entities", nullable=True, on_delete="SET NULL"),
        *(sa.Column(name, DateTime, nullable=True) for name in ("valid_at", "invalid_at", "expired_at")),
        parent("facts", "superseded_by", "facts", nullable=True, on_delete="SET NULL"),
        sa.Column("origin", String(10), nullable=False),
        parent("facts", "user_id", "users", nullable=True, on_delete="SET NULL"),
        sa.Column("trusted", Boolean, nullable=False, server_default=sa.true()),
        sa.Column("pinned", Boolean, nullable=False),
        sa.Column("weight", Float, nullable=False),
        sa.Column("last_used_at", DateTime, nullable=True),
    )
    op.create_index("ix_facts_scope_id_expired_at_id", "facts", ["scope_id", "expired_at", "id"])
    op.create_index("ix_facts_subject_id_object_id", "facts", ["subject_id", "object_id"])
    op.create_index("ix_facts_object_id_subject_id", "facts", ["object_id", "subject_id"])
    op.create_index("ix_facts_superseded_by", "facts", ["superseded_by"])
    op.create_index("ix_facts_user_id", "facts", ["user_id"])


def sources() -> None:
    table(
        "fact_sources",
        key(),
        parent("fact_sources", "fact_id", "facts"),
        sa.Column("kind", String(10), nullable=False),
        parent("fact_sources", "message_id", "messages", ID, nullable=True),
        parent("fact_sources", "user_id", "users", nullable=True, on_delete="SET NULL"),
        sa.Column("url", Text, nullable=True),
        sa.Column("page", Integer, nullable=True),
        sa.Column("quote", Text, nullable=True),
    )
    for name in ("fact_id", "message_id", "user_id"):
        op.create_index(f"ix_fact_sources_{name}", "fact_sources", [name])


def mentions() -> None:
    table(
        "mentions",
        key(),
        parent("mentions", "scope_id", "memory_scopes"),
        parent("mentions", "entity_id", "entities"),
        parent("mentions", "episode_id", "episodes", nullable=True),
        parent("mentions", "fact_id", "facts", nullable=True),
        sa.CheckConstraint("(episode_id IS NULL) <> (fact_id IS NULL)", name=op.f("ck_mentions_one_side")),
    )
    op.create_index("ix_mentions_scope_id_id", "mentions", ["scope_id", "id"])
    op.create_index("ix_mentions_episode_id_entity_id", "mentions", ["episode_id", "entity_id"], unique=True)
    op.create_index("ix_mentions_fact_id_entity_id", "mentions", ["fact_id", "entity_id"], unique=True)
    op.create_index("ix_mentions_entity_id_episode_id", "mentions", ["entity_id", "episode_id"])


def changes() -> None:
    scoped_table(
        "memory_changes",
        sa.Column("kind", String(20), nullable=False),
        parent("memory_changes", "fact_id", "facts", nullable=True),
        parent("memory_changes", "entity_id", "entities", nullable=True),
        sa.Column("before", Text, nullable=True),
        sa.Column("after", Text, nullable=True),
        parent("memory_changes", "user_id", "users", nullable=True, on_delete="SET NULL"),
        sa.Column("run_id", ID, nullable=True),
        sa.Column("undone_at", DateTime, nullable=True),
    )
    op.create_index("ix_memory_changes_scope_id_id", "memory_changes", ["scope_id", "id"])
    for name in ("fact_id", "entity_id", "user_id"):
        op.create_index(f"ix_memory_changes_{name}", "memory_changes", [name])
    table(
        "recalled_facts",
        parent("recalled_facts", "run_id", "runs", ID),
        sa.Column("turn", String(100), nullable=False),
        sa.Column("position", Integer, nullable=False),
        parent("recalled_facts", "fact_id", "facts"),
        sa.Column("score", Float, nullable=False),
        sa.Column("arms", Text, nullable=False),
        sa.Column("reason", Text, nullable=False),
        primary="run_id, turn, position",
    )
    op.create_index("ix_recalled_facts_fact_id", "recalled_facts", ["fact_id"])


def words() -> None:
    table(
        "memory_texts",
        key(),
        parent("memory_texts", "scope_id", "memory_scopes"),
        parent("memory_texts", "fact_id", "facts", nullable=True),
        parent("memory_texts", "episode_id", "episodes", nullable=True),
        parent("memory_texts", "entity_id", "entities", nullable=True),
        sa.Column("words", WORDS, nullable=False),
        sa.CheckConstraint(f"{ONE_SUBJECT} = 1", name=op.f("ck_memory_texts_one_subject")),
    )
    op.create_index("ix_memory_texts_scope_id", "memory_texts", ["scope_id"])
    for name in NO_WORDS_TWICE:
        partial_index(f"uq_memory_texts_{name}", "memory_texts", name, f"{name} IS NOT NULL")
    if op.get_bind().dialect.name == "postgresql":
        op.create_index("ix_memory_texts_words", "memory_texts", ["words"], postgresql_using="gin")


def modes() -> None:
    for name in ("user_settings", "projects", "conversations", "chat_rooms", "agents"):
        op.add_column(name, sa.Column("memory", String(10), nullable=True))
    for name in ("user_settings", "tenants"):
        op.add_column(name, sa.Column("extraction", Boolean, nullable=True))


def key() -> sa.Column:
    return sa.Column("id", Integer, nullable=False)


def time(name: str) -> sa.Column:
    return sa.Column(name, DateTime, nullable=False)


def parent(
    name: str,
    column: str,
    to: str,
    type_: Any = Integer,
    *,
    nullable: bool = False,
    on_delete: str = "CASCADE",
) -> sa.Column:
    reference = sa.ForeignKey(f"{to}.id", name=op.f(f"fk_{name}_{column}"), ondelete=on_delete)
    return sa.Column(column, type_, reference, nullable=nullable)


def table(name: str, *parts: Any, primary: str = "id") -> None:
    op.create_table(name, *parts, sa.PrimaryKeyConstraint(*primary.split(", "), name=op.f(f"pk_{name}")))


def scoped_table(name: str, *parts: Any) -> None:
    table(
        name,
        key(),
        sa.Column("uid", ID, nullable=False),
        parent(name, "scope_id", "memory_scopes"),
        time("created_at"),
        *parts,
        sa.UniqueConstraint("uid", name=op.f(f"uq_{name}_uid")),
    )


def partial_index(name: str, table_name: str, column: str, condition: str) -> None:
    where = sa.text(condition)
    op.create_index(name, table_name, [column], unique=True, sqlite_where=where, postgresql_where=where)
