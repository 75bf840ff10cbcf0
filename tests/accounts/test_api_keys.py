"""Personal API keys: scopes, expiry, storage, and what ends them. `api/test_keys.py` has streams, sockets."""

import json
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event

from luxx.domain.accounts.api_keys import MAX_KEYS_PER_USER
from luxx.domain.accounts.authentication import TicketService
from luxx.domain.accounts.caller import Peer
from luxx.errors import NotSignedIn
from luxx.infra.clock import utc_now

PEER = Peer(address="127.0.0.1", is_local=True, is_direct=True)
NEW_PASSWORD = "another correct horse"


async def created(account_server: Any, token: str, name: str = "ci", **body: Any) -> dict[str, Any]:
    body = {"name": name, "scopes": ["read"], **body}
    answer = await account_server.ask("POST", "/keys", body, token=token)
    assert answer.status_code == 201, answer.text
    return answer.json()["data"]


def statements_about_keys(account_server: Any) -> list[tuple[str, Any]]:
    """Collects the statements that name the table, with their parameters. Call it before any other, because
    connections that are open already report nothing."""
    collected: list[tuple[str, Any]] = []

    def collect(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_rest: Any) -> None:
        if "api_keys" in statement:
            collected.append((statement, parameters))

    for engine in (account_server.store.engine, account_server.store.reading):
        event.listen(engine, "before_cursor_execute", collect)
    return collected


async def status_with(account_server: Any, key: str, method: str = "GET", path: str = "/auth/me") -> int:
    return (await account_server.ask(method, path, token=key)).status_code


async def kind_with(account_server: Any, key: str, method: str = "GET", path: str = "/auth/me") -> str:
    answer = await account_server.ask(method, path, token=key)
    assert answer.is_error, answer.text
    return answer.json()["detail"]["kind"]


async def test_a_key_is_shown_once_and_stored_as_a_hash(account_server):
    token = (await account_server.join("ada"))["access_token"]
    key = (await created(account_server, token))["key"]
    assert await status_with(account_server, key) == 200
    (listed,) = (await account_server.ask("GET", "/keys", token=token)).json()["data"]["items"]
    assert key.startswith(listed["prefix"])
    assert "key" not in listed
    secret = key.rpartition("_")[2]
    assert len(secret) == 64
    with account_server.store.engine.connect() as connection:
        (row,) = connection.exec_driver_sql("SELECT * FROM api_keys").all()
        entries = connection.exec_driver_sql("SELECT * FROM audit_log").all()
    assert secret not in str(row)
    assert secret not in str(entries)


@pytest.mark.parametrize("change", ["one digit", "shorter", "longer", "upper case", "no secret", "not ASCII"])
async def test_a_key_that_differs_is_refused(account_server, change):
    token = (await account_server.join("ada"))["access_token"]
    key = (await created(account_server, token))["key"]
    wrong = {
        "one digit": key[:-1] + ("0" if key[-1] != "0" else "1"),
        "shorter": key[:-1],
        "longer": key + "0",
        "upper case": key.upper().replace("LUXX", "luxx"),
        "no secret": key[:18],
        "not ASCII": key[:-1] + "\u00b2",
    }[change]
    with pytest.raises(NotSignedIn) as refused:
        await account_server.authenticator.authenticate(wrong, PEER)
    assert refused.value.kind == "key_invalid"


async def test_a_key_ends_at_its_expiry(account_server):
    token = (await account_server.join("ada"))["access_token"]
    until = (utc_now() + timedelta(minutes=20)).isoformat()
    key = (await created(account_server, token, expires_at=until))["key"]
    caller = await account_server.authenticator.authenticate(key, PEER)
    assert await account_server.authenticator.revoked_callers([caller]) == set()
    account_server.clock.ahead = timedelta(minutes=21)
    assert await kind_with(account_server, key) == "key_expired"
    assert await account_server.authenticator.revoked_callers([caller]) == {caller}
    (listed,) = (await account_server.ask("GET", "/keys", token=token)).json()["data"]["items"]
    assert listed["expires_at"].endswith("Z")


async def test_a_key_stays_valid_when_the_password_changes_or_its_user_signs_out(account_server):
    token = (await account_server.join("ada"))["access_token"]
    key = (await created(account_server, token))["key"]
    body = {"current_password": "correct horse", "new_password": NEW_PASSWORD}
    assert (await account_server.ask("POST", "/auth/password", body, token=token)).status_code == 200
    assert await status_with(account_server, token, "POST", "/auth/logout") == 200
    assert await status_with(account_server, key) == 200


