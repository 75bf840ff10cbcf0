"""Servers that hang, crash or list wrong tools: chats begin to answer as soon as without them."""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager

import pytest
from api.server_process import ServerProcess
from scenarios.client import AsyncApiClient, Json
from scenarios.questions import only_asks, set_rules

from luxx.providers.scripted import Call, Rule, Script, ScriptedProvider, Text
from mcp_servers.harness import until
from mcp_servers.remote_server import RemoteMcp

MOST_LATER = 0.1
"""Seconds by which the first request to a model may be later."""

TRIES = 7
ANSWERS = Script(rules=[Rule(name="answers", reply=[Text(text="Done.")])])


@pytest.fixture(scope="module")
def remote() -> Iterator[RemoteMcp]:
    with RemoteMcp() as running:
        yield running


class Troubled:
    """A port whose connections are never answered, or are closed at once (`crashes`)."""

    def __init__(self, *, crashes: bool) -> None:
        self.connections = 0
        self.url = ""
        self._crashes = crashes
        self._ends = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator["Troubled"]:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
        try:
            yield self
        finally:
            self._ends.set()
            server.close()

    async def _connected(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if not self._crashes:
            await self._ends.wait()
        writer.close()


async def seconds_to_the_model(ann: AsyncApiClient, model: ScriptedProvider, provider_id: int) -> list[float]:
    """From each message to the request to the model, of new conversations with all tools."""
    durations: list[float] = []
    for _ in range(TRIES):
        chat = (await ann.post("/conversations", {"provider_id": provider_id}))["id"]
        before, begun = len(model.requests), time.monotonic()
        run = await ann.start_run(chat, tools=True)
        await model.arrived(before + 1, 30.0)
        durations.append(time.monotonic() - begun)
        await ann.until_status(run["id"], "completed")
    return durations


async def test_servers_that_hang_crash_or_list_wrong_tools_delay_no_chat(
    shared_server: ServerProcess, remote: RemoteMcp
) -> None:
    async def add(name: str, url: str) -> Json:
        return await ann.post("/mcp/servers", {"name": name, "transport": "http", "url": url})

    waits = Call(name="mcp__u1_fine__wait", arguments={}, id="call-wait")
    async with (
        AsyncApiClient(shared_server.url) as ann,
        ScriptedProvider(ANSWERS) as model,
        ScriptedProvider(only_asks(waits)) as waiting_model,
        Troubled(crashes=False).running() as hanging,
        Troubled(crashes=True).running() as crashing,
    ):
        provider_id = await ann.connect(model.url)
        await set_rules(ann, "allow mcp__*(*)")
        assert (await add("fine", f"{remote.url}/mcp"))["status"] == "ready"
        without = await seconds_to_the_model(ann, model, provider_id)

        assert (await add("crashing", crashing.url))["status"] == "failed"
        odd = await add("odd", f"{remote.url}/odd")
        assert (odd["status"], odd["tools"]) == ("ready", ["mcp__u1_odd__good"])
        saving = asyncio.create_task(add("hanging", hanging.url))
        await until(lambda: hanging.connections, bool)
        run = await ann.start_run(await ann.conversation(waiting_model.url), tools=True)
        await until(lambda: "wait" in remote.calls, bool)

        counts, asked = (hanging.connections, crashing.connections), len(remote.requests)
        # One server is being connected to, and a call of another one hangs.
        with_them = await seconds_to_the_model(ann, model, provider_id)
        assert (hanging.connections, crashing.connections, len(remote.requests)) == (*counts, asked)
        assert min(with_them) <= min(without) + MOST_LATER, (without, with_them)

        # The chat uses the healthy server meanwhile.
        called = await ann.post(
            "/mcp/servers/fine/tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}}
        )
        assert called["data"] == 3
        offered = {tool["function"]["name"] for tool in model.requests[-1].json["tools"]}
        assert {"mcp__u1_fine__add", "mcp__u1_odd__good"} <= offered
        assert not any("hanging" in name or "crashing" in name for name in offered)
        await ann.post(f"/runs/{run['id']}/cancel")
        assert (await saving)["status"] in ("starting", "failed")
        for name in ("fine", "crashing", "odd", "hanging"):
            await ann.ask("DELETE", f"/mcp/servers/{name}")
