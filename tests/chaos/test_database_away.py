"""PostgreSQL goes away under load and comes back; and a process freezes while it holds a lock there."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest
from journeys.desk import Desk
from journeys.person import Person
from journeys.scripts import PROSE, says, words
from sqlalchemy import TextClause, text

from chaos.cluster import FROZEN_SECONDS, TAKEN_UP_SECONDS, Cluster
from chaos.conftest import Play
from chaos.crowd import Crowd, script
from chaos.postgres import Postgres
from chaos.roamer import Roamer, until
from chaos.scenes import HALF, ended_well, half_and_whole, seen_to
from chaos.truth import all_is_well, database_is_true, rows, settled
from luxx.providers.scripted import ScriptedProvider, Text

PEOPLE = 3
RUN_SECONDS = 20.0
BACK_SECONDS = 10.0
"""After the database is back, until every process says it is ready."""

SPOKEN = 2
"""Messages that are through before anything happens: then the others are at all points of their lives."""

FROZEN_AT_MOST = 60
IDLE_SECONDS = 0.15
ROOMS = 6
IDLE = (
    f"state = 'idle in transaction' AND state_change < clock_timestamp() - interval '{IDLE_SECONDS} s' "
    "AND datname = current_database()"
)
ADMITTING = text(
    f"SELECT pid FROM pg_stat_activity JOIN pg_locks USING (pid) WHERE {IDLE} "
    "AND locktype = 'advisory' AND granted"
)
APPENDING = text(f"SELECT pid FROM pg_stat_activity WHERE {IDLE} AND query LIKE 'INSERT INTO run_events%'")

Then = Callable[[Person], Awaitable[None]]


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


@pytest.mark.parametrize("mode", [pytest.param("fast", marks=pytest.mark.long, id="fast-short"), "immediate"])
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


async def frozen_in(cluster: Cluster, where: TextClause) -> None:
    """The first process, frozen in the middle of such a transaction: the database waits for its next word."""
    for _ in range(FROZEN_AT_MOST):
        cluster.webs[0].freeze()
        # So long it must have been waiting to be the frozen one's: the others go on.
        await asyncio.sleep(IDLE_SECONDS * 1.5)
        found = await asyncio.to_thread(rows, cluster, where)
        if any(found.values()):
            return
        cluster.webs[0].thaw()
        await asyncio.sleep(random.uniform(0, 0.05))
    pytest.fail(f"frozen {FROZEN_AT_MOST} times, and never there")


async def keep_sending(person: Person, conversation: str) -> None:
    while True:
        await person.post("/messages", {"conversation_id": conversation, "content": "Hello"})


async def frozen_while_busy(cluster: Cluster, model: ScriptedProvider, where: TextClause, then: Then) -> None:
    """People talk at the first process, it freezes there, and `then` must come to its end in time."""
    async with cluster.people() as people:
        first, second = people[:2]
        rooms = [await first.conversation(model.url) for _ in range(ROOMS)]
        busy = [asyncio.create_task(keep_sending(first, room)) for room in rooms]
        await model.arrived(ROOMS)
        try:
            await frozen_in(cluster, where)
            async with asyncio.timeout(TAKEN_UP_SECONDS):
                await then(second)
        finally:
            for task in busy:
                task.cancel()
            cluster.webs[0].thaw()
            await asyncio.gather(*busy, return_exceptions=True)
        async with asyncio.timeout(TAKEN_UP_SECONDS + RUN_SECONDS):
            await until(lambda: none_runs(second))


async def none_runs(person: Person) -> bool:
    return not (await person.get("/runs", status="running"))["total"]


def test_a_process_that_freezes_while_it_admits_does_not_keep_the_others_from_admitting(
    several: Cluster, play: Play
) -> None:
    async def scene() -> None:
        async with ScriptedProvider(says(Text(text="Hi."))) as model:

            async def another_is_served(elsewhere: Person) -> None:
                run = await elsewhere.begin(await elsewhere.conversation(model.url))
                assert (await elsewhere.see(run["id"])).text == "Hi."

            await frozen_while_busy(several, model, ADMITTING, another_is_served)

    play(several, scene())


def test_a_process_that_freezes_while_it_writes_to_a_run_does_not_keep_the_others_from_taking_it_up(
    several: Cluster, play: Play
) -> None:
    async def scene() -> None:
        async with ScriptedProvider(says(*words(PROSE, "middle"))) as model:
            model.release("middle")
            pid = several.webs[0].process.pid
            driven = text(
                "SELECT runs.id FROM runs JOIN processes ON processes.id = runs.owner "
                f"WHERE runs.status = 'running' AND processes.pid = {pid}"
            )

            async def its_runs_are_others(_: Person) -> None:
                frozen = await asyncio.to_thread(rows, several, driven)
                names = ", ".join(f"'{run_id}'" for (run_id,) in frozen[str(driven)])
                assert names, "it drove nothing"
                left = text(f"SELECT id FROM runs WHERE id IN ({names}) AND fence = 1 AND status = 'running'")

                async def taken_up() -> bool:
                    return not any((await asyncio.to_thread(rows, several, left)).values())

                await until(taken_up)

            await frozen_while_busy(several, model, APPENDING, its_runs_are_others)

    play(several, scene())


def test_a_stream_outlives_the_database(several: Cluster, postgres: Postgres, play: Play) -> None:
    async def scene() -> None:
        async with ScriptedProvider(half_and_whole()) as model, several.people() as people:
            first, second = people[:2]
            conversation = await first.conversation(model.url)
            run = await first.begin(conversation)
            await model.reached("middle")
            async with first.follow(run["id"]) as here, second.follow(run["id"]) as there:
                for stream in (here, there):
                    await seen_to(stream, HALF)
                several.troubles += 1
                await asyncio.to_thread(postgres.stop, "immediate")
                try:
                    # Its driver cannot write down what comes now.
                    model.release("middle")
                finally:
                    await asyncio.to_thread(postgres.start)
                await ready(several)
                screens = [await stream.to_the_end() for stream in (here, there)]
            assert await ended_well(second, conversation, *screens) == PROSE

    play(several, scene())
