"""The tables of the first version: people, providers, conversations, runs, files, usage, permissions.

The step has the number of the last of the steps that it replaces, so databases at that step need no change.
"""

# pyright: basic
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy import BigInteger, Boolean, DateTime, Double, Float, Index, Integer, LargeBinary, String, Text
from sqlalchemy.dialects.postgresql import TSVECTOR

from luxx.infra.store.tables import NAMING

revision: str = "0015"
down_revision: str | None = None

ID = String(36)
metadata = sa.MetaData(naming_convention={**NAMING, "ix": "ix_%(table_name)s_%(column_0_N_name)s"})


def table(name: str, *parts: Any, **options: Any) -> None:
    sa.Table(name, metadata, *parts, **options)


def key(name: str, type_: Any) -> sa.Column:
    return sa.Column(name, type_, primary_key=True)


def value(name: str, type_: Any, **options: Any) -> sa.Column:
    return sa.Column(name, type_, nullable=False, **options)


def values(type_: Any, *names: str) -> list[sa.Column]:
    return [value(name, type_) for name in names]


def optional(name: str, type_: Any, **options: Any) -> sa.Column:
    return sa.Column(name, type_, nullable=True, **options)


def optionals(type_: Any, *names: str) -> list[sa.Column]:
    return [optional(name, type_) for name in names]


def parent(name: str, to: str, type_: Any = Integer, on_delete: Any = "CASCADE", **more: Any) -> sa.Column:
    """A column that refers to `to`; required unless `nullable`."""
    return sa.Column(name, type_, sa.ForeignKey(to, ondelete=on_delete), **{"nullable": False, **more})


def partial_index(name: str, column: str, sqlite: str, postgresql: str, **options: Any) -> Index:
    return Index(name, column, sqlite_where=sa.text(sqlite), postgresql_where=sa.text(postgresql), **options)


