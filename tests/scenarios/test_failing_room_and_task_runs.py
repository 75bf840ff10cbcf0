"""Runs of rooms and tasks that fail: they pause with the error, and resume once it is repaired."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

from api.server_process import ServerProcess

from luxx.providers.scripted import Gate, Rule, Script, ScriptedProvider, Text, When
from scenarios.client import AsyncApiClient
from scenarios.questions import clarification
from scenarios.rooms import USUAL, new_room, order, replies, run_to_the_end, said, says, started
from scenarios.test_tasks import RESULT, does, execute, new_task, statuses, step


@contextmanager
def refused_writes(server: ServerProcess, change: str, condition: str) -> Iterator[None]:
    """Meanwhile the database refuses this change of rows."""
    with closing(sqlite3.connect(server.data_dir / "luxx.db", timeout=20)) as database:
        database.execute(
            f"CREATE TRIGGER refused BEFORE {change} WHEN {condition} BEGIN SELECT RAISE(ABORT, 'no'); END"
        )
        database.commit()
        yield
        database.execute("DROP TRIGGER refused")
        database.commit()


async def test_a_room_whose_run_fails_pauses_with_the_error_and_resumes(server: ServerProcess) -> None:
    script = Script(rules=[*says("Anna", "I begin", "I agree"), *says("Ben", "I doubt it", "We end")])
    async with ScriptedProvider(script) as model, AsyncApiClient(server.url) as ann:
        room = await new_room(ann, model.url, "Anna", "Ben", max_rounds=2)
        with refused_writes(server, "UPDATE OF current_round ON chat_rooms", "NEW.current_round = 2"):
            frames = await run_to_the_end(ann, room["id"])
        assert order(frames)[-2:] == ["error", "room_paused"]
        assert next(frame for frame in frames if frame.event == "error").data["code"] == "internal_error"
        failed = await ann.get(f"/chat-rooms/{room['id']}")
        assert failed["status"] == "error"
        assert "internal error" in failed["error"]
        assert (await ann.run(failed["run_id"]))["status"] == "paused"
        assert len(model.requests) == 2

        later = await run_to_the_end(ann, room["id"], "resume")
        assert said(later) == [("Anna", "I agree"), ("Ben", "We end")]
        room = await ann.get(f"/chat-rooms/{room['id']}")
        assert (room["status"], room["error"], room["stop_reason"]) == ("completed", None, "rounds")
        assert len(model.requests) == 4


async def test_a_question_is_answered_after_the_room_is_repaired(server: ServerProcess) -> None:
    asks = When(system="You are Anna in", has_tool_result=False)
    answered = When(system="You are Anna in", has_tool_result=True)
    gate = Gate(name="Ben speaks")
    rules = [
        Rule(name="asks", when=asks, reply=[clarification(), USUAL]),
        Rule(name="answered", when=answered, reply=[Text(text="Blue then"), USUAL]),
        replies("Ben", 1, gate, Text(text="Me too"), USUAL),
        replies("Ben", 2, Text(text="Me too"), USUAL),
    ]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        room = await new_room(ann, model.url, "Anna", "Ben", max_rounds=1, policy="parallel")
        async with started(ann, room["id"]) as stream:
            asked = (await stream.until("question_asked")).data
            await model.reached(gate.name)
            with refused_writes(server, "INSERT ON messages", "NEW.sender_name = 'Ben'"):
                model.release(gate.name)
                await stream.to_the_end()
        run = f"/runs/{asked['run_id']}"
        assert (await ann.run(asked["run_id"]))["status"] == "paused"
        await ann.ask("POST", f"/chat-rooms/{room['id']}/resume", headers={"accept": "application/json"})
        await ann.post(f"{run}/questions/{asked['question_id']}/answer", {"answer": "blue"})
        await ann.follow_all(asked["run_id"])
        messages = (await ann.get(f"/chat-rooms/{room['id']}/messages"))["items"]
        texts = {one["sender_name"]: one["text"] for one in messages}
        assert texts == {"Anna": "Blue then", "Ben": "Me too"}
        assert (await ann.get(f"/chat-rooms/{room['id']}"))["status"] == "completed"


async def test_a_task_whose_run_fails_pauses_its_steps_and_resumes(server: ServerProcess) -> None:
    gate = Gate(name="a goes on")
    rules = [
        does("a", "First", Text(text="So far "), gate, call=1),
        does("a", "First", call=2),
        does("b", "Second"),
        does("c", "Third"),
        RESULT,
    ]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        task_id = await new_task(ann, model.url, step("a"), step("b"), step("c", "b"))
        with refused_writes(
            server, "UPDATE OF status ON task_steps", "NEW.id = 'c' AND NEW.status = 'running'"
        ):
            frames = await execute(ann, task_id)
        assert order(frames)[-3:] == ["error", "step_complete", "task_paused"]
        assert await statuses(ann, task_id) == {"a": "pending", "b": "completed", "c": "pending"}
        task = await ann.get(f"/tasks/{task_id}")
        assert task["status"] == "block"
        assert (await ann.run(task["run_id"]))["error"] is not None

        await execute(ann, task_id, "resume")
        assert await statuses(ann, task_id) == {"a": "completed", "b": "completed", "c": "completed"}
        assert [one.rule for one in model.requests].count("b Second") == 1
