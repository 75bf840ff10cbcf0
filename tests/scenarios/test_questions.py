"""A model asks the user: the run waits, uses no resources, survives a restart, and continues with
the answer.
"""

import asyncio
import json

import pytest
from api.server_process import ServerProcess

from luxx.providers.scripted import ScriptedProvider
from scenarios.client import AsyncApiClient, AsyncEventStream, Json
from scenarios.questions import (
    COLOURS,
    FINAL_TEXT,
    answer,
    asks,
    clarification,
    decision,
    only_asks,
    open_questions,
    results,
)
from scenarios.restarting_client import RestartingClient
from scenarios.screen import Screen
from scenarios.scripts import calls
from scenarios.tool_controller import ToolController


async def next_question(stream: AsyncEventStream) -> Json:
    """The next question of the stream."""
    return (await stream.until("question_asked")).data


async def test_the_answer_reaches_the_model_and_the_same_stream_shows_the_rest(server: ServerProcess) -> None:
    async with ScriptedProvider(asks(clarification())) as model, AsyncApiClient(server.url) as ann:
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation) as stream:
            event = await next_question(stream)
            run = await ann.run(event["run_id"])
            assert (run["status"], run["phase"]) == ("waiting", "waiting")
            assert event["prompt"] == "Which colour?"
            assert event["options"] == COLOURS
            assert (event["required"], event["timeout_seconds"], event["multiple"]) == (False, 60, False)
            (question,) = await open_questions(ann, run["id"])
            assert question["id"] == event["question_id"]
            view = await answer(ann, question, "red", note="a dark one")
            assert (view["status"], view["answer"], view["answered_by"]) == ("answered", "red", "person")
            screen = await stream.to_the_end()
        assert screen.done is not None
        assert screen.done["status"] == "completed"
        message = (await ann.messages(conversation))[-1]
        assert message["text"] == FINAL_TEXT
        given_answer = {"answer": "red", "answered_by": "person", "note": "a dark one"}
        assert [result["data"] for result in results(message)] == [given_answer]
        assert len(model.requests) == 2
        listed = (await ann.get("/questions", status="open"))["items"]
        assert question["id"] not in [item["id"] for item in listed]


async def test_questions_asked_together_are_open_together_and_other_tools_run_before(
    server: ServerProcess,
) -> None:
    async with ToolController() as controller, AsyncApiClient(server.url) as ann:
        script = asks(
            clarification(), *calls("visit_once", controller.port, "a"), decision(allow_multiple=True)
        )
        async with ScriptedProvider(script) as model:
            conversation = await ann.conversation(model.url)
            async with ann.send_and_follow(conversation) as stream:
                visit = await controller.wait_for_visit()
                await stream.until("run")
                run_id = stream.screen.run_id
                assert (await ann.run(run_id))["status"] == "running"
                assert await open_questions(ann, run_id) == []
                visit.answer("done")
                await next_question(stream)
                first, second = await open_questions(ann, run_id)
                assert (first["kind"], second["kind"]) == ("clarification", "decision")
                assert second["timeout_seconds"] == 300
                await answer(ann, second, ["red", "or green"])
                assert (await ann.run(run_id))["status"] == "waiting"
                status = await ann.get(f"/conversations/{conversation}/execution-status")
                assert (status["is_running"], status["is_waiting"]) == (True, True)
                await answer(ann, first, "my own words")
                screen = await stream.to_the_end()
            answers = [event["answer"] for event in screen.data_of("question_answered")]
            assert answers == [["red", "or green"], "my own words"]
            message = (await ann.messages(conversation))[-1]
            said = {
                step["id_ref"]: json.loads(step["content"])
                for step in message["steps"]
                if step["type"] == "tool_result"
            }
            assert said["call-ask"]["data"]["answer"] == "my own words"
            assert said["call-decide"]["data"]["answer"] == ["red", "or green"]
            assert controller.keys_seen() == ["a"]
            assert len(model.requests) == 2


async def test_a_second_answer_is_refused_and_changes_nothing(server: ServerProcess) -> None:
    script = asks(clarification("call-1"), clarification("call-2"))
    async with ScriptedProvider(script) as model, AsyncApiClient(server.url) as ann:
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation) as stream:
            await next_question(stream)
            first, second = await open_questions(ann, stream.screen.run_id)
            path = f"/runs/{first['run_id']}/questions/{first['id']}/answer"
            both = await asyncio.gather(
                *(ann.ask("POST", path, {"answer": each}) for each in ("red", "blue", "green"))
            )
            assert sorted(each.status_code for each in both) == [200, 409, 409]
            won = next(each.json()["data"]["answer"] for each in both if each.status_code == 200)
            refused = next(each.json() for each in both if each.status_code == 409)
            assert refused["detail"]["kind"] == "question_answered"
            await answer(ann, second, "blue")
            screen = await stream.to_the_end()
        assert [event["answer"] for event in screen.data_of("question_answered")] == [won, "blue"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"answer": ["red"]}, "$.answer"),
        ({"answer": "  "}, "$.answer"),
        ({"answer": "red", "arguments": {}}, "$.arguments"),
        ({"answer": ""}, "$.answer"),
        ({"answer": []}, "$.answer"),
        ({"answer": {"a": 1}}, "$.answer"),
        ({"answer": "x" * 10_001}, "$.answer"),
        ({"answer": "a\0b"}, "$.answer"),
        ({"answer": "red", "note": "n\0"}, "$.note"),
        ({"answer": "red", "more": 1}, "$.more"),
        ({}, "$.answer"),
    ],
    ids=str,
)
async def test_an_invalid_answer_is_refused_with_its_field(
    server: ServerProcess, body: Json, field: str
) -> None:
    async with ScriptedProvider(asks(clarification())) as model, AsyncApiClient(server.url) as ann:
        run = await ann.start_run(await ann.conversation(model.url))
        question = await only_question(ann, run["id"])
        path = f"/runs/{run['id']}/questions/{question['id']}/answer"
        refused = await ann.ask("POST", path, body)
        assert refused.status_code == 400, refused.text
        assert list(refused.json()["detail"]["fields"]) == [field]
        await answer(ann, question, "red")
        assert (await ann.wait_for_end(run["id"])).done is not None


