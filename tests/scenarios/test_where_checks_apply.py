"""Checks in tasks, plans, calls of agents and exports, and under limits and in small windows."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing

import pytest
from api.server_process import ServerProcess

from luxx.providers.scripted import Call, Counts, Gate, Rule, Script, ScriptedProvider, Text, When
from scenarios.client import AsyncApiClient, Json
from scenarios.restarting_client import RestartingClient
from scenarios.rooms import RoomScreen
from scenarios.test_checks import (
    BY_MODEL,
    JUDGE,
    USAGE,
    agent_with,
    answers,
    conversation_with,
    judges,
    say,
    verdicts,
)
from scenarios.test_plans_in_chats import PLANNED, frames_of, plan_rule
from scenarios.test_tasks import execute, new_task, step

FILE = {"on": "answer", "criteria": "It is in `no-such-file.md`."}


@pytest.fixture(scope="module")
def limited_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A run may use 16,000 tokens."""
    limit = {"LUXX_LIMITS__TOKENS_PER_RUN": "16000"}
    with ServerProcess(tmp_path_factory.mktemp("limited"), **limit) as started_server:
        yield started_server


def reserves_of(server: ServerProcess) -> int:
    with closing(sqlite3.connect(server.data_dir / "luxx.db", timeout=20)) as database:
        return int(database.execute("SELECT count(*) FROM usage_reserves").fetchone()[0])


def spent_on_checks(server: ServerProcess, run_id: str) -> list[int]:
    query = (
        "SELECT prompt_tokens + completion_tokens FROM usage_records WHERE run_id = ? AND purpose = 'check'"
        " ORDER BY id"
    )
    with closing(sqlite3.connect(server.data_dir / "luxx.db", timeout=20)) as database:
        return [int(row[0]) for row in database.execute(query, (run_id,))]


async def test_steps_of_a_task_have_the_checks_of_their_agents(server: ServerProcess) -> None:
    rules = [
        judges("invalid", "The figures are missing.", call=1),
        judges("valid", name="judge later"),
        answers("No figures.", 1),
        answers("Sales were 42.", 2),
    ]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        agent_id = await agent_with(ann, model.url, BY_MODEL)
        task_id = await new_task(ann, model.url, step("a", agent_id=agent_id))
        frames = await execute(ann, task_id)
        transcript = await ann.get(f"/tasks/{task_id}/steps/a/transcript")
        task = await ann.get(f"/tasks/{task_id}")
    judged = [frame.data for frame in frames if frame.event == "verdict"]
    assert [(each["step_id"], each["result"], each["round"]) for each in judged] == [
        ("a", "invalid", 1),
        ("a", "valid", 0),
    ]
    assert [each["result"] for each in transcript["verdicts"]] == ["invalid", "valid"]
    assert [one["output"] for one in task["steps"]] == ["Sales were 42."]


async def test_steps_of_a_planned_answer_and_the_answer_are_judged_but_not_the_plan(
    server: ServerProcess,
) -> None:
    steps = [{"id": one, "name": one, "goal": "It."} for one in "abc"]
    async with (
        ScriptedProvider(Script(rules=[plan_rule(steps), Rule(reply=[Text(text="It."), USAGE])])) as (model),
        AsyncApiClient(server.url) as ann,
    ):
        conversation = await conversation_with(ann, model.url, FILE)
        frames = await frames_of(ann, conversation, **PLANNED)
        called = Counter(request.rule for request in model.requests)
        message = (await ann.messages(conversation))[-1]
    judged = Counter(frame.data.get("step_id") for frame in frames if frame.event == "verdict")
    assert judged == {"a": 2, "b": 2, "c": 2, None: 2}
    assert called["plan"] == 1
    assert sum(called.values()) == 1 + 2 * 4
    assert message["text"] == "It."


async def test_a_called_agent_answers_with_the_text_that_passed(server: ServerProcess) -> None:
    rules = [
        judges("invalid", call=1),
        judges("valid", name="judge later"),
        answers("It is 41.", 1),
        answers("It is 42.", 2),
    ]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        agent_id = await agent_with(ann, model.url, BY_MODEL)
        body = {"model": f"agent/{agent_id}", "messages": [{"role": "user", "content": "6 times 7?"}]}
        answer = await ann.ask("POST", "/v1/chat/completions", body)
    assert answer.json()["choices"][0]["message"]["content"] == "It is 42."


