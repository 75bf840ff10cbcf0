"""Signing in at an MCP server with OAuth: what is refused, who gets which token, and refreshing it."""

import asyncio
import json
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from migrated_databases import POSTGRESQL_HEAVY, new_ready_database
from sqlalchemy import delete, func, select, update

from luxx.domain.accounts.models import User
from luxx.domain.mcp.models import McpServerRow
from luxx.domain.mcp.oauth.models import McpFlowRow, McpGrantRow
from luxx.domain.mcp.oauth.requests import ClientIdentity, IssuedTokens, client_document
from luxx.domain.mcp.sign_in import NeedsSignIn, RefusedRequest
from luxx.errors import Conflict, LuxxError, NotFound, ToolFailed, Unreachable
from mcp_servers.oauth_server import CANARY, OAuthServer
from mcp_servers.sign_in_harness import ANN, BASE_URL, BOB, EVE, LEASE_SECONDS, SECRET, SignInHarness

ISSUER_PATH = "/.well-known/oauth-authorization-server"
RESOURCE_PATH = "/.well-known/oauth-protected-resource/mcp"
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def oauth() -> Iterator[OAuthServer]:
    with OAuthServer() as server:
        yield server


@pytest.fixture(params=POSTGRESQL_HEAVY)
def harness(request: pytest.FixtureRequest, tmp_path: Path, oauth: OAuthServer) -> Iterator[SignInHarness]:
    oauth.replies.clear()
    oauth.forms.clear()
    database = ""
    if request.param == "postgresql":
        name = f"sign_in_{uuid.uuid4().hex}"
        database = new_ready_database(request.getfixturevalue("postgresql"), name)
    harness = SignInHarness(tmp_path, oauth.url, allowed=[f"127.0.0.1:{oauth.port}"], database=database)
    yield harness
    harness.close()


async def test_sign_in_gives_each_user_a_grant_of_their_own(
    harness: SignInHarness, oauth: OAuthServer
) -> None:
    for caller, person in ((ANN, "ann at work"), (BOB, "bob at work")):
        with pytest.raises(NeedsSignIn):
            await harness.grants.authorization(harness.server_id, caller.user_id)
        answer = oauth.agree(await harness.begin(caller), person)
        await harness.complete(caller, answer)
    for caller, person in ((ANN, "ann at work"), (BOB, "bob at work")):
        found = await harness.grants.authorization(harness.server_id, caller.user_id)
        assert found is not None
        token = oauth.issuer.access[found.header.removeprefix("Bearer ")]
        assert token.subject == person
        assert token.resource == oauth.url
    assert [form["resource"] for form in oauth.forms] == [[oauth.url]] * 2


async def test_three_processes_with_twenty_calls_refresh_an_expired_token_once(
    harness: SignInHarness, oauth: OAuthServer
) -> None:
    await harness.complete(ANN, oauth.agree(await harness.begin()))
    harness.expire()
    processes = [harness.more_grants() for _ in range(3)]
    calls = [grants.authorization(harness.server_id, ANN.user_id) for grants in processes for _ in range(20)]
    found = await asyncio.gather(*calls)
    assert len({one.header for one in found if one is not None}) == 1
    assert oauth.refreshes == 1
    assert oauth.issuer.replays == 0


def metadata(oauth: OAuthServer, **changes: Any) -> bytes:
    """The metadata of the authorization server with other values."""
    facts = {
        "issuer": oauth.issuer.url,
        "authorization_endpoint": f"{oauth.origin}/authorize",
        "token_endpoint": f"{oauth.origin}/token",
        "registration_endpoint": f"{oauth.origin}/register",
        "code_challenge_methods_supported": ["S256"],
    }
    return json.dumps(facts | changes).encode()


