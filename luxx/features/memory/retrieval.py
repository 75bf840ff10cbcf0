"""What memory has for a text: several arms each rank facts, and their ranks are added up.

An arm is a way to find facts: their words, the graph around the entities that the text names, or one that a
caller brings along, such as vectors. A fact gets `weight / (rrf_k + rank)` from each arm that found it. The
weight of an arm that is missing goes to the others, in proportion. Nothing here calls a model.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, Select, bindparam, func, or_, select

from luxx.features.memory.lexical import ranked_entities, ranked_fact_texts
from luxx.features.memory.models import EntityRow, FactRow, MemoryTextRow, MentionRow
from luxx.features.memory.scopes import Scopes
from luxx.features.memory.views import was_known, was_true
from luxx.infra.config.schema import MemoryConfig
from luxx.infra.store.ranked_search import as_list, listed
from luxx.infra.store.search_words import fold, stems_of, words_of
from luxx.infra.store.tables import UtcDateTime, table_of
from luxx.wire.memory import FactCategory

CANDIDATES = 50
"""Facts that an arm ranks."""

READ_FIRST = 64
"""Of what an arm may rank, so much is read first: most of it counts, and CANDIDATES are wanted."""

BEST = 20
"""Facts whose scores pins and trust change."""

PINNED, UNTRUSTED = 1.1, 0.9
SEEDS_FROM_HITS = 10
"""The first hits by words whose entities the graph arm begins from, too."""

NAMED_SEEDS = 10
HIT_WEIGHT = 0.5
"""How much an entity of the first hit by words counts, compared with one that the text names."""

SECOND_HOP = 0.3
"""How much an entity counts that only a fact connects with those."""

MOST_EDGES = 500
"""Mentions that one hop reads, the newest first."""

MAX_QUERY = 4_000
"""Characters of a text that are searched with."""

REASON_WORDS = 4
TELLING_LENGTH = 4
"""Characters of a word from which on it says something about a text."""


class RecallQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of memory. `as_of`: what was true then, else now; `known_at`: what Luxx knew then."""

    text: str
    now: datetime
    as_of: datetime | None = None
    known_at: datetime | None = None
    category: FactCategory | None = None
    limit: int | None = None


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """A ranking of facts, the best first, each with why it was found. One that a caller brings along may
    rank facts of other scopes or times: they are left out here."""

    name: str
    weight: float
    ranked: Sequence[tuple[int, str]]


class RecalledItem(msgspec.Struct, frozen=True, kw_only=True):
    """A fact that memory has for a text. `row_id` is the key of its row, `reason` says why in words."""

    row_id: int
    id: str
    text: str
    is_trusted: bool
    score: float
    arms: list[str]
    reason: str


_facts = table_of(FactRow)
_entities = table_of(EntityRow)
_mentions = table_of(MentionRow)
_texts = table_of(MemoryTextRow)
_main_id = func.coalesce(_entities.c.canonical_id, _entities.c.id)


