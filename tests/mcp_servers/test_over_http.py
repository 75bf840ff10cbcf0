"""MCP tools over HTTP: listed, called directly, used in a chat, and hidden from other tenants."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api.server_process import ServerProcess
from scenarios.client import AsyncApiClient, Json
from scenarios.questions import answer, asks, only_asks, open_questions, results, set_rules

from luxx.providers.scripted import Call, ScriptedProvider
from mcp_servers import hostile
from mcp_servers.harness import WAIT_SECONDS, processes_in, sample_server, script, sdk_packages, until

SERVERS = [
    sample_server("notes", "notes.py"),
    script("gone", hostile.DIES, start_seconds=5),
    script("odd", hostile.lists(hostile.NO_SCHEMA, '"no tool"', hostile.NO_ITEMS), trusted=True),
    script("theirs", hostile.WELL, tenant="others"),
]
STOP_SECONDS = 1.0
LATE = f"import os, time\nwhile not os.path.exists('go'): time.sleep(0.02)\n{hostile.WELL}"
"""A server that becomes ready when the file `go` exists."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    data_dir: Path = tmp_path_factory.mktemp("mcp") / "data"
    data_dir.mkdir()
    (data_dir / "packages").symlink_to(sdk_packages())
    settings = {"LUXX_MCP__SERVERS": json.dumps(SERVERS), "LUXX_TOOLS__MAX_ITERATIONS": "4"}
    with ServerProcess(data_dir.parent, **settings) as started_server:
        yield started_server


async def ready(ann: AsyncApiClient, servers: int = 2) -> None:
    """Returns when this many servers run: the working ones."""
    async with asyncio.timeout(WAIT_SECONDS):
        while (await ann.get("/health"))["mcp_servers"]["running"] < servers:  # noqa: ASYNC110 - asked over HTTP
            await asyncio.sleep(0.05)


async def execute(ann: AsyncApiClient, tool: str, **arguments: Any) -> Json:
    return await ann.post(f"/tools/mcp__default_notes__{tool}/execute", {"arguments": arguments})


async def test_tools_are_listed_explained_and_called_directly(server: ServerProcess) -> None:
    async with AsyncApiClient(server.url) as ann:
        await ready(ann)
        listed = await ann.get("/tools", category="mcp", page_size=100)
        names = [tool["name"] for tool in listed["items"]]
        assert "mcp__default_notes__add" in names
        assert all(name.startswith(("mcp__default_notes__", "mcp__default_odd__")) for name in names)
        description = await ann.get("/tools/mcp__default_notes__write_note")
        assert (description["category"], description["risk"], description["required_permission"]) == (
            "mcp",
            "high",
            3,
        )
        assert await execute(ann, "add", a=1, b=2) == {"success": True, "data": 3, "error": None}
        failed = await execute(ann, "fail")
        assert (failed["success"], failed["error"]) == (False, "Error executing tool fail")
        explanation = await ann.get("/permissions/explain", tool="mcp__default_notes__add", tainted=True)
        assert (explanation["action"], explanation["decided_by"]) == ("ask", "taint")


async def test_a_server_that_does_not_start_is_counted_and_named_in_the_log(server: ServerProcess) -> None:
    async with AsyncApiClient(server.url) as ann:
        await ready(ann)
        counts = (await ann.get("/health"))["mcp_servers"]
        assert sum(counts.values()) == 4
        assert counts["running"] == 2
        output = await until(lambda: server.lines_with("mcp_server_failed"), bool)
        assert "no licence" in output[0]


