"""Facts as the API shows them and takes them, and how they are read: which were true at a time, and which
were known then.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType
from sqlalchemy import BindParameter, ColumnElement, Connection, and_, bindparam, func, or_, select

from luxx.domain.conversations.models import MessageRow
from luxx.errors import InvalidInput
from luxx.features.memory.entities import EntityName, EntityRef, NewEntity
from luxx.features.memory.models import PREDICATE_LENGTH, EntityRow, FactRow, FactSourceRow, MentionRow
from luxx.features.memory.scopes import SCOPE_LENGTH, Scopes
from luxx.infra.store.tables import table_of
from luxx.infra.strict_json import IN_NAME, NAME
from luxx.wire.memory import FactCategory, FactOrigin, SourceKind

TEXT_LENGTH = 2_000
"""Characters of a fact."""

MAX_NAMED = 20
"""Entities that one fact names, besides its subject and object."""

VISIBLE = r"[^\s\x00-\x1f\x7f]"
FactText = Annotated[
    str,
    Meta(min_length=1, max_length=TEXT_LENGTH, pattern=VISIBLE, description="text with a visible character"),
]
ScopeText = Annotated[str, Meta(max_length=SCOPE_LENGTH)]
Predicate = Annotated[str, Meta(min_length=1, max_length=PREDICATE_LENGTH, pattern=NAME, description=IN_NAME)]
NamedEntities = Annotated[list[NewEntity], Meta(max_length=MAX_NAMED)]
Time = Annotated[datetime, Meta(tz=True)]


class NewFact(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fact to remember. `subject` and `object` are names, which find or make entities; with both the fact
    is an edge of the graph."""

    text: FactText
    category: FactCategory = FactCategory.KNOWLEDGE
    scope: ScopeText = "user"
    subject: EntityName | None = None
    predicate: Predicate | None = None
    object: EntityName | None = None
    entities: NamedEntities = []
    valid_at: Time | None = None
    invalid_at: Time | None = None
    pinned: bool = False


