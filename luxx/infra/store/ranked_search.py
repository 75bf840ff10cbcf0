"""Full-text search by relevance in any table of texts, on SQLite and PostgreSQL. It knows no subject:
messages, memories and chunks of documents are searched by the same functions.

    TEXTS = WordIndex(table="memory_texts", full_text="search_index_memory")
    words = index_value(dialect, ["scope=12"], text, context="the turn before, and words of the date")
    ranking = rank(connection, TEXTS, query_of("anna's cat"), scopes=["scope=12", "scope=40"], limit=50)
    best_ids = [hit.id for hit in ranking.hits]
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Any

import msgspec
from sqlalchemy import BigInteger, ColumnClause, Connection, Row, TextClause, TextualSelect, column, text

from luxx.infra.store.search_words import AFTER_CONTEXT, RankedWord, Term, WordQuery
from luxx.infra.store.search_words import index_value as index_value  # What is searched is stored so.

MOST_CANDIDATES = 16_000
"""Candidates of all words of a query together."""

MOST_OF_WORD = 2000
FEWEST_OF_WORD = 250
"""Candidates of one word: of a query of few words, and of a query of many."""

RESCORED = 200
READ_LENGTH = 20_000
"""How many characters of a candidate's words are read to count those of the query (SQLite)."""

CONTEXT_WEIGHT = 0.3
_CONTEXT_RANK = 0.5
"""The weight that makes `ts_rank` of a word in the context what CONTEXT_WEIGHT is in a count."""

LEAST_RARITY = 0.01
"""Of a word that half of the texts have or more, which would count nothing or against a text."""

K1, B = 1.2, 0.75
"""Constants of BM25: how soon repetitions of a word stop to count, and how much a text's length counts."""

_RANK_SATURATION = 0.645
"""`ts_rank` of one word that occurs n times is close to n / (n + 0.645)."""

_ids = msgspec.json.Decoder(list[int] | None)
_encode = msgspec.json.Encoder().encode
_number: ColumnClause[int] = column("number", BigInteger)


class WordIndex(msgspec.Struct, frozen=True, kw_only=True):
    """The names of a table of texts and of its FTS5 table on SQLite.

    The table has an integer `id`, of which a higher one was stored later, and `words`, which `index_value`
    makes. On SQLite an FTS5 table with the column `words`, the tokenizer `ascii tokenchars '='` and the table
    as its external content is kept by triggers; on PostgreSQL `words` is a tsvector with a GIN index.

    **Scopes** are words of the index that no text contains. A search names those that the caller may see, so
    it finds nothing else, and its cost does not grow with the texts of others. How rare a word is and how
    long texts are is also taken from the texts in these scopes: those of others do not change an order.

    **Ranking** is BM25 over the stems of words. A text needs one of the words; the rarer those are that it
    has, the better its place. Words of a text's context count less than its own. For each word at most
    `MOST_OF_WORD` of the newest texts are candidates, so very common words cost little; the best `RESCORED`
    candidates by the rarity of their words are read and ranked by how often they contain the words, and by
    their length.
    """

    table: str
    full_text: str


@dataclass(frozen=True, slots=True)
class Hit:
    """A text: its score by BM25, and the sum of its words' rarity, which does not depend on its length."""

    id: int
    score: float
    coverage: float


@dataclass(frozen=True, slots=True)
class Ranking:
    """Texts by descending score, newer ones first among equals. `has_more`: there are texts that have a word
    of the query and are no hit."""

    hits: list[Hit]
    has_more: bool


