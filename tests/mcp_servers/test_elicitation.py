"""What MCP servers ask in the middle of a call becomes a question of the run, in both revisions."""

import asyncio
import json
import sqlite3
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from api.server_process import ADMIN_PASSWORD, ServerProcess
from scenarios.client import AsyncApiClient, Json
from scenarios.questions import answer, asks, open_questions, results, set_rules
from screen_terminal import ScreenTerminal

from luxx.domain.mcp.elicitation import MOST_ASKED, checked_schema, read_elicitation
from luxx.domain.mcp.server import ServerState
from luxx.errors import ToolFailed
from luxx.providers.scripted import Call, ScriptedProvider
from mcp_servers import hostile
from mcp_servers.asking_server import PAGE, add_asking_tools
from mcp_servers.harness import open_harness, script
from mcp_servers.remote_server import RemoteMcp

REVISIONS = {"new": "/mcp", "old": "/old/mcp"}
CANARY = "to the moon 8f3a"
TRIP = {"note": CANARY, "people": 2, "seat": "aisle"}
SAYS_WHAT_CLIENTS_CAN = hostile.SPEAKS + (
    "capabilities = []\n"
    "first = agree\n"
    "def agree(message):\n"
    "    capabilities.append(message['params']['capabilities'])\n"
    "    first(message)\n"
    "serve(lambda message: text(message, json.dumps(capabilities[0])))"
)


@pytest.fixture(scope="module")
def remote() -> Iterator[RemoteMcp]:
    with RemoteMcp() as running:
        running.add_tools(partial(add_asking_tools, heard=running.heard))
        yield running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, remote: RemoteMcp) -> Iterator[ServerProcess]:
    allowed = json.dumps([f"127.0.0.1:{remote.port}"])
    with ServerProcess(tmp_path_factory.mktemp("asking"), LUXX_PROVIDERS__ALLOW_PRIVATE=allowed) as running:
        yield running


class Asking:
    """An administrator whose model calls one tool of a server that asks."""

    def __init__(self, client: AsyncApiClient, model: ScriptedProvider, server: str) -> None:
        self.client = client
        self.model = model
        self.server = server
        self.conversation = ""
        self.run: Json = {}

    async def question(self, **more: Any) -> Json:
        """The only open question of a new run."""
        await self.start(**more)
        return await self.next_question()

    async def start(self, **more: Any) -> None:
        self.conversation = await self.client.conversation(self.model.url)
        self.run = await self.client.start_run(self.conversation, **more)

    async def next_question(self) -> Json:
        await self.client.until_status(self.run["id"], "waiting")
        (question,) = await open_questions(self.client, self.run["id"])
        assert (question["kind"], question["server"]) == ("elicitation", self.server)
        return question

    async def result(self) -> Json:
        await self.client.wait_for_end(self.run["id"])
        (found,) = results((await self.client.messages(self.conversation))[-1])
        return found


@asynccontextmanager
async def asking(
    server: ServerProcess, remote: RemoteMcp, revision: str, tool: str
) -> AsyncGenerator[Asking]:
    name = f"{revision}-{tool.replace('_', '-')}"
    call = Call(name=f"mcp__default_{name}__{tool}", arguments={}, id="call-1")
    async with AsyncApiClient(server.url) as client, ScriptedProvider(asks(call)) as model:
        url = remote.url + REVISIONS[revision]
        new = {"name": name, "transport": "http", "url": url, "scope": "tenant"}
        known = {one["name"] for one in (await client.get("/mcp/servers"))["items"]}
        if name not in known:
            added = await client.post("/mcp/servers", new)
            assert added["status"] == "ready", added
        await set_rules(client, "allow mcp__*")
        remote.heard.clear()
        yield Asking(client, model, name)


