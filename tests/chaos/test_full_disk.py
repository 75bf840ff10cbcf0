"""No file can grow, as on a full disk: the SQLite process reports it, keeps its data, and recovers."""

import asyncio
import resource

from scenarios.scripts import PROSE

from chaos.cluster import TAKEOVER_SECONDS, Cluster
from chaos.endings import check_completed, half_and_whole
from chaos.invariants import check_database, check_database_files
from chaos.round_robin_client import RoundRobinClient, check_refusal
from luxx.providers.scripted import ScriptedProvider

MAX_FILE_BYTES = 4096
"""Bytes: any write beyond this offset of any file fails, and SQLite's writes all go there."""


async def test_a_process_without_disk_space_refuses_messages_and_recovers(
    alone: Cluster,
) -> None:
    web = alone.webs[0]

    async with ScriptedProvider(half_and_whole()) as model, RoundRobinClient(alone.url) as ann:
        conversation = await ann.conversation(model.url)
        other = (await ann.post("/conversations", {}))["id"]
        run = await ann.start_run(conversation)
        await model.reached("middle")
        web.limit_files(MAX_FILE_BYTES)
        for method, path, body in (
            ("POST", "/messages", {"conversation_id": other, "content": "Lost?"}),
            ("POST", "/messages/stream", {"conversation_id": other, "content": "Lost?"}),
            ("POST", "/conversations", {"title": "Lost?"}),
            ("POST", f"/runs/{run['id']}/cancel", None),
        ):
            refused = await ann.ask(method, path, body)
            assert refused.status_code in (503, 507), refused.text
            check_refusal(refused)
        assert (await ann.messages(conversation))[0]["text"] == "Hello"
        # The rest of the model's answer cannot be stored now.
        model.release("middle")
        await asyncio.to_thread(web.wait_for_log, "drive_failed", TAKEOVER_SECONDS)
        assert (await ann.run(run["id"]))["status"] == "running"
        web.limit_files(resource.RLIM_INFINITY)
        screen = await ann.follow_to_end(run["id"], timeout=TAKEOVER_SECONDS + 5)
        assert await check_completed(ann, conversation, screen) == PROSE
        assert await ann.messages(other) == []
        assert (await ann.get("/conversations"))["total"] == 2
        answer = await ann.post("/messages", {"conversation_id": conversation, "content": "Again"})
        assert answer["text"] == PROSE
    await asyncio.to_thread(check_database, alone)
    web.stop()
    check_database_files(web.data_dir)


async def test_a_process_killed_without_disk_space_recovers(
    alone: Cluster,
) -> None:
    web = alone.webs[0]

    async with ScriptedProvider(half_and_whole()) as model, RoundRobinClient(alone.url) as ann:
        conversation = await ann.conversation(model.url)
        run = await ann.start_run(conversation)
        await model.reached("middle")
        web.limit_files(MAX_FILE_BYTES)
        refused = await ann.ask("POST", "/conversations", {"title": "Lost?"})
        assert refused.status_code in (503, 507)
        await alone.kill(web)
        await alone.start(web)
        screen = await ann.follow_to_end(run["id"])
        assert await check_completed(ann, conversation, screen) == PROSE
    await asyncio.to_thread(check_database, alone)
