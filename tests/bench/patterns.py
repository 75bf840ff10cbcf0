"""The row of patterns: which of 10,000 own patterns fits a text, against one statement by hand on the same
database.
"""

import contextlib
import random
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator
from functools import cache, partial
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, insert
from sqlalchemy.engine import make_url

from luxx.domain.accounts.models import Tenant, User
from luxx.features.patterns.models import PatternRow, PatternWordRow
from luxx.features.patterns.rows import WORD_COUNTS, find_similar
from luxx.features.patterns.slots import PatternSignature, signature_text
from luxx.features.patterns.vocabulary import vocabulary
from luxx.infra.clock import utc_now
from luxx.infra.store.engine import Store, open_engine
from luxx.infra.store.upgrade import upgrade_database
from luxx.wire.patterns import PatternStatus
from tests.bench.figures import Figures
from tests.bench.upstream import Upstream

PATTERNS, LOOK_UPS = 10_000, 200
LEAST_WORDS, MOST_WORDS = 3, 9
SLOTS = ("email", "file", "name", "number")
BY_HAND = """
SELECT p.id, p.signature, p.success_rate, p.used_at
FROM pattern_words w JOIN patterns p ON p.id = w.pattern_id
WHERE w.owner IN ('u1', 't1') AND w.word IN ({}) AND p.status = 'active'
GROUP BY p.id ORDER BY count(*) DESC LIMIT 50
"""


async def patterns_row(_upstream: Upstream, figures: Figures, rounds: int) -> AsyncIterator[None]:
    """CPU of one look-up, on average and at the 95th percentile."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="luxx-bench-patterns-")))
        url = make_url(f"sqlite:///{folder}/patterns.db")
        store = stack.enter_context(contextlib.closing(Store(open_engine(url))))
        upgrade_database(store.engine)
        store.write_now(lambda session: _fill(session.connection()))
        database = stack.enter_context(contextlib.closing(sqlite3.connect(folder / "patterns.db")))
        for number in range(rounds + 1):
            random_ = random.Random(number)
            asked = [_signature(random_) for _ in range(LOOK_UPS)]
            floor = _by_hand(database, asked)
            cost, slow = store.read_rows_now(partial(_by_luxx, asked=asked))
            _, slow_anew = store.read_rows_now(partial(_by_luxx, asked=asked, counts_anew=True))
            if number > 0:  # the first round fills the caches
                figures.add("patterns", "10,000 patterns, one statement by hand", floor, "ms")
                figures.add("patterns", "10,000 patterns, luxx", cost, "ms")
                figures.add("patterns", "10,000 patterns, luxx / by hand", cost / floor, "×", at_most=4)
                figures.add("patterns", "10,000 patterns, luxx, 95 %", slow, "ms", at_most=20)
                anew = "10,000 patterns, luxx, words counted anew, 95 %"
                figures.add("patterns", anew, slow_anew, "ms", at_most=20)
                yield


def _by_hand(database: sqlite3.Connection, asked: list[PatternSignature]) -> float:
    begin = time.process_time()
    for one in asked:
        database.execute(BY_HAND.format(", ".join("?" * len(one.words))), one.words).fetchall()
    return (time.process_time() - begin) / len(asked) * 1e3


def _by_luxx(
    connection: Connection, asked: list[PatternSignature], *, counts_anew: bool = False
) -> tuple[float, float]:
    """The mean and the 95th percentile. `counts_anew`: as for the first message in a minute."""
    now, times = utc_now(), list[float]()
    begin = time.process_time()
    for one in asked:
        if counts_anew:
            WORD_COUNTS.forget(connection, 1, 1)
        started = time.process_time()
        find_similar(connection, one, 1, 1, [PatternStatus.ACTIVE], now)
        times.append(time.process_time() - started)
    cost = (time.process_time() - begin) / len(asked) * 1e3
    return cost, sorted(times)[len(times) * 95 // 100] * 1e3


@cache
def _terms() -> list[str]:
    return sorted(set(vocabulary().forms.values()) - {""})


@cache
def _weights() -> list[float]:
    return [1 / (rank + 10) for rank in range(len(_terms()))]


def _signature(random_: random.Random) -> PatternSignature:
    """Words as requests have them: a few are in many requests, most in few."""
    terms = _terms()
    count = random_.randint(LEAST_WORDS, MOST_WORDS)
    words = set(random_.choices(terms, weights=_weights(), k=count))
    return PatternSignature(words=tuple(sorted(words)), slots=tuple(sorted(random_.sample(SLOTS, 2))))


def _fill(connection: Connection) -> None:
    """10,000 active patterns of the first user."""
    random_, now = random.Random(1), utc_now()
    connection.execute(insert(Tenant), {"id": 1, "name": "default", "is_default": True, "created_at": now})
    user = {
        "id": 1, "tenant_id": 1, "username": "admin", "username_key": "admin", "password_hash": "x",
        "role": "admin", "permission_level": 4, "created_at": now,
    }  # fmt: skip
    connection.execute(insert(User), user)
    signatures = [_signature(random_) for _ in range(PATTERNS)]
    times = {"used_at": now, "created_at": now, "updated_at": now}
    rows: list[dict[str, Any]] = [
        {
            "id": f"pattern-{number}", "user_id": 1, "tenant_id": 1, "name": f"Pattern {number}",
            "description": "", "signature": signature_text(signature), "status": PatternStatus.ACTIVE.value,
            "is_shared": False, "steps": "[]", "tool_chains": "[]", **times,
        }
        for number, signature in enumerate(signatures)
    ]  # fmt: skip
    connection.execute(insert(PatternRow), rows)
    words = [
        {"pattern_id": f"pattern-{number}", "word": word, "owner": "u1"}
        for number, signature in enumerate(signatures)
        for word in signature.words
    ]
    connection.execute(insert(PatternWordRow), words)
