"""Several tasks in one call of `delegate`: side by side, or in their order with the answers before them."""

import asyncio
from typing import Any

import pytest
from api.server_process import ServerProcess

from luxx.providers.scripted import Call, Gate, Rule, Script, ScriptedProvider, Text, When
from scenarios.client import AsyncApiClient, Json
from scenarios.scripts import calls
from scenarios.test_delegation import (
    ASK,
    CHILD,
    new_delegating_chat,
    parent,
    requests_of,
    results,
    subagents,
)
from scenarios.tool_controller import ToolController

NAMES = ("alpha", "beta", "gamma")
TASKS = [{"task": f"Look at {name}."} for name in NAMES]


def several(tasks: list[Json], call_id: str = "call-all", **more: Any) -> Call:
    return Call(name="delegate", arguments={"tasks": tasks, **ASK, **more}, id=call_id)


def looks(name: str, *reply: Any, **more: Any) -> Rule:
    """The subagent whose task is about this, by the first words of what it is sent."""
    return Rule(name=name, when=When(system=CHILD, user=rf"\ALook at {name}\."), reply=[*reply], **more)


def assigned(screen: Any) -> list[Json]:
    return [frame.data for frame in screen.frames if frame.event == "subagent_assigned"]


async def test_parallel_tasks_run_at_once_and_each_has_its_answer_or_its_error(server: ServerProcess) -> None:
    strange = [{"task": "Rest.", "agent": "Sleeper"}, {"task": "Hide.", "agent": "nobody"}]
    rules = [
        *parent(several([*TASKS, *strange])),
        *(looks(name, Gate(name=name), Text(text=f"{name} is fine.")) for name in NAMES[:2]),
        looks("gamma", status=400, message="no such thing"),
    ]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        conversation = await new_delegating_chat(ann, model)
        sleeper = await ann.post("/agents", {"name": "Sleeper", "enabled": False})
        run = await ann.start_run(conversation, tools=True)
        for name in NAMES[:2]:
            await model.reached(name)
        for name in NAMES[:2]:
            model.release(name)
        screen = await ann.wait_for_end(run["id"])
        (result,) = (await results(ann, conversation)).values()
        data = result["data"]
        assert (data["strategy"], data["answered"], data["failed"]) == ("parallel", 2, 3)
        assert [each["task"] for each in data["results"]] == [each["task"] for each in [*TASKS, *strange]]
        assert [each.get("answer") for each in data["results"]] == [
            "alpha is fine.", "beta is fine.", None, None, None,
        ]  # fmt: skip
        refusals = [each.get("error", "") for each in data["results"]]
        assert "failed: " in refusals[2]
        assert refusals[3] == "the agent 'Sleeper' is disabled; enable it, or choose another agent"
        assert refusals[4].startswith("there is no agent named 'nobody'")
        events = assigned(screen)
        assert [(one["index"], one["status"]) for one in events[:3]] == [(at, "running") for at in range(3)]
        ends = sorted((one["index"], one["status"]) for one in events[3:])
        assert ends == [(0, "completed"), (1, "completed"), (2, "failed")]
        shared = {(one["strategy"], one["agent_id"], one["agent_name"], one["by"]) for one in events}
        assert shared == {("parallel", None, "", "model")}
        assert len(await subagents(ann, run["id"])) == 3
        assert (await ann.get(f"/agents/{sleeper['id']}/activities"))["items"] == []


