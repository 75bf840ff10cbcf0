"""Checks of an agent: what is invalid goes back to the model with its evidence; nothing else is held up."""

import json
import random
from typing import Any

from api.server_process import ServerProcess

from luxx.providers.scripted import Call, Counts, Gate, Rule, Script, ScriptedProvider, Text, When
from scenarios.client import AsyncApiClient, Json
from scenarios.rooms import run_to_the_end, said
from scenarios.screen import Screen

JUDGE = "You judge whether"
USAGE = Counts(prompt=10, completion=5)


def judges(result: str, evidence: str = "", *, name: str = "", call: int | None = None) -> Rule:
    """The judge says this, in its call of this number."""
    text = json.dumps({"result": result, "reasons": [f"It is {result}."], "evidence": evidence})
    when = When(system=JUDGE, call=call)
    return Rule(name=name or f"judge {call}", when=when, reply=[Text(text=text), USAGE])


def answers(text: str, call: int | None = None, **more: Any) -> Rule:
    when = When(system="Answer well", call=call, **more)
    return Rule(name=f"answer {call}", when=when, reply=[Text(text=text), USAGE])


async def agent_with(ann: AsyncApiClient, url: str, *checks: Json) -> int:
    body = {
        "name": "Careful",
        "provider_id": await ann.connect(url),
        "system_prompt": "Answer well.",
        "checks": [*checks],
    }
    return (await ann.post("/agents", body))["id"]


async def conversation_with(ann: AsyncApiClient, url: str, *checks: Json) -> str:
    agent_id = await agent_with(ann, url, *checks)
    return (await ann.post("/conversations", {"agent_id": agent_id}))["id"]


async def say(ann: AsyncApiClient, conversation: str, text: str = "6 times 7?", **more: Any) -> Screen:
    async with ann.send_and_follow(conversation, text, **{"tools": False, **more}) as stream:
        return await stream.to_the_end()


def verdicts(screen: Screen) -> list[Json]:
    return [frame.data for frame in screen.frames if frame.event == "verdict"]


BY_MODEL = {"on": "answer", "by": "model", "criteria": "The product is right."}


async def test_an_invalid_answer_goes_back_with_its_evidence(server: ServerProcess) -> None:
    rules = [
        judges("invalid", "It is 41.", call=1),
        judges("valid", name="judge later"),
        answers("It is 41.", 1),
        answers("It is 42.", 2),
        answers("You are welcome.", 3),
    ]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        conversation = await conversation_with(ann, model.url, BY_MODEL)
        screen = await say(ann, conversation)
        await say(ann, conversation, "Thanks")
        requests = [each.json["messages"] for each in model.requests if JUDGE not in each.body.decode()]
        shown = model.requests[1].body.decode()
        stored = (await ann.messages(conversation))[1]
        run = (await ann.get("/runs", subject_id=conversation))["items"][-1]
    assert [(each["result"], each["round"], each["by"]) for each in verdicts(screen)] == [
        ("invalid", 1, "model"),
        ("valid", 0, "model"),
    ]
    assert screen.events()[-2:] == ["verdict", "done"]
    assert stored["text"] == "It is 42."
    texts = [(step["content"], step.get("superseded")) for step in stored["steps"]]
    assert texts == [("It is 41.", True), ("It is 42.", None)]
    assert run["usage"]["prompt_tokens"] == 40
    assert "The product is right." in shown
    assert "6 times 7?" in shown
    first, second, third = requests
    assert [each["role"] for each in second] == ["system", "user", "assistant", "user"]
    assert "It is invalid." in second[-1]["content"]
    assert "It is 41." in second[-1]["content"]
    # Each request extends the one before it, also that of the next message.
    assert second[: len(first)] == first
    assert third[: len(second)] == second


async def test_an_answer_goes_back_no_more_often_than_its_check_says(server: ServerProcess) -> None:
    rules = [judges("invalid", name="judge"), answers("It is 41.")]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        conversation = await conversation_with(ann, model.url, {**BY_MODEL, "rounds": 2})
        screen = await say(ann, conversation)
        assert len(model.requests) == 6
    assert [each["round"] for each in verdicts(screen)] == [1, 2, 0]
    assert screen.done
    assert screen.done["status"] == "completed"


async def test_a_judge_that_writes_lists_for_texts_is_read(server: ServerProcess) -> None:
    found = json.dumps({"result": "invalid", "reasons": "The sum is wrong.", "evidence": ["It is", "41."]})
    rules = [
        Rule(name="judge", when=When(system=JUDGE), reply=[Text(text=found), USAGE]),
        answers("It is 41."),
    ]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        conversation = await conversation_with(ann, model.url, BY_MODEL)
        first, _ = verdicts(await say(ann, conversation))
    assert (first["result"], first["reasons"], first["evidence"]) == (
        "invalid", ["The sum is wrong."], "It is\n41.",
    )  # fmt: skip


