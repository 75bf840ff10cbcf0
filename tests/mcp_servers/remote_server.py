"""A remote MCP server of the official SDK, in a thread of the test process, with paths that misbehave.

`/mcp` speaks both revisions, `/old/mcp` only the older one; `/sse` and `/ws` are the other transports.
"""

import json
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio
import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.shared.message import SessionMessage
from mcp_types import ToolAnnotations, jsonrpc_message_adapter

START_SECONDS = 30.0
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class RemoteMcp:
    """`with RemoteMcp() as remote:`; `calls` has the names of the tools that were carried out, `requests` the
    method, path and headers of what arrived, `heard` what it got of its users."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.heard: list[Any] = []
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.cancelled = threading.Event()
        self.loses_session = False
        """The next request of an old session is answered as after a restart."""
        self.loses_answer = False
        """The next answer to a call of a tool is lost."""
        self.url = ""
        self._ends = threading.Event()

    def __enter__(self) -> "RemoteMcp":
        config = uvicorn.Config(self._app(), port=0, log_config=None, ws="websockets-sansio")
        self._http = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._http.run, daemon=True)
        self._thread.start()
        for _ in range(int(START_SECONDS * 100)):
            if self._http.started:
                break
            self._ends.wait(0.01)
        self.port: int = self._http.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._http.should_exit = self._http.force_exit = True
        self._thread.join(START_SECONDS)

    def describe_keep(self, description: str) -> None:
        """From now on the tool `keep` has this description."""
        self._server.remove_tool("keep")
        self._server.add_tool(self._keep, "keep", description=description)

    def add_tool(self, name: str, description: str) -> None:
        """One more tool, which takes a text."""

        def keep(text: str = "") -> str:
            self.calls.append(name)
            return f"kept {text}"

        self._server.add_tool(keep, name, description=description)

    def add_tools(self, add: Callable[[MCPServer], None]) -> None:
        """More tools, by a function that adds them."""
        add(self._server)

    def _keep(self, text: str) -> str:
        self.calls.append("keep")
        return f"kept {text}"

    def headers_of(self, path: str) -> dict[str, str]:
        """Those of the last request for this path."""
        return next(headers for _, asked, headers in reversed(self.requests) if asked == path)

    def _tools(self) -> MCPServer:
        server = self._server = MCPServer("notes", log_level="CRITICAL")

        @server.tool(annotations=ToolAnnotations(read_only_hint=True))
        def add(a: int, b: int) -> int:
            """Adds two numbers."""
            self.calls.append("add")
            return a + b

        server.add_tool(self._keep, "keep", description="Keeps a note.")

        @server.tool()
        def token() -> str:
            """Fails with what the caller sent."""
            raise ValueError(self.requests[-1][2].get("x-key", ""))

        @server.tool()
        async def wait() -> str:
            """Waits until it is cancelled."""
            self.calls.append("wait")
            try:
                await anyio.sleep(60)
            except BaseException:
                self.cancelled.set()
                raise
            return "done"

        return server

    def _app(self) -> Any:
        server = self._tools()
        http = server.streamable_http_app()
        sse = server.sse_app()

        async def app(scope: dict[str, Any], receive: Receive, send: Send) -> None:
            if scope["type"] == "lifespan":
                await http(scope, receive, send)
                return
            path: str = scope["path"]
            headers = {name.decode(): value.decode() for name, value in scope["headers"]}
            self.requests.append((scope.get("method", "WS"), path, headers))
            if scope["type"] == "websocket":
                await self._websocket(server, receive, send)
            elif path.startswith(("/sse", "/messages")):
                await sse(scope, receive, send)
            elif path == "/old/mcp" and headers.get("mcp-protocol-version", "").startswith("2026"):
                await answer(send, 400, b"no such method")
            elif path in ("/mcp", "/old/mcp"):
                await self._answer(http, {**scope, "path": "/mcp", "raw_path": b"/mcp"}, receive, send)
            elif path == "/odd":
                await answer_oddly(receive, send)
            else:
                await self._misbehave(path, send)

        return app

    async def _answer(self, http: Any, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if self.loses_session and b"mcp-session-id" in dict(scope["headers"]):
            self.loses_session = False
            await answer(send, 404, b"no such session")
            return
        received = [await receive()]

        async def again() -> dict[str, Any]:
            return received.pop() if received else await receive()

        async def lose(message: dict[str, Any]) -> None:
            """Sends nothing."""

        if self.loses_answer and b'"tools/call"' in received[0].get("body", b""):
            self.loses_answer = False
            await http(scope, again, lose)
            await answer(send, 502, b"bad gateway")
        else:
            await http(scope, again, send)

    async def _misbehave(self, path: str, send: Send) -> None:
        match path:
            case "/away":
                await answer(send, 307, b"", location=f"http://127.0.0.1:{self.port + 1}/mcp")
            case "/locked":
                await answer(send, 401, b"no", **{"www-authenticate": "Bearer"})
            case "/endless":
                await send(
                    {
                        "type": "http.response.start",
                        "status": 200,
                        "headers": [(b"content-type", b"application/json")],
                    }
                )
                with suppress(Exception):
                    for _ in range(1000):
                        await send(
                            {"type": "http.response.body", "body": b"[" + b"0" * 65536, "more_body": True}
                        )
            case _:
                await answer(send, 404, b"not here")

    async def _websocket(self, server: MCPServer, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept", "subprotocol": "mcp"})
        incoming_writer, incoming = anyio.create_memory_object_stream[Any](0)
        outgoing, outgoing_reader = anyio.create_memory_object_stream[Any](0)

        async def read() -> None:
            async with incoming_writer:
                while (event := await receive())["type"] == "websocket.receive":
                    message = jsonrpc_message_adapter.validate_json(event["text"], by_name=False)
                    await incoming_writer.send(SessionMessage(message))
            tasks.cancel_scope.cancel()

        async def write() -> None:
            async for sent in outgoing_reader:
                text = sent.message.model_dump_json(by_alias=True, exclude_unset=True)
                await send({"type": "websocket.send", "text": text})

        low = server._lowlevel_server  # pyright: ignore[reportPrivateUsage]
        async with incoming, outgoing, outgoing_reader, anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            tasks.start_soon(write)
            await low.run(incoming, outgoing, low.create_initialization_options())


OBJECT = {"type": "object"}
ODD_TOOLS: list[Any] = [
    {"name": "good", "inputSchema": OBJECT},
    None,
    {"name": "untyped"},
    {"name": "list", "inputSchema": {"type": "array"}},
    {"name": "good", "inputSchema": OBJECT},
]


async def answer_oddly(receive: Receive, send: Send) -> None:
    """A server of the older revision whose list has wrong tools and no end, and whose answers are wrong."""
    body, is_more = b"", True
    while is_more:
        part = await receive()
        body, is_more = body + part.get("body", b""), part.get("more_body", False)
    asked = json.loads(body or b"{}")
    method, version = asked.get("method", ""), {"protocolVersion": "2025-11-25"}
    results: dict[str, Any] = {
        "initialize": version
        | {"capabilities": {"tools": {}}, "serverInfo": {"name": "odd", "version": "1"}},
        "tools/list": {"tools": ODD_TOOLS, "nextCursor": "again"},
        "tools/call": {"content": "no list"},
    }
    if method in results:
        result = {"jsonrpc": "2.0", "id": asked["id"], "result": results[method]}
        await answer(send, 200, json.dumps(result).encode(), **{"content-type": "application/json"})
    else:
        await answer(send, 202 if method.startswith("notifications/") else 404, b"")


async def answer(send: Send, status: int, body: bytes, **headers: str) -> None:
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})