def rank(
    connection: Connection,
    index: WordIndex,
    query: WordQuery,
    *,
    scopes: Sequence[str],
    within: Sequence[str] = (),
    condition: str = "",
    limit: int,
) -> Ranking:
    """The texts that are in one of the scopes, and have each word `within`, which are scopes too.

    `condition` is SQL that a text must fulfil, with `{id}` for its id; it contains no input.
    """
    if not query or not scopes:
        return Ranking(hits=[], has_more=False)
    dialect = connection.dialect.name
    allowed = all_terms(dialect, scopes, map(_scope, within))
    must = _all_of(dialect, [allowed, *(_term(dialect, term) for term in query.required)])
    expressions = [allowed, *(_all_of(dialect, [must, _ranked(dialect, word)]) for word in query.words)]
    if query.required:
        expressions.append(must)
    most = max(FEWEST_OF_WORD, min(MOST_OF_WORD, MOST_CANDIDATES // len(expressions)))
    in_scopes, *found = _newest(connection, index, expressions, most, condition)
    total = _estimated(in_scopes, most, in_scopes)
    coverage: defaultdict[int, float] = defaultdict(float)
    rarity: dict[RankedWord, float] = {}
    for word, ids in zip(query.words, found, strict=False):
        rarity[word] = _rarity(_estimated(ids, most, in_scopes), total)
        for id_ in ids:
            coverage[id_] += rarity[word]
    if query.required:
        for id_ in found[-1]:
            coverage[id_] += 1.0
    best = [id_ for _, id_ in sorted(zip(coverage.values(), coverage, strict=True), reverse=True)]
    weighed = _Weighed(
        rarity=rarity,
        having={
            word: None if len(ids) == most else ids for word, ids in zip(query.words, found, strict=False)
        },
        coverage={id_: coverage[id_] for id_ in best[:RESCORED]},
    )
    hits = _rescored(connection, index, query, weighed)
    hits += [Hit(id=id_, score=0.0, coverage=coverage[id_]) for id_ in best[RESCORED:limit]]
    has_more = len(best) > limit or any(len(ids) == most for ids in found)
    return Ranking(hits=hits[:limit], has_more=has_more)


def _estimated(ids: Sequence[int], most: int, in_scopes: Sequence[int]) -> float:
    """How many texts have a word: of a word with more than `most`, from how densely the newest have it."""
    if len(ids) < most:
        return len(ids)
    newest = in_scopes[0]
    return len(ids) * newest / (newest - ids[-1] + 1)


def _rarity(count: float, total: float) -> float:
    """The inverse document frequency of BM25, which is at least LEAST_RARITY."""
    return max(math.log((max(total - count, 0.0) + 0.5) / (count + 0.5)), LEAST_RARITY)


def listed(dialect: str, name: str) -> TextualSelect:
    """The whole numbers of a parameter, a list as JSON, for `in_`: a statement with it is compiled once, and
    the database is given one value, however many numbers there are."""
    numbers = "json_array_elements_text(CAST(:{} AS JSON))" if dialect == "postgresql" else "json_each(:{})"
    return text(f"SELECT CAST(value AS BIGINT) AS number FROM {numbers.format(name)}").columns(_number)


def as_list(ids: Iterable[int]) -> str:
    """The value of a parameter of `listed`."""
    return _encode(list(ids)).decode()


# --- expressions -------------------------------------------------------------------------------------


def all_terms(dialect: str, scopes: Iterable[str], terms: Iterable[Term]) -> str:
    """The expression of texts that are in one of the scopes, of which there is one at least, and have all
    terms."""
    return _all_of(
        dialect, [_any_of(dialect, map(_scope, scopes)), *(_term(dialect, term) for term in terms)]
    )


def _scope(word: str) -> Term:
    return Term(words=(word,), pieces=())


def _ranked(dialect: str, word: RankedWord) -> str:
    """A word matches itself, the stem of another word of the text, and a word of the context."""
    forms = (word.text, f"={word.text}")
    return _any_of(dialect, [Term(words=(form,), pieces=(), is_prefix=word.is_prefix) for form in forms])


def _any_of(dialect: str, terms: Iterable[Term]) -> str:
    operator = " | " if dialect == "postgresql" else " OR "
    return f"({operator.join(_term(dialect, term) for term in terms)})"


def _all_of(dialect: str, expressions: Iterable[str]) -> str:
    return (" & " if dialect == "postgresql" else " AND ").join(expressions)


def _term(dialect: str, term: Term) -> str:
    """A term in the database's query syntax; words contain no quotes, so nothing can break out of them."""
    if dialect == "postgresql":
        quote, follows, ends = "'{}'", " <-> ", ":*"
    else:
        quote, follows, ends = '"{}"', " + ", " *"
    return f"({follows.join(map(quote.format, term.words))}{ends if term.is_prefix else ''})"


# --- candidates --------------------------------------------------------------------------------------


def _newest(
    connection: Connection, index: WordIndex, expressions: Sequence[str], most: int, condition: str
) -> list[list[int]]:
    """The ids of at most so many of the newest texts that match, descending, for each expression."""
    statement = _newest_statement(connection.dialect.name, index, len(expressions), condition)
    parameters = {f"expression_{number}": expression for number, expression in enumerate(expressions)}
    row = connection.execute(statement, parameters | {"most": most}).one()
    return [_ids.decode(ids or "null") or [] for ids in row]


@cache
def _newest_statement(dialect: str, index: WordIndex, count: int, condition: str) -> TextClause:
    table, full_text = index.table, index.full_text
    if dialect == "postgresql":
        one = (
            "(SELECT CAST(json_agg(found.id) AS text) FROM (SELECT id FROM {table} "
            "WHERE words @@ CAST(:expression_{number} AS tsquery) {condition} "
            "ORDER BY id DESC LIMIT :most) AS found)"
        )
        condition = condition.format(id=f"{table}.id")
    else:
        one = (
            "(SELECT json_group_array(id) FROM (SELECT rowid AS id FROM {full_text} "
            "WHERE {full_text} MATCH :expression_{number} {condition} "
            "ORDER BY rowid DESC LIMIT :most) AS found)"
        )
        condition = condition.format(id=f"{full_text}.rowid")
    names = {"table": table, "full_text": full_text, "condition": condition}
    return text("SELECT " + ", ".join(one.format(number=number, **names) for number in range(count)))


# --- scores ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Weighed:
    """The words of a query with their rarity and the texts that have them (None: more than were read, so any
    candidate may have it), and the candidates with their coverage."""

    rarity: dict[RankedWord, float]
    having: dict[RankedWord, list[int] | None]
    coverage: dict[int, float]


def _rescored(connection: Connection, index: WordIndex, query: WordQuery, weighed: _Weighed) -> list[Hit]:
    """The candidates in the order of BM25. A term that all of them have counts as one word."""
    coverage = weighed.coverage
    if not coverage:
        return []
    count = _counts_on_postgresql if connection.dialect.name == "postgresql" else _counts_on_sqlite
    counted = list(count(connection, index, query.words, weighed))
    usual = median(length for _, length, _ in counted) or 1
    hits: list[Hit] = []
    for id_, length, counts in counted:
        slow = K1 * (1 - B + B * length / usual)
        score = (K1 + 1) / (1 + slow) if query.required else 0.0
        for rarity, times in counts:
            score += rarity * times * (K1 + 1) / (times + slow)
        hits.append(Hit(id=id_, score=score, coverage=coverage[id_]))
    return sorted(hits, key=lambda hit: (hit.score, hit.id), reverse=True)


Counted = tuple[int, float, list[tuple[float, float]]]
"""An id, the length of its text in any unit, and of the words that it has the rarity and how often it has
them."""


def _counts_on_sqlite(
    connection: Connection, index: WordIndex, words: Sequence[RankedWord], weighed: _Weighed
) -> Iterator[Counted]:
    needles: dict[int, list[tuple[float, str, str]]] = {id_: [] for id_ in weighed.coverage}
    for word in words:
        end = word.text if word.is_prefix else f"{word.text} "
        needle = weighed.rarity[word], f" {end}", f" ={end}"
        having = weighed.having[word]
        for id_ in needles if having is None else needles.keys() & having:
            needles[id_].append(needle)
    for id_, value, length in connection.execute(_read_words(index), {"ids": as_list(weighed.coverage)}):
        around, _, own = f"{value} ".partition(AFTER_CONTEXT)
        own, around = f" {own}", f"{around} "
        counts = [
            (rarity, own.count(word) + own.count(stem) + (CONTEXT_WEIGHT if stem in around else 0.0))
            for rarity, word, stem in needles[id_]
        ]
        yield id_, length - len(around), counts


@cache
def _read_words(index: WordIndex) -> TextClause:
    return text(
        f"SELECT id, substr(words, 1, {READ_LENGTH}), length(words) FROM {index.table} "
        "WHERE id IN (SELECT value FROM json_each(:ids))"
    )


def _counts_on_postgresql(
    connection: Connection, index: WordIndex, words: Sequence[RankedWord], weighed: _Weighed
) -> Iterator[Counted]:
    parameters = {
        f"{form}_{number}": _term(
            "postgresql", Term(words=(mark + word.text,), pieces=(), is_prefix=word.is_prefix)
        )
        for number, word in enumerate(words)
        for form, mark in (("word", ""), ("stem", "="))
    }
    statement = _rank_words(index, len(words))
    row: Row[*tuple[Any, ...]]
    for row in connection.execute(statement, parameters | {"ids": list(weighed.coverage)}):
        id_, length, *ranks = row
        counts = [
            (weighed.rarity[word], _times(plain) + _times(stem))
            for word, plain, stem in zip(words, ranks[::2], ranks[1::2], strict=True)
        ]
        yield id_, length, counts


def _times(rank: float) -> float:
    """How often a word must occur for this rank."""
    rank = min(rank, 0.95)
    return _RANK_SATURATION * rank / (1 - rank)


@cache
def _rank_words(index: WordIndex, count: int) -> TextClause:
    weights = f"'{{{_CONTEXT_RANK},1,1,1}}'"
    ranks = "".join(
        f", ts_rank(CAST({plain} AS float4[]), words, CAST(:word_{number} AS tsquery))"
        f", ts_rank(CAST({weights} AS float4[]), words, CAST(:stem_{number} AS tsquery))"
        for number in range(count)
        for plain in ("'{1,1,1,1}'",)
    )
    # The empty vector makes a copy, which is read from its storage once, not for each rank.
    return text(
        f"SELECT id, length(words){ranks} FROM (SELECT id, words || CAST('' AS tsvector) AS words "
        f"FROM {index.table} WHERE id = ANY(:ids) OFFSET 0) AS candidates"
    )
