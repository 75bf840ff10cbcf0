"""Of 113 tools of nine servers a model finds the one that it wants, and their definitions are not in its
prompt.
"""

import json
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from api.server_process import ServerProcess
from scenarios.client import AsyncApiClient, Json
from scenarios.questions import asks

from luxx.domain.mcp.search import CHARACTERS_PER_TOKEN, MOST_FOUND
from luxx.providers.scripted import Call, ScriptedProvider

MOST_TOKENS = 1_000
LEAST_FOUND = 22
TOOLS: dict[str, dict[str, list[str]]] = tomllib.loads(
    (Path(__file__).parent / "samples/many_tools.toml").read_text("utf-8")
)
REQUESTS = {
    "read the text of a file": "files__read_text_file",
    "rename a file": "files__move_file",
    "find files by pattern": "files__search_files",
    "how large is this file and when was it changed": "files__get_file_info",
    "commit my changes": "git__git_commit",
    "switch to another branch": "git__git_checkout",
    "which changes are staged": "git__git_diff_staged",
    "run an SQL query": "database__execute_sql",
    "which queries are the slowest": "database__get_top_queries",
    "columns and indexes of a table": "database__get_object_details",
    "open a web page by its URL": "browser__browser_navigate",
    "take a screenshot": "browser__browser_take_screenshot",
    "fill in a form on a web page": "browser__browser_fill_form",
    "write an email to a customer": "mail__send_email",
    "save the attachment of an email": "mail__download_attachment",
    "search my mails": "mail__search_emails",
    "schedule a meeting tomorrow": "calendar__create_event",
    "is somebody free on Monday": "calendar__get_freebusy",
    "decline an invitation": "calendar__respond_to_event",
    "how do I drive from Bern to Basel": "maps__maps_directions",
    "coordinates of an address": "maps__maps_geocode",
    "create an issue on GitHub": "issues__create_issue",
    "merge the pull request": "issues__merge_pull_request",
    "what time is it in Tokyo": "time__get_current_time",
}
"""What somebody wants, and the tool for it."""


class _Lists(BaseHTTPRequestHandler):
    """A server of the older revision for each path, which only lists its tools."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Prints nothing."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        result: dict[str, Any] | None = None
        if asked["method"] == "initialize":
            info = {"name": self.path, "version": "1"}
            result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
        elif asked["method"] == "tools/list":
            tools = TOOLS[self.path.removeprefix("/")]
            result = {"tools": [_described(name, *tools[name]) for name in tools]}
        self._answer(202 if "id" not in asked else 404 if result is None else 200, asked.get("id"), result)

    def do_GET(self) -> None:
        self._answer(405, None, None)

    def do_DELETE(self) -> None:
        self._answer(405, None, None)

    def _answer(self, status: int, asked_id: Any, result: Any) -> None:
        message = {"jsonrpc": "2.0", "id": asked_id, "result": result}
        body = b"" if result is None else json.dumps(message).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _described(name: str, description: str, arguments: str) -> dict[str, Any]:
    properties = {argument: {"type": "string"} for argument in arguments.split()}
    return {
        "name": name,
        "description": description,
        "inputSchema": {"type": "object", "properties": properties},
    }


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Lists) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


async def test_the_wanted_tool_of_113_is_found_and_they_take_little_of_the_prompt(
    shared_server: ServerProcess, url: str
) -> None:
    assert (len(TOOLS), sum(map(len, TOOLS.values())), len(REQUESTS)) == (9, 113, 24)
    searches = [
        Call(name="tool_search", arguments={"query": query}, id=f"call-{number}")
        for number, query in enumerate(REQUESTS)
    ]
    async with AsyncApiClient(shared_server.url) as ann, ScriptedProvider(asks(*searches)) as model:
        for name, tools in TOOLS.items():
            added = await ann.post(
                "/mcp/servers", {"name": name, "transport": "http", "url": f"{url}/{name}"}
            )
            assert (added["status"], len(added["tools"])) == ("ready", len(tools)), added
        conversation = await ann.conversation(model.url)
        await ann.wait_for_end((await ann.start_run(conversation))["id"])
        steps: list[Json] = (await ann.messages(conversation))[-1]["steps"]
        ended = [step for step in steps if step["type"] == "tool_result"]
        by_call: Json = {step["id_ref"]: json.loads(step["content"])["data"] for step in ended}
        found: list[Json] = [by_call[f"call-{number}"] for number in range(len(REQUESTS))]

    missed: dict[str, list[str]] = {}
    for (query, wanted), answer in zip(REQUESTS.items(), found, strict=True):
        names = [tool["name"].partition("__u1_")[2] for tool in answer["tools"]]
        assert len(names) <= MOST_FOUND
        assert set(answer["servers"]) >= set(TOOLS)
        if wanted not in names:
            missed[query] = names
    assert len(REQUESTS) - len(missed) >= LEAST_FOUND, missed

    sent: Any = model.requests[0].json
    offered = [tool for tool in sent["tools"] if tool["function"]["name"] in ("tool_search", "tool_call")]
    assert len(offered) == 2
    assert len(msgspec.json.encode(offered)) / CHARACTERS_PER_TOKEN <= MOST_TOKENS
    prompt = json.dumps(sent)
    assert not [name for tools in TOOLS.values() for name in tools if f"__{name}" in prompt]
