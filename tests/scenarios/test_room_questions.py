"""Questions of seats: who sees them, who may answer them and how, and what goes on meanwhile."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

import pytest
from api.server_process import ServerProcess

from luxx.providers.scripted import Call, Rule, Script, ScriptedProvider, Text, When
from scenarios.client import AsyncApiClient, Json
from scenarios.questions import answer, clarification, open_questions
from scenarios.restarting_client import RestartingClient
from scenarios.rooms import USUAL, joined, new_room, said, says, started, until_said
from scenarios.tool_controller import ToolController

numbers = itertools.count()
Join = Callable[..., AbstractAsyncContextManager[AsyncApiClient]]
RIGHTS = ("watch", "speak", "steer")


def asks_then_says(name: str, call: Call, text: str) -> list[Rule]:
    """The seat calls a tool in each of its turns and says this text once it has the result."""
    system = f"You are {name} in"
    return [
        Rule(name=f"{name} asks", when=When(system=system, has_tool_result=False), reply=[call, USUAL]),
        Rule(name=f"{name} tells", when=When(system=system, has_tool_result=True), reply=[Text(text=text)]),
    ]


def risky(controller: ToolController, key: str = "a") -> Call:
    return Call(name="visit_risky", arguments={"port": controller.port, "key": key}, id=f"call-{key}")


@asynccontextmanager
async def members(ann: AsyncApiClient, url: str, room: Json) -> AsyncIterator[dict[str, AsyncApiClient]]:
    """A member with each right, and `stranger`, who is none."""
    async with AsyncExitStack() as stack:
        found: dict[str, AsyncApiClient] = {}
        for right in (*RIGHTS, None):
            name = f"{right or 'stranger'}{next(numbers)}"
            person = joined(ann, url, room, right, name)
            found[right or "stranger"] = await stack.enter_async_context(person)
        yield found


async def open_question(ann: AsyncApiClient, run_id: str) -> Json:
    (question,) = await open_questions(ann, run_id)
    return question


async def test_only_a_member_with_steer_answers_and_the_others_learn_why_not(server: ServerProcess) -> None:
    rules = [*asks_then_says("Anna", clarification(), "Blue then"), *says("Ben", "Good")]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        room = await new_room(ann, model.url, "Anna", "Ben", max_rounds=1)
        async with members(ann, server.url, room) as people, started(ann, room["id"]) as stream:
            asked = (await stream.until("question_asked")).data
            await ann.until_status(asked["run_id"], "waiting")
            path = f"/runs/{asked['run_id']}/questions/{asked['question_id']}/answer"
            for right in RIGHTS:
                listed = (await people[right].get("/questions", status="open"))["items"]
                assert [one["id"] for one in listed] == [asked["question_id"]]
                assert await open_question(people[right], asked["run_id"]) == listed[0]
                assert listed[0]["subject_id"] == room["id"]
            assert (await people["stranger"].get("/questions"))["items"] == []
            assert (await people["stranger"].ask("GET", path[:-7].rsplit("/", 1)[0])).status_code == 404
            for right in ("watch", "speak"):
                refused = await people[right].ask("POST", path, {"answer": "blue"})
                assert refused.status_code == 403
                assert "right to steer" in refused.json()["error"]
                cancelled = await people[right].ask("POST", f"/runs/{asked['run_id']}/cancel")
                assert cancelled.status_code == 403
            hidden = await people["stranger"].ask("POST", path, {"answer": "blue"})
            assert hidden.status_code == 404
            given = await people["steer"].post(path, {"answer": "blue"})
            assert (given["status"], given["answered_by"]) == ("answered", "person")
            frames = (await stream.to_the_end()).frames
            assert said(frames) == [("Anna", "Blue then"), ("Ben", "Good")]
            late = await people["steer"].ask("POST", path, {"answer": "red"})
            assert late.status_code == 409


async def test_a_member_approves_one_call_and_never_changes_the_rules_of_anybody(
    server: ServerProcess,
) -> None:
    async with (
        ToolController(answers=True) as controller,
        ScriptedProvider(Script(rules=asks_then_says("Anna", risky(controller), "Done"))) as model,
        AsyncApiClient(server.url) as ann,
    ):
        room = await new_room(ann, model.url, "Anna", max_rounds=1)
        async with members(ann, server.url, room) as people, started(ann, room["id"]) as stream:
            asked = (await stream.until("question_asked")).data
            await ann.until_status(asked["run_id"], "waiting")
            own, members_view = [
                await open_question(person, asked["run_id"]) for person in (ann, people["steer"])
            ]
            assert [one["label"] for one in own["options"]] == ["once", "always", "reject"]
            assert [one["label"] for one in members_view["options"]] == ["once", "reject"]
            assert ("usual" in own, "usual" in members_view) == (True, False)
            path = f"/runs/{asked['run_id']}/questions/{asked['question_id']}/answer"
            refused = await people["steer"].ask("POST", path, {"answer": "always"})
            assert refused.status_code == 400
            assert "$.answer" in refused.json()["detail"]["fields"]
            assert "answer once or reject" in refused.json()["error"]
            assert controller.visits == []
            await answer(people["steer"], members_view, "once")
            assert said((await stream.to_the_end()).frames) == [("Anna", "Done")]
            assert controller.keys_seen() == ["a"]
            for person in (ann, people["steer"]):
                assert await person.get("/permissions/rules") == []
            calls = (await people["watch"].get("/tool-calls", run_id=asked["run_id"]))["items"]
            message = (await ann.get(f"/chat-rooms/{room['id']}/messages"))["items"][0]
            assert [(one["tool_name"], one["message_id"]) for one in calls] == [
                ("visit_risky", message["id"])
            ]
            result = await people["watch"].get(f"/runs/{asked['run_id']}/results/call-a")
            assert result["output"] == "done a"
            assert (await people["stranger"].get("/tool-calls", run_id=asked["run_id"]))["items"] == []


async def test_always_of_the_owner_is_a_rule_that_answers_the_next_seat_too(
    own_server: ServerProcess,
) -> None:
    async with ToolController(answers=True) as controller, AsyncApiClient(own_server.url) as ann:
        rules = [
            *asks_then_says("Anna", risky(controller, "a"), "One"),
            *asks_then_says("Ben", risky(controller, "b"), "Two"),
        ]
        async with ScriptedProvider(Script(rules=rules)) as model:
            room = await new_room(ann, model.url, "Anna", "Ben", max_rounds=1, policy="parallel")
            async with started(ann, room["id"]) as stream:
                first = (await stream.until("question_asked")).data
                await stream.until("question_asked")
                await ann.until_status(first["run_id"], "waiting")
                question = (await open_questions(ann, first["run_id"]))[0]
                await answer(ann, question, "always")
                frames = (await stream.to_the_end()).frames
            assert sorted(said(frames)) == [("Anna", "One"), ("Ben", "Two")]
            by = [frame.data["answered_by"] for frame in frames if frame.event == "question_answered"]
            assert by == ["person", "rule"]
            assert len(await ann.get("/permissions/rules")) == 1


@pytest.mark.parametrize("decision", ["once", "reject"])
async def test_the_other_seats_speak_while_one_waits_for_its_answer(
    server: ServerProcess, decision: str
) -> None:
    async with (
        ToolController(answers=True) as controller,
        ToolController() as other,
        AsyncApiClient(server.url) as ann,
    ):
        visit = Call(name="visit_once", arguments={"port": other.port, "key": "b"})
        rules = [
            *asks_then_says("Anna", risky(controller), "I know now"),
            *asks_then_says("Ben", visit, "I was there"),
            *says("Cleo", "I said it"),
        ]
        async with ScriptedProvider(Script(rules=rules)) as model:
            room = await new_room(ann, model.url, "Anna", "Ben", "Cleo", max_rounds=1, policy="parallel")
            async with members(ann, server.url, room) as people, started(ann, room["id"]) as stream:
                asked = (await stream.until("question_asked")).data
                visit_of_ben = await other.wait_for_visit()
                await until_said(stream, 1)
                # Ben's tool runs, Anna waits, and Cleo has spoken.
                assert (await ann.run(asked["run_id"]))["status"] == "running"
                question = await open_question(people["steer"], asked["run_id"])
                await answer(people["steer"], question, decision)
                assert (await stream.until("question_answered")).data["question_id"] == question["id"]
                await until_said(stream, 2)
                visit_of_ben.answer("yes")
                frames = (await stream.to_the_end()).frames
            assert [name for name, _ in said(frames)] == ["Cleo", "Anna", "Ben"]
            assert controller.keys_seen() == (["a"] if decision == "once" else [])


async def test_a_pause_closes_the_question_and_after_the_resume_its_seat_asks_again(
    server: ServerProcess,
) -> None:
    rules = [*asks_then_says("Anna", clarification(), "Blue then"), *says("Ben", "I go on")]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        room = await new_room(ann, model.url, "Anna", "Ben", max_rounds=1)
        async with started(ann, room["id"]) as stream:
            asked = (await stream.until("question_asked")).data
            await ann.until_status(asked["run_id"], "waiting")
            await ann.post(f"/chat-rooms/{room['id']}/stop")
            await stream.to_the_end()
        await ann.until_status(asked["run_id"], "paused")
        path = f"/runs/{asked['run_id']}/questions/{asked['question_id']}/answer"
        refused = await ann.ask("POST", path, {"answer": "blue"})
        assert refused.status_code == 409
        async with started(ann, room["id"], "resume") as stream:
            again = (await stream.until("question_asked")).data
            assert again["question_id"] != asked["question_id"]
            await answer(ann, await open_question(ann, asked["run_id"]), "blue")
            frames = (await stream.to_the_end()).frames
        assert said(frames) == [("Anna", "Blue then"), ("Ben", "I go on")]
        assert [frame.data["question_id"] for frame in frames if frame.event == "question_answered"] == [
            again["question_id"]
        ]


async def test_two_answers_at_once_count_once(server: ServerProcess) -> None:
    rules = asks_then_says("Anna", clarification(), "Thanks")
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        room = await new_room(ann, model.url, "Anna", max_rounds=1)
        async with members(ann, server.url, room) as people, started(ann, room["id"]) as stream:
            asked = (await stream.until("question_asked")).data
            await ann.until_status(asked["run_id"], "waiting")
            path = f"/runs/{asked['run_id']}/questions/{asked['question_id']}/answer"
            both = await asyncio.gather(
                ann.ask("POST", path, {"answer": "red"}),
                people["steer"].ask("POST", path, {"answer": "blue"}),
            )
            assert sorted(one.status_code for one in both) == [200, 409]
            frames = (await stream.to_the_end()).frames
        answers = [frame.data["answer"] for frame in frames if frame.event == "question_answered"]
        assert answers == ["red" if both[0].status_code == 200 else "blue"]
        assert said(frames) == [("Anna", "Thanks")]


async def test_a_room_waits_through_a_kill_and_goes_on_with_the_answer(own_server: ServerProcess) -> None:
    rules = [*asks_then_says("Anna", clarification(), "Blue then"), *says("Ben", "Good")]
    async with ScriptedProvider(Script(rules=rules)) as model, RestartingClient(own_server) as ann:
        room = await new_room(ann, model.url, "Anna", "Ben", max_rounds=1)
        headers = {"accept": "application/json"}
        run = (await ann.ask("POST", f"/chat-rooms/{room['id']}/start", headers=headers)).json()["data"]
        await ann.until_status(run["id"], "waiting")
        await ann.kill_and_start()
        question = await open_question(ann, run["id"])
        await answer(ann, question, "blue")
        await ann.follow_all(run["id"])
        messages = (await ann.get(f"/chat-rooms/{room['id']}/messages"))["items"][::-1]
        assert [message["text"].strip() for message in messages] == ["Blue then", "Good"]
        assert len(model.requests) == 3
