"""Search by relevance in a table of any texts, on both databases."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.infra.store.ranked_search import MOST_OF_WORD, WordIndex, rank
from luxx.infra.store.search_words import index_value, query_of

NOTES = WordIndex(table="notes", full_text="notes_words")
TABLES = {
    "sqlite": (
        "CREATE TABLE notes (id INTEGER PRIMARY KEY, words TEXT NOT NULL)",
        "CREATE VIRTUAL TABLE notes_words USING fts5(words, content='notes', content_rowid='id', "
        "tokenize=\"ascii tokenchars '='\")",
        "CREATE TRIGGER added AFTER INSERT ON notes BEGIN "
        "INSERT INTO notes_words (rowid, words) VALUES (new.id, new.words); END",
    ),
    "postgresql": (
        "CREATE TABLE notes (id serial PRIMARY KEY, words tsvector NOT NULL)",
        "CREATE INDEX notes_words ON notes USING gin (words)",
    ),
}
BILINGUAL: dict[str, Any] = json.loads((Path(__file__).parent / "bilingual.json").read_text())


@pytest.fixture
def notes(database_url: str, tmp_path: Path) -> Iterator[Store]:
    engine = open_engine(resolve_url(database_url, tmp_path))
    store = Store(engine)

    def make(session: Any) -> None:
        for statement in TABLES[engine.dialect.name]:
            session.connection().exec_driver_sql(statement)

    store.write_now(make)
    yield store
    store.close()


def add(store: Store, *texts: str | tuple[str, str], scope: str = "of=1") -> list[int]:
    """Stores texts, or texts with a context. Returns their ids."""

    def work(session: Any) -> list[int]:
        connection = session.connection()
        insert = text("INSERT INTO notes (words) VALUES (:words) RETURNING id")
        return [
            connection.scalar(
                insert, {"words": index_value(connection.dialect.name, [scope], own, context=context)}
            )
            for own, context in (each if isinstance(each, tuple) else (each, "") for each in texts)
        ]

    return store.write_now(work)


def found(store: Store, query: str, *scopes: str, limit: int = 100) -> list[int]:
    return store.read_now(
        lambda session: [
            hit.id
            for hit in rank(
                session.connection(), NOTES, query_of(query), scopes=scopes or ["of=1"], limit=limit
            ).hits
        ]
    )


def test_memories_in_two_languages_are_found_by_their_words(notes: Store) -> None:
    ids = add(notes, *(memory["text"] for memory in BILINGUAL["memories"]))
    places: list[int] = []
    for question in BILINGUAL["questions"]:
        first = found(notes, question["text"], limit=5)
        expected = ids[int(question["expected"])]
        places.append(first.index(expected) + 1 if expected in first else 6)
    assert sum(place == 1 for place in places) / len(places) >= 0.55
    assert sum(place <= 5 for place in places) / len(places) >= 0.58


def test_one_word_is_enough_and_rare_and_repeated_words_come_first(notes: Store) -> None:
    both, fewer, once, twice, long = add(
        notes,
        "a red kite",
        "a red car",
        "a kestrel nests",
        "kestrel, kestrel",
        "a kestrel, " + "".join(f"and {number} " for number in range(40)),
    )
    add(notes, *(f"red number {number}" for number in range(20)))
    assert found(notes, "the red kites")[0] == both
    assert fewer in found(notes, "the red kites")
    assert found(notes, "nesting kestrels and a lynx")[0] == once
    assert found(notes, "kestrel") == [twice, once, long]
    assert found(notes, "lynx") == found(notes, "...") == []


def test_the_form_of_an_english_word_does_not_matter_except_in_quotes_and_with_a_star(notes: Store) -> None:
    runs, running, run, runner = add(notes, "she runs home", "running late", "a run", "the runner")
    for query in ("running", "RUNS", "run"):
        assert set(found(notes, query)) == {runs, running, run}
    assert found(notes, '"runs"') == [runs]
    assert found(notes, '"running late" runs') == [running]
    assert set(found(notes, "runn*")) == {running, runner}
    assert set(found(notes, "run* late home")) == {runs, running, run, runner}
    assert found(notes, "run* late")[0] == running
    (phrase,) = add(notes, "深度学习")
    assert found(notes, "机器学习") == found(notes, "学") == found(notes, '"学习"') == [phrase]
    assert found(notes, '"机器学习"') == found(notes, "度习") == []


def test_words_of_the_context_find_a_text_after_those_that_have_them(notes: Store) -> None:
    context = "Where do the otters live?\n2026-11-27 November 11月"
    answer, other, question = add(
        notes, ("By the river", context), "Something else", "The otters moved to a house"
    )
    assert found(notes, "otter") == [question, answer]
    assert found(notes, "november") == found(notes, "11月") == [answer]
    assert found(notes, "otter river")[0] == answer
    assert found(notes, '"otters"') == [question]
    assert found(notes, "otters live*") == found(notes, '"river something"') == []
    assert other not in found(notes, "otter river november")


def test_other_scopes_are_neither_found_nor_change_the_order(notes: Store) -> None:
    rare, often = add(notes, "a gnu in town", "a yak in town")
    add(notes, *["another yak"] * 3)
    before = found(notes, "yak gnu")
    others = add(notes, *["a gnu, a gnu"] * 300, scope="of=2")
    assert found(notes, "yak gnu") == before
    assert before[0] == rare
    assert often in before
    assert set(found(notes, "gnu", "of=2", limit=1000)) == set(others)
    assert set(found(notes, "gnu", "of=1", "of=2", limit=1000)) == {rare, *others}
    assert found(notes, "gnu", "of=3") == []


def test_rare_words_are_found_among_thousands_of_common_ones(notes: Store) -> None:
    (wanted,) = add(notes, "common talk of an aardvark")
    add(notes, *["common talk"] * (MOST_OF_WORD + 100))
    assert found(notes, "common talk aardvark", limit=5)[0] == wanted
    ranking = notes.read_now(
        lambda session: rank(session.connection(), NOTES, query_of("common"), scopes=["of=1"], limit=5000)
    )
    assert (len(ranking.hits), ranking.has_more) == (MOST_OF_WORD, True)


def test_long_texts_with_many_stems_are_stored_and_found(notes: Store) -> None:
    letters = "abcdefghijklmnopqrst"
    words = [
        f"{letters[n % 20]}{letters[n // 20 % 20]}{letters[n // 400 % 20]}{letters[n // 8000]}"
        for n in range(16_000)
    ]
    (long,) = add(notes, (" ".join(f"{word}{'q' * 20}ings" for word in words), "context " * 1000))
    assert found(notes, f"{words[0]}{'q' * 20}ing") == [long]
