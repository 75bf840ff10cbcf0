"""Storing, changing, retiring and deleting facts, inside a given transaction. The right to it was checked
before.

A change keeps the state before it as a row of its own, the version: it has the old text and times, ends when
the change was made, and points to the fact, which keeps its id. So a question about what was known at a time
has a true answer. `changes.py` undoes changes.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET
from sqlalchemy import Connection, Row, bindparam, delete, insert, literal, select, update

from luxx.errors import InvalidInput
from luxx.features.memory.entities import MAX_ENTITIES, EntityFinder, NewEntity, delete_unnamed
from luxx.features.memory.lexical import index_facts
from luxx.features.memory.limits import RowLimit
from luxx.features.memory.models import FactSourceRow, MemoryChangeRow, MentionRow
from luxx.features.memory.scopes import Scope, Scopes
from luxx.features.memory.views import Fact, FactChanges, NewFact, facts, in_utc, read_facts
from luxx.infra.clock import new_id
from luxx.infra.field_errors import FieldErrors
from luxx.infra.store.tables import table_of
from luxx.wire.memory import ChangeKind, FactOrigin, SourceKind

MAX_FACTS = 100_000
"""Facts of one scope, with the versions that changes keep."""

VERSIONED = ("text", "category", "subject", "predicate", "object", "entities", "valid_at", "invalid_at")
"""The fields whose change makes a version. `pinned` is no knowledge: it changes in place."""

STATE = ("text", "category", "subject_id", "predicate", "object_id", "valid_at", "invalid_at", "created_at")
"""The columns that a change replaces and its undoing brings back."""

_sources = table_of(FactSourceRow)
_mentions = table_of(MentionRow)
_changes = table_of(MemoryChangeRow)
_insert_fact = insert(facts)
_insert_sources = insert(_sources)
_insert_mentions = insert(_mentions)
_insert_change = insert(_changes)
_mentioned = (
    select(_mentions.c.entity_id).where(_mentions.c.fact_id == bindparam("fact")).order_by(_mentions.c.id)
)


class NewSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where a fact was taken from; `kind` says which of the ids is given."""

    kind: SourceKind
    message_id: str | None = None
    user_id: int | None = None
    url: str | None = None
    page: int | None = None
    quote: str | None = None


class Author(msgspec.Struct, frozen=True, kw_only=True):
    """Who stores or changes facts: a person, or a run for `user_id`. Without `sources` it is the person."""

    user_id: int | None
    run_id: str | None = None
    origin: FactOrigin = FactOrigin.PERSON
    is_trusted: bool = True
    sources: Sequence[NewSource] = ()

    @property
    def all_sources(self) -> Sequence[NewSource]:
        return self.sources or [NewSource(kind=SourceKind.PERSON, user_id=self.user_id)]