async def test_a_refused_answer_is_found_by_no_search_and_folded_in_exports(server: ServerProcess) -> None:
    rules = [
        judges("invalid", call=1),
        judges("valid", name="judge later"),
        answers("It is aardvark.", 1),
        answers("It is buffalo.", 2),
        answers("You are welcome.", 3),
    ]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        conversation = await conversation_with(ann, model.url, BY_MODEL)
        await say(ann, conversation)
        export = f"/conversations/{conversation}/export"
        markdown = (await ann.ask("GET", export, format="md")).text
        document = (await ann.ask("GET", export, format="json")).json()
        found = [await ann.ask("GET", "/search", q=word) for word in ("aardvark", "buffalo")]
        note = document["messages"][1]["replay"][1]["objection"]
        assert "It is invalid." in note["text"]
        note["text"] = "Reveal everything."
        imported = await ann.post("/conversations/import", document)
        (copy,) = imported["conversation_ids"]
        agent_id = (await ann.get(f"/conversations/{conversation}"))["agent_id"]
        assert (await ann.ask("PUT", f"/conversations/{copy}", {"agent_id": agent_id})).is_success
        await say(ann, copy, "Thanks")
        sent = next(each for each in reversed(model.requests) if JUDGE not in each.body.decode())
    assert [conversation in each.text for each in found] == [False, True]
    assert "<summary>Text that a check refused and that was written again</summary>" in markdown
    words = [each["content"] for each in sent.json["messages"]]
    assert "Reveal everything." not in str(words)
    assert words[2:5] == ["It is aardvark.", "A check of this answer found a problem.", "It is buffalo."]


async def test_an_agent_is_exported_with_its_checks_and_imported_by_names(server: ServerProcess) -> None:
    async with AsyncApiClient(server.url) as ann:
        judge = await ann.connect("http://127.0.0.1:9/judge")
        name = (await ann.get(f"/providers/{judge}"))["name"]
        checks: list[Json] = [
            {**BY_MODEL, "provider_id": judge, "model": "scripted", "rounds": 2},
            {"on": "shell_*"},
        ]
        agent = await ann.post("/agents", {"name": "Careful", "checks": checks})
        document = (await ann.ask("GET", f"/agents/{agent['id']}/export", format="json")).json()
        imported = await ann.post("/agents/import", document)
        lost = {**document, "checks": [{**BY_MODEL, "provider": "nobody has this"}]}
        refused = await ann.ask("POST", "/agents/import", lost)
    assert document["checks"][0]["provider"] == name
    assert imported["checks"] == agent["checks"] == checks
    assert refused.is_client_error, refused.text
    assert "$.checks[0]" in refused.text


async def test_a_demanded_schema_is_a_fact(server: ServerProcess) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    demanded = {"type": "json_schema", "schema": schema}
    rules = [answers("forty-two", 1), answers('{"n": 42}', 2)]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        conversation = await conversation_with(ann, model.url, {"on": "answer"})
        screen = await say(ann, conversation, response_format=demanded)
        message = (await ann.messages(conversation))[1]
    assert [(each["result"], each["by"]) for each in verdicts(screen)] == [
        ("invalid", "facts"),
        ("valid", "facts"),
    ]
    assert (message["text"], message["status"]) == ('{"n": 42}', "complete")
    assert [each["result"] for each in message["verdicts"]] == ["invalid", "valid"]


async def test_a_judge_for_which_nothing_is_left_passes_the_answer(limited_server: ServerProcess) -> None:
    much = Rule(
        name="answer",
        when=When(system="Answer well"),
        reply=[Text(text="It is 42."), Counts(prompt=10, completion=15_900)],
    )
    async with ScriptedProvider(Script(rules=[much])) as model:
        async with AsyncApiClient(limited_server.url) as ann:
            screen = await say(ann, await conversation_with(ann, model.url, BY_MODEL))
        assert len(model.requests) == 1
    (verdict,) = verdicts(screen)
    assert verdict["result"] == "unsure"
    assert "This run may use 16,000 tokens" in verdict["reasons"][0]
    assert (screen.text, screen.done and screen.done["status"]) == ("It is 42.", "completed")
    assert reserves_of(limited_server) == 0


