"""Questions about dialogues in English and Chinese, with the message that answers each: how many are answered
by the first ten facts that are found by words.

`questions/` has 30 dialogues with ten questions each, written before any was searched. Those of `seen.txt`
may be used to improve the search; those of `unseen.txt` are for this test only.
"""

import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import msgspec
import pytest
from provider_service.services import ANN
from sqlalchemy import Connection
from sqlalchemy.orm import Session

from luxx.features.memory.facts import Author, FactWriter
from luxx.features.memory.retrieval import RecallQuery, recall
from luxx.features.memory.scopes import USER_SCOPE, stored_scope, visible_scopes
from luxx.features.memory.views import NewFact
from luxx.infra.clock import utc_now
from luxx.infra.config.schema import MemoryConfig
from luxx.infra.store.engine import Store, open_engine, resolve_url
from store.test_memory import fill

QUESTIONS = Path(__file__).parent / "questions"
TITLE = re.compile(r"# (\d{4}-\d{2}-\d{2}) (.+)")
QUESTION = re.compile(r"\? (.+) => (\d+)")
FIRST = 10

FLOORS = {("seen", "en"): 0.67, ("seen", "zh"): 0.75, ("unseen", "en"): 0.69, ("unseen", "zh"): 0.75}
"""The share of questions that are answered at least, by file and language; measured on SQLite: 0.69, 0.80,
0.71, 0.77, and on PostgreSQL 0.69, 0.80, 0.71, 0.77."""


class Question(msgspec.Struct, frozen=True):
    """`evidence` is the number of the fact that answers it."""

    text: str
    evidence: int
    language: str


class Dialogues(msgspec.Struct):
    messages: list[tuple[datetime, str]] = []
    questions: list[Question] = []


def read_dialogues(file: str) -> Dialogues:
    found, first, day = Dialogues(), 0, datetime.min
    for line in (QUESTIONS / f"{file}.txt").read_text("utf-8").splitlines():
        if title := TITLE.fullmatch(line):
            first, day = len(found.messages), datetime.fromisoformat(f"{title[1]}T00:00:00+00:00")
        elif question := QUESTION.fullmatch(line):
            evidence = first + int(question[2]) - 1
            language = "zh" if re.search("[\u4e00-\u9fff]", question[1]) else "en"
            found.questions.append(Question(question[1], evidence, language))
        elif line:
            found.messages.append((day, line))
    return found


@pytest.fixture
def store(ready_url: str, tmp_path: Path) -> Iterator[Store]:
    store = Store(open_engine(resolve_url(ready_url, tmp_path)))
    with Session(store.engine) as session, session.begin():
        fill(session)
    yield store
    store.close()


def remember(connection: Connection, messages: list[tuple[datetime, str]]) -> list[int]:
    """Stores each message as a fact of Ann; returns their rows."""
    scope, writer = stored_scope(connection, visible_scopes(connection, ANN), USER_SCOPE), FactWriter()
    author, now = Author(user_id=ANN.user_id), utc_now()
    return [
        writer.add(connection, scope, NewFact(text=text, valid_at=day), author, now) for day, text in messages
    ]


def test_questions_are_answered_by_the_first_facts_that_have_their_words(store: Store) -> None:
    shares: dict[tuple[str, str], list[bool]] = {}
    dialogues = {file: read_dialogues(file) for file in ("seen", "unseen")}
    assert sum(len(each.questions) for each in dialogues.values()) >= 300
    rows = {
        file: store.write_rows_now(lambda connection, each=each: remember(connection, each.messages))
        for file, each in dialogues.items()
    }

    def ask(connection: Connection) -> None:
        scopes, config, now = visible_scopes(connection, ANN), MemoryConfig(), utc_now()
        for file, each in dialogues.items():
            for question in each.questions:
                query = RecallQuery(text=question.text, now=now, limit=FIRST)
                found = [item.row_id for item in recall(connection, scopes, query, config)]
                is_found = rows[file][question.evidence] in found
                shares.setdefault((file, question.language), []).append(is_found)

    store.read_rows_now(ask)
    found = {part: sum(hits) / len(hits) for part, hits in shares.items()}
    assert not {part: share for part, share in found.items() if share < FLOORS[part]}