async def test_sign_in_that_is_not_what_was_asked_for_is_refused_without_a_token_request(
    harness: SignInHarness, oauth: OAuthServer
) -> None:
    async def refused(kind: type[LuxxError], word: str, answer: dict[str, str], caller: Any = ANN) -> None:
        with pytest.raises(kind, match=word):
            await harness.complete(caller, answer)
        assert oauth.forms == []

    answer = oauth.agree(await harness.begin())
    for stranger in (BOB, EVE):
        await refused(NotFound, "no sign-in with this state", answer, stranger)
    await refused(NotFound, "no sign-in with this state", answer | {"state": "made-up"})
    await harness.complete(ANN, answer)
    oauth.forms.clear()
    await refused(Conflict, "completed already", answer)

    answer = oauth.agree(await harness.begin())
    await refused(Conflict, "nothing was sent", answer | {"iss": "https://evil.example/"})
    answer = oauth.agree(await harness.begin())
    oauth.replies[ISSUER_PATH] = (200, JSON, metadata(oauth, token_endpoint=f"{oauth.origin}/other"))
    await refused(Conflict, "changed meanwhile", answer)
    oauth.replies.clear()

    answer = oauth.agree(await harness.begin())
    six_minutes_ago = time.time() - 360 + 300
    harness.store.write_now(
        lambda session: session.execute(update(McpFlowRow).values(expires_at=six_minutes_ago))
    )
    await refused(Conflict, "longer than 5 minutes", answer)

    answer = oauth.agree(await harness.begin())
    harness.store.write_now(
        lambda session: session.execute(update(McpServerRow).values(url="https://new.example/"))
    )
    oauth.forms.clear()
    with pytest.raises(Conflict, match="the MCP server has changed"):
        await harness.complete(ANN, answer)


async def test_servers_without_what_a_safe_sign_in_needs_are_refused(
    harness: SignInHarness, oauth: OAuthServer
) -> None:
    elsewhere = json.dumps({"resource": "https://other.example/mcp", "authorization_servers": [oauth.origin]})
    plain = json.dumps({"resource": oauth.url, "authorization_servers": ["http://issuer.example"]})
    cases: list[tuple[str, int, dict[str, str], bytes, str]] = [
        (ISSUER_PATH, 200, JSON, metadata(oauth, code_challenge_methods_supported=["plain"]), "PKCE"),
        (ISSUER_PATH, 200, JSON, metadata(oauth, code_challenge_methods_supported=None), "PKCE"),
        (ISSUER_PATH, 200, JSON, metadata(oauth, issuer="https://evil.example/"), "an attacker"),
        (ISSUER_PATH, 200, JSON, metadata(oauth, registration_endpoint=None), "registers no clients"),
        (ISSUER_PATH, 200, JSON, metadata(oauth, token_endpoint="http://tokens.example/"), "not encrypted"),
        (ISSUER_PATH, 200, JSON, b"[]", "cannot be read"),
        (ISSUER_PATH, 200, JSON, b" " * 300_000, "more than 256 KiB"),
        (ISSUER_PATH, 302, {"location": "https://evil.example/"}, b"", "another origin"),
        (RESOURCE_PATH, 200, JSON, elsewhere.encode(), "another resource"),
        (RESOURCE_PATH, 200, JSON, plain.encode(), "not encrypted"),
        (RESOURCE_PATH, 307, {"location": f"http://localhost:{oauth.port}/"}, b"", "another origin"),
        ("/register", 400, JSON, b'{"error": "invalid_client_metadata"}', "did not register Luxx"),
        ("/register", 307, {"location": "/elsewhere"}, b"", "redirects"),
    ]
    for path, status, headers, body, word in cases:
        oauth.replies = {path: (status, headers, body)}
        with pytest.raises(Conflict, match=word):
            await harness.begin()
    oauth.replies = {}
    assert (await harness.begin()).startswith(f"{oauth.origin}/authorize?")


async def test_luxx_is_the_client_that_was_configured_or_describes_or_registers_itself(
    harness: SignInHarness, oauth: OAuthServer
) -> None:
    def asked(address: str) -> dict[str, str]:
        query = parse_qs(urlsplit(address).query)
        return {name: query[name][0] for name in ("client_id", "redirect_uri", "scope")}

    registered = asked(await harness.begin())
    assert registered == asked(await harness.begin())
    assert oauth.issuer.clients.keys() >= {registered["client_id"]}
    assert registered["redirect_uri"] == f"{BASE_URL}/ui/mcp/callback"
    public = "https://luxx.example.org"
    oauth.replies = {ISSUER_PATH: (200, JSON, metadata(oauth, client_id_metadata_document_supported=True))}
    described = asked(await harness.flows.begin(ANN, harness.server_id, public))
    assert described["client_id"] == f"{public}/mcp/oauth/client.json" == client_document(public).client_id
    assert client_document(public).redirect_uris == [described["redirect_uri"]]
    known = {"client_id": "by-hand", "scopes": ["people", "admin"], "has_secret": False}
    configure = update(McpServerRow).values(oauth=json.dumps(known))
    harness.store.write_now(lambda session: session.execute(configure))
    assert asked(await harness.begin()) | {"redirect_uri": ""} == {
        "client_id": "by-hand",
        "redirect_uri": "",
        "scope": "people admin",
    }
    for unsafe in ("http://luxx.example.org", "http://10.0.0.7:8000", "http://localhost.evil.example"):
        with pytest.raises(Conflict, match=r"set server\.public_url"):
            await harness.flows.begin(ANN, harness.server_id, unsafe)


