"""Two tenants on one server: who sees and changes what, and what moves with a user."""

import itertools
from typing import Any

import pytest

from api.client import KEY, PASSWORD, ApiClient
from api.conftest import Join, connect
from api.schema import Document
from api.server_process import ServerProcess
from luxx.providers.scripted import ScriptedProvider

TENANT = {
    "id", "name", "is_default", "default_agent_id", "default_provider_id", "lost_default_agent",
    "lost_default_provider", "allow_registration", "allow_own_providers", "created_at", "extraction",
    "learn_patterns", "public_links", "title_provider_id", "lost_title_provider", "title_model",
}  # fmt: skip
numbers = itertools.count()


def create_tenant(admin: ApiClient, **more: Any) -> dict[str, Any]:
    tenant: dict[str, Any] = admin.good(
        "POST", "/admin/tenants", json={"name": f"team {next(numbers)}", **more}
    )
    return tenant


def test_a_tenant_is_made_listed_shown_changed_and_deleted(admin: ApiClient) -> None:
    tenant = create_tenant(admin)
    assert set(tenant) == TENANT
    assert (tenant["is_default"], tenant["allow_registration"], tenant["allow_own_providers"]) == (
        False,
        False,
        True,
    )
    path = f"/admin/tenants/{tenant['id']}"
    assert admin.good("GET", path) == tenant
    changed = admin.good("PUT", path, json={"name": "  renamed  ", "allow_own_providers": False})
    assert (changed["name"], changed["allow_own_providers"]) == ("renamed", False)
    listed = admin.good("GET", "/admin/tenants?page_size=100")
    assert [each["id"] for each in listed["items"]] == sorted(
        (each["id"] for each in listed["items"]), reverse=True
    )
    assert changed in listed["items"]
    assert listed["total"] == len(listed["items"])
    admin.good("DELETE", path)
    admin.bad("GET", path, 404)
    admin.bad("DELETE", path, 404)
    assert create_tenant(admin)["id"] > tenant["id"], "ids are not given twice"


@pytest.mark.parametrize(
    "body",
    [
        {}, {"name": ""}, {"name": "  "}, {"name": "x" * 201}, {"name": "a\nb"}, {"name": 5},
        {"name": "n", "is_default": True}, {"name": "n", "id": 5}, {"name": "n", "default_agent_id": 0},
        {"name": "n", "allow_own_providers": None},
    ],
    ids=str,
)  # fmt: skip
def test_a_bad_tenant_is_refused(admin: ApiClient, body: dict[str, Any]) -> None:
    admin.bad("POST", "/admin/tenants", 400, json=body)


def test_names_of_tenants_are_unique_and_an_unknown_agent_is_no_default(admin: ApiClient) -> None:
    first_tenant, second_tenant = create_tenant(admin), create_tenant(admin)
    taken = admin.bad("POST", "/admin/tenants", 409, json={"name": first_tenant["name"]})
    assert taken["detail"]["kind"] == "tenant_name_taken"
    admin.bad("PUT", f"/admin/tenants/{second_tenant['id']}", 409, json={"name": first_tenant["name"]})
    admin.bad("PUT", f"/admin/tenants/{second_tenant['id']}", 404, json={"default_agent_id": 987})
    admin.good("PUT", f"/admin/tenants/{second_tenant['id']}", json={"default_agent_id": None})
    for strange in ("0", "-1", str(2**31), str(2**70), "x"):
        admin.bad("GET", f"/admin/tenants/{strange}", 404)


def test_a_tenant_with_users_and_the_default_one_are_not_deleted(admin: ApiClient, join: Join) -> None:
    tenant = create_tenant(admin)
    member = join(tenant["id"])
    path = f"/admin/tenants/{tenant['id']}"
    assert admin.bad("DELETE", path, 409)["detail"]["kind"] == "tenant_not_empty"
    assert member.good("GET", "/tenant") == tenant
    admin.good("DELETE", f"/auth/users/{member.user['id']}")
    admin.good("DELETE", path)
    default = f"/admin/tenants/{admin.user['tenant_id']}"
    assert admin.bad("DELETE", default, 409)["detail"]["kind"] == "default_tenant"


