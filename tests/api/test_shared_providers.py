"""Shared providers of a tenant belong to its current administrators; nobody else redirects their requests."""

import itertools
from typing import Any

import pytest

from api.client import KEY, PASSWORD, ApiClient
from api.conftest import Join, connect
from api.server_process import ServerProcess
from api.test_losing_rights import luxx
from luxx.providers.scripted import ScriptedProvider

WAYS = ["is demoted", "is disabled", "is demoted by the command line", "is disabled by the command line"]
ELSEWHERE = {"base_url": "https://elsewhere.example/v1", "api_key": KEY}
numbers = itertools.count()


def share(person: ApiClient, upstream: ScriptedProvider) -> str:
    """The path of a provider that the person shares."""
    path = f"/providers/{connect(person, upstream)}"
    person.good("PUT", path, json={"is_shared": True})
    return path


def take_level(how: str, by: ApiClient, user: ApiClient, server: ServerProcess) -> None:
    path, name = f"/auth/users/{user.user['id']}", user.user["username"]
    match how:
        case "is demoted":
            by.good("PUT", path, json={"permission_level": 3})
        case "is disabled":
            by.good("PUT", path, json={"is_active": False})
        case "is demoted by the command line":
            assert luxx(server, "level", name, "3").returncode == 0
        case _:
            assert luxx(server, "disable", name).returncode == 0


def give_back(by: ApiClient, user: ApiClient) -> None:
    """Gives back the account, not the level."""
    body = {"is_active": True, "permission_level": 3}
    by.good("PUT", f"/auth/users/{user.user['id']}", json=body)
    user.sign_in(user.user["username"], PASSWORD)


def changes_of_providers(admin: ApiClient, path: str) -> list[tuple[str, str, Any]]:
    """What the audit log records of one provider, oldest first."""
    entries = admin.good("GET", "/admin/audit?page_size=100&outcome=done")["items"]
    return [
        (entry["action"], entry["username"], entry["detail"].get("fields"))
        for entry in reversed(entries)
        if (entry["target_type"], entry["target_id"]) == ("provider", path.rpartition("/")[2])
    ]


@pytest.mark.parametrize("how", WAYS)
def test_shared_providers_go_to_another_administrator_when_their_owner(
    how: str, admin: ApiClient, tenant_id: int, join: Join, server: ServerProcess, upstream: ScriptedProvider
) -> None:
    owner, successor, member = join(tenant_id, 4), join(tenant_id, 4), join(tenant_id)
    path, own = share(owner, upstream), f"/providers/{connect(owner, upstream)}"
    before = member.good("GET", path)
    take_level(how, successor, owner, server)
    give_back(admin, owner)
    assert owner.good("GET", path)["is_own"] is False
    assert owner.good("GET", path)["api_key"] == ""
    for body in ({"is_shared": False}, {"enabled": False}, {"name": "mine"}, {"api_key": KEY}, ELSEWHERE):
        owner.bad("PUT", path, 403, json=body)
    owner.bad("DELETE", path, 403)
    owner.bad("PUT", own, 403, json={"is_shared": True})
    owner.good("PUT", own, json=ELSEWHERE)
    assert member.good("GET", path)["base_url"] == before["base_url"]
    assert member.good("POST", f"{path}/test")["ok"] is True, "its key still opens"
    assert successor.good("GET", path)["is_own"] is True
    assert successor.good("PUT", path, json={"name": "handed over"})["is_shared"] is True
    caused_by = "command line" if "command line" in how else successor.user["username"]
    assert ("provider_change", caused_by, ["user_id"]) in changes_of_providers(admin, path)