class FactChanges(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Omitted fields do not change; `entities` are all that the fact names besides subject and object."""

    text: FactText | UnsetType = UNSET
    category: FactCategory | UnsetType = UNSET
    subject: EntityName | UnsetType | None = UNSET
    predicate: Predicate | UnsetType | None = UNSET
    object: EntityName | UnsetType | None = UNSET
    entities: NamedEntities | UnsetType = UNSET
    valid_at: Time | UnsetType | None = UNSET
    invalid_at: Time | UnsetType | None = UNSET
    pinned: bool | UnsetType = UNSET


class FactSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where a fact comes from. `id`: that of the message or person, or the address of the page; null if it is
    gone. `conversation_id` or `room_id`: where the message is. `page`: the page, slide or row."""

    kind: SourceKind
    id: str | None
    conversation_id: str | None = None
    room_id: str | None = None
    page: int | None = None
    quote: str | None = None


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """A fact as the API shows it. `valid_at` and `invalid_at`: when it was true; `created_at` and
    `expired_at`: when Luxx knew it. `superseded_by`: the fact that replaced it."""

    id: str
    text: str
    category: FactCategory
    scope: str
    subject: str | None
    predicate: str | None
    object: str | None
    entities: list[EntityRef]
    valid_at: datetime | None
    invalid_at: datetime | None
    created_at: datetime
    expired_at: datetime | None
    superseded_by: str | None
    origin: FactOrigin
    trusted: bool
    pinned: bool
    sources: list[FactSource]
    last_used_at: datetime | None


facts = table_of(FactRow)
_entities = table_of(EntityRow)
_canonical = _entities.alias("canonical")
_mentions = table_of(MentionRow)
_sources = table_of(FactSourceRow)
_messages = table_of(MessageRow)
_newer = facts.alias("newer")
_ids: BindParameter[list[int]] = bindparam("ids", expanding=True)
_fact_rows = (
    select(*facts.c, _newer.c.uid.label("newer"))
    .outerjoin(_newer, _newer.c.id == facts.c.superseded_by)
    .where(facts.c.id.in_(_ids))
)
_entity_rows = (
    select(
        _mentions.c.fact_id,
        _mentions.c.entity_id,
        func.coalesce(_canonical.c.uid, _entities.c.uid).label("uid"),
        func.coalesce(_canonical.c.name, _entities.c.name).label("name"),
        func.coalesce(_canonical.c.type, _entities.c.type).label("type"),
    )
    .join(_entities, _entities.c.id == _mentions.c.entity_id)
    .outerjoin(_canonical, _canonical.c.id == _entities.c.canonical_id)
    .where(_mentions.c.fact_id.in_(_ids))
    .order_by(_mentions.c.id)
)
_source_rows = (
    select(*_sources.c, _messages.c.conversation_id, _messages.c.room_id)
    .outerjoin(_messages, _messages.c.id == _sources.c.message_id)
    .where(_sources.c.fact_id.in_(_ids))
    .order_by(_sources.c.id)
)


def read_facts(connection: Connection, scopes: Scopes, fact_ids: Sequence[int]) -> list[Fact]:
    """The facts with these ids, in this order; those of other scopes are left out."""
    if not fact_ids:
        return []
    ids = {"ids": list(fact_ids)}
    rows = {row.id: row for row in connection.execute(_fact_rows, ids) if row.scope_id in scopes.by_id}
    named: dict[int, dict[int, EntityRef]] = {}
    for row in connection.execute(_entity_rows, ids):
        named.setdefault(row.fact_id, {})[row.entity_id] = EntityRef(id=row.uid, name=row.name, type=row.type)
    sources: dict[int, list[FactSource]] = {}
    for row in connection.execute(_source_rows, ids):
        sources.setdefault(row.fact_id, []).append(_source(row))
    found: list[Fact] = []
    for fact_id in fact_ids:
        if fact_id in rows:
            row = rows[fact_id]
            scope = str(scopes.by_id[row.scope_id].name)
            found.append(_view(row, scope, named.get(fact_id, {}), sources.get(fact_id, [])))
    return found


def _view(row: Any, scope: str, named: dict[int, EntityRef], sources: list[FactSource]) -> Fact:
    subject, object_ = named.get(row.subject_id), named.get(row.object_id)
    return Fact(
        id=row.uid,
        text=row.text,
        category=FactCategory(row.category),
        scope=scope,
        subject=None if subject is None else subject.name,
        predicate=row.predicate,
        object=None if object_ is None else object_.name,
        entities=list({entity.id: entity for entity in named.values()}.values()),
        valid_at=row.valid_at,
        invalid_at=row.invalid_at,
        created_at=row.created_at,
        expired_at=row.expired_at,
        superseded_by=row.newer,
        origin=FactOrigin(row.origin),
        trusted=row.trusted,
        pinned=row.pinned,
        sources=sources,
        last_used_at=row.last_used_at,
    )


def _source(row: Any) -> FactSource:
    kind = SourceKind(row.kind)
    ids = {SourceKind.MESSAGE: row.message_id, SourceKind.PERSON: row.user_id, SourceKind.PAGE: row.url}
    value = ids.get(kind)
    return FactSource(
        kind=kind,
        id=None if value is None else str(value),
        conversation_id=row.conversation_id,
        room_id=row.room_id,
        page=row.page,
        quote=row.quote,
    )


def in_utc(value: datetime, field: str) -> datetime:
    """The time in UTC. Raises InvalidInput for one without a zone, or that the calendar does not have."""
    if value.tzinfo is None:
        raise InvalidInput("needs a time zone, such as 2026-01-31T12:00:00Z", field=field)
    try:
        return value.astimezone(UTC)
    except OverflowError as error:
        raise InvalidInput("must be between the years 1 and 9999", field=field) from error


def was_true(as_of: datetime | BindParameter[datetime]) -> ColumnElement[bool]:
    """The condition on facts that were true at this time."""
    return and_(
        or_(facts.c.valid_at.is_(None), facts.c.valid_at <= as_of),
        or_(facts.c.invalid_at.is_(None), facts.c.invalid_at > as_of),
    )


def was_known(known_at: datetime | BindParameter[datetime] | None) -> ColumnElement[bool]:
    """The condition on facts that Luxx knew at this time; None is now."""
    if known_at is None:
        return facts.c.expired_at.is_(None)
    return and_(
        facts.c.created_at <= known_at,
        or_(facts.c.expired_at.is_(None), facts.c.expired_at > known_at),
    )


class FactTime(msgspec.Struct, frozen=True, kw_only=True):
    """When facts were true (`as_of`), and when Luxx knew them (`known_at`); None: at any time, and now."""

    as_of: datetime | None = None
    known_at: datetime | None = None

    @property
    def is_past(self) -> bool:
        return self.as_of is not None or self.known_at is not None

    def facts(self) -> list[ColumnElement[bool]]:
        """The conditions on facts. Raises InvalidInput for a time that the calendar does not have."""
        known_at = None if self.known_at is None else in_utc(self.known_at, "known_at")
        return [was_known(known_at), *self.true_facts()]

    def true_facts(self) -> list[ColumnElement[bool]]:
        """The conditions on facts that were true then, whether Luxx knew them or not."""
        return [] if self.as_of is None else [was_true(in_utc(self.as_of, "as_of"))]


NOW = FactTime()
