"""Deleting knowledge bases: one is hidden at once, and its rows are deleted in pieces.

The rows of 70,000 chunks take seconds to delete; on SQLite nothing else could be written meanwhile. What a
process leaves that is killed, the heartbeat of another one or of the next start deletes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from sqlalchemy import Connection, delete, select, tuple_, update
from sqlalchemy.orm import Session

from luxx.domain.knowledge_bases import BaseMemberRow, KnowledgeBaseRow
from luxx.features.knowledge.models import DocumentPieceRow
from luxx.features.knowledge.rows import chunks, documents
from luxx.features.memory.facts import delete_facts
from luxx.features.memory.models import FactRow, MemoryScopeRow
from luxx.infra.clock import utc_now
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import table_of
from luxx.wire.memory import EpisodeStatus

CHUNKS_AT_ONCE = 1_000
PIECES_AT_ONCE = 16
ROWS_AT_ONCE = 500

LEFT_AFTER = timedelta(seconds=30)
"""After this time it is no request any more that deletes a base."""

_bases, _members, _scopes = table_of(KnowledgeBaseRow), table_of(BaseMemberRow), table_of(MemoryScopeRow)
_pieces, _facts = table_of(DocumentPieceRow), table_of(FactRow)


def hide_base(session: Session, base: KnowledgeBaseRow) -> None:
    """Takes a base from everybody, and its name from the names of its owner; no run works on it any more."""
    base.deleted_at = utc_now()
    base.name, base.description = base.id, ""
    base.is_shared, base.project_id = False, None
    session.flush()
    connection = session.connection()
    connection.execute(delete(_members).where(_members.c.base_id == base.id))
    skipped = {"status": EpisodeStatus.SKIPPED.value, "reason": None}
    connection.execute(update(documents).where(documents.c.base_id == base.id).values(**skipped))


def delete_piece(base_id: str, connection: Connection) -> bool:
    """Deletes some rows of a hidden base; False: it was deleted."""
    if any(delete_some(connection, base_id) for delete_some in _STEPS):
        return True
    is_it = _bases.c.id == base_id, _bases.c.deleted_at.is_not(None)
    connection.execute(delete(_bases).where(*is_it))
    return False


def _delete_chunks(connection: Connection, base_id: str) -> bool:
    some = select(chunks.c.id).join(_scopes, _scopes.c.id == chunks.c.scope_id)
    some = some.where(_scopes.c.base_id == base_id).limit(CHUNKS_AT_ONCE)
    return connection.execute(delete(chunks).where(chunks.c.id.in_(some))).rowcount > 0


def _delete_pieces(connection: Connection, base_id: str) -> bool:
    key = _pieces.c.document_id, _pieces.c.position
    some = select(*key).join(documents, documents.c.id == _pieces.c.document_id)
    some = some.where(documents.c.base_id == base_id).limit(PIECES_AT_ONCE)
    return connection.execute(delete(_pieces).where(tuple_(*key).in_(some))).rowcount > 0


def _delete_documents(connection: Connection, base_id: str) -> bool:
    some = select(documents.c.id).where(documents.c.base_id == base_id).limit(ROWS_AT_ONCE)
    return connection.execute(delete(documents).where(documents.c.id.in_(some))).rowcount > 0


def _delete_facts(connection: Connection, base_id: str) -> bool:
    some = select(_facts.c.id).join(_scopes, _scopes.c.id == _facts.c.scope_id)
    found = connection.scalars(some.where(_scopes.c.base_id == base_id).limit(ROWS_AT_ONCE)).all()
    delete_facts(connection, found)
    return bool(found)


_STEPS: tuple[Callable[[Connection, str], bool], ...] = (
    _delete_chunks, _delete_pieces, _delete_documents, _delete_facts,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class BaseDeletion:
    """One per process."""

    store: Store

    async def finish(self, base_id: str) -> None:
        """Deletes the rows of a hidden base."""
        while await self.store.write_rows(partial(delete_piece, base_id)):
            pass

    async def finish_due(self) -> None:
        """Deletes what a process that is gone has left of hidden bases; called at heartbeats."""
        left = select(_bases.c.id).where(_bases.c.deleted_at < utc_now() - LEFT_AFTER)
        for base_id in await self.store.read_rows(lambda connection: connection.scalars(left).all()):
            await self.finish(base_id)
