"""The rows of documents: storing and reading their bytes, their status, and what the API shows of them.

These functions work inside a given transaction. Who may call them with which base, the callers decide.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    and_,
    case,
    delete,
    exists,
    func,
    insert,
    literal,
    select,
    update,
)

from luxx.domain.knowledge_bases import KnowledgeBaseRow
from luxx.errors import NotFound, TooLarge
from luxx.features.knowledge.models import PIECE_BYTES, ChunkRow, DocumentPieceRow, DocumentRow
from luxx.features.memory.vectors.models import EmbeddingRow
from luxx.features.memory.vectors.texts import EmbeddedTexts
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.tables import Lock, lock_until_commit, table_of
from luxx.runs.models import RunRow
from luxx.wire.memory import EpisodeStatus
from luxx.wire.run import RunKind, RunStatus

MIB = 1024 * 1024

documents, chunks = table_of(DocumentRow), table_of(ChunkRow)
_pieces, _bases, _runs = table_of(DocumentPieceRow), table_of(KnowledgeBaseRow), table_of(RunRow)
_vectors = table_of(EmbeddingRow)

is_pending = documents.c.status == EpisodeStatus.PENDING.value
_is_running = exists().where(_runs.c.id == documents.c.run_id, _runs.c.status == RunStatus.RUNNING.value)
_status = case(
    (and_(is_pending, _is_running), literal(EpisodeStatus.RUNNING.value)), else_=documents.c.status
)
payer = func.coalesce(documents.c.user_id, _bases.c.user_id)
"""Who pays for a document: the user who added it, or the owner of the base if their account was deleted."""

CHUNKS = EmbeddedTexts(
    subject="chunk_id",
    table=chunks,
    columns=("heading", "columns", "text"),
    source=chunks.join(documents, documents.c.id == chunks.c.document_id).join(
        _bases, _bases.c.id == documents.c.base_id
    ),
    payer=payer,
    newest=select(chunks.c.id, chunks.c.hash, chunks.c.document_id).order_by(chunks.c.id.desc()).limit(1),
    kind=RunKind.INDEX,
)
"""Chunks as texts with vectors. One that a new version of its document still has keeps its row and vector."""


def pending_of(base_id: str, user_id: int) -> Select[str]:
    """The ids of the documents of a base that are pending and that this user pays for, as a query."""
    ids = select(documents.c.id).join(_bases, _bases.c.id == documents.c.base_id)
    return ids.where(documents.c.base_id == base_id, payer == user_id, is_pending)


class DocumentView(msgspec.Struct, frozen=True, kw_only=True):
    """A document as the API shows it. `user_id`: who added it, null if their account was deleted. `title` is
    the one in the document, or its name. `pages`: of a PDF its pages, of a presentation its slides. `reason`:
    why it has failed, was skipped or waits. `run_id`: the run that works on it or has done so. `embedded`:
    how many of its `chunks` are found by meaning, too; null where no embedding model is used."""

    id: str
    base_id: str
    user_id: int | None
    name: str
    title: str
    format: str
    size: int
    pages: int
    chunks: int
    embedded: int | None
    status: EpisodeStatus
    reason: str | None
    run_id: str | None
    created_at: datetime
    updated_at: datetime


class ChunkView(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a document that a search finds, with its place: a page, a slide, or the rows of a table."""

    position: int
    text: str
    heading: str
    page: int | UnsetType = UNSET
    slide: int | UnsetType = UNSET
    row: int | UnsetType = UNSET
    last_row: int | UnsetType = UNSET


class NewDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A document to store. `pieces` are its bytes; `hash` is their SHA-256."""

    name: str
    size: int
    hash: str
    pieces: Iterable[bytes]


_shown = select(*documents.c, _status.label("shown_status"))


def store_document(
    connection: Connection, base: KnowledgeBaseRow, user_id: int, new: NewDocument, *, quota_mb: float
) -> str:
    """Stores a document, which is then pending, and returns its id; one with the same name and the same bytes
    stays as it is if it is indexed. The caller has locked the base. Raises TooLarge past the quota of the
    base's owner."""
    of_name = select(documents.c.id, documents.c.hash, documents.c.status).where(
        documents.c.base_id == base.id, documents.c.name == new.name
    )
    old = connection.execute(of_name).one_or_none()
    if old is not None and old.hash == new.hash and old.status == EpisodeStatus.SYNCED.value:
        return str(old.id)
    lock_until_commit(connection, Lock.DOCUMENTS_QUOTA, base.user_id)  # Other bases of the owner count, too.
    check_quota(connection, base, {new.name: new.size}, quota_mb)
    now = utc_now()
    values: dict[str, Any] = {
        "user_id": user_id, "size": new.size, "hash": new.hash, "run_id": None, "updated_at": now,
        "status": EpisodeStatus.PENDING.value, "reason": None,
    }  # fmt: skip
    if old is None:
        document_id = new_id()
        described = {"title": "", "format": "", "pages": 0, "chunks": 0, "created_at": now}
        connection.execute(
            insert(documents).values(id=document_id, base_id=base.id, name=new.name, **described, **values)
        )
    else:
        document_id = str(old.id)
        connection.execute(update(documents).where(documents.c.id == document_id).values(**values))
        connection.execute(delete(_pieces).where(_pieces.c.document_id == document_id))
    for position, data in enumerate(new.pieces):
        connection.execute(insert(_pieces).values(document_id=document_id, position=position, data=data))
    return document_id


