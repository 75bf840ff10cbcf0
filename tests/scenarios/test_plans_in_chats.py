"""Answers of chats that are made by a plan: the steps in the stream, one message, what cuts them short."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from api.server_process import ServerProcess

from luxx.providers.scripted import Call, Gate, Rule, Script, ScriptedProvider, Text, Thinking, When
from scenarios.client import AsyncApiClient, Json
from scenarios.questions import clarification, open_questions
from scenarios.restarting_client import RestartingClient
from scenarios.rooms import USUAL, RoomScreen, order
from scenarios.screen import Frame
from scenarios.test_steering_and_queue import said, until_idle, users_in, write
from scenarios.tool_controller import CONTROLLED_TOOLS

ASKED = (
    "Compare the revenue of Q3 and Q4 with what our customers say, then analyse which products sell best and "
    "write a report with recommendations for the next two quarters, and also list the risks that the team "
    "should watch in the markets where our competitors have become stronger since last year."
)
PLANNED = {"content": ASKED, "planning": "auto"}
STEPS: list[Json] = [
    {"id": "a", "name": "Revenue", "goal": "The figures."},
    {"id": "b", "name": "Customers", "goal": "What they say."},
    {"id": "c", "name": "Report", "goal": "The report.", "depends_on": ["a", "b"]},
]


def plan_rule(steps: list[Json] = STEPS, **more: Any) -> Rule:
    text = json.dumps({"steps": steps})
    return Rule(name="plan", when=When(system="Split the goal"), reply=[Text(text=text), USUAL], **more)


def step_rule(step_id: str, *reply: Any, **more: Any) -> Rule:
    said = reply or (Thinking(text=f"about {step_id}"), Text(text=f"Result of {step_id}."), USUAL)
    return Rule(name=step_id, when=When(user=rf"Your step \[{step_id}\]", **more), reply=[*said])


def answer_rule(*reply: Any) -> Rule:
    said = reply or (Thinking(text="all of it"), Text(text="The answer."), USUAL)
    return Rule(name="answer", reply=[*said])


def script(*rules: Rule) -> Script:
    """A model that plans with these rules, or plans and carries out every step, and answers."""
    if not rules:
        rules = (plan_rule(), *(step_rule(one["id"]) for one in STEPS))
    return Script(rules=[*rules, answer_rule()])


def called(model: ScriptedProvider) -> Counter[str]:
    return Counter(request.rule for request in model.requests)


async def frames_of(ann: AsyncApiClient, conversation_id: str, **message: Any) -> list[Frame]:
    run = await ann.start_run(conversation_id, **message)
    return (await ann.wait_for_end(run["id"], RoomScreen())).frames


async def test_a_complex_message_is_planned_and_its_steps_are_streamed_before_one_answer(
    server: ServerProcess,
) -> None:
    async with ScriptedProvider(script()) as model, AsyncApiClient(server.url) as ann:
        conversation_id = await ann.conversation(model.url)
        frames = await frames_of(ann, conversation_id, **PLANNED)
        events = order(frames)
        assert events[:4] == ["planning", "plan_created", "step_start", "step_start"]
        assert events[4:] == ["step_complete", "step_complete", "step_start", "step_complete", "done"]
        created = next(frame.data for frame in frames if frame.event == "plan_created")
        assert (created["task_id"], created["complexity"]) == (None, "moderate")
        assert [(one["id"], one["depends_on"]) for one in created["steps"]] == [
            ("a", []), ("b", []), ("c", ["a", "b"]),
        ]  # fmt: skip
        logged = [frame for frame in frames if frame.event == "process_step" and frame.id is not None]
        levels = {(one.data.get("step_id"), one.step["level"]) for one in logged if "level" in one.step}
        assert levels == {("a", "task"), ("b", "task"), ("c", "task"), (None, "work")}
        assert [one.step["content"] for one in logged[-2:]] == ["all of it", "The answer."]
        report = next(request for request in model.requests if request.rule == "c").json["messages"]
        assert report[1]["content"] == ASKED
        assert "Result of a." in report[-1]["content"]
        assert "Result of b." in report[-1]["content"]
        assert "Result of c." in model.requests[-1].json["messages"][-1]["content"]
        messages = await ann.messages(conversation_id)
        assert [one["role"] for one in messages] == ["user", "assistant"]
        assert (messages[1]["text"], messages[1]["status"]) == ("The answer.", "complete")
        assert messages[1]["plan_run_id"] == frames[0].data["run_id"]
        done = frames[-1].data
        assert done["message_id"] == messages[1]["id"]
        assert done["usage"]["prompt_tokens"] == messages[1]["usage"]["prompt_tokens"] == 50
        assert (await ann.get(f"/conversations/{conversation_id}"))["run_id"] is None
        # The next message is none of the plan's: it reads the answer as that of any chat.
        await frames_of(ann, conversation_id, content="hi", planning="auto")
        sent = model.requests[-1].json["messages"]
        assert [one["content"] for one in sent[1:]] == [ASKED, "The answer.", "hi"]
        assert called(model) == {"plan": 1, "a": 1, "b": 1, "c": 1, "answer": 2}


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(plan_rule(STEPS[:2]), id="two steps"),
        pytest.param(plan_rule([]), id="no steps"),
        pytest.param(
            Rule(name="plan", when=When(system="Split the goal"), reply=[Text(text="No.")]), id="text"
        ),
        pytest.param(
            Rule(name="plan", when=When(system="Split the goal"), reply=[Text(text="{"), Gate(name="late")]),
            id="late",
        ),
        pytest.param(Rule(name="plan", when=When(system="Split the goal"), status=400), id="refused"),
    ],
)
async def test_without_a_plan_of_three_steps_in_time_the_message_is_answered_directly(
    server: ServerProcess, plan: Rule
) -> None:
    async with ScriptedProvider(script(plan)) as model, AsyncApiClient(server.url) as ann:
        conversation_id = await ann.conversation(model.url)
        started = asyncio.get_running_loop().time()
        frames = await frames_of(ann, conversation_id, **PLANNED)
        assert asyncio.get_running_loop().time() - started < 15
        assert order(frames) == ["planning", "done"]
        assert model.requests[-1].json["messages"][1:] == [{"role": "user", "content": ASKED}]
        assert [one["text"] for one in await ann.messages(conversation_id)] == [ASKED, "The answer."]
        assert (await ann.messages(conversation_id))[-1]["plan_run_id"] is None
        assert called(model) == {"plan": 1, "answer": 1}


async def test_planning_comes_from_the_message_the_conversation_the_agent_or_the_settings(
    own_server: ServerProcess,
) -> None:
    async with ScriptedProvider(script(plan_rule([]))) as model, AsyncApiClient(own_server.url) as ann:
        conversation_id = await ann.conversation(model.url)

        async def is_planned(**message: Any) -> bool:
            before = called(model)["plan"]
            await frames_of(ann, conversation_id, **message)
            return called(model)["plan"] > before

        assert not await is_planned(content=ASKED)
        assert not await is_planned(content="hi", planning="auto")
        assert await is_planned(content="hi", planning="always")
        saved = await ann.ask("PUT", "/settings", {"planning": "always"})
        assert saved.json()["data"]["planning"] == "always"
        assert await is_planned(content="hi")
        agent = await ann.post("/agents", {"name": "Direct", "planning": "off"})
        assert agent["planning"] == "off"
        await ann.ask("PUT", f"/conversations/{conversation_id}", {"agent_id": agent["id"]})
        assert not await is_planned(content=ASKED)
        changed = await ann.ask("PUT", f"/conversations/{conversation_id}", {"planning": "auto"})
        assert changed.json()["data"]["planning"] == "auto"
        assert await is_planned(content=ASKED)
        assert not await is_planned(content=ASKED, planning="off")
        answer = (await ann.messages(conversation_id))[-1]
        body = {"planning": "auto"}
        again = await ann.ask(
            "POST", f"/messages/{answer['id']}/regenerate", body, headers={"accept": "application/json"}
        )
        before = called(model)["plan"]
        await ann.wait_for_end(again.json()["data"]["id"], RoomScreen())
        assert called(model)["plan"] == before + 1
        refused = await ann.ask(
            "POST", "/messages", {"conversation_id": conversation_id, "content": "hi", "planning": "maybe"}
        )
        assert (refused.status_code, "planning" in json.dumps(refused.json()["detail"])) == (400, True)


async def test_a_failed_step_skips_what_needs_it_and_the_answer_reads_what_is_missing(
    server: ServerProcess,
) -> None:
    refused = Rule(name="a", when=When(user=r"Your step \[a\]"), status=400)
    rules = (plan_rule(), refused, step_rule("b"))
    async with ScriptedProvider(script(*rules)) as model, AsyncApiClient(server.url) as ann:
        conversation_id = await ann.conversation(model.url)
        frames = await frames_of(ann, conversation_id, **PLANNED)
        ends = {
            frame.data["step_id"]: frame.data.get("status", frame.data.get("because"))
            for frame in frames
            if frame.event in ("step_complete", "step_skipped")
        }
        assert ends == {"a": "failed", "b": "completed", "c": "a"}
        read = model.requests[-1].json["messages"][-1]["content"]
        assert "Step [a] failed: " in read
        assert "Step [c] was skipped, because [a] has no result." in read
        assert "Result of b." in read
        assert (await ann.messages(conversation_id))[-1]["status"] == "complete"
        assert called(model) == {"plan": 1, "a": 1, "b": 1, "answer": 1}


async def test_steps_run_at_the_same_time_and_one_that_asks_does_not_stop_the_others(
    server: ServerProcess,
) -> None:
    asks = step_rule("a", clarification(), USUAL, has_tool_result=False)
    rules = (plan_rule(), asks, step_rule("a", has_tool_result=True), step_rule("b"), step_rule("c"))
    async with ScriptedProvider(script(*rules)) as model, AsyncApiClient(server.url) as ann:
        conversation_id = await ann.conversation(model.url)
        run = await ann.start_run(conversation_id, tools=True, **PLANNED)
        async with ann.follow(run["id"], RoomScreen()) as stream:
            asked = (await stream.until("question_asked")).data
            assert asked["step_id"] == "a"
            await ann.until_status(run["id"], "waiting")
            assert called(model)["b"] == 1
            (question,) = await open_questions(ann, run["id"])
            await ann.post(f"/runs/{run['id']}/questions/{question['id']}/answer", {"answer": "blue"})
            frames = (await stream.to_the_end()).frames
        assert order(frames)[-1] == "done"
        assert called(model) == {"plan": 1, "a": 2, "b": 1, "c": 1, "answer": 1}


@pytest.mark.parametrize("phase", ["plan", "a", "answer"])
async def test_a_cancel_in_each_phase_keeps_one_partial_answer_and_frees_the_conversation(
    server: ServerProcess, phase: str
) -> None:
    gate = (Text(text="{"), Gate(name="gate"), USUAL)
    steps = [step_rule(one["id"]) for one in STEPS]
    held = {
        "plan": [Rule(name="plan", when=When(system="Split the goal"), reply=[*gate])],
        "a": [plan_rule(), step_rule("a", *gate), step_rule("b", *gate)],
        "answer": [plan_rule(), *steps, answer_rule(*gate)],
    }[phase]
    async with ScriptedProvider(Script(rules=held)) as model, AsyncApiClient(server.url) as ann:
        conversation_id = await ann.conversation(model.url)
        run = await ann.start_run(conversation_id, **PLANNED)
        async with ann.follow(run["id"], RoomScreen()) as stream:
            await model.reached("gate")
            await model.arrived({"plan": 1, "a": 3, "answer": 5}[phase])
            assert (await ann.cancel(run["id"])).status_code == 200
            frames = (await stream.to_the_end()).frames
        assert frames[-1].data["status"] == "stopped"
        assert (await ann.run(run["id"]))["status"] == "cancelled"
        answer = (await ann.messages(conversation_id))[-1]
        assert (answer["role"], answer["status"]) == ("assistant", "partial")
        assert answer["text"] == ("{" if phase == "answer" else "")
        assert (await ann.get(f"/conversations/{conversation_id}"))["run_id"] is None


@pytest.mark.parametrize("phase", ["a", "c", "answer"])
async def test_after_kill_9_in_each_phase_no_finished_step_runs_again(
    own_server: ServerProcess, phase: str
) -> None:
    plan = json.dumps({"steps": STEPS})
    texts = {"plan": plan, "a": "Result of a.", "b": "Result of b.", "c": "Result of c.", "answer": "Yes."}
    rules = {
        "plan": When(system="Split the goal"),
        **{one: When(user=rf"Your step \[{one}\]") for one in ("a", "b", "c")},
        "answer": When(),
    }
    gate = [Gate(name="gate")]
    held = [
        Rule(name=one, when=when, reply=[*(gate if one == phase else []), Text(text=texts[one]), USUAL])
        for one, when in rules.items()
    ]
    async with ScriptedProvider(Script(rules=held)) as model, RestartingClient(own_server) as ann:
        conversation_id = await ann.conversation(model.url)
        run = await ann.start_run(conversation_id, **PLANNED)
        async with ann.follow(run["id"], RoomScreen()) as stream:
            await model.reached("gate")
            if phase == "a":
                await stream.until("step_complete")
            await ann.kill()
        model.release("gate")
        await ann.start()
        frames = (await ann.wait_for_end(run["id"], RoomScreen())).frames
        assert order(frames)[-1] == "done"
        assert called(model) == {one: 2 if one == phase else 1 for one in rules}
        answers = [one for one in await ann.messages(conversation_id) if one["role"] == "assistant"]
        assert [(one["text"], one["status"]) for one in answers] == [("Yes.", "complete")]
        assert (await ann.get(f"/conversations/{conversation_id}"))["run_id"] is None


async def test_after_kill_9_while_it_plans_a_message_is_planned_in_what_is_left_of_the_time_or_answered(
    own_server: ServerProcess,
) -> None:
    plan = Rule(
        name="plan", when=When(system="Split the goal"), reply=[Gate(name="gate"), Text(text="[]"), USUAL]
    )
    async with ScriptedProvider(script(plan)) as model, RestartingClient(own_server) as ann:
        conversation_id = await ann.conversation(model.url)
        run = await ann.start_run(conversation_id, **PLANNED)
        await model.reached("gate")
        await ann.kill()
        model.release("gate")
        await ann.start()
        frames = (await ann.wait_for_end(run["id"], RoomScreen())).frames
        assert order(frames, "retrying", "warning") == ["planning", "done"]
        assert called(model)["answer"] == 1
        assert [one["text"] for one in await ann.messages(conversation_id)] == [ASKED, "The answer."]


async def test_what_is_written_while_a_plan_is_carried_out_is_answered_after_it(
    server: ServerProcess,
) -> None:
    held = step_rule("c", Text(text="Result of c."), Gate(name="report"), USUAL)
    rules = (plan_rule(), step_rule("a"), step_rule("b"), held)
    async with ScriptedProvider(script(*rules)) as model, AsyncApiClient(server.url) as ann:
        conversation = await ann.conversation(model.url)
        run = await ann.start_run(conversation, **PLANNED)
        await model.reached("report")
        for content, mode in (("then this", "queue"), ("first this", "steer")):
            await write(ann, conversation, content, mode)
        model.release("report")
        await ann.wait_for_end(run["id"], RoomScreen())
        messages = await until_idle(ann, conversation, 6)
        written = [one["text"] for one in messages if one["role"] == "user"]
        assert written == [ASKED, "first this", "then this"]
        assert [one["text"] for one in messages[1::2]] == ["The answer."] * 3


async def test_the_answer_of_a_plan_is_steered_and_the_next_message_sent_at_its_end(tmp_path: Path) -> None:
    sum_ = Call(name="python_eval", arguments={"expression": "1 + 1"}, id="call-1")
    counts = Rule(
        name="count",
        when=When(user="^This message is not from the person: the steps", has_tool_result=False),
        reply=[Gate(name="counting"), sum_, USUAL],
    )
    rules = (plan_rule(), *(step_rule(one["id"]) for one in STEPS), counts)
    # No heartbeat comes within the test: the end of the answer itself lets the queue go on.
    rare = {"LUXX_RUNS__LEASE_SECONDS": "3600"}
    async with ScriptedProvider(script(*rules)) as model:
        with ServerProcess(tmp_path, **CONTROLLED_TOOLS, **rare) as server:
            async with AsyncApiClient(server.url) as ann:
                conversation = await ann.conversation(model.url)
                await ann.start_run(conversation, tools=["python_eval"], **PLANNED)
                await model.reached("counting")
                await write(ann, conversation, "then this", "queue")
                await write(ann, conversation, "In one line", "steer")
                model.release("counting")
                messages = await until_idle(ann, conversation, 4)
        assert [one["text"] for one in messages] == [ASKED, "The answer.", "then this", "The answer."]
        assert said(messages[1]) == ["In one line"]
        assert [users_in(one.json)[-1] for one in model.requests[-2:]] == ["In one line", "then this"]