class FactWriter:
    """Writes facts in one transaction after another. One per process: it counts for the limits of scopes."""

    def __init__(self, max_facts: int = MAX_FACTS, max_entities: int = MAX_ENTITIES) -> None:
        self._facts = RowLimit(max_facts, "facts")
        self.entities = RowLimit(max_entities, "entities")

    def add(self, connection: Connection, scope: Scope, new: NewFact, author: Author, now: datetime) -> int:
        """Stores a fact in a scope that has a row; returns the id of its row.

        Raises InvalidInput for what contradicts itself, Conflict at the limit of the scope.
        """
        assert scope.id is not None
        check_fact(new)
        self._facts.take(connection, facts, scope.id)
        subject_id, object_id, others = self._entity_ids(connection, scope.id, new, now)
        values = {
            "uid": new_id(), "scope_id": scope.id, "created_at": now, "text": new.text.strip(),
            "category": new.category.value, "subject_id": subject_id, "predicate": new.predicate,
            "object_id": object_id, "valid_at": new.valid_at, "invalid_at": new.invalid_at,
            "origin": author.origin.value, "user_id": author.user_id, "trusted": author.is_trusted,
            "pinned": new.pinned, "weight": 1.0,
        }  # fmt: skip
        key = connection.execute(_insert_fact, values).inserted_primary_key
        assert key is not None
        fact_id = int(key[0])
        rows = [
            {name: getattr(source, name) for name in NewSource.__struct_fields__}
            | {"kind": source.kind.value, "fact_id": fact_id}
            for source in author.all_sources
        ]
        connection.execute(_insert_sources, rows)
        _mention(connection, scope.id, fact_id, [subject_id, object_id, *others])
        index_facts(connection, [fact_id])
        return fact_id

    def change(
        self,
        connection: Connection,
        scopes: Scopes,
        row: Row[Any],
        changes: FactChanges,
        author: Author,
        now: datetime,
        kind: ChangeKind = ChangeKind.EDIT,
    ) -> None:
        """Sets the given fields of a fact, whose row is locked. What it was before stays as a version.

        Raises InvalidInput for what contradicts itself, Conflict at a limit of the scope.
        """
        if changes.pinned is not UNSET:
            connection.execute(update(facts).where(facts.c.id == row.id).values(pinned=changes.pinned))
        (before,) = read_facts(connection, scopes, [row.id])
        check_fact(_merged(before, changes))
        if not _differs(before, changes):
            return
        version = self.keep_version(connection, row, now)
        self._apply(connection, row, changes, now)
        (after,) = read_facts(connection, scopes, [row.id])
        changed = [name for name in VERSIONED if getattr(before, name) != getattr(after, name)]
        record_change(
            connection,
            scope_id=row.scope_id,
            fact_id=row.id,
            kind=kind,
            before={"version": version, **{name: getattr(before, name) for name in changed}},
            after={name: getattr(after, name) for name in changed},
            author=author,
            now=now,
        )

    def keep_version(self, connection: Connection, row: Row[Any], now: datetime) -> str:
        """Inserts the state of a fact as a row of its own that ends now, with its sources and entities."""
        self._facts.take(connection, facts, row.scope_id)
        copied = {column.name: getattr(row, column.name) for column in facts.c if column.name != "id"}
        uid = new_id()
        values = copied | {"uid": uid, "expired_at": now, "superseded_by": row.id, "pinned": False}
        key = connection.execute(_insert_fact, values).inserted_primary_key
        assert key is not None
        copy_parts(connection, row.id, int(key[0]))
        index_facts(connection, [int(key[0])])
        return uid

    def _apply(self, connection: Connection, row: Row[Any], changes: FactChanges, now: datetime) -> None:
        values: dict[str, Any] = {"created_at": now}
        for name in ("text", "category", "predicate", "valid_at", "invalid_at"):
            value = getattr(changes, name)
            if value is not UNSET:
                values[name] = value.strip() if name == "text" else value
        old = list(connection.scalars(_mentioned, {"fact": row.id}))
        others = [entity_id for entity_id in old if entity_id not in (row.subject_id, row.object_id)]
        finder = EntityFinder(connection, row.scope_id, now, self.entities)
        for name in ("subject", "object"):
            value = getattr(changes, name)
            if value is not UNSET:
                values[f"{name}_id"] = None if value is None else finder.id_of_name(value)
        if changes.entities is not UNSET:
            others = finder.ids_of(changes.entities)
        connection.execute(update(facts).where(facts.c.id == row.id).values(**values))
        ends = [values.get("subject_id", row.subject_id), values.get("object_id", row.object_id)]
        connection.execute(delete(_mentions).where(_mentions.c.fact_id == row.id))
        _mention(connection, row.scope_id, row.id, [*ends, *others])
        index_facts(connection, [row.id])

    def _entity_ids(
        self, connection: Connection, scope_id: int, new: NewFact, now: datetime
    ) -> tuple[int | None, int | None, list[int]]:
        """The ids of subject, object and the other entities."""
        ends = [NewEntity(name=name) for name in (new.subject, new.object) if name is not None]
        finder = EntityFinder(connection, scope_id, now, self.entities)
        # The others first: they may say of what type the entity is that the subject only names.
        ids = finder.ids_of([*new.entities, *ends])
        others, end_ids = ids[: len(new.entities)], ids[len(new.entities) :]
        subject_id = end_ids.pop(0) if new.subject is not None else None
        object_id = end_ids.pop(0) if new.object is not None else None
        return subject_id, object_id, others


def check_fact(fact: NewFact) -> None:
    """Raises InvalidInput for what contradicts itself."""
    errors: dict[str, str] = {}
    times: dict[str, datetime] = {}
    for name in ("valid_at", "invalid_at"):
        value = getattr(fact, name)
        try:
            if value is not None:
                times[name] = in_utc(value, f"$.{name}")
        except InvalidInput as error:
            errors |= error.fields
    if len(times) == 2 and times["invalid_at"] <= times["valid_at"]:
        errors["$.invalid_at"] = "must be after valid_at"
    if fact.subject is None:
        for name in ("predicate", "object"):
            if getattr(fact, name) is not None:
                errors[f"$.{name}"] = "needs a subject"
    FieldErrors(errors).raise_if_any()


def _merged(before: Fact, changes: FactChanges) -> NewFact:
    """The fact as it would be, for `check_fact`."""
    values = {name: getattr(changes, name) for name in FactChanges.__struct_fields__}
    given = {name: value for name, value in values.items() if value is not UNSET and name != "entities"}
    names = (*VERSIONED, "pinned")
    kept = {name: getattr(before, name) for name in names if name != "entities"}
    return NewFact(**(kept | given))


def _differs(before: Fact, changes: FactChanges) -> bool:
    """Whether a change would make a version. Entities are compared by their names after it."""
    for name in VERSIONED:
        value = getattr(changes, name)
        if value is UNSET:
            continue
        if name == "entities":
            return True
        old = getattr(before, name)
        if (value.strip() if name == "text" else value) != old:
            return True
    return False


def _mention(connection: Connection, scope_id: int, fact_id: int, entity_ids: Sequence[int | None]) -> None:
    rows = [
        {"scope_id": scope_id, "fact_id": fact_id, "entity_id": entity_id}
        for entity_id in dict.fromkeys(entity_ids)
        if entity_id is not None
    ]
    if rows:
        connection.execute(_insert_mentions, rows)


