"""No file may grow any more, as on a full disk: SQLite's process says so, keeps what it has, and recovers."""

import asyncio
import resource

from journeys.scripts import PROSE

from chaos.cluster import TAKEN_UP_SECONDS, Cluster
from chaos.conftest import Play
from chaos.roamer import Roamer, check_refusal
from chaos.scenes import ended_well, half_and_whole
from chaos.truth import database_is_true, files_are_whole
from luxx.providers.scripted import ScriptedProvider

NOTHING_MORE = 4096
"""Bytes: any write beyond this place of any file fails, and all of SQLite's go there."""


def test_a_process_whose_files_cannot_grow_refuses_truly_and_goes_on_when_they_can_again(
    alone: Cluster, play: Play
) -> None:
    web = alone.webs[0]

    async def scene() -> None:
        async with ScriptedProvider(half_and_whole()) as model, Roamer(alone.url) as ann:
            conversation = await ann.conversation(model.url)
            other = (await ann.post("/conversations", {}))["id"]
            run = await ann.begin(conversation)
            await model.reached("middle")
            web.limit_files(NOTHING_MORE)
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
            # What the model has left to say cannot be written down now.
            model.release("middle")
            await asyncio.to_thread(web.wait_for_line, "drive_failed", TAKEN_UP_SECONDS)
            assert (await ann.run(run["id"]))["status"] == "running"
            web.limit_files(resource.RLIM_INFINITY)
            screen = await ann.see_through(run["id"], timeout=TAKEN_UP_SECONDS + 5)
            assert await ended_well(ann, conversation, screen) == PROSE
            assert await ann.messages(other) == []
            assert (await ann.get("/conversations"))["total"] == 2
            said = await ann.post("/messages", {"conversation_id": conversation, "content": "Again"})
            assert said["text"] == PROSE
        await asyncio.to_thread(database_is_true, alone)

    play(alone, scene())
    web.stop()
    files_are_whole(web.data_dir)


def test_a_process_that_is_killed_while_its_files_cannot_grow_goes_on_when_they_can_again(
    alone: Cluster, play: Play
) -> None:
    web = alone.webs[0]

    async def scene() -> None:
        async with ScriptedProvider(half_and_whole()) as model, Roamer(alone.url) as ann:
            conversation = await ann.conversation(model.url)
            run = await ann.begin(conversation)
            await model.reached("middle")
            web.limit_files(NOTHING_MORE)
            refused = await ann.ask("POST", "/conversations", {"title": "Lost?"})
            assert refused.status_code in (503, 507)
            await alone.kill(web)
            await alone.start(web)
            screen = await ann.see_through(run["id"])
            assert await ended_well(ann, conversation, screen) == PROSE
        await asyncio.to_thread(database_is_true, alone)

    play(alone, scene())
