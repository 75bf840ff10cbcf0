"""Erasing what was deleted from memory and from knowledge bases: what only it supported, and what is left
of it in the files of the database.

Triggers note each deletion of a fact, an episode or a document in `memory_deletions`, whatever deleted it,
and so does `note_deletion`. A job of each process (`app/background.py`) does the rest; on several processes,
one of them at a time.
"""

import asyncio
from collections.abc import Sequence

import structlog
from sqlalchemy import Connection, bindparam, delete, insert, select

from luxx.features.memory.entities import delete_unsupported
from luxx.features.memory.facts import delete_changes_without_version
from luxx.features.memory.lexical import TEXTS
from luxx.features.memory.models import MemoryDeletionRow
from luxx.infra.store.engine import Store
from luxx.infra.store.maintenance import (
    Rewriting,
    empty_wal,
    merge_index,
    only_process,
    rewrite,
    vacuum,
)
from luxx.infra.store.tables import Lock, table_of

ERASE_SECONDS = 15.0
"""The interval of the job. Within a minute of a deletion nothing is left of it."""

ERASED_AT_ONCE = 500
"""Notes that one transaction works on, so that other writes do not wait."""

MAX_NOTES = 50_000
"""Notes that one run of the job works on; the next one goes on."""

MANY_NOTES = 100
"""So many deletions at once move rows between the pages of SQLite, which is then rewritten."""

INDEXES = (TEXTS.full_text,)
"""The full text indexes of memory on SQLite."""

VACUUMED = (
    "facts", "fact_sources", "mentions", "entities", "communities", "memory_texts", "memory_changes",
    "recalled_facts", "episodes", "embeddings",
)  # fmt: skip

_deletions = table_of(MemoryDeletionRow)
_next = (
    select(_deletions.c.id, _deletions.c.entity_id, _deletions.c.fact_id)
    .where(_deletions.c.id > bindparam("after"))
    .order_by(_deletions.c.id)
    .limit(ERASED_AT_ONCE)
)
_any = select(_deletions.c.id).limit(1)

logger = structlog.get_logger()


def note_deletion(connection: Connection) -> None:
    """Notes that texts were deleted of which no trigger knows."""
    connection.execute(insert(_deletions).values(fact_id=None))


class Erasure:
    """The job of one process, for memory and for the indexes and tables that are given besides."""

    def __init__(self, store: Store, *, indexes: Sequence[str] = (), tables: Sequence[str] = ()) -> None:
        self._store = store
        self._indexes = (*INDEXES, *indexes)
        self._tables = (*VACUUMED, *tables)

    async def erase_due(self) -> None:
        """Erases what was deleted since the last time, if anything was."""
        if await self._store.read_rows(lambda connection: connection.scalar(_any)) is not None:
            await asyncio.to_thread(self.erase)

    def erase(self) -> None:
        """Erases what was deleted. What another process works on, or a long read needs, waits for the next
        time. Blocks."""
        store = self._store
        if not store.external_sessions.acquire(blocking=False):
            return
        try:
            if store.is_sqlite:
                self._erase_sqlite()
            else:
                self._erase_postgresql()
        finally:
            store.external_sessions.release()

    def _erase_sqlite(self) -> None:
        notes = self._delete_leftovers()
        for index in self._indexes:
            merge_index(self._store, index)
        if len(notes) >= MANY_NOTES and not self._rewritten():
            return
        if empty_wal(self._store.engine):
            self._forget(notes)
        else:
            logger.info("memory_erasure_waits", reason="a long read needs the log of the database")

    def _rewritten(self) -> bool:
        """Whether the job may go on: the database was rewritten, or is too large for that."""
        result = rewrite(self._store.engine)
        if result is Rewriting.BUSY:
            logger.info("memory_erasure_waits", reason="another process writes to the database")
        if result is Rewriting.TOO_LARGE:
            logger.info("memory_erasure_incomplete", reason="the database is too large to be rewritten")
        return result is not Rewriting.BUSY

    def _erase_postgresql(self) -> None:
        with only_process(self._store.engine, Lock.MEMORY_ERASURE) as connection:
            if connection is not None:
                notes = self._delete_leftovers()
                vacuum(connection, self._tables)
                self._forget(notes)

    def _delete_leftovers(self) -> list[int]:
        """Deletes the entities, changes and summaries that nothing supports any more; returns the ids of the
        notes about them, which stay until the files are clean."""
        done: list[int] = []
        while len(done) < MAX_NOTES:
            after = done[-1] if done else 0
            ids = self._store.write_rows_now(lambda connection, after=after: _clean(connection, after))
            done += ids
            if len(ids) < ERASED_AT_ONCE:
                break
        return done

    def _forget(self, notes: list[int]) -> None:
        for start in range(0, len(notes), ERASED_AT_ONCE):
            ids = notes[start : start + ERASED_AT_ONCE]
            self._store.write_rows_now(
                lambda connection, ids=ids: connection.execute(
                    delete(_deletions).where(_deletions.c.id.in_(ids))
                )
            )


def _clean(connection: Connection, after: int) -> list[int]:
    rows = connection.execute(_next, {"after": after}).all()
    delete_unsupported(connection, {row.entity_id for row in rows if row.entity_id is not None})
    delete_changes_without_version(connection, {row.fact_id for row in rows if row.fact_id is not None})
    return [row.id for row in rows]