table(
    "tenants",
    key("id", Integer),
    value("name", String(200), unique=True),
    value("is_default", Boolean),
    value("created_at", DateTime),
    optional("default_agent_id", Integer),
    value("allow_registration", Boolean, server_default=sa.false()),
    value("allow_own_providers", Boolean, server_default=sa.true()),
    partial_index("uq_tenants_is_default", "is_default", "is_default", "is_default", unique=True),
    sqlite_autoincrement=True,
)
table(
    "users",
    key("id", Integer),
    parent("tenant_id", "tenants.id", index=True),
    value("username", String(64)),
    value("username_key", String(64), unique=True),
    optional("email", String(254), unique=True),
    value("password_hash", String(100)),
    value("must_change_password", Boolean),
    value("role", String(20)),
    value("permission_level", Integer),
    value("workspace_path", Text),
    value("is_active", Boolean),
    value("created_at", DateTime),
    value("has_default_password", Boolean, server_default=sa.false()),
    sa.CheckConstraint("role = CASE WHEN permission_level = 4 THEN 'admin' ELSE 'user' END", name="role"),
    sa.CheckConstraint("permission_level BETWEEN 1 AND 4", name="permission_level"),
    sqlite_autoincrement=True,
)
table(
    "sign_ins",
    key("id", ID),
    parent("user_id", "users.id", index=True),
    value("refresh_hash", String(64)),
    value("expires_at", DateTime),
    optional("revoked_at", DateTime),
    optional("revoked_because", String(20)),
    *values(DateTime, "created_at", "last_used_at"),
)
table(
    "tickets",
    key("ticket_hash", String(64)),
    parent("sign_in_id", "sign_ins.id", ID, index=True),
    value("expires_at", DateTime, index=True),
)
table(
    "audit_log",
    key("id", ID),
    value("at", DateTime, index=True),
    *optionals(Integer, "tenant_id", "user_id"),
    optional("username", String(64)),
    value("action", String(40)),
    optional("target_type", String(40)),
    optional("target_id", String(64)),
    value("outcome", String(10)),
    value("detail", Text),
    optional("address", String(64)),
    optional("request_id", ID),
    Index(None, "tenant_id", "id"),
    Index(None, "user_id", "id"),
    Index(None, "outcome", "id"),
)
table(
    "allowed_hosts",
    key("host_port", String(300)),
    parent("allowed_by", "users.id", on_delete="SET NULL", nullable=True),
    value("created_at", DateTime),
)
table(
    "llm_providers",
    key("id", Integer),
    parent("user_id", "users.id", index=True),
    parent("tenant_id", "tenants.id"),
    value("name", String(100)),
    value("provider_type", String(40)),
    value("base_url", String(500)),
    value("api_key", Text),
    value("default_model", String(200)),
    optional("max_tokens", Integer),
    *values(Boolean, "is_default", "is_shared", "enabled"),
    *values(DateTime, "created_at", "updated_at"),
    Index(None, "tenant_id", "is_shared"),
    partial_index("uq_llm_providers_default", "user_id", "is_default", "is_default", unique=True),
    sqlite_autoincrement=True,
)
table(
    "user_settings",
    key("id", Integer),
    parent("user_id", "users.id", unique=True),
    parent("default_provider_id", "llm_providers.id", on_delete="SET NULL", nullable=True, index=True),
    optional("temperature", Float),
    optional("max_tokens", Integer),
    optional("thinking_enabled", Boolean),
    optional("system_prompt", Text),
    *values(DateTime, "created_at", "updated_at"),
)
table(
    "projects",
    key("id", ID),
    parent("user_id", "users.id", index=True),
    value("name", String(200)),
    value("description", Text),
    *values(DateTime, "created_at", "updated_at"),
)
table(
    "conversations",
    key("id", ID),
    parent("user_id", "users.id"),
    parent("provider_id", "llm_providers.id", on_delete="SET NULL", nullable=True, index=True),
    parent("project_id", "projects.id", ID, on_delete="SET NULL", nullable=True, index=True),
    optional("agent_id", Integer),
    value("title", String(300)),
    optional("model", String(200)),
    optional("system_prompt", Text),
    optional("temperature", Double),
    optional("max_tokens", Integer),
    optional("thinking_enabled", Boolean),
    *values(Boolean, "pinned", "archived"),
    value("tags", Text),
    *optionals(ID, "selected_leaf_id", "run_id"),
    *values(DateTime, "created_at", "updated_at"),
    optional("import_id", ID),
    Index(None, "user_id", "updated_at"),
    Index(None, "user_id", "import_id", "id"),
    partial_index("ix_conversations_run_id", "run_id", "run_id IS NOT NULL", "run_id IS NOT NULL"),
)
table(
    "messages",
    key("id", ID),
    parent("user_id", "users.id", index=True),
    parent("conversation_id", "conversations.id", ID, nullable=True),
    optional("room_id", ID, index=True),
    # A statement deletes a message with all that follow it: a cascade would be as deep as the chain.
    parent("parent_id", "messages.id", ID, on_delete=None, nullable=True, index=True),
    optional("run_id", ID),
    value("role", String(20)),
    value("content", Text),
    optional("replay", Text),
    value("token_count", Integer),
    optional("usage", Text),
    value("status", String(20)),
    optional("sender_name", String(200)),
    optional("sender_color", String(20)),
    optional("round_number", Integer),
    value("created_at", DateTime),
    Index(None, "conversation_id", "id"),
)
table(
    "message_blobs",
    key("id", ID),
    parent("message_id", "messages.id", ID, index=True),
    value("media_type", String(40)),
    value("data", LargeBinary),
)
table(
    "search_texts",
    key("id", Integer),
    parent("user_id", "users.id", index=True),
    parent("conversation_id", "conversations.id", ID, nullable=True, unique=True),
    parent("message_id", "messages.id", ID, nullable=True, unique=True),
    value("words", Text().with_variant(TSVECTOR(), "postgresql")),
    sa.CheckConstraint("(conversation_id IS NULL) <> (message_id IS NULL)", name="one_subject"),
)
table(
    "files",
    key("id", ID),
    parent("user_id", "users.id"),
    value("path", LargeBinary),
    value("path_hash", String(64)),
    *values(BigInteger, "size", "modified_ns"),
    optional("sha256", String(64)),
    value("media_type", String(100)),
    value("created_at", DateTime),
    sa.UniqueConstraint("user_id", "path_hash"),
)
table(
    "processes",
    key("id", ID),
    value("kind", String(10)),
    value("host", String(255)),
    value("pid", Integer),
    value("version", String(40)),
    value("started_at", DateTime),
    optional("lease_until", Double),
)
table(
    "runs",
    key("id", ID),
    parent("user_id", "users.id"),
    parent("tenant_id", "tenants.id", index=True),
    value("kind", String(10)),
    value("subject_id", ID),
    optional("parent_run_id", ID, index=True),
    optional("message_id", ID),
    value("status", String(20)),
    optional("phase", String(20)),
    optional("stop_reason", String(40)),
    optional("error", Text),
    value("usage", Text),
    optional("cost", Float),
    value("last_seq", Integer),
    value("request", Text),
    optional("owner", String(64)),
    value("fence", BigInteger),
    value("is_cancelled", Boolean),
    value("created_at", DateTime),
    *optionals(DateTime, "started_at", "finished_at"),
    optional("question_id", ID, index=True),
    value("driven_seconds", Float, server_default="0"),
    value("losses", Integer, server_default="0"),
    Index(None, "subject_id", "id"),
    Index(None, "user_id", "id"),
    Index(None, "status", "owner"),
    partial_index(
        "ix_runs_cancelled",
        "status",
        "is_cancelled = 1 AND finished_at IS NULL",
        "is_cancelled AND finished_at IS NULL",
    ),
)
table(
    "run_events",
    parent("run_id", "runs.id", ID, primary_key=True),
    key("seq", Integer),
    value("type", String(40)),
    value("data", LargeBinary),
    optional("internal", LargeBinary),
)
table(
    "run_results",
    parent("run_id", "runs.id", ID, primary_key=True),
    key("call_id", String(200)),
    value("output", Text),
)
table(
    "tool_calls",
    parent("run_id", "runs.id", ID, primary_key=True),
    key("step_index", Integer),
    value("tool", String(200)),
    value("seq", Integer),
    optional("result_seq", Integer),
    value("status", String(20)),
    *optionals(DateTime, "started_at", "completed_at"),
    optional("duration_ms", Integer),
)
table(
    "questions",
    key("id", ID),
    parent("run_id", "runs.id", ID, index=True),
    parent("user_id", "users.id"),
    parent("tenant_id", "tenants.id", index=True),
    value("call_id", String(200)),
    *values(String(20), "kind", "status"),
    value("asked", Text),
    value("created_at", DateTime),
    *optionals(DateTime, "due_at", "answered_at"),
    optional("answered_by", String(20)),
    *optionals(Text, "answer", "note"),
    Index(None, "user_id", "status", "id"),
    Index(None, "status", "due_at"),
)
table(
    "usage_records",
    key("id", Integer),
    parent("user_id", "users.id", on_delete="SET NULL", nullable=True),
    parent("tenant_id", "tenants.id", on_delete="SET NULL", nullable=True),
    value("run_id", ID, index=True),
    value("subject_id", ID, index=True),
    optional("provider_id", Integer),
    value("model", String(200)),
    *values(Integer, "prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens"),
    optional("cost", Double),
    value("created_at", DateTime),
    value("kind", String(10), server_default="chat"),
    value("cache_write_tokens", Integer, server_default="0"),
    value("is_estimated", Boolean, server_default=sa.false()),
    Index(None, "user_id", "created_at"),
    Index(None, "tenant_id", "created_at"),
)
table(
    "usage_reserves",
    parent("run_id", "runs.id", ID, primary_key=True),
    value("user_id", Integer, index=True),
    optional("provider_id", Integer),
    value("model", String(200)),
    *values(Integer, "prompt_tokens", "completion_tokens"),
    optional("cost", Float),
    value("made_at", DateTime),
)
table(
    "permission_rules",
    key("id", Integer),
    parent("tenant_id", "tenants.id"),
    parent("user_id", "users.id", nullable=True, index=True),
    parent("project_id", "projects.id", ID, nullable=True, index=True),
    optional("agent_id", Integer),
    value("scope", String(10)),
    value("place", Integer),
    value("tool", String(200)),
    value("pattern", Text),
    value("action", String(10)),
    value("created_at", DateTime),
    Index(None, "tenant_id", "user_id"),
)
table(
    "tool_compositions",
    key("id", ID),
    parent("tenant_id", "tenants.id", index=True),
    parent("user_id", "users.id"),
    value("name", String(64)),
    value("description", Text),
    value("kind", String(20)),
    value("document", Text),
    *values(Integer, "timeout_seconds", "success_count", "failure_count"),
    *values(DateTime, "created_at", "updated_at"),
    sa.UniqueConstraint("user_id", "name"),
)

