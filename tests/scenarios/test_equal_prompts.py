"""The requests of one run: tools and system text are equal, and each request extends the one before it."""

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from api.server_process import ServerProcess

from luxx.providers.scripted import Call, Rule, Script, ScriptedProvider, Text, When
from scenarios.client import AsyncApiClient, Json
from scenarios.scripts import calls
from scenarios.test_skills import activate_call, put_skill
from scenarios.tool_controller import CONTROLLED_TOOLS, ToolController

PLACES = {
    "openai": ("/v1", "messages", "tools"),
    "openai_responses": ("/v1", "input", "tools"),
    "anthropic": ("", "messages", "tools"),
    "gemini": ("", "contents", "tools"),
}
"""By type of provider: what follows its address, and the fields of messages and tools."""

SYSTEM = {"anthropic": "system", "gemini": "systemInstruction", "openai_responses": "instructions"}


@pytest.fixture(scope="module")
def skilled_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    data_dir = tmp_path_factory.mktemp("equal") / "data"
    put_skill(data_dir, "visiting", "visit_strangers")
    with ServerProcess(
        data_dir.parent, data_dir=data_dir, LUXX_TOOLS__MAX_ITERATIONS="4", **CONTROLLED_TOOLS
    ) as started_server:
        yield started_server


async def conversation_with(ann: AsyncApiClient, url: str, kind: str) -> str:
    body = {
        "name": f"{kind} {url}", "provider_type": kind, "base_url": f"{url}{PLACES[kind][0]}",
        "api_key": "a-key-of-some-length", "default_model": "scripted",
    }  # fmt: skip
    return (await ann.post("/conversations", {"provider_id": (await ann.post("/providers", body))["id"]}))[
        "id"
    ]


def check_extended(requests: list[Json], kind: str) -> None:
    """Tools and system text are equal; the messages of each request begin with those of the one before."""
    _, messages, tools = PLACES[kind]
    sent = [_without_marks(request) for request in requests]
    for before, after in pairwise(sent):
        assert after[tools] == before[tools]
        assert after.get(SYSTEM.get(kind, "")) == before.get(SYSTEM.get(kind, ""))
        assert len(after[messages]) > len(before[messages])
        assert json.dumps(after[messages][: len(before[messages])]) == json.dumps(before[messages])


def _without_marks(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_marks(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_marks(item) for key, item in value.items() if key != "cache_control"}
    return value


def _names(request: Json, kind: str) -> list[str]:
    tools = request["tools"][0]["functionDeclarations"] if kind == "gemini" else request["tools"]
    return [tool["function"]["name"] if kind == "openai" else tool["name"] for tool in tools]


@pytest.mark.parametrize("kind", PLACES)
async def test_a_skill_taint_and_the_last_call_leave_tools_and_system_text_as_they_were(
    skilled_server: ServerProcess, kind: str
) -> None:
    tools = ["visit_strangers", "visit_outside", "file_list", "activate_skill"]
    async with ToolController(answers=True) as controller, AsyncApiClient(skilled_server.url) as ann:
        rules = [
            Rule(reply=[Text(text="I begin. "), activate_call("visiting")], times=1),
            Rule(reply=list(calls("visit_strangers", controller.port, "a")), times=1),
            Rule(reply=[Call(name="file_list", arguments={}, id="hidden")], times=1),
            Rule(reply=list(calls("visit_strangers", controller.port, "b")), times=1),
            Rule(reply=[Text(text="That is all.")]),
        ]
        async with ScriptedProvider(Script(rules=rules)) as model:
            conversation = await conversation_with(ann, model.url, kind)
            run = await ann.start_run(conversation, tools=tools)
            screen = await ann.wait_for_end(run["id"])
            assert screen.text.endswith("That is all.")
            requests = [received.json for received in model.requests]
    assert len(requests) == 5
    check_extended(requests, kind)
    assert _names(requests[0], kind) == sorted([*tools, "result_read"])
    choices = [request.get("toolConfig" if kind == "gemini" else "tool_choice") for request in requests]
    none = {
        "anthropic": {"type": "none"}, "gemini": {"functionCallingConfig": {"mode": "NONE"}},
    }.get(kind, "none")  # fmt: skip
    assert choices == [None] * 4 + [none]
    refused = next(step for step in screen.ordered() if step["type"] == "tool_result" and not step["success"])
    assert refused["name"] == "file_list"
    assert "the skill visiting is active in this run" in refused["content"]
    assert "visit_strangers" in refused["content"]


async def test_a_server_that_knows_no_choice_of_none_gets_the_tools_and_no_call_is_run(
    skilled_server: ServerProcess,
) -> None:
    async with ToolController(answers=True) as controller, AsyncApiClient(skilled_server.url) as ann:
        refusal = "tool_choice: input should be 'auto' or 'required'"
        rules = [
            Rule(when=When(call=5), status=400, message=refusal),
            Rule(reply=list(calls("visit_once", controller.port, "a"))),
        ]
        async with ScriptedProvider(Script(rules=rules)) as model:
            conversation = await conversation_with(ann, model.url, "openai")
            run = await ann.start_run(conversation, tools=["visit_once"])
            screen = await ann.wait_for_end(run["id"])
            requests = [received.json for received in model.requests]
    assert [request.get("tool_choice") for request in requests] == [None] * 4 + ["none", None]
    assert requests[5]["tools"] == requests[0]["tools"]
    assert len(controller.visits) == 4
    results = [step for step in screen.ordered() if step["type"] == "tool_result"]
    assert [step["success"] for step in results] == [True] * 4 + [False]