async def test_the_servers_of_the_tenant_are_listed_with_their_state_and_tools(server: ServerProcess) -> None:
    async with AsyncApiClient(server.url) as ann:
        await ready(ann)
        async with asyncio.timeout(WAIT_SECONDS):
            while (listed := await ann.get("/mcp/servers"))["items"][1]["status"] != "failed":  # noqa: ASYNC110 - asked over HTTP
                await asyncio.sleep(0.05)
        assert listed["total"] == 3
        notes, gone, _ = listed["items"]
        assert (notes["name"], notes["status"], notes["problem"], notes["output"]) == (
            "notes",
            "ready",
            "",
            "",
        )
        assert "mcp__default_notes__add" in notes["tools"]
        assert notes["since"] is not None
        assert gone["since"] is not None
        assert (gone["name"], gone["tools"]) == ("gone", [])
        assert gone["problem"] == "has ended: the program ended with exit code 1: no licence"
        assert gone["output"] == "no licence"
        assert (await ann.get("/mcp/servers", page=2, page_size=1))["items"][0]["name"] == "gone"
        reader = {"username": "rita", "password": "a-password-of-rita-1", "permission_level": 1}
        await ann.post("/auth/users", reader)
        signed_in = await ann.post("/auth/login", {k: reader[k] for k in ("username", "password")})
        async with AsyncApiClient(server.url, signed_in["access_token"]) as rita:
            assert [one["output"] for one in (await rita.get("/mcp/servers"))["items"]] == [None] * 3


async def test_a_wrong_item_of_a_server_is_left_out_and_named(server: ServerProcess) -> None:
    calls = Call(name="mcp__default_odd__act", arguments={}, id="call-act")
    async with AsyncApiClient(server.url) as ann, ScriptedProvider(asks(calls)) as model:
        await ready(ann)
        odd = (await ann.get("/mcp/servers"))["items"][2]
        assert odd["tools"] == ["mcp__default_odd__act", "mcp__default_odd__tags"]
        assert [one.partition(":")[0] for one in odd["left_out"]] == ["no_schema", "tool 3"]
        conversation = await ann.conversation(model.url)
        await ann.wait_for_end((await ann.start_run(conversation))["id"])
        (result,) = results((await ann.messages(conversation))[-1])
        cut, end, film = result["data"].split("\n")
        assert (cut, end, "does not follow the protocol" in film) == ("cut: \ufffd", "end", True)
        offered = {one["function"]["name"]: one["function"] for one in model.requests[0].json["tools"]}
        tags = offered["mcp__default_odd__tags"]["parameters"]["properties"]["tags"]
        assert tags == {"type": "array", "items": {}}


async def test_users_of_another_tenant_see_nothing_of_a_server(server: ServerProcess) -> None:
    async with AsyncApiClient(server.url) as ann:
        await ready(ann)
        tenant = await ann.post("/admin/tenants", {"name": "neighbours"})
        theirs = {"username": "nina", "password": "a-password-of-nina-1", "permission_level": 4}
        await ann.post("/auth/users", {**theirs, "tenant_id": tenant["id"]})
        signed_in = await ann.post("/auth/login", {k: theirs[k] for k in ("username", "password")})
        async with AsyncApiClient(server.url, signed_in["access_token"]) as nina:
            assert (await nina.get("/tools", category="mcp"))["items"] == []
            assert (await nina.get("/mcp/servers"))["items"] == []
            name = "mcp__default_notes__add"
            responses = [
                await nina.ask("GET", f"/tools/{name}"),
                await nina.ask("POST", f"/tools/{name}/execute", {"arguments": {"a": 1, "b": 2}}),
                await nina.ask("GET", "/permissions/explain", tool=name),
            ]
            none = await nina.ask("GET", "/tools/mcp__default_notes__none")
            for response in responses:
                assert response.status_code == 404
                assert response.json()["code"] == none.json()["code"]


async def test_a_model_uses_reading_tools_and_then_has_to_ask_for_others(
    server: ServerProcess,
) -> None:
    reads = Call(name="mcp__default_notes__add", arguments={"a": 20, "b": 22}, id="call-add")
    async with AsyncApiClient(server.url) as ann, ScriptedProvider(asks(reads)) as model:
        await ready(ann)
        conversation = await ann.conversation(model.url)
        run = await ann.start_run(conversation)
        screen = await ann.wait_for_end(run["id"])
        assert [result["data"] for result in results((await ann.messages(conversation))[-1])] == [42]
        assert screen.done is not None
        offered = {tool["function"]["name"] for tool in json.loads(model.requests[0].body)["tools"]}
        assert "mcp__default_notes__add" in offered
        assert not [name for name in offered if name.startswith("mcp__others")]