@pytest.mark.parametrize("how", ["is disabled", "is deleted", "revokes it"])
async def test_a_key_stops_at_once_when_its_user(account_server, how):
    admin = (await account_server.join("root", level=4))["access_token"]
    user = await account_server.join("ada")
    new = await created(account_server, user["access_token"])
    caller = await account_server.authenticator.authenticate(new["key"], PEER)
    path = f"/auth/users/{user['user']['id']}"
    match how:
        case "is disabled":
            answer = await account_server.ask("PUT", path, {"is_active": False}, token=admin)
        case "is deleted":
            answer = await account_server.ask("DELETE", path, token=admin)
        case _:
            answer = await account_server.ask("DELETE", f"/keys/{new['id']}", token=user["access_token"])
    assert answer.status_code == 200, answer.text
    expected = "account_disabled" if how == "is disabled" else "key_invalid"
    assert await kind_with(account_server, new["key"]) == expected
    assert await account_server.authenticator.revoked_callers([caller]) == {caller}


async def test_a_key_has_the_level_that_its_user_has_now(account_server):
    user = await account_server.join("ada", level=4)
    root = (await account_server.join("root", level=4))["access_token"]
    key = (await created(account_server, user["access_token"], scopes=["admin"]))["key"]
    assert await status_with(account_server, key, path="/auth/users") == 200
    path = f"/auth/users/{user['user']['id']}"
    demoted = await account_server.ask("PUT", path, {"permission_level": 2}, token=root)
    assert demoted.status_code == 200
    assert await kind_with(account_server, key, path="/auth/users") == "not_allowed"


async def test_a_key_is_refused_while_its_user_must_change_the_password(account_server):
    root = (await account_server.join("root", level=4))["access_token"]
    user = await account_server.join("ada")
    key = (await created(account_server, user["access_token"]))["key"]
    path = f"/auth/users/{user['user']['id']}/password"
    reset = await account_server.ask("POST", path, {"new_password": NEW_PASSWORD}, token=root)
    assert reset.status_code == 200
    assert await kind_with(account_server, key, path="/settings") == "password_change_needed"


@pytest.mark.parametrize("scopes", [["read"], ["chat"], ["admin"], ["read", "chat", "admin"]])
async def test_no_key_may_create_keys_change_the_password_sign_out_or_refresh(account_server, scopes):
    user = await account_server.join("ada", level=4)
    key = (await created(account_server, user["access_token"], scopes=scopes))["key"]
    passwords = {"current_password": "correct horse", "new_password": NEW_PASSWORD}
    for path, body in (
        ("/keys", {"name": "more", "scopes": ["read"]}), ("/auth/password", passwords), ("/auth/logout", None)
    ):  # fmt: skip
        answer = await account_server.ask("POST", path, body, token=key)
        assert (answer.status_code, answer.json()["detail"]["kind"]) == (403, "key_refused"), path
    refreshed = await account_server.ask("POST", "/auth/refresh", {"refresh_token": key})
    assert refreshed.status_code == 401
    own = f"/auth/users/{user['user']['id']}/password"
    reset = await account_server.ask("POST", own, {"new_password": NEW_PASSWORD}, token=key)
    assert reset.is_error
    again = {"username": "ada", "password": "correct horse"}
    assert (await account_server.ask("POST", "/auth/login", again)).status_code == 200
    assert await status_with(account_server, user["access_token"]) == 200


async def test_a_key_without_the_scope_admin_changes_no_settings(account_server):
    token = (await account_server.join("ada"))["access_token"]
    change = {"temperature": 0.5}
    for scope, status in (("read", 403), ("chat", 403), ("admin", 200)):
        key = (await created(account_server, token, scope, scopes=[scope]))["key"]
        answer = await account_server.ask("PUT", "/settings", change, token=key)
        assert answer.status_code == status, scope
        if answer.is_error:
            assert answer.json()["detail"]["kind"] == "key_scope"
            assert "'admin'" in answer.json()["error"]
        assert await status_with(account_server, key, "GET", "/settings") == 200
        assert await status_with(account_server, key, "HEAD", "/settings") in (200, 405)


async def test_the_last_use_is_written_at_most_once_an_hour(account_server):
    statements = statements_about_keys(account_server)
    token = (await account_server.join("ada"))["access_token"]
    new = await created(account_server, token)
    assert new["last_used_at"] is None

    async def last_use() -> Any:
        listed = await account_server.ask("GET", "/keys", token=token)
        return listed.json()["data"]["items"][0]["last_used_at"]

    await status_with(account_server, new["key"])
    first = await last_use()
    assert first is not None
    account_server.clock.ahead = timedelta(minutes=29)
    statements.clear()
    await status_with(account_server, new["key"])
    ((statement, _parameters),) = statements
    assert statement.startswith("SELECT")
    assert await last_use() == first
    account_server.clock.ahead = timedelta(minutes=61)
    await status_with(account_server, new["key"])
    token = (await account_server.enter("ada"))["access_token"]
    assert await last_use() > first