class Listener:
    """Counts the connections to a port that no administrator has allowed."""

    def __init__(self) -> None:
        self.connections = 0
        self.port = 0

    @asynccontextmanager
    async def serve(self) -> AsyncGenerator["Listener"]:
        def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.connections += 1
            writer.close()

        server = await asyncio.start_server(count, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield self


async def test_addresses_that_strangers_name_are_not_connected_to(
    harness: SignInHarness, oauth: OAuthServer, tmp_path: Path
) -> None:
    async with Listener().serve() as inside:
        there = f"http://127.0.0.1:{inside.port}"
        other_issuer = json.dumps({"resource": oauth.url, "authorization_servers": [there]}).encode()
        challenge = {"www-authenticate": f'Bearer resource_metadata="{there}/meta"'}
        replies = [
            (RESOURCE_PATH, (200, JSON, other_issuer)),
            ("/mcp", (401, challenge, b"")),
            (ISSUER_PATH, (302, {"location": f"{there}/"}, b"")),
            (ISSUER_PATH, (200, JSON, metadata(oauth, registration_endpoint=f"{there}/register"))),
        ]
        for path, reply in replies:
            oauth.replies = {path: reply}
            with pytest.raises(Conflict):
                await harness.begin()
        oauth.replies = {ISSUER_PATH: (200, JSON, metadata(oauth, token_endpoint=f"{there}/token"))}
        answer = oauth.agree(await harness.begin())
        with pytest.raises(Conflict, match="private address"):
            await harness.complete(ANN, answer)
        oauth.replies = {}
        await harness.complete(ANN, oauth.agree(await harness.begin()))
        assert inside.connections == 0
        # The same port is reached where an administrator has allowed it.
        allowed = [f"127.0.0.1:{port}" for port in (oauth.port, inside.port)]
        (tmp_path / "control").mkdir()
        control = SignInHarness(tmp_path / "control", oauth.url, allowed=allowed)
        oauth.replies = {RESOURCE_PATH: (200, JSON, other_issuer)}
        with pytest.raises(Unreachable):
            await control.begin()
        control.close()
        assert inside.connections > 0


async def test_refresh_whose_process_dies_after_the_answer_needs_a_new_sign_in(
    harness: SignInHarness, oauth: OAuthServer
) -> None:
    await harness.complete(ANN, oauth.agree(await harness.begin()))
    harness.expire()
    answered = asyncio.Event()
    real = harness.http.tokens

    async def dies_after_the_answer(
        endpoint: str, client: ClientIdentity, form: Mapping[str, str]
    ) -> IssuedTokens:
        await real(endpoint, client, form)
        answered.set()
        await asyncio.Event().wait()
        raise AssertionError

    harness.http.tokens = dies_after_the_answer
    dying = asyncio.create_task(harness.grants.authorization(harness.server_id, ANN.user_id))
    await answered.wait()
    harness.http.tokens = real
    others = [harness.more_grants().authorization(harness.server_id, ANN.user_id) for _ in range(2)]
    found = await asyncio.gather(*others, return_exceptions=True)
    assert [type(one) for one in found] == [NeedsSignIn] * 2
    assert (oauth.refreshes, oauth.issuer.replays) == (1, 0)
    dying.cancel()
    await harness.complete(ANN, oauth.agree(await harness.begin()))
    assert await harness.grants.authorization(harness.server_id, ANN.user_id)


@pytest.mark.heavy
@pytest.mark.parametrize("harness", ["postgresql"], indirect=True)
async def test_three_real_processes_refresh_once_and_one_that_is_killed_leaves_no_spent_token_behind(
    harness: SignInHarness, oauth: OAuthServer
) -> None:
    def process(calls: int, *options: str) -> subprocess.Popen[str]:
        url = harness.store.engine.url.render_as_string(hide_password=False)
        arguments = [
            url,
            SECRET,
            str(LEASE_SECONDS),
            str(oauth.port),
            harness.server_id,
            str(ANN.user_id),
            str(calls),
            *options,
        ]
        command = [sys.executable, "-m", "mcp_servers.refreshing_process", *arguments]
        environ = {"PYTHONPATH": str(Path(__file__).parents[1])}
        return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, env=environ)

    await harness.complete(ANN, oauth.agree(await harness.begin()))
    harness.expire()
    processes = [process(20) for _ in range(3)]
    printed = [(await asyncio.to_thread(one.communicate))[0] for one in processes]
    assert printed == ["20 calls with 1 token, version 2\n"] * 3
    assert (oauth.refreshes, oauth.issuer.replays) == (1, 0)

    harness.expire()
    dying = process(1, "dies")
    await asyncio.to_thread(dying.communicate)
    assert dying.returncode == -signal.SIGKILL
    with pytest.raises(NeedsSignIn):
        await harness.grants.authorization(harness.server_id, ANN.user_id)
    assert (oauth.refreshes, oauth.issuer.replays) == (2, 0)


