"""The bus between processes is cut again and again: everything still works, only later."""

import asyncio
import random
import time

from journeys.desk import Desk
from journeys.scripts import PROSE, says, words

from chaos.cluster import LEASE_SECONDS, TAKEN_UP_SECONDS, Cluster
from chaos.conftest import Play
from chaos.crowd import Crowd, script
from chaos.postgres import BUS, Postgres
from chaos.roamer import Roamer, until
from chaos.scenes import ended_well, half_and_whole, stopped_well
from chaos.truth import all_is_well, database_is_true, settled
from luxx.providers.scripted import ScriptedProvider

PEOPLE = 3
RUN_SECONDS = 20.0
AWAY_SECONDS = 5.0
CUT_EVERY_SECONDS = 0.05


async def keep_away(postgres: Postgres) -> None:
    """Cuts the bus as soon as it is there again, until cancelled."""
    while True:
        await asyncio.to_thread(postgres.cut, BUS)
        await asyncio.sleep(CUT_EVERY_SECONDS)


def test_while_the_bus_is_away_clients_elsewhere_see_every_run_whole(
    several: Cluster, postgres: Postgres, play: Play
) -> None:
    async def scene() -> None:
        async with Roamer(several.url) as ann, Desk(answers=True) as desk:
            model = ScriptedProvider(script(desk.port))
            await model.start()
            crowd = Crowd(ann, several, model, random.Random(5))
            try:
                await crowd.arrive(PEOPLE)
                assert await asyncio.to_thread(postgres.count, BUS) > 0
                cutting = asyncio.create_task(keep_away(postgres))
                talking = asyncio.ensure_future(crowd.talk())
                # Not to wait for something: so long it is away, and then comes back under load.
                await asyncio.sleep(AWAY_SECONDS)
                cutting.cancel()
                crowd.end()
                await settled(several, ann, talking, RUN_SECONDS)
                await all_is_well(ann, crowd, model, desk)
                await asyncio.to_thread(database_is_true, several)
            finally:
                await model.stop()

    play(several, scene())


def test_while_the_bus_is_away_a_cancel_from_another_process_holds_within_a_beat(
    several: Cluster, postgres: Postgres, play: Play
) -> None:
    async def scene() -> None:
        async with ScriptedProvider(says(*words(PROSE, "here"))) as model, several.people() as people:
            first, second = people[:2]
            conversation = await first.conversation(model.url)
            run = await first.begin(conversation)
            await model.reached("here")
            cutting = asyncio.create_task(keep_away(postgres))
            begun = time.monotonic()
            assert (await second.cancel(run["id"])).status_code == 200
            await model.requests[0].wait_closed(LEASE_SECONDS)
            print(f"closed after {time.monotonic() - begun:.2f} s")
            await stopped_well(second, conversation, await second.see(run["id"]))
            cutting.cancel()

    play(several, scene())


def test_after_the_bus_was_away_text_is_seen_live_elsewhere_again(
    several: Cluster, postgres: Postgres, play: Play
) -> None:
    async def scene() -> None:
        async with ScriptedProvider(half_and_whole()) as model, several.people() as people:
            first, second = people[:2]
            there = await asyncio.to_thread(postgres.cut, BUS)

            async def is_back() -> bool:
                return await asyncio.to_thread(postgres.count, BUS) >= there

            async with asyncio.timeout(TAKEN_UP_SECONDS):
                await until(is_back)
            conversation = await first.conversation(model.url)
            run = await first.begin(conversation)
            await model.reached("middle")
            async with second.follow(run["id"]) as stream:
                while "word109 " not in stream.screen.text:
                    await stream.until("process_step", timeout=5)
                model.release("middle")
                screen = await stream.to_the_end()
            assert await ended_well(second, conversation, screen) == PROSE
            said = await first.post("/messages", {"conversation_id": conversation, "content": "Again"})
            assert said["text"] == PROSE

    play(several, scene())