@pytest.mark.parametrize("revision", list(REVISIONS))
async def test_values_go_to_the_server_and_nowhere_else(
    server: ServerProcess, remote: RemoteMcp, revision: str
) -> None:
    async with asking(server, remote, revision, "book") as one:
        question = await one.question()
        assert "Where do you want to go?" in question["prompt"]
        fields = question["requested_schema"]["properties"]
        assert set(fields) == {"note", "people", "seat"}
        assert [option["label"] for option in question["options"]] == ["accept", "decline", "cancel"]
        path = f"/runs/{question['run_id']}/questions/{question['id']}/answer"
        for wrong in (
            {"answer": "accept"},
            {"answer": "accept", "arguments": {"note": "x"}},
            {"answer": "accept", "arguments": {**TRIP, "people": "two"}},
            {"answer": "accept", "arguments": {**TRIP, "more": 1}},
            {"answer": "accept", "arguments": {**TRIP, "note": "x" * 100_000}},
            {"answer": "decline", "arguments": TRIP},
            {"answer": "yes"},
        ):
            refused = await one.client.ask("POST", path, wrong)
            assert refused.status_code == 400, wrong
            assert refused.json()["detail"]["fields"]
        await answer(one.client, question, "accept", arguments={"note": CANARY, "people": 2})
        assert (await one.result())["data"] == "accept: done"
        assert remote.heard == [("accept", TRIP)]
        seen = [
            (await one.client.ask("GET", path)).text
            for path in (
                f"/runs/{one.run['id']}/events",
                f"/runs/{one.run['id']}/questions",
                f"/conversations/{one.conversation}/messages",
                f"/conversations/{one.conversation}/export",
                "/admin/audit",
            )
        ]
        seen += [request.body.decode() for request in one.model.requests]
        seen.append(server.output)
        seen += [file.read_bytes().decode("latin-1") for file in files(server)]
        assert not [text for text in seen if CANARY in text]


def files(server: ServerProcess) -> list[Path]:
    return [path for path in server.data_dir.rglob("*") if path.is_file()]


async def test_values_are_typed_at_the_terminal(server: ServerProcess, remote: RemoteMcp) -> None:
    async with asking(server, remote, "new", "book") as one:
        await one.question()
        token = (await one.client.post("/auth/login", {"username": "admin", "password": ADMIN_PASSWORD}))[
            "access_token"
        ]
        terminal = ScreenTerminal(
            "chat", "--conversation", one.conversation, url=server.url, cwd=server.folder, LUXX_TOKEN=token,
            XDG_STATE_HOME=str(server.folder / "state"),
        )  # fmt: skip

        def type_values() -> None:
            terminal.expect(f"what you type goes to {one.server} only")
            terminal.type("accept\r")
            terminal.expect("? note")
            terminal.type(f"{CANARY}\r")
            terminal.expect("? people")
            terminal.type("two\r")
            terminal.expect("people: type a integer")
            terminal.type("2\r")
            terminal.expect("? seat")
            terminal.type("1\r")
            terminal.expect("Now I know.")

        try:
            await asyncio.to_thread(type_values)
        finally:
            terminal.kill()
        assert (await one.result())["data"] == "accept: done"
        assert remote.heard == [("accept", {**TRIP, "seat": "window"})]


@pytest.mark.parametrize("revision", list(REVISIONS))
async def test_a_server_learns_that_the_user_declined_or_did_not_decide(
    server: ServerProcess, remote: RemoteMcp, revision: str
) -> None:
    async with asking(server, remote, revision, "book") as one:
        for given in ("decline", "cancel"):
            await answer(one.client, await one.question(), given)
            assert (await one.result())["data"] == f"{given}: done"
        question = await one.question()
        with closing(sqlite3.connect(server.data_dir / "luxx.db")) as database, database:
            due = "UPDATE questions SET due_at = '2020-01-01 00:00:00.000000' WHERE id = ?"
            assert database.execute(due, (question["id"],)).rowcount == 1
        assert (await one.result())["data"] == "cancel: done"
        await one.start(when_asked="deny")
        assert (await one.result())["data"] == "cancel: done"
        called = await one.client.post(f"/mcp/servers/{one.server}/tools/call", {"name": "book"})
        assert called["data"] == "cancel: done"
        assert remote.heard == [(action, None) for action in ("decline", *["cancel"] * 4)]


@pytest.mark.parametrize(("revision", "tool"), [("new", "pay_first"), ("old", "pay")])
async def test_a_server_has_the_user_open_a_page(
    server: ServerProcess, remote: RemoteMcp, revision: str, tool: str
) -> None:
    async with asking(server, remote, revision, tool) as one:
        question = await one.question()
        assert question["url"] == PAGE
        await answer(one.client, question, "accept")
        assert (await one.result())["data"] == "accept: done"
        assert remote.heard == [("accept", "s7") if revision == "new" else "accept"]


