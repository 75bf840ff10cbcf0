"""The requests of one run: tools and system text are equal, and each request extends the one before it."""

import asyncio
import json
from base64 import b64encode
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from api.server_process import ServerProcess
from files.sample_files import png
from sqlalchemy import create_engine
from sqlalchemy import text as text_query

from luxx.providers.scripted import Call, Gate, Rule, Script, ScriptedProvider, Text, When
from luxx.runs.turn.pins import delete_unused_pins
from scenarios.client import AsyncApiClient, Json
from scenarios.restarting_client import RestartingClient
from scenarios.scripts import calls
from scenarios.test_skills import activate_call, put_skill
from scenarios.tool_controller import CONTROLLED_TOOLS, ToolController

MESSAGES = {
    "openai": "messages",
    "openai_responses": "input",
    "anthropic": "messages",
    "gemini": "contents",
}
"""The field of the messages, by the type of a provider."""

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
    return (await ann.post("/conversations", {"provider_id": await ann.connect(url, kind)}))["id"]


def check_extended(requests: list[Json], kind: str) -> None:
    """Tools and system text are equal; the messages of each request begin with those of the one before."""
    messages = MESSAGES[kind]
    sent = [_without_marks(request) for request in requests]
    for before, after in pairwise(sent):
        assert after["tools"] == before["tools"]
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


@pytest.mark.parametrize("kind", MESSAGES)
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
            *(Rule(reply=list(calls("visit_once", controller.port, key)), times=1) for key in "abcde"),
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


async def test_a_killed_run_goes_on_with_the_tools_and_skills_that_it_began_with(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    put_skill(data_dir, "visiting", None)
    tools = ["activate_skill", "file_list", "visit_once"]
    script = Script(
        rules=[
            Rule(when=When(has_tool_result=False), reply=[activate_call("visiting")]),
            Rule(when=When(has_tool_result=True), reply=[Text(text="Now "), Gate(name="killed")], times=1),
            Rule(reply=[Text(text="Done.")]),
        ]
    )
    with ServerProcess(tmp_path, **CONTROLLED_TOOLS) as server:
        async with ScriptedProvider(script) as model, RestartingClient(server) as ann:
            conversation = await ann.conversation(model.url)
            run = await ann.start_run(conversation, tools=tools)
            await model.reached("killed")
            # Without pins the next drive would offer no `file_list` and describe the skill differently.
            rule = {"tool": "file_list", "pattern": "*", "action": "deny"}
            assert (await ann.ask("PUT", "/permissions/rules?scope=user", [rule])).is_success  # type: ignore[arg-type]
            skill = data_dir / "skills" / "visiting" / "SKILL.md"
            text = await asyncio.to_thread(skill.read_text, "utf-8")
            await asyncio.to_thread(skill.write_text, text.replace("Is for visiting", "Was changed"), "utf-8")
            await ann.kill_and_start()
            await ann.follow_to_end(run["id"])
            first, lost, again = [received.json for received in model.requests]
            assert again == lost
            assert again["tools"] == first["tools"]
            assert again["messages"][0] == first["messages"][0]
            assert "Is for visiting" in json.dumps(first)
            # A new run has what holds now.
            await ann.wait_for_end((await ann.start_run(conversation, "Again.", tools=tools))["id"])
            last = model.requests[-1].json
            assert _names(last, "openai") == ["activate_skill", "result_read", "visit_once"]
            assert "Was changed" in json.dumps(last["messages"][0])
        server.kill()
    engine = create_engine(f"sqlite:///{data_dir / 'luxx.db'}")
    count = text_query("SELECT (SELECT count(*) FROM prompt_parts), (SELECT count(*) FROM run_prompt_parts)")
    with engine.begin() as connection:
        assert tuple(connection.execute(count).one()) == (6, 6)
        delete_unused_pins(connection)
        assert tuple(connection.execute(count).one()) == (0, 0)
    engine.dispose()


async def test_images_stay_until_their_limit_and_then_the_older_half_is_left_out(
    skilled_server: ServerProcess,
) -> None:
    async with (
        ScriptedProvider(Script(rules=[Rule(reply=[Text(text="I see.")])])) as model,
        AsyncApiClient(skilled_server.url) as ann,
    ):
        conversation = await ann.conversation(model.url)
        for number in range(23):
            picture = {"name": f"{number}.png", "data": b64encode(png(number)).decode()}
            run = await ann.start_run(conversation, "Look.", tools=False, attachments=[picture])
            await ann.wait_for_end(run["id"])
        requests = [received.json["messages"] for received in model.requests]
    counts = [json.dumps(messages).count('"image_url": {') for messages in requests]
    assert counts == [*range(1, 21), 10, 11, 12]
    extends = [after[: len(before)] == before for before, after in pairwise(requests)]
    assert extends == [True] * 19 + [False] + [True] * 2
