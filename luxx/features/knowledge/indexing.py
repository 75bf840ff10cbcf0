"""Storing the chunks of a document: which of them are new, what a run writes, and the index of their words.

A chunk whose hash a stored one has keeps that row, and so its words and whatever else belongs to it. These
functions work inside a given transaction; those that write raise DocumentChanged if the document is not as
the run has read it any more.
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, bindparam, delete, func, insert, select, update

from luxx.domain.files.names import extension_of
from luxx.domain.knowledge_bases import KnowledgeBaseRow
from luxx.features.knowledge.chunks import Chunk
from luxx.features.knowledge.models import TITLE_LENGTH, ChunkTextRow
from luxx.features.knowledge.rows import chunks, documents, is_pending, payer, pending_of
from luxx.features.memory.erasure import note_deletion
from luxx.features.memory.models import MemoryScopeRow
from luxx.infra.clock import utc_now
from luxx.infra.documents.parts import Document
from luxx.infra.store.ranked_search import WordIndex, index_value
from luxx.infra.store.tables import table_of
from luxx.wire.memory import EpisodeStatus

CHUNK_TEXTS = WordIndex(table="chunk_texts", full_text="search_index_chunks")
ERASED_TABLES = ("documents", "document_pieces", "chunks", "chunk_texts")
"""Those of which nothing stays in the files of the database after a deletion."""

INDEXED_AT_ONCE = 500
HEADING_SEPARATOR = " > "

_bases, _scopes, _texts = table_of(KnowledgeBaseRow), table_of(MemoryScopeRow), table_of(ChunkTextRow)
_pending = (
    select(
        documents.c.id, documents.c.base_id, documents.c.name, documents.c.hash, documents.c.run_id,
        _scopes.c.id.label("scope_id"),
    )
    .join(_bases, _bases.c.id == documents.c.base_id)
    .join(_scopes, _scopes.c.base_id == _bases.c.id)
    .where(documents.c.base_id == bindparam("base"), payer == bindparam("user"), is_pending)
    .order_by(documents.c.id)
    .limit(1)
)  # fmt: skip
_move = (
    update(chunks)
    .where(chunks.c.id == bindparam("b_id"))
    .values({name: bindparam(name) for name in ("position", "page", "slide", "first_row", "last_row")})
)


class DocumentChanged(Exception):
    """The document was deleted or replaced, or its base was deleted."""


class PendingDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A document that waits for a run; `scope_id` is that of its base, `run_id` the run that has begun it."""

    id: str
    base_id: str
    name: str
    hash: str
    run_id: str | None
    scope_id: int

    @property
    def extension(self) -> str:
        return extension_of(self.name)


class ChunkChanges(msgspec.Struct, frozen=True, kw_only=True):
    """What makes the stored chunks of a document those that it has: `new` ones, those that `moved` to another
    place, by their ids, and the ids of those that it has no more."""

    new: Sequence[Chunk] = ()
    moved: Sequence[tuple[int, Chunk]] = ()
    unused: Sequence[int] = ()

    def batches(self, size: int) -> Iterator["ChunkChanges"]:
        """The same changes in parts with at most `size` chunks each."""
        for start in range(0, len(self.new), size):
            yield ChunkChanges(new=self.new[start : start + size])
        for start in range(0, len(self.moved), size):
            yield ChunkChanges(moved=self.moved[start : start + size])
        for start in range(0, len(self.unused), size):
            yield ChunkChanges(unused=self.unused[start : start + size])


def next_pending(connection: Connection, base_id: str, user_id: int) -> PendingDocument | None:
    """The oldest document of a base that is pending and that this user pays for."""
    row = connection.execute(_pending, {"base": base_id, "user": user_id}).mappings().one_or_none()
    return None if row is None else PendingDocument(**row)


def _check_unchanged(connection: Connection, document: PendingDocument) -> None:
    """Locks the document until the transaction ends. Raises DocumentChanged."""
    query = select(documents.c.id).where(
        documents.c.id == document.id, documents.c.hash == document.hash, is_pending
    )
    if connection.execute(query.with_for_update()).one_or_none() is None:
        raise DocumentChanged


def begin_document(connection: Connection, document: PendingDocument, run_id: str) -> None:
    """Notes that this run works on the document."""
    _check_unchanged(connection, document)
    connection.execute(update(documents).where(documents.c.id == document.id).values(run_id=run_id))


def count_other_chunks(connection: Connection, document: PendingDocument) -> int:
    """The chunks of the other documents of the base."""
    query = select(func.count()).select_from(chunks)
    query = query.where(chunks.c.scope_id == document.scope_id, chunks.c.document_id != document.id)
    return connection.scalar(query) or 0


