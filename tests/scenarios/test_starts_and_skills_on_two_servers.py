"""Two servers of one PostgreSQL: a task with a `start_at` starts once, also when a server is killed then, and
a skill that a tenant disables at one server is disabled at the other."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from api.server_process import ServerProcess
from store.databases import new_database

from luxx.providers.scripted import Rule, Script, ScriptedProvider, Text
from scenarios.client import AsyncApiClient
from scenarios.test_started_tasks import in_seconds, runs_of, until_status
from scenarios.test_tasks import new_task, step

pytestmark = pytest.mark.heavy

TASKS = 8
PASSWORD = "correct horse battery"
REQUEST = {"text": "Please review my code in orders.py"}
MOST_SECONDS = 5.0


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory, postgresql: str) -> Iterator[list[ServerProcess]]:
    folder = tmp_path_factory.mktemp("two-servers")
    environment = {
        "LUXX_DATABASE__URL": new_database(postgresql, folder.name),
        "LUXX_APP__SECRET_KEY": "a secret that all servers of one database share, long enough",
        "LUXX_WORKSPACE__ROOT": str(folder / "workspaces"),
        "LUXX_SKILLS__DIRECTORIES": "[builtin]",
        "LUXX_RUNS__LEASE_SECONDS": "2",
    }
    with ExitStack() as hold:
        yield [hold.enter_context(ServerProcess(folder / name, **environment)) for name in ("a", "b")]


async def test_a_skill_that_a_tenant_disables_is_disabled_for_it_at_the_other_server(
    servers: list[ServerProcess],
) -> None:
    async with AsyncApiClient(servers[0].url) as admin:
        tenant = (await admin.post("/admin/tenants", {"name": "Other"}))["id"]
        user = {"username": "other", "password": PASSWORD, "tenant_id": tenant, "permission_level": 4}
        await admin.post("/auth/users", user)
        signed_in = await admin.post("/auth/login", {"username": "other", "password": PASSWORD})
        async with (
            AsyncApiClient(servers[1].url, admin.token) as there,
            AsyncApiClient(servers[1].url, signed_in["access_token"]) as other,
        ):

            async def matched(client: AsyncApiClient) -> bool:
                found = await client.post("/skills/match", REQUEST)
                return "code-review" in [match["name"] for match in found["matches"]]

            # The second server has read what both tenants have.
            assert await matched(there)
            assert await matched(other)
            await admin.post("/tenant/skills/disable", {"skill_name": "code_review"})
            begun = time.monotonic()
            while await matched(there):
                assert time.monotonic() - begun < MOST_SECONDS
                await asyncio.sleep(0.05)
            assert await matched(other)
            listed = {skill["name"]: skill for skill in (await other.get("/skills"))["items"]}
            assert listed["code-review"]["is_disabled"] is False
            listed = {skill["name"]: skill for skill in (await there.get("/skills"))["items"]}
            assert listed["code-review"]["is_disabled"] is True
            await admin.post("/tenant/skills/enable", {"skill_name": "code-review"})


async def test_each_task_starts_once_although_a_server_is_killed_while_they_start(
    servers: list[ServerProcess],
) -> None:
    script = Script(rules=[Rule(reply=[Text(text="Facts, one after the other.", pieces=8)], delay=0.02)])
    async with ScriptedProvider(script) as model, AsyncApiClient(servers[0].url) as ann:
        start_at = in_seconds(3)
        ids = [await new_task(ann, model.url, step("a"), start_at=start_at) for _ in range(TASKS)]
        await until_status(ann, ids[0], "running", "completed")
        servers[1].kill()
        for task_id in ids:
            task = await until_status(ann, task_id, "completed", "failed", "block")
            assert task["status"] == "completed", task
            assert len(await runs_of(ann, task_id)) == 1
        servers[1].start()
