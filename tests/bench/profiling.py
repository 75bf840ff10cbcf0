"""cProfile of the event loop's thread while a row runs in Luxx. The shares are meaningful, the
times are not.
"""

import asyncio
import contextlib
import os
import pstats
import signal
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.bench.load import Client, luxx_target
from tests.bench.processes import Api, MeasuredServer, luxx_server
from tests.bench.rows import ITERATIONS, STREAMS, TOOLS, chat, relay
from tests.bench.turns import BURST, room_turns
from tests.bench.upstream import Upstream

SHOWN = 45
ROUNDS = 3
CHATS = 100

Work = Callable[[Upstream, MeasuredServer, Api], Awaitable[None]]


async def profile(row: str) -> None:
    """Runs the row against a profiled server and prints the longest functions, by own and by cumulative
    time."""
    upstream = Upstream()
    await upstream.open()
    with tempfile.TemporaryDirectory(prefix="luxx-bench-profile-") as folder:
        file = Path(folder) / "profile"
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(luxx_server({"BENCH_PROFILE": str(file)}))
            api = await asyncio.to_thread(Api, server.port)
            await asyncio.to_thread(api.connect_upstream, upstream.port)
            await PROFILED[row](upstream, server, api)
            # Not SIGTERM: the server would exit before the profile is written.
            os.kill(server.process.pid, signal.SIGINT)
            await asyncio.to_thread(server.process.wait, 30)
        stats = pstats.Stats(str(file))
    await upstream.close()
    for order in ("tottime", "cumulative"):
        stats.sort_stats(order).print_stats(SHOWN)


async def _tokens(upstream: Upstream, server: MeasuredServer, api: Api) -> None:
    target = luxx_target(server.port, api.token, tools=False)
    for _ in range(ROUNDS):
        conversations = await asyncio.to_thread(api.new_conversations, STREAMS)
        await relay(upstream, target, server, conversations)


async def _chats(upstream: Upstream, server: MeasuredServer, api: Api) -> None:
    client = await Client.connect(luxx_target(server.port, api.token, tools=False))
    for conversation in await asyncio.to_thread(api.new_conversations, CHATS):
        await chat(upstream, client, conversation)
    client.close()


async def _loops(_upstream: Upstream, server: MeasuredServer, api: Api) -> None:
    client = await Client.connect(luxx_target(server.port, api.token, tools=True))
    prompt = f"[[loop={ITERATIONS} tools={TOOLS} n=1]]"
    for conversation in await asyncio.to_thread(api.new_conversations, ROUNDS):
        await client.stream(conversation, prompt, 1)
    client.close()


async def _rooms(_upstream: Upstream, server: MeasuredServer, api: Api) -> None:
    for _ in range(ROUNDS):
        await room_turns(server, api, BURST)


PROFILED: dict[str, Work] = {"token": _tokens, "chat": _chats, "loop": _loops, "room": _rooms}