@pytest.mark.parametrize("revision", list(REVISIONS))
async def test_a_call_that_is_refused_until_a_page_was_opened_is_made_again_after_that(
    server: ServerProcess, remote: RemoteMcp, revision: str
) -> None:
    async with asking(server, remote, revision, "pay_before") as one:
        question = await one.question()
        assert (question["url"], "requested_schema" in question) == (PAGE, False)
        await answer(one.client, question, "accept")
        assert (await one.result())["data"] == "paid: done"
        assert remote.heard == ["asked", "asked"]
        await answer(one.client, await one.question(), "decline")
        refused = await one.result()
        assert refused["error"].endswith("has its user open a page before the call, which did not happen")
        assert remote.heard == ["asked"] * 3
        found = await one.client.get(f"/mcp/servers/{one.server}")
        assert found["status"] == "ready"


@pytest.mark.parametrize(("revision", "tool"), [("new", "nag_first"), ("old", "nag")])
async def test_a_server_cannot_ask_without_end(
    server: ServerProcess, remote: RemoteMcp, revision: str, tool: str
) -> None:
    async with asking(server, remote, revision, tool) as one:
        await one.start(when_asked="deny")
        failed = await one.result()
        assert f"asks more than {MOST_ASKED} times" in failed["error"]
        assert len(remote.heard) <= MOST_ASKED + 2


async def test_questions_and_answers_outlive_a_killed_process(
    server: ServerProcess, remote: RemoteMcp
) -> None:
    """A server without sessions goes on; of another one the session is lost, and the result says so."""
    async with asking(server, remote, "new", "book") as new, asking(server, remote, "old", "book") as old:
        questions = [(one, await one.question()) for one in (new, old)]
        server.kill()
        server.start()
        for one, question in questions:
            await one.client.reconnect_to(server.url)
            assert await one.next_question() == question
            await answer(one.client, question, "accept", arguments=TRIP)
        assert (await new.result())["data"] == "accept: done"
        assert (await old.result())["data"] == {"outcome": "unknown"}
        assert remote.heard == [("accept", TRIP)]


async def test_the_question_of_a_cancelled_run_ends_the_call(
    server: ServerProcess, remote: RemoteMcp
) -> None:
    async with asking(server, remote, "old", "book") as one:
        await one.question()
        await one.client.cancel(one.run["id"])
        await one.client.wait_for_end(one.run["id"])
        # The connection is free again: nobody is asked for another call.
        await answer(one.client, await one.question(), "decline")
        assert (await one.result())["data"] == "decline: done"


async def test_configured_servers_are_not_offered_to_ask() -> None:
    async with open_harness([script("can", SAYS_WHAT_CLIENTS_CAN)]) as harness:
        assert harness is not None
        await harness.wait_for_state(ServerState.RUNNING)
        called = await harness.call("act", "can")
        assert "elicitation" not in str(called.result.data)


@pytest.mark.parametrize(
    "properties",
    [
        {"a": {"type": "object", "properties": {}}},
        {"a": {"type": "array", "items": {"type": "string"}}},
        {"a": {"$ref": "#/x"}},
        {"a": {"type": "string", "maxLength": "many"}},
        {"a": {"type": "string", "title": "x" * 20_000}},
        {str(number): {"type": "string"} for number in range(21)},
        {"": {"type": "string"}},
        {"a": "text"},
    ],
)
def test_only_flat_forms_are_asked(properties: dict[str, Any]) -> None:
    with pytest.raises(ToolFailed, match="asks for something that Luxx does not ask"):
        checked_schema({"type": "object", "properties": properties})


@pytest.mark.parametrize(
    "url", ["javascript:alert(1)", "https://a@b.example/", "file:///etc", "https://é/", "x"]
)
def test_only_web_addresses_are_asked(url: str) -> None:
    class Params:
        message, mode = "Open it", "url"

    params: Any = Params()
    params.url = url
    with pytest.raises(ToolFailed, match="an address that is not one of the web"):
        read_elicitation(params)