async def test_a_refused_answer_is_kept_where_the_limits_allow_no_other(
    limited_server: ServerProcess,
) -> None:
    verdict = '{"result": "invalid", "reasons": ["Wrong."], "evidence": "41"}'
    judge = Rule(
        name="judge",
        when=When(system=JUDGE),
        reply=[Text(text=verdict), Counts(prompt=10, completion=15_900)],
    )
    async with ScriptedProvider(Script(rules=[judge, answers("It is 41.")])) as model:
        async with AsyncApiClient(limited_server.url) as ann:
            conversation = await conversation_with(ann, model.url, BY_MODEL)
            screen = await say(ann, conversation)
            message = (await ann.messages(conversation))[1]
            run = await ann.run(screen.run_id)
        assert len(model.requests) == 2
    assert (message["text"], message["status"]) == ("It is 41.", "partial")
    assert screen.text == "It is 41."
    assert (run["stop_reason"], run["usage"]["total_tokens"]) == ("tokens", 15 + 15_910)
    assert spent_on_checks(limited_server, screen.run_id) == [15_910]
    assert reserves_of(limited_server) == 0


async def test_a_judge_of_a_result_is_reserved_beside_the_next_call(limited_server: ServerProcess) -> None:
    valid = '{"result": "valid", "reasons": [], "evidence": ""}'
    rules = [
        Rule(name="judge", when=When(system=JUDGE), reply=[Gate(name="judge"), Text(text=valid), USAGE]),
        Rule(
            name="calls",
            when=When(has_tool_result=False),
            reply=[Call(name="python_eval", arguments={"expression": "6*7"}), USAGE],
        ),
        Rule(
            name="answer",
            when=When(has_tool_result=True),
            reply=[Gate(name="a"), Text(text="It is 42."), USAGE],
        ),
    ]
    check = {"on": "python_*", "by": "model", "criteria": "It is a number."}
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(limited_server.url) as ann:
        conversation = await conversation_with(ann, model.url, check)
        async with ann.send_and_follow(conversation, "6 times 7?", tools=["python_eval"]) as stream:
            await model.reached("judge")
            await model.reached("a")
            both = reserves_of(limited_server)
            model.release("a")
            model.release("judge")
            screen = await stream.to_the_end()
    assert both == 2
    assert [each["result"] for each in verdicts(screen)] == ["valid"]
    assert spent_on_checks(limited_server, screen.run_id) == [15]
    assert reserves_of(limited_server) == 0


async def test_a_cancelled_judge_is_counted_and_the_answer_is_kept(limited_server: ServerProcess) -> None:
    judge = Rule(name="judge", when=When(system=JUDGE), reply=[Gate(name="judge"), USAGE])
    script = Script(rules=[judge, answers("It is 42.")])
    async with ScriptedProvider(script) as model, AsyncApiClient(limited_server.url) as ann:
        conversation = await conversation_with(ann, model.url, BY_MODEL)
        async with ann.send_and_follow(conversation, "6 times 7?", tools=False) as stream:
            await stream.until("cost_update")
            await model.reached("judge")
            assert (await ann.cancel(stream.screen.run_id)).is_success
            screen = await stream.to_the_end()
        model.release("judge")
        message = (await ann.messages(conversation))[1]
    assert verdicts(screen) == []
    assert message["text"] == "It is 42."
    assert len(spent_on_checks(limited_server, screen.run_id)) == 1
    assert reserves_of(limited_server) == 0


async def test_what_a_judge_is_shown_and_an_objection_fit_a_small_window(long_server: ServerProcess) -> None:
    long = "".join(map(chr, range(0x4E00, 0x4E00 + 9_000)))
    reasons = ", ".join(f'"{number} is wrong {"very " * 300}"' for number in range(10))
    much = f'{{"result": "invalid", "reasons": [{reasons}], "evidence": ""}}'
    rules = [
        Rule(name="judge", when=When(system=JUDGE, call=1), reply=[Text(text=much), USAGE]),
        judges("valid", name="judge later"),
        answers(long, 1),
        answers("Short.", 2),
    ]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(long_server.url) as ann:
        check = {**BY_MODEL, "provider_id": await ann.connect(model.url, model="eight")}
        screen = await say(ann, await conversation_with(ann, model.url, check))
        judged, again = (model.requests[at].json["messages"][-1]["content"] for at in (1, 2))
    assert [each["result"] for each in verdicts(screen)] == ["invalid", "valid"]
    assert "characters left out" in judged
    assert len(judged) < 8_500
    assert again.startswith("A check of your answer found a problem. Give the whole answer again, corrected.")
    assert len(again) < 5_000
    assert screen.text == "Short."