def check_quota(
    connection: Connection, base: KnowledgeBaseRow, sizes: Mapping[str, int], quota_mb: float
) -> None:
    """Raises TooLarge if these documents, by their names, do not fit the quota of the base's owner."""
    of_names = select(func.sum(documents.c.size)).where(
        documents.c.base_id == base.id, documents.c.name.in_(list(sizes))
    )
    growth = sum(sizes.values()) - int(connection.scalar(of_names) or 0)
    used = connection.scalar(
        select(func.coalesce(func.sum(documents.c.size), 0))
        .join(_bases, _bases.c.id == documents.c.base_id)
        .where(_bases.c.user_id == base.user_id)
    )
    if growth > 0 and int(used or 0) + growth > quota_mb * MIB:
        raise TooLarge(
            f"the documents of the owner's knowledge bases would have more than {quota_mb:g} MiB together "
            "(files.quota_mb); delete documents that are no longer needed",
            kind="quota_exceeded",
        )


def pieces_of(data: bytes) -> list[bytes]:
    """Bytes as the rows of a document store them."""
    return [data[start : start + PIECE_BYTES] for start in range(0, len(data), PIECE_BYTES)]


def read_bytes(connection: Connection, document_id: str) -> bytes:
    """The bytes of a document."""
    query = select(_pieces.c.data).where(_pieces.c.document_id == document_id).order_by(_pieces.c.position)
    return b"".join(connection.scalars(query))


def read_documents(
    connection: Connection, base_id: str, model_id: int | None, *conditions: ColumnElement[bool]
) -> list[DocumentView]:
    """The documents of a base with these conditions, newest first. `model_id`: whose vectors are counted."""
    query = _shown.where(documents.c.base_id == base_id, *conditions).order_by(documents.c.id.desc())
    return _views(connection, connection.execute(query).all(), model_id)


def page_of_documents(
    connection: Connection,
    base_id: str,
    model_id: int | None,
    status: EpisodeStatus | None,
    *,
    page: int,
    page_size: int,
) -> tuple[list[DocumentView], int]:
    """A page of the documents of a base, newest first, and their number."""
    conditions = [documents.c.base_id == base_id]
    if status is not None:
        conditions.append(_status == status.value)
    total = connection.scalar(select(func.count()).select_from(documents).where(*conditions)) or 0
    query = _shown.where(*conditions).order_by(documents.c.id.desc())
    rows = connection.execute(query.limit(page_size).offset((page - 1) * page_size)).all()
    return _views(connection, rows, model_id), total


def find_document(
    connection: Connection, base_id: str, document_id: str, model_id: int | None = None
) -> DocumentView:
    """A document of this base. Raises NotFound."""
    found = read_documents(connection, base_id, model_id, documents.c.id == document_id)
    if not found:
        raise NotFound("this knowledge base has no document with this id", kind="document_not_found")
    return found[0]


def not_running(connection: Connection, base_id: str) -> list[str]:
    """The ids of the documents of a base that no run works on."""
    query = select(documents.c.id).where(documents.c.base_id == base_id)
    return list(connection.scalars(query.where(_status != EpisodeStatus.RUNNING.value)))


def _views(connection: Connection, rows: Sequence[Row[Any]], model_id: int | None) -> list[DocumentView]:
    counts: dict[str, int] = {}
    if model_id is not None and rows:
        counted = (
            select(chunks.c.document_id, func.count())
            .join(_vectors, _vectors.c.chunk_id == chunks.c.id)
            .where(
                chunks.c.document_id.in_([row.id for row in rows]),
                _vectors.c.model_id == model_id,
                _vectors.c.vector.is_not(None),
            )
            .group_by(chunks.c.document_id)
        )
        counts = dict(connection.execute(counted).all())
    own = ("title", "status", "embedded")
    names = [name for name in DocumentView.__struct_fields__ if name not in own]
    return [
        DocumentView(
            **{name: getattr(row, name) for name in names},
            title=row.title or row.name,
            status=EpisodeStatus(row.shown_status),
            embedded=None if model_id is None else counts.get(row.id, 0),
        )
        for row in rows
    ]


def set_pending(connection: Connection, document_ids: Sequence[str]) -> set[int]:
    """Has these documents indexed again; the users who pay for that, who are the same as before: who added a
    document says whether it is trusted."""
    chosen = documents.c.id.in_(document_ids)
    connection.execute(
        update(documents).where(chosen).values(status=EpisodeStatus.PENDING.value, reason=None, run_id=None)
    )
    payers = select(payer).join_from(documents, _bases, _bases.c.id == documents.c.base_id).where(chosen)
    return set(connection.scalars(payers))


def page_of_chunks(
    connection: Connection, document_id: str, *, page: int, page_size: int
) -> tuple[list[ChunkView], int]:
    """A page of the chunks of a document, in its order, and their number."""
    in_document = chunks.c.document_id == document_id
    total = connection.scalar(select(func.count()).select_from(chunks).where(in_document)) or 0
    query = select(chunks).where(in_document).order_by(chunks.c.position, chunks.c.id)
    rows = connection.execute(query.limit(page_size).offset((page - 1) * page_size))
    return [_chunk_view(row) for row in rows], total


def _chunk_view(row: Row[Any]) -> ChunkView:
    last_row = UNSET if row.last_row is None else row.last_row
    return ChunkView(
        position=row.position, text=row.text, heading=row.heading, last_row=last_row, **place_of_chunk(row)
    )


def place_of_chunk(row: Row[Any]) -> dict[str, int]:
    """Where a chunk is in its document, as the API says it: its page, slide or first row, if it has one."""
    return dict(_places(row))


def _places(row: Row[Any]) -> Iterator[tuple[str, int]]:
    for name, value in (("page", row.page), ("slide", row.slide), ("row", row.first_row)):
        if value is not None:
            yield name, value