async def test_a_tool_that_writes_asks_first(server: ServerProcess) -> None:
    note = {"name": "milk", "text": "two bottles"}
    writes = Call(name="mcp__default_notes__write_note", arguments=note, id="call-write")
    async with AsyncApiClient(server.url) as ann, ScriptedProvider(asks(writes)) as model:
        await ready(ann)
        conversation = await ann.conversation(model.url)
        run = await ann.start_run(conversation)
        async with ann.follow(run["id"]) as stream:
            await stream.until("question_asked")
        (question,) = await open_questions(ann, run["id"])
        assert (question["tool"], question["risk"]) == ("mcp__default_notes__write_note", "high")
        await answer(ann, question, "once")
        await ann.wait_for_end(run["id"])
        (result,) = results((await ann.messages(conversation))[-1])
        assert result["data"] == "kept milk beside ['milk']"


@pytest.mark.heavy
async def test_a_question_survives_a_restart_and_its_call_reaches_the_server(tmp_path: Path) -> None:
    settings = {"LUXX_MCP__SERVERS": json.dumps([script("late", LATE)])}
    acts = Call(name="mcp__default_late__act", arguments={}, id="call-act")
    workspace = tmp_path / "workspaces/mcp/default_late"

    with ServerProcess(tmp_path, **settings) as server:
        async with AsyncApiClient(server.url) as ann, ScriptedProvider(asks(acts)) as model:
            await until(workspace.is_dir, bool)
            (workspace / "go").touch()
            await ready(ann, servers=1)
            await set_rules(ann, "ask mcp__default_late__*(*)")
            conversation = await ann.conversation(model.url)
            run = await ann.start_run(conversation)
            async with ann.follow(run["id"]) as stream:
                await stream.until("question_asked")
            server.kill()
            await until(lambda: processes_in(workspace), lambda left: not left)
            (workspace / "go").unlink()
            server.start()
            await ann.reconnect_to(server.url)
            (question,) = await open_questions(ann, run["id"])
            await answer(ann, question, "once")
            assert (await ann.get("/health"))["mcp_servers"]["running"] == 0
            (workspace / "go").touch()
            await ann.wait_for_end(run["id"])
            (result,) = results((await ann.messages(conversation))[-1])
            assert result["data"] == "well"


async def test_a_rule_hides_a_server_from_models(server: ServerProcess) -> None:
    denied = Call(name="mcp__default_notes__add", arguments={"a": 1, "b": 2}, id="call-add")
    async with AsyncApiClient(server.url) as ann, ScriptedProvider(asks(denied)) as model:
        await ready(ann)
        await set_rules(ann, "deny mcp__default_notes__*(*)")
        try:
            conversation = await ann.conversation(model.url)
            run = await ann.start_run(conversation)
            await ann.wait_for_end(run["id"])
        finally:
            await set_rules(ann)
        (result,) = results((await ann.messages(conversation))[-1])
        assert (result["success"], "was not run" in result["error"]) == (False, True)
        assert b"mcp__default_notes" not in model.requests[0].body


async def test_cancelling_a_run_cancels_its_call_at_the_server(server: ServerProcess) -> None:
    waits = Call(name="mcp__default_notes__wait", arguments={"name": "run"}, id="call-wait")
    async with AsyncApiClient(server.url) as ann, ScriptedProvider(only_asks(waits)) as model:
        await ready(ann)
        workspace = server.folder / "workspaces/mcp/default_notes"
        run = await ann.start_run(await ann.conversation(model.url))
        await until((workspace / "run.began").exists, bool)
        async with asyncio.timeout(STOP_SECONDS):
            assert (await ann.cancel(run["id"])).is_success
            await until((workspace / "run.cancelled").exists, bool)
        assert (await ann.run(run["id"]))["status"] == "cancelled"
