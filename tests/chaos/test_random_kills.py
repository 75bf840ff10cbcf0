"""Processes that are killed, stopped and frozen at random moments, under people who go on talking."""

import asyncio
import random
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import pytest
from journeys.desk import Desk

from chaos.cluster import TAKEN_UP_SECONDS, Cluster, Trouble
from chaos.conftest import Play
from chaos.crowd import Crowd, script
from chaos.roamer import Roamer
from chaos.truth import all_is_well, database_is_true, files_are_whole, settled
from luxx.providers.scripted import ScriptedProvider

PEOPLE = 3
BETWEEN_SECONDS = (0.05, 1.2)
BY_CALLS = 0.5
CALLS_SECONDS = 6.0
"""How the time of the next trouble is chosen, and how long it waits for calls that do not come."""

LONG_SECONDS = 2980.0
FEW = 4
ROUND = 20
"""Kills after which all is looked at."""

RUN_SECONDS = 20.0
"""How long a run may take that nothing disturbs, on a machine that is busy with other things as well."""

MOSTLY = {Trouble.KILL: 8, Trouble.STOP: 1, Trouble.FREEZE: 1}


async def some_time(model: ScriptedProvider, chance: random.Random) -> None:
    """Until the next trouble, which shall come at any point of what is going on: by the clock or by what the
    model was asked, so that on a slow machine too something is going on.
    """
    if chance.random() < BY_CALLS:
        with suppress(TimeoutError):
            await model.arrived(len(model.requests) + chance.randint(1, 6), CALLS_SECONDS)
        await asyncio.sleep(chance.uniform(0, 0.5))
    else:
        await asyncio.sleep(chance.uniform(*BETWEEN_SECONDS))


async def troubled(cluster: Cluster, model: ScriptedProvider, kills: int, chance: random.Random) -> None:
    """So many kills and other troubles between them, several at once where there are several processes; at
    the end all are well again.
    """
    left = kills
    async with asyncio.TaskGroup() as tasks:
        mending: list[asyncio.Task[None]] = []
        while left:
            await some_time(model, chance)
            while not (well := cluster.well()):
                await asyncio.wait(mending, return_when=asyncio.FIRST_COMPLETED)
                mending = [task for task in mending if not task.done()]
            trouble = chance.choices(list(MOSTLY), list(MOSTLY.values()))[0]
            left -= trouble == Trouble.KILL
            mending.append(tasks.create_task(cluster.befall(chance.choice(well), trouble)))
            # Lets it begin, so that nothing else befalls the same one.
            await asyncio.sleep(0)


async def beside(talking: asyncio.Future[None], work: Coroutine[Any, Any, None]) -> None:
    """The work, unless the talking comes to a bad end before."""
    doing = asyncio.ensure_future(work)
    await asyncio.wait({talking, doing}, return_when=asyncio.FIRST_COMPLETED)
    if not doing.done():
        doing.cancel()
        await asyncio.gather(doing, return_exceptions=True)
        await talking
        raise AssertionError("nobody talks any more")
    await doing


async def one_round(cluster: Cluster, ann: Roamer, kills: int, chance: random.Random) -> None:
    async with Desk(answers=True) as desk:
        model = ScriptedProvider(script(desk.port))
        await model.start()
        try:
            crowd = Crowd(ann, cluster, model, chance)
            await crowd.arrive(PEOPLE)
            talking = asyncio.ensure_future(crowd.talk())
            await beside(talking, troubled(cluster, model, kills, chance))
            crowd.end()
            await settled(cluster, ann, talking, TAKEN_UP_SECONDS + RUN_SECONDS)
            await all_is_well(ann, crowd, model, desk)
            await asyncio.to_thread(database_is_true, cluster)
            assert sum(talk.deaths for talk in crowd.talks) >= kills // 2, "troubles that disturbed nobody"
            print(f"{len(crowd.talks)} messages, {len(model.requests)} calls, {len(desk.visits)} visits")
        finally:
            await model.stop()


async def survive(cluster: Cluster, rounds: int, kills: int) -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    chance = random.Random(seed)
    begun = time.monotonic()
    async with Roamer(cluster.url) as ann:
        for _ in range(rounds):
            await one_round(cluster, ann, kills, chance)
        took = time.monotonic() - begun
        print(f"{cluster.kills} kills of {cluster.troubles} troubles, {ann.refused} refusals, {took:.0f} s")
    assert cluster.kills == rounds * kills


def test_a_few_kills_among_several_processes_lose_nothing_and_repeat_nothing(
    several: Cluster, play: Play
) -> None:
    play(several, survive(several, 1, FEW))


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("rounds", [pytest.param(1, id="short"), pytest.param(10, id="whole")])
def test_hundreds_of_kills_on_one_process_lose_nothing_and_repeat_nothing(
    alone: Cluster, play: Play, rounds: int
) -> None:
    play(alone, survive(alone, rounds, ROUND), LONG_SECONDS)
    for member in alone.members:
        member.stop()
        files_are_whole(member.data_dir)


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("rounds", [pytest.param(1, id="short"), pytest.param(10, id="whole")])
def test_hundreds_of_kills_among_several_processes_lose_nothing_and_repeat_nothing(
    two_and_two: Cluster, play: Play, rounds: int
) -> None:
    play(two_and_two, survive(two_and_two, rounds, ROUND), LONG_SECONDS)
