"""The test of a model: 60 questions about 48 memories in two languages, searched by words and by vectors.

A model that finds less than words would only spoil their order. The test also says below which similarity
texts have nothing to do with each other, which differs between models.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import msgspec
from sqlalchemy import Connection, create_engine
from sqlalchemy.pool import StaticPool

from luxx.features.memory.vectors.search import numpy
from luxx.infra.store.ranked_search import WordIndex, index_value, rank
from luxx.infra.store.search_words import query_of

HITS = 5
"""A question is answered if the right memory is among so many."""

UNRELATED = 0.5
"""The share of the pairs of a question and a wrong memory that are less similar than the floor. With 0.8, a
small model lost a fifth of the right ones too."""

_SCOPE = "memory=1"
_INDEX = WordIndex(table="texts", full_text="words_of_texts")
_TABLES = (
    "CREATE TABLE texts (id INTEGER PRIMARY KEY, words TEXT)",
    "CREATE VIRTUAL TABLE words_of_texts USING fts5(words, content='texts', content_rowid='id', "
    "tokenize=\"ascii tokenchars '='\")",
)


class TestedFact(msgspec.Struct, frozen=True):
    id: int
    text: str


class TestedQuestion(msgspec.Struct, frozen=True):
    text: str
    expected: int


class BilingualSet(msgspec.Struct, frozen=True):
    memories: list[TestedFact]
    questions: list[TestedQuestion]


class ModelTest(msgspec.Struct, frozen=True, kw_only=True):
    """The shares of questions whose memory words and vectors find, and the floor of similarity."""

    words: float
    vectors: float
    floor: float


@cache
def bilingual_set() -> BilingualSet:
    return msgspec.json.decode(Path(__file__).with_name("bilingual.json").read_bytes(), type=BilingualSet)


def result_of(memories: Sequence[Sequence[float]], questions: Sequence[Sequence[float]]) -> ModelTest:
    """The result of a model, from its vectors of the memories and the questions of the set. Blocks."""
    np = numpy()
    cosines = np.asarray(questions, dtype=np.float32) @ np.asarray(memories, dtype=np.float32).T
    ids = [memory.id for memory in bilingual_set().memories]
    expected = [ids.index(question.expected) for question in bilingual_set().questions]
    best = np.argsort(-cosines, axis=1)[:, :HITS].tolist()
    hits = sum(right in found for right, found in zip(expected, best, strict=True))
    is_wrong = np.ones(cosines.shape, dtype=bool)
    is_wrong[range(len(expected)), expected] = False
    return ModelTest(
        words=hit_by_words(),
        vectors=hits / len(expected),
        floor=float(np.quantile(cosines[is_wrong], UNRELATED)),
    )


@cache
def hit_by_words() -> float:
    """The share of questions whose memory is found by words, in a database of its own."""
    engine = create_engine("sqlite://", poolclass=StaticPool)
    try:
        with engine.begin() as connection:
            return _hit_by_words(connection)
    finally:
        engine.dispose()


def _hit_by_words(connection: Connection) -> float:
    for statement in _TABLES:
        connection.exec_driver_sql(statement)
    for memory in bilingual_set().memories:
        values = (memory.id + 1, index_value("sqlite", [_SCOPE], memory.text))
        for table, key in (("texts", "id"), ("words_of_texts", "rowid")):
            connection.exec_driver_sql(f"INSERT INTO {table} ({key}, words) VALUES (?, ?)", values)
    questions = bilingual_set().questions
    found = 0
    for question in questions:
        hits = rank(connection, _INDEX, query_of(question.text), scopes=[_SCOPE], limit=HITS).hits
        found += question.expected + 1 in [hit.id for hit in hits]
    return found / len(questions)