class _RecallStatements:
    """The statements of one dialect, for queries that name a category, and a time of knowing, or not. Making
    them takes longer than most of their results."""

    def __init__(self, dialect: str, *, has_known_at: bool, has_category: bool) -> None:
        ids = listed(dialect, "ids")
        known_at = bindparam("known_at", type_=UtcDateTime()) if has_known_at else None
        conditions = [was_known(known_at), was_true(bindparam("as_of", type_=UtcDateTime()))]
        if has_category:
            conditions.append(_facts.c.category == bindparam("category"))
        scopes = listed(dialect, "scopes")
        in_scopes = _facts.c.scope_id.in_(scopes)
        self.of_texts = (
            select(_texts.c.id, _facts.c.id.label("fact_id"))
            .join(_facts, _facts.c.id == _texts.c.fact_id)
            .where(_texts.c.id.in_(ids), in_scopes, *conditions)
        )
        self.facts = select(
            _facts.c.id, _facts.c.uid, _facts.c.text, _facts.c.pinned, _facts.c.trusted
        ).where(_facts.c.id.in_(ids), in_scopes, *conditions)
        self.allowed = select(_facts.c.id).where(_facts.c.id.in_(ids), in_scopes, *conditions)
        self.mentioned = (
            select(_mentions.c.fact_id, _main_id.label("main"))
            .join(_entities, _entities.c.id == _mentions.c.entity_id)
            .where(_mentions.c.fact_id.in_(ids))
        )
        self.same = select(_entities.c.id, _main_id.label("main")).where(
            or_(_entities.c.id.in_(ids), _entities.c.canonical_id.in_(ids))
        )
        self.names = select(_entities.c.id, _entities.c.name).where(_entities.c.id.in_(ids))
        self.around = (
            select(_mentions.c.fact_id, _mentions.c.entity_id)
            .join(_facts, _facts.c.id == _mentions.c.fact_id)
            # The sum keeps SQLite from reading all facts of a scope instead of those of the entities.
            .where(_mentions.c.entity_id.in_(ids), (_facts.c.scope_id + 0).in_(scopes), *conditions)
            .order_by(_mentions.c.fact_id.desc())
            .limit(MOST_EDGES)
        )


@cache
def _statements(dialect: str, has_known_at: bool, has_category: bool) -> _RecallStatements:
    return _RecallStatements(dialect, has_known_at=has_known_at, has_category=has_category)


class _FactSearch:
    """One search: the statements with the values of the query and the scopes."""

    def __init__(self, connection: Connection, scopes: Scopes, query: RecallQuery) -> None:
        self.connection, self.scopes, self.query = connection, scopes, query
        category = query.category
        self.statements = _statements(
            connection.dialect.name, query.known_at is not None, category is not None
        )
        self._values: dict[str, Any] = {"scopes": as_list(scopes.ids), "as_of": query.as_of or query.now}
        if query.known_at is not None:
            self._values["known_at"] = query.known_at
        if category is not None:
            self._values["category"] = category.value

    def read(
        self, statement: Select[*tuple[Any, ...]], ids: Iterable[int]
    ) -> Sequence[Row[*tuple[Any, ...]]]:
        """The rows of a statement about these ids."""
        return self.connection.execute(statement, self._values | {"ids": as_list(ids)}).all()

    def read_first(
        self, statement: Select[*tuple[Any, ...]], ids: Sequence[int]
    ) -> list[Row[*tuple[Any, ...]]]:
        """The rows of a statement about these ids; not about later ones where earlier ones are enough."""
        rows: list[Row[*tuple[Any, ...]]] = []
        for some in (ids[:READ_FIRST], ids[READ_FIRST:]):
            if some and len(rows) < CANDIDATES:
                rows += self.read(statement, some)
        return rows


def allowed_facts(connection: Connection, scopes: Scopes, query: RecallQuery, ids: Sequence[int]) -> set[int]:
    """Those of these facts that are in the scopes, and of the time and category that are asked for; of many
    at least the first CANDIDATES."""
    search = _FactSearch(connection, scopes, query)
    return {row.id for row in search.read_first(search.statements.allowed, ids)}


def recall(
    connection: Connection,
    scopes: Scopes,
    query: RecallQuery,
    config: MemoryConfig,
    more: Sequence[Arm] = (),
) -> list[RecalledItem]:
    """The facts in these scopes that fit a text best, the best first; `more`: arms besides words and graph.

    Of several facts with nearly the same words only the best remains.
    """
    search = _FactSearch(connection, scopes, query)
    words = _keyword_arm(search, config.keyword_weight)
    graph = _graph_arm(search, config.graph_weight, [id_ for id_, _ in words.ranked])
    arms = [arm for arm in (words, graph, *more) if arm.ranked and arm.weight > 0]
    items = _by_score(search, arms, config.rrf_k)
    limit = config.top_k if query.limit is None else query.limit
    return _explained(without_duplicates(items, config.dedupe_threshold, limit), arms, query.text)


