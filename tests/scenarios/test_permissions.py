"""A tool of high risk asks before it runs; and a tool of the operator's own can ask for data."""

import asyncio
import json

import pytest
from api.server_process import ServerProcess

from luxx.providers.scripted import Counts, Rule, Script, ScriptedProvider, Text, When
from scenarios.client import AsyncApiClient, Json
from scenarios.questions import answer, asks, open_questions, results, set_rules
from scenarios.restarting_client import RestartingClient
from scenarios.scripts import calls
from scenarios.tool_controller import ToolController


async def wait_for_questions(ann: AsyncApiClient, run: Json) -> list[Json]:
    """The run's open questions, when it waits."""
    async with ann.follow(run["id"]) as stream:
        await stream.until("question_asked")
    return await open_questions(ann, run["id"])


async def test_a_tool_of_high_risk_runs_when_it_is_allowed(server: ServerProcess) -> None:
    async with (
        ToolController(answers=True) as controller,
        AsyncApiClient(server.url) as ann,
        ScriptedProvider(asks(*calls("visit_risky", controller.port, "a"))) as model,
    ):
        conversation = await ann.conversation(model.url)
        run = await ann.start_run(conversation)
        (question,) = await wait_for_questions(ann, run)
        assert controller.visits == []
        assert (question["kind"], question["tool"], question["risk"]) == (
            "permission",
            "visit_risky",
            "high",
        )
        assert json.loads(question["arguments"]) == {"port": controller.port, "key": "a"}
        assert [option["label"] for option in question["options"]] == ["once", "always", "reject"]
        assert (question["required"], question["due_at"]) == (True, None)
        (execution,) = (await ann.get("/tool-calls", run_id=run["id"]))["items"]
        assert execution["status"] == "waiting"
        await answer(ann, question, "once")
        await ann.wait_for_end(run["id"])
        assert controller.keys_seen() == ["a"]
        assert results((await ann.messages(conversation))[-1])[0]["data"] == "done a"


async def test_a_rejected_call_does_not_run_and_the_note_goes_to_the_model(server: ServerProcess) -> None:
    async with (
        ToolController(answers=True) as controller,
        AsyncApiClient(server.url) as ann,
        ScriptedProvider(asks(*calls("visit_risky", controller.port, "a"))) as model,
    ):
        conversation = await ann.conversation(model.url)
        run = await ann.start_run(conversation)
        (question,) = await wait_for_questions(ann, run)
        await answer(ann, question, "reject", note="not on a Sunday")
        await ann.wait_for_end(run["id"])
        (result,) = results((await ann.messages(conversation))[-1])
        assert result["success"] is False
        assert "not on a Sunday" in result["error"]
        assert controller.visits == []


async def test_a_user_may_change_the_arguments_within_the_schema_of_the_tool(server: ServerProcess) -> None:
    async with (
        ToolController(answers=True) as controller,
        AsyncApiClient(server.url) as ann,
        ScriptedProvider(asks(*calls("visit_risky", controller.port, "a"))) as model,
    ):
        run = await ann.start_run(await ann.conversation(model.url))
        (question,) = await wait_for_questions(ann, run)
        path = f"/runs/{run['id']}/questions/{question['id']}/answer"
        for arguments in ({"port": "x", "key": "b"}, {"port": 1}, {"port": 1, "key": "b", "c": 1}):
            wrong = await ann.ask("POST", path, {"answer": "once", "arguments": arguments})
            assert (wrong.status_code, wrong.json()["detail"]["kind"]) == (400, "arguments_invalid")
        assert (await ann.ask("POST", path, {"answer": "perhaps"})).status_code == 400
        await answer(ann, question, "once", arguments={"port": controller.port, "key": "b"})
        screen = await ann.wait_for_end(run["id"])
        assert controller.keys_seen() == ["b"]
        (event,) = [frame.data for frame in screen.frames if frame.event == "question_answered"]
        assert json.loads(event["arguments"]) == {"port": controller.port, "key": "b"}


