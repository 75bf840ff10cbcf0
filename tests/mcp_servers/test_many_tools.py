"""More tools of MCP servers than fit into a prompt: a model searches them and calls the one that it found."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from api.server_process import ServerProcess
from scenarios.client import AsyncApiClient
from scenarios.questions import answer, open_questions, set_rules

from luxx.domain.mcp.search import MOST_OFFERED
from luxx.providers.scripted import Call, Rule, Script, ScriptedProvider, Text, When
from mcp_servers.remote_server import RemoteMcp

MOST_TOKENS = 1_000
"""In a prompt, whatever the number of tools."""

ISSUE = "mcp__u1_hub__create_issue"
THINGS = [
    "issue",
    "branch",
    "release",
    "label",
    "milestone",
    "comment",
    "fork",
    "webhook",
    "secret",
    "runner",
]
ACTIONS = ["create", "delete", "list", "update", "archive"]


@pytest.fixture(scope="module")
def remote() -> Iterator[RemoteMcp]:
    with RemoteMcp() as running:
        for thing in THINGS:
            for action in ACTIONS:
                running.add_tool(f"{action}_{thing}", f"{action.title()}s one {thing} of a repository.")
        yield running


def searches(*calls: Call) -> Script:
    """A search, each of these calls after it, and a text."""
    first = Call(name="tool_search", arguments={"query": "create an issue"}, id="call-search")
    rules = [Rule(when=When(has_tool_result=False), reply=[first])]
    rules += [
        Rule(when=When(has_tool_result=True, call=at), reply=[call]) for at, call in enumerate(calls, 1)
    ]
    return Script(rules=[*rules, Rule(reply=[Text(text="Done.")])])


async def test_a_model_finds_and_calls_one_of_many_tools_and_people_see_the_tool_itself(
    shared_server: ServerProcess, remote: RemoteMcp
) -> None:
    calls = (
        Call(name="tool_call", arguments={"name": ISSUE, "arguments": {"text": "Broken"}}, id="call-issue"),
        Call(
            name="tool_call",
            arguments={"name": "shell_execute", "arguments": {"command": "ls"}},
            id="call-ls",
        ),
        Call(name="tool_call", arguments={"name": "mcp__u2_other__x"}, id="call-other"),
    )
    async with AsyncApiClient(shared_server.url) as ann, ScriptedProvider(searches(*calls)) as model:
        added = await ann.post(
            "/mcp/servers", {"name": "hub", "transport": "http", "url": f"{remote.url}/mcp"}
        )
        assert len(added["tools"]) > MOST_OFFERED
        await set_rules(ann, "ask mcp__*")
        conversation = await ann.conversation(model.url)
        run = await ann.start_run(conversation)
        await ann.until_status(run["id"], "waiting")
        (question,) = await open_questions(ann, run["id"])
        assert (question["tool"], question["arguments"]) == (ISSUE, '{"text":"Broken"}')
        await answer(ann, question, "once")
        await ann.wait_for_end(run["id"])
        assert remote.calls == ["create_issue"]
        steps = (await ann.get("/messages", conversation_id=conversation))["items"][0]["steps"]
        made = [(step["name"], step["arguments"]) for step in steps if step["type"] == "tool_call"]
        assert made[:2] == [("tool_search", '{"query":"create an issue"}'), (ISSUE, '{"text":"Broken"}')]
        results = [step["content"] for step in steps if step["type"] == "tool_result"]
        assert ISSUE in results[0]
        assert "kept" in results[1]
        assert "call it by its own name" in results[2]
    offered: list[Any] = [sent.json["tools"] for sent in model.requests]
    assert all(one == offered[0] for one in offered)
    names = {tool["function"]["name"] for tool in offered[0]}
    assert {"tool_search", "tool_call"} <= names
    assert not any(name.startswith("mcp__") for name in names)
    own_tools = [tool for tool in offered[0] if tool["function"]["name"] in ("tool_search", "tool_call")]
    assert len(msgspec.json.encode(own_tools)) / 4 < MOST_TOKENS
