"""Invariants that hold after the faults, whatever happened to the processes."""

import asyncio
import sqlite3
import time
from collections import Counter
from pathlib import Path
from typing import Any

from scenarios.screen import Screen
from scenarios.scripts import PREFACE
from scenarios.tool_controller import ToolController
from sqlalchemy import TextClause, create_engine, text
from sqlalchemy.engine import make_url

from chaos.cluster import Cluster
from chaos.round_robin_client import RoundRobinClient
from chaos.users import ANSWER, Ending, SentMessage, Users, ending_of
from luxx.providers.scripted import ScriptedProvider

GAPS = text(
    "SELECT runs.id FROM runs LEFT JOIN run_events ON run_events.run_id = runs.id "
    "GROUP BY runs.id, runs.last_seq "
    "HAVING count(run_events.seq) <> runs.last_seq OR coalesce(max(run_events.seq), 0) <> runs.last_seq"
)
UNENDED = text(
    "SELECT id, status, phase, owner, fence, last_seq, is_cancelled FROM runs "
    "WHERE status NOT IN ('completed', 'failed', 'cancelled')"
)
PROCESSES = text("SELECT id, kind, pid, lease_until FROM processes")
LOCKED_CONVERSATIONS = text("SELECT id FROM conversations WHERE run_id IS NOT NULL")
OPEN_CALLS = text("SELECT run_id, step_index FROM tool_calls WHERE status IN ('pending', 'running')")


def uncut_text(screen: Screen) -> str:
    """The text of the steps that no death interrupted."""
    steps = [s for s in screen.ordered() if s["type"] == "text" and s["status"] == "done"]
    return "".join(step["content"] for step in steps)


def check_model_calls(sent_message: SentMessage, model: ScriptedProvider) -> None:
    """No call with a logged end is made again; each surplus call has a death and a warning in the log."""
    request_count = sum(request.rule == str(sent_message.number) for request in model.requests)
    ended = sent_message.screen.events().count("cost_update")
    warnings_logged = sent_message.screen.events().count("warning")
    # The call that a cancel interrupted has an end as well: that of the run.
    surplus = (
        request_count
        - ended
        - (1 if sent_message.screen.done and sent_message.screen.done["status"] == "stopped" else 0)
    )
    assert surplus <= sent_message.deaths, (
        f"{sent_message.number}: {request_count} calls for {ended}, {sent_message.deaths} deaths"
    )
    assert surplus <= warnings_logged <= sent_message.deaths, (
        f"{sent_message.number}: {surplus} surplus, {warnings_logged} warnings"
    )


def check_tool_runs(sent_message: SentMessage, controller: ToolController) -> None:
    """No tool ran twice unless it may; each call has one result, and each failed one has a death."""
    visits = Counter(key for key in controller.keys_seen() if key.startswith(f"{sent_message.number}-"))
    allowed = 1 + sent_message.deaths if ending_of(sent_message.number) == Ending.REPEATABLE else 1
    assert all(times <= allowed for times in visits.values()), f"a tool was run twice: {visits}"
    results = [step for step in sent_message.screen.ordered() if step["type"] == "tool_result"]
    assert len({step["id_ref"] for step in results}) == len(results)
    for step in results:
        is_reported = f"done {step['id_ref'].removeprefix('call-')}" in step["content"]
        assert is_reported == step["success"], step
        assert step["success"] or sent_message.deaths > 0 or ending_of(sent_message.number) == Ending.CANCEL
        assert (
            step["success"] or ending_of(sent_message.number) != Ending.REPEATABLE or sent_message.cancelled
        ), step


