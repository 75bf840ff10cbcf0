"""The row of memory: storing a fact durably, in an empty memory and in one of 99,000 facts."""

import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, insert, select

from luxx.features.memory.facts import FactWriter
from luxx.features.memory.lexical import index_facts
from luxx.features.memory.models import FactRow, FactSourceRow, MemoryScopeRow
from luxx.features.memory.service import MemoryService
from luxx.features.memory.views import NewFact
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.infra.store.migrate import migrate
from luxx.infra.store.tables import table_of
from tests.bench.figures import Figures
from tests.bench.graph import ADMIN
from tests.bench.upstream import Upstream
from tests.sample_user import add_user
from tests.seeding import TextGenerator

FILLED = 90_000
"""Facts of the large memory: the rounds add to it, and a scope has at most 100,000."""

STORED = 300
AT_ONCE = 1_000
NAMES = 500
"""Different people that the facts are about."""

_facts, _sources = table_of(FactRow), table_of(FactSourceRow)


async def memory_row(_upstream: Upstream, figures: Figures, rounds: int) -> AsyncIterator[None]:
    """CPU time of storing one fact with subject and object, with its words, names, source and commit."""
    talk = TextGenerator()
    with opened() as empty, opened() as large:
        await store_facts(large, talk)
        large[0].write_rows_now(lambda connection: _fill(connection, talk))
        for number in range(rounds + 1):
            costs = [await store_facts(each, talk) for each in (empty, large)]
            if number > 0:  # The first round warms up.
                figures.add("memory", "store a fact in an empty memory", costs[0], "ms", at_most=2)
                figures.add("memory", f"store a fact beside {FILLED:,}", costs[1], "ms", at_most=2)
                yield


@contextlib.contextmanager
def opened() -> Iterator[tuple[Store, MemoryService]]:
    """A database with one user, and the service of memory."""
    with tempfile.TemporaryDirectory(prefix="luxx-bench-memory-") as folder:
        engine = open_engine(resolve_url("sqlite:///memory.db", Path(folder)))
        migrate(engine)
        with contextlib.closing(Store(engine)) as store:
            store.write_now(add_user)
            yield store, MemoryService(store, FactWriter(), Path(folder))


async def store_facts(opened: tuple[Store, MemoryService], talk: TextGenerator) -> float:
    """Stores some facts one after another; returns the CPU milliseconds of one."""
    new = [
        NewFact(
            text=talk.words(12), subject=f"Person {number % NAMES}", predicate="knows",
            object=f"Person {number * 7 % NAMES}",
        )
        for number in range(STORED)
    ]  # fmt: skip
    begin = time.process_time()
    for fact in new:
        await opened[1].create(ADMIN, fact)
    return (time.process_time() - begin) / STORED * 1e3


def _fill(connection: Connection, talk: TextGenerator) -> None:
    """Adds facts to the memory of the user, which has a scope and the people."""
    scope_id = connection.execute(select(MemoryScopeRow.id)).scalar_one()
    now, last = utc_now(), connection.execute(select(_facts.c.id).order_by(_facts.c.id.desc())).scalar() or 0
    for start in range(last + 1, last + 1 + FILLED, AT_ONCE):
        ids = range(start, start + AT_ONCE)
        common: dict[str, Any] = {
            "scope_id": scope_id, "created_at": now, "category": "knowledge", "origin": "person",
            "user_id": ADMIN.user_id, "trusted": True, "pinned": False, "weight": 1.0,
        }  # fmt: skip
        rows = [{"id": id_, "uid": new_id(), "text": talk.words(12), **common} for id_ in ids]
        connection.execute(insert(_facts), rows)
        connection.execute(
            insert(_sources), [{"fact_id": id_, "kind": "person", "user_id": ADMIN.user_id} for id_ in ids]
        )
        index_facts(connection, ids)
