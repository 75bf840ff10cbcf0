"""The server of the protocol's authors that has one tool for each part of the protocol, as a program and over
HTTP. `make test-heavy` installs it.
"""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from api.server_process import ServerProcess
from scenarios.client import AsyncApiClient, Json
from scenarios.questions import answer, asks, open_questions, results, set_rules

from luxx.providers.scripted import Call, ScriptedProvider
from mcp_servers.test_public_servers import INSTALLED

PROGRAM = "node_modules/@modelcontextprotocol/server-everything/dist/index.js"
START_SECONDS = 30.0
OPENED, REQUIRED = "https://pay.example/order/7", "https://modelcontextprotocol.io"

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A copy of the installed servers that every user may read."""
    assert INSTALLED.is_dir(), "run make .venv/.installed-mcp-servers"
    with tempfile.TemporaryDirectory(prefix="luxx-everything-") as name:
        Path(name).chmod(0o755)
        shutil.copytree(INSTALLED / "node_modules", Path(name) / "node_modules", symlinks=True)
        yield Path(name)


@pytest.fixture(scope="module")
def http_url(folder: Path) -> Iterator[str]:
    """The address of the server over HTTP."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    command = ["node", str(folder / PROGRAM), "streamableHttp"]
    with subprocess.Popen(
        command, env={**os.environ, "PORT": str(port)}, stdout=subprocess.DEVNULL
    ) as server:
        yield f"http://127.0.0.1:{port}/mcp"
        server.terminate()


async def add(ann: AsyncApiClient, transport: str, folder: Path, url: str) -> Json:
    if transport == "http":
        async with asyncio.timeout(START_SECONDS):
            while True:
                added = await ann.post("/mcp/servers", {"name": "http", "transport": "http", "url": url})
                if added["status"] == "ready":
                    return added
                await ann.ask("DELETE", "/mcp/servers/http")
                await asyncio.sleep(0.2)
    program: Json = {"command": "node", "args": [str(folder / PROGRAM)], "reads": [str(folder)]}
    return await ann.post(
        "/mcp/servers", {"name": "stdio", "transport": "stdio", "scope": "tenant", **program}
    )


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_each_part_of_the_protocol_that_luxx_has_works(
    shared_server: ServerProcess, folder: Path, http_url: str, transport: str
) -> None:
    async def call(tool: str, **arguments: Any) -> Json:
        body = {"name": tool, "arguments": arguments}
        return await ann.post(f"/mcp/servers/{transport}/tools/call", body)

    async with AsyncApiClient(shared_server.url) as ann:
        added = await add(ann, transport, folder, http_url)
        assert (added["status"], added["problem"], added["left_out"]) == ("ready", "", [])
        prefix = added["tools"][0].rpartition("__")[0]
        assert f"{prefix}__trigger-url-elicitation" in added["tools"]
        assert not any("sampling" in name or "roots" in name for name in added["tools"])
        assert "Echo: pears" in str((await call("echo", message="pears"))["data"])
        assert "7" in str((await call("get-sum", a=3, b=4))["data"])
        structured = await call("get-structured-content", location="Chicago")
        assert "temperature" in str(structured["data"])
        assert "image/png" in str((await call("get-tiny-image"))["data"])
        assert "demo://resource" in str((await call("get-resource-links", count=2))["data"])
        slow = await call("trigger-long-running-operation", duration=1, steps=4)
        assert "completed" in str(slow["data"])
        await set_rules(ann, "allow mcp__*(*)")

        # The call is refused until a page was opened, and then asks for another one.
        arguments = {"url": OPENED, "errorPath": True}
        urls = Call(name=f"{prefix}__trigger-url-elicitation", arguments=arguments, id="call-url")
        async with ScriptedProvider(asks(urls)) as model:
            conversation = await ann.conversation(model.url)
            run = await ann.start_run(conversation, tools=[urls.name])
            for url in (REQUIRED, OPENED):
                async with asyncio.timeout(START_SECONDS):
                    while not (found := await open_questions(ann, run["id"])) or found[0]["url"] != url:  # noqa: ASYNC110 - asked over HTTP
                        await asyncio.sleep(0.05)
                await answer(ann, found[0], "accept")
            await ann.wait_for_end(run["id"])
            (result,) = results((await ann.messages(conversation))[-1])
            assert "completed the URL elicitation" in json.dumps(result)
        await ann.ask("DELETE", f"/mcp/servers/{transport}")
