"""The row of recall: what memory has for a text among 10,000 own facts, by words, graph and vectors, against
FTS5, numpy and one statement by hand on the same database.
"""

import contextlib
import random
import sqlite3
import struct
import tempfile
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import insert
from sqlalchemy.engine import make_url

from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.models import Tenant, User
from luxx.features.memory.entities import NewEntity
from luxx.features.memory.facts import Author, FactWriter
from luxx.features.memory.retrieval import RecallQuery, recall
from luxx.features.memory.scopes import USER_SCOPE, Scopes, stored_scope, visible_scopes
from luxx.features.memory.vectors.arm import Asked, VectorArm
from luxx.features.memory.vectors.models import EmbeddingModelRow, EmbeddingRow
from luxx.features.memory.vectors.search import numpy
from luxx.features.memory.vectors.source import VectorModel
from luxx.features.memory.views import NewFact
from luxx.infra.clock import utc_now
from luxx.infra.config.schema import MemoryConfig
from luxx.infra.store.engine import Store, open_engine
from luxx.infra.store.search_words import stems_of, words_of
from luxx.infra.store.upgrade import upgrade_database
from luxx.tools.core import CommandPermission
from tests.bench.figures import Figures
from tests.bench.upstream import Upstream

FACTS, PEOPLE, DIMENSIONS = 10_000, 1_000, 384
WORDS = [
    f"{first}{second}{third}"
    for first in "bdfgklmnprst"
    for second in "aeiou"
    for third in (
        "rin",
        "tal",
        "mos",
        "ken",
        "vul",
        "das",
        "pit",
        "lor",
        "nex",
        "gam",
        "fid",
        "sul",
        "wen",
        "jot",
    )
]
QUERIES = 100
ADMIN = Caller(
    user_id=1, tenant_id=1, username="admin", permission_level=CommandPermission.ADMIN, sign_in_id="bench"
)
MATCH = """
SELECT t.fact_id FROM search_index_memory JOIN memory_texts t ON t.id = search_index_memory.rowid
WHERE search_index_memory MATCH ? ORDER BY bm25(search_index_memory) LIMIT 50
"""
AROUND = """
SELECT f.id, f.text FROM entities e JOIN mentions m ON m.entity_id = e.id JOIN facts f ON f.id = m.fact_id
WHERE e.scope_id = ? AND e.folded = ? LIMIT 50
"""


