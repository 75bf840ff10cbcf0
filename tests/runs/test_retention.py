"""Retention: logs of runs that ended long ago are deleted in small batches, and their readers get
an error.
"""

import asyncio
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from api.client import ApiClient
from api.server_process import ServerProcess
from migrated_databases import make_ready
from sample_user import add_user
from sqlalchemy import func, insert, select
from sqlalchemy.orm import Session
from store.conftest import database_url

from luxx.errors import LuxxError
from luxx.infra.clock import id_at, new_id, utc_now
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.runs.log.failure import fail_run
from luxx.runs.log.page_sources import RunSourceRow
from luxx.runs.log.retention import DISCARD_SECONDS, EVENTS_AT_ONCE, delete_old_logs, discard_old_calls
from luxx.runs.models import RunEventRow, RunResultRow, RunRow, ToolCallRow
from luxx.runs.turn.chat import fail_chat
from luxx.wire.run import RunKind

__all__ = ["database_url"]

SOON_SECONDS = 20.0
LOGGED = b'{"run_id":"x","timestamp":"2026-01-01T00:00:00.000Z","type":"warning","message":"old","code":"x"}'


@pytest.fixture
def store(database_url: str, tmp_path: Path) -> Iterator[Store]:
    engine = open_engine(resolve_url(database_url, tmp_path))
    make_ready(engine)
    store = Store(engine)
    store.write_now(add_user)
    yield store
    store.close()


def days_ago(days: float) -> datetime:
    return utc_now() - timedelta(days=days)


def add_run(
    session: Session,
    *,
    began: float,
    ended: float | None,
    events: int = 3,
    user_id: int = 1,
    subject: str = "s",
    is_call: bool = False,
) -> str:
    """A run that began and ended this many days ago, with a log; or a call of `/v1`."""
    run_id = id_at(int(days_ago(began).timestamp() * 1000), 0)
    session.execute(insert(RunRow).values(
        id=run_id, user_id=user_id, tenant_id=1, kind="chat",
        subject_id=run_id if is_call else subject, request='{"given":"old"}' if is_call else "{}",
        last_seq=events, fence=1, status="running" if ended is None else "completed",
        created_at=days_ago(began), finished_at=None if ended is None else days_ago(ended),
    ))  # fmt: skip
    rows = [{"run_id": run_id, "seq": seq, "type": "warning", "data": LOGGED} for seq in range(1, events + 1)]
    session.execute(insert(RunEventRow), rows)
    session.execute(insert(RunResultRow).values(run_id=run_id, call_id="c", output="whole"))
    source = {"number": 1, "subject_id": subject, "address": "https://a.example/", "title": "", "text": b"t"}
    session.execute(insert(RunSourceRow).values(run_id=run_id, **source))
    session.execute(
        insert(ToolCallRow).values(
            run_id=run_id, step_index=0, tool="t", seq=1, result_seq=None, status="done"
        )
    )
    return run_id


def counts_by_run(store: Store) -> dict[str, tuple[int, ...]]:
    """The number of events, results, tool calls and sources of each run that exists."""

    def work(session: Session) -> dict[str, tuple[int, ...]]:
        tables: list[Any] = [RunEventRow, RunResultRow, ToolCallRow, RunSourceRow]
        return {
            run_id: tuple(
                session.scalar(select(func.count()).select_from(table).where(table.run_id == run_id))
                for table in tables
            )
            for run_id in session.scalars(select(RunRow.id))
        }  # type: ignore[return-value]

    return store.read_now(work)


async def test_logs_of_runs_that_ended_before_the_limit_are_deleted_and_no_others(store: Store) -> None:
    def fill(session: Session) -> list[str]:
        return [
            add_run(session, began=100, ended=91),
            add_run(session, began=99, ended=1),
            add_run(session, began=98, ended=None),
            add_run(session, began=97, ended=90.5, events=2 * EVENTS_AT_ONCE),
            add_run(session, began=96, ended=95, events=2 * EVENTS_AT_ONCE + 1),
            add_run(session, began=1, ended=0.5),
        ]

    ids = store.write_now(fill)
    before = counts_by_run(store)
    assert (await delete_old_logs(store, utc_now(), days=90)) == 3
    expired_ids = {ids[0], ids[3], ids[4]}
    assert counts_by_run(store) == {id_: (0, 0, 0, 0) if id_ in expired_ids else before[id_] for id_ in ids}
    assert (await delete_old_logs(store, utc_now(), days=90)) == 0