def _pairs(rows: Sequence[Row[*tuple[Any, ...]]]) -> dict[Any, Any]:
    return {row[0]: row[1] for row in rows}


def _keyword_arm(search: _FactSearch, weight: float) -> Arm:
    """The facts with words of the text. Their reasons are left to `_explained`: only some are shown."""
    query = search.query
    found = ranked_fact_texts(
        search.connection, search.scopes.ids, query.text[:MAX_QUERY], has_past=query.known_at is not None
    )
    fact_of: dict[int, int] = _pairs(search.read_first(search.statements.of_texts, found))
    ranked = [(fact_of[id_], "") for id_ in found if id_ in fact_of]
    return Arm(name="keyword", weight=weight, ranked=ranked[:CANDIDATES])


def _explained(items: Sequence[RecalledItem], arms: Sequence[Arm], text: str) -> list[RecalledItem]:
    """The items with the reasons of their arms."""
    reasons = {arm.name: dict(arm.ranked[:CANDIDATES]) for arm in arms}
    asked = dict(zip(*_stemmed(text[:MAX_QUERY]), strict=True))
    explained: list[RecalledItem] = []
    for item in items:
        found = (reasons[name][item.row_id] or _words_reason(asked, item.text) for name in item.arms)
        explained.append(msgspec.structs.replace(item, reason="; ".join(found)))
    return explained


def _stemmed(text: str) -> tuple[list[str], list[str]]:
    """The stems of a text's words, and the words as they were written, without marks at their ends."""
    written = [word for word in text.split() if fold(word).strip()]
    stems = [(words_of(word) or [""])[0] for word in written]
    return stems_of(stems), [word.strip(".,;:!?\"'()[]") for word in written]


def _words_reason(asked: dict[str, str], text: str) -> str:
    """The words of the query that the fact has; they may also be in the names of its entities or its day."""
    stems = set(stems_of(words_of(text)))
    shared = [word for stem, word in asked.items() if stem in stems]
    # Articles and the like say little, where there are other words.
    shared = [word for word in shared if len(word) >= TELLING_LENGTH or not word.isascii()] or shared
    return "words: " + ", ".join(shared[:REASON_WORDS]) if shared else "words of its names or its day"


# The graph


def _graph_arm(search: _FactSearch, weight: float, hits: Sequence[int]) -> Arm:
    named = _named_seeds(search)
    hits = hits[:SEEDS_FROM_HITS]
    from_hits = {id_: strength for id_, strength in _seeds_of(search, hits).items() if id_ not in named}
    found: dict[int, tuple[float, int]] = {}
    _follow(search, named, found)
    # A hit is no reason for itself.
    _follow(search, from_hits, found, passed_over=hits)
    if found and len(found) < CANDIDATES:
        further: dict[int, float] = {}
        for row in search.read(search.statements.mentioned, found):
            if row.main not in named and row.main not in from_hits:
                strength = found[row.fact_id][0] * SECOND_HOP
                further[row.main] = max(further.get(row.main, 0.0), strength)
        _follow(search, further, found, passed_over=hits)
    ranked = sorted(found, key=lambda id_: (found[id_][0], id_), reverse=True)[:CANDIDATES]
    strongest = {found[id_][1] for id_ in ranked}
    names: dict[int, str] = _pairs(search.read(search.statements.names, strongest)) if ranked else {}
    return Arm(
        name="graph",
        weight=weight,
        ranked=[(id_, f"connected with {names.get(found[id_][1], '')}") for id_ in ranked],
    )


def _named_seeds(search: _FactSearch) -> dict[int, float]:
    """The entities that the text names, from which the graph is followed; each counts fully."""
    text = search.query.text[:MAX_QUERY]
    asked = set(words_of(text))
    mains = [
        entity.main
        for entity in ranked_entities(search.connection, search.scopes.ids, text)
        if any(asked.issuperset(words_of(name)) for name in entity.names)
    ]
    return dict.fromkeys(mains[:NAMED_SEEDS], 1.0)