async def only_question(person: AsyncApiClient, run_id: str) -> Json:
    """The run's only open question, when it waits."""
    async with person.follow(run_id) as stream:
        await next_question(stream)
    (question,) = await open_questions(person, run_id)
    return question


async def test_a_message_whose_run_begins_to_wait_is_answered_with_the_open_question(
    server: ServerProcess,
) -> None:
    async with ScriptedProvider(asks(clarification())) as model, AsyncApiClient(server.url) as ann:
        conversation = await ann.conversation(model.url)
        refused = await ann.ask("POST", "/messages", {"conversation_id": conversation, "content": "Hi"})
        assert refused.status_code == 409
        detail = refused.json()["detail"]
        assert detail["kind"] == "run_waiting"
        (question,) = await open_questions(ann, detail["run_id"])
        busy = await ann.ask("POST", "/messages", {"conversation_id": conversation, "content": "Hi"})
        assert (busy.status_code, busy.json()["detail"]["kind"]) == (409, "run_active")
        await answer(ann, question, "red")
        assert (await ann.wait_for_end(detail["run_id"])).done is not None
        assert (await ann.messages(conversation))[-1]["id"] == detail["message_id"]


async def test_cancelling_a_waiting_run_ends_it_at_once_and_refuses_a_late_answer(
    server: ServerProcess,
) -> None:
    async with ScriptedProvider(only_asks(clarification())) as model, AsyncApiClient(server.url) as ann:
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation) as stream:
            await next_question(stream)
            (question,) = await open_questions(ann, stream.screen.run_id)
            cancelled = await ann.cancel(stream.screen.run_id)
            assert cancelled.json()["data"]["status"] == "cancelled"
            screen = await stream.to_the_end(timeout=5)
        assert screen.done is not None
        assert screen.done["status"] == "stopped"
        path = f"/runs/{question['run_id']}/questions/{question['id']}/answer"
        late = await ann.ask("POST", path, {"answer": "red"})
        assert (late.status_code, late.json()["detail"]["kind"]) == (409, "question_closed")
        (closed_question,) = (await ann.get(f"/runs/{question['run_id']}/questions"))["items"]
        assert closed_question["status"] == "closed"
        message = (await ann.messages(conversation))[-1]
        assert message["status"] == "partial"
        assert [step["status"] for step in message["steps"]] == ["cancelled"]
        again = await ann.ask("POST", "/messages", {"conversation_id": conversation, "content": "Hi"})
        assert again.json()["detail"]["kind"] == "run_waiting"


async def test_deleting_the_conversation_of_a_waiting_run_ends_it_and_deletes_its_questions(
    server: ServerProcess,
) -> None:
    async with ScriptedProvider(only_asks(clarification())) as model, AsyncApiClient(server.url) as ann:
        conversation = await ann.conversation(model.url)
        run = await ann.start_run(conversation)
        question = await only_question(ann, run["id"])
        assert (await ann.ask("DELETE", f"/conversations/{conversation}")).status_code == 200
        path = f"/runs/{run['id']}/questions/{question['id']}/answer"
        assert (await ann.ask("POST", path, {"answer": "red"})).status_code == 404
        assert question["id"] not in [item["id"] for item in (await ann.get("/questions"))["items"]]


async def test_a_waiting_run_survives_a_kill_and_continues_with_the_answer(own_server: ServerProcess) -> None:
    async with ScriptedProvider(asks(clarification())) as model, RestartingClient(own_server) as ann:
        conversation = await ann.conversation(model.url)
        screen = Screen()
        run = await ann.start_run(conversation)
        async with ann.follow(run["id"], screen) as stream:
            await next_question(stream)
            await ann.kill_and_start()
        assert (await ann.run(run["id"]))["status"] == "waiting"
        assert [each["id"] for each in (await ann.get("/runs", status="waiting"))["items"]] == [run["id"]]
        (question,) = await open_questions(ann, run["id"])
        await answer(ann, question, "blue")
        await ann.follow_to_end(run["id"], screen)
        assert results((await ann.messages(conversation))[-1])[0]["data"]["answer"] == "blue"
        assert screen.data_of("warning") == []
        assert len(model.requests) == 2