FULL_TEXT_SEARCH = (
    # The search shows no text from here and does not rank by length: no copy of the texts, no sizes.
    "CREATE VIRTUAL TABLE search_index USING fts5(words, content='search_texts', content_rowid='id', "
    "columnsize=0, prefix='1', tokenize=\"ascii tokenchars '='\")",
    # Fewer segments to search than with the default of 4; writing costs the same.
    "INSERT INTO search_index (search_index, rank) VALUES ('automerge', 3)",
    "CREATE TRIGGER search_texts_inserted AFTER INSERT ON search_texts BEGIN "
    "INSERT INTO search_index (rowid, words) VALUES (new.id, new.words); END",
    "CREATE TRIGGER search_texts_deleted AFTER DELETE ON search_texts BEGIN "
    "INSERT INTO search_index (search_index, rowid, words) VALUES ('delete', old.id, old.words); END",
    "CREATE TRIGGER search_texts_updated AFTER UPDATE ON search_texts BEGIN "
    "INSERT INTO search_index (search_index, rowid, words) VALUES ('delete', old.id, old.words); "
    "INSERT INTO search_index (rowid, words) VALUES (new.id, new.words); END",
)


def upgrade() -> None:
    connection = op.get_bind()
    metadata.create_all(connection)
    if connection.dialect.name == "postgresql":
        op.create_index("ix_search_texts_words", "search_texts", ["words"], postgresql_using="gin")
    else:
        for statement in FULL_TEXT_SEARCH:
            connection.exec_driver_sql(statement)
