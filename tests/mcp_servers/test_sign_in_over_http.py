"""Signing in at an MCP server through the API: by hand, and in runs that wait for it."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from api.server_process import ServerProcess
from forked_luxx import run_luxx
from scenarios.client import AsyncApiClient, Json
from scenarios.questions import answer, asks, open_questions, results

from luxx.providers.scripted import Call, ScriptedProvider
from mcp_servers.harness import WAIT_SECONDS
from mcp_servers.oauth_server import CANARY, OAuthServer

PASSWORD = "a-password-of-a-test-1"
MOST_SECONDS = 1.3
"""For four calls of a second at once."""

MOST_TRIES = 4
"""Of these calls: the machine may be busy."""


@pytest.fixture(scope="module")
def oauth() -> Iterator[OAuthServer]:
    with OAuthServer() as server:
        yield server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, oauth: OAuthServer) -> Iterator[ServerProcess]:
    folder: Path = tmp_path_factory.mktemp("sign-in")
    allowed = json.dumps([f"127.0.0.1:{oauth.port}"])
    with ServerProcess(folder, LUXX_PROVIDERS__ALLOW_PRIVATE=allowed) as running:
        yield running


@asynccontextmanager
async def person(server: ServerProcess, name: str, level: int = 2) -> AsyncGenerator[AsyncApiClient]:
    """A new user of the tenant."""
    async with AsyncApiClient(server.url) as admin:
        new = {"username": name, "password": PASSWORD, "permission_level": level}
        await admin.post("/auth/users", new)
        signed_in = await admin.post("/auth/login", {"username": name, "password": PASSWORD})
    async with AsyncApiClient(server.url, signed_in["access_token"]) as client:
        yield client


async def add_server(admin: AsyncApiClient, oauth: OAuthServer, name: str, **more: Any) -> None:
    body = {"name": name, "transport": "http", "url": oauth.url, "credential": "per_user", "scope": "tenant"}
    await admin.post("/mcp/servers", {**body, "level": 1, **more})


async def sign_in(client: AsyncApiClient, oauth: OAuthServer, name: str, who: str) -> Json:
    connected = await client.post(f"/mcp/servers/{name}/connect")
    return await client.post("/mcp/oauth/complete", oauth.agree(connected["authorization_url"], who))


async def until_ready(client: AsyncApiClient, name: str) -> Json:
    async with asyncio.timeout(WAIT_SECONDS):
        while (found := await client.get(f"/mcp/servers/{name}"))["status"] != "ready":  # noqa: ASYNC110 - asked over HTTP
            await asyncio.sleep(0.05)
    return found


def calls(server: str, tool: str = "who_am_i", call_id: str = "call-who") -> Call:
    return Call(name=f"mcp__default_{server}__{tool}", arguments={}, id=call_id)


async def until_asked(client: AsyncApiClient, run_id: str) -> Json:
    async with client.follow(run_id) as stream:
        await stream.until("question_asked")
    (question,) = await open_questions(client, run_id)
    return question


async def test_each_user_signs_in_and_calls_tools_as_themselves(
    server: ServerProcess, oauth: OAuthServer
) -> None:
    async with (
        AsyncApiClient(server.url) as admin,
        person(server, "ann", level=1) as ann,
        person(server, "bob") as bob,
    ):
        await add_server(admin, oauth, "people")
        assert (await ann.get("/mcp/servers/people"))["status"] == "needs_sign_in"
        for client, who in ((ann, "ann at work"), (bob, "bob at work")):
            signed_in = await sign_in(client, oauth, "people", who)
            assert (signed_in["name"], signed_in["credential"]) == ("people", "per_user")
            await until_ready(client, "people")
        for client, who in ((ann, "ann at work"), (bob, "bob at work")) * 2:
            called = await client.post(
                "/mcp/servers/people/tools/call", {"name": "who_am_i", "arguments": {}}
            )
            assert (called["success"], called["data"]) == (True, f"you are {who}")

        durations: list[float] = []
        while min(durations, default=9.0) > MOST_SECONDS and len(durations) < MOST_TRIES:
            begun = time.monotonic()
            call = {"name": "wait_a_second"}
            slow = [ann.post("/mcp/servers/people/tools/call", call) for _ in range(4)]
            assert [one["data"] for one in await asyncio.gather(*slow)] == ["waited"] * 4
            durations.append(time.monotonic() - begun)
        assert min(durations) <= MOST_SECONDS, durations

        assert (await ann.post("/mcp/servers/people/connect"))["authorization_url"] is None
        disconnected = await ann.post("/mcp/servers/people/disconnect")
        assert disconnected["status"] == "needs_sign_in"
        failed = await ann.post("/mcp/servers/people/tools/call", {"name": "who_am_i"})
        assert failed["success"] is False
        assert "sign in" in failed["error"]
        page = f"https://{server.url.partition('//')[2]}"
        of_page: Any = await ann.ask("POST", "/mcp/servers/people/connect", headers={"origin": page})
        back = parse_qs(urlsplit(str(of_page.json()["data"]["authorization_url"])).query)["redirect_uri"]
        assert back == [f"{page}/ui/mcp/callback"]
        connected = await ann.post("/mcp/servers/people/connect")
        given = oauth.agree(connected["authorization_url"], "ann at home")
        refused = await bob.ask("POST", "/mcp/oauth/complete", given)
        assert (refused.status_code, refused.json()["detail"]["kind"]) == (404, "mcp_sign_in_not_found")
        await ann.post("/mcp/oauth/complete", given)
        replayed = await ann.ask("POST", "/mcp/oauth/complete", given)
        assert (replayed.status_code, replayed.json()["detail"]["kind"]) == (409, "mcp_sign_in_failed")
        called = await ann.post("/mcp/servers/people/tools/call", {"name": "who_am_i"})
        assert called["data"] == "you are ann at home"
        assert (await bob.post("/mcp/servers/people/tools/call", {"name": "who_am_i"}))["success"] is True


async def test_tokens_are_revoked_with_the_sign_in_or_the_server(
    server: ServerProcess, oauth: OAuthServer
) -> None:
    def tokens(who: str) -> list[str]:
        kept = [*oauth.issuer.access.values(), *oauth.issuer.refresh.values()]
        return [token.token for token in kept if token.subject == who]

    async with AsyncApiClient(server.url) as admin, person(server, "gina") as gina:
        await add_server(admin, oauth, "left")
        for client, who in ((admin, "the admin"), (gina, "gina at work")):
            await sign_in(client, oauth, "left", who)
            assert len(tokens(who)) == 2
        assert (await gina.post("/mcp/servers/left/disconnect"))["problem"] == ""
        assert (len(tokens("gina at work")), len(tokens("the admin"))) == (0, 2)
        await sign_in(gina, oauth, "left", "gina at work")
        oauth.replies["/revoke"] = (500, {}, b"")
        try:
            ended = await gina.post("/mcp/servers/left/disconnect")
        finally:
            oauth.replies.clear()
        assert (ended["status"], "answered with the status 500" in ended["problem"]) == (
            "needs_sign_in",
            True,
        )
        await sign_in(gina, oauth, "left", "gina once more")
        changed = await admin.ask("PUT", "/mcp/servers/left", {"url": f"{oauth.url}?v=2"})
        assert (changed.status_code, "revoked" in changed.json()["data"]["problem"]) == (200, False)
        assert (tokens("gina once more"), tokens("the admin")) == ([], [])
        assert (await gina.get("/mcp/servers/left"))["status"] == "needs_sign_in"
        await admin.ask("PUT", "/mcp/servers/left", {"url": oauth.url})
        await sign_in(gina, oauth, "left", "gina again")
        oauth.replies["/revoke"] = (500, {}, b"")
        try:
            changed = await admin.ask("PUT", "/mcp/servers/left", {"oauth": None})
        finally:
            oauth.replies.clear()
        assert "answered with the status 500" in changed.json()["data"]["problem"]
        await sign_in(gina, oauth, "left", "gina again")
        await admin.ask("PUT", "/mcp/servers/left", {"trusted": True})
        assert len(tokens("gina again")) == 4  # Two were not revoked above, and this change ends no sign-in.
        deleted = await admin.ask("DELETE", "/mcp/servers/left")
        assert (deleted.status_code, deleted.json()["message"]) == (200, "deleted")
        assert (len(tokens("gina again")), tokens("the admin")) == (2, [])


async def test_run_waits_for_the_sign_in_of_its_user_through_a_restart(
    server: ServerProcess, oauth: OAuthServer
) -> None:
    both = asks(calls("later", call_id="one"), calls("later", call_id="two"))
    async with (
        AsyncApiClient(server.url) as admin,
        person(server, "carl") as carl,
        person(server, "dora") as dora,
        ScriptedProvider(both) as model,
    ):
        await add_server(admin, oauth, "later")
        await sign_in(dora, oauth, "later", "dora at work")
        await until_ready(dora, "later")
        provider = await admin.connect(model.url)
        await admin.ask("PUT", f"/providers/{provider}", {"is_shared": True})
        conversation = (await carl.post("/conversations", {"provider_id": provider}))["id"]
        run = await carl.start_run(conversation)
        async with carl.follow(run["id"]) as stream:
            asked = await stream.until("question_asked")
        assert "state=" not in json.dumps(asked.data)
        server.kill()
        server.start()
        for client in (admin, carl, dora):
            await client.reconnect_to(server.url)
        questions = await open_questions(carl, run["id"])
        assert [(one["kind"], one["server"]) for one in questions] == [("sign_in", "later")] * 2
        assert questions[0]["authorization_url"].endswith("/ui/tools/mcp/later")
        await dora.post("/mcp/servers/later/disconnect")
        await sign_in(dora, oauth, "later", "dora at home")
        assert len(await open_questions(carl, run["id"])) == 2
        await sign_in(carl, oauth, "later", "carl at work")
        await carl.wait_for_end(run["id"])
        found = results((await carl.messages(conversation))[-1])
        assert [one["data"] for one in found] == ["you are carl at work"] * 2

        await carl.post("/mcp/servers/later/disconnect")
        for unattended in (False, True):
            conversation = (await carl.post("/conversations", {"provider_id": provider}))["id"]
            run = await carl.start_run(conversation, when_asked="deny" if unattended else "wait")
            if not unattended:
                async with carl.follow(run["id"]) as stream:
                    await stream.until("question_asked")
                for question in await open_questions(carl, run["id"]):
                    await answer(carl, question, "skip")
            await carl.wait_for_end(run["id"])
            found = results((await carl.messages(conversation))[-1])
            word = "nobody is there" if unattended else "did not sign in"
            assert [word in one["error"] for one in found] == [True, True]


async def test_shared_sign_in_is_for_administrators_and_tokens_are_nowhere_to_be_read(
    server: ServerProcess, oauth: OAuthServer
) -> None:
    async with (
        AsyncApiClient(server.url) as admin,
        person(server, "emma") as emma,
        ScriptedProvider(asks(calls("office"))) as model,
    ):
        await add_server(admin, oauth, "office", credential="shared")
        refused = await emma.ask("POST", "/mcp/servers/office/connect")
        assert refused.status_code == 403
        await sign_in(admin, oauth, "office", "the office")
        await until_ready(emma, "office")
        called = await emma.post("/mcp/servers/office/tools/call", {"name": "who_am_i"})
        assert called["data"] == "you are the office"

        provider = await admin.connect(model.url)
        await admin.ask("PUT", f"/providers/{provider}", {"is_shared": True})
        conversation = (await emma.post("/conversations", {"provider_id": provider}))["id"]
        run = await emma.start_run(conversation)
        await emma.wait_for_end(run["id"])
        seen = [
            (await client.ask("GET", path)).text
            for client, path in (
                (emma, f"/runs/{run['id']}/events"),
                (emma, f"/conversations/{conversation}/export"),
                (emma, "/auth/me/export"),
                (admin, "/mcp/servers"),
                (admin, "/mcp/servers/office"),
                (admin, "/admin/audit"),
            )
        ]
        await admin.post("/mcp/servers/office/disconnect")
        run = await emma.start_run((await emma.post("/conversations", {"provider_id": provider}))["id"])
        await emma.wait_for_end(run["id"])
    backup = server.folder / "backup.luxx"
    made = run_luxx(
        "backup", str(backup), "--data-dir", str(server.data_dir), cwd=server.folder, env=server.environ
    )
    assert made.returncode == 0, made.stderr
    files = [path for path in server.data_dir.rglob("*") if path.is_file()]
    everything = b"".join(path.read_bytes() for path in [backup, *files])
    assert CANARY in oauth.authorizations[-1]
    for text in (server.output, *seen, everything.decode("latin-1")):
        assert CANARY not in text
    assert b"mcp_grants" not in backup.read_bytes()