def copy_parts(connection: Connection, from_id: int, to_id: int, *, with_sources: bool = True) -> None:
    """Gives a fact, which has none, the entities of another one, and its sources."""
    for table in (_sources, _mentions) if with_sources else (_mentions,):
        names = [column.name for column in table.c if column.name not in ("id", "fact_id")]
        query = select(literal(to_id), *(table.c[name] for name in names)).where(table.c.fact_id == from_id)
        statement = insert(table).from_select(["fact_id", *names], query.order_by(table.c.id))
        connection.execute(statement)


def record_change(
    connection: Connection,
    *,
    scope_id: int,
    kind: ChangeKind,
    before: Any,
    after: Any,
    author: Author,
    now: datetime,
    fact_id: int | None = None,
    entity_id: int | None = None,
) -> str:
    """Records a change of a fact or an entity that can be undone; returns its id."""
    uid = new_id()
    values = {
        "uid": uid, "scope_id": scope_id, "created_at": now, "kind": kind.value, "fact_id": fact_id,
        "entity_id": entity_id, "before": msgspec.json.encode(before).decode(),
        "after": msgspec.json.encode(after).decode(), "user_id": None if author.run_id else author.user_id,
        "run_id": author.run_id,
    }  # fmt: skip
    connection.execute(_insert_change, values)
    return uid


def retire(
    connection: Connection, row: Row[Any], author: Author, now: datetime, superseded_by: int | None = None
) -> None:
    """Ends a fact, whose row is locked: Luxx does not know it any more from now on. It can be restored.

    `superseded_by`: the row of the fact that replaces it. For a fact that was true until some time, change
    `invalid_at`.
    """
    values = {"expired_at": now, "superseded_by": superseded_by}
    connection.execute(update(facts).where(facts.c.id == row.id).values(**values))
    index_facts(connection, [row.id])
    newer = None
    if superseded_by is not None:
        newer = connection.scalar(select(facts.c.uid).where(facts.c.id == superseded_by))
    record_change(
        connection,
        scope_id=row.scope_id,
        fact_id=row.id,
        kind=ChangeKind.RETIRE,
        before={"expired_at": None, "superseded_by": None},
        after={"expired_at": now, "superseded_by": newer},
        author=author,
        now=now,
    )


def delete_facts(connection: Connection, fact_ids: Collection[int]) -> None:
    """Deletes facts for good, with their versions, words, changes and mentions in recalls, and the entities
    that no other fact names."""
    ids = set(fact_ids)
    versions = versions_of(connection, ids)
    ids.update(connection.scalars(select(facts.c.id).where(facts.c.uid.in_(versions))))
    _forget_versions(connection, ids)
    is_deleted = _mentions.c.fact_id.in_(ids)
    entity_ids = connection.scalars(select(_mentions.c.entity_id).where(is_deleted).distinct()).all()
    connection.execute(delete(facts).where(facts.c.id.in_(ids)))
    delete_unnamed(connection, entity_ids)


def versions_of(connection: Connection, fact_ids: Collection[int]) -> list[str]:
    """The ids of the earlier wordings of facts."""
    befores = connection.scalars(select(_changes.c.before).where(_changes.c.fact_id.in_(fact_ids)))
    return [version for version in map(version_in, befores) if version is not None]


def _forget_versions(connection: Connection, fact_ids: Collection[int]) -> None:
    """Deletes the changes of other facts that repeat the text of one of these versions."""
    rows = connection.execute(
        select(facts.c.uid, facts.c.superseded_by).where(
            facts.c.id.in_(fact_ids), facts.c.superseded_by.is_not(None)
        )
    ).all()
    uids, newer = {row.uid for row in rows}, {row.superseded_by for row in rows} - set(fact_ids)
    if newer:
        changes = connection.execute(
            select(_changes.c.id, _changes.c.before).where(_changes.c.fact_id.in_(newer))
        ).all()
        gone = [change.id for change in changes if version_in(change.before) in uids]
        connection.execute(delete(_changes).where(_changes.c.id.in_(gone)))


def delete_changes_without_version(connection: Connection, fact_ids: Collection[int]) -> None:
    """Deletes the changes of these facts whose earlier wording was deleted: they repeat its text."""
    if not fact_ids:
        return
    rows = connection.execute(
        select(_changes.c.id, _changes.c.before, _changes.c.undone_at).where(_changes.c.fact_id.in_(fact_ids))
    ).all()
    versions = {row.id: version_in(row.before) for row in rows if row.undone_at is None}
    wanted = {version for version in versions.values() if version is not None}
    kept = set(connection.scalars(select(facts.c.uid).where(facts.c.uid.in_(wanted))))
    gone = [id_ for id_, version in versions.items() if version is not None and version not in kept]
    connection.execute(delete(_changes).where(_changes.c.id.in_(gone)))


class _Before(msgspec.Struct):
    version: str | None = None


_before = msgspec.json.Decoder(_Before)


def version_in(before: str | None) -> str | None:
    """The id of the version that a change made, from its `before`."""
    return None if before is None else _before.decode(before).version
