"""The process that drives a run, or the one that has the connection to an MCP server, dies during a call."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp_servers import hostile
from mcp_servers.harness import processes_in, until
from scenarios.client import AsyncApiClient, Json
from scenarios.questions import answer, asks, open_questions, results, set_rules

from chaos.cluster import LEASE_SECONDS, TAKEOVER_SECONDS, Cluster
from chaos.postgres import Postgres
from luxx.providers.scripted import Call, ScriptedProvider

HANDOVER_SECONDS = 2 * LEASE_SECONDS
"""The promise: within two leases after the death of its owner a connection has another one."""

TOOLS = """[{"name": name, "inputSchema": {"type": "object"},
     "annotations": {"readOnlyHint": name != "write"}}
    for name in ("read", "write", "quick")]"""
WAITS = f"""{hostile.SPEAKS}
mark = os.urandom(4).hex()

def act(message):
    name = message["params"]["name"]
    if name != "quick":
        with open("calls", "a") as calls:
            calls.write(name + " " + mark + "\\n")
        while not os.path.exists("go"):
            time.sleep(0.02)
    text(message, mark)

serve(act, {TOOLS})
"""
"""A program that writes down each call, and answers with the mark of its process when `go` exists."""

ASKS = f"""{hostile.SPEAKS}
schema = {{"type": "object", "properties": {{"name": {{"type": "string"}}}}, "required": ["name"]}}

def act(message):
    asked = {{"message": "Who?", "requestedSchema": schema}}
    say({{"id": "q", "method": "elicitation/create", "params": asked}})
    text(message, json.dumps(json.loads(sys.stdin.readline())["result"]))

