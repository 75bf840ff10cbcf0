"""Processes are killed, stopped and frozen at random moments while users send messages."""

import asyncio
import random
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import pytest
from scenarios.tool_controller import ToolController

from chaos.cluster import TAKEOVER_SECONDS, Cluster, Fault
from chaos.invariants import check_all, check_database, check_database_files, wait_until_idle
from chaos.round_robin_client import RoundRobinClient
from chaos.users import Users, script
from luxx.providers.scripted import ScriptedProvider

USER_COUNT = 3
BETWEEN_SECONDS = (0.05, 1.2)
BY_CALLS = 0.5
CALLS_SECONDS = 6.0
"""The time to the next fault is chosen within this; also the longest wait for model calls that do not
come."""

LONG_SECONDS = 2980.0
KILLS = [pytest.param(1, 8, id="short"), pytest.param(10, 20, id="whole")]
"""The number of full checks, and of the kills before each."""

RUN_SECONDS = 20.0
"""The length of a run without faults, on a machine that is busy with other work as well."""

FAULT_WEIGHTS = {Fault.KILL: 8, Fault.STOP: 1, Fault.FREEZE: 1}


async def wait_before_fault(model: ScriptedProvider, chance: random.Random) -> None:
    """Waits until the next fault, for a time or for a number of model calls, so that something is in progress
    even on a slow machine."""
    if chance.random() < BY_CALLS:
        with suppress(TimeoutError):
            await model.arrived(len(model.requests) + chance.randint(1, 6), CALLS_SECONDS)
        await asyncio.sleep(chance.uniform(0, 0.5))
    else:
        await asyncio.sleep(chance.uniform(*BETWEEN_SECONDS))


async def inject_faults(cluster: Cluster, model: ScriptedProvider, kills: int, chance: random.Random) -> None:
    """Injects this many kills and other faults between them, at several processes at the same time where
    there are several. At the end every process runs again."""
    left = kills
    async with asyncio.TaskGroup() as tasks:
        restoring: list[asyncio.Task[None]] = []
        while left:
            await wait_before_fault(model, chance)
            while not (healthy := cluster.healthy()):
                await asyncio.wait(restoring, return_when=asyncio.FIRST_COMPLETED)
                restoring = [task for task in restoring if not task.done()]
            fault = chance.choices(list(FAULT_WEIGHTS), list(FAULT_WEIGHTS.values()))[0]
            left -= fault == Fault.KILL
            restoring.append(tasks.create_task(cluster.inject_fault(chance.choice(healthy), fault)))
            # Lets the fault begin, so that no other one is chosen for the same process.
            await asyncio.sleep(0)


async def run_during(talking: asyncio.Future[None], work: Coroutine[Any, Any, None]) -> None:
    """Runs the work, unless the talking fails before."""
    doing = asyncio.ensure_future(work)
    await asyncio.wait({talking, doing}, return_when=asyncio.FIRST_COMPLETED)
    if not doing.done():
        doing.cancel()
        await asyncio.gather(doing, return_exceptions=True)
        await talking
        raise AssertionError("nobody talks any more")
    await doing


async def one_round(cluster: Cluster, ann: RoundRobinClient, kills: int, chance: random.Random) -> None:
    async with ToolController(answers=True) as controller:
        model = ScriptedProvider(script(controller.port))
        await model.start()
        try:
            users = Users(ann, cluster, model, chance)
            await users.open_conversations(USER_COUNT)
            talking = asyncio.ensure_future(users.send_until_end())
            await run_during(talking, inject_faults(cluster, model, kills, chance))
            users.end()
            await wait_until_idle(cluster, ann, talking, TAKEOVER_SECONDS + RUN_SECONDS)
            await check_all(ann, users, model, controller)
            await asyncio.to_thread(check_database, cluster)
            assert sum(talk.deaths for talk in users.sent_messages) >= kills // 2, (
                "troubles that disturbed nobody"
            )
            print(
                f"{len(users.sent_messages)} messages, {len(model.requests)} calls, "
                f"{len(controller.visits)} visits"
            )
        finally:
            await model.stop()


async def run_with_random_kills(cluster: Cluster, rounds: int, kills: int) -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    chance = random.Random(seed)
    begun = time.monotonic()
    async with RoundRobinClient(cluster.url) as ann:
        for _ in range(rounds):
            await one_round(cluster, ann, kills, chance)
        took = time.monotonic() - begun
        print(f"{cluster.kills} kills of {cluster.troubles} troubles, {ann.refused} refusals, {took:.0f} s")
    assert cluster.kills == rounds * kills


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.async_timeout(LONG_SECONDS)
@pytest.mark.parametrize(("rounds", "kills"), KILLS)
async def test_hundreds_of_kills_on_one_process_lose_nothing_and_repeat_nothing(
    alone: Cluster, rounds: int, kills: int
) -> None:
    await run_with_random_kills(alone, rounds, kills)
    for member in alone.members:
        await asyncio.to_thread(member.stop)
        check_database_files(member.data_dir)


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.async_timeout(LONG_SECONDS)
@pytest.mark.parametrize(("rounds", "kills"), KILLS)
async def test_hundreds_of_kills_among_several_processes_lose_nothing_and_repeat_nothing(
    two_and_two: Cluster, rounds: int, kills: int
) -> None:
    await run_with_random_kills(two_and_two, rounds, kills)
