"""No answer in time: a question with a recommended option continues with it, any other stays open."""

import asyncio
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from api.server_process import ServerProcess

from luxx.providers.scripted import ScriptedProvider
from scenarios.client import AsyncApiClient, Json
from scenarios.questions import FINAL_TEXT, answer, asks, clarification, decision, open_questions, results
from scenarios.restarting_client import RestartingClient
from scenarios.screen import Screen

NOTHING_RECOMMENDED = [{"label": "red"}, {"label": "blue"}]
STAYS_OPEN = {
    "a required clarification": clarification(required=True, timeout_seconds=1),
    "a clarification that recommends nothing": clarification(options=NOTHING_RECOMMENDED, timeout_seconds=1),
    "a confirmation": decision(decision_type="confirmation", timeout_seconds=1),
    "a risk": decision(decision_type="risk", timeout_seconds=1),
}


@pytest.fixture
def quick_server(tmp_path: Path) -> Iterator[ServerProcess]:
    """Checks for overdue questions four times a second; decisions wait two seconds."""
    environment = {"LUXX_RUNS__LEASE_SECONDS": "1", "LUXX_LIMITS__QUESTION_TIMEOUT_SECONDS": "2"}
    with ServerProcess(tmp_path, **environment) as started_server:
        yield started_server


def seconds_open(question: Json) -> float:
    asked, ended = question["created_at"], question["answered_at"]
    return (datetime.fromisoformat(ended) - datetime.fromisoformat(asked)).total_seconds()


async def test_an_expired_decision_continues_with_its_recommended_options(
    quick_server: ServerProcess,
) -> None:
    several = [{"label": name, "is_recommended": name != "green"} for name in ("red", "green", "blue")]
    script = asks(clarification(timeout_seconds=1), decision(allow_multiple=True, options=several))
    async with ScriptedProvider(script) as model, AsyncApiClient(quick_server.url) as ann:
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation) as stream:
            screen = await stream.to_the_end()
        answers = [frame.data for frame in screen.frames if frame.event == "question_answered"]
        assert [event["answer"] for event in answers] == ["blue", ["red", "blue"]]
        assert {event["answered_by"] for event in answers} == {"timeout"}
        message = (await ann.messages(conversation))[-1]
        assert message["text"] == FINAL_TEXT
        assert [result["data"]["answered_by"] for result in results(message)] == ["timeout"] * 2
        decided, clarified = (await ann.get(f"/runs/{screen.run_id}/questions"))["items"]
        assert 1 <= seconds_open(clarified) < 4
        assert 2 <= seconds_open(decided) < 5


async def test_questions_without_a_recommended_option_stay_open(quick_server: ServerProcess) -> None:
    calls = list(STAYS_OPEN.values())
    async with ScriptedProvider(asks(*_numbered(calls))) as model, AsyncApiClient(quick_server.url) as ann:
        run = await ann.start_run(await ann.conversation(model.url))
        # When a later question of the same length has expired, so would this one have.
        async with ann.follow(run["id"]) as stream:
            await stream.until("question_asked")
        async with ScriptedProvider(asks(clarification(timeout_seconds=2))) as other:
            later = await ann.start_run(await ann.conversation(other.url))
            await ann.wait_for_end(later["id"])
        questions = await open_questions(ann, run["id"])
        assert len(questions) == len(STAYS_OPEN)
        assert {question["due_at"] for question in questions} == {None}
        assert {question["required"] for question in questions} == {True}
        for question in questions:
            await answer(ann, question, "red")
        assert (await ann.wait_for_end(run["id"])).done is not None


def _numbered(calls: list) -> list:
    return [
        type(call)(name=call.name, arguments=call.arguments, id=f"call-{at}") for at, call in enumerate(calls)
    ]


@pytest.mark.heavy
async def test_a_question_that_expired_while_the_server_was_down_is_closed_at_the_start(
    quick_server: ServerProcess,
) -> None:
    async with (
        ScriptedProvider(asks(clarification(timeout_seconds=2))) as model,
        RestartingClient(quick_server) as ann,
    ):
        conversation = await ann.conversation(model.url)
        screen = Screen()
        run = await ann.start_run(conversation)
        async with ann.follow(run["id"], screen) as stream:
            due = await stream.until("question_asked")
            await ann.kill()
        asked = datetime.fromisoformat(due.data["timestamp"])
        # This test needs that time to pass while no server runs.
        await asyncio.sleep(max(0.0, 2 - (datetime.now(asked.tzinfo) - asked).total_seconds()))
        await ann.start()
        await ann.follow_to_end(run["id"], screen)
        message = (await ann.messages(conversation))[-1]
        assert results(message)[0]["data"] == {"answer": "blue", "answered_by": "timeout"}
        assert len(model.requests) == 2
