"""PostgreSQL ends a transaction that its process has abandoned, whatever statement came last."""

import time
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import Connection, func, insert, select, text
from sqlalchemy.exc import InternalError

from luxx.infra.store.engine import Store, open_engine, resolve_url
from store.databases import metadata, new_database, notes

SILENCE_SECONDS = 0.3
WAIT_SECONDS = 10.0

numbers = count()


@pytest.mark.parametrize("rows", [1, 3])
def test_an_idle_transaction_is_ended_and_undone(postgresql: str, tmp_path: Path, rows: int) -> None:
    url = resolve_url(new_database(postgresql, f"silence{next(numbers)}"), tmp_path)
    engine, other = open_engine(url, idle_timeout_seconds=SILENCE_SECONDS), open_engine(url)
    try:
        metadata.create_all(other)
        connection = engine.connect()
        connection.execute(insert(notes), [{"text": f"note {number}"} for number in range(rows)])
        pid = connection.scalar(select(func.pg_backend_pid()))
        # The statements at the end of a run's append, once more.
        connection.execute(insert(notes), [{"text": f"more {number}"} for number in range(rows)])
        until = time.monotonic() + WAIT_SECONDS
        with other.connect().execution_options(isolation_level="AUTOCOMMIT") as watching:
            # Single statements would use a pipeline, after which PostgreSQL does not always count idle time.
            asked = watching.scalar(text("SELECT query FROM pg_stat_activity WHERE pid = :pid"), {"pid": pid})
            assert str(asked).count("$") >= rows
            alive = select(func.count()).select_from(func.pg_stat_get_activity(pid))
            while watching.scalar(alive):
                assert time.monotonic() < until, "it may be silent for ever"
                time.sleep(0.02)
            assert watching.scalar(select(func.count()).select_from(notes)) == 0
        with pytest.raises(InternalError):
            connection.execute(insert(notes), {"text": "too late"})
        connection.close()
    finally:
        engine.dispose()
        other.dispose()


def test_a_read_that_lost_its_connection_is_repeated(postgresql: str, tmp_path: Path) -> None:
    url = resolve_url(new_database(postgresql, f"silence{next(numbers)}"), tmp_path)
    store = Store(open_engine(url, idle_timeout_seconds=SILENCE_SECONDS))
    times: list[int] = []

    def work(connection: Connection) -> int:
        times.append(connection.scalar(select(func.pg_backend_pid())) or 0)
        if len(times) == 1:
            time.sleep(3 * SILENCE_SECONDS)
        return connection.scalar(select(7)) or 0

    try:
        assert store.read_rows_now(work) == 7
        assert len(times) == len(set(times)) == 2
    finally:
        store.close()
