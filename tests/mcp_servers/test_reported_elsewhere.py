"""Servers that other clients have failed with, by public reports: each is used through the API."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from api.server_process import ServerProcess
from scenarios.client import AsyncApiClient, Json

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
STRUCTURED = {"accounts": ["Ann", "Bob"], "total": 36}
IMAGE = {"type": "image", "data": PIXEL, "mimeType": "image/png"}
RESULTS: dict[str, Any] = {
    # ggml-org/llama.cpp#26410, nicobailon/pi-mcp-adapter#113
    "structured_only": {"content": [], "structuredContent": STRUCTURED},
    # MoonshotAI/kimi-code#2554
    "summary": {"content": [{"type": "text", "text": "2 accounts."}], "structuredContent": STRUCTURED},
    # anthropics/claude-code#54737
    "image_and_structured": {"content": [IMAGE], "structuredContent": STRUCTURED},
    # Gitlawb/zero#823
    "audio": {"content": [{"type": "audio", "data": PIXEL, "mimeType": "audio/wav"}]},
    "plain": {"content": [{"type": "text", "text": "done"}]},
}
GONE: dict[str, tuple[int, Json]] = {
    # lobehub/lobehub#15875, punkpeye/mcp-proxy#14
    "gone400": (400, {"code": -32000, "message": "Bad Request: No valid session ID provided"}),
    # punkpeye/mcp-remote#106, microsoft-agentic-harness#385
    "gone404": (404, {"code": -32001, "message": "Session not found"}),
}
"""How servers refuse a session that they do not know, after a restart."""


class _State:
    def __init__(self) -> None:
        self.sessions: set[str] = set()
        self.methods: list[tuple[str, str]] = []
        self.calls: list[str] = []
        self.ends = threading.Event()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    state: _State


class _Sessions(BaseHTTPRequestHandler):
    """Servers of revision 2025-11-25 with sessions. The path says how one behaves."""

    protocol_version = "HTTP/1.1"

    @property
    def state(self) -> _State:
        assert isinstance(self.server, _Server)
        return self.server.state

    def log_message(self, format: str, *args: Any) -> None:
        """Prints nothing."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        session, method, name = self.headers.get("mcp-session-id"), asked["method"], self.path[1:]
        self.state.methods.append((name, method))
        if method == "initialize":
            new = f"{name}-{len(self.state.methods)}"
            self.state.sessions.add(new)
            info = {"name": name, "version": "1"}
            result: Json = {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": info,
            }
            self._answer(200, {"id": asked["id"], "result": result}, session=new)
        elif session not in self.state.sessions:
            status, error = GONE.get(name, GONE["gone404"])
            self._answer(status, {"id": None, "error": error})
        elif method == "tools/list":
            schema = {"type": "object"}
            tools = [{"name": tool, "inputSchema": schema} for tool in RESULTS]
            self._answer(200, {"id": asked["id"], "result": {"tools": tools}})
        elif method == "tools/call":
            tool = asked["params"]["name"]
            self.state.calls.append(f"{name} {tool}")
            self._answer(200, {"id": asked["id"], "result": RESULTS[tool]})
        else:
            self._answer(202, None)

    def do_GET(self) -> None:
        name = self.path[1:]
        self.state.methods.append((name, "GET"))
        match name:
            case "get404":  # cline/cline#8321
                self._answer(404, None)
            case "get200":  # f/prompts.chat#1117
                self._answer(200, {"result": {}})
            case "gethangs":  # n8n-io/n8n#34835
                self.state.ends.wait()
            case _:
                self._answer(405, None)

    def do_DELETE(self) -> None:
        self.state.methods.append((self.path[1:], "DELETE"))
        self.state.sessions.discard(self.headers.get("mcp-session-id", ""))
        self._answer(200, None)

    def _answer(self, status: int, message: Json | None, session: str = "") -> None:
        body = b"" if message is None else json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.send_response(status)
        if session:
            self.send_header("mcp-session-id", session)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture(scope="module")
def remote() -> Iterator[_Server]:
    with _Server(("127.0.0.1", 0), _Sessions) as server:
        server.state = _State()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.state.ends.set()
        server.shutdown()


async def add(ann: AsyncApiClient, remote: _Server, name: str) -> None:
    url = f"http://127.0.0.1:{remote.server_port}/{name}"
    begun = time.monotonic()
    added = await ann.post("/mcp/servers", {"name": name, "transport": "http", "url": url})
    assert (added["status"], len(added["tools"])) == ("ready", len(RESULTS)), added
    assert time.monotonic() - begun < 15


async def call(ann: AsyncApiClient, name: str, tool: str) -> Json:
    return await ann.post(f"/mcp/servers/{name}/tools/call", {"name": tool})


async def test_nothing_of_a_result_is_lost(shared_server: ServerProcess, remote: _Server) -> None:
    async with AsyncApiClient(shared_server.url) as ann:
        await add(ann, remote, "whole")
        for tool in ("structured_only", "summary", "image_and_structured"):
            result = await call(ann, "whole", tool)
            assert result["success"]
            assert "36" in str(result["data"]), result
            assert ("image/png" in str(result["data"])) == (tool == "image_and_structured"), result
            assert ("2 accounts." in str(result["data"])) == (tool == "summary"), result
        assert "audio/wav" in str((await call(ann, "whole", "audio"))["data"])

        # QwenLM/qwen-code#9962: a session that is left is ended, so that a server with one accepts the next.
        await ann.ask("DELETE", "/mcp/servers/whole")
        assert ("whole", "DELETE") in remote.state.methods
        assert not [one for one in remote.state.sessions if one.startswith("whole")]


@pytest.mark.parametrize("name", GONE)
async def test_a_server_that_has_forgotten_the_session_gets_a_new_one(
    shared_server: ServerProcess, remote: _Server, name: str
) -> None:
    async with AsyncApiClient(shared_server.url) as ann:
        await add(ann, remote, name)
        remote.state.sessions.clear()
        result = await call(ann, name, "plain")
        assert (result["success"], result["data"]) == (True, "done"), result
        assert remote.state.calls.count(f"{name} plain") == 1
        await ann.ask("DELETE", f"/mcp/servers/{name}")


@pytest.mark.parametrize("name", ["get404", "get200", "gethangs"])
async def test_a_server_without_a_stream_of_its_own_is_used(
    shared_server: ServerProcess, remote: _Server, name: str
) -> None:
    async with AsyncApiClient(shared_server.url) as ann:
        await add(ann, remote, name)
        for _ in range(5):
            assert (await call(ann, name, "plain"))["data"] == "done"
        # It is not asked for the stream again and again.
        assert remote.state.methods.count((name, "GET")) <= 3
        await ann.ask("DELETE", f"/mcp/servers/{name}")