async def recall_row(_upstream: Upstream, figures: Figures, rounds: int) -> AsyncIterator[None]:
    """CPU of one recall."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="luxx-bench-recall-")))
        url = make_url(f"sqlite:///{folder}/recall.db")
        store = stack.enter_context(contextlib.closing(Store(open_engine(url))))
        upgrade_database(store.engine)
        scope_id, model_id = store.write_now(lambda session: _fill(session.connection()))
        database = stack.enter_context(contextlib.closing(sqlite3.connect(folder / "recall.db")))
        rows = database.execute("SELECT vector FROM embeddings ORDER BY id").fetchall()
        matrix = numpy().frombuffer(b"".join(row[0] for row in rows), dtype="<f2").reshape(-1, DIMENSIONS)
        vectors = matrix.astype(numpy().float32)
        arm = VectorArm(MemoryConfig())
        for number in range(rounds + 1):
            asked = [_question(random.Random(number * QUERIES + at)) for at in range(QUERIES)]
            floor = _by_hand(database, vectors, scope_id, asked)
            cost = store.read_rows_now(partial(_by_luxx, arm=arm, model_id=model_id, asked=asked))
            if number > 0:  # the first round reads the vectors
                figures.add("recall", "10,000 facts, FTS5, numpy and SQL by hand", floor, "ms")
                figures.add("recall", "10,000 facts, luxx, all arms", cost, "ms")
                figures.add("recall", "10,000 facts, luxx / by hand", cost / floor, "×", at_most=2)
                yield


def _question(random_: random.Random) -> tuple[str, str, list[float]]:
    """A text, the person that it names, and a vector."""
    person = f"Person{random_.randrange(PEOPLE)}"
    return f"What of {' '.join(random_.sample(WORDS, 5))} does {person} know?", person, _unit(random_)


def _unit(random_: random.Random) -> list[float]:
    values = numpy().array([random_.gauss(0, 1) for _ in range(DIMENSIONS)])
    return (values / numpy().linalg.norm(values)).tolist()


def _by_hand(database: sqlite3.Connection, vectors: Any, scope_id: int, asked: list[Any]) -> float:
    begin = time.process_time()
    for text, person, vector in asked:
        stems = " OR ".join(f'"{stem}"' for stem in stems_of(words_of(text)))
        database.execute(MATCH, (f'"fact={scope_id}" AND ({stems})',)).fetchall()
        cosines = vectors @ numpy().asarray(vector, dtype=numpy().float32)
        numpy().argpartition(cosines, len(cosines) - 50)[-50:]
        database.execute(AROUND, (scope_id, person.lower())).fetchall()
    return (time.process_time() - begin) / len(asked) * 1e3


def _by_luxx(connection: Any, arm: VectorArm, model_id: int, asked: list[Any]) -> float:
    model = VectorModel(id=model_id, provider_id=1, name="bench", floor=-1.0)
    config, now = MemoryConfig(), utc_now()
    begin = time.process_time()
    for text, _, vector in asked:
        scopes: Scopes = visible_scopes(connection, ADMIN)
        query = RecallQuery(text=text, now=now)
        found = arm.ranked(connection, scopes, query, Asked(model=model, vector=vector))
        recall(connection, scopes, query, config, found)
    return (time.process_time() - begin) / len(asked) * 1e3


def _fill(connection: Any) -> tuple[int, int]:
    """10,000 facts of the first user with vectors; returns the ids of the scope and of the model."""
    random_, now = random.Random(1), utc_now()
    connection.execute(insert(Tenant), {"id": 1, "name": "default", "is_default": True, "created_at": now})
    user = {
        "id": 1, "tenant_id": 1, "username": "admin", "username_key": "admin", "password_hash": "x",
        "role": "admin", "permission_level": 4, "created_at": now,
    }  # fmt: skip
    connection.execute(insert(User), user)
    scope_id, ids = _remember(connection, random_)
    connection.execute(insert(EmbeddingModelRow), {"id": 1, "provider_id": 1, "name": "bench"})
    rows = [
        {
            "model_id": 1, "scope_id": scope_id, "fact_id": id_,
            "vector": struct.pack(f"<{DIMENSIONS}e", *_unit(random_)),
        }
        for id_ in ids
    ]  # fmt: skip
    connection.execute(insert(EmbeddingRow), rows)
    return scope_id, 1


def remember_facts(url: str) -> None:
    """Stores 10,000 facts of the first user in the database of a server."""
    with contextlib.closing(Store(open_engine(make_url(url)))) as store:
        store.write_now(lambda session: _remember(session.connection(), random.Random(1)))


def question(random_: random.Random) -> str:
    """A text that fits some of the facts."""
    return _question(random_)[0]


def _remember(connection: Any, random_: random.Random) -> tuple[int, list[int]]:
    """Stores the facts; returns the ids of the scope and of the facts."""
    scope = stored_scope(connection, visible_scopes(connection, ADMIN), USER_SCOPE)
    assert scope.id is not None
    writer, now = FactWriter(), utc_now()
    ids = [
        writer.add(
            connection,
            scope,
            NewFact(
                text=f"Person{number % PEOPLE} knows {' '.join(random_.sample(WORDS, 8))}.",
                entities=[NewEntity(name=f"Person{number % PEOPLE}")],
            ),
            Author(user_id=1),
            now,
        )
        for number in range(FACTS)
    ]
    return scope.id, ids
