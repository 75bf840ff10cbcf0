"""A server is stopped, or is killed after something was acknowledged, and is started again."""

import asyncio
import json

import pytest
from api.server_process import ServerProcess

from luxx.providers.scripted import ScriptedProvider
from scenarios.restarting_client import (
    SOON_SECONDS,
    RestartingClient,
    check_completed,
    finished_text,
    read_until_text,
)
from scenarios.screen import Screen
from scenarios.scripts import PROSE, always_replies, two_iterations, words
from scenarios.tool_controller import ToolController

pytestmark = pytest.mark.heavy


async def test_an_acknowledged_cancel_survives_a_kill(own_server: ServerProcess) -> None:
    async with (
        ScriptedProvider(always_replies(*words(PROSE, "middle"))) as model,
        RestartingClient(own_server) as ann,
    ):
        conversation = await ann.conversation(model.url)
        run = await ann.start_run(conversation)
        await model.reached("middle")
        assert (await ann.cancel(run["id"])).status_code == 200
        await ann.kill_and_start()
        screen = await ann.follow_to_end(run["id"])
        assert screen.done is not None
        assert screen.done["status"] == "stopped"
        assert (await ann.run(run["id"]))["status"] == "cancelled"
        message = await ann.answer_shown_by(conversation, screen)
        assert message["status"] == "partial"
        assert len(model.requests) == 1


async def test_a_run_that_continues_after_a_kill_can_be_cancelled(own_server: ServerProcess) -> None:
    async with (
        ScriptedProvider(always_replies(*words(PROSE, "middle"))) as model,
        RestartingClient(own_server) as ann,
    ):
        conversation = await ann.conversation(model.url)
        run = await ann.start_run(conversation)
        await model.reached("middle")
        await ann.kill_and_start()
        await model.arrived(2, SOON_SECONDS)
        async with ann.follow(run["id"]) as stream:
            await read_until_text(stream, "word50")
            assert (await ann.cancel(run["id"])).status_code == 200
            screen = await stream.to_the_end(timeout=5)
        await model.requests[1].wait_closed(0.5)
        assert screen.done is not None
        assert screen.done["status"] == "stopped"
        assert (await ann.answer_shown_by(conversation, screen))["status"] == "partial"


async def test_a_conversation_deleted_before_a_kill_stays_deleted(own_server: ServerProcess) -> None:
    async with (
        ScriptedProvider(always_replies(*words(PROSE, "middle"))) as model,
        RestartingClient(own_server) as ann,
    ):
        conversation = await ann.conversation(model.url)
        run = await ann.start_run(conversation)
        await model.reached("middle")
        assert (await ann.ask("DELETE", f"/conversations/{conversation}")).status_code == 200
        await ann.kill_and_start()
        assert (await ann.ask("GET", f"/runs/{run['id']}")).status_code == 404
        other = await ann.conversation(model.url)
        model.release("middle")
        assert (await ann.post("/messages", {"conversation_id": other, "content": "Hi"}))["text"] == PROSE
        assert len(model.requests) == 2


async def test_stopped_during_an_answer_the_run_continues_after_the_start(own_server: ServerProcess) -> None:
    async with (
        ScriptedProvider(always_replies(*words(PROSE, "middle"))) as model,
        RestartingClient(own_server) as ann,
    ):
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation) as stream:
            await model.reached("middle")
            await read_until_text(stream, "word50")
            screen = stream.screen
            reading = asyncio.create_task(ann.follow_to_end(screen.run_id, Screen()))
            await ann.stop()
        model.release("middle")
        await ann.start()
        await ann.follow_to_end(screen.run_id, screen)
        message = await check_completed(ann, conversation, screen)
        assert finished_text(message) == PROSE
        assert (await reading).ordered() == screen.ordered()
        assert len(model.requests) == 2


async def test_stopped_in_a_running_tool_it_is_not_run_twice(own_server: ServerProcess) -> None:
    async with (
        ToolController() as controller,
        ScriptedProvider(two_iterations(controller.port)) as model,
        RestartingClient(own_server) as ann,
    ):
        conversation = await ann.conversation(model.url)
        run = await ann.start_run(conversation, tools=["visit_once"])
        await controller.wait_for_visit(2)
        await ann.stop()
        await ann.start()
        screen = await ann.follow_to_end(run["id"])
        message = await check_completed(ann, conversation, screen)
        results = [json.loads(s["content"]) for s in message["steps"] if s["type"] == "tool_result"]
        assert [result["success"] for result in results] == [False, False]
        assert sorted(controller.keys_seen()) == ["a", "b"]
        assert sum(request.rule == "first call" for request in model.requests) == 1


async def test_a_server_that_is_stopped_while_clients_listen_ends_within_seconds(
    own_server: ServerProcess,
) -> None:
    async with (
        ScriptedProvider(always_replies(*words(PROSE, "middle"))) as model,
        RestartingClient(own_server) as ann,
    ):
        run = await ann.start_run(await ann.conversation(model.url))
        await model.reached("middle")
        listening = [asyncio.create_task(ann.follow_to_end(run["id"])) for _ in range(5)]
        async with ann.follow(run["id"]) as stream:
            await stream.until("process_step")
            async with asyncio.timeout(10):
                await ann.stop()
        assert not [line for line in own_server.lines if "Traceback" in line]
        model.release("middle")
        await ann.start()
        screens = await asyncio.gather(*listening)
        assert all(screen.ordered() == screens[0].ordered() for screen in screens)
