"""The audit log and its route: what is recorded, who may read it, and what is never recorded."""

import itertools
import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from api.client import KEY, PASSWORD, UUID7, ApiClient
from api.schema import Document
from api.server_process import ServerProcess

ENTRY = {
    "id", "at", "tenant_id", "user_id", "username", "action", "target_type", "target_id", "outcome", "detail",
    "address", "request_id",
}  # fmt: skip
numbers = itertools.count()


def entries(admin: ApiClient, **query: Any) -> list[dict[str, Any]]:
    entries_found: list[dict[str, Any]] = admin.good(
        "GET", "/admin/audit", params={"page_size": 100, **query}
    )["items"]
    return entries_found


def audit_entries(admin: ApiClient, **query: Any) -> list[tuple[Any, ...]]:
    """What was done or refused, oldest first."""
    return [(each["action"], each["outcome"]) for each in reversed(entries(admin, **query))]


@pytest.fixture(scope="module")
def server(own_server: ServerProcess) -> ServerProcess:
    return own_server


@pytest.fixture
def user(server: ServerProcess, document: Document, admin: ApiClient) -> Iterator[ApiClient]:
    with ApiClient(server, document).register(f"person{next(numbers)}") as person:
        yield person


def test_what_a_user_does_with_their_sign_in_is_written_down(
    admin: ApiClient, user: ApiClient, nobody: ApiClient, server: ServerProcess, document: Document
) -> None:
    name = user.user["username"]
    nobody.bad("POST", "/auth/login", 401, json={"username": name, "password": "wrong one"})
    with ApiClient(server, document).sign_in(name, PASSWORD) as again:
        wrong = {"current_password": "wrong one", "new_password": PASSWORD + "2"}
        again.bad("POST", "/auth/password", 400, json=wrong)
        again.good("POST", "/auth/password", json=wrong | {"current_password": PASSWORD})
        first = {"refresh_token": again.refresh_token}
        again.good("POST", "/auth/refresh", json=first)
        again.bad("POST", "/auth/refresh", 401, json=first)
        again.sign_in(name, PASSWORD + "2")
        again.good("POST", "/auth/logout")
    entries_found = entries(admin, user_id=user.user["id"])
    assert [(each["action"], each["outcome"]) for each in reversed(entries_found)] == [
        ("register", "done"),
        ("sign_in", "done"),
        ("sign_in", "refused"),
        ("sign_in", "done"),
        ("password_change", "refused"),
        ("password_change", "done"),
        ("refresh", "refused"),
        ("sign_in", "done"),
        ("sign_out", "done"),
    ]
    for each in entries_found:
        assert set(each) == ENTRY
        assert (each["username"], each["user_id"], each["tenant_id"]) == (name, user.user["id"], 1)
        assert each["address"] == "127.0.0.1"
        assert UUID7.fullmatch(each["id"])
        assert UUID7.fullmatch(each["request_id"])
    refused = [each["detail"]["kind"] for each in entries_found if each["outcome"] == "refused"]
    assert refused == ["token_reused", "password_refused", "sign_in_failed"]


def test_the_request_id_is_that_of_the_answer(admin: ApiClient, user: ApiClient) -> None:
    answer = user.ask("POST", "/auth/logout")
    (entry,) = entries(admin, user_id=user.user["id"], action="sign_out")
    assert entry["request_id"] == answer.headers["x-request-id"]


def test_what_administrators_do_is_written_down_with_what_was_before(
    admin: ApiClient, user: ApiClient
) -> None:
    path = f"/auth/users/{user.user['id']}"
    for body in ({"permission_level": 3}, {"is_active": False}, {"is_active": True}, {}, {"is_active": True}):
        admin.good("PUT", path, json=body)
    admin.good("POST", f"{path}/password", json={"new_password": PASSWORD + "3"})
    admin.good("DELETE", path)
    mine = [each for each in reversed(entries(admin)) if each["target_id"] == str(user.user["id"])]
    assert [each["action"] for each in mine] == [
        "register", "user_change", "user_change", "user_change", "password_reset", "user_change",
        "user_delete",
    ]  # fmt: skip
    changes = [each["detail"] for each in mine if each["action"] == "user_change"]
    assert changes[0] == {
        "name": user.user["username"],
        "fields": ["permission_level"],
        "permission_level": 3,
        "level_before": 1,
    }
    assert [each["is_active"] for each in changes[1:]] == [False, True, False]
    assert {each["username"] for each in mine[1:]} == {"admin"}


