"""Group commit with many writers: no write is lost, no failure affects another write, and no writer
waits for ever.
"""

import asyncio
import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, insert, select, text
from sqlalchemy.exc import IntegrityError, OperationalError

from luxx.infra.store.engine import Store, open_engine, resolve_url
from store.databases import metadata, notes, parents, values

WRITERS, WRITES = 8, 60

pytestmark = pytest.mark.async_timeout(60)


def put(said: str, **more: Any) -> Any:
    """A unit of work that writes one note and returns its text."""

    def work(session: Any) -> str:
        session.execute(insert(notes).values(text=said, **more))
        return said

    return work


def all_notes(session: Any) -> list[str]:
    return values(session.execute(select(notes.c.text).order_by(notes.c.id)))


def count(session: Any) -> int:
    return int(session.execute(select(func.count()).select_from(notes)).scalar_one())


def test_eight_threads_lose_no_write(store: Store) -> None:
    def write(writer: int) -> list[str]:
        return [store.write_now(put(f"{writer}-{number}")) for number in range(WRITES)]

    with ThreadPoolExecutor(WRITERS) as threads:
        answered = [said for each in threads.map(write, range(WRITERS)) for said in each]
    stored = store.read_now(all_notes)
    assert sorted(stored) == sorted(answered)
    assert len(set(stored)) == WRITERS * WRITES
    for writer in range(WRITERS):
        own = [said for said in stored if said.startswith(f"{writer}-")]
        assert own == [f"{writer}-{number}" for number in range(WRITES)]


async def test_many_tasks_of_one_loop_lose_no_write_and_read_what_they_wrote(store: Store) -> None:
    async def one(number: int) -> None:
        said = await store.write(put(f"n{number}"))
        assert said == f"n{number}"
        stored = await store.read(
            lambda session: session.execute(select(notes.c.id).where(notes.c.text == said)).all()
        )
        assert len(stored) == 1

    await asyncio.gather(*(one(number) for number in range(200)))
    assert store.read_now(count) == 200


@pytest.mark.parametrize("others", ["write", "write_rows"])
async def test_a_failure_undoes_its_own_write_and_no_other(store: Store, others: str) -> None:
    """Writes that fail after their statement share commits with writes that succeed."""
    write_other = getattr(store, others)

    def fails(session: Any) -> None:
        session.execute(insert(notes).values(text="must not stay"))
        raise ValueError("as it is")

    jobs: list[Any] = []
    for number in range(40):
        jobs.append(store.write(put(f"good {number}")))
        jobs.append(write_other(fails))
        jobs.append(write_other(put("good 0") if number else put("first")))
    results = await asyncio.gather(*jobs, return_exceptions=True)
    stored = store.read_now(all_notes)
    assert "must not stay" not in stored
    assert sorted(stored) == sorted([f"good {number}" for number in range(40)] + ["first"])
    assert sum(isinstance(result, ValueError) for result in results) == 40
    assert sum(isinstance(result, IntegrityError) for result in results) == 39


async def test_an_error_that_ends_the_transaction_fails_all_writes_of_the_commit(tmp_path: Path) -> None:
    """A full disk has this effect: SQLite rolls back by itself, and the savepoint no longer exists."""
    engine = open_engine(resolve_url("sqlite:///t.db", tmp_path))
    metadata.create_all(engine)
    store = Store(engine)
    begun, blocked = threading.Event(), threading.Event()

    def waits(_connection: Any) -> None:
        begun.set()
        blocked.wait(10)

    def ends_all(connection: Any) -> None:
        connection.exec_driver_sql("ROLLBACK")
        raise OperationalError("INSERT", {}, OSError("database or disk is full"))

    try:
        first = asyncio.create_task(store.write_rows(waits))
        assert await asyncio.to_thread(begun.wait, 10)  # So the writes below are queued together.
        rest = [store.write_rows(each) for each in (put("before"), ends_all, put("after"))]
        jobs = [asyncio.create_task(each) for each in rest]
        await asyncio.sleep(0.05)
        blocked.set()
        first_result, *other_results = await asyncio.gather(first, *jobs, return_exceptions=True)
        assert first_result is None
        assert [type(each) for each in other_results] == [OperationalError] * 3
        assert store.read_now(count) == 0
        store.write_now(put("later"))
        assert store.read_now(all_notes) == ["later"]
    finally:
        store.close()


