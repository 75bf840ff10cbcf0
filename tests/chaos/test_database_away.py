"""PostgreSQL goes away under load and comes back; and a process freezes while it holds a lock there."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest
from journeys.desk import Desk
from journeys.person import Person
from journeys.scripts import says

from chaos.cluster import FROZEN_SECONDS, TAKEN_UP_SECONDS, Cluster
from chaos.conftest import Play
from chaos.crowd import Crowd, script
from chaos.postgres import Postgres
from chaos.roamer import Roamer, until
from chaos.truth import all_is_well, database_is_true, settled
from luxx.providers.scripted import ScriptedProvider, Text

PEOPLE = 3
RUN_SECONDS = 20.0
BACK_SECONDS = 10.0
"""After the database is back, until every process says it is ready."""

SPOKEN = 2
"""Messages that are through before anything happens: then the others are at all points of their lives."""

FROZEN_AT_MOST = 40
HOLDS_A_LOCK = (
    "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) "
    "WHERE locktype = 'advisory' AND granted AND state = 'idle in transaction'"
)


async def is_ready(person: Person) -> bool:
    return (await person.ask("GET", "/ready")).status_code == 200


async def ready(cluster: Cluster) -> None:
    """Returns once every process says that it is."""
    async with asyncio.timeout(BACK_SECONDS), cluster.people() as people:
        for person in people:
            await until(lambda person=person: is_ready(person))


async def under_load(cluster: Cluster, trouble: Callable[[], Awaitable[None]]) -> None:
    """People talk with tools, the trouble comes and goes, and what they were told holds."""
    async with Roamer(cluster.url) as ann, Desk(answers=True) as desk:
        model = ScriptedProvider(script(desk.port))
        await model.start()
        try:
            crowd = Crowd(ann, cluster, model, random.Random(4))
            await crowd.arrive(PEOPLE)
            talking = asyncio.ensure_future(crowd.talk())
            await model.arrived(2 * SPOKEN, RUN_SECONDS)
            await trouble()
            crowd.end()
            await settled(cluster, ann, talking, TAKEN_UP_SECONDS + RUN_SECONDS)
            await all_is_well(ann, crowd, model, desk)
            await asyncio.to_thread(database_is_true, cluster)
        finally:
            await model.stop()


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_the_database_is_restarted_under_load_and_what_was_acknowledged_is_answered(
    several: Cluster, postgres: Postgres, play: Play, mode: str
) -> None:
    """Away for longer than a lease; `immediate` is a crash of the database."""

    async def trouble() -> None:
        several.troubles += 1
        await asyncio.to_thread(postgres.stop, mode)
        try:
            # Not to wait for something: so long it is away.
            await asyncio.sleep(FROZEN_SECONDS)
            async with Roamer(several.url, "unknown") as somebody:
                assert (await somebody.ask("GET", "/health")).status_code == 200
                assert (await somebody.ask("GET", "/ready")).status_code == 503
        finally:
            await asyncio.to_thread(postgres.start)
        await ready(several)

    play(several, under_load(several, trouble))


def test_a_process_that_freezes_while_it_admits_does_not_keep_the_others_from_admitting(
    several: Cluster, postgres: Postgres, play: Play
) -> None:
    async def frozen_with_a_lock(cluster: Cluster) -> None:
        for _ in range(FROZEN_AT_MOST):
            cluster.webs[0].freeze()
            for _ in range(3):
                # The server may still be at the last statement that was sent to it.
                if (await asyncio.to_thread(postgres.ask, HOLDS_A_LOCK))[0][0]:
                    return
            cluster.webs[0].thaw()
            await asyncio.sleep(0.01)
        pytest.fail(f"frozen {FROZEN_AT_MOST} times, and never with a lock")

    async def scene() -> None:
        async with ScriptedProvider(says(Text(text="Hi."))) as model, several.people() as people:
            first, second = people[:2]
            rooms = [await first.conversation(model.url) for _ in range(6)]
            *mine, yours = rooms
            is_over = False

            async def keep_sending(conversation: str) -> None:
                while not is_over:
                    await first.post("/messages", {"conversation_id": conversation, "content": "Hello"})

            busy = [asyncio.create_task(keep_sending(one)) for one in mine]
            await model.arrived(5)
            await frozen_with_a_lock(several)
            try:
                async with asyncio.timeout(TAKEN_UP_SECONDS):
                    run = await second.begin(yours)
                    await second.see(run["id"])
            finally:
                is_over = True
                several.webs[0].thaw()
                await asyncio.gather(*busy, return_exceptions=True)

    play(several, scene())
