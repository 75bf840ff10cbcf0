"""What people do with memory: list, store, change, retire, restore, delete and export facts; undo changes."""

import asyncio
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import msgspec
from sqlalchemy import Connection, Row, Select, func, select

from luxx.domain.accounts.caller import Caller
from luxx.errors import Conflict, InvalidInput, NotFound
from luxx.features.memory.changes import (
    FACT_CHANGES,
    MemoryChange,
    change_view,
    changes,
    check_newest,
    find_change,
    list_changes,
    restore,
    undo_fact_change,
)
from luxx.features.memory.entities import delete_all_unnamed
from luxx.features.memory.facts import Author, FactWriter, delete_facts, versions_of
from luxx.features.memory.lexical import find_facts
from luxx.features.memory.merging import undo_entity_change
from luxx.features.memory.scopes import (
    Scopes,
    check_writable,
    parse_scope,
    stored_scope,
    visible_scopes,
)
from luxx.features.memory.sources import SourceFilter
from luxx.features.memory.views import (
    NOW,
    Fact,
    FactChanges,
    FactTime,
    NewFact,
    facts,
    read_facts,
)
from luxx.infra.clock import utc_now
from luxx.infra.store.engine import Store
from luxx.wire.memory import ChangeKind, FactCategory

DELETED_AT_ONCE = 500
"""Facts that one transaction deletes, so that other writes do not wait."""


EXPORTED_AT_ONCE = 500
"""Facts that an export has in memory at once."""

MAX_EXPORTS = 2
"""Exports that read at the same time, in threads that other reads need too."""


class FactFilter(FactTime, frozen=True, kw_only=True):
    """Which facts are listed; None does not filter. `q`: words, all of which a fact has; an empty one does
    not filter."""

    category: FactCategory | None = None
    scope: str | None = None
    q: str | None = None


