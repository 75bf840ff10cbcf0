"""kill -9 while an agent called without a conversation answers: the run ends once, with one message."""

import asyncio
import json
import random
import sqlite3
from typing import Any

import httpx
import pytest
from api.server_process import ServerProcess

from luxx.providers.scripted import Counts, Gate, Rule, Script, ScriptedProvider, Text, Thinking, When
from scenarios.client import Json
from scenarios.restarting_client import (
    SOON_SECONDS,
    RestartingClient,
    finished_text,
    read_until_text,
)
from scenarios.screen import Screen
from scenarios.scripts import FIRST_THOUGHT, PREFACE, PROSE, always_replies, two_iterations, words
from scenarios.tool_controller import ToolController

pytestmark = pytest.mark.heavy

PROMPT = "Write plainly."


async def new_agent(ann: RestartingClient, provider_url: str, **more: Any) -> int:
    """Creates an agent with the model at this address. Returns its id."""
    provider_id = await ann.connect(provider_url)
    body = {"name": "Writer", "provider_id": provider_id, "system_prompt": PROMPT, **more}
    return (await ann.post("/agents", body))["id"]


def stored_messages(ann: RestartingClient) -> list[Json]:
    """The rows of the messages that belong to no conversation, oldest first."""
    with sqlite3.connect(ann.server.data_dir / "luxx.db") as database:
        database.row_factory = sqlite3.Row
        rows = database.execute("SELECT * FROM messages WHERE conversation_id IS NULL ORDER BY id")
        return [dict(row) for row in rows]


async def check_answered_once(ann: RestartingClient, screen: Screen) -> Json:
    """The stored answer of a call that continued after crashes. Checks that there is one run with one answer,
    that it is what the client shows, and that no conversation was created."""
    assert screen.done is not None
    assert screen.done["status"] == "completed"
    assert screen.events().count("done") == 1
    run = await ann.run(screen.run_id)
    assert (run["status"], run["last_seq"]) == ("completed", screen.last_id)
    question, answer = (row for row in stored_messages(ann) if row["run_id"] == screen.run_id)
    assert (question["role"], answer["role"]) == ("user", "assistant")
    assert answer["id"] == run["message_id"] == screen.done["message_id"]
    assert (answer["parent_id"], answer["status"]) == (question["id"], "complete")
    fresh = await ann.wait_for_end(screen.run_id)
    assert fresh.ordered() == screen.ordered()
    message: Json = json.loads(answer["content"])
    assert finished_text(message) == screen.text
    assert (await ann.get("/conversations"))["total"] == 0
    return message


async def runs_of(ann: RestartingClient, agent_id: int) -> list[Json]:
    return (await ann.get(f"/agents/{agent_id}/activities"))["items"]


def requests_of(model: ScriptedProvider, rule: str) -> int:
    return sum(request.rule == rule for request in model.requests)


async def test_killed_during_an_answer_the_call_ends_once_with_the_values_it_began_with(
    own_server: ServerProcess,
) -> None:
    reply = [Thinking(text=FIRST_THOUGHT), *words(PROSE, "middle"), Counts(prompt=1, completion=2)]
    async with ScriptedProvider(always_replies(*reply)) as model, RestartingClient(own_server) as ann:
        agent_id = await new_agent(ann, model.url, temperature=0.3)
        async with ann.invoke_and_follow(agent_id) as stream:
            await model.reached("middle")
            await read_until_text(stream, "word109 ")
            screen = stream.screen
            changes = {"system_prompt": "Rhyme.", "temperature": 1.5}
            assert (await ann.ask("PUT", f"/agents/{agent_id}", changes)).is_success
            await ann.kill()
        await model.requests[0].wait_closed(5)
        model.release("middle")
        await ann.start()
        await model.arrived(2, SOON_SECONDS)
        await ann.follow_to_end(screen.run_id, screen)
        message = await check_answered_once(ann, screen)
        assert finished_text(message) == PROSE
        assert [run["id"] for run in await runs_of(ann, agent_id)] == [screen.run_id]
        first, second = (request.json for request in model.requests)
        assert first == second
        assert second["messages"][0]["content"].startswith(PROMPT)
        assert second["temperature"] == 0.3