async def test_the_read_of_a_key_uses_an_index(account_server):
    statements = statements_about_keys(account_server)
    token = (await account_server.join("ada"))["access_token"]
    key = (await created(account_server, token))["key"]
    statements.clear()
    await account_server.authenticator.authenticate(key, PEER)
    statement, parameters = statements[0]
    with account_server.store.engine.connect() as connection:
        plan = str(connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all())
    assert "SCAN" not in plan, plan


async def test_requests_with_keys_count_towards_the_limit_of_their_user(build_server):
    account_server = build_server(limits={"requests_per_minute": 5})
    token = (await account_server.join("ada"))["access_token"]
    key = (await created(account_server, token))["key"]
    statuses = [await status_with(account_server, key) for _ in range(5)]
    assert statuses == [200] * 4 + [429]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""), ("name", " "), ("name", "a\nb"), ("name", "x" * 101), ("name", None),
        ("scopes", []), ("scopes", ["write"]), ("scopes", "read"), ("scopes", None),
        ("expires_at", "2020-01-01T00:00:00Z"), ("expires_at", "tomorrow"), ("expires_at", 3),
        ("expires_at", "2099-01-01T00:00:00"), ("expires_at", "9999-12-31T23:59:59-23:00"),
        ("expires_at", "0001-01-01T00:00:00+23:00"), ("user_id", 1),
    ],
)  # fmt: skip
async def test_a_bad_key_is_refused_with_its_field(account_server, field, value):
    token = (await account_server.join("ada"))["access_token"]
    body = {"name": "ci", "scopes": ["read"], field: value}
    answer = await account_server.ask("POST", "/keys", body, token=token)
    assert answer.status_code == 400, answer.text
    (path,) = answer.json()["detail"]["fields"]
    assert path.startswith(f"$.{field}")
    assert (await account_server.ask("GET", "/keys", token=token)).json()["data"]["total"] == 0


async def test_names_are_unique_for_a_user_and_keys_are_limited(account_server):
    token = (await account_server.join("ada"))["access_token"]
    other = (await account_server.join("ben"))["access_token"]
    await created(account_server, token, "Nightly Build")
    await created(account_server, other, "Nightly Build")
    body = {"name": " nightly build ", "scopes": ["read", "read"]}
    taken = await account_server.ask("POST", "/keys", body, token=token)
    assert (taken.status_code, taken.json()["detail"]["kind"]) == (409, "key_name_taken")
    for number in range(1, MAX_KEYS_PER_USER):
        await created(account_server, token, f"key {number}")
    full = await account_server.ask("POST", "/keys", {"name": "more", "scopes": ["read"]}, token=token)
    assert (full.status_code, full.json()["detail"]["kind"]) == (409, "too_many_keys")


async def test_the_audit_log_has_creation_and_revocation(account_server):
    token = (await account_server.join("root", level=4))["access_token"]
    new = await created(account_server, token, "deploy", scopes=["chat", "read", "chat"])
    assert new["scopes"] == ["read", "chat"]
    await account_server.ask("DELETE", f"/keys/{new['id']}", token=token)
    with account_server.store.engine.connect() as connection:
        entries = connection.exec_driver_sql(
            "SELECT action, target_type, target_id, detail FROM audit_log "
            "WHERE action LIKE 'key_%' ORDER BY id"
        ).all()
    assert [entry[:3] for entry in entries] == [
        ("key_create", "key", new["id"]), ("key_revoke", "key", new["id"])
    ]  # fmt: skip
    assert json.loads(entries[0].detail) == {"name": "deploy", "added": ["read", "chat"]}
    assert json.loads(entries[1].detail) == {"name": "deploy"}


async def test_a_ticket_of_a_key_is_valid_until_the_key_is_revoked(account_server):
    token = (await account_server.join("ada"))["access_token"]
    new = await created(account_server, token)
    caller = await account_server.authenticator.authenticate(new["key"], PEER)
    tickets = TicketService(account_server.store, account_server.authenticator, clock=account_server.clock)
    used, revoked = await tickets.issue(caller), await tickets.issue(caller)
    assert await tickets.redeem(used.ticket, PEER) == caller
    assert await account_server.authenticator.recheck(caller) == caller
    await account_server.ask("DELETE", f"/keys/{new['id']}", token=token)
    with pytest.raises(NotSignedIn):
        await tickets.redeem(revoked.ticket, PEER)
    with pytest.raises(NotSignedIn):
        await account_server.authenticator.recheck(caller)


async def test_a_key_of_a_user_with_the_default_password_works_only_on_this_machine(account_server):
    await account_server.operator.ensure_first_user()
    token = (await account_server.enter("admin", "admin123"))["access_token"]
    key = (await created(account_server, token))["key"]
    assert await status_with(account_server, key) == 200
    refused = await account_server.ask("GET", "/auth/me", token=key, address="192.0.2.7")
    assert refused.json()["detail"]["kind"] == "default_password"