class MemoryService:
    """One per process."""

    def __init__(self, store: Store, writer: FactWriter, data_dir: Path) -> None:
        self._store = store
        self._writer = writer
        self._data_dir = data_dir
        self._exports = asyncio.Semaphore(MAX_EXPORTS)

    async def list_page(
        self, caller: Caller, wanted: FactFilter, *, page: int, page_size: int
    ) -> tuple[list[Fact], int]:
        """A page of the facts that the caller may read, newest first, and their number.

        Raises InvalidInput and NotFound for a wrong scope.
        """

        def work(connection: Connection) -> tuple[list[Fact], int]:
            scopes = _scopes(connection, caller, wanted.scope)
            query = facts_in(connection, scopes, wanted)
            total = connection.scalar(select(func.count()).select_from(query.subquery())) or 0
            query = query.order_by(facts.c.id.desc()).limit(page_size).offset((page - 1) * page_size)
            return read_facts(connection, scopes, connection.scalars(query).all()), total

        return await self._store.read_rows(work)

    async def get(self, caller: Caller, fact_id: str, time: FactTime = NOW) -> Fact:
        """A fact; at a time when it was known in other words, in those. Raises NotFound, also if it was not
        true or not known at the time, and InvalidInput for a time that the calendar does not have."""

        def work(connection: Connection) -> Fact:
            scopes = visible_scopes(connection, caller)
            row = find_fact(connection, scopes, fact_id)
            return _shown(connection, scopes, _row_at(connection, row, time))

        return await self._store.read_rows(work)

    async def create(self, caller: Caller, new: NewFact) -> Fact:
        """Raises InvalidInput for wrong values, NotFound and NotAllowed for a scope that the caller may not
        read or write, Conflict at a limit of the scope."""
        name = parse_scope(new.scope, "$.scope")

        def work(connection: Connection) -> Fact:
            scopes = visible_scopes(connection, caller)
            scope = stored_scope(connection, scopes, name)
            author = Author(user_id=caller.user_id)
            fact_id = self._writer.add(connection, scope, new, author, utc_now())
            return _shown(connection, scopes.with_scope(scope), fact_id)

        return await self._store.write_rows(work)

    async def change(self, caller: Caller, fact_id: str, wanted: FactChanges) -> Fact:
        """Sets the given fields of a fact; the state before is kept. Raises what `create` raises, and
        Conflict for a fact that is retired or an earlier wording."""

        def work(connection: Connection) -> Fact:
            scopes = visible_scopes(connection, caller)
            row = _find_writable(connection, scopes, fact_id)
            if row.expired_at is not None:
                raise Conflict(
                    "this fact is retired, or an earlier wording of one; restore it before you change it",
                    kind="fact_retired",
                )
            self._writer.change(connection, scopes, row, wanted, Author(user_id=caller.user_id), utc_now())
            return _shown(connection, scopes, row.id)

        return await self._store.write_rows(work)

    async def restore(self, caller: Caller, fact_id: str) -> Fact:
        """Ends the retirement of a fact. Raises NotFound, NotAllowed, and Conflict for one that is not
        retired."""

        def work(connection: Connection) -> Fact:
            scopes = visible_scopes(connection, caller)
            row = _find_writable(connection, scopes, fact_id)
            restore(connection, scopes, self._writer, row, Author(user_id=caller.user_id), utc_now())
            return _shown(connection, scopes, row.id)

        return await self._store.write_rows(work)

    async def delete(self, caller: Caller, fact_id: str) -> None:
        """Deletes a fact for good. Raises NotFound and NotAllowed."""

        def work(connection: Connection) -> None:
            row = _find_writable(connection, visible_scopes(connection, caller), fact_id)
            delete_facts(connection, [row.id])

        await self._store.write_rows(work)

    async def delete_many(self, caller: Caller, scope: str | None, source: str | None) -> int:
        """Deletes all facts of a scope or a source, or of both together, which the caller may change; returns
        their number. Raises InvalidInput, NotFound and NotAllowed."""
        if scope is None and source is None:
            raise InvalidInput("give a scope, a source, or both", field="scope")
        condition = None if source is None else SourceFilter.parse(source).condition()

        def work(connection: Connection) -> int:
            scopes = _scopes(connection, caller, scope)
            if scope is not None:
                check_writable(next(iter(scopes)))
            ids = [each.id for each in scopes if each.can_write and each.id is not None]
            query = select(facts.c.id).where(facts.c.scope_id.in_(ids)).limit(DELETED_AT_ONCE)
            found = connection.scalars(query if condition is None else query.where(condition)).all()
            delete_facts(connection, found)
            if not found and source is None:
                delete_all_unnamed(connection, ids)
            return len(found)

        deleted = 0
        while count := await self._store.write_rows(work):
            deleted += count
        return deleted

    async def export(self, caller: Caller, scope: str | None) -> tuple[IO[bytes], int]:
        """A JSON file of all facts that the caller may read, and its size; the receiver closes it."""

        def work(connection: Connection) -> tuple[IO[bytes], int]:
            scopes = _scopes(connection, caller, scope)
            with ExitStack() as undo:
                # It has no name: nothing is left of it when it is closed.
                file = undo.enter_context(tempfile.TemporaryFile(dir=self._data_dir))
                write_facts(connection, scopes, file)
                size = file.tell()
                file.seek(0)
                undo.pop_all()
            return file, size

        async with self._exports:
            return await self._store.read_rows(work)

    async def changes(
        self,
        caller: Caller,
        scope: str | None,
        fact_id: str | None,
        entity_id: str | None = None,
        *,
        page: int,
        page_size: int,
    ) -> tuple[list[MemoryChange], int]:
        """A page of the changes of memory, or of those of a fact or an entity, newest first, and their
        number. Raises InvalidInput, NotFound."""

        def work(connection: Connection) -> tuple[list[MemoryChange], int]:
            scopes = _scopes(connection, caller, scope)
            query = list_changes(scopes, fact_id, entity_id)
            total = connection.scalar(select(func.count()).select_from(query.subquery())) or 0
            rows = connection.execute(query.limit(page_size).offset((page - 1) * page_size))
            return [change_view(row, scopes) for row in rows], total

        return await self._store.read_rows(work)

    async def undo(self, caller: Caller, change_id: str) -> MemoryChange:
        """Brings back the state before a change. Raises NotFound, NotAllowed, and Conflict for one that was
        undone, or that a later one builds on."""

        def work(connection: Connection) -> MemoryChange:
            scopes = visible_scopes(connection, caller)
            row = find_change(connection, scopes, change_id)
            check_writable(scopes.by_id[row.scope_id])
            check_newest(connection, row)
            if ChangeKind(row.kind) in FACT_CHANGES:
                undo_fact_change(connection, row, utc_now())
            else:
                undo_entity_change(connection, row, utc_now())
            query = list_changes(scopes).where(changes.c.id == row.id)
            return change_view(connection.execute(query).one(), scopes)

        return await self._store.write_rows(work)