serve(act, {TOOLS})
"""
"""A program that asks its user something, and answers with what it got."""


@pytest.fixture(scope="module")
def cluster(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("owners"), postgres.new_database(), webs=2, workers=2) as started:
        yield started


async def add(ann: AsyncApiClient, name: str, code: str = WAITS) -> Json:
    program = ["-I", "-S", "-u", "-c", code]
    new = {"name": name, "transport": "stdio", "scope": "tenant", "command": "python3", "args": program}
    added = await ann.post("/mcp/servers", new)
    assert (added["status"], added["problem"]) == ("ready", "")
    return added


def folder(cluster: Cluster, name: str) -> Path:
    return cluster.folder / f"workspaces/mcp/default_{name}"


def calls_of(cluster: Cluster, name: str) -> list[str]:
    file = folder(cluster, name) / "calls"
    return file.read_text("utf-8").splitlines() if file.exists() else []


async def start_call(ann: AsyncApiClient, model: ScriptedProvider) -> tuple[str, Json]:
    await set_rules(ann, "allow mcp__*")
    conversation = await ann.conversation(model.url)
    return conversation, await ann.start_run(conversation)


async def result_of(ann: AsyncApiClient, conversation: str) -> Any:
    (result,) = results((await ann.messages(conversation))[-1])
    return result


def model_that_calls(server: str, tool: str) -> ScriptedProvider:
    return ScriptedProvider(
        asks(Call(name=f"mcp__default_{server}__{tool}", arguments={}, id=f"call-{tool}"))
    )


async def test_the_server_of_a_killed_driver_goes_on_and_the_run_gets_the_result(cluster: Cluster) -> None:
    await cluster.restart_all()
    async with cluster.clients() as (ann, other), model_that_calls("kept", "write") as model:
        await add(ann, "kept")
        mark = (await ann.post("/mcp/servers/kept/tools/call", {"name": "quick"}))["data"]
        conversation, run = await start_call(ann, model)
        await until(lambda: calls_of(cluster, "kept"), bool)
        await cluster.kill(cluster.webs[0])
        (folder(cluster, "kept") / "go").touch()
        await other.wait_for_end(run["id"])
        result = await result_of(other, conversation)
        assert (result["success"], result["data"]) == (True, mark)
        assert calls_of(cluster, "kept") == [f"write {mark}"]
        assert (await other.post("/mcp/servers/kept/tools/call", {"name": "quick"}))["data"] == mark


@pytest.mark.parametrize("tool", ["write", "read"])
async def test_a_call_whose_owner_was_killed_says_so_or_is_made_again(cluster: Cluster, tool: str) -> None:
    await cluster.restart_all()
    name = f"lost-{tool}"
    async with cluster.clients() as (ann, _), model_that_calls(name, tool) as model:
        await add(ann, name)
        conversation, run = await start_call(ann, model)
        await until(lambda: calls_of(cluster, name), bool)
        owner = (await ann.get(f"/mcp/servers/{name}"))["owner"]
        worker = await worker_with(cluster, ann, name)
        begun = time.monotonic()
        await cluster.kill(worker)
        if tool == "read":
            await until(lambda: len(calls_of(cluster, name)) == 2, bool)
            (folder(cluster, name) / "go").touch()
        await ann.wait_for_end(run["id"])
        assert time.monotonic() - begun < TAKEOVER_SECONDS + HANDOVER_SECONDS
        result = await result_of(ann, conversation)
        marks = [line.partition(" ")[2] for line in calls_of(cluster, name)]
        if tool == "read":
            assert (result["success"], result["data"]) == (True, marks[1])
            assert len(set(marks)) == 2
        else:
            assert (result["success"], result["data"]) == (False, {"outcome": "unknown"})
            assert len(marks) == 1
        async with asyncio.timeout(HANDOVER_SECONDS):
            while (await ann.get(f"/mcp/servers/{name}"))["owner"] in (owner, None):  # noqa: ASYNC110 - asked over HTTP
                await asyncio.sleep(0.1)
        # One program at most: that of the lost owner ended with it.
        assert len(processes_in(folder(cluster, name))) <= 2


async def worker_with(cluster: Cluster, ann: AsyncApiClient, name: str) -> Any:
    owner = (await ann.get(f"/mcp/servers/{name}"))["owner"]
    processes = {one["id"]: one for one in (await ann.get("/admin/processes"))["items"]}
    assert processes[owner]["kind"] == "worker"
    (worker,) = [one for one in cluster.members if one.process.pid == processes[owner]["pid"]]
    return worker


async def test_a_question_of_a_server_outlives_the_driver_but_not_the_owner(cluster: Cluster) -> None:
    await cluster.restart_all()
    async with cluster.clients() as (ann, other), model_that_calls("asks", "write") as model:
        await add(ann, "asks", ASKS)

        async def asked() -> tuple[str, Json, Json]:
            conversation, run = await start_call(ann, model)
            await ann.until_status(run["id"], "waiting")
            (question,) = await open_questions(ann, run["id"])
            assert (question["kind"], question["server"]) == ("elicitation", "asks")
            return conversation, run, question

        conversation, run, question = await asked()
        await cluster.kill(cluster.webs[0])
        await answer(other, question, "accept", arguments={"name": "Ann"})
        await other.wait_for_end(run["id"])
        said = json.loads((await result_of(other, conversation))["data"])
        assert said == {"action": "accept", "content": {"name": "Ann"}}

        await cluster.start(cluster.webs[0])
        await ann.reconnect_to(cluster.webs[0].url)
        conversation, run, question = await asked()
        await cluster.kill(await worker_with(cluster, ann, "asks"))
        await answer(ann, question, "accept", arguments={"name": "Ann"})
        await ann.wait_for_end(run["id"])
        result = await result_of(ann, conversation)
        assert (result["success"], result["data"]) == (False, {"outcome": "unknown"})


async def test_calls_of_a_single_process_that_was_killed(alone: Cluster) -> None:
    async with ScriptedProvider(
        asks(
            *[
                Call(name=f"mcp__default_alone__{tool}", arguments={}, id=f"c-{tool}")
                for tool in ("read", "write")
            ]
        )
    ) as model:
        async with alone.clients() as (ann,):
            await add(ann, "alone")
            conversation, run = await start_call(ann, model)
            await until(lambda: calls_of(alone, "alone"), bool)
        await alone.kill(alone.webs[0])
        await until(lambda: not processes_in(folder(alone, "alone")), bool)
        (folder(alone, "alone") / "go").touch()
        await alone.start(alone.webs[0])
        async with alone.clients() as (ann,):
            await ann.wait_for_end(run["id"])
            ended = results((await ann.messages(conversation))[-1])
            read, write = sorted(ended, key=lambda result: not result["success"])
            assert read["success"]
            assert (write["success"], write["data"]) == (False, {"outcome": "unknown"})
