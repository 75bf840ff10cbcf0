"""Subagents: a call starts a run of its own and waits for it, under the limits of the run that delegates."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api.server_process import ServerProcess

from luxx.providers.scripted import Call, Counts, Gate, Rule, Script, ScriptedProvider, Text, When
from scenarios.client import AsyncApiClient, Json
from scenarios.questions import answer, clarification, open_questions
from scenarios.restarting_client import SOON_SECONDS, RestartingClient
from scenarios.scripts import calls
from scenarios.tool_controller import CONTROLLED_TOOLS, ToolController

PARENT, CHILD = "the lead", "the hand"
ASK = {"system_prompt": CHILD}


def delegates(task: str = "Count the files.", call_id: str = "call-sub", **more: Any) -> Call:
    return Call(name="delegate", arguments={"task": task, **ASK, **more}, id=call_id)


def parent(*reply: Any, then: str = "All done.") -> list[Rule]:
    """The run that delegates: this reply first, and a text when the results are in the prompt."""
    return [
        Rule(
            name="parent begins",
            when=When(system=PARENT, has_tool_result=False),
            reply=[*reply, Counts(prompt=10, completion=5)],
        ),
        Rule(
            name="parent ends",
            when=When(system=PARENT, has_tool_result=True),
            reply=[Text(text=then), Counts(prompt=20, completion=5)],
        ),
    ]


def child(*reply: Any, **more: Any) -> Rule:
    return Rule(name="child", when=When(system=CHILD, **more), reply=[*reply, Counts(prompt=7, completion=3)])


async def new_delegating_chat(ann: AsyncApiClient, model: ScriptedProvider) -> str:
    """Creates a conversation whose agent may delegate. Returns its id."""
    provider_id = await ann.connect(model.url)
    return (await ann.post("/conversations", {"provider_id": provider_id, "system_prompt": PARENT}))["id"]


async def subagents(ann: AsyncApiClient, run_id: str) -> list[Json]:
    """The child runs of this run."""
    runs = (await ann.get("/runs", page_size=100))["items"]
    return [run for run in runs if run["parent_run_id"] == run_id]


async def results(ann: AsyncApiClient, conversation: str) -> dict[str, Json]:
    message = (await ann.messages(conversation))[-1]
    tool_results = [step for step in message["steps"] if step["type"] == "tool_result"]
    return {step["id_ref"]: {**step, **json.loads(step["content"])} for step in tool_results}


def requests_of(model: ScriptedProvider, rule: str) -> list[Json]:
    return [request.json for request in model.requests if request.rule == rule]


def offered_tools(request: Json) -> set[str]:
    return {tool["function"]["name"] for tool in request.get("tools", [])}


async def test_a_subagent_works_in_a_run_of_its_own_and_its_answer_is_the_result(
    server: ServerProcess,
) -> None:
    rules = [*parent(delegates(tools=["file_list"])), child(Text(text="There are three."))]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        conversation = await new_delegating_chat(ann, model)
        screen = await ann.wait_for_end((await ann.start_run(conversation, "Go.", tools=True))["id"])
        (result,) = (await results(ann, conversation)).values()
        (run,) = await subagents(ann, screen.run_id)
        assert result["data"] == {
            "answer": "There are three.", "run_id": run["id"], "stop_reason": "finished",
        }  # fmt: skip
        assert (run["status"], run["subject_id"]) == ("completed", conversation)
        assert run["usage"]["prompt_tokens"] == 7
        results_by_call = [frame.data for frame in screen.frames if frame.event == "subagent_assigned"]
        assert [event["status"] for event in results_by_call] == ["running", "completed"]
        assert {event["subagent_run_id"] for event in results_by_call} == {run["id"]}
        own = await ann.wait_for_end(run["id"])
        assert own.text == "There are three."
        assert own.done is not None
        (request,) = requests_of(model, "child")
        assert [m["content"] for m in request["messages"]] == [CHILD, "Count the files."]
        assert offered_tools(request) == {"file_list", "result_read"}
        assert [m["role"] for m in await ann.messages(conversation)] == ["user", "assistant"]
        assert (await ann.get(f"/conversations/{conversation}"))["run_id"] is None


async def test_a_subagent_cannot_use_a_tool_that_it_was_not_given(server: ServerProcess) -> None:
    async with ToolController(answers=True) as controller:
        rules = [
            *parent(delegates(tools=["file_list"]), delegates(tools=["nothing_such"], call_id="call-more")),
            child(*calls("visit_once", controller.port, "a"), has_tool_result=False),
            child(Text(text="I could not."), has_tool_result=True),
        ]
        async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
            conversation = await new_delegating_chat(ann, model)
            run = await ann.start_run(conversation, tools=["file_list", "visit_once", "delegate"])
            await ann.wait_for_end(run["id"])
            (own,) = await subagents(ann, run["id"])
            screen = await ann.wait_for_end(own["id"])
            (refused,) = [step for step in screen.ordered() if step["type"] == "tool_result"]
            assert refused["outcome"] == "denied"
            assert controller.keys_seen() == []
            assert "nothing_such" in (await results(ann, conversation))["call-more"]["error"]


async def test_taint_passes_to_a_subagent_with_the_task_and_back_with_the_answer(
    server: ServerProcess,
) -> None:
    async with ToolController(answers=True) as controller:
        rules = [
            *parent(delegates()),
            child(*calls("visit_strangers", controller.port, "a"), has_tool_result=False),
            child(Text(text="Read."), has_tool_result=True),
        ]
        async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
            conversation = await new_delegating_chat(ann, model)
            first = await ann.wait_for_end((await ann.start_run(conversation, tools=True))["id"])
            (event,) = [frame.data for frame in first.frames if frame.event == "tainted"]
            assert event["by"] == "delegate"
            (result,) = (await results(ann, conversation)).values()
            assert result["is_untrusted"] is True
        rules = [
            Rule(name="again", when=When(system=PARENT, call=1), reply=[delegates("Tell them.")], times=1),
            child(*calls("visit_outside", controller.port, "b"), has_tool_result=False),
        ]
        async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
            provider_id = await ann.connect(model.url)
            run = await ann.start_run(conversation, "Again", tools=True, provider_id=provider_id)
            async with ann.follow(run["id"]) as stream:
                waits = await stream.until("subagent_assigned")
                while waits.data["status"] != "waiting":
                    waits = await stream.until("subagent_assigned")
                (question,) = await open_questions(ann, waits.data["subagent_run_id"])
                assert "untrusted content" in question["because"]
                await ann.cancel(run["id"])


async def test_a_question_of_a_subagent_is_asked_under_its_own_run_and_the_parent_waits(
    server: ServerProcess,
) -> None:
    rules = [
        *parent(delegates()),
        child(clarification(required=True), has_tool_result=False),
        child(Text(text="Red it is."), has_tool_result=True),
    ]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        conversation = await new_delegating_chat(ann, model)
        async with ann.send_and_follow(conversation, tools=True) as stream:
            event = await stream.until("subagent_assigned")
            while event.data["status"] != "waiting":
                event = await stream.until("subagent_assigned")
            (question,) = await open_questions(ann, event.data["subagent_run_id"])
            assert question["prompt"] == "Which colour?"
            await answer(ann, question, "red")
            await stream.to_the_end()
        (result,) = (await results(ann, conversation)).values()
        assert result["data"]["answer"] == "Red it is."


async def test_cancelling_the_parent_ends_the_subagent_and_its_call_upstream_within_a_second(
    server: ServerProcess,
) -> None:
    rules = [parent(delegates())[0], child(Text(text="Well "), Gate(name="never"))]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        conversation = await new_delegating_chat(ann, model)
        run = await ann.start_run(conversation, tools=True)
        await model.reached("never")
        (own,) = await subagents(ann, run["id"])
        async with asyncio.timeout(1.0):
            assert (await ann.cancel(run["id"])).is_success
            await model.requests[1].wait_closed(1)
            assert (await ann.wait_for_end(own["id"])).done is not None
        assert (await ann.run(own["id"]))["status"] == "cancelled"
        assert (await ann.run(run["id"]))["status"] == "cancelled"
        model.release("never")
        assert (await ann.ask("DELETE", f"/conversations/{conversation}")).is_success
        assert (await ann.ask("GET", f"/runs/{own['id']}")).status_code == 404


async def test_deleting_a_conversation_ends_its_working_subagents(server: ServerProcess) -> None:
    rules = [parent(delegates())[0], child(Text(text="Well "), Gate(name="never"))]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        conversation = await new_delegating_chat(ann, model)
        run = await ann.start_run(conversation, tools=True)
        await model.reached("never")
        (own,) = await subagents(ann, run["id"])
        assert (await ann.ask("DELETE", f"/conversations/{conversation}")).is_success
        assert (await ann.ask("GET", f"/runs/{own['id']}")).status_code == 404
        model.release("never")


async def test_a_sentence_says_why_a_subagent_ended(server: ServerProcess) -> None:
    rules = [
        *parent(delegates(), delegates("Wait.", call_id="call-stop")),
        Rule(name="gated", when=When(system=CHILD, user="Wait"), reply=[Gate(name="never")]),
        Rule(name="fails", when=When(system=CHILD), status=400, message="no such thing"),
    ]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        conversation = await new_delegating_chat(ann, model)
        run = await ann.start_run(conversation, tools=True)
        await model.reached("never")
        waiting = [
            child_run for child_run in await subagents(ann, run["id"]) if child_run["status"] == "running"
        ]
        for waiting_run in waiting:
            await ann.cancel(waiting_run["id"])
        await ann.wait_for_end(run["id"])
        results_by_call = await results(ann, conversation)
        assert "failed" in results_by_call["call-sub"]["error"]
        assert "was cancelled" in results_by_call["call-stop"]["error"]
        assert (await ann.run(run["id"]))["status"] == "completed"


ONE_SLOT = {"LUXX_LIMITS__CONCURRENT_RUNS_PER_USER": "1", "LUXX_LIMITS__CONCURRENT_RUNS": "1"}


@pytest.fixture
def crowded_server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "crowded", **(CONTROLLED_TOOLS | ONE_SLOT)) as started_server:
        yield started_server


@pytest.fixture
def bounded_server(tmp_path: Path) -> Iterator[ServerProcess]:
    limits = {
        **ONE_SLOT,
        "LUXX_LIMITS__TOKENS_PER_RUN": "4200",
        "LUXX_LIMITS__TOOL_CALLS_PER_RUN": "4",
    }
    with ServerProcess(tmp_path / "bounded", **(CONTROLLED_TOOLS | limits)) as started_server:
        yield started_server


async def test_subagents_need_no_slot_and_share_the_limits_of_their_parent(
    bounded_server: ServerProcess,
) -> None:
    rules = [
        parent(delegates(tools=[]), delegates("And more.", call_id="call-2", tools=[]))[0],
        Rule(
            name="child",
            when=When(system=CHILD),
            reply=[Text(text="Yes."), Counts(prompt=40, completion=1500)],
        ),
    ]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(bounded_server.url) as ann:
        conversation = await new_delegating_chat(ann, model)
        run = await ann.start_run(conversation, tools=["delegate"])
        await ann.wait_for_end(run["id"])
        first, second = (request["max_completion_tokens"] for request in requests_of(model, "child"))
        assert 2000 < first < 4200 - 15
        # The second subagent waited for the reservation of the first and got what was left of it.
        assert 0 < second <= 4200 - 15 - 1540
        spent = [await ann.run(run["id"]), *await subagents(ann, run["id"])]
        assert len(spent) == 3
        # Both have used nearly all tokens, so the parent has no headroom for its last answer.
        assert spent[0]["stop_reason"] == "tokens"


async def test_a_subagent_that_asked_continues_though_its_parent_has_the_only_slot(
    crowded_server: ServerProcess,
) -> None:
    rules = [
        *parent(delegates()),
        child(clarification(required=True), has_tool_result=False),
        child(Text(text="Red it is."), has_tool_result=True),
    ]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(crowded_server.url) as ann:
        conversation = await new_delegating_chat(ann, model)
        tools = ["delegate", "ask_clarification"]
        async with ann.send_and_follow(conversation, tools=tools) as stream:
            event = await stream.until("subagent_assigned")
            while event.data["status"] != "waiting":
                event = await stream.until("subagent_assigned")
            (question,) = await open_questions(ann, event.data["subagent_run_id"])
            await answer(ann, question, "red")
            await stream.to_the_end(timeout=15)
        (result,) = (await results(ann, conversation)).values()
        assert result["data"]["answer"] == "Red it is."
        message = (await ann.messages(conversation))[-1]
        assert (await ann.ask("DELETE", f"/messages/{message['id']}")).is_success
        assert (await ann.ask("GET", f"/runs/{result['data']['run_id']}")).status_code == 404


async def test_cancelling_a_parent_ends_a_subagent_that_waits_for_a_user(
    server: ServerProcess,
) -> None:
    rules = [parent(delegates())[0], child(clarification(required=True))]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        conversation = await new_delegating_chat(ann, model)
        async with ann.send_and_follow(conversation, tools=True) as stream:
            event = await stream.until("subagent_assigned")
            while event.data["status"] != "waiting":
                event = await stream.until("subagent_assigned")
            own = event.data["subagent_run_id"]
            await ann.cancel(stream.screen.run_id)
            await stream.to_the_end(timeout=5)
        assert (await ann.run(own))["status"] == "cancelled"
        assert await open_questions(ann, own) == []


async def test_a_parent_past_its_time_limit_ends_with_its_subagent(tmp_path: Path) -> None:

    with ServerProcess(tmp_path / "timed", LUXX_LIMITS__SECONDS_PER_RUN="2") as timed:
        server = timed
        rules = [parent(delegates())[0], child(Text(text="Well "), Gate(name="never"))]
        async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
            conversation = await new_delegating_chat(ann, model)
            run = await ann.start_run(conversation, tools=["delegate"])
            await model.reached("never")
            (own,) = await subagents(ann, run["id"])
            await ann.wait_for_end(run["id"])
            await ann.wait_for_end(own["id"])
            assert (await ann.run(run["id"]))["stop_reason"] == "time"
            assert (await ann.run(own["id"]))["stop_reason"] in ("cancelled", "time")
            await model.requests[1].wait_closed(1)
            model.release("never")


async def test_tool_calls_of_a_subagent_count_for_its_parent(bounded_server: ServerProcess) -> None:
    async with ToolController(answers=True) as controller:
        many = calls("visit_once", controller.port, *"abcdef")
        rules = [
            # With the tools of its parent, its last call would not fit the tokens of the run.
            *parent(delegates(tools=["visit_once"])),
            child(*many, has_tool_result=False),
            child(Text(text="Enough."), has_tool_result=True),
        ]
        async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(bounded_server.url) as ann:
            conversation = await new_delegating_chat(ann, model)
            await ann.wait_for_end(
                (await ann.start_run(conversation, tools=["delegate", "visit_once"]))["id"]
            )
            assert len(controller.visits) == 3
            (last,) = requests_of(model, "parent ends")
            assert last["tool_choice"] == "none"


async def test_delegation_is_refused_past_the_maximum_depth(server: ServerProcess) -> None:
    deeper = Call(name="delegate", arguments={"task": "Deeper.", "system_prompt": "the deep"}, id="deeper")
    deepest = Call(name="delegate", arguments={"task": "Deepest."}, id="deepest")
    rules = [
        *parent(delegates()),
        child(deeper, has_tool_result=False),
        child(Text(text="Up."), has_tool_result=True),
        Rule(name="deep", when=When(system="the deep", has_tool_result=False), reply=[deepest]),
        Rule(name="deep ends", when=When(system="the deep"), reply=[Text(text="No deeper.")]),
    ]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        conversation = await new_delegating_chat(ann, model)
        run = await ann.start_run(conversation, tools=True)
        await ann.wait_for_end(run["id"])
        (own,) = await subagents(ann, run["id"])
        (below,) = await subagents(ann, own["id"])
        assert await subagents(ann, below["id"]) == []
        assert "delegate" in offered_tools(requests_of(model, "child")[0])
        assert "delegate" not in offered_tools(requests_of(model, "deep")[0])


@pytest.mark.heavy
async def test_killed_during_a_subagent_the_parent_gets_the_answer_of_the_same_one(
    own_server: ServerProcess,
) -> None:
    rules = [
        *parent(delegates()),
        child(Text(text="Half "), Gate(name="killed here"), call=1),
        child(Text(text="Whole.")),
    ]
    async with ScriptedProvider(Script(rules=rules)) as model, RestartingClient(own_server) as ann:
        conversation = await new_delegating_chat(ann, model)
        run = await ann.start_run(conversation, tools=True)
        await model.reached("killed here")
        await ann.kill_and_start()
        await model.arrived(3, SOON_SECONDS)
        screen = await ann.follow_to_end(run["id"])
        (own,) = await subagents(ann, run["id"])
        assert own["status"] == "completed"
        (result,) = (await results(ann, conversation)).values()
        assert result["data"]["answer"] == "Whole."
        assert screen.text == "All done."
        assert len(requests_of(model, "parent begins")) == len(requests_of(model, "parent ends")) == 1


@pytest.mark.heavy
async def test_killed_while_a_subagent_waits_for_a_user_it_still_waits(own_server: ServerProcess) -> None:
    rules = [
        *parent(delegates()),
        child(clarification(required=True), has_tool_result=False),
        child(Text(text="Red it is."), has_tool_result=True),
    ]
    async with ScriptedProvider(Script(rules=rules)) as model, RestartingClient(own_server) as ann:
        conversation = await new_delegating_chat(ann, model)
        async with ann.send_and_follow(conversation, tools=True) as stream:
            event = await stream.until("subagent_assigned")
            while event.data["status"] != "waiting":
                event = await stream.until("subagent_assigned")
            run_id = stream.screen.run_id
            await ann.kill()
        await ann.start()
        (question,) = await open_questions(ann, event.data["subagent_run_id"])
        await answer(ann, question, "red")
        await ann.follow_to_end(run_id)
        assert len(await subagents(ann, run_id)) == 1
        (result,) = (await results(ann, conversation)).values()
        assert result["data"]["answer"] == "Red it is."


async def kill_after_event(ann: RestartingClient, event_id: int) -> bool:
    """A turn with two subagents whose server is killed when its client has this event. Returns whether it was
    the last event."""
    rules = [
        *parent(delegates(), delegates("And more.", call_id="call-2")),
        child(Text(text="Yes.")),
    ]
    async with ScriptedProvider(Script(rules=rules)) as model:
        conversation = await new_delegating_chat(ann, model)
        async with ann.send_and_follow(conversation, tools=["delegate"]) as stream:
            screen = stream.screen
            async for frame in stream:
                if frame.id == event_id:
                    break
            await ann.kill()
        await ann.start()
        await ann.follow_to_end(screen.run_id, screen)
        own = await subagents(ann, screen.run_id)
        assert [run["status"] for run in own] == ["completed", "completed"]
        answers = {call: one["data"]["answer"] for call, one in (await results(ann, conversation)).items()}
        assert answers == {"call-sub": "Yes.", "call-2": "Yes."}
        assert screen.text == "All done."
        return screen.last_id <= event_id


@pytest.mark.heavy
@pytest.mark.parametrize("first", [1, 2, 3])
async def test_killed_after_any_logged_event_there_is_one_subagent_for_each_call(
    own_server: ServerProcess, first: int
) -> None:
    """Every third event; the three cases cover all."""

    async with RestartingClient(own_server) as ann:
        event_id = first
        while not await kill_after_event(ann, event_id):
            event_id += 3
        assert event_id > 9


async def test_a_named_agent_does_the_task_with_its_own_template(server: ServerProcess) -> None:
    rules = [
        *parent(
            Call(name="delegate", arguments={"task": "Review.", "agent": "reviewer"}, id="call-sub"),
            Call(name="delegate", arguments={"task": "Review.", "agent": "nobody"}, id="call-unknown"),
            Call(name="delegate", arguments={"task": "Review.", "agent": "stranded"}, id="call-stranded"),
        ),
        Rule(name="child", when=When(system="Be strict."), reply=[Text(text="One problem.")]),
    ]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        conversation = await new_delegating_chat(ann, model)
        template = {"system_prompt": "Be strict.", "tools": ["file_read"], "temperature": 0.1}
        agent = await ann.post("/agents", {"name": "Reviewer", **template})
        gone = await ann.connect(f"{model.url}/")
        await ann.post("/agents", {"name": "Stranded", "provider_id": gone})
        assert (await ann.ask("DELETE", f"/providers/{gone}")).is_success
        screen = await ann.wait_for_end((await ann.start_run(conversation, "Go.", tools=True))["id"])
        by_call = await results(ann, conversation)
        assert by_call["call-sub"]["data"]["answer"] == "One problem."
        assert "there is no agent named 'nobody'" in by_call["call-unknown"]["error"]
        assert "of the agent 'Stranded' was deleted or is no longer" in by_call["call-stranded"]["error"]
        (request,) = requests_of(model, "child")
        assert request["messages"][0]["content"] == "Be strict."
        assert request["temperature"] == 0.1
        assert offered_tools(request) == {"file_read", "result_read"}
        (run,) = (await ann.get(f"/agents/{agent['id']}/activities"))["items"]
        assert (run["parent_run_id"], run["status"]) == (screen.run_id, "completed")
        stats = await ann.get(f"/agents/{agent['id']}/stats")
        assert (stats["total_invocations"], stats["success_rate"], stats["last_used_at"]) == (
            1, 1.0, run["created_at"],
        )  # fmt: skip
        assert stats["total_tokens"] == run["usage"]["total_tokens"] > 0


async def test_the_denials_of_an_agent_hold_in_runs_that_it_delegates_to_another(
    server: ServerProcess,
) -> None:
    write = Call(name="file_write", arguments={"path": "a.txt", "content": "a"}, id="call-write")
    rules = [
        *parent(Call(name="delegate", arguments={"task": "Write.", "agent": "Writer"}, id="call-sub")),
        Rule(name="child", when=When(system="Write.", has_tool_result=False), reply=[write]),
        Rule(
            name="child ends", when=When(system="Write.", has_tool_result=True), reply=[Text(text="Tried.")]
        ),
    ]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        provider_id = await ann.connect(model.url)
        lead = await ann.post(
            "/agents", {"name": "Lead", "system_prompt": PARENT, "provider_id": provider_id}
        )
        writer = await ann.post("/agents", {"name": "Writer", "system_prompt": "Write."})
        for agent, action in ((lead, "deny"), (writer, "allow")):
            rule: Any = [{"tool": "file_write", "action": action}]
            saved = await ann.ask("PUT", "/permissions/rules", rule, scope="agent", id=agent["id"])
            assert saved.is_success
        for agent, outcomes in ((lead, ["denied"]), (None, [])):
            body = {"provider_id": provider_id, "system_prompt": PARENT}
            body |= {} if agent is None else {"agent_id": agent["id"]}
            conversation = (await ann.post("/conversations", body))["id"]
            run = await ann.start_run(conversation, "Go.", tools=True)
            await ann.wait_for_end(run["id"])
            (own,) = await subagents(ann, run["id"])
            screen = await ann.wait_for_end(own["id"])
            found = [step.get("outcome") for step in screen.ordered() if step["type"] == "tool_result"]
            assert [outcome for outcome in found if outcome] == outcomes
