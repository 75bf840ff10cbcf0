"""What must hold when the dust has settled, whatever happened to the processes."""

import asyncio
import sqlite3
import time
from collections import Counter
from pathlib import Path
from typing import Any

from journeys.desk import Desk
from journeys.screen import Screen
from journeys.scripts import PREFACE
from sqlalchemy import TextClause, create_engine, text
from sqlalchemy.engine import make_url

from chaos.cluster import Cluster
from chaos.crowd import ANSWER, Crowd, Talk, Wish, wish_of
from chaos.roamer import Roamer
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
HELD = text("SELECT id FROM conversations WHERE run_id IS NOT NULL")
OPEN_CALLS = text("SELECT run_id, step_index FROM tool_calls WHERE status IN ('pending', 'running')")


def said_well(screen: Screen) -> str:
    """The text of the steps that no death cut."""
    steps = [s for s in screen.ordered() if s["type"] == "text" and s["status"] == "done"]
    return "".join(step["content"] for step in steps)


def calls_are_few(talk: Talk, model: ScriptedProvider) -> None:
    """No call whose end was logged is made again; each surplus one has a death and a word in the log."""
    asked = sum(request.rule == str(talk.number) for request in model.requests)
    ended = talk.screen.events().count("cost_update")
    owned_up = talk.screen.events().count("warning")
    # The call that a cancel cut has an end as well, which is the run's.
    surplus = asked - ended - (1 if talk.screen.done and talk.screen.done["status"] == "stopped" else 0)
    assert surplus <= talk.deaths, f"{talk.number}: {asked} calls for {ended}, {talk.deaths} deaths"
    assert surplus <= owned_up <= talk.deaths, f"{talk.number}: {surplus} surplus, {owned_up} warnings"


def tools_ran_once(talk: Talk, desk: Desk) -> None:
    """No tool ran twice that may not; each call has one result, and one that failed has a death."""
    visits = Counter(key for key in desk.keys_seen() if key.startswith(f"{talk.number}-"))
    allowed = 1 + talk.deaths if wish_of(talk.number) == Wish.REPEATABLE else 1
    assert all(times <= allowed for times in visits.values()), f"a tool was run twice: {visits}"
    results = [step for step in talk.screen.ordered() if step["type"] == "tool_result"]
    assert len({step["id_ref"] for step in results}) == len(results)
    for step in results:
        is_told = f"done {step['id_ref'].removeprefix('call-')}" in step["content"]
        assert is_told == step["success"], step
        assert step["success"] or talk.deaths > 0 or wish_of(talk.number) == Wish.CANCEL
        assert step["success"] or wish_of(talk.number) != Wish.REPEATABLE or talk.cancelled, step


def ended_truly(talk: Talk) -> None:
    """Answered whole; or stopped, where somebody asked for that."""
    for screen in talk.screens:
        assert screen.done is not None
        assert screen.ordered() == talk.screen.ordered(), "two clients saw different things"
        assert screen.last_id == talk.screen.last_id
    done = talk.screen.done
    assert done is not None
    if done["status"] == "stopped":
        assert talk.cancelled, f"nobody cancelled {talk.run_id}, and it was stopped"
        return
    assert talk.cancelled != "cancelled", f"{talk.run_id} was said to be cancelled and went on"
    assert done["status"] == "completed", done
    assert said_well(talk.screen) == f"{PREFACE}{ANSWER} {talk.number}"
    assert talk.screen.events().count("cost_update") == 2
    results = [step["id_ref"] for step in talk.screen.ordered() if step["type"] == "tool_result"]
    assert sorted(results) == [f"call-{talk.number}-a", f"call-{talk.number}-b"]


async def all_is_well(ann: Roamer, crowd: Crowd, model: ScriptedProvider, desk: Desk) -> None:
    """Every message that was acknowledged, against what is stored, what the model saw and what tools did."""
    assert model.unscripted == []
    for talk in crowd.talks:
        ended_truly(talk)
        calls_are_few(talk, model)
        tools_ran_once(talk, desk)
        await stored_as_seen(ann, talk)
    for conversation in crowd.conversations:
        messages = await ann.messages(conversation)
        said = [message["text"] for message in messages if message["role"] == "user"]
        mine = [talk for talk in crowd.talks if talk.conversation == conversation]
        assert said == [f"message {talk.number}" for talk in mine]
        assert [m["role"] for m in messages] == ["user", "assistant"] * len(said)


async def stored_as_seen(ann: Roamer, talk: Talk) -> None:
    """The stored message is what the clients saw, and the run says the same as its log."""
    message = await ann.answer_shown_by(talk.conversation, talk.screen)
    run = await ann.run(talk.run_id)
    assert run["last_seq"] == talk.screen.last_id
    done = talk.screen.done
    assert done is not None
    expected = ("cancelled", "partial") if done["status"] == "stopped" else ("completed", "complete")
    assert (run["status"], message["status"]) == expected


def rows(cluster: Cluster, *statements: TextClause) -> dict[str, list[Any]]:
    """What the database itself says, past all processes."""
    url = make_url(cluster.database_url)
    if url.get_backend_name() == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            return {str(said): list(map(tuple, connection.execute(said))) for said in statements}
    finally:
        engine.dispose()


def database_is_true(cluster: Cluster) -> None:
    """Logs without gaps; nothing called running that nobody drives, and nothing held by what has ended."""
    found = rows(cluster, GAPS, UNENDED, HELD, OPEN_CALLS)
    assert not any(found.values()), {said: rows for said, rows in found.items() if rows}


def files_are_whole(folder: Path) -> None:
    """For SQLite: what its own checks say of every database here. The server must be down."""
    for file in folder.glob("*.db"):
        connection = sqlite3.connect(file)
        try:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        finally:
            connection.close()


async def settled(cluster: Cluster, ann: Roamer, waiting: "asyncio.Future[Any]", seconds: float) -> None:
    """That all that was going on ends within this once every process is there."""
    assert all(member.is_up for member in cluster.members)
    done, _ = await asyncio.wait({waiting}, timeout=seconds)
    if not done:
        print(f"at {time.monotonic():.1f} these streams are open:", *ann.watching.values(), sep="\n  ")
        for said, found in (await asyncio.to_thread(rows, cluster, UNENDED, PROCESSES)).items():
            print(said, *found, sep="\n  ")
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        raise AssertionError(f"not all has ended within {seconds} s of the last trouble")
    await waiting
