"""`luxx key create|list|revoke` against a real server."""

from datetime import UTC, datetime, timedelta

import httpx
import pytest
from api.server_process import ServerProcess
from command_line import run


def only_key(server: ServerProcess, token: str) -> dict[str, str]:
    headers = {"authorization": f"Bearer {token}"}
    answer = httpx.get(f"{server.url}/keys", headers=headers, trust_env=False)
    (key,) = answer.json()["data"]["items"]
    return key


def test_a_created_key_is_the_only_line_on_stdout_and_signs_in(
    plain_server: ServerProcess, new_user: str
) -> None:
    created = run(plain_server, new_user, "key", "create", "nightly", "--scope", "read", "--expires", "90d")
    assert (created.returncode, created.stdout.count("\n")) == (0, 1), created
    assert "not shown again" in created.stderr
    key = created.stdout.strip()
    assert run(plain_server, key, "agent", "list").returncode == 0
    stored = only_key(plain_server, new_user)
    assert stored["scopes"] == ["read"]
    in_90_days = datetime.now(UTC) + timedelta(days=90)
    assert abs(datetime.fromisoformat(stored["expires_at"]) - in_90_days) < timedelta(minutes=5)
    listed = run(plain_server, key, "key", "list").stdout
    assert listed.split("\t")[:4] == [stored["id"], "nightly", stored["prefix"] + "…", "read"]
    assert key not in listed
    refused = run(plain_server, key, "key", "create", "another")
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (1, "", 1)
    assert "an API key cannot do this" in refused.stderr


@pytest.mark.parametrize("by", ["name", "name in capitals", "id"])
def test_a_key_is_revoked_by_its(by: str, plain_server: ServerProcess, new_user: str) -> None:
    key = run(plain_server, new_user, "key", "create", "deploy").stdout.strip()
    stored = only_key(plain_server, new_user)
    assert (stored["scopes"], stored["expires_at"]) == (["chat"], None)
    named = {"name": "deploy", "name in capitals": "DEPLOY", "id": stored["id"]}[by]
    revoked = run(plain_server, new_user, "key", "revoke", named)
    assert (revoked.returncode, revoked.stdout, revoked.stderr) == (0, "revoked deploy\n", "")
    refused = run(plain_server, key, "key", "list")
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "was revoked" in refused.stderr
    missing = run(plain_server, new_user, "key", "revoke", named)
    assert (missing.returncode, missing.stderr.count("\n")) == (1, 1)
    assert "luxx key list" in missing.stderr


@pytest.mark.parametrize("when", ["soon", "90", "d", "2027-13-01", "99999d", "9999-12-31T23:59:59-23:00", ""])
def test_an_expiry_that_is_no_time_is_refused_before_the_server_is_asked(
    when: str, plain_server: ServerProcess
) -> None:
    refused = run(plain_server, "luxx_no-key", "key", "create", "nightly", "--expires", when)
    assert refused.returncode == 2
    assert "write days from now (90d)" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    ("when", "expected"),
    [("2097-01-31", "2097-01-31T00:00:00Z"), ("2097-01-31T12:00:00+02:00", "2097-01-31T10:00:00Z")],
)
def test_an_expiry_is_a_date_or_a_time(
    when: str, expected: str, plain_server: ServerProcess, new_user: str
) -> None:
    assert run(plain_server, new_user, "key", "create", "nightly", "--expires", when).returncode == 0
    assert only_key(plain_server, new_user)["expires_at"] == expected


def test_the_servers_refusals_are_one_sentence(plain_server: ServerProcess, new_user: str) -> None:
    run(plain_server, new_user, "key", "create", "nightly")
    for arguments in (("nightly",), (" ",), ("past", "--expires", "2020-01-01")):
        refused = run(plain_server, new_user, "key", "create", *arguments)
        assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (1, "", 1), arguments