def check_ending(sent_message: SentMessage) -> None:
    """The run completed, or it was cancelled if a user asked for that."""
    for screen in sent_message.screens:
        assert screen.done is not None
        assert screen.ordered() == sent_message.screen.ordered(), "two clients saw different things"
        assert screen.last_id == sent_message.screen.last_id
    done = sent_message.screen.done
    assert done is not None
    if done["status"] == "stopped":
        assert sent_message.cancelled, f"nobody cancelled {sent_message.run_id}, and it was stopped"
        return
    assert sent_message.cancelled != "cancelled", (
        f"{sent_message.run_id} was said to be cancelled and went on"
    )
    assert done["status"] == "completed", done
    assert uncut_text(sent_message.screen) == f"{PREFACE}{ANSWER} {sent_message.number}"
    assert sent_message.screen.events().count("cost_update") == 2
    results = [step["id_ref"] for step in sent_message.screen.ordered() if step["type"] == "tool_result"]
    assert sorted(results) == [f"call-{sent_message.number}-a", f"call-{sent_message.number}-b"]


async def check_all(
    ann: RoundRobinClient, users: Users, model: ScriptedProvider, controller: ToolController
) -> None:
    """Checks every acknowledged message against the database, the calls of the model and the visits of the
    tools."""
    assert model.unscripted == []
    for sent_message in users.sent_messages:
        check_ending(sent_message)
        check_model_calls(sent_message, model)
        check_tool_runs(sent_message, controller)
        await check_stored_message(ann, sent_message)
    for conversation in users.conversations:
        messages = await ann.messages(conversation)
        statement = [message["text"] for message in messages if message["role"] == "user"]
        mine = [
            sent_message for sent_message in users.sent_messages if sent_message.conversation == conversation
        ]
        assert statement == [f"message {sent_message.number}" for sent_message in mine]
        assert [m["role"] for m in messages] == ["user", "assistant"] * len(statement)


async def check_stored_message(ann: RoundRobinClient, sent_message: SentMessage) -> None:
    """The stored message is what the clients saw, and the run reports the same as its log."""
    message = await ann.answer_shown_by(sent_message.conversation, sent_message.screen)
    run = await ann.run(sent_message.run_id)
    assert run["last_seq"] == sent_message.screen.last_id
    done = sent_message.screen.done
    assert done is not None
    expected = ("cancelled", "partial") if done["status"] == "stopped" else ("completed", "complete")
    assert (run["status"], message["status"]) == expected


def rows(cluster: Cluster, *statements: TextClause) -> dict[str, list[Any]]:
    """Rows of the database itself, read without a Luxx process."""
    url = make_url(cluster.database_url)
    if url.get_backend_name() == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            return {
                str(statement): list(map(tuple, connection.execute(statement))) for statement in statements
            }
    finally:
        engine.dispose()


def check_database(cluster: Cluster) -> None:
    """Logs have no gaps; every running run has a driver, and an ended run blocks nothing."""
    database_rows = rows(cluster, GAPS, UNENDED, LOCKED_CONVERSATIONS, OPEN_CALLS)
    assert not any(database_rows.values()), {
        statement: rows for statement, rows in database_rows.items() if rows
    }


def check_database_files(folder: Path) -> None:
    """For SQLite: runs its integrity checks on every database here. The server must be down."""
    for file in folder.glob("*.db"):
        connection = sqlite3.connect(file)
        try:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        finally:
            connection.close()


async def wait_until_idle(
    cluster: Cluster, ann: RoundRobinClient, waiting: "asyncio.Future[Any]", seconds: float
) -> None:
    """Waits until all runs have ended; the bound counts from when every process runs."""
    assert all(member.is_up for member in cluster.members)
    done, _ = await asyncio.wait({waiting}, timeout=seconds)
    if not done:
        print(f"at {time.monotonic():.1f} these streams are open:", *ann.watching.values(), sep="\n  ")
        for statement, database_rows in (await asyncio.to_thread(rows, cluster, UNENDED, PROCESSES)).items():
            print(statement, *database_rows, sep="\n  ")
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        raise AssertionError(f"not all has ended within {seconds} s of the last trouble")
    await waiting