def test_providers_hosts_and_tenants_are_written_down_and_no_key(admin: ApiClient, user: ApiClient) -> None:
    body = {"name": "audited", "provider_type": "openai", "api_key": KEY}
    provider_id = user.good("POST", "/providers", json=body)["id"]
    user.good("PUT", f"/providers/{provider_id}", json={"api_key": KEY + "2", "name": "audited too"})
    user.good("DELETE", f"/providers/{provider_id}")
    entries_found = [
        each
        for each in reversed(entries(admin, user_id=user.user["id"]))
        if each["target_type"] == "provider"
    ]
    assert [(each["action"], each["target_id"]) for each in entries_found] == [
        ("provider_create", str(provider_id)),
        ("provider_change", str(provider_id)),
        ("provider_delete", str(provider_id)),
    ]
    assert entries_found[1]["detail"] == {"name": "audited too", "fields": ["name", "api_key"]}

    hosts = [host["host"] for host in admin.good("GET", "/admin/allowed-hosts")["hosts"]]
    admin.good("PUT", "/admin/allowed-hosts", json={"hosts": [*hosts, "127.0.0.1:9999"]})
    admin.good("PUT", "/admin/allowed-hosts", json={"hosts": [*hosts, "127.0.0.1:9999"]})
    admin.good("PUT", "/admin/allowed-hosts", json={"hosts": hosts})
    taken, given = entries(admin, action="allowed_hosts_change")[:2]
    assert given["detail"] == {"added": ["127.0.0.1:9999"], "removed": []}
    assert taken["detail"] == {"added": [], "removed": ["127.0.0.1:9999"]}

    tenant = admin.good("POST", "/admin/tenants", json={"name": f"audited {next(numbers)}"})
    path = f"/admin/tenants/{tenant['id']}"
    admin.good("PUT", path, json={"allow_own_providers": False})
    admin.good("DELETE", path)
    entries_found = entries(admin, tenant_id=tenant["id"])
    assert [each["action"] for each in entries_found] == ["tenant_delete", "tenant_change", "tenant_create"]
    assert entries_found[1]["detail"] == {"name": tenant["name"], "fields": ["allow_own_providers"]}

    everything = json.dumps(entries(admin))
    assert KEY not in everything
    assert PASSWORD not in everything


def test_refusals_are_written_down(admin: ApiClient, user: ApiClient, nobody: ApiClient) -> None:
    user.bad("GET", "/auth/users", 403)
    user.bad("GET", "/admin/tenants/7", 403)
    user.bad("GET", "/conversations/nothing", 404)
    entries_found = entries(admin, user_id=user.user["id"], action="request")
    assert [(each["target_type"], each["target_id"]) for each in entries_found] == [
        ("tenant", "7"),
        (None, None),
    ]
    assert entries_found[1]["detail"] == {"kind": "not_allowed", "method": "GET", "route": "/auth/users"}
    assert entries_found[0]["detail"]["route"] == "/admin/tenants/{tenant_id}"
    admin.good("PUT", f"/auth/users/{user.user['id']}", json={"is_active": False})
    body = {"username": user.user["username"], "password": PASSWORD}
    nobody.bad("POST", "/auth/login", 403, json=body)
    newest = entries(admin, user_id=user.user["id"])[0]
    assert (newest["action"], newest["outcome"], newest["detail"]) == (
        "sign_in",
        "refused",
        {"kind": "account_disabled"},
    )


def test_a_name_that_nobody_has_is_not_written_down(admin: ApiClient, nobody: ApiClient) -> None:
    nobody.bad("POST", "/auth/login", 401, json={"username": "my-password-by-mistake", "password": "x"})
    newest = entries(admin)[0]
    assert (newest["action"], newest["username"], newest["tenant_id"]) == ("sign_in", None, None)
    assert "my-password-by-mistake" not in json.dumps(entries(admin))


