"""The bus between processes is cut again and again: everything still works, but later."""

import asyncio
import random
import time

from scenarios.scripts import PROSE, always_replies, words
from scenarios.tool_controller import ToolController

from chaos.cluster import LEASE_SECONDS, TAKEOVER_SECONDS, Cluster
from chaos.endings import HALF, check_cancelled, check_completed, half_and_whole, read_until_text
from chaos.invariants import check_all, check_database, wait_until_idle
from chaos.postgres import BUS, Postgres
from chaos.round_robin_client import RoundRobinClient, until
from chaos.users import Users, script
from luxx.providers.scripted import ScriptedProvider

USER_COUNT = 3
RUN_SECONDS = 20.0
AWAY_SECONDS = 5.0
CUT_EVERY_SECONDS = 0.05


async def keep_bus_away(postgres: Postgres) -> None:
    """Cuts the bus whenever it is back, until cancelled."""
    while True:
        await asyncio.to_thread(postgres.cut, BUS)
        await asyncio.sleep(CUT_EVERY_SECONDS)


async def test_while_the_bus_is_away_clients_elsewhere_see_every_run_whole(
    several: Cluster, postgres: Postgres
) -> None:
    async with RoundRobinClient(several.url) as ann, ToolController(answers=True) as controller:
        model = ScriptedProvider(script(controller.port))
        await model.start()
        users = Users(ann, several, model, random.Random(5))
        try:
            await users.open_conversations(USER_COUNT)
            assert await asyncio.to_thread(postgres.count, BUS) > 0
            cutting = asyncio.create_task(keep_bus_away(postgres))
            sending = asyncio.ensure_future(users.send_until_end())
            # This is no wait for an event, but how long the bus is away before it comes back under load.
            await asyncio.sleep(AWAY_SECONDS)
            cutting.cancel()
            users.end()
            await wait_until_idle(several, ann, sending, RUN_SECONDS)
            await check_all(ann, users, model, controller)
            await asyncio.to_thread(check_database, several)
        finally:
            await model.stop()


async def test_while_the_bus_is_away_a_cancel_from_another_process_takes_effect_within_a_heartbeat(
    several: Cluster, postgres: Postgres
) -> None:
    async with ScriptedProvider(always_replies(*words(PROSE, "here"))) as model, several.clients() as clients:
        first, second = clients[:2]
        conversation = await first.conversation(model.url)
        run = await first.start_run(conversation)
        await model.reached("here")
        cutting = asyncio.create_task(keep_bus_away(postgres))
        begun = time.monotonic()
        assert (await second.cancel(run["id"])).status_code == 200
        await model.requests[0].wait_closed(LEASE_SECONDS)
        print(f"closed after {time.monotonic() - begun:.2f} s")
        await check_cancelled(second, conversation, await second.wait_for_end(run["id"]))
        cutting.cancel()


async def test_after_the_bus_was_away_other_processes_stream_deltas_again(
    several: Cluster, postgres: Postgres
) -> None:
    async with ScriptedProvider(half_and_whole()) as model, several.clients() as clients:
        first, second = clients[:2]
        connections_before = await asyncio.to_thread(postgres.cut, BUS)

        async def is_reconnected() -> bool:
            return await asyncio.to_thread(postgres.count, BUS) >= connections_before

        async with asyncio.timeout(TAKEOVER_SECONDS):
            await until(is_reconnected)
        conversation = await first.conversation(model.url)
        run = await first.start_run(conversation)
        await model.reached("middle")
        async with second.follow(run["id"]) as stream:
            await read_until_text(stream, HALF)
            model.release("middle")
            screen = await stream.to_the_end()
        assert await check_completed(second, conversation, screen) == PROSE
        answer = await first.post("/messages", {"conversation_id": conversation, "content": "Again"})
        assert answer["text"] == PROSE
