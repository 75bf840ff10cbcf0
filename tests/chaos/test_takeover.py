"""The driver of a run dies, freezes or is stopped: another process continues it after a short pause."""

import asyncio
import time

from scenarios.scripts import PREFACE, PROSE, two_iterations
from scenarios.tool_controller import ToolController

from chaos.cluster import GRACE_SECONDS, TAKEOVER_SECONDS, Cluster
from chaos.endings import HALF, check_completed, half_and_whole, read_until_text
from chaos.invariants import check_database
from chaos.round_robin_client import RoundRobinClient
from luxx.providers.scripted import ScriptedProvider

HANDED_OVER_SECONDS = GRACE_SECONDS + 1.0
"""A stop gives runs a grace period; then they are handed over at once, without waiting for the lease."""


async def test_another_process_continues_the_run_of_a_killed_driver_and_clients_elsewhere_miss_nothing(
    several: Cluster,
) -> None:
    async with ScriptedProvider(half_and_whole()) as model, several.clients() as clients:
        first, second, third = clients[:3]
        conversation = await first.conversation(model.url)
        run = await first.start_run(conversation)
        await model.reached("middle")
        async with third.follow(run["id"]) as stream:
            await stream.until("run")
            begun = time.monotonic()
            await several.kill(several.webs[0])
            await model.arrived(2, TAKEOVER_SECONDS)
            print(f"taken up after {time.monotonic() - begun:.2f} s")
            screen = await stream.to_the_end()
        assert model.requests[0].closed_at is not None
        assert (
            await check_completed(second, conversation, screen, await second.wait_for_end(run["id"])) == PROSE
        )
        assert screen.events().count("warning") == 1
        assert len(model.requests) == 2


async def test_a_client_at_another_process_gets_the_rest_of_a_text_after_the_driver_was_killed(
    several: Cluster,
) -> None:
    async with ScriptedProvider(half_and_whole()) as model, several.clients() as clients:
        first, second, third = clients[:3]
        conversation = await first.conversation(model.url)
        run = await first.start_run(conversation)
        await model.reached("middle")
        async with third.follow(run["id"]) as stream:
            await read_until_text(stream, HALF)
            await several.kill(several.webs[0])
            screen = await stream.to_the_end()
        assert await check_completed(second, conversation, screen) == PROSE


async def test_a_tool_that_ran_in_a_killed_driver_is_not_run_again_by_the_next(several: Cluster) -> None:
    async with (
        ToolController() as controller,
        ScriptedProvider(two_iterations(controller.port)) as model,
        several.clients() as clients,
    ):
        first, second = clients[:2]
        conversation = await first.conversation(model.url)
        run = await first.start_run(conversation, tools=["visit_once"])
        await controller.wait_for_visit(2)
        answered = controller.visits[0].key
        controller.visits[0].answer(f"done {answered}")
        async with second.follow(run["id"]) as stream:
            await stream.until("process_step", type="tool_result")
            await several.kill(several.webs[0])
            screen = await stream.to_the_end()
        assert await check_completed(second, conversation, screen) == PREFACE + PROSE
        assert sorted(controller.keys_seen()) == ["a", "b"]
        results = {s["id_ref"]: s["success"] for s in screen.ordered() if s["type"] == "tool_result"}
        assert results == {"call-a": answered == "a", "call-b": answered == "b"}
        assert len(model.requests) == 2


async def test_a_driver_frozen_past_its_lease_loses_the_run_and_cannot_write_to_it(
    several: Cluster,
) -> None:
    async with ScriptedProvider(half_and_whole()) as model, several.clients() as clients:
        first, second, third = clients[:3]
        conversation = await first.conversation(model.url)
        run = await first.start_run(conversation)
        await model.reached("middle")
        at_the_frozen = asyncio.create_task(first.wait_for_end(run["id"]))
        async with third.follow(run["id"]) as stream:
            await stream.until("run")
            begun = time.monotonic()
            several.webs[0].freeze()
            await model.arrived(2, TAKEOVER_SECONDS)
            print(f"overtaken after {time.monotonic() - begun:.2f} s")
            screen = await stream.to_the_end()
        ended = await second.run(run["id"])
        several.webs[0].thaw()
        # The awaited data arrives at last, and the process tries to write it.
        model.release("middle")
        assert await check_completed(second, conversation, screen, await at_the_frozen) == PROSE
        answer = await first.post("/messages", {"conversation_id": conversation, "content": "Still there?"})
        assert answer["text"] == PROSE
        assert await second.run(run["id"]) == ended
        assert len(model.requests) == 3
    await asyncio.to_thread(check_database, several)


async def test_a_stopped_driver_hands_its_run_over_after_its_grace_period(several: Cluster) -> None:
    async with (
        ScriptedProvider(half_and_whole()) as model,
        several.clients() as clients,
        RoundRobinClient(several.url, clients[0].token) as client,
    ):
        first, second = clients[:2]
        conversation = await first.conversation(model.url)
        run = await first.start_run(conversation)
        await model.reached("middle")
        watching = asyncio.create_task(client.follow_to_end(run["id"]))
        begun = time.monotonic()
        stopping = asyncio.create_task(several.stop(several.webs[0]))
        await model.arrived(2, HANDED_OVER_SECONDS)
        print(f"handed over after {time.monotonic() - begun:.2f} s")
        await stopping
        screens = [await watching, await second.wait_for_end(run["id"])]
        assert await check_completed(second, conversation, *screens) == PROSE
        assert len(model.requests) == 2


async def test_after_a_kill_of_all_processes_the_run_continues_when_one_is_back(
    several: Cluster,
) -> None:
    async with (
        ScriptedProvider(half_and_whole()) as model,
        several.clients() as clients,
        RoundRobinClient(several.url, clients[0].token) as client,
    ):
        conversation = await clients[0].conversation(model.url)
        run = await clients[0].start_run(conversation)
        await model.reached("middle")
        watching = asyncio.create_task(client.follow_to_end(run["id"]))
        await asyncio.gather(*(several.kill(member) for member in several.members))
        last = several.webs[-1]
        await several.start(last)
        await model.arrived(2, TAKEOVER_SECONDS)
        screen = await watching
        assert await check_completed(client, conversation, screen) == PROSE
        assert len(model.requests) == 2
