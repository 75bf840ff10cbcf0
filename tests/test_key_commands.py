"""`luxx key create|list|revoke` against a real server."""

import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from forked_luxx import run_luxx
from live_server import LiveServer, live_server, plain_environ, scripted_models

from luxx.providers.scripted import Script

PASSWORD = "a-password-of-a-test-1"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with (
        scripted_models(Script(rules=[])) as provider,
        live_server(tmp_path_factory.mktemp("server"), provider.url) as running,
    ):
        yield running


@pytest.fixture
def user(server: LiveServer, request: pytest.FixtureRequest) -> str:
    """The access token of a new user."""
    body = {"username": f"user{abs(hash(request.node.name))}"[:30], "password": PASSWORD}
    answer = httpx.post(f"{server.url}/auth/register", json=body, trust_env=False)
    assert answer.is_success, answer.text
    return str(answer.json()["data"]["access_token"])


def run(server: LiveServer, token: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_luxx(*arguments, cwd=server.folder, env=plain_environ(LUXX_URL=server.url, LUXX_TOKEN=token))


def only_key(server: LiveServer, token: str) -> dict[str, str]:
    headers = {"authorization": f"Bearer {token}"}
    answer = httpx.get(f"{server.url}/keys", headers=headers, trust_env=False)
    (key,) = answer.json()["data"]["items"]
    return key


def test_a_created_key_is_the_only_line_on_stdout_and_signs_in(server: LiveServer, user: str) -> None:
    created = run(server, user, "key", "create", "nightly", "--scope", "read", "--expires", "90d")
    assert (created.returncode, created.stdout.count("\n")) == (0, 1), created
    assert "not shown again" in created.stderr
    key = created.stdout.strip()
    assert run(server, key, "agent", "list").returncode == 0
    stored = only_key(server, user)
    assert stored["scopes"] == ["read"]
    in_90_days = datetime.now(UTC) + timedelta(days=90)
    assert abs(datetime.fromisoformat(stored["expires_at"]) - in_90_days) < timedelta(minutes=5)
    listed = run(server, key, "key", "list").stdout
    assert listed.split("\t")[:4] == [stored["id"], "nightly", stored["prefix"] + "…", "read"]
    assert key not in listed
    refused = run(server, key, "key", "create", "another")
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (1, "", 1)
    assert "an API key cannot do this" in refused.stderr


@pytest.mark.parametrize("by", ["name", "name in capitals", "id"])
def test_a_key_is_revoked_by_its(by: str, server: LiveServer, user: str) -> None:
    key = run(server, user, "key", "create", "deploy").stdout.strip()
    stored = only_key(server, user)
    assert (stored["scopes"], stored["expires_at"]) == (["chat"], None)
    named = {"name": "deploy", "name in capitals": "DEPLOY", "id": stored["id"]}[by]
    revoked = run(server, user, "key", "revoke", named)
    assert (revoked.returncode, revoked.stdout, revoked.stderr) == (0, "revoked deploy\n", "")
    refused = run(server, key, "key", "list")
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "was revoked" in refused.stderr
    missing = run(server, user, "key", "revoke", named)
    assert (missing.returncode, missing.stderr.count("\n")) == (1, 1)
    assert "luxx key list" in missing.stderr


@pytest.mark.parametrize("when", ["soon", "90", "d", "2027-13-01", "99999d", "9999-12-31T23:59:59-23:00", ""])
def test_an_expiry_that_is_no_time_is_refused_before_the_server_is_asked(
    when: str, server: LiveServer
) -> None:
    refused = run(server, "luxx_no-key", "key", "create", "nightly", "--expires", when)
    assert refused.returncode == 2
    assert "write days from now (90d)" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    ("when", "expected"),
    [("2097-01-31", "2097-01-31T00:00:00Z"), ("2097-01-31T12:00:00+02:00", "2097-01-31T10:00:00Z")],
)
def test_an_expiry_is_a_date_or_a_time(when: str, expected: str, server: LiveServer, user: str) -> None:
    assert run(server, user, "key", "create", "nightly", "--expires", when).returncode == 0
    assert only_key(server, user)["expires_at"] == expected


def test_the_servers_refusals_are_one_sentence(server: LiveServer, user: str) -> None:
    run(server, user, "key", "create", "nightly")
    for arguments in (("nightly",), (" ",), ("past", "--expires", "2020-01-01")):
        refused = run(server, user, "key", "create", *arguments)
        assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (1, "", 1), arguments
