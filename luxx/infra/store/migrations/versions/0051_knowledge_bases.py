"""Knowledge bases: their members, documents, chunks and words; and which ones conversations, agents and rooms
name."""

# pyright: basic
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy import Boolean, DateTime, Integer, LargeBinary, String, Text
from sqlalchemy.dialects.postgresql import TSVECTOR

revision: str = "0051"
down_revision: str | None = "0050"

ID = String(36)
WORDS = Text().with_variant(TSVECTOR(), "postgresql")

FULL_TEXT_SEARCH = (
    "CREATE VIRTUAL TABLE search_index_chunks USING fts5(words, content='chunk_texts', content_rowid='id', "
    "prefix='1', tokenize=\"ascii tokenchars '='\")",
    "CREATE TRIGGER chunk_texts_inserted AFTER INSERT ON chunk_texts BEGIN "
    "INSERT INTO search_index_chunks (rowid, words) VALUES (new.id, new.words); END",
    "CREATE TRIGGER chunk_texts_deleted AFTER DELETE ON chunk_texts BEGIN "
    "INSERT INTO search_index_chunks (search_index_chunks, rowid, words) "
    "VALUES ('delete', old.id, old.words); END",
    "CREATE TRIGGER chunk_texts_updated AFTER UPDATE ON chunk_texts BEGIN "
    "INSERT INTO search_index_chunks (search_index_chunks, rowid, words) "
    "VALUES ('delete', old.id, old.words); "
    "INSERT INTO search_index_chunks (rowid, words) VALUES (new.id, new.words); END",
)


def upgrade() -> None:
    for make in (bases, documents, chunks, scopes, named):
        make()
    connection = op.get_bind()
    if connection.dialect.name == "sqlite":
        for statement in FULL_TEXT_SEARCH:
            connection.exec_driver_sql(statement)
    else:
        op.create_index("ix_chunk_texts_words", "chunk_texts", ["words"], postgresql_using="gin")


def bases() -> None:
    table(
        "knowledge_bases",
        value("id", ID),
        parent("knowledge_bases", "user_id", "users"),
        parent("knowledge_bases", "tenant_id", "tenants"),
        value("name", String(200)),
        value("description", Text),
        parent("knowledge_bases", "project_id", "projects", ID, nullable=True, on_delete="SET NULL"),
        value("is_shared", Boolean),
        value("created_at", DateTime),
        value("updated_at", DateTime),
    )
    op.create_index("uq_knowledge_bases_user_id_name", "knowledge_bases", ["user_id", "name"], unique=True)
    op.create_index("ix_knowledge_bases_tenant_id_is_shared", "knowledge_bases", ["tenant_id", "is_shared"])
    op.create_index("ix_knowledge_bases_project_id", "knowledge_bases", ["project_id"])
    table(
        "base_members",
        parent("base_members", "base_id", "knowledge_bases", ID),
        parent("base_members", "user_id", "users"),
        value("right", String(10)),
        value("created_at", DateTime),
        primary=("base_id", "user_id"),
    )
    op.create_index("ix_base_members_user_id", "base_members", ["user_id"])


def documents() -> None:
    table(
        "documents",
        value("id", ID),
        parent("documents", "base_id", "knowledge_bases", ID),
        parent("documents", "user_id", "users", nullable=True, on_delete="SET NULL"),
        value("name", String(255)),
        value("title", String(300)),
        value("format", String(10)),
        value("size", Integer),
        value("hash", String(64)),
        value("pages", Integer),
        value("chunks", Integer),
        value("status", String(10)),
        optional("reason", Text),
        optional("run_id", ID),
        value("created_at", DateTime),
        value("updated_at", DateTime),
    )
    op.create_index("uq_documents_base_id_name", "documents", ["base_id", "name"], unique=True)
    op.create_index("ix_documents_status_base_id", "documents", ["status", "base_id"])
    op.create_index("ix_documents_user_id", "documents", ["user_id"])
    table(
        "document_pieces",
        parent("document_pieces", "document_id", "documents", ID),
        value("position", Integer),
        value("data", LargeBinary),
        primary=("document_id", "position"),
    )


def chunks() -> None:
    table(
        "chunks",
        value("id", Integer),
        parent("chunks", "scope_id", "memory_scopes"),
        parent("chunks", "document_id", "documents", ID),
        value("position", Integer),
        optional("page", Integer),
        optional("slide", Integer),
        optional("first_row", Integer),
        optional("last_row", Integer),
        value("heading", Text),
        value("columns", Text),
        value("text", Text),
        value("hash", String(40)),
    )
    op.create_index("ix_chunks_document_id_position", "chunks", ["document_id", "position"])
    op.create_index("ix_chunks_scope_id", "chunks", ["scope_id"])
    table("chunk_texts", parent("chunk_texts", "id", "chunks"), value("words", WORDS))


def scopes() -> None:
    # SQLite adds a column with a foreign key only in this form.
    op.execute(
        "ALTER TABLE memory_scopes ADD COLUMN base_id VARCHAR(36) "
        "CONSTRAINT fk_memory_scopes_base_id REFERENCES knowledge_bases (id) ON DELETE CASCADE"
    )
    where = sa.text("base_id IS NOT NULL")
    op.create_index(
        "uq_memory_scopes_base_id", "memory_scopes", ["base_id"], unique=True,
        sqlite_where=where, postgresql_where=where,
    )  # fmt: skip


def named() -> None:
    for name in ("conversations", "agents", "chat_rooms"):
        op.add_column(name, sa.Column("knowledge", Text, nullable=False, server_default="[]"))


def value(name: str, type_: Any) -> sa.Column:
    return sa.Column(name, type_, nullable=False)


def optional(name: str, type_: Any) -> sa.Column:
    return sa.Column(name, type_, nullable=True)


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


def table(name: str, *parts: Any, primary: tuple[str, ...] = ("id",)) -> None:
    op.create_table(name, *parts, sa.PrimaryKeyConstraint(*primary, name=op.f(f"pk_{name}")))
