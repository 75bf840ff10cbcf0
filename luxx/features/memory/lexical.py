"""The words of facts, entities and episodes in the index, and finding them by words.

A row of `memory_texts` begins with a word that says what it is of and in which scope, so that a search reads
nothing of other scopes. `infra/store/search_words.py` makes the words.
"""

import unicodedata
from collections.abc import Collection, Sequence
from datetime import datetime
from functools import cache
from hashlib import blake2b
from typing import Any, Literal

import msgspec
from sqlalchemy import (
    ColumnClause,
    ColumnElement,
    Connection,
    Integer,
    Select,
    bindparam,
    column,
    false,
    func,
    select,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite

from luxx.domain.conversations.models import MessageRow
from luxx.domain.conversations.search_index import readable_text
from luxx.features.memory.models import (
    NAME_LENGTH,
    EntityRow,
    EpisodeMessageRow,
    EpisodeRow,
    FactRow,
    MemoryTextRow,
    MentionRow,
)
from luxx.infra.store.ranked_search import WordIndex, all_terms, as_list, index_value, listed, rank
from luxx.infra.store.search_words import Term, composed, date_words, query_of, terms_of
from luxx.infra.store.tables import table_of

Subject = Literal["fact", "past", "episode", "entity"]
"""What a text is of. `past`: a fact that Luxx does not know any more."""

TEXTS = WordIndex(table="memory_texts", full_text="search_index_memory")
INDEXED_AT_ONCE = 500
FACTS_FOUND = 200
ENTITIES_FOUND = 30
EPISODES_FOUND = 200
"""The best hits of a search by words, before other conditions leave some out."""

_texts = table_of(MemoryTextRow)
_facts = table_of(FactRow)
_entities = table_of(EntityRow)
_mentions = table_of(MentionRow)
_episodes = table_of(EpisodeRow)
_parts, _messages = table_of(EpisodeMessageRow), table_of(MessageRow)
_fact_texts = select(
    _facts.c.id, _facts.c.scope_id, _facts.c.text, _facts.c.valid_at, _facts.c.expired_at
).where(_facts.c.id.in_(bindparam("ids", expanding=True)))
_fact_names = (
    select(_mentions.c.fact_id, _entities.c.name)
    .join(_entities, _entities.c.id == _mentions.c.entity_id)
    .where(_mentions.c.fact_id.in_(bindparam("ids", expanding=True)))
)
_entity_texts = select(
    _entities.c.id, _entities.c.scope_id, _entities.c.name, _entities.c.type, _entities.c.aliases
).where(_entities.c.id.in_(bindparam("ids", expanding=True)))
_said_in_episode = (
    select(_messages.c.content)
    .join(_parts, _parts.c.message_id == _messages.c.id)
    .where(_parts.c.episode_id == bindparam("episode"))
    .order_by(_messages.c.id)
)
_episode_of_text = select(_texts.c.id, _texts.c.episode_id).where(
    _texts.c.id.in_(bindparam("ids", expanding=True)), _texts.c.episode_id.is_not(None)
)
_rowid: ColumnClause[int] = column("rowid", Integer)
_names = msgspec.json.Decoder(list[str])
_insert = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


def memory_name(name: str) -> str:
    """A name as names are compared: without regard to case, width and blanks. Marks and signs count, because
    'C', 'C++' and 'C#' are three things."""
    folded = unicodedata.normalize("NFKC", composed(name)).casefold()
    return " ".join(folded.split())[:NAME_LENGTH]


def name_word(name: str) -> str:
    """The word under which the index finds an entity by a name or an alias."""
    return f"name={blake2b(memory_name(name).encode(), digest_size=10).hexdigest()}"


def scope_word(subject: Subject, scope_id: int) -> str:
    """The index word that all texts of a scope and kind share. Words of texts never contain a `=`."""
    return f"{subject}={scope_id}"


def index_facts(connection: Connection, fact_ids: Collection[int]) -> None:
    """Indexes facts with the names of their entities and their day. Call it again after a change."""
    ids = list(fact_ids)
    names: dict[int, list[str]] = {}
    for row in connection.execute(_fact_names, {"ids": ids}):
        names.setdefault(row.fact_id, []).append(row.name)
    dialect = connection.dialect.name
    rows = [
        {
            "scope_id": row.scope_id,
            "fact_id": row.id,
            "words": index_value(
                dialect,
                [scope_word("fact" if row.expired_at is None else "past", row.scope_id)],
                "\n".join([row.text, *names.get(row.id, ()), *_day_of(row.valid_at)]),
            ),
        }
        for row in connection.execute(_fact_texts, {"ids": ids})
    ]
    _store(connection, "fact_id", rows)


def index_entities(connection: Connection, entity_ids: Collection[int]) -> None:
    """Indexes entities with all their names. Call it again after a change of a name or alias."""
    dialect = connection.dialect.name
    rows: list[dict[str, Any]] = []
    for row in connection.execute(_entity_texts, {"ids": list(entity_ids)}):
        names = [row.name, *_names.decode(row.aliases)]
        first = [scope_word("entity", row.scope_id), *map(name_word, names)]
        content = "\n".join([*names, row.type])
        rows.append(
            {
                "scope_id": row.scope_id,
                "entity_id": row.id,
                "words": index_value(dialect, first, content),
            }
        )
    _store(connection, "entity_id", rows)


def index_episodes(connection: Connection, episode_ids: Collection[int]) -> None:
    """Indexes episodes with the name and the messages of each, and its day; neither changes later."""
    dialect = connection.dialect.name
    query = select(_episodes.c.id, _episodes.c.scope_id, _episodes.c.name, _episodes.c.happened_at)
    for row in connection.execute(query.where(_episodes.c.id.in_(list(episode_ids)))).all():
        # One episode at a time: its messages may have some megabytes.
        said = [
            readable_text(content) for content in connection.scalars(_said_in_episode, {"episode": row.id})
        ]
        words = index_value(
            dialect,
            [scope_word("episode", row.scope_id)],
            "\n".join([row.name, *said]),
            context=date_words(row.happened_at.date()),
        )
        _store(connection, "episode_id", [{"scope_id": row.scope_id, "episode_id": row.id, "words": words}])


def _day_of(at: datetime | None) -> list[str]:
    return [] if at is None else [date_words(at.date())]


def reindex_memory(connection: Connection) -> None:
    """Indexes all facts, entities and episodes anew, oldest first: a restored backup has no words."""
    for table, index in (
        (_facts, index_facts),
        (_entities, index_entities),
        (_episodes, index_episodes),
    ):
        last = 0
        while ids := connection.scalars(
            select(table.c.id).where(table.c.id > last).order_by(table.c.id).limit(INDEXED_AT_ONCE)
        ).all():
            index(connection, ids)
            last = ids[-1]


def _store(connection: Connection, column: str, rows: list[dict[str, Any]]) -> None:
    if rows:
        connection.execute(_upsert(connection.dialect.name, column), rows)


@cache
def _upsert(dialect: str, column: str) -> Any:
    """The statement that stores words; making it costs more than a row."""
    statement = _insert[dialect](_texts)
    words = {"words": statement.excluded.words}
    where = _texts.c[column].is_not(None)
    return statement.on_conflict_do_update(index_elements=[column], index_where=where, set_=words)


def find_facts(
    connection: Connection, scope_ids: Collection[int], query: str, *conditions: ColumnElement[bool]
) -> Select[int]:
    """The ids of the facts in these scopes that have all words of the query, as a statement to go on with.

    `conditions` are on the table of facts. A query without words finds nothing.
    """
    base = select(_facts.c.id).where(_facts.c.scope_id.in_(scope_ids), *conditions)
    terms = terms_of(query)
    if not terms or not scope_ids:
        return base.where(false())
    dialect = connection.dialect.name
    expression = all_terms(dialect, _scope_words(("fact", "past"), scope_ids), terms)
    return base.where(_facts.c.id.in_(_matching(dialect, _texts.c.fact_id, expression)))


def ranked_fact_texts(
    connection: Connection, scope_ids: Collection[int], query: str, *, has_past: bool
) -> list[int]:
    """The ids in `memory_texts` of the facts in these scopes that have words of a text, the best first.
    `has_past`: also those that Luxx does not know any more."""
    scopes = _scope_words(("fact", "past") if has_past else ("fact",), scope_ids)
    hits = rank(connection, TEXTS, query_of(query), scopes=scopes, limit=FACTS_FOUND).hits
    return [hit.id for hit in hits]


def ranked_episodes(connection: Connection, scope_ids: Collection[int], query: str) -> list[int]:
    """The ids of the episodes in these scopes that have words of a text, the best first."""
    scopes = _scope_words(("episode",), scope_ids)
    hits = rank(connection, TEXTS, query_of(query), scopes=scopes, limit=EPISODES_FOUND).hits
    ids = [hit.id for hit in hits]
    subjects = dict(connection.execute(_episode_of_text, {"ids": ids}).all()) if ids else {}
    return [subjects[id_] for id_ in ids if id_ in subjects]


class NamedEntity(msgspec.Struct, frozen=True):
    """An entity with all its names. `main`: the entity that it was merged into, or itself."""

    main: int
    names: list[str]


def ranked_entities(connection: Connection, scope_ids: Collection[int], query: str) -> list[NamedEntity]:
    """The entities in these scopes whose names have words of a text, the best first."""
    scopes = _scope_words(("entity",), scope_ids)
    hits = rank(connection, TEXTS, query_of(query), scopes=scopes, limit=ENTITIES_FOUND).hits
    if not hits:
        return []
    statement = _entities_of_texts(connection.dialect.name)
    found = connection.execute(statement, {"ids": as_list(hit.id for hit in hits)})
    rows = {row.text_id: row for row in found}
    return [
        NamedEntity(row.main, [row.name, *_names.decode(row.aliases)])
        for row in (rows[hit.id] for hit in hits if hit.id in rows)
    ]


@cache
def _entities_of_texts(dialect: str) -> Select[*tuple[Any, ...]]:
    return (
        select(
            _texts.c.id.label("text_id"),
            func.coalesce(_entities.c.canonical_id, _entities.c.id).label("main"),
            _entities.c.name,
            _entities.c.aliases,
        )
        .join(_entities, _entities.c.id == _texts.c.entity_id)
        .where(_texts.c.id.in_(listed(dialect, "ids")))
    )


def _scope_words(subjects: Sequence[Subject], scope_ids: Collection[int]) -> list[str]:
    return [scope_word(subject, scope_id) for subject in subjects for scope_id in scope_ids]


def entities_by_word(connection: Connection, scope_id: int, word: str) -> Sequence[Any]:
    """Id, type and `canonical_id` of the entities of a scope with this word, oldest first."""
    dialect = connection.dialect.name
    terms = [Term(words=(word,), pieces=())]
    expression = all_terms(dialect, _scope_words(("entity",), [scope_id]), terms)
    matching = _matching(dialect, _texts.c.entity_id, expression)
    query = select(_entities.c.id, _entities.c.type, _entities.c.canonical_id)
    query = query.where(_entities.c.scope_id == scope_id, _entities.c.id.in_(matching))
    return connection.execute(query.order_by(_entities.c.id)).all()


def _matching(dialect: str, column: ColumnElement[Any], expression: str) -> Select[Any]:
    """The subjects of the texts that match an expression."""
    if dialect == "postgresql":
        return (
            select(column).where(text("words @@ CAST(:expression AS tsquery)")).params(expression=expression)
        )
    hits = text("SELECT rowid FROM search_index_memory WHERE search_index_memory MATCH :expression")
    return select(column).where(_texts.c.id.in_(hits.columns(_rowid))).params(expression=expression)