def changes_of(connection: Connection, document: PendingDocument, wanted: Sequence[Chunk]) -> ChunkChanges:
    """The changes that make the stored chunks those that are wanted."""
    query = select(*(chunks.c[name] for name in ("id", "hash", *_PLACE)))
    query = query.where(chunks.c.document_id == document.id).order_by(chunks.c.position, chunks.c.id)
    stored: defaultdict[str, deque[Any]] = defaultdict(deque)
    for row in connection.execute(query):
        stored[row.hash].append(row)
    new: list[Chunk] = []
    moved: list[tuple[int, Chunk]] = []
    for chunk in wanted:
        if not stored[chunk.hash]:
            new.append(chunk)
            continue
        row = stored[chunk.hash].popleft()
        if tuple(row)[2:] != tuple(_place(chunk).values()):
            moved.append((row.id, chunk))
    unused = [row.id for rows in stored.values() for row in rows]
    return ChunkChanges(new=new, moved=moved, unused=unused)


_PLACE = ("position", "page", "slide", "first_row", "last_row")


def _place(chunk: Chunk) -> dict[str, int | None]:
    first, last = chunk.rows or (None, None)
    return dict(zip(_PLACE, (chunk.position, chunk.page, chunk.slide, first, last), strict=True))


def scope_word(scope_id: int) -> str:
    """The index word that all chunks of a scope share."""
    return f"chunk={scope_id}"


def words_of_chunks(dialect: str, scope_id: int, wanted: Sequence[Chunk]) -> list[str]:
    """The values of the index for chunks."""
    first = [scope_word(scope_id)]
    return [index_value(dialect, first, chunk.indexed_text) for chunk in wanted]


def write_changes(
    connection: Connection, document: PendingDocument, changes: ChunkChanges, words: Sequence[str]
) -> None:
    """Writes changes; `words` are those of the new chunks."""
    _check_unchanged(connection, document)
    if changes.new:
        rows = [
            {
                "scope_id": document.scope_id,
                "document_id": document.id,
                "heading": HEADING_SEPARATOR.join(chunk.headings),
                "columns": chunk.columns,
                "text": chunk.text,
                "hash": chunk.hash,
                **_place(chunk),
            }
            for chunk in changes.new
        ]
        statement = insert(chunks).returning(chunks.c.id, sort_by_parameter_order=True)
        ids = connection.scalars(statement, rows).all()
        texts = [{"id": id_, "words": value} for id_, value in zip(ids, words, strict=True)]
        connection.execute(insert(_texts), texts)
    if changes.moved:
        connection.execute(_move, [{"b_id": id_, **_place(chunk)} for id_, chunk in changes.moved])
    if changes.unused:
        connection.execute(delete(chunks).where(chunks.c.id.in_(changes.unused)))
        note_deletion(connection)


def end_document(
    connection: Connection,
    document: PendingDocument,
    status: EpisodeStatus,
    *,
    read: Document | None,
    reason: str | None,
    count: int,
) -> None:
    """Ends the work on a document. One that has failed keeps no chunks of an earlier version."""
    _check_unchanged(connection, document)
    if status != EpisodeStatus.SYNCED:
        connection.execute(delete(chunks).where(chunks.c.document_id == document.id))
        note_deletion(connection)
    values: dict[str, Any] = {"status": status.value, "reason": reason, "chunks": count}
    if read is not None:
        title = " ".join(read.title.split())[:TITLE_LENGTH]
        values |= {"pages": read.pages, "title": title, "format": read.format}
    values["updated_at"] = utc_now()
    connection.execute(update(documents).where(documents.c.id == document.id).values(**values))


def skip_pending(connection: Connection, base_id: str, user_id: int, reason: str) -> None:
    """Skips all documents of a base that are pending and that this user pays for."""
    connection.execute(
        update(documents)
        .where(documents.c.id.in_(pending_of(base_id, user_id)))
        .values(status=EpisodeStatus.SKIPPED.value, reason=reason)
    )


def fail_documents(connection: Connection, run_id: str, reason: str) -> None:
    """Ends the document on which a run worked that cannot be driven."""
    connection.execute(
        update(documents)
        .where(documents.c.run_id == run_id, is_pending)
        .values(status=EpisodeStatus.FAILED.value, reason=reason)
    )


def reindex_chunks(connection: Connection) -> None:
    """Makes the words of all chunks anew, oldest first: a restored backup has none."""
    last = 0
    names = ("id", "scope_id", "heading", "columns", "text")
    query = select(*(chunks.c[name] for name in names)).order_by(chunks.c.id).limit(INDEXED_AT_ONCE)
    dialect = connection.dialect.name
    while rows := connection.execute(query.where(chunks.c.id > last)).all():
        texts = [
            {
                "id": row.id,
                "words": index_value(
                    dialect,
                    [scope_word(row.scope_id)],
                    "\n".join(filter(None, (row.heading, row.columns, row.text))),
                ),
            }
            for row in rows
        ]
        connection.execute(insert(_texts), texts)
        last = rows[-1].id
