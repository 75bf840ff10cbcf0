"""Long answers on two servers of one PostgreSQL: to-do lists, the queue, compressions, plans, checks and
failed providers are the same at both, also when one is killed."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from datetime import datetime
from typing import NamedTuple

import pytest
from api.server_process import ServerProcess
from store.databases import new_database

from luxx.providers.scripted import Call, Gate, Rule, Script, ScriptedProvider, Text, When
from scenarios.client import AsyncApiClient
from scenarios.conftest import SMALL_WINDOWS
from scenarios.rooms import RoomScreen, new_room, replies, started
from scenarios.test_checks import BY_MODEL, JUDGE, USAGE, answers, conversation_with, judges, verdicts
from scenarios.test_compressing import long_conversation, refusal_of
from scenarios.test_compressing import script as compressing
from scenarios.test_fallback_providers import agent_with_fallbacks, answer_and_warnings
from scenarios.test_long_turns import SUMMARY
from scenarios.test_plans_in_chats import PLANNED, STEPS, answer_rule, called, plan_rule, step_rule
from scenarios.test_steering_and_queue import said, until_idle, waiting, write
from scenarios.test_summaries import summary_rule
from scenarios.test_todos import TOOLS, A, B, item, last, look, put, rule, sent, todos
from scenarios.test_todos import write as write_list
from scenarios.tool_controller import CONTROLLED_TOOLS

pytestmark = pytest.mark.heavy


class Pair(NamedTuple):
    """`slow_run`: a run at the second server, whose judge does not answer."""

    first: ServerProcess
    second: ServerProcess
    slow_run: str


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, postgresql: str) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("long-work")
    environment = {
        "LUXX_DATABASE__URL": new_database(postgresql, folder.name),
        "LUXX_APP__SECRET_KEY": "a secret that all servers of one database share, long enough",
        "LUXX_WORKSPACE__ROOT": str(folder / "workspaces"),
        "LUXX_RUNS__LEASE_SECONDS": "2",
        **CONTROLLED_TOOLS,
        **SMALL_WINDOWS,
    }
    silent = Rule(name="judge", when=When(system=JUDGE), reply=[Gate(name="never")])
    with ExitStack() as hold:
        first, second = [
            hold.enter_context(ServerProcess(folder / name, **environment)) for name in ("a", "b")
        ]
        model = hold.enter_context(ScriptedProvider(Script(rules=[silent, answers("It is 42.")])))
        # Begun here: what it waits for passes while the tests do something else.
        yield Pair(first, second, asyncio.run(judged_run(second, model)))


async def judged_run(server: ServerProcess, model: ScriptedProvider) -> str:
    async with AsyncApiClient(server.url) as ann:
        conversation = await conversation_with(ann, model.url, BY_MODEL)
        run = await ann.start_run(conversation, "6 times 7?", tools=False)
        return run["id"]


async def signed_in(pair: Pair, hold: AsyncExitStack) -> tuple[AsyncApiClient, AsyncApiClient]:
    """The same user at both servers."""
    here = await hold.enter_async_context(AsyncApiClient(pair.first.url))
    there = await hold.enter_async_context(AsyncApiClient(pair.second.url, here.token))
    return here, there


async def test_what_a_person_writes_at_one_server_reaches_the_answer_at_the_other(pair: Pair) -> None:
    async with AsyncExitStack() as hold:
        rules = [
            rule(1, write_list(*({"title": one["title"]} for one in (A, B)))),
            rule(2, Gate(name="busy"), look("a")),
            rule(3, Gate(name="later"), Text(text="Done.")),
            Rule(reply=[Text(text="Next.")]),
        ]
        model = await hold.enter_async_context(ScriptedProvider(Script(rules=rules)))
        here, there = await signed_in(pair, hold)
        conversation = await here.conversation(model.url)
        await here.start_run(conversation, tools=TOOLS)
        await model.reached("busy")
        ticked = [A | {"completed": True}, B]
        assert await put(there, conversation, ticked, [A, B]) == ticked
        await write(there, conversation, "Hurry.", "steer")
        queued = [
            await write(ann, conversation, text, "queue")
            for ann, text in ((there, "one"), (here, "two"), (there, "three"))
        ]
        path = f"/conversations/{conversation}/queue/{queued[1]['queue_id']}"
        assert [each["position"] for each in queued] == [2, 3, 4]
        assert (await there.ask("DELETE", path)).status_code == 200
        assert await waiting(here, conversation) == ["Hurry.", "one", "three"]
        model.release("busy")
        await model.reached("later")
        assert sum("Hurry." in str(each["content"]) for each in sent(model, 3)) == 1
        assert last(model, 3).startswith("[A person has changed your to-do list.")
        assert await todos(here, conversation) == await todos(there, conversation) == ticked
        # Both change the same list at the same time.
        more = [item("c", "Close the door"), item("d", "Draw the curtains")]
        await asyncio.gather(
            *(
                put(ann, conversation, [*ticked, one], ticked)
                for ann, one in zip((here, there), more, strict=True)
            )
        )
        model.release("later")
        messages = await until_idle(there, conversation, 6)
        assert [each["text"] for each in messages if each["role"] == "user"][1:] == ["one", "three"]
        assert said(messages[1])[0] == "Hurry."
        changed = await todos(there, conversation)
        assert sorted(one["title"] for one in changed) == sorted(one["title"] for one in (*ticked, *more))


async def test_two_compressions_at_the_same_time_are_one(pair: Pair) -> None:
    async with AsyncExitStack() as hold:
        summary = summary_rule(Gate(name="summary"), Text(text=SUMMARY))
        model = await hold.enter_async_context(ScriptedProvider(compressing(summary)))
        here, there = await signed_in(pair, hold)
        conversation = await long_conversation(here, model)
        path, accept = f"/conversations/{conversation}/compress", {"accept": "application/json"}
        asked = await asyncio.gather(*(ann.ask("POST", path, headers=accept) for ann in (here, there)))
        assert sorted(each.status_code for each in asked) == [202, 409]
        accepted, refused = sorted(asked, key=lambda each: each.status_code)
        assert refused.json()["detail"]["kind"] == "run_active"
        await model.reached("summary")
        model.release("summary")
        for ann in (here, there):
            screen = await ann.wait_for_end(accepted.json()["data"]["id"])
            (event,) = screen.data_of("context_compressed")
            assert event["summary"] == SUMMARY
            assert await refusal_of(ann, conversation) == (409, "nothing_to_compress")


async def test_a_provider_that_failed_at_one_server_is_passed_over_at_the_other(pair: Pair) -> None:
    async with AsyncExitStack() as hold:
        refuses = Rule(name="refuses", status=401, message="wrong key")
        first = await hold.enter_async_context(ScriptedProvider(Script(rules=[refuses])))
        answer = Rule(name="answers", reply=[Text(text="Second."), USAGE])
        second = await hold.enter_async_context(ScriptedProvider(Script(rules=[answer])))
        here, there = await signed_in(pair, hold)
        agent = await agent_with_fallbacks(here, first.url, second.url)
        assert await answer_and_warnings(here, agent) == ("Second.", [])
        text, warnings = await answer_and_warnings(there, agent)
        assert text == "Second."
        assert ["failed less than a minute ago" in one for one in warnings] == [True]
        assert (len(first.requests), len(second.requests)) == (1, 2)


async def test_plans_checks_and_tools_are_the_same_where_the_other_server_was_killed(pair: Pair) -> None:
    valid = judges("valid", name="judge later")
    judged = [
        Rule(name="judge waits", when=When(system=JUDGE), reply=[Gate(name="killed"), USAGE], times=1),
        valid,
        rule(1, Call(name="python_eval", arguments={"expression": "6*7"}), USAGE),
        Rule(name="answer", reply=[Text(text="It is 42."), USAGE]),
    ]
    planned = [
        plan_rule(),
        *(step_rule(one["id"]) for one in STEPS[:2]),
        step_rule("c", Gate(name="killed"), Text(text="Never stored."), call=1),
        step_rule("c"),
        answer_rule(),
    ]
    tools = [
        rule(1, look("a"), USAGE),
        rule(2, Gate(name="killed"), look("b"), USAGE),
        Rule(reply=[Text(text="Looked."), USAGE]),
    ]
    async with AsyncExitStack() as hold:
        seat = [
            replies("Anna", 1, Gate(name="spoken"), look("a"), USAGE),
            replies("Anna", 2, Gate(name="killed"), USAGE),
            replies("Anna", 3, Text(text="I mind it."), USAGE),
            Rule(name="again", reply=[Text(text="Still."), USAGE]),
        ]
        judge, planner, looker, speaker = [
            await hold.enter_async_context(ScriptedProvider(Script(rules=rules)))
            for rules in (judged, planned, tools, seat)
        ]
        here, there = await signed_in(pair, hold)
        check = {"on": "python_eval", "by": "model", "criteria": "It is a number."}
        conversations = [
            await conversation_with(here, judge.url, check),
            await here.conversation(planner.url),
            await here.conversation(looker.url),
        ]
        messages = (
            {"content": "6*7?", "tools": ["python_eval"]},
            PLANNED,
            {"content": "Look.", "tools": True},
        )
        runs = [
            (await here.start_run(conversation, **message))["id"]
            for conversation, message in zip(conversations, messages, strict=True)
        ]
        room = await new_room(here, speaker.url, "Anna", max_rounds=1)
        async with started(here, room["id"]) as stream:
            await speaker.reached("spoken")
            await there.post(f"/chat-rooms/{room['id']}/messages", {"content": "Mind the cost."})
            await stream.until("message", timeout=20)
            speaker.release("spoken")
            await speaker.reached("killed")
            room_run = stream.screen.frames[0].data["run_id"]
        async with there.follow(runs[0]) as stream:
            await stream.until("process_step", type="text", status="done")
        for model in (judge, planner, looker):
            await model.reached("killed")
        await asyncio.to_thread(pair.first.kill)
        try:
            screen = await there.wait_for_end(runs[0])
            assert [each["result"] for each in verdicts(screen)] == ["valid"]
            assert screen.text == "It is 42."
            shown = (await there.wait_for_end(runs[1], RoomScreen())).frames
            completed = [frame.data["step_id"] for frame in shown if frame.event == "step_complete"]
            # Two steps run at the same time, and either may be the first to end.
            assert (sorted(completed[:2]), completed[2:]) == (["a", "b"], ["c"])
            assert called(planner) == {"plan": 1, "a": 1, "b": 1, "c": 2, "answer": 1}
            await there.follow_all(room_run)
            asked, again = (request.json["messages"] for request in speaker.requests[1:3])
            assert asked == again
            assert str(asked).count("[admin] Mind the cost.") == 1
            looked = await there.wait_for_end(runs[2])
            assert looked.text == "Looked."
            assert len({str(request.json["tools"]) for request in looker.requests}) == 1
            for conversation, text in zip(
                conversations, ("It is 42.", "The answer.", "Looked."), strict=True
            ):
                stored = await there.messages(conversation)
                assert [(one["role"], one["text"]) for one in stored[1:]] == [("assistant", text)]
        finally:
            for model in (judge, planner, looker, speaker):
                model.release("killed")
            await asyncio.to_thread(pair.first.start)
    assert Counter(request.rule for request in judge.requests)["judge later"] == 1


async def test_a_judge_that_does_not_answer_within_30_seconds_passes_the_answer(pair: Pair) -> None:
    async with AsyncApiClient(pair.second.url) as ann, ann.follow(pair.slow_run) as stream:
        screen = await stream.to_the_end(timeout=60)
        run = await ann.run(pair.slow_run)
    (verdict,) = verdicts(screen)
    reason = "The judge could not decide: it did not answer within 30 seconds."
    assert (verdict["result"], verdict["reasons"]) == ("unsure", [reason])
    assert [one["message"] for one in screen.data_of("warning")] == [reason]
    assert (screen.events()[-1], screen.text) == ("done", "It is 42.")
    begun, ended = (datetime.fromisoformat(run[name]) for name in ("started_at", "finished_at"))
    assert 29 < (ended - begun).total_seconds() < 45
    assert len(screen.data_of("cost_update")) == 2, "what was sent to the judge is counted"