async def test_refresh_says_what_failed_and_keeps_what_can_be_used(
    harness: SignInHarness, oauth: OAuthServer
) -> None:
    cases: list[tuple[int, bytes, type[LuxxError], bool]] = [
        (503, b"", ToolFailed, True),
        (429, b"", ToolFailed, True),
        (500, b"", NeedsSignIn, False),
        (400, b'{"error": "invalid_grant", "error_description": "TOKEN is old"}', NeedsSignIn, False),
        (401, b'{"error": "invalid_client"}', NeedsSignIn, False),
        (200, b"nonsense", NeedsSignIn, False),
        (307, b"", NeedsSignIn, False),
    ]
    for status, body, kind, is_kept in cases:
        await harness.complete(ANN, oauth.agree(await harness.begin()))
        harness.expire()
        (refresh_token,) = list(oauth.issuer.refresh)[-1:]
        reply = body.replace(b"TOKEN", refresh_token.encode())
        oauth.replies = {"/token": (status, JSON | {"location": "/elsewhere"}, reply)}
        with pytest.raises(kind) as raised:
            await harness.grants.authorization(harness.server_id, ANN.user_id)
        assert type(raised.value) is kind, status
        assert CANARY not in raised.value.message
        oauth.replies = {}
        if is_kept:
            assert await harness.grants.authorization(harness.server_id, ANN.user_id)
        else:
            with pytest.raises(NeedsSignIn):
                await harness.grants.authorization(harness.server_id, ANN.user_id)


async def test_refused_token_is_read_again_refreshed_once_or_widened_at_most_twice(
    harness: SignInHarness, oauth: OAuthServer
) -> None:
    await harness.complete(ANN, oauth.agree(await harness.begin()))
    first = await harness.grants.authorization(harness.server_id, ANN.user_id)
    assert first is not None
    refused = RefusedRequest(status=401, challenge="Bearer", version=first.version)
    calls = [harness.grants.refused(harness.server_id, ANN.user_id, refused) for _ in range(4)]
    assert len({one.header for one in await asyncio.gather(*calls)} - {first.header}) == 1
    again = await harness.grants.refused(harness.server_id, ANN.user_id, refused)
    assert again.version == first.version + 1
    assert oauth.refreshes == 1

    for scope in ("admin", "root"):
        challenge = f'Bearer error="insufficient_scope", scope="people {scope}"'
        wanted = RefusedRequest(status=403, challenge=challenge, version=again.version)
        for _ in range(2):
            with pytest.raises(NeedsSignIn):
                await harness.grants.refused(harness.server_id, ANN.user_id, wanted)
        assert f"people+{scope}" in await harness.begin()
        harness.change(wanted="", scopes="people")
    with pytest.raises(ToolFailed, match="wants more rights") as raised:
        await harness.grants.refused(harness.server_id, ANN.user_id, wanted)
    assert not isinstance(raised.value, NeedsSignIn)


async def test_grants_go_with_their_url_user_and_server_and_nothing_readable_is_stored(
    harness: SignInHarness, oauth: OAuthServer
) -> None:
    def count(row: type[Any]) -> int | None:
        return harness.store.read_rows_now(
            lambda connection: connection.scalar(select(func.count()).select_from(row))
        )

    def write(statement: Any) -> None:
        harness.store.write_rows_now(lambda connection: connection.execute(statement))

    for caller in (ANN, BOB):
        await harness.complete(caller, oauth.agree(await harness.begin(caller)))
    if harness.store.is_sqlite:
        folder = Path(str(harness.store.engine.url.database)).parent
        assert CANARY.encode() not in b"".join(path.read_bytes() for path in folder.glob("t.db*"))
    write(update(McpServerRow).values(url="https://new.example/mcp"))
    with pytest.raises(NeedsSignIn):
        await harness.grants.authorization(harness.server_id, ANN.user_id)
    write(delete(User).where(User.id == ANN.user_id))
    assert (count(McpGrantRow), count(McpFlowRow)) == (1, 1)
    write(delete(McpServerRow))
    assert (count(McpGrantRow), count(McpFlowRow)) == (0, 0)