async def test_a_call_of_an_agent_that_was_deleted_ends_after_a_kill(own_server: ServerProcess) -> None:
    async with (
        ScriptedProvider(always_replies(*words(PROSE, "middle"))) as model,
        RestartingClient(own_server) as ann,
    ):
        agent_id = await new_agent(ann, model.url)
        async with ann.invoke_and_follow(agent_id) as stream:
            await model.reached("middle")
            await stream.until("process_step")
            screen = stream.screen
            assert (await ann.ask("DELETE", f"/agents/{agent_id}")).is_success
            await ann.kill()
        model.release("middle")
        await ann.start()
        await ann.follow_to_end(screen.run_id, screen)
        assert finished_text(await check_answered_once(ann, screen)) == PROSE


async def test_a_call_whose_caller_lost_the_connection_ends_once(own_server: ServerProcess) -> None:
    """The caller waits for the whole message, so the kill breaks its request."""
    script = Script(
        rules=[
            Rule(when=When(call=1), reply=words(PROSE, "middle")),
            Rule(when=When(call=2), reply=[Text(text="All anew.")]),
        ]
    )
    async with ScriptedProvider(script) as model, RestartingClient(own_server) as ann:
        agent_id = await new_agent(ann, model.url)
        asking = asyncio.create_task(ann.post(f"/agents/{agent_id}/invoke", {"content": "Hello"}))
        await model.reached("middle")
        await ann.kill_and_start()
        with pytest.raises(httpx.TransportError):
            await asking
        (run,) = await runs_of(ann, agent_id)
        screen = await ann.follow_to_end(run["id"])
        assert finished_text(await check_answered_once(ann, screen)) == "All anew."
        assert len(stored_messages(ann)) == 2
        assert len(model.requests) == 2


async def kill_after_event(ann: RestartingClient, event_id: int) -> bool:
    """A call whose server is killed when its client has this event. Returns whether it was the last event."""
    async with (
        ToolController(answers=True) as controller,
        ScriptedProvider(two_iterations(controller.port)) as model,
    ):
        agent_id = await new_agent(ann, model.url, tools=["visit_once"])
        async with ann.invoke_and_follow(agent_id) as stream:
            screen = stream.screen
            async for frame in stream:
                if frame.id == event_id:
                    break
            await ann.kill()
        completions = screen.events().count("cost_update")
        await ann.start()
        await ann.follow_to_end(screen.run_id, screen)
        message = await check_answered_once(ann, screen)
        assert finished_text(message) == PREFACE + PROSE
        assert requests_of(model, "first call") <= (1 if completions >= 1 else 2)
        assert requests_of(model, "second call") <= (1 if completions >= 2 else 2)
        assert len(set(controller.keys_seen())) == len(controller.keys_seen()) <= 2, "a tool was run twice"
        assert screen.events().count("cost_update") == 2
        offered = [[tool["function"]["name"] for tool in each.json["tools"]] for each in model.requests]
        assert all(names == offered[0] for names in offered)
        assert set(offered[0]) == {"visit_once", "result_read"}
        return screen.last_id <= event_id


async def test_killed_after_a_logged_event_the_call_ends_and_repeats_nothing_logged(
    own_server: ServerProcess,
) -> None:
    """Every third event; `test_crashes.py` kills the same turn of a conversation after each of its events."""
    async with RestartingClient(own_server) as ann:
        event_id = 1
        while not await kill_after_event(ann, event_id):
            event_id += 3
        assert event_id > 9


async def test_killed_during_the_final_write_the_answer_is_stored_once(own_server: ServerProcess) -> None:
    chance = random.Random(21)
    async with RestartingClient(own_server) as ann:
        for _ in range(4):
            reply = [Text(text=PROSE), Counts(prompt=1, completion=2), Gate(name="end")]
            async with ScriptedProvider(always_replies(*reply)) as model:
                agent_id = await new_agent(ann, model.url)
                async with ann.invoke_and_follow(agent_id) as stream:
                    await model.reached("end")
                    await read_until_text(stream, PROSE)
                    screen = stream.screen
                    model.release("end")
                    # This is no wait for an event: the kill may come at any point of the next milliseconds.
                    await asyncio.sleep(chance.uniform(0, 0.02))
                    await ann.kill()
                await ann.start()
                await ann.follow_to_end(screen.run_id, screen)
                assert finished_text(await check_answered_once(ann, screen)) == PROSE
                assert len(model.requests) <= 2
