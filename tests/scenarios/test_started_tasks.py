"""Tasks with a `start_at`: executed then, once, also after a kill, or paused with the reason."""

import asyncio
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

from api.server_process import ServerProcess

from luxx.providers.scripted import Script, ScriptedProvider
from scenarios.client import WAIT_SECONDS, AsyncApiClient, Json
from scenarios.test_tasks import does, new_task, step

MORTAL = {"username": "mortal", "password": "correct horse battery"}


def in_seconds(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


async def until_status(ann: AsyncApiClient, task_id: str, *wanted: str) -> Json:
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            task: Json = await ann.get(f"/tasks/{task_id}")
            if task["status"] in wanted:
                return task
            await asyncio.sleep(0.05)


def make_due(server: ServerProcess, task_id: str) -> None:
    with closing(sqlite3.connect(server.data_dir / "luxx.db", timeout=20)) as connection, connection:
        values = ("2020-01-01 00:00:00.000000", task_id)
        connection.execute("UPDATE tasks SET start_at = ? WHERE id = ?", values)


async def until_refused(server: ServerProcess, task_id: str) -> None:
    """Waits until the task is not to be started any more; its disabled owner cannot look."""
    query = "SELECT is_start_due FROM tasks WHERE id = ?"
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            with closing(sqlite3.connect(server.data_dir / "luxx.db", timeout=20)) as connection:
                if connection.execute(query, (task_id,)).fetchone() == (0,):
                    return
            await asyncio.sleep(0.05)


async def runs_of(ann: AsyncApiClient, task_id: str) -> list[Any]:
    return list((await ann.get("/runs", kind="task", subject_id=task_id))["items"])


async def test_a_task_starts_at_its_time_once_and_not_again_after_it_was_executed_before(
    server: ServerProcess,
) -> None:
    async with (
        ScriptedProvider(Script(rules=[does("a", "Facts of a")])) as model,
        AsyncApiClient(server.url) as ann,
    ):
        start_at = in_seconds(0.2)
        task_id = await new_task(ann, model.url, step("a"), start_at=start_at)
        early = await new_task(ann, model.url, step("a"), start_at=in_seconds(1000))
        await ann.ask("POST", f"/tasks/{early}/execute", headers={"Accept": "application/json"})
        task = await until_status(ann, task_id, "completed")
        assert datetime.fromisoformat(task["start_at"]) == datetime.fromisoformat(start_at)
        assert len(await runs_of(ann, task_id)) == 1
        assert (await until_status(ann, early, "completed"))["start_at"] is None
        waits = await new_task(ann, model.url, step("a"), start_at=in_seconds(0.2), require_approval=True)
        assert (await until_status(ann, waits, "block", "completed"))["status"] == "block", "not approved"
        await ann.ask("POST", f"/tasks/{waits}/approve", {})
        await until_status(ann, waits, "completed")


async def test_a_task_whose_time_came_while_the_server_was_dead_starts_after_it(
    own_server: ServerProcess,
) -> None:
    async with ScriptedProvider(Script(rules=[does("a", "Facts of a")])) as model:
        async with AsyncApiClient(own_server.url) as ann:
            task_id = await new_task(ann, model.url, step("a"), start_at=in_seconds(0.4))
            own_server.kill()
        own_server.start()
        async with AsyncApiClient(own_server.url) as ann:
            await until_status(ann, task_id, "completed")
            assert len(await runs_of(ann, task_id)) == 1
            assert len(model.requests) == 1


async def test_a_task_that_cannot_start_is_paused_with_the_reason_and_resumes(server: ServerProcess) -> None:
    async with (
        ScriptedProvider(Script(rules=[does("a", "Facts of a")])) as model,
        AsyncApiClient(server.url) as admin,
    ):
        signed_in = await admin.post("/auth/register", MORTAL)
        user = signed_in["user"]
        await admin.connect(model.url)  # Allows its address.
        async with AsyncApiClient(server.url, signed_in["access_token"]) as ann:
            task_id = await new_task(ann, model.url, step("a"), start_at=in_seconds(1000))
        await admin.ask("PUT", f"/auth/users/{user['id']}", {"is_active": False})
        make_due(server, task_id)
        await until_refused(server, task_id)
        await admin.ask("PUT", f"/auth/users/{user['id']}", {"is_active": True})
        signed_in = await admin.post("/auth/login", MORTAL)
        async with AsyncApiClient(server.url, signed_in["access_token"]) as ann:
            assert (await ann.get(f"/tasks/{task_id}"))["status"] == "block"
            (run,) = await runs_of(ann, task_id)
            assert run["status"] == "paused"
            assert run["error"] == ("this task was not started at its time: the user of this run is disabled")
            await ann.ask("POST", f"/tasks/{task_id}/resume", headers={"Accept": "application/json"})
            await until_status(ann, task_id, "completed")
            assert len(model.requests) == 1
