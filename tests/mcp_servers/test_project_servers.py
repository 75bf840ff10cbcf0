"""A server of a project: its tools are there in the chats and tasks of this project, and nowhere else."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from api.server_process import ServerProcess
from scenarios.client import AsyncApiClient, Json
from scenarios.questions import set_rules

from luxx.domain.mcp.search import MOST_OFFERED
from luxx.providers.scripted import Call, Rule, Script, ScriptedProvider, Text, When
from mcp_servers.remote_server import RemoteMcp

KEEP, ISSUE = "mcp__u1_plan__keep", "mcp__u1_plan__raise_issue"
SEARCHES = [
    Call(name="tool_search", arguments={"query": "raise an issue"}, id="call-search"),
    Call(name="tool_call", arguments={"name": ISSUE, "arguments": {"text": "Leak"}}, id="call-found"),
    Call(name=KEEP, arguments={"text": "Milk"}, id="call-named"),
]


@pytest.fixture(scope="module")
def remote() -> Iterator[RemoteMcp]:
    with RemoteMcp() as running:
        running.add_tool("raise_issue", "Raises an issue.")
        for number in range(MOST_OFFERED):
            running.add_tool(f"other_{number}", "Does something else.")
        yield running


def makes(*calls: Call) -> Script:
    """All of these calls at once, and then a text."""
    first = Rule(when=When(has_tool_result=False), reply=list(calls))
    return Script(rules=[first, Rule(when=When(has_tool_result=True), reply=[Text(text="Done.")])])


def names(request: Any) -> set[str]:
    return {tool["function"]["name"] for tool in request.json.get("tools", [])}


async def run(ann: AsyncApiClient, conversation: str, **more: Any) -> None:
    """One whole answer."""
    await ann.until_status((await ann.start_run(conversation, **more))["id"], "completed")


async def outputs(ann: AsyncApiClient, conversation: str) -> list[str]:
    """The results of the last answer, in the order of its calls."""
    (message, *_) = (await ann.get("/messages", conversation_id=conversation))["items"]
    by_call = {step["id_ref"]: step["content"] for step in message["steps"] if step["type"] == "tool_result"}
    return [by_call[call.id or ""] for call in SEARCHES]


async def test_the_tools_of_a_projects_server_are_there_in_its_chats_and_tasks_only(
    shared_server: ServerProcess, remote: RemoteMcp
) -> None:
    async with AsyncApiClient(shared_server.url) as ann, ScriptedProvider(makes(*SEARCHES)) as model:
        provider_id = await ann.connect(model.url)
        project = (await ann.post("/projects", {"name": "Plan"}))["id"]
        server: Json = {"transport": "http", "url": f"{remote.url}/mcp"}
        for name, its_project in (("wide", None), ("plan", project)):
            added = await ann.post("/mcp/servers", {"name": name, "project_id": its_project, **server})
            assert added["status"] == "ready", added
        await set_rules(ann, "allow mcp__*(*)")
        chats = [
            (await ann.post("/conversations", {"provider_id": provider_id, "project_id": one}))["id"]
            for one in (project, None)
        ]

        # Among many tools: found, and called with and without having been found.
        given: list[list[str]] = []
        for chat in chats:
            await run(ann, chat, tools=True)
            given.append(await outputs(ann, chat))
        assert ISSUE in given[0][0]
        assert ["kept Leak" in given[0][1], "kept Milk" in given[0][2]] == [True, True]
        assert ISSUE not in given[1][0]
        assert "mcp__u1_wide__raise_issue" in given[1][0]
        assert [json.loads(refused)["success"] for refused in given[1][1:]] == [False, False], given[1]
        assert sorted(remote.calls) == ["keep", "raise_issue"]

        # Named by the message: offered, or refused.
        await run(ann, chats[0], tools=[KEEP])
        assert KEEP in names(model.requests[-1])
        body = {"conversation_id": chats[1], "content": "Go.", "tools": [KEEP]}
        outside = await ann.ask("POST", "/messages/stream", body)
        assert (outside.status_code, KEEP in outside.text) == (400, True)

        # Named by an agent: it has the tool in the project, and answers without it elsewhere.
        agent = (await ann.post("/agents", {"name": "Keeper", "tools": [KEEP], "provider_id": provider_id}))[
            "id"
        ]
        for chat, has_it in zip(chats, (True, False), strict=True):
            assert (await ann.ask("PUT", f"/conversations/{chat}", {"agent_id": agent})).is_success
            await run(ann, chat)
            assert (KEEP in names(model.requests[-1])) is has_it
        asked = {"model": f"agent/{agent}", "messages": [{"role": "user", "content": "Go."}]}
        assert (await ann.ask("POST", "/v1/chat/completions", asked)).status_code == 200
        assert KEEP not in names(model.requests[-1])

        # Required by a step of a task.
        steps = [{"id": "a", "name": "A", "goal": "Do it", "required_tools": [KEEP]}]
        task: Json = {"name": "T", "goal": "G", "provider_id": provider_id, "agent_id": agent, "steps": steps}
        refused = await ann.ask("POST", "/tasks", task)
        assert (refused.status_code, KEEP in refused.text) == (400, True)
        created = await ann.post("/tasks", {**task, "project_id": project})
        async with ann.streaming("POST", f"/tasks/{created['id']}/execute") as response:
            async for _ in response.aiter_lines():
                pass
        assert (await ann.get(f"/tasks/{created['id']}"))["status"] == "completed"
        assert KEEP in names(model.requests[-1])

        # The owner sees and tries it everywhere, and another project does not get it.
        assert KEEP in [tool["tool_name"] for tool in (await ann.get("/mcp/tools"))["items"]]
        other = (await ann.post("/projects", {"name": "Other"}))["id"]
        assert (await ann.ask("PUT", f"/conversations/{chats[0]}", {"project_id": other})).is_success
        await run(ann, chats[0])
        assert KEEP not in names(model.requests[-1])
        for name in ("wide", "plan"):
            await ann.ask("DELETE", f"/mcp/servers/{name}")
