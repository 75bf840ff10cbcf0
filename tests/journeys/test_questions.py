"""A model asks its person: the run waits, costs nothing, survives, and goes on with the answer."""

import asyncio
import json
from typing import Any

import pytest

from journeys.asking import COLOURS, THEN, answer, asks, clarification, decision, open_questions
from journeys.conftest import Traveller
from journeys.desk import Desk
from journeys.person import Json, Person, Stream
from journeys.screen import Screen
from journeys.scripts import calls
from journeys.server import LuxxServer
from journeys.survivor import Survivor
from luxx.providers.scripted import ScriptedProvider


async def asked(stream: Stream) -> Json:
    """The next question of the stream."""
    async with asyncio.timeout(30):
        async for frame in stream:
            if frame.event == "question_asked":
                return frame.data
    raise AssertionError("the stream ended before anything was asked")


def results(message: Json) -> list[Json]:
    return [json.loads(step["content"]) for step in message["steps"] if step["type"] == "tool_result"]


def logged(screen: Screen, kind: str) -> list[Json]:
    return [frame.data for frame in screen.frames if frame.event == kind]


def test_the_answer_reaches_the_model_and_the_same_stream_shows_the_rest(
    server: LuxxServer, travel: Traveller
) -> None:
    async def journey() -> None:
        async with ScriptedProvider(asks(clarification())) as model, Person(server.url) as ann:
            conversation = await ann.conversation(model.url)
            async with ann.say(conversation) as stream:
                event = await asked(stream)
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
            assert message["text"] == THEN
            told = {"answer": "red", "answered_by": "person", "note": "a dark one"}
            assert [result["data"] for result in results(message)] == [told]
            assert len(model.requests) == 2
            assert (await ann.get("/questions", status="open"))["items"] == []

    travel(journey())
