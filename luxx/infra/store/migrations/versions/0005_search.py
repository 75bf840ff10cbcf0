"""Search: the full-text index over what people and models said, and what is there already put into it."""

# pyright: basic
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import TSVECTOR

from luxx.infra.store.search_words import SearchKind, indexed, searched_text

revision: str = "0005"
down_revision: str | None = "0004"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None

BATCH = 100
UNTITLED = "New conversation"

FTS5 = (
    # What is looked up is never shown from here and never ranked by length: no copy, no sizes.
    "CREATE VIRTUAL TABLE search_index USING fts5(words, content='search_texts', content_rowid='id', "
    "columnsize=0, prefix='1', tokenize=\"ascii tokenchars '='\")",
    # Fewer pieces to look into, for writing as dear as with the default of 4.
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
    _search_texts()
    connection = op.get_bind()
    if connection.dialect.name == "postgresql":
        op.create_index("ix_search_texts_words", "search_texts", ["words"], postgresql_using="gin")
    else:
        for statement in FTS5:
            connection.exec_driver_sql(statement)
    _fill(connection)
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("INSERT INTO search_index (search_index) VALUES ('optimize')")


def _search_texts() -> None:
    op.create_table(
        "search_texts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("user_id", sa.Integer(), nullable=False),
        sa.Column("conversation_id", sa.String(length=36), nullable=True),
        sa.Column("message_id", sa.String(length=36), nullable=True),
        sa.Column("words", sa.Text().with_variant(TSVECTOR(), "postgresql"), nullable=False),
        sa.CheckConstraint(
            "(conversation_id IS NULL) <> (message_id IS NULL)", name=op.f("ck_search_texts_one_subject")
        ),
        sa.ForeignKeyConstraint(
            ["conversation_id"],
            ["conversations.id"],
            name=op.f("fk_search_texts_conversation_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["message_id"], ["messages.id"], name=op.f("fk_search_texts_message_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_search_texts_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_search_texts")),
        sa.UniqueConstraint("conversation_id", name=op.f("uq_search_texts_conversation_id")),
        sa.UniqueConstraint("message_id", name=op.f("uq_search_texts_message_id")),
    )
    op.create_index("ix_search_texts_user_id", "search_texts", ["user_id"], unique=False)


def _fill(connection: sa.Connection) -> None:
    texts = sa.table("search_texts", *map(sa.column, ("user_id", "conversation_id", "message_id", "words")))
    conversations = sa.table("conversations", *map(sa.column, ("id", "user_id", "title")))
    messages = sa.table("messages", *map(sa.column, ("id", "user_id", "conversation_id", "content")))
    titled = sa.select(conversations).where(conversations.c.title != UNTITLED)
    said = sa.select(messages).where(messages.c.conversation_id.is_not(None))
    dialect = connection.dialect.name
    write = sa.insert(texts)
    for rows in _batches(connection, titled, conversations.c.id):
        indexed_titles = [
            {
                "user_id": row.user_id,
                "conversation_id": row.id,
                "words": indexed(dialect, SearchKind.CONVERSATION, row.user_id, row.id, row.title),
            }
            for row in rows
        ]
        connection.execute(write, indexed_titles)
    for rows in _batches(connection, said, messages.c.id):
        indexed_messages = [
            {
                "user_id": row.user_id,
                "message_id": row.id,
                "words": indexed(
                    dialect,
                    SearchKind.MESSAGE,
                    row.user_id,
                    row.conversation_id,
                    _said(row.content),
                ),
            }
            for row in rows
        ]
        connection.execute(write, indexed_messages)


def _said(content: str) -> str:
    """Of a message that cannot be read nothing is found, and the others are."""
    try:
        return searched_text(content)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return ""


def _batches(connection: sa.Connection, query: Any, key: Any) -> Iterator[Sequence[Any]]:
    """All rows in the order of their ids, a few at a time: a history may be larger than the memory."""
    last = ""
    while rows := connection.execute(query.where(key > last).order_by(key).limit(BATCH)).all():
        yield rows
        last = rows[-1].id
