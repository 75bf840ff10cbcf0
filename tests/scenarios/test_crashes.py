"""kill -9 at chosen moments: the run continues by itself, and nothing acknowledged is lost or repeated."""

import asyncio
import random

import pytest
from api.server_process import ServerProcess

from luxx.providers.scripted import (
    Counts,
    Gate,
    Received,
    Rule,
    Script,
    ScriptedProvider,
    Text,
    Thinking,
    When,
)
from scenarios.restarting_client import (
    SOON_SECONDS,
    RestartingClient,
    check_completed,
    finished_text,
    read_until_text,
)
from scenarios.scripts import (
    FIRST_THOUGHT,
    PREFACE,
    PROSE,
    SECOND_THOUGHT,
    always_replies,
    calls,
    two_iterations,
    words,
)
from scenarios.tool_controller import ToolController

pytestmark = pytest.mark.heavy


def gate_before_the_end(port: int, gate: str) -> Script:
    """Two iterations; the last call has sent everything except its end, and waits."""
    first, second = two_iterations(port).rules
    reply = [*second.reply[:-1], Gate(name=gate), second.reply[-1]]
    return Script(rules=[first, Rule(name=second.name, when=second.when, reply=reply)])


def requests_of(model: ScriptedProvider, rule: str) -> list[Received]:
    return [request for request in model.requests if request.rule == rule]


async def test_killed_during_an_answer_the_run_continues_by_itself(own_server: ServerProcess) -> None:
    reply = [Thinking(text=FIRST_THOUGHT), *words(PROSE, "middle"), Counts(prompt=1, completion=2)]
    async with ScriptedProvider(always_replies(*reply)) as model, RestartingClient(own_server) as ann:
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation) as stream:
            await model.reached("middle")
            await read_until_text(stream, "word109 ")
            screen = stream.screen
            await ann.kill()
        await model.requests[0].wait_closed(5)
        model.release("middle")
        await ann.start()
        await model.arrived(2, SOON_SECONDS)
        await ann.follow_to_end(screen.run_id, screen)
        message = await check_completed(ann, conversation, screen)
        assert finished_text(message) == PROSE
        assert len(model.requests) == 2


async def test_the_run_continues_without_any_client(own_server: ServerProcess) -> None:
    script = Script(
        rules=[
            Rule(when=When(call=1), reply=words(PROSE, "middle")),
            Rule(when=When(call=2), reply=[Text(text="All anew."), Gate(name="last")]),
        ]
    )
    async with ScriptedProvider(script) as model, RestartingClient(own_server) as ann:
        conversation = await ann.conversation(model.url)
        run = await ann.start_run(conversation)
        await model.reached("middle")
        await ann.kill_and_start()
        await model.reached("last", SOON_SECONDS)
        model.release("last")
        screen = await ann.wait_for_end(run["id"])
        assert finished_text(await check_completed(ann, conversation, screen)) == "All anew."


async def test_a_message_whose_run_was_acknowledged_survives_a_kill_at_once(
    own_server: ServerProcess,
) -> None:
    async with (
        ScriptedProvider(always_replies(Text(text=PROSE))) as model,
        RestartingClient(own_server) as ann,
    ):
        conversation = await ann.conversation(model.url)
        run = await ann.start_run(conversation, "Keep this")
        await ann.kill_and_start()
        screen = await ann.follow_to_end(run["id"])
        message = await check_completed(ann, conversation, screen)
        assert finished_text(message) == PROSE
        assert (await ann.messages(conversation))[0]["text"] == "Keep this"


async def test_a_tool_that_a_crash_interrupted_is_not_run_twice_and_the_model_learns_of_it(
    own_server: ServerProcess,
) -> None:
    async with (
        ToolController() as controller,
        ScriptedProvider(two_iterations(controller.port)) as model,
        RestartingClient(own_server) as ann,
    ):
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation, tools=["visit_once"]) as stream:
            await controller.wait_for_visit(2)
            answered = controller.visits[0].key
            controller.visits[0].answer(f"done {answered}")
            await stream.until("process_step", type="tool_result")
            screen = stream.screen
            await ann.kill()
        await ann.start()
        await ann.follow_to_end(screen.run_id, screen)
        message = await check_completed(ann, conversation, screen)
        assert finished_text(message) == PREFACE + PROSE
        assert sorted(controller.keys_seen()) == ["a", "b"]
        calls_made = {s["id_ref"]: s for s in message["steps"] if s["type"] == "tool_call"}
        results = {s["id_ref"]: s for s in message["steps"] if s["type"] == "tool_result"}
        cut = "call-b" if answered == "a" else "call-a"
        assert calls_made[cut]["status"] == "interrupted"
        assert results[cut]["success"] is False
        assert calls_made[f"call-{answered}"]["status"] == "done"
        assert f"done {answered}" in results[f"call-{answered}"]["content"]
        assert len(requests_of(model, "first call")) == len(requests_of(model, "second call")) == 1
        sent_messages = requests_of(model, "second call")[0].json["messages"]
        tool_messages = {m["tool_call_id"]: m["content"] for m in sent_messages if m["role"] == "tool"}
        assert set(tool_messages) == {"call-a", "call-b"}
        assert tool_messages[cut] != tool_messages[f"call-{answered}"]
        assert '"success":true' not in tool_messages[cut].replace(" ", "")