@pytest.mark.parametrize("how", WAYS)
def test_nothing_is_shared_any_more_when_the_only_administrator(
    how: str, admin: ApiClient, tenant_id: int, join: Join, server: ServerProcess, upstream: ScriptedProvider
) -> None:
    owner, member = join(tenant_id, 4), join(tenant_id)
    path = share(owner, upstream)
    take_level(how, admin, owner, server)
    member.bad("GET", path, 404)
    talk = member.good("POST", "/conversations", json={})["id"]
    refused = member.bad("POST", "/messages", 400, json={"conversation_id": talk, "content": "hi"})
    assert refused["detail"]["kind"] == "no_provider"
    give_back(admin, owner)
    assert owner.good("GET", path)["is_shared"] is False
    owner.bad("PUT", path, 403, json={"is_shared": True})
    owner.good("PUT", path, json={"enabled": False})
    caused_by = "command line" if "command line" in how else "admin"
    assert ("provider_change", caused_by, ["is_shared"]) in changes_of_providers(admin, path)


def test_administrators_switch_off_unshare_and_delete_what_another_shares(
    admin: ApiClient, tenant_id: int, join: Join, upstream: ScriptedProvider
) -> None:
    owner, other, member = join(tenant_id, 4), join(tenant_id, 4), join(tenant_id, 3)
    stranger = join(admin.good("POST", "/admin/tenants", json={"name": f"far {next(numbers)}"})["id"], 4)
    path, second = share(owner, upstream), share(owner, upstream)
    before = owner.good("GET", path)
    for body in (
        ELSEWHERE, {"api_key": KEY}, {"base_url": before["base_url"]}, {"name": "n"}, {"is_default": True},
        {"default_model": "m"}, {"enabled": False, "api_key": ""}, {"is_shared": False, **ELSEWHERE},
    ):  # fmt: skip
        other.bad("PUT", path, 403, json=body)
    for body in ({"enabled": False}, {"is_shared": False}):
        member.bad("PUT", path, 403, json=body)
        stranger.bad("PUT", path, 404, json=body)
    member.bad("DELETE", path, 403)
    stranger.bad("DELETE", path, 404)
    assert owner.good("GET", path) == before
    switched = other.good("PUT", path, json={"enabled": False})
    assert (switched["enabled"], switched["api_key"], switched["is_own"]) == (False, "", False)
    assert member.good("GET", path)["enabled"] is False
    unshared = other.good("PUT", path, json={"is_shared": False, "enabled": True})
    assert (unshared["is_shared"], unshared["api_key"]) == (False, "")
    for leaving in (other, member):
        leaving.bad("GET", path, 404)
    assert owner.good("POST", f"{path}/test")["ok"] is True, "the owner's key is untouched"
    other.good("DELETE", second)
    owner.bad("GET", second, 404)
    name = other.user["username"]
    assert [each for each in changes_of_providers(admin, path) if each[1] == name] == [
        ("provider_change", name, ["enabled"]),
        ("provider_change", name, ["is_shared", "enabled"]),
    ]
    assert changes_of_providers(admin, second)[-1][:2] == ("provider_delete", name)


def test_an_administrator_of_another_tenant_opens_no_private_address(
    admin: ApiClient, tenant_id: int, join: Join, upstream: ScriptedProvider
) -> None:
    chief = join(tenant_id, 4)
    hosts = admin.good("GET", "/admin/allowed-hosts")["hosts"]
    body = {"name": "inside", "provider_type": "openai", "api_key": KEY, "is_shared": True}
    own = f"/providers/{connect(chief, upstream)}"
    for url in (
        "http://127.0.0.1:9/v1",
        "http://localhost:9/v1",
        "http://10.0.0.1:9/v1",
        "http://[::1]:9/v1",
    ):
        refused = chief.bad("POST", "/providers", 403, json=body | {"base_url": url})
        assert refused["detail"]["kind"] == "private_address"
        assert chief.bad("PUT", own, 403, json={"base_url": url})["detail"]["kind"] == "private_address"
    chief.bad("PUT", "/admin/allowed-hosts", 403, json={"hosts": ["127.0.0.1:9"]})
    assert admin.good("GET", "/admin/allowed-hosts")["hosts"] == hosts
