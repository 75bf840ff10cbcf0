"""Changes of memory as the API lists them, undoing those of facts, and restoring retired facts.

Undoing brings back the exact state before a change. `graph.py` merges and splits entities.
"""

from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, Select, delete, or_, select, update

from luxx.errors import Conflict, NotFound
from luxx.features.memory.entities import delete_unsupported
from luxx.features.memory.facts import STATE, Author, FactWriter, copy_parts, version_in
from luxx.features.memory.lexical import index_facts
from luxx.features.memory.models import EntityRow, FactSourceRow, MemoryChangeRow, MentionRow
from luxx.features.memory.scopes import Scopes
from luxx.features.memory.views import FactChanges, facts
from luxx.infra.store.tables import table_of
from luxx.wire.memory import ChangeKind

FACT_CHANGES = (ChangeKind.EDIT, ChangeKind.RETIRE, ChangeKind.RESTORE)


class MemoryChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a fact or an entity. `before` and `after` have the fields that changed.

    `user_id`: who did it; null for a run, whose id is `run_id`. `version`: the id under which the state
    before the change is kept.
    """

    id: str
    kind: ChangeKind
    scope: str
    fact_id: str | None
    entity_id: str | None
    version: str | None
    before: dict[str, Any]
    after: dict[str, Any]
    user_id: int | None
    run_id: str | None
    created_at: datetime
    undone_at: datetime | None


changes = table_of(MemoryChangeRow)
_entities = table_of(EntityRow)
_mentions = table_of(MentionRow)
_sources = table_of(FactSourceRow)
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def list_changes(scopes: Scopes, fact_id: str | None = None, entity_id: str | None = None) -> Select[Any]:
    """The changes in these scopes, newest first; with `fact_id` only those of this fact, with `entity_id`
    those that merged or split this entity, or something into or off it."""
    query = (
        select(*changes.c, facts.c.uid.label("fact_uid"), _entities.c.uid.label("entity_uid"))
        .outerjoin(facts, facts.c.id == changes.c.fact_id)
        .outerjoin(_entities, _entities.c.id == changes.c.entity_id)
        .where(changes.c.scope_id.in_(scopes.ids))
        .order_by(changes.c.id.desc())
    )
    if fact_id is not None:
        query = query.where(facts.c.uid == fact_id)
    if entity_id is not None:
        named = (changes.c.before.contains(entity_id), changes.c.after.contains(entity_id))
        query = query.where(changes.c.entity_id.is_not(None), or_(_entities.c.uid == entity_id, *named))
    return query


def change_view(row: Row[Any], scopes: Scopes) -> MemoryChange:
    """A row of `list_changes` as the API shows it."""
    before = _decode(row.before or "{}")
    return MemoryChange(
        id=row.uid,
        kind=ChangeKind(row.kind),
        scope=str(scopes.by_id[row.scope_id].name),
        fact_id=row.fact_uid,
        entity_id=row.entity_uid,
        version=before.pop("version", None),
        before=before,
        after=_decode(row.after or "{}"),
        user_id=row.user_id,
        run_id=row.run_id,
        created_at=row.created_at,
        undone_at=row.undone_at,
    )


def find_change(connection: Connection, scopes: Scopes, change_id: str) -> Row[Any]:
    """A change that the caller may see, locked. Raises NotFound."""
    query = select(*changes.c).where(changes.c.uid == change_id, changes.c.scope_id.in_(scopes.ids))
    row = connection.execute(query.with_for_update()).first()
    if row is None:
        raise NotFound("no change with this id", kind="change_not_found")
    return row


def check_newest(connection: Connection, row: Row[Any]) -> None:
    """Raises Conflict for a change that was undone, or that a later one builds on."""
    if row.undone_at is not None:
        raise Conflict("this change was undone already", kind="change_undone")
    subject = changes.c.fact_id if row.fact_id is not None else changes.c.entity_id
    value = row.fact_id if row.fact_id is not None else row.entity_id
    later = select(changes.c.uid).where(
        subject == value, changes.c.id > row.id, changes.c.undone_at.is_(None)
    )
    newest = connection.scalar(later.order_by(changes.c.id.desc()).limit(1))
    if newest is not None:
        raise Conflict(
            "a later change builds on this one; undo the newest one first",
            kind="change_not_newest",
            detail={"change_id": newest},
        )


def undo_fact_change(connection: Connection, row: Row[Any], now: datetime) -> None:
    """Brings back the state of a fact before a change of it; the change was checked."""
    version = version_in(row.before)
    if version is None:
        values: dict[str, Any] = {"expired_at": None, "superseded_by": None}
        connection.execute(update(facts).where(facts.c.id == row.fact_id).values(**values))
        index_facts(connection, [row.fact_id])
    else:
        _bring_back(connection, row.fact_id, version)
    connection.execute(update(changes).where(changes.c.id == row.id).values(undone_at=now))


def _bring_back(connection: Connection, fact_id: int, version: str) -> None:
    old = connection.execute(select(*facts.c).where(facts.c.uid == version)).first()
    if old is None:
        raise Conflict("the state before this change was deleted", kind="version_not_found")
    dropped = connection.scalars(select(_mentions.c.entity_id).where(_mentions.c.fact_id == fact_id)).all()
    values = {name: getattr(old, name) for name in STATE}
    connection.execute(update(facts).where(facts.c.id == fact_id).values(**values))
    connection.execute(delete(_mentions).where(_mentions.c.fact_id == fact_id))
    copy_parts(connection, old.id, fact_id, with_sources=False)
    connection.execute(delete(facts).where(facts.c.id == old.id))
    delete_unsupported(connection, dropped, is_deletion=False)
    index_facts(connection, [fact_id])


def restore(
    connection: Connection, scopes: Scopes, writer: FactWriter, row: Row[Any], author: Author, now: datetime
) -> None:
    """Ends the retirement of a fact, whose row is locked. Raises Conflict for a fact that is not retired."""
    retired = select(*changes.c).where(
        changes.c.fact_id == row.id, changes.c.kind == ChangeKind.RETIRE.value, changes.c.undone_at.is_(None)
    )
    change = connection.execute(retired.order_by(changes.c.id.desc()).limit(1)).first()
    if change is not None:
        check_newest(connection, change)
        undo_fact_change(connection, change, now)
    elif row.expired_at is not None:
        raise Conflict(
            "this is an earlier wording of a fact; undo the change of the fact instead",
            kind="fact_is_version",
        )
    elif row.invalid_at is not None:
        ended = FactChanges(invalid_at=None)
        writer.change(connection, scopes, row, ended, author, now, kind=ChangeKind.RESTORE)
    else:
        raise Conflict("this fact is not retired", kind="fact_not_retired")