def _seeds_of(search: _FactSearch, hits: Sequence[int]) -> dict[int, float]:
    """The entities of the first hits by words, each with how much it counts."""
    positions = {fact_id: position for position, fact_id in enumerate(hits)}
    seeds: dict[int, float] = {}
    for row in search.read(search.statements.mentioned, hits) if hits else ():
        strength = HIT_WEIGHT / (1 + positions[row.fact_id])
        seeds[row.main] = max(seeds.get(row.main, 0.0), strength)
    return seeds


def _follow(
    search: _FactSearch,
    seeds: dict[int, float],
    found: dict[int, tuple[float, int]],
    passed_over: Sequence[int] = (),
) -> None:
    """Adds the facts that name these entities, each with the sum of their strengths and the strongest one;
    not those that are `passed_over`."""
    if not seeds:
        return
    main_of: dict[int, int] = _pairs(search.read(search.statements.same, seeds))
    added: dict[int, tuple[float, int]] = {}
    for fact_id, entity_id in search.read(search.statements.around, main_of):
        if fact_id in found or fact_id in passed_over:
            continue
        main = main_of[entity_id]
        total, strongest = added.get(fact_id, (0.0, main))
        best = max(strongest, main, key=lambda id_: seeds.get(id_, 0.0))
        added[fact_id] = (total + seeds.get(main, 0.0), best)
    found.update(added)


# The result


def fused(arms: Sequence[Arm], rrf_k: int) -> dict[int, float]:
    """The score of each id that an arm found: the sum of `weight / (rrf_k + rank)` (reciprocal rank fusion).
    The weights of these arms add up to one."""
    total = sum(arm.weight for arm in arms)
    scores: dict[int, float] = {}
    for arm in arms:
        for rank, (id_, _) in enumerate(arm.ranked[:CANDIDATES], 1):
            scores[id_] = scores.get(id_, 0.0) + arm.weight / total / (rrf_k + rank)
    return scores


def _by_score(search: _FactSearch, arms: Sequence[Arm], rrf_k: int) -> Iterator[RecalledItem]:
    """The facts of all arms by descending score, without reasons."""
    scores = fused(arms, rrf_k)
    if not scores:
        return
    found_by: dict[int, list[str]] = {}
    for arm in arms:
        for fact_id, _ in arm.ranked[:CANDIDATES]:
            found_by.setdefault(fact_id, []).append(arm.name)
    rows = {row.id: row for row in search.read(search.statements.facts, scores)}
    best = sorted(rows, key=lambda id_: (scores[id_], id_), reverse=True)
    for fact_id in best[:BEST]:
        row = rows[fact_id]
        scores[fact_id] *= (PINNED if row.pinned else 1.0) * (1.0 if row.trusted else UNTRUSTED)
    best.sort(key=lambda id_: (scores[id_], id_), reverse=True)
    for fact_id in best:
        row = rows[fact_id]
        yield RecalledItem(
            row_id=fact_id,
            id=row.uid,
            text=row.text,
            is_trusted=row.trusted,
            score=scores[fact_id],
            arms=found_by[fact_id],
            reason="",
        )


def without_duplicates(items: Iterable[RecalledItem], threshold: float, limit: int) -> list[RecalledItem]:
    """The first items, without those that nearly repeat a better one. `threshold`: the share of common pairs
    of words from which on two facts say the same."""
    kept: list[RecalledItem] = []
    known: list[frozenset[tuple[str, str]]] = []
    for item in items:
        if len(kept) == limit:
            break
        words = words_of(item.text)
        pairs = frozenset(zip(["", *words], [*words, ""], strict=True))
        if not any(_likeness(pairs, other) >= threshold for other in known):
            kept.append(item)
            known.append(pairs)
    return kept


def _likeness(pairs: frozenset[tuple[str, str]], others: frozenset[tuple[str, str]]) -> float:
    """The share of common pairs of neighbours, because 'Anna owes Ben' and 'Ben owes Anna' are two facts."""
    return len(pairs & others) / len(pairs | others)
