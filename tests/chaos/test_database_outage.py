"""PostgreSQL goes away under load and comes back; and a process freezes while it holds a lock there."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest
from scenarios.client import AsyncApiClient
from scenarios.scripts import PROSE, always_replies, words
from scenarios.tool_controller import ToolController
from sqlalchemy import TextClause, text

from chaos.cluster import FROZEN_SECONDS, TAKEOVER_SECONDS, Cluster
from chaos.endings import HALF, check_completed, half_and_whole, read_until_text
from chaos.invariants import check_all, check_database, rows, wait_until_idle
from chaos.postgres import Postgres
from chaos.round_robin_client import RoundRobinClient, until
from chaos.users import Users, script
from luxx.providers.scripted import ScriptedProvider, Text

USER_COUNT = 3
RUN_SECONDS = 20.0
READY_SECONDS = 10.0
"""After the database is back, until every process says it is ready."""

MESSAGES_BEFORE_FAULT = 2
"""Twice as many requests reach the model before the fault, so that runs are at different points."""

FREEZE_ATTEMPTS = 60
IDLE_SECONDS = 0.15
CONVERSATIONS = 6
IDLE = (
    f"state = 'idle in transaction' AND state_change < clock_timestamp() - interval '{IDLE_SECONDS} s' "
    "AND datname = current_database()"
)
ADMITTING = text(
    f"SELECT pid FROM pg_stat_activity JOIN pg_locks USING (pid) WHERE {IDLE} "
    "AND locktype = 'advisory' AND granted"
)
APPENDING = text(f"SELECT pid FROM pg_stat_activity WHERE {IDLE} AND query LIKE 'INSERT INTO run_events%'")

Check = Callable[[AsyncApiClient], Awaitable[None]]


async def is_ready(person: AsyncApiClient) -> bool:
    return (await person.ask("GET", "/ready")).status_code == 200


async def wait_until_ready(cluster: Cluster) -> None:
    """Returns when every process reports that it is ready."""
    async with asyncio.timeout(READY_SECONDS), cluster.clients() as clients:
        for person in clients:
            await until(lambda person=person: is_ready(person))


async def run_under_load(cluster: Cluster, fault: Callable[[], Awaitable[None]]) -> None:
    """Users send messages with tools during the fault; checks that everything acknowledged is kept."""
    async with RoundRobinClient(cluster.url) as ann, ToolController(answers=True) as controller:
        model = ScriptedProvider(script(controller.port))
        await model.start()
        try:
            users = Users(ann, cluster, model, random.Random(4))
            await users.open_conversations(USER_COUNT)
            sending = asyncio.ensure_future(users.send_until_end())
            await model.arrived(2 * MESSAGES_BEFORE_FAULT, RUN_SECONDS)
            await fault()
            users.end()
            await wait_until_idle(cluster, ann, sending, TAKEOVER_SECONDS + RUN_SECONDS)
            await check_all(ann, users, model, controller)
            await asyncio.to_thread(check_database, cluster)
        finally:
            await model.stop()


@pytest.mark.parametrize("mode", [pytest.param("fast", marks=pytest.mark.long, id="fast-short"), "immediate"])
async def test_acknowledged_messages_are_answered_after_a_database_restart_under_load(
    several: Cluster, postgres: Postgres, mode: str
) -> None:
    """The outage is longer than a lease; `immediate` is a crash of the database."""

    async def fault() -> None:
        several.troubles += 1
        await asyncio.to_thread(postgres.stop, mode)
        try:
            # This is no wait for an event, but how long the database is away.
            await asyncio.sleep(FROZEN_SECONDS)
            async with RoundRobinClient(several.url, "unknown") as somebody:
                assert (await somebody.ask("GET", "/health")).status_code == 200
                assert (await somebody.ask("GET", "/ready")).status_code == 503
        finally:
            await asyncio.to_thread(postgres.start)
        await wait_until_ready(several)

    await run_under_load(several, fault)


async def freeze_in_transaction(cluster: Cluster, where: TextClause) -> None:
    """Freezes the first process in the middle of such a transaction, while the database waits for its next
    statement."""
    for _ in range(FREEZE_ATTEMPTS):
        cluster.webs[0].freeze()
        # A transaction that waits this long is that of the frozen process: the others continue.
        await asyncio.sleep(IDLE_SECONDS * 1.5)
        waiting_transactions = await asyncio.to_thread(rows, cluster, where)
        if any(waiting_transactions.values()):
            return
        cluster.webs[0].thaw()
        await asyncio.sleep(random.uniform(0, 0.05))
    pytest.fail(f"frozen {FREEZE_ATTEMPTS} times, and never in such a transaction")


async def keep_sending(person: AsyncApiClient, conversation: str) -> None:
    while True:
        await person.post("/messages", {"conversation_id": conversation, "content": "Hello"})


async def freeze_under_load(
    cluster: Cluster, model: ScriptedProvider, where: TextClause, check: Check
) -> None:
    """Users send messages at the first process, which freezes there; `check` must end in time."""
    async with cluster.clients() as clients:
        first, second = clients[:2]
        conversations = [await first.conversation(model.url) for _ in range(CONVERSATIONS)]
        senders = [
            asyncio.create_task(keep_sending(first, conversation_id)) for conversation_id in conversations
        ]
        await model.arrived(CONVERSATIONS)
        try:
            await freeze_in_transaction(cluster, where)
            async with asyncio.timeout(TAKEOVER_SECONDS):
                await check(second)
        finally:
            for task in senders:
                task.cancel()
            cluster.webs[0].thaw()
            await asyncio.gather(*senders, return_exceptions=True)
        async with asyncio.timeout(TAKEOVER_SECONDS + RUN_SECONDS):
            await until(lambda: no_run_is_active(second))


async def no_run_is_active(person: AsyncApiClient) -> bool:
    return not (await person.get("/runs", status="running"))["total"]


async def test_a_process_frozen_during_admission_does_not_block_admission_by_others(
    several: Cluster,
) -> None:
    async with ScriptedProvider(always_replies(Text(text="Hi."))) as model:

        async def another_is_served(elsewhere: AsyncApiClient) -> None:
            run = await elsewhere.start_run(await elsewhere.conversation(model.url))
            assert (await elsewhere.wait_for_end(run["id"])).text == "Hi."

        await freeze_under_load(several, model, ADMITTING, another_is_served)


async def test_a_run_is_taken_over_from_a_process_frozen_during_a_write_to_it(
    several: Cluster,
) -> None:
    async with ScriptedProvider(always_replies(*words(PROSE, "middle"))) as model:
        model.release("middle")
        pid = several.webs[0].process.pid
        driven = text(
            "SELECT runs.id FROM runs JOIN processes ON processes.id = runs.owner "
            f"WHERE runs.status = 'running' AND processes.pid = {pid}"
        )

        async def its_runs_are_taken_over(_: AsyncApiClient) -> None:
            frozen = await asyncio.to_thread(rows, several, driven)
            run_ids = ", ".join(f"'{run_id}'" for (run_id,) in frozen[str(driven)])
            assert run_ids, "the frozen process drove no run"
            not_taken_over = text(
                f"SELECT id FROM runs WHERE id IN ({run_ids}) AND fence = 1 AND status = 'running'"
            )

            async def taken_over() -> bool:
                return not any((await asyncio.to_thread(rows, several, not_taken_over)).values())

            await until(taken_over)

        await freeze_under_load(several, model, APPENDING, its_runs_are_taken_over)


async def test_a_stream_continues_after_a_database_restart(several: Cluster, postgres: Postgres) -> None:
    async with ScriptedProvider(half_and_whole()) as model, several.clients() as clients:
        first, second = clients[:2]
        conversation = await first.conversation(model.url)
        run = await first.start_run(conversation)
        await model.reached("middle")
        async with first.follow(run["id"]) as at_driver, second.follow(run["id"]) as elsewhere:
            for stream in (at_driver, elsewhere):
                await read_until_text(stream, HALF)
            several.troubles += 1
            await asyncio.to_thread(postgres.stop, "immediate")
            try:
                # The driver cannot store the text that comes now.
                model.release("middle")
            finally:
                await asyncio.to_thread(postgres.start)
            await wait_until_ready(several)
            screens = [await stream.to_the_end() for stream in (at_driver, elsewhere)]
        assert await check_completed(second, conversation, *screens) == PROSE