async def test_other_writes_continue_while_a_large_log_is_deleted(store: Store) -> None:
    store.write_now(lambda session: add_run(session, began=100, ended=99, events=20 * EVENTS_AT_ONCE))

    forgetting = asyncio.create_task(delete_old_logs(store, utc_now(), days=90))
    written = 0
    while not forgetting.done():
        written += 1
        await store.write(lambda session, began=written / 1000: add_run(session, began=began, ended=0))
    assert await forgetting == 1
    assert written >= 5


@pytest.mark.heavy
def test_a_read_of_a_deleted_log_gets_an_error(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server, ApiClient(server, None).register("ann") as ann:
        user_id = ann.user["id"]
        conversation_id = ann.good("POST", "/conversations", json={})["id"]
        server.stop()
    store = Store(open_engine(resolve_url("sqlite:///luxx.db", server.data_dir)))

    def fill(session: Session) -> tuple[str, str]:
        given = {"user_id": user_id, "subject": conversation_id}
        return add_run(session, began=100, ended=99, **given), add_run(session, began=2, ended=1, **given)

    old, new = store.write_now(fill)
    store.close()
    with ServerProcess(tmp_path) as server, ApiClient(server, None, ann.token) as ann:
        await_gone(ann, old)
        for more in ("", "?from_sequence=2", "?last_event_id=1"):
            for accept in ("application/json", "text/event-stream"):
                response = ann.ask("GET", f"/runs/{old}/events{more}", headers={"accept": accept})
                assert (response.status_code, response.json()["detail"]["kind"]) == (410, "log_deleted"), more
        assert ann.good("GET", f"/runs/{old}")["status"] == "completed"
        assert ann.bad("GET", f"/runs/{old}/results/c", 410)["detail"]["kind"] == "log_deleted"
        assert ann.bad("GET", f"/runs/{new_id()}/events", 404)["detail"]["kind"] == "run_not_found"
        remaining_events = ann.good("GET", f"/conversations/{conversation_id}/events")["events"]
        assert {event["seq"] for event in remaining_events} == {1, 2, 3}
        assert len(remaining_events) == 3
        response = ann.http.get(f"/runs/{new}/events", headers={"accept": "application/json"})
        assert len(response.json()["data"]["events"]) == 3
        assert ann.good("GET", f"/runs/{new}/results/c")["output"] == "whole"


def await_gone(person: ApiClient, run_id: str) -> None:
    """Waits for the background job of a server that has just started."""
    deadline = time.monotonic() + SOON_SECONDS
    path = f"/runs/{run_id}/events"
    while person.ask("GET", path, headers={"accept": "application/json"}).status_code != 410:
        assert time.monotonic() < deadline, "the old log is still there"
        time.sleep(0.05)


def content_of(store: Store) -> dict[str, tuple[str, int]]:
    """The request and the stored bytes of each run."""
    rows = store.read_now(
        lambda session: session.execute(select(RunRow.id, RunRow.request, RunRow.stored_bytes)).all()
    )
    return {run_id: (request, size) for run_id, request, size in rows}


async def test_call_that_ended_without_its_client_is_discarded(store: Store) -> None:
    def work(session: Session) -> tuple[str, str, str, str]:
        just_ended = add_run(session, began=0.1, ended=DISCARD_SECONDS / 2 / 86400, is_call=True)
        running = add_run(session, began=0.2, ended=None, is_call=True)
        subagent = add_run(
            session,
            began=0.3,
            ended=0.2,
            subject=(call := add_run(session, began=0.4, ended=0.2, is_call=True)),
        )
        return just_ended, running, call, subagent

    just_ended, running, call, subagent = store.write_now(work)
    await discard_old_calls(store, utc_now())
    whole, nothing = (3, 1, 1, 1), (0, 0, 0, 0)
    assert counts_by_run(store) == {just_ended: whole, running: whole, call: nothing, subagent: nothing}
    assert content_of(store)[call] == content_of(store)[subagent] == ("{}", 0)


async def test_call_that_cannot_be_driven_fails_and_is_discarded(store: Store) -> None:
    call = store.write_now(lambda session: add_run(session, began=0.1, ended=None, is_call=True))
    await fail_run(store, {RunKind.CHAT: fail_chat}, call, 1, LuxxError("lost", kind="given_up"))
    assert counts_by_run(store) == {call: (2, 0, 0, 0)}  # An error and the end.
    assert content_of(store)[call][0] == "{}"
