"""The driver of a run dies, freezes or is stopped: another goes on, and clients notice but a pause."""

import asyncio
import time

from journeys.desk import Desk
from journeys.scripts import PREFACE, PROSE, two_iterations

from chaos.cluster import GRACE_SECONDS, TAKEN_UP_SECONDS, Cluster
from chaos.conftest import Play
from chaos.roamer import Roamer
from chaos.scenes import HALF, ended_well, half_and_whole, seen_to
from chaos.truth import database_is_true
from luxx.providers.scripted import ScriptedProvider

HANDED_OVER_SECONDS = GRACE_SECONDS + 1.0
"""A stop gives runs their grace; what is left then is handed over at once, and not when a lease is over."""


def test_a_driver_is_killed_and_another_goes_on_in_time_while_a_client_at_a_third_misses_nothing(
    several: Cluster, play: Play
) -> None:
    async def scene() -> None:
        async with ScriptedProvider(half_and_whole()) as model, several.people() as people:
            first, second, third = people[:3]
            conversation = await first.conversation(model.url)
            run = await first.begin(conversation)
            await model.reached("middle")
            async with third.follow(run["id"]) as stream:
                await stream.until("run")
                begun = time.monotonic()
                await several.kill(several.webs[0])
                await model.arrived(2, TAKEN_UP_SECONDS)
                print(f"taken up after {time.monotonic() - begun:.2f} s")
                screen = await stream.to_the_end()
            assert model.requests[0].closed_at is not None
            assert await ended_well(second, conversation, screen, await second.see(run["id"])) == PROSE
            assert screen.events().count("warning") == 1
            assert len(model.requests) == 2

    play(several, scene())


def test_a_client_at_another_process_that_saw_half_a_text_sees_the_rest_after_the_driver_was_killed(
    several: Cluster, play: Play
) -> None:
    async def scene() -> None:
        async with ScriptedProvider(half_and_whole()) as model, several.people() as people:
            first, second, third = people[:3]
            conversation = await first.conversation(model.url)
            run = await first.begin(conversation)
            await model.reached("middle")
            async with third.follow(run["id"]) as stream:
                await seen_to(stream, HALF)
                await several.kill(several.webs[0])
                screen = await stream.to_the_end()
            assert await ended_well(second, conversation, screen) == PROSE

    play(several, scene())


def test_a_tool_that_ran_in_a_killed_driver_is_not_run_again_by_the_next(
    several: Cluster, play: Play
) -> None:
    async def scene() -> None:
        async with (
            Desk() as desk,
            ScriptedProvider(two_iterations(desk.port)) as model,
            several.people() as people,
        ):
            first, second = people[:2]
            conversation = await first.conversation(model.url)
            run = await first.begin(conversation, tools=["visit_once"])
            await desk.visited(2)
            answered = desk.visits[0].key
            desk.visits[0].answer(f"done {answered}")
            async with second.follow(run["id"]) as stream:
                await stream.until("process_step", type="tool_result")
                await several.kill(several.webs[0])
                screen = await stream.to_the_end()
            assert await ended_well(second, conversation, screen) == PREFACE + PROSE
            assert sorted(desk.keys_seen()) == ["a", "b"]
            results = {s["id_ref"]: s["success"] for s in screen.ordered() if s["type"] == "tool_result"}
            assert results == {"call-a": answered == "a", "call-b": answered == "b"}
            assert len(model.requests) == 2

    play(several, scene())


def test_a_driver_that_froze_past_its_lease_is_overtaken_and_cannot_write_when_it_wakes(
    several: Cluster, play: Play
) -> None:
    async def scene() -> None:
        async with ScriptedProvider(half_and_whole()) as model, several.people() as people:
            first, second, third = people[:3]
            conversation = await first.conversation(model.url)
            run = await first.begin(conversation)
            await model.reached("middle")
            at_the_frozen = asyncio.create_task(first.see(run["id"]))
            async with third.follow(run["id"]) as stream:
                await stream.until("run")
                begun = time.monotonic()
                several.webs[0].freeze()
                await model.arrived(2, TAKEN_UP_SECONDS)
                print(f"overtaken after {time.monotonic() - begun:.2f} s")
                screen = await stream.to_the_end()
            ended = await second.run(run["id"])
            several.webs[0].thaw()
            # What it waited for arrives at last, and it would like to write it down.
            model.release("middle")
            assert await ended_well(second, conversation, screen, await at_the_frozen) == PROSE
            said = await first.post("/messages", {"conversation_id": conversation, "content": "Still there?"})
            assert said["text"] == PROSE
            assert await second.run(run["id"]) == ended
            assert len(model.requests) == 3
        await asyncio.to_thread(database_is_true, several)

    play(several, scene())


def test_a_driver_that_is_stopped_hands_its_run_over_when_its_grace_is_spent(
    several: Cluster, play: Play
) -> None:
    async def scene() -> None:
        async with (
            ScriptedProvider(half_and_whole()) as model,
            several.people() as people,
            Roamer(several.url, people[0].token) as roamer,
        ):
            first, second = people[:2]
            conversation = await first.conversation(model.url)
            run = await first.begin(conversation)
            await model.reached("middle")
            watching = asyncio.create_task(roamer.see_through(run["id"]))
            begun = time.monotonic()
            stopping = asyncio.create_task(several.stop(several.webs[0]))
            await model.arrived(2, HANDED_OVER_SECONDS)
            print(f"handed over after {time.monotonic() - begun:.2f} s")
            await stopping
            screens = [await watching, await second.see(run["id"])]
            assert await ended_well(second, conversation, *screens) == PROSE
            assert len(model.requests) == 2

    play(several, scene())


def test_all_processes_are_killed_at_once_and_the_run_goes_on_when_one_is_there_again(
    several: Cluster, play: Play
) -> None:
    async def scene() -> None:
        async with (
            ScriptedProvider(half_and_whole()) as model,
            several.people() as people,
            Roamer(several.url, people[0].token) as roamer,
        ):
            conversation = await people[0].conversation(model.url)
            run = await people[0].begin(conversation)
            await model.reached("middle")
            watching = asyncio.create_task(roamer.see_through(run["id"]))
            await asyncio.gather(*(several.kill(member) for member in several.members))
            last = several.webs[-1]
            await several.start(last)
            await model.arrived(2, TAKEN_UP_SECONDS)
            screen = await watching
            assert await ended_well(roamer, conversation, screen) == PROSE
            assert len(model.requests) == 2

    play(several, scene())