async def test_a_judge_that_cannot_be_read_or_used_passes_the_answer_with_a_warning(
    server: ServerProcess,
) -> None:
    unreadable = Rule(name="judge", when=When(system=JUDGE), reply=[Text(text="Looks good!"), USAGE])
    async with (
        ScriptedProvider(Script(rules=[unreadable, answers("It is 42.")])) as model,
        AsyncApiClient(server.url) as ann,
    ):
        lost = await ann.connect("http://127.0.0.1:9/lost")
        conversation = await conversation_with(ann, model.url, BY_MODEL, {**BY_MODEL, "provider_id": lost})
        assert (await ann.ask("DELETE", f"/providers/{lost}")).is_success
        screen = await say(ann, conversation)
    assert [(each["result"], each["round"]) for each in verdicts(screen)] == [("unsure", 0)] * 2
    warnings = [frame.data["message"] for frame in screen.frames if frame.event == "warning"]
    assert "is not the JSON that was asked for" in warnings[0]
    assert f"there is no provider {lost}" in warnings[1]
    assert screen.text == "It is 42."


async def test_a_judge_that_cannot_be_reached_passes_the_answer(impatient_server: ServerProcess) -> None:
    async with (
        ScriptedProvider(Script(rules=[answers("It is 42.")])) as model,
        AsyncApiClient(impatient_server.url) as ann,
    ):
        nobody = await ann.connect("http://127.0.0.1:9")
        conversation = await conversation_with(ann, model.url, {**BY_MODEL, "provider_id": nobody})
        screen = await say(ann, conversation)
    (verdict,) = verdicts(screen)
    assert (verdict["result"], verdict["by"], verdict["cost"]) == ("unsure", "model", 0)
    assert verdict["reasons"][0].startswith("The judge could not decide: ")
    assert screen.events()[-1] == "done"
    assert screen.text == "It is 42."


async def test_a_failed_call_is_a_fact_that_the_model_learns_at_once(server: ServerProcess) -> None:
    rules = [
        Rule(
            name="calls",
            when=When(user="6 times 7"),
            reply=[Call(name="python_eval", arguments={"expression": "1/0"}), USAGE],
        ),
        answers("It cannot be divided.", user="A check of the result of python_eval"),
    ]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        conversation = await conversation_with(ann, model.url, {"on": "python_*"})
        screen = await say(ann, conversation, tools=["python_eval"])
        last = model.requests[-1].json["messages"]
        assert len(model.requests) == 2
    (verdict,) = verdicts(screen)
    assert (verdict["result"], verdict["by"], verdict["cost"], verdict["round"]) == ("invalid", "facts", 0, 1)
    assert verdict["target"] != "answer"
    assert last[-1]["role"] == "user"
    assert "A check of the result of python_eval" in last[-1]["content"]


async def test_files_that_an_answer_has_to_leave_are_facts(server: ServerProcess) -> None:
    written = Call(name="file_write", arguments={"path": "report-of-checks.md", "content": "42"})
    rules = [
        answers("I wrote the report.", user="6 times 7"),
        Rule(
            name="writes",
            when=When(user="A check of your answer", has_tool_result=False),
            reply=[written, USAGE],
        ),
        answers("Now I did.", has_tool_result=True),
    ]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        check = {"on": "answer", "criteria": "The report is in `report-of-checks.md`."}
        conversation = await conversation_with(ann, model.url, check)
        screen = await say(ann, conversation, tools=["file_write"])
    assert [each["result"] for each in verdicts(screen)] == ["invalid", "valid"]
    assert verdicts(screen)[0]["reasons"] == ["These files do not exist: report-of-checks.md."]
    stored = "".join(step["content"] for step in screen.steps.values() if step["type"] == "text")
    assert stored.endswith("Now I did.")


async def test_a_judge_of_a_result_holds_up_no_call_and_done_waits_for_it(server: ServerProcess) -> None:
    slow = Rule(
        name="judge",
        when=When(system=JUDGE),
        reply=[Gate(name="judge"), Text(text='{"result": "valid", "reasons": [], "evidence": ""}'), USAGE],
    )
    rules = [
        slow,
        Rule(
            name="calls",
            when=When(has_tool_result=False),
            reply=[Call(name="python_eval", arguments={"expression": "6*7"}), USAGE],
        ),
        answers("It is 42.", has_tool_result=True),
    ]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        check = {"on": "python_eval", "by": "model", "criteria": "It is a number."}
        conversation = await conversation_with(ann, model.url, check)
        async with ann.send_and_follow(conversation, "6 times 7?", tools=["python_eval"]) as stream:
            await stream.until("process_step", type="text", status="done")
            assert verdicts(stream.screen) == []
            model.release("judge")
            screen = await stream.to_the_end()
    assert [each["result"] for each in verdicts(screen)] == ["valid"]
    assert screen.events()[-1] == "done"


