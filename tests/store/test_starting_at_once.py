"""Two servers that start on a new PostgreSQL database at the same time both start."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

from migrated_databases import new_ready_database
from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from luxx.domain.agents.document import shipped_documents, store_shipped_agents
from luxx.domain.agents.models import AgentRow
from luxx.infra.store.engine import Store, open_engine, resolve_url

SECONDS = 20.0
WAITING = text(
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


def store_agents(session: Session) -> None:
    store_shipped_agents(session, lambda session, agent, is_deleted: None)


def test_a_second_server_finds_the_agents_that_the_first_one_stores(postgresql: str, tmp_path: Path) -> None:
    url = resolve_url(new_ready_database(postgresql, "starting"), tmp_path)
    first, second, observer = (Store(open_engine(url)) for _ in range(3))
    has_stored, may_commit = Event(), Event()

    def store_slowly(session: Session) -> None:
        store_agents(session)
        has_stored.set()
        assert may_commit.wait(SECONDS)

    with ThreadPoolExecutor(2) as threads:
        slow = threads.submit(first.write_now, store_slowly)
        assert has_stored.wait(SECONDS)
        other = threads.submit(second.write_now, store_agents)
        until = time.monotonic() + SECONDS
        while not observer.write_now(lambda session: session.scalar(WAITING)):
            assert time.monotonic() < until
        may_commit.set()
        slow.result(SECONDS)
        other.result(SECONDS)
    count = select(func.count()).select_from(AgentRow)
    assert observer.write_now(lambda session: session.scalar(count)) == len(shipped_documents())
    for store in (first, second, observer):
        store.close()
