"""Merging and splitting entities. A merge sets `canonical_id` and nothing else, so a split restores the exact
state; both are changes that can be undone.
"""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct
from sqlalchemy import Connection, Row, select, update

from luxx.errors import Conflict, InvalidInput, NotFound
from luxx.features.memory.facts import Author, record_change
from luxx.features.memory.models import EntityRow, MemoryChangeRow
from luxx.features.memory.scopes import Scopes, check_writable
from luxx.infra.store.tables import Lock, lock_until_commit, table_of
from luxx.wire.memory import ChangeKind


class Merged(Struct):
    """The part of a change: into which entity each was merged, by their ids; null: into none."""

    merged_into: dict[str, str | None]


entities = table_of(EntityRow)
_changes = table_of(MemoryChangeRow)
_decode = msgspec.json.Decoder(Merged).decode


def find_entity(connection: Connection, scopes: Scopes, entity_id: str, field: str | None = None) -> Row[Any]:
    """An entity that the caller may see. Raises NotFound, naming the field that has the id."""
    query = select(*entities.c).where(entities.c.uid == entity_id, entities.c.scope_id.in_(scopes.ids))
    row = connection.execute(query).first()
    if row is None:
        raise NotFound("no entity with this id", kind="entity_not_found", field=field)
    return row


def merge(
    connection: Connection, scopes: Scopes, entity_id: str, into_id: str, author: Author, now: datetime
) -> int:
    """Merges an entity, with those that were merged into it, into another of its scope; returns the row of
    that. Raises NotFound, NotAllowed, InvalidInput and Conflict."""
    one, into = _locked(connection, scopes, (entity_id, None), (into_id, "$.into"))
    if one.id == into.id:
        raise InvalidInput("an entity cannot be merged into itself", field="$.into")
    if one.scope_id != into.scope_id:
        raise InvalidInput("both entities must belong to the same scope", field="$.into")
    for row, name in ((one, "this entity"), (into, "the other entity")):
        if row.canonical_id is not None:
            raise Conflict(f"{name} was merged into another; split it off first", kind="entity_merged")
    # Reads follow a merge once, so those that were merged into it before point to the new one too.
    parts = connection.scalars(select(entities.c.uid).where(entities.c.canonical_id == one.id)).all()
    before = {one.uid: None, **dict.fromkeys(parts, one.uid)}
    after = dict.fromkeys(before, into.uid)
    _point(connection, one.scope_id, after)
    _record(connection, ChangeKind.MERGE, one, before, after, author, now)
    return into.id


def split(
    connection: Connection, scopes: Scopes, into_id: str, merged_id: str, author: Author, now: datetime
) -> int:
    """Splits an entity off the one that it was merged into; returns its row. Raises NotFound, NotAllowed, and
    Conflict for one that was not merged into it."""
    into, one = _locked(connection, scopes, (into_id, None), (merged_id, "$.merged_id"))
    if one.canonical_id != into.id:
        raise Conflict("the entity was not merged into this one", kind="entity_not_merged")
    earlier = _merged_with(connection, one) or {one.uid: None}
    current = _read(connection, one.scope_id, earlier)
    after = {uid: target for uid, target in earlier.items() if current.get(uid) == into.uid}
    _point(connection, one.scope_id, after)
    _record(connection, ChangeKind.SPLIT, one, dict.fromkeys(after, into.uid), after, author, now)
    return one.id


def undo_entity_change(connection: Connection, row: Row[Any], now: datetime) -> None:
    """Brings back the state before a merge or a split, whose row was checked. Raises Conflict if one of the
    entities has changed since then."""
    lock_until_commit(connection, Lock.MEMORY_NAMES, row.scope_id)
    before, after = _decode(row.before), _decode(row.after)
    targets = [uid for uid in before.merged_into.values() if uid is not None]
    known = _read(connection, row.scope_id, [*before.merged_into, *targets])
    moved = [uid for uid in targets if uid not in before.merged_into and known.get(uid, uid) is not None]
    if moved or any(known.get(uid, "") != target for uid, target in after.merged_into.items()):
        raise Conflict("an entity of this change was deleted or merged since then", kind="entity_changed")
    _point(connection, row.scope_id, before.merged_into)
    connection.execute(update(_changes).where(_changes.c.id == row.id).values(undone_at=now))


def _merged_with(connection: Connection, one: Row[Any]) -> dict[str, str | None]:
    """Where the newest merge of an entity, if it counts, found it and those that were merged into it."""
    query = select(_changes.c.before).where(
        _changes.c.entity_id == one.id,
        _changes.c.kind == ChangeKind.MERGE.value,
        _changes.c.undone_at.is_(None),
    )
    newest = connection.scalar(query.order_by(_changes.c.id.desc()).limit(1))
    return {} if newest is None else _decode(newest).merged_into


def _locked(connection: Connection, scopes: Scopes, *wanted: tuple[str, str | None]) -> list[Row[Any]]:
    """The entities as they are while nobody else merges in their scope."""
    found = [find_entity(connection, scopes, uid, field) for uid, field in wanted]
    for scope_id in sorted({row.scope_id for row in found}):
        check_writable(scopes.by_id[scope_id])
        lock_until_commit(connection, Lock.MEMORY_NAMES, scope_id)
    return [find_entity(connection, scopes, uid, field) for uid, field in wanted]


def _read(connection: Connection, scope_id: int, uids: Collection[str]) -> dict[str, str | None]:
    """What each of the entities was merged into; those that do not exist are left out."""
    into = entities.alias()
    query = (
        select(entities.c.uid, into.c.uid)
        .outerjoin(into, into.c.id == entities.c.canonical_id)
        .where(entities.c.uid.in_(uids), entities.c.scope_id == scope_id)
    )
    return {row[0]: row[1] for row in connection.execute(query)}


def _point(connection: Connection, scope_id: int, merged_into: Mapping[str, str | None]) -> None:
    into = entities.alias()
    for target in sorted({uid or "" for uid in merged_into.values()}):
        moved = [uid for uid, other in merged_into.items() if (other or "") == target]
        key = select(into.c.id).where(into.c.uid == target).scalar_subquery() if target else None
        where = entities.c.uid.in_(moved) & (entities.c.scope_id == scope_id)
        connection.execute(update(entities).where(where).values(canonical_id=key))


def _record(
    connection: Connection,
    kind: ChangeKind,
    one: Row[Any],
    before: Mapping[str, str | None],
    after: Mapping[str, str | None],
    author: Author,
    now: datetime,
) -> None:
    record_change(
        connection,
        scope_id=one.scope_id,
        entity_id=one.id,
        kind=kind,
        before=Merged(dict(before)),
        after=Merged(dict(after)),
        author=author,
        now=now,
    )
