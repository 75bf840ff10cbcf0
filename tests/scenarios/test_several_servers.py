"""Three servers of one PostgreSQL: each shows every run live, also when its driver is killed."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from api.server_process import ServerProcess
from bus.redis_server import redis_server
from store.databases import new_database

from luxx.providers.scripted import Gate, Rule, Script, ScriptedProvider, Text, When
from scenarios.client import AsyncApiClient, AsyncEventStream
from scenarios.scripts import (
    FIRST_THOUGHT,
    PREFACE,
    PROSE,
    SECOND_THOUGHT,
    always_replies,
    two_iterations,
    words,
)
from scenarios.tool_controller import CONTROLLED_TOOLS, ToolController

pytestmark = pytest.mark.heavy

LEASE_SECONDS = 2
PACE_SECONDS = 0.005
"""Between the model's words, so that they are not read together."""


class Cluster(NamedTuple):
    """Servers of one database, and the kind of their `bus`."""

    bus: str
    servers: list[ServerProcess]


@pytest.fixture(scope="module", params=["postgresql", "redis"])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, postgresql: str
) -> Iterator[Cluster]:
    folder: Path = tmp_path_factory.mktemp(f"several-{request.param}")
    with ExitStack() as hold:
        environment = {
            "LUXX_DATABASE__URL": new_database(postgresql, folder.name),
            "LUXX_APP__SECRET_KEY": "a secret that all servers of one database share, long enough",
            "LUXX_WORKSPACE__ROOT": str(folder / "workspaces"),
            "LUXX_RUNS__LEASE_SECONDS": str(LEASE_SECONDS),
        }
        if request.param == "redis":
            environment["LUXX_HUB__URL"] = hold.enter_context(redis_server(folder)).url
        servers = [
            hold.enter_context(ServerProcess(folder / name, **CONTROLLED_TOOLS, **environment))
            for name in ("a", "b", "c")
        ]
        yield Cluster(request.param, servers)


async def signed_in(cluster: Cluster, hold: AsyncExitStack) -> list[AsyncApiClient]:
    """The same user at every server."""
    first = await hold.enter_async_context(AsyncApiClient(cluster.servers[0].url))
    others = [AsyncApiClient(server.url, first.token) for server in cluster.servers[1:]]
    return [first, *[await hold.enter_async_context(other) for other in others]]


def deltas(stream: AsyncEventStream) -> int:
    return sum("delta" in frame.data.get("step", {}) for frame in stream.screen.frames)


async def test_every_server_shows_every_delta_of_a_run_that_another_drives(cluster: Cluster) -> None:
    async with AsyncExitStack() as hold:
        model = await hold.enter_async_context(
            ScriptedProvider(always_replies(*words(PROSE, "middle"), delay=PACE_SECONDS))
        )
        clients = await signed_in(cluster, hold)
        conversation = await clients[0].conversation(model.url)
        run = await clients[0].start_run(conversation)
        streams = [await hold.enter_async_context(client.follow(run["id"])) for client in clients]
        for stream in streams:
            await stream.until("process_step")
        model.release("middle")
        for stream in streams:
            await stream.to_the_end()
            await clients[0].answer_shown_by(conversation, stream.screen)
        assert all(deltas(stream) > 20 for stream in streams), [deltas(stream) for stream in streams]


async def test_behind_a_round_robin_a_turn_with_tools_is_the_same_everywhere(cluster: Cluster) -> None:
    async with AsyncExitStack() as hold:
        controller = await hold.enter_async_context(ToolController(answers=True))
        model = await hold.enter_async_context(ScriptedProvider(two_iterations(controller.port)))
        clients = await signed_in(cluster, hold)
        conversations = [await clients[0].conversation(model.url) for _ in range(6)]

        async def talk(number: int) -> None:
            here, there = clients[number % 3], clients[(number + 1) % 3]
            conversation = conversations[number]
            run = await here.start_run(conversation, tools=["visit_once"])
            screens = await asyncio.gather(
                there.wait_for_end(run["id"]), clients[(number + 2) % 3].wait_for_end(run["id"])
            )
            for screen in screens:
                message = await there.answer_shown_by(conversation, screen)
                said = [step["content"] for step in message["steps"] if step["type"] == "thinking"]
                assert said == [FIRST_THOUGHT, SECOND_THOUGHT]
                assert message["text"] == PREFACE + PROSE

        await asyncio.gather(*(talk(number) for number in range(6)))


async def test_a_client_elsewhere_continues_when_the_driver_is_killed(cluster: Cluster) -> None:
    """On one connection: text that the dead driver had not stored is withdrawn and generated anew."""

    async with AsyncExitStack() as hold:
        script = Script(
            rules=[
                Rule(when=When(call=1), reply=[Text(text="Never stored, "), Gate(name="killed")]),
                Rule(reply=words(PROSE, "again"), delay=PACE_SECONDS),
            ]
        )
        model = await hold.enter_async_context(ScriptedProvider(script))
        clients = await signed_in(cluster, hold)
        conversation = await clients[1].conversation(model.url)
        run = await clients[0].start_run(conversation)
        streams = [
            await hold.enter_async_context(clients[1].follow(run["id"])),
            await hold.enter_async_context(clients[2].follow(run["id"], accumulated="1")),
        ]
        for stream in streams:
            await stream.until("process_step")
            assert stream.screen.text.startswith("Never")
        await asyncio.to_thread(cluster.servers[0].kill)
        try:
            for stream in streams:
                await stream.until("warning", timeout=LEASE_SECONDS + 15)
            model.release("again")
            for stream in streams:
                await stream.to_the_end()
                message = await clients[1].answer_shown_by(conversation, stream.screen)
                assert message["text"] == PROSE
                assert deltas(stream) > 20
        finally:
            model.release("killed")
            await asyncio.to_thread(cluster.servers[0].start)
