"""What a model compares a batch of messages with: entities and facts that are known."""

from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Connection, bindparam, func, or_, select

from luxx.features.memory.extraction.answers import MAX_CANDIDATES, KnownEntity, KnownFact, Said, SaidBatch
from luxx.features.memory.lexical import memory_name
from luxx.features.memory.models import EntityRow, FactRow, MentionRow
from luxx.features.memory.retrieval import RecallQuery, recall
from luxx.features.memory.scopes import Scopes
from luxx.infra.config.schema import MemoryConfig
from luxx.infra.store.tables import table_of

MAX_COMPARED_ENTITIES = 20_000
"""Names of a scope that are looked for in the text of a batch."""

_entities, _facts, _mentions = table_of(EntityRow), table_of(FactRow), table_of(MentionRow)
_subject, _object = _entities.alias("subjects"), _entities.alias("objects")
_is_known = (
    _facts.c.scope_id == bindparam("scope"),
    _facts.c.expired_at.is_(None),
    or_(_facts.c.invalid_at.is_(None), _facts.c.invalid_at > bindparam("now")),
)
"""The conditions on facts of a scope that Luxx knows and that are not over, also those that begin later."""

_known_entities = (
    select(*(_entities.c[name] for name in ("id", "uid", "name", "type", "folded", "aliases")))
    .where(_entities.c.scope_id == bindparam("scope"), _entities.c.canonical_id.is_(None))
    .order_by(_entities.c.updated_at.desc())
    .limit(MAX_COMPARED_ENTITIES)
)
_about_entities = (
    select(_facts.c.id)
    .join(_mentions, _mentions.c.fact_id == _facts.c.id)
    .where(_mentions.c.entity_id.in_(bindparam("entities", expanding=True)), *_is_known)
    .group_by(_facts.c.id)
    .order_by(func.count().desc(), _facts.c.id.desc())
    .limit(MAX_CANDIDATES)
)
_newest_facts = select(_facts.c.id).where(*_is_known).order_by(_facts.c.id.desc()).limit(MAX_CANDIDATES)
_facts_of_ids = (
    select(
        _facts.c.id,
        _facts.c.uid,
        _facts.c.text,
        _facts.c.predicate,
        _facts.c.pinned,
        _facts.c.subject_id,
        _facts.c.object_id,
        _subject.c.folded.label("subject"),
        _object.c.folded.label("object"),
    )
    .outerjoin(_subject, _subject.c.id == _facts.c.subject_id)
    .outerjoin(_object, _object.c.id == _facts.c.object_id)
    .where(_facts.c.id.in_(bindparam("ids", expanding=True)))
)
_names = msgspec.json.Decoder(list[str])


def with_candidates(
    connection: Connection,
    scopes: Scopes,
    scope_id: int,
    said: list[Said],
    now: datetime,
    config: MemoryConfig,
) -> SaidBatch:
    """The batch with what the model compares with: facts about entities that its messages name, those that
    fit its words, and the newest ones, because a person says "I"; and the entities of all these."""
    text = "\n".join(message.text for message in said)
    named = _named_entities(connection, scope_id, text)
    values: dict[str, Any] = {"entities": list(named), "scope": scope_id, "now": now}
    ids = list(connection.scalars(_about_entities, values)) if named else []
    fitting = recall(connection, scopes, RecallQuery(text=text, now=now, limit=MAX_CANDIDATES), config)
    ids += [item.row_id for item in fitting]
    ids += connection.scalars(_newest_facts, values)
    ids = list(dict.fromkeys(ids))[:MAX_CANDIDATES]
    rows = {row.id: row for row in connection.execute(_facts_of_ids, {"ids": ids})}
    facts = [
        KnownFact(
            id=row.id, uid=row.uid, text=row.text, subject=row.subject, predicate=row.predicate,
            object=row.object, pinned=row.pinned,
        )
        for row in (rows[id_] for id_ in ids)
    ]  # fmt: skip
    ends = [end for id_ in ids for end in (rows[id_].subject_id, rows[id_].object_id) if end is not None]
    more = select(_entities.c.id, _entities.c.uid, _entities.c.name, _entities.c.type).where(
        _entities.c.id.in_(ends), _entities.c.canonical_id.is_(None)
    )
    found = {row.id: KnownEntity(row.id, row.name, row.type, row.uid) for row in connection.execute(more)}
    return SaidBatch(messages=said, entities=list((named | found).values())[:MAX_CANDIDATES], facts=facts)


def _named_entities(connection: Connection, scope_id: int, text: str) -> dict[int, KnownEntity]:
    """The entities of the scope whose name or alias is in the text, the last changed ones first."""
    folded = _folded_text(text)
    found: dict[int, KnownEntity] = {}
    for row in connection.execute(_known_entities, {"scope": scope_id}):
        names = [row.folded, *map(memory_name, _names.decode(row.aliases))]
        if any(name and name in folded for name in names):
            found[row.id] = KnownEntity(row.id, row.name, row.type, row.uid)
            if len(found) == MAX_CANDIDATES:
                break
    return found


def _folded_text(text: str) -> str:
    """The text folded as names are, at any length."""
    return " ".join(memory_name(line) for piece in text.split("\n") for line in _pieces(piece))


def _pieces(line: str, size: int = 150) -> list[str]:
    """The line in pieces that `memory_name` does not cut; each begins before the last one ends."""
    return [line[start : start + size] for start in range(0, max(len(line), 1), size // 2)]