def write_facts(connection: Connection, scopes: Scopes, file: IO[bytes]) -> None:
    """Writes all facts of these scopes, oldest first, with those that are retired and earlier wordings."""
    file.write(b'{"version":1,"facts":[')
    last, separator = 0, b""
    while True:
        query = select(facts.c.id).where(facts.c.scope_id.in_(scopes.ids), facts.c.id > last)
        ids = connection.scalars(query.order_by(facts.c.id).limit(EXPORTED_AT_ONCE)).all()
        if not ids:
            break
        for fact in read_facts(connection, scopes, ids):
            file.write(separator + msgspec.json.encode(fact))
            separator = b",\n"
        last = ids[-1]
    file.write(b"]}")


def _scopes(connection: Connection, caller: Caller, scope: str | None) -> Scopes:
    name = None if scope is None else parse_scope(scope)
    return visible_scopes(connection, caller).only(name)


def facts_in(connection: Connection, scopes: Scopes, wanted: FactFilter) -> Select[int]:
    """The ids of the facts in these scopes that the filter leaves; its `scope` was applied before."""
    conditions = wanted.facts()
    if wanted.category is not None:
        conditions.append(facts.c.category == wanted.category.value)
    if wanted.q:
        return find_facts(connection, scopes.ids, wanted.q, *conditions)
    return select(facts.c.id).where(facts.c.scope_id.in_(scopes.ids), *conditions)


def find_fact(connection: Connection, scopes: Scopes, fact_id: str, *, is_locked: bool = False) -> Row[Any]:
    """The row of a fact in one of these scopes. Raises NotFound. `is_locked`: locks it for a write."""
    query = select(*facts.c).where(facts.c.uid == fact_id, facts.c.scope_id.in_(scopes.ids))
    row = connection.execute(query.with_for_update() if is_locked else query).first()
    if row is None:
        raise NotFound("nothing with this id is remembered", kind="fact_not_found")
    return row


def _row_at(connection: Connection, row: Row[Any], time: FactTime) -> int:
    """The key of the wording of a fact at a time. Raises NotFound."""
    uids, conditions = [row.uid], time.true_facts()
    if time.known_at is not None:
        uids, conditions = [*uids, *versions_of(connection, [row.id])], time.facts()
    query = select(facts.c.id).where(facts.c.uid.in_(uids), facts.c.scope_id == row.scope_id, *conditions)
    found = connection.scalar(query.order_by(facts.c.id.desc()).limit(1))
    if found is None:
        raise NotFound("this fact was not true or not known at that time", kind="fact_not_found")
    return found


def _find_writable(connection: Connection, scopes: Scopes, fact_id: str) -> Row[Any]:
    row = find_fact(connection, scopes, fact_id, is_locked=True)
    check_writable(scopes.by_id[row.scope_id])
    return row


def _shown(connection: Connection, scopes: Scopes, row_id: int) -> Fact:
    (fact,) = read_facts(connection, scopes, [row_id])
    return fact