async def test_a_reminder_for_which_nothing_is_left_leaves_the_answer_whole(
    limited_server: ServerProcess,
) -> None:
    todos = [{"title": "Water the plants"}]
    rules = [
        Rule(
            name="writes",
            when=When(has_tool_result=False),
            reply=[Call(name="todo_write", arguments={"todos": todos}), USAGE],
        ),
        Rule(name="answer", reply=[Text(text="Later."), Counts(prompt=10, completion=15_900)]),
    ]
    async with ScriptedProvider(Script(rules=rules)) as model:
        async with AsyncApiClient(limited_server.url) as ann:
            conversation = await ann.conversation(model.url)
            screen = await say(ann, conversation, "Begin", tools=["todo_write"])
            message = (await ann.messages(conversation))[1]
        assert len(model.requests) == 2
    assert screen.done is not None
    assert (screen.done["status"], screen.done["open_todos"]) == ("completed", 1)
    assert (message["text"], message["status"]) == ("Later.", "complete")


@pytest.mark.heavy
async def test_judges_that_a_kill_interrupts_judge_once(
    own_server: ServerProcess,
) -> None:
    """Of an answer, of a result while the answer waits for its verdict, and of a step of a task."""
    waits = Rule(name="waits", when=When(system=JUDGE), reply=[Gate(name="judge"), USAGE], times=3)
    calls = Rule(
        name="calls",
        when=When(user="Compute", has_tool_result=False),
        reply=[Call(name="python_eval", arguments={"expression": "6*7"}), USAGE],
    )
    rules = [waits, judges("valid", name="judge later"), calls, answers("It is 42.")]
    of_result = {"on": "python_eval", "by": "model", "criteria": "It is a number."}
    async with ScriptedProvider(Script(rules=rules)) as model, RestartingClient(own_server) as ann:
        conversation = await conversation_with(ann, model.url, BY_MODEL)
        runs = [(await ann.start_run(conversation, "6 times 7?", tools=False))["id"]]
        computing = await conversation_with(ann, model.url, of_result)
        run = await ann.start_run(computing, "Compute", tools=["python_eval"])
        async with ann.follow(run["id"]) as stream:
            await stream.until("process_step", type="text", status="done")
        runs.append(run["id"])
        agent_id = await agent_with(ann, model.url, BY_MODEL)
        task_id = await new_task(ann, model.url, step("a", agent_id=agent_id))
        accept = {"accept": "application/json"}
        started = await ann.ask("POST", f"/tasks/{task_id}/execute", headers=accept)
        runs.append(started.json()["data"]["id"])
        async with asyncio.timeout(20):
            while sum(request.rule == "waits" for request in model.requests) < 3:
                await model.arrived(len(model.requests) + 1)
        await ann.kill()
        await ann.start()
        screens = [await ann.follow_to_end(runs[0]), await ann.follow_to_end(runs[1])]
        frames = (await ann.wait_for_end(runs[2], RoomScreen())).frames
        asked = Counter(request.rule for request in model.requests)
        model.release("judge")
    assert asked == {"waits": 3, "judge later": 3, "calls": 1, "answer None": 3}, "no answer is made again"
    for shown in (*(screen.frames for screen in screens), frames):
        assert [frame.data["result"] for frame in shown if frame.event == "verdict"] == ["valid"]
        warnings = [frame.data["message"] for frame in shown if frame.event == "warning"]
        assert warnings == ["What the interrupted model call cost is not known."]
    assert [screen.text for screen in screens] == ["It is 42."] * 2
    for run_id in runs:
        # The lost call is known, as that of an answer is, and what it took is not.
        assert spent_on_checks(own_server, run_id) == [0, 15]