async def test_a_repeatable_tool_that_a_crash_interrupted_is_run_again(own_server: ServerProcess) -> None:
    async with (
        ToolController() as controller,
        ScriptedProvider(two_iterations(controller.port, tool="visit_again")) as model,
        RestartingClient(own_server) as ann,
    ):
        conversation = await ann.conversation(model.url)
        run = await ann.start_run(conversation, tools=["visit_again"])
        await controller.wait_for_visit(2)
        await ann.kill_and_start()
        await controller.wait_for_visit(4, SOON_SECONDS)
        for visit in controller.visits[2:]:
            visit.answer(f"done {visit.key}")
        screen = await ann.follow_to_end(run["id"])
        message = await check_completed(ann, conversation, screen)
        results = [s for s in message["steps"] if s["type"] == "tool_result"]
        assert [result["success"] for result in results] == [True, True]
        assert len(model.requests) == 2


async def kill_after_event(ann: RestartingClient, event_id: int) -> bool:
    """A turn whose server is killed when its client has this event. Returns whether it was the last event."""
    async with (
        ToolController(answers=True) as controller,
        ScriptedProvider(two_iterations(controller.port)) as model,
    ):
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation, tools=["visit_once"]) as stream:
            screen = stream.screen
            async for frame in stream:
                if frame.id == event_id:
                    break
            await ann.kill()
        completions = screen.events().count("cost_update")
        await ann.start()
        await ann.follow_to_end(screen.run_id, screen)
        message = await check_completed(ann, conversation, screen)
        assert finished_text(message) == PREFACE + PROSE
        firsts, seconds = len(requests_of(model, "first call")), len(requests_of(model, "second call"))
        assert firsts <= (1 if completions >= 1 else 2)
        assert seconds <= (1 if completions >= 2 else 2)
        assert firsts + seconds <= 2 + 1
        assert len(set(controller.keys_seen())) == len(controller.keys_seen()) <= 2, "a tool was run twice"
        assert screen.events().count("cost_update") == 2
        last = requests_of(model, "second call")[-1].json["messages"]
        assert sorted(m["tool_call_id"] for m in last if m["role"] == "tool") == ["call-a", "call-b"]
        return screen.last_id <= event_id


@pytest.mark.parametrize("first", [1, 2, 3])
async def test_killed_after_any_logged_event_the_run_completes_and_repeats_nothing_logged(
    own_server: ServerProcess, first: int
) -> None:
    """Every third event; the three cases cover all, also those between the model call and the tools."""

    async with RestartingClient(own_server) as ann:
        event_id = first
        while not await kill_after_event(ann, event_id):
            event_id += 3
        assert event_id > 9


async def test_killed_during_the_final_write_the_message_exists_once_and_complete(
    own_server: ServerProcess,
) -> None:
    chance = random.Random(20)

    async def one(ann: RestartingClient) -> None:
        async with (
            ToolController(answers=True) as controller,
            ScriptedProvider(gate_before_the_end(controller.port, "end")) as model,
        ):
            conversation = await ann.conversation(model.url)
            async with ann.send_and_follow(conversation, tools=["visit_once"]) as stream:
                await model.reached("end")
                await read_until_text(stream, PROSE)
                screen = stream.screen
                model.release("end")
                # This is no wait for an event: the kill may come at any point of the next milliseconds.
                await asyncio.sleep(chance.uniform(0, 0.02))
                await ann.kill()
            await ann.start()
            await ann.follow_to_end(screen.run_id, screen)
            message = await check_completed(ann, conversation, screen)
            assert finished_text(message) == PREFACE + PROSE
            assert len(requests_of(model, "first call")) == 1
            assert len(requests_of(model, "second call")) <= 2
            assert sorted(controller.keys_seen()) == ["a", "b"]

    async with RestartingClient(own_server) as ann:
        for _ in range(4):
            await one(ann)


async def test_killed_three_times_at_three_points_the_run_still_completes(own_server: ServerProcess) -> None:
    async with ToolController() as controller, RestartingClient(own_server) as ann:
        script = Script(
            rules=[
                Rule(
                    name="first call",
                    when=When(has_tool_result=False, call=1),
                    reply=[Thinking(text=FIRST_THOUGHT), *words(PREFACE, "one")],
                ),
                Rule(
                    name="first call",
                    when=When(has_tool_result=False),
                    reply=[Text(text=PREFACE), *calls("visit_once", controller.port, "a")],
                ),
                Rule(
                    name="second call",
                    when=When(has_tool_result=True, call=1),
                    reply=[Thinking(text=SECOND_THOUGHT), *words(PROSE, "two")],
                ),
                Rule(name="second call", when=When(has_tool_result=True), reply=[Text(text=PROSE)]),
            ]
        )
        async with ScriptedProvider(script) as model:
            conversation = await ann.conversation(model.url)
            run = await ann.start_run(conversation, tools=["visit_once"])
            seeing = asyncio.create_task(ann.follow_to_end(run["id"]))
            await model.reached("one")
            await ann.kill_and_start()
            await controller.wait_for_visit(1, SOON_SECONDS)
            await ann.kill_and_start()
            await model.reached("two", SOON_SECONDS)
            await ann.kill_and_start()
            message = await check_completed(ann, conversation, await seeing)
            assert finished_text(message) == PREFACE + PROSE
            assert controller.keys_seen() == ["a"]
            assert len(requests_of(model, "first call")) == len(requests_of(model, "second call")) == 2


async def test_killed_before_a_retry_the_call_is_made_after_the_start(
    own_server: ServerProcess,
) -> None:
    script = Script(
        rules=[
            Rule(status=429, headers={"retry-after": "25"}, times=1),
            Rule(reply=[Text(text="Now then.")]),
        ]
    )
    async with ScriptedProvider(script) as model, RestartingClient(own_server) as ann:
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation) as stream:
            await stream.until("retrying")
            screen = stream.screen
            await ann.kill()
        await ann.start()
        await ann.follow_to_end(screen.run_id, screen)
        assert finished_text(await check_completed(ann, conversation, screen)) == "Now then."
        assert len(model.requests) == 2