async def test_the_seat_of_an_agent_has_its_checks(server: ServerProcess) -> None:
    rules = [
        judges("invalid", "41", call=1),
        judges("valid", name="judge later"),
        answers("It is 41.", 1),
        answers("It is 42.", 2),
    ]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        body = {
            "title": "Talk",
            "task": "6 times 7?",
            "agents": [{"name": "Asker", "agent_id": await agent_with(ann, model.url, BY_MODEL)}],
            "stop": {"rounds": 1},
        }
        room = await ann.post("/chat-rooms", body)
        frames = await run_to_the_end(ann, room["id"])
        (message,) = [
            each
            for each in (await ann.get(f"/chat-rooms/{room['id']}/messages"))["items"]
            if "verdicts" in each
        ]
    assert said(frames) == [("Asker", "It is 42.")]
    assert message["text"] == "It is 42."
    assert [each["result"] for each in message["verdicts"]] == ["invalid", "valid"]


BAD_CHECKS: list[tuple[Json, str, str]] = [
    ({"by": "facts"}, "$.checks[0].on", "required"),
    ({"on": ""}, "$.checks[0].on", "1 to 200 characters"),
    ({"on": "   "}, "$.checks[0].on", "name the tool"),
    ({"on": "a" * 201}, "$.checks[0].on", "1 to 200 characters"),
    ({"on": "two\nlines"}, "$.checks[0].on", "line"),
    ({"on": "answer", "by": "magic"}, "$.checks[0].by", "one of 'facts', 'model'"),
    ({"on": "answer", "by": "model"}, "$.checks[0].criteria", "say what must hold"),
    ({"on": "answer", "by": "model", "criteria": "  \n"}, "$.checks[0].criteria", "say what must hold"),
    ({"on": "answer", "criteria": "c" * 4_001}, "$.checks[0].criteria", "at most 4,000 characters"),
    ({"on": "answer", "rounds": 0}, "$.checks[0].rounds", "from 1 to 2"),
    ({"on": "answer", "rounds": 3}, "$.checks[0].rounds", "from 1 to 2"),
    ({"on": "answer", "rounds": "two"}, "$.checks[0].rounds", "from 1 to 2"),
    ({"on": "answer", "provider_id": 2_000_000_000}, "$.checks[0].provider_id", "no provider"),
    ({"on": "answer", "provider_id": -1}, "$.checks[0].provider_id", "a whole number"),
    ({"on": "answer", "model": ""}, "$.checks[0].model", "1 to 200 characters"),
    ({"on": "answer", "judge": "me"}, "$.checks[0]", "judge"),
]


async def test_checks_that_cannot_be_used_are_refused_in_words(server: ServerProcess) -> None:
    async with AsyncApiClient(server.url) as ann:
        agent = await ann.post("/agents", {"name": "Careful", "checks": [{"on": "answer"}]})
        for check, field, words in BAD_CHECKS:
            for method, path in (("POST", "/agents"), ("PUT", f"/agents/{agent['id']}")):
                response = await ann.ask(method, path, {"name": "Careful", "checks": [check]})
                assert response.status_code in (400, 404), response.text
                assert field in response.text
                assert words in response.json()["error"], response.text
        many = await ann.ask("POST", "/agents", {"name": "Careful", "checks": [{"on": "answer"}] * 11})
        assert "at most 10 items" in many.text
        assert (await ann.get(f"/agents/{agent['id']}"))["checks"] == [{"on": "answer"}]


async def test_the_provider_of_somebody_else_judges_nothing(server: ServerProcess) -> None:
    async with AsyncApiClient(server.url) as ann, AsyncApiClient(server.url) as bob:
        name = f"bob{random.randrange(10**9)}"
        registered = await bob.post("/auth/register", {"username": name, "password": "a-long-password-7"})
        bob.token = registered["access_token"]
        foreign = await ann.connect("http://127.0.0.1:9/of-ann")
        check = {**BY_MODEL, "provider_id": foreign}
        refused = await bob.ask("POST", "/agents", {"name": "Careful", "checks": [check]})
    assert refused.status_code == 404
    assert "$.checks[0].provider_id" in refused.text