async def test_always_allows_later_calls(server: ServerProcess) -> None:
    async with ToolController(answers=True) as controller, AsyncApiClient(server.url) as ann:
        again = calls("visit_risky", controller.port, "b")
        script = Script(
            rules=[
                Rule(
                    when=When(has_tool_result=False),
                    reply=[*calls("visit_risky", controller.port, "a"), Counts()],
                ),
                Rule(when=When(has_tool_result=True, call=1), reply=[*again, Counts()]),
                Rule(when=When(has_tool_result=True), reply=[Text(text="Done.")]),
            ]
        )
        async with ScriptedProvider(script) as model:
            run = await ann.start_run(await ann.conversation(model.url))
            (question,) = await wait_for_questions(ann, run)
            await answer(ann, question, "always")
            screen = await ann.wait_for_end(run["id"])
            assert controller.keys_seen() == ["a", "b"]
            assert [frame.event for frame in screen.frames].count("question_asked") == 1
        await set_rules(ann)


async def test_a_direct_tool_call_needs_no_approval(server: ServerProcess) -> None:
    async with ToolController(answers=True) as controller, AsyncApiClient(server.url) as ann:
        arguments = {"port": controller.port, "key": "a"}
        executed = await ann.post("/tools/visit_risky/execute", {"arguments": arguments})
        assert executed == {"success": True, "data": "done a", "error": None}
        alone = await ann.post(
            "/tools/ask_clarification/execute",
            {"arguments": {"question_type": "scope", "question": "Who?", "options": []}},
        )
        assert alone["success"] is False
        assert "questions are not available" in alone["error"]


async def test_a_custom_tool_gets_the_answer_to_its_question(server: ServerProcess) -> None:
    async with (
        ToolController(answers=True) as controller,
        AsyncApiClient(server.url) as ann,
        ScriptedProvider(asks(*calls("visit_named", controller.port, "nobody"))) as model,
    ):
        run = await ann.start_run(await ann.conversation(model.url))
        (question,) = await wait_for_questions(ann, run)
        assert (question["prompt"], question["required"]) == ("Whom shall I name?", True)
        await answer(ann, question, "ann")
        await ann.wait_for_end(run["id"])
        assert controller.keys_seen() == ["ann"]


async def test_an_allowed_call_runs_once_even_if_the_server_is_killed_then(own_server: ServerProcess) -> None:
    async with (
        ToolController() as controller,
        RestartingClient(own_server) as ann,
        ScriptedProvider(asks(*calls("visit_risky", controller.port, "a"))) as model,
    ):
        conversation = await ann.conversation(model.url)
        run = await ann.start_run(conversation)
        (question,) = await wait_for_questions(ann, run)
        await ann.kill_and_start()
        assert await open_questions(ann, run["id"]) == [question]
        await answer(ann, question, "once")
        await controller.wait_for_visit()
        await ann.kill_and_start()
        await ann.follow_to_end(run["id"])
        (result,) = results((await ann.messages(conversation))[-1])
        assert result["success"] is False
        assert "not known whether it took effect" in result["error"]
        assert controller.keys_seen() == ["a"]


@pytest.mark.parametrize("said", ["reject", "once"])
async def test_a_parallel_slow_tool_is_not_run_again_after_the_answer(
    server: ServerProcess, said: str
) -> None:
    async with ToolController() as controller, AsyncApiClient(server.url) as ann:
        both = [
            *calls("visit_once", controller.port, "slow"),
            *calls("visit_risky", controller.port, "risky"),
        ]
        async with ScriptedProvider(asks(*both)) as model:
            run = await ann.start_run(await ann.conversation(model.url))
            slow = await controller.wait_for_visit()
            slow.answer("done")
            (question,) = await wait_for_questions(ann, run)
            await answer(ann, question, said)
            if said == "once":
                (await controller.wait_for_visit(2)).answer("done")
            async with asyncio.timeout(20):
                await ann.wait_for_end(run["id"])
            assert controller.keys_seen() == (["slow", "risky"] if said == "once" else ["slow"])