def test_refusals_without_end_are_counted_and_not_all_written(admin: ApiClient, user: ApiClient) -> None:
    for _ in range(40):
        user.bad("GET", "/auth/users", 403)
    assert len(entries(admin, user_id=user.user["id"], action="request")) == 10


def test_the_log_is_read_by_pages_cursor_and_filters(admin: ApiClient, user: ApiClient) -> None:
    for level in (2, 3, 2, 3):
        admin.good("PUT", f"/auth/users/{user.user['id']}", json={"permission_level": level})
    page = admin.good("GET", "/admin/audit?page=2&page_size=2")
    assert set(page) == {"items", "total", "page", "page_size"}
    newest = entries(admin, page_size=4)
    assert page["items"] == newest[2:]
    rest = admin.good("GET", "/admin/audit", params={"before": newest[1]["id"], "limit": 2})["items"]
    assert rest == newest[2:]
    at = newest[2]["at"]
    assert {each["id"] for each in entries(admin, to=at)}.isdisjoint({each["id"] for each in newest[:3]})
    since = {each["id"] for each in entries(admin, **{"from": at})}
    assert since >= {each["id"] for each in newest[:3]}
    assert newest[3]["id"] not in since or newest[3]["at"] == at
    assert {each["outcome"] for each in entries(admin, outcome="refused")} <= {"refused"}
    assert {each["action"] for each in entries(admin, action="user_change")} == {"user_change"}


@pytest.mark.parametrize(
    "query",
    [
        "action=nothing", "outcome=maybe", "user_id=0", "user_id=x", f"user_id={2**31}", "from=yesterday",
        "to=2026-01-01T00:00:00", "page=0", "limit=101", "from=2026-01-01",
    ],
)  # fmt: skip
def test_a_bad_question_is_refused(admin: ApiClient, query: str) -> None:
    admin.bad("GET", f"/admin/audit?{query}", 400)


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00"])
def test_the_ends_of_time_are_no_mistake_of_the_server(admin: ApiClient, time: str) -> None:
    assert admin.good("GET", "/admin/audit", params={"from": time, "to": time})["items"] == []


def test_a_log_is_for_administrators_and_of_their_tenant(
    admin: ApiClient, user: ApiClient, server: ServerProcess, document: Document
) -> None:
    user.bad("GET", "/admin/audit", 403)
    tenant_id = admin.good("POST", "/admin/tenants", json={"name": f"reading {next(numbers)}"})["id"]
    with ExitStack() as stack:
        people: list[ApiClient] = []
        for level in (4, 1):
            name = f"reader{next(numbers)}"
            body = {
                "username": name, "password": PASSWORD, "permission_level": level, "tenant_id": tenant_id
            }  # fmt: skip
            admin.good("POST", "/auth/users", json=body)
            people.append(stack.enter_context(ApiClient(server, document)).sign_in(name, PASSWORD))
        chief, member = people
        member.bad("GET", "/admin/audit", 403)
        entries_found = entries(chief)
        assert {each["tenant_id"] for each in entries_found} == {tenant_id}
        assert {each["action"] for each in entries_found} >= {
            "tenant_create",
            "user_create",
            "sign_in",
            "request",
        }
        assert entries(chief, user_id=user.user["id"]) == []
        chief.bad("GET", "/admin/audit?tenant_id=1", 404)
        assert {each["id"] for each in entries_found} <= {each["id"] for each in entries(admin)}
        admin.good("PUT", f"/auth/users/{member.user['id']}", json={"tenant_id": 1})
        assert entries(chief)[0]["detail"]["fields"] == ["tenant_id"], (
            "both tenants have the entry of the move"
        )


def test_nothing_in_the_log_can_be_changed(admin: ApiClient, document: Document) -> None:
    about = [each for each in document.operations if "audit" in each.template]
    assert [(each.method, each.template) for each in about] == [("GET", "/admin/audit")]
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        admin.bad(method, "/admin/audit", 405, json={})
        assert admin.ask(method, f"/admin/audit/{entries(admin)[0]['id']}").status_code in (404, 405)
