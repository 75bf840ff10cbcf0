"""Entities of a scope by name: how names are compared, finding an entity or making it, and which of them
nothing supports any more.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta
from sqlalchemy import ColumnElement, Connection, and_, bindparam, delete, exists, insert, select, update

from luxx.features.memory.lexical import entities_by_word, index_entities, memory_name, name_word
from luxx.features.memory.limits import RowLimit
from luxx.features.memory.models import (
    NAME_LENGTH,
    TYPE_LENGTH,
    CommunityRow,
    EntityRow,
    FactRow,
    MentionRow,
)
from luxx.infra.clock import new_id
from luxx.infra.store.tables import Lock, lock_until_commit, table_of
from luxx.infra.strict_json import IN_NAME, NAME

MAX_ENTITIES = 20_000
"""Entities of one scope."""

DEFAULT_TYPE = "thing"
"""The type of an entity that was only named."""

EntityName = Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH, pattern=NAME, description=IN_NAME)]
EntityType = Annotated[str, Meta(min_length=1, max_length=TYPE_LENGTH, pattern=NAME, description=IN_NAME)]


class NewEntity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entity that a fact names. Without a `type` it is the entity of this name of any type."""

    name: EntityName
    type: EntityType | None = None


class EntityRef(msgspec.Struct, frozen=True, kw_only=True):
    """An entity as facts show it."""

    id: str
    name: str
    type: str


_entities = table_of(EntityRow)
_facts = table_of(FactRow)
_mentions = table_of(MentionRow)
_communities = table_of(CommunityRow)
_by_folded = (
    select(_entities.c.id, _entities.c.folded, _entities.c.type, _entities.c.canonical_id)
    .where(
        _entities.c.scope_id == bindparam("scope"),
        _entities.c.folded.in_(bindparam("names", expanding=True)),
    )
    .order_by(_entities.c.id)
)
_insert_entity = insert(_entities)


class EntityFinder:
    """Finds and makes entities of one scope, in one transaction; the ids are of those that count now."""

    def __init__(self, connection: Connection, scope_id: int, now: datetime, limit: RowLimit) -> None:
        self._connection = connection
        self._scope_id = scope_id
        self._now = now
        self._limit = limit

    def ids_of(self, wanted: Sequence[NewEntity]) -> list[int]:
        """The id of each entity; those that do not exist are made. Raises Conflict past the limit."""
        if not wanted:
            return []
        # Of several transactions that name something new, one makes it.
        lock_until_commit(self._connection, Lock.MEMORY_NAMES, self._scope_id)
        names = {memory_name(entity.name) for entity in wanted}
        found = self._connection.execute(_by_folded, {"scope": self._scope_id, "names": sorted(names)}).all()
        known: dict[str, list[tuple[str, int]]] = {}
        for row in found:
            known.setdefault(row.folded, []).append((row.type, row.canonical_id or row.id))
        for name in sorted(names - known.keys()):
            known[name] = self._by_alias(name)
        return [self._id_of(entity, known[memory_name(entity.name)]) for entity in wanted]

    def id_of_name(self, name: str) -> int:
        """The id of the entity of this name, of any type."""
        return self.ids_of([NewEntity(name=name)])[0]

    def _by_alias(self, folded: str) -> list[tuple[str, int]]:
        rows = entities_by_word(self._connection, self._scope_id, name_word(folded))
        return [(row.type, row.canonical_id or row.id) for row in rows]

    def _id_of(self, entity: NewEntity, known: list[tuple[str, int]]) -> int:
        for type_, entity_id in known:
            if entity.type is None or type_.casefold() == entity.type.casefold():
                return entity_id
        made = self._make(entity)
        known.append((entity.type or DEFAULT_TYPE, made))
        return made

    def _make(self, entity: NewEntity) -> int:
        self._limit.take(self._connection, _entities, self._scope_id)
        name = " ".join(entity.name.split())
        values = {
            "uid": new_id(), "scope_id": self._scope_id, "created_at": self._now, "updated_at": self._now,
            "name": name, "folded": memory_name(name), "type": entity.type or DEFAULT_TYPE, "aliases": "[]",
            "summary": "",
        }  # fmt: skip
        key = self._connection.execute(_insert_entity, values).inserted_primary_key
        assert key is not None
        entity_id = int(key[0])
        index_entities(self._connection, [entity_id])
        return entity_id


def delete_unsupported(
    connection: Connection, entity_ids: Collection[int], *, is_deletion: bool = True
) -> None:
    """Deletes those of the entities that no fact and no episode names any more.

    `is_deletion`: the summaries of the others, and of the communities of all, are emptied too, because they
    may repeat what was deleted.
    """
    ids = set(entity_ids)
    if not ids:
        return
    communities = set(
        connection.scalars(
            select(_entities.c.community_id).where(
                _entities.c.id.in_(ids), _entities.c.community_id.is_not(None)
            )
        )
    )
    while ids:
        # An entity that others were merged into stays until they are gone.
        targets = connection.scalars(
            select(_entities.c.canonical_id).where(
                _entities.c.id.in_(ids), _entities.c.canonical_id.is_not(None)
            )
        ).all()
        result = connection.execute(delete(_entities).where(_entities.c.id.in_(ids), is_unsupported()))
        if not result.rowcount:
            break
        ids |= set(targets)
    if is_deletion:
        connection.execute(update(_entities).where(_entities.c.id.in_(ids)).values(summary=""))
    if communities:
        if is_deletion:
            emptied = update(_communities).where(_communities.c.id.in_(communities)).values(summary="")
            connection.execute(emptied)
        members = exists().where(_entities.c.community_id == _communities.c.id)
        connection.execute(delete(_communities).where(_communities.c.id.in_(communities), ~members))


def delete_unnamed(connection: Connection, entity_ids: Collection[int]) -> None:
    """Deletes those of the entities that no fact names any more, also those that episodes mention: whoever
    deletes the last fact about something wants it forgotten, and the text of an episode stays anyway."""
    by_fact = _mentions.alias()
    unnamed = select(_entities.c.id).where(
        _entities.c.id.in_(entity_ids),
        ~exists().where(by_fact.c.entity_id == _entities.c.id, by_fact.c.fact_id.is_not(None)),
        *_is_no_end(),
    )
    is_mention = _mentions.c.episode_id.is_not(None), _mentions.c.entity_id.in_(unnamed)
    connection.execute(delete(_mentions).where(*is_mention))
    delete_unsupported(connection, entity_ids)


def delete_all_unnamed(connection: Connection, scope_ids: Collection[int]) -> None:
    """`delete_unnamed` for all entities of these scopes."""
    mentioned = select(_mentions.c.entity_id).where(
        _mentions.c.scope_id.in_(scope_ids), _mentions.c.episode_id.is_not(None)
    )
    delete_unnamed(connection, connection.scalars(mentioned.distinct()).all())


def is_unsupported() -> ColumnElement[bool]:
    """The condition on entities that no fact and no episode names, and that none was merged into."""
    return and_(~exists().where(_mentions.c.entity_id == _entities.c.id), *_is_no_end())


def _is_no_end() -> tuple[ColumnElement[bool], ...]:
    """The conditions on entities at no end of a fact, and that none was merged into."""
    merged = _entities.alias()
    return (
        ~exists().where(_facts.c.subject_id == _entities.c.id),
        ~exists().where(_facts.c.object_id == _entities.c.id),
        ~exists().where(merged.c.canonical_id == _entities.c.id),
    )
