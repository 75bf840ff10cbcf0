"""The runs that index documents: when they start. A base has one at a time for each user who pays."""

from dataclasses import dataclass
from functools import partial

import structlog
from sqlalchemy import Connection, bindparam, exists, select, update
from sqlalchemy.orm import Session

from luxx.domain.accounts.authentication import user_as_caller
from luxx.domain.knowledge_bases import KnowledgeBaseRow
from luxx.errors import LuxxError, Unavailable
from luxx.features.knowledge.indexing import next_pending
from luxx.features.knowledge.rows import documents, is_pending, payer, pending_of
from luxx.infra.store.tables import table_of
from luxx.runs.admission import Admission
from luxx.runs.models import RunRow, is_unended
from luxx.runs.turn.run_rows import RunOwner
from luxx.wire.run import Run, RunKind

STARTED_AT_ONCE = 100

_bases, _runs = table_of(KnowledgeBaseRow), table_of(RunRow)
_has_run = exists().where(
    _runs.c.kind == RunKind.INDEX.value,
    _runs.c.subject_id == documents.c.base_id,
    _runs.c.user_id == payer,
    is_unended,
)
_waiting = (
    select(documents.c.base_id, payer.label("user_id"))
    .join(_bases, _bases.c.id == documents.c.base_id)
    .where(is_pending, ~_has_run)
    .group_by(documents.c.base_id, payer)
    .limit(STARTED_AT_ONCE)
)
_is_busy = (
    select(_runs.c.id)
    .where(
        _runs.c.kind == RunKind.INDEX.value,
        _runs.c.subject_id == bindparam("base"),
        _runs.c.user_id == bindparam("user"),
        is_unended,
    )
    .limit(1)
)

logger = structlog.get_logger()


@dataclass(slots=True, repr=False)
class Indexing:
    """One per process."""

    admission: Admission

    async def start_due(self) -> None:
        """Starts runs for documents that wait without one; called at heartbeats."""
        store = self.admission.services.store
        for row in await store.read_rows(lambda connection: connection.execute(_waiting).all()):
            try:
                await self.start(row.user_id, row.base_id)
            except Unavailable:
                return  # This server stops; another one, or its next start, goes on.

    async def start(self, user_id: int, base_id: str) -> Run | None:
        """Starts the run of a base for the documents that this user pays for. None if it has one, if nothing
        waits, or if it may not begin now: then the documents say why, and wait for the next heartbeats.

        Raises Unavailable if the server stops.
        """
        store = self.admission.services.store
        try:
            caller = await store.read_rows(lambda connection: user_as_caller(connection, user_id))
            run = await self.admission.admit(caller, partial(self._insert, user_id, base_id))
        except Unavailable:
            raise
        except LuxxError as error:
            logger.info("indexing_waits", user_id=user_id, kind=error.kind)
            await store.write_rows(partial(_note_wait, user_id, base_id, error.message))
            return None
        if run is not None:
            await self.admission.begin(run)
        return run

    def _insert(self, user_id: int, base_id: str, session: Session) -> Run | None:
        connection = session.connection()
        # Of several transactions only one finds no run.
        lock = select(_bases.c.tenant_id).where(_bases.c.id == base_id).with_for_update()
        tenant_id = connection.scalar(lock)
        if tenant_id is None or next_pending(connection, base_id, user_id) is None:
            return None
        if connection.execute(_is_busy, {"base": base_id, "user": user_id}).first() is not None:
            return None
        owner = RunOwner(user_id, tenant_id)
        return self.admission.insert(session, owner, RunKind.INDEX, base_id, "{}")


def _note_wait(user_id: int, base_id: str, reason: str, connection: Connection) -> None:
    waiting = documents.c.id.in_(pending_of(base_id, user_id))
    connection.execute(update(documents).where(waiting).values(reason=reason))
