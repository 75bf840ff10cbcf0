"""Rows of knowledge bases: documents with their bytes, the chunks of their texts and the words of chunks.

The rows of the bases and of their members are in `domain/knowledge_bases.py`. The database deletes a base
with all of these rows.
"""

from datetime import datetime

from sqlalchemy import ForeignKey, Index, LargeBinary, String, Text
from sqlalchemy.dialects.postgresql import TSVECTOR
from sqlalchemy.orm import Mapped, mapped_column

from luxx.infra.store.tables import Base, UtcDateTime
from luxx.wire.memory import EpisodeStatus

NAME_LENGTH = 255
TITLE_LENGTH = 300
PIECE_BYTES = 1024 * 1024
"""Bytes of a document in one row."""


class DocumentRow(Base):
    """A document of a base, whose name is unique there. `hash` is that of its bytes. `user_id`: who added it
    and pays for what a model does with it.

    `status` is `pending` until a run has indexed the document; it is `running` while the run `run_id` works
    on it, which the row does not say, so that nothing stays so. `reason`: why it has failed or was skipped.
    """

    __tablename__ = "documents"
    __table_args__ = (
        Index("uq_documents_base_id_name", "base_id", "name", unique=True),
        Index("ix_documents_status_base_id", "status", "base_id"),
    )

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    base_id: Mapped[str] = mapped_column(ForeignKey("knowledge_bases.id", ondelete="CASCADE"))
    user_id: Mapped[int | None] = mapped_column(ForeignKey("users.id", ondelete="SET NULL"), index=True)
    name: Mapped[str] = mapped_column(String(NAME_LENGTH))
    title: Mapped[str] = mapped_column(String(TITLE_LENGTH), default="")
    format: Mapped[str] = mapped_column(String(10), default="")
    size: Mapped[int] = mapped_column()
    hash: Mapped[str] = mapped_column(String(64))
    pages: Mapped[int] = mapped_column(default=0)
    chunks: Mapped[int] = mapped_column(default=0)
    status: Mapped[str] = mapped_column(String(10), default=EpisodeStatus.PENDING.value)
    reason: Mapped[str | None] = mapped_column(Text)
    run_id: Mapped[str | None] = mapped_column(String(36))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class DocumentPieceRow(Base):
    """PIECE_BYTES of a document, the last of them less."""

    __tablename__ = "document_pieces"

    document_id: Mapped[str] = mapped_column(ForeignKey("documents.id", ondelete="CASCADE"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    data: Mapped[bytes] = mapped_column(LargeBinary)


class ChunkRow(Base):
    """A part of a document that a search finds (`chunks.py`). `heading` is the path of headings above it,
    `columns` the header of a table whose rows `first_row` to `last_row` it has."""

    __tablename__ = "chunks"
    __table_args__ = (
        Index("ix_chunks_document_id_position", "document_id", "position"),
        Index("ix_chunks_scope_id", "scope_id"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    scope_id: Mapped[int] = mapped_column(ForeignKey("memory_scopes.id", ondelete="CASCADE"))
    document_id: Mapped[str] = mapped_column(ForeignKey("documents.id", ondelete="CASCADE"))
    position: Mapped[int] = mapped_column()
    page: Mapped[int | None] = mapped_column()
    slide: Mapped[int | None] = mapped_column()
    first_row: Mapped[int | None] = mapped_column()
    last_row: Mapped[int | None] = mapped_column()
    heading: Mapped[str] = mapped_column(Text, default="")
    columns: Mapped[str] = mapped_column(Text, default="")
    text: Mapped[str] = mapped_column(Text)
    hash: Mapped[str] = mapped_column(String(40))


class ChunkTextRow(Base):
    """The words of the chunk with the same id.

    On SQLite triggers copy `words` to the FTS5 table `search_index_chunks`; a tsvector on PostgreSQL.
    """

    __tablename__ = "chunk_texts"
    __table_args__ = (
        Index("ix_chunk_texts_words", "words", postgresql_using="gin").ddl_if(dialect="postgresql"),
    )

    id: Mapped[int] = mapped_column(ForeignKey("chunks.id", ondelete="CASCADE"), primary_key=True)
    words: Mapped[str] = mapped_column(Text().with_variant(TSVECTOR(), "postgresql"))