def test_a_tenant_is_seen_by_its_members_and_changed_by_its_administrators(
    admin: ApiClient, join: Join
) -> None:
    first_tenant, second_tenant = create_tenant(admin), create_tenant(admin)
    chief, member, stranger = (
        join(first_tenant["id"], 4),
        join(first_tenant["id"], 3),
        join(second_tenant["id"], 4),
    )
    assert member.good("GET", "/tenant") == chief.good("GET", "/tenant") == first_tenant
    member.bad("PUT", "/tenant", 403, json={"name": "mine now"})
    name = f"renamed {next(numbers)}"
    assert chief.good("PUT", "/tenant", json={"name": name})["name"] == name
    assert member.good("GET", "/tenant")["name"] == name
    assert stranger.good("GET", "/tenant") == second_tenant
    refused = chief.bad("PUT", "/tenant", 400, json={"allow_registration": True})
    assert "$.allow_registration" in refused["detail"]["fields"]
    for who in (chief, member, stranger):
        for method, path, body in (
            ("GET", "/admin/tenants", None),
            ("POST", "/admin/tenants", {"name": "another"}),
            ("GET", f"/admin/tenants/{first_tenant['id']}", None),
            ("PUT", f"/admin/tenants/{first_tenant['id']}", {"name": "another"}),
            ("DELETE", f"/admin/tenants/{first_tenant['id']}", None),
            ("GET", "/admin/allowed-hosts", None),
        ):
            who.bad(method, path, 403, json=body)
    assert admin.good("GET", f"/admin/tenants/{first_tenant['id']}")["name"] == name


def test_registration_is_switched_off_by_the_default_tenant(
    admin: ApiClient, nobody: ApiClient, server: ServerProcess, document: Document
) -> None:
    body = {"username": f"newcomer{next(numbers)}", "password": PASSWORD}
    assert admin.good("GET", "/tenant")["allow_registration"] is True
    admin.good("PUT", "/tenant", json={"allow_registration": False})
    try:
        refused = nobody.bad("POST", "/auth/register", 403, json=body)
        assert refused["detail"]["kind"] == "registration_closed"
    finally:
        admin.good("PUT", "/tenant", json={"allow_registration": True})
    created_user = nobody.good("POST", "/auth/register", json=body)
    assert created_user["user"]["tenant_id"] == admin.user["tenant_id"]


def test_a_tenant_may_reserve_connecting_models_for_its_administrators(
    admin: ApiClient, join: Join, upstream: ScriptedProvider
) -> None:
    tenant = create_tenant(admin)
    chief, member = join(tenant["id"], 4), join(tenant["id"], 3)
    body = {"name": "own", "provider_type": "openai", "api_key": KEY, "default_model": "m"}
    before = member.good("POST", "/providers", json=body)["id"]
    chief.good("PUT", "/tenant", json={"allow_own_providers": False})
    refused = member.bad("POST", "/providers", 403, json=body)
    assert refused["detail"]["kind"] == "own_providers_closed"
    member.bad("PUT", f"/providers/{before}", 403, json={"name": "other"})
    member.good("DELETE", f"/providers/{before}")
    shared = chief.good("POST", "/providers", json=body | {"is_shared": True})["id"]
    assert [each["id"] for each in member.good("GET", "/providers")["items"]] == [shared]