async def test_each_task_of_a_sequence_has_the_answers_before_it_and_the_taint(server: ServerProcess) -> None:
    async with ToolController(answers=True) as controller:
        tasks = [{**TASKS[0], "agent": "seer"}, *TASKS[1:]]
        rules = [
            *parent(several(tasks, strategy="sequential", system_prompt=CHILD)),
            Rule(
                name="alpha",
                when=When(system=CHILD, user=r"\ALook at alpha", has_tool_result=False),
                reply=[*calls("visit_strangers", controller.port, "a")],
            ),
            looks("alpha", Text(text="Alpha is old.")),
            looks("beta", status=400, message="no such thing"),
            Rule(
                name="gamma",
                when=When(system=CHILD, user=r"\ALook at gamma", has_tool_result=False),
                reply=[Call(name="file_list", arguments={}, id="call-list")],
            ),
            looks("gamma", Text(text="Gamma is new.")),
        ]
        async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
            conversation = await new_delegating_chat(ann, model)
            seer = await ann.post("/agents", {"name": "Seer"})
            run = await ann.start_run(conversation, tools=True)
            screen = await ann.wait_for_end(run["id"])
            (beta,), (gamma, _) = requests_of(model, "beta"), requests_of(model, "gamma")
            given = gamma["messages"][-1]["content"]
            assert beta["messages"][-1]["content"] == (
                "Look at beta.\n\nWhat was done before this task:\n\n"
                "## Task 1: Look at alpha.\n\nAlpha is old."
            )
            assert "## Task 1: Look at alpha.\n\nAlpha is old." in given
            assert "## Task 2: Look at beta.\n\nIt was not done: the subagent" in given
            events = [(one["index"], one["status"], one["agent_name"]) for one in assigned(screen)]
            assert events == [
                (0, "running", "Seer"), (0, "completed", "Seer"), (1, "running", ""), (1, "failed", ""),
                (2, "running", ""), (2, "completed", ""),
            ]  # fmt: skip
            assert {one["agent_id"] for one in assigned(screen)} == {seer["id"], None}
            (result,) = (await results(ann, conversation)).values()
            assert result["is_untrusted"] is True
            assert [each.get("answer") for each in result["data"]["results"]] == [
                "Alpha is old.", None, "Gamma is new.",
            ]  # fmt: skip
            last = assigned(screen)[-1]["subagent_run_id"]
            tainted = [frame for frame in (await ann.wait_for_end(last)).frames if frame.event == "tainted"]
            assert [frame.data["by"] for frame in tainted] == ["delegate"]


@pytest.mark.parametrize("strategy", ["parallel", "sequential"])
async def test_a_cancel_ends_all_subagents_of_a_call(server: ServerProcess, strategy: str) -> None:
    started = NAMES if strategy == "parallel" else NAMES[:1]
    rules = [
        parent(several(TASKS, strategy=strategy))[0],
        *(looks(name, Text(text="Well "), Gate(name=name)) for name in started),
    ]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        conversation = await new_delegating_chat(ann, model)
        run = await ann.start_run(conversation, tools=True)
        for name in started:
            await model.reached(name)
        async with asyncio.timeout(2):
            assert (await ann.cancel(run["id"])).is_success
            for one in model.requests[1:]:
                await one.wait_closed(1)
        ended = [one["status"] for one in await subagents(ann, run["id"])]
        assert ended == ["cancelled"] * len(started)
        for name in started:
            model.release(name)


async def test_wrong_arguments_of_delegate_are_named_and_start_nothing(server: ServerProcess) -> None:
    wrong: dict[str, tuple[Json, str]] = {
        "none": ({}, "give either task, for one subagent, or tasks, for several"),
        "both": ({"task": "a", "tasks": TASKS}, "give either task"),
        "empty": ({"tasks": []}, "tasks"),
        "many": ({"tasks": TASKS * 7}, "tasks"),
        "bare": ({"tasks": ["a"]}, "tasks"),
        "blank": ({"tasks": [{"task": ""}]}, "task"),
        "long": ({"tasks": [{"task": "a" * 40_001}]}, "task"),
        "null": ({"task": None}, "task"),
        "extra": ({"tasks": [{"task": "a", "model": "b"}]}, "model"),
        "strategy": ({"tasks": TASKS, "strategy": "random"}, "strategy"),
        "tools": (
            {"tasks": TASKS, "tools": ["nothing_such"]},
            "none of the tasks has an answer. 1: you cannot",
        ),
        "agents": ({"tasks": TASKS, "agent": "nobody"}, "3: there is no agent named 'nobody'"),
    }
    asked = [Call(name="delegate", arguments=arguments, id=name) for name, (arguments, _) in wrong.items()]
    rules = parent(*asked)
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        conversation = await new_delegating_chat(ann, model)
        run = await ann.start_run(conversation, tools=True)
        await ann.wait_for_end(run["id"])
        found = await results(ann, conversation)
        missing = {
            name: found[name]["error"]
            for name, (_, said) in wrong.items()
            if said not in found[name]["error"]
        }
        assert missing == {}
        assert await subagents(ann, run["id"]) == []
