"""Sign-in at a real FastMCP server with its OAuth, in a process with packages of its own (`make test-heavy`
installs them).
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from api.server_process import ServerProcess
from scenarios.client import AsyncApiClient, Json
from scenarios.questions import asks, open_questions, results, set_rules

from luxx.providers.scripted import Call, ScriptedProvider

INSTALLED = Path(__file__).parents[2] / ".venv/mcp-servers/fastmcp"
START_SECONDS = 60.0
TOKENS = ("test_access_token", "test_refresh_token")
"""The beginnings of the tokens that it issues."""

PROGRAM = """
import socket, sys, uvicorn
from fastmcp import FastMCP
from fastmcp.server.auth.providers.in_memory import InMemoryOAuthProvider
from fastmcp.server.dependencies import get_access_token
from mcp.server.auth.settings import ClientRegistrationOptions, RevocationOptions

listening = socket.create_server(("127.0.0.1", 0))
port = listening.getsockname()[1]
auth = InMemoryOAuthProvider(
    base_url=f"http://127.0.0.1:{port}",
    client_registration_options=ClientRegistrationOptions(
        enabled=True, valid_scopes=["people"], default_scopes=["people"]
    ),
    revocation_options=RevocationOptions(enabled=True),
    required_scopes=["people"],
)
mcp = FastMCP("people", auth=auth)

@mcp.tool(annotations={"readOnlyHint": True})
def who_am_i() -> str:
    return f"scopes {get_access_token().scopes}, grants {len(auth.refresh_tokens)}"

@mcp.tool(annotations={"readOnlyHint": True})
def expire() -> str:
    auth.access_tokens.clear()
    return "expired"

print(port, flush=True)
config = uvicorn.Config(mcp.http_app(), log_level="critical")
uvicorn.Server(config).run([listening])
"""

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    assert INSTALLED.is_dir(), "run make .venv/.installed-mcp-servers"
    environ = {**os.environ, "PYTHONPATH": str(INSTALLED), "FASTMCP_CHECK_FOR_UPDATES": "off"}
    command = [sys.executable, "-S", "-c", PROGRAM]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[ServerProcess]:
    allowed = json.dumps([f"127.0.0.1:{port}"])
    folder = tmp_path_factory.mktemp("fastmcp")
    with ServerProcess(folder, LUXX_PROVIDERS__ALLOW_PRIVATE=allowed) as running:
        yield running


def agree(address: str) -> dict[str, str]:
    """What the browser would send back: this server's people agree at once."""
    answer = httpx.get(address, follow_redirects=False, trust_env=False)
    query = parse_qs(urlsplit(answer.headers["location"]).query)
    return {name: query[name][0] for name in ("state", "code", "iss") if name in query}


async def test_a_run_waits_for_the_sign_in_at_fastmcp_and_goes_on_with_refreshed_tokens(
    server: ServerProcess, port: int
) -> None:
    calls = [Call(name=f"mcp__u1_people__{tool}", arguments={}, id=f"call-{tool}") for tool in ("who_am_i",)]
    async with AsyncApiClient(server.url) as ann:
        new = {"name": "people", "transport": "http", "url": f"http://127.0.0.1:{port}/mcp"}
        added = await ann.post("/mcp/servers", {**new, "credential": "per_user"})
        assert added["status"] == "needs_sign_in", added
        connected = await ann.post("/mcp/servers/people/connect")
        await ann.post("/mcp/oauth/complete", agree(connected["authorization_url"]))
        listed = await ready(ann)
        assert set(listed["tools"]) == {"mcp__u1_people__who_am_i", "mcp__u1_people__expire"}
        assert "scopes ['people'], grants 1" in str((await call(ann, "who_am_i"))["data"])

        # The server has forgotten the access token: Luxx refreshes it, and nobody is asked.
        assert "expired" in str((await call(ann, "expire"))["data"])
        assert "scopes ['people'], grants 1" in str((await call(ann, "who_am_i"))["data"])

        # A run of a user who has signed out waits, and goes on after the sign-in.
        await set_rules(ann, "allow mcp__*(*)")
        await ann.post("/mcp/servers/people/disconnect")
        async with ScriptedProvider(asks(*calls)) as model:
            conversation = await ann.conversation(model.url)
            run = await ann.start_run(conversation)
            await ann.until_status(run["id"], "waiting")
            (question,) = await open_questions(ann, run["id"])
            assert (question["kind"], question["server"]) == ("sign_in", "people")
            connected = await ann.post("/mcp/servers/people/connect")
            await ann.post("/mcp/oauth/complete", agree(connected["authorization_url"]))
            await ann.wait_for_end(run["id"])
            (result,) = results((await ann.messages(conversation))[-1])
            # The tokens of the ended sign-in were revoked.
            assert "scopes ['people'], grants 1" in str(result["data"])
        stored = json.dumps([await ann.get("/mcp/servers/people"), await ann.messages(conversation)])
    assert not any(token in stored + "".join(server.lines) for token in TOKENS)


async def call(ann: AsyncApiClient, tool: str) -> Json:
    return await ann.post("/mcp/servers/people/tools/call", {"name": tool})


async def ready(ann: AsyncApiClient) -> Json:
    async with asyncio.timeout(START_SECONDS):
        while (found := await ann.get("/mcp/servers/people"))["status"] != "ready":  # noqa: ASYNC110 - asked over HTTP
            await asyncio.sleep(0.05)
    return found