def test_a_shared_provider_is_shared_with_its_own_tenant_alone(
    admin: ApiClient, join: Join, upstream: ScriptedProvider
) -> None:
    first_tenant, second_tenant = create_tenant(admin), create_tenant(admin)
    chief, member = join(first_tenant["id"], 4), join(first_tenant["id"])
    other_chief, other = join(second_tenant["id"], 4), join(second_tenant["id"])
    body = {
        "name": "for this tenant", "provider_type": "openai", "base_url": f"{upstream.url}/v1",
        "api_key": KEY, "default_model": "scripted", "is_shared": True,
    }  # fmt: skip
    shared = chief.good("POST", "/providers", json=body)["id"]
    of_default = admin.good("POST", "/providers", json=body)["id"]
    assert [each["id"] for each in member.good("GET", "/providers")["items"]] == [shared]
    talk = member.good("POST", "/conversations", json={})["id"]
    answer = member.good("POST", "/messages", json={"conversation_id": talk, "content": "hi"})
    assert answer["text"] == "Hello there."
    for outsider in (other_chief, other):
        assert outsider.good("GET", "/providers")["items"] == []
        for provider_id in (shared, of_default):
            path = f"/providers/{provider_id}"
            outsider.bad("GET", path, 404)
            outsider.bad("PUT", path, 404, json={"name": "mine"})
            outsider.bad("DELETE", path, 404)
            outsider.bad("POST", f"{path}/test", 404)
            outsider.bad("GET", f"{path}/models", 404)
            outsider.bad("PUT", "/settings", 404, json={"default_provider_id": provider_id})
            outsider.bad("POST", "/conversations", 404, json={"provider_id": provider_id})
        talk = outsider.good("POST", "/conversations", json={})["id"]
        message = {"conversation_id": talk, "content": "hi"}
        assert outsider.bad("POST", "/messages", 400, json=message)["detail"]["kind"] == "no_provider"
        outsider.bad("POST", "/messages", 404, json=message | {"provider_id": shared})
    assert shared not in [each["id"] for each in admin.good("GET", "/providers?page_size=100")["items"]]


def test_a_users_data_moves_with_them_and_is_not_shared_in_the_new_tenant(
    admin: ApiClient, join: Join, upstream: ScriptedProvider
) -> None:
    first_tenant, second_tenant = create_tenant(admin), create_tenant(admin)
    chief, stays, there = join(first_tenant["id"], 4), join(first_tenant["id"]), join(second_tenant["id"])
    provider_id = connect(chief, upstream)
    chief.good("PUT", f"/providers/{provider_id}", json={"is_shared": True})
    talk = chief.good("POST", "/conversations", json={})["id"]
    chief.good("POST", "/messages", json={"conversation_id": talk, "content": "hi"})
    run = chief.good("GET", "/runs")["items"][0]
    assert stays.good("GET", f"/providers/{provider_id}")["is_shared"] is True
    admin.good("PUT", f"/auth/users/{chief.user['id']}", json={"tenant_id": second_tenant["id"]})
    chief.bad("GET", "/auth/me", 401)
    chief.sign_in(chief.user["username"], PASSWORD)
    assert chief.user["tenant_id"] == second_tenant["id"]
    assert chief.good("GET", f"/providers/{provider_id}")["is_shared"] is False
    assert chief.good("GET", f"/runs/{run['id']}") == run
    again = chief.good("POST", "/messages", json={"conversation_id": talk, "content": "hi"})
    assert again["text"] == "Hello there."
    for other in (stays, there):
        other.bad("GET", f"/providers/{provider_id}", 404)
    admin.good("DELETE", f"/auth/users/{stays.user['id']}")
    admin.good("DELETE", f"/admin/tenants/{first_tenant['id']}")
    assert chief.good("GET", f"/runs/{run['id']}") == run, "it left nothing behind in the old tenant"


def test_a_shared_provider_outlives_its_administrator(
    admin: ApiClient, join: Join, upstream: ScriptedProvider
) -> None:
    tenant = create_tenant(admin)
    first, second, member = join(tenant["id"], 4), join(tenant["id"], 4), join(tenant["id"])
    shared = connect(first, upstream)
    first.good("PUT", f"/providers/{shared}", json={"is_shared": True})
    private = first.good(
        "POST", "/providers", json={"name": "own", "provider_type": "openai", "api_key": KEY}
    )["id"]
    own = connect(second, upstream)
    second.good("DELETE", f"/auth/users/{first.user['id']}")
    handed = second.good("GET", f"/providers/{shared}")
    assert (handed["is_own"], handed["is_shared"], handed["is_default"]) == (True, True, False)
    assert second.good("GET", f"/providers/{own}")["is_default"] is True
    second.bad("GET", f"/providers/{private}", 404)
    assert second.good("POST", f"/providers/{shared}/test")["ok"] is True, "its key still opens"
    talk = member.good("POST", "/conversations", json={})["id"]
    answer = member.good("POST", "/messages", json={"conversation_id": talk, "content": "hi"})
    assert answer["text"] == "Hello there."
    assert (answer["provider_id"], member.good("GET", "/tenant")["lost_default_provider"]) == (shared, None)