async def test_a_read_cannot_write_on_sqlite(store: Store) -> None:
    if store.is_sqlite:
        with pytest.raises(OperationalError, match="readonly"):
            store.read_now(put("never"))
        with pytest.raises(OperationalError, match="readonly"):
            await store.read_rows(put("never"))
    store.write_rows_now(put("now"))
    assert (await store.read_rows(all_notes)) == ["now"]


def test_the_store_works_after_a_failed_statement(store: Store) -> None:
    for _ in range(3):
        with pytest.raises(Exception, match="no_such_table"):
            store.write_now(lambda session: session.execute(text("INSERT INTO no_such_table VALUES (1)")))
        with pytest.raises(Exception, match="no_such_table"):
            store.read_now(lambda session: session.execute(text("SELECT * FROM no_such_table")))
    store.write_now(put("after"))
    assert store.read_now(all_notes) == ["after"]


async def test_a_cancelled_caller_does_not_stop_its_write_or_others(store: Store) -> None:
    begun, may_go_on = threading.Event(), threading.Event()

    def slow(session: Any) -> None:
        begun.set()
        assert may_go_on.wait(20)
        session.execute(insert(notes).values(text="slow"))

    waiting = asyncio.create_task(store.write(slow))
    await asyncio.to_thread(begun.wait, 20)
    others = [asyncio.create_task(store.write(put(f"other {number}"))) for number in range(20)]
    await asyncio.sleep(0)
    waiting.cancel()
    for other in others[::2]:
        other.cancel()
    results = await asyncio.gather(waiting, *others[::2], return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    may_go_on.set()
    await asyncio.gather(*others[1::2])
    await store.write(put("last"))
    stored = set(store.read_now(all_notes))
    assert {"slow", "last"} | {f"other {number}" for number in range(1, 20, 2)} <= stored
    await store.write(put("alive"))


async def test_the_error_of_a_write_whose_caller_was_cancelled_is_not_reported_as_lost(store: Store) -> None:
    begun, may_go_on, problems = threading.Event(), threading.Event(), list[Any]()

    def failing(_session: Any) -> None:
        begun.set()
        assert may_go_on.wait(20)
        raise LookupError("the work failed")

    loop = asyncio.get_running_loop()
    handler = loop.get_exception_handler()
    loop.set_exception_handler(lambda _loop, context: problems.append(context))
    try:
        waiting = asyncio.create_task(store.write(failing))
        await asyncio.to_thread(begun.wait, 20)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        may_go_on.set()
        await store.write(put("next"))
        await asyncio.sleep(0)
        gc.collect()
    finally:
        loop.set_exception_handler(handler)
    assert problems == []


def test_a_closed_event_loop_does_not_block_other_writers(store: Store) -> None:
    """The write is committed all the same, together with another one."""
    blocked, may_go = threading.Event(), threading.Event()

    def hold(_session: Any) -> None:
        blocked.set()
        may_go.wait(30)

    async def leave() -> None:
        asyncio.create_task(store.write(put("of the loop")))  # noqa: RUF006 - nobody is there for its answer
        await asyncio.sleep(0)

    with ThreadPoolExecutor(2) as threads:
        first_result = threads.submit(store.write_now, hold)
        assert blocked.wait(30)
        asyncio.run(leave())
        other = threads.submit(store.write_now, put("of a thread"))
        may_go.set()
        first_result.result(30)
        assert other.result(30) == "of a thread"
    deadline = time.monotonic() + 30  # on PostgreSQL each write has a connection and commits on its own
    while len(store.read_now(all_notes)) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert sorted(store.read_now(all_notes)) == ["of a thread", "of the loop"]


async def test_close_waits_for_queued_writes_and_refuses_later_ones(
    database_url: str, tmp_path: Path
) -> None:
    engine = open_engine(resolve_url(database_url, tmp_path))
    metadata.create_all(engine)
    store = Store(engine)

    writes = [asyncio.create_task(store.write(put(f"w{number}"))) for number in range(100)]
    await asyncio.sleep(0)
    await asyncio.to_thread(store.close)
    await asyncio.gather(*writes)
    with pytest.raises(RuntimeError):
        await store.write(put("too late"))
    again = Store(open_engine(resolve_url(database_url, tmp_path)))
    assert again.read_now(count) == 100
    again.close()


def test_a_reader_sees_whole_transactions_only(store: Store) -> None:
    def pair(session: Any) -> None:
        session.execute(
            insert(notes).values(text=f"a{session.execute(select(func.count(notes.c.id))).scalar()}")
        )
        session.execute(
            insert(notes).values(text=f"b{session.execute(select(func.count(notes.c.id))).scalar()}")
        )

    stop = threading.Event()
    odd: list[int] = []

    def read() -> None:
        while not stop.is_set():
            rows = store.read_now(count)
            if rows % 2:
                odd.append(rows)

    with ThreadPoolExecutor(2) as threads:
        reading = [threads.submit(read) for _ in range(2)]
        try:
            for _ in range(100):
                store.write_now(pair)
        finally:
            stop.set()
        for each in reading:
            each.result(20)
    assert odd == []


def test_foreign_keys_hold_and_cascade(store: Store) -> None:
    with pytest.raises(IntegrityError):
        store.write_now(put("orphan", parent_id=99))
    store.write_now(lambda session: session.execute(insert(parents).values(id=1)) and None)
    store.write_now(put("child", parent_id=1))
    store.write_now(lambda session: session.execute(parents.delete()) and None)
    assert store.read_now(count) == 0


def test_sqlite_is_configured_for_durability(tmp_path: Path) -> None:
    store = Store(open_engine(resolve_url("sqlite:///./t.db", tmp_path)))

    def pragma(name: str) -> Any:
        def ask(session: Any) -> Any:
            return session.execute(text(f"PRAGMA {name}")).scalar_one()

        answers = {store.read_now(ask), store.write_now(ask)}
        assert len(answers) == 1
        return answers.pop()

    assert pragma("journal_mode") == "wal"
    assert pragma("synchronous") == 2
    assert pragma("foreign_keys") == 1
    store.close()


async def test_a_database_that_cannot_be_opened_is_an_error_not_an_endless_wait(tmp_path: Path) -> None:
    (tmp_path / "t.db").mkdir()
    store = Store(open_engine(resolve_url("sqlite:///./t.db", tmp_path)))

    async with asyncio.timeout(10):
        for _ in range(2):
            with pytest.raises(OperationalError):
                await store.write(put("nowhere"))
            with pytest.raises(OperationalError):
                await store.read(count)
    store.close()


async def test_nested_parts_are_undone_independently_in_any_order(store: Store) -> None:
    def work(session: Any) -> None:
        session.execute(insert(notes).values(text="outside"))
        first = session.begin_nested()
        session.execute(insert(notes).values(text="undone first"))
        first.rollback()
        kept_part = session.begin_nested()
        session.execute(insert(notes).values(text="kept"))
        within = session.begin_nested()
        session.execute(insert(notes).values(text="undone within"))
        within.rollback()
        again = session.begin_nested()
        session.execute(insert(notes).values(text="kept within"))
        again.commit()
        kept_part.commit()
        around = session.begin_nested()
        session.execute(insert(notes).values(text="undone around"))
        session.begin_nested()
        session.execute(insert(notes).values(text="undone with what is around it"))
        around.rollback()
        session.execute(insert(notes).values(text="last"))

    # Together, so that each runs in a nested part of a transaction.
    await asyncio.gather(*(store.write(put(f"other {number}")) for number in range(20)), store.write(work))
    stored = [said for said in store.read_now(all_notes) if not said.startswith("other")]
    assert stored == ["outside", "kept", "kept within", "last"]


async def test_a_full_database_during_a_group_commit_is_a_database_error(tmp_path: Path) -> None:
    """SQLite then ends the transaction itself, and with it the savepoint of the failed write."""
    store = Store(open_engine(resolve_url("sqlite:///./full.db", tmp_path)))
    try:
        store.write_rows_now(metadata.create_all)
        store.write_rows_now(lambda rows: rows.execute(text("PRAGMA cache_size = 1")))
        pages = store.write_rows_now(lambda rows: int(rows.execute(text("PRAGMA page_count")).scalar_one()))
        # The limit belongs to the connection, which is replaced after the failure.
        store.write_rows_now(lambda rows: rows.execute(text(f"PRAGMA max_page_count = {pages + 8}")))

        outcomes = await asyncio.gather(
            *(store.write(put(f"{number} " + "x" * 9000)) for number in range(8)),
            return_exceptions=True,
        )
        assert {type(outcome) for outcome in outcomes} <= {str, OperationalError}
        assert any(isinstance(outcome, OperationalError) for outcome in outcomes)
        assert store.read_now(count) == sum(isinstance(outcome, str) for outcome in outcomes)
        assert store.write_now(put("after")) == "after"
    finally:
        store.close()
