"""The matrix of levels: which tools and which routes each level may use."""

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import msgspec
import pytest

from api.client import PASSWORD, ApiClient
from api.schema import Document, Operation
from api.server_process import ServerProcess

LEVELS = (1, 2, 3, 4)
REQUIRED = {
    "python_execute": 3, "python_eval": 3, "shell_execute": 3, "file_read": 1, "file_list": 1,
    "file_exists": 1, "file_grep": 1, "file_glob": 1, "file_write": 2, "file_edit": 2, "file_multi_edit": 2,
    "web_search": 1, "web_fetch": 1, "batch_fetch": 1, "process_data": 1,
}  # fmt: skip
"""As in the Luxx document; tools that it does not name have the level of similar ones."""


@pytest.fixture(scope="module")
def people(server: ServerProcess, document: Document, admin: ApiClient) -> Iterator[dict[int, ApiClient]]:
    """One user of each level."""
    with ExitStack() as stack:
        made: dict[int, ApiClient] = {}
        for level in LEVELS:
            person = stack.enter_context(ApiClient(server, document).register(f"level{next(numbers)}"))
            admin.good("PUT", f"/auth/users/{person.user['id']}", json={"permission_level": level})
            made[level] = person.sign_in(person.user["username"], PASSWORD)
        yield made


@pytest.fixture(scope="module")
def tools(people: dict[int, ApiClient]) -> dict[str, dict[str, Any]]:
    listed = people[4].good("GET", "/tools?page_size=100")["items"]
    return {tool["name"]: tool for tool in listed}


def test_a_new_user_reads_only(server: ServerProcess, document: Document) -> None:
    with ApiClient(server, document).register("newcomer") as person:
        assert person.user["permission_level"] == 1
        assert person.user["role"] == "user"
        assert person.user["is_active"] is True


def test_role_is_admin_exactly_at_level_4(people: dict[int, ApiClient]) -> None:
    for level, person in people.items():
        me = person.good("GET", "/auth/me")
        assert me["permission_level"] == level
        assert (me["role"] == "admin") is (level == 4)


def test_tools_require_the_levels_of_the_document(tools: dict[str, dict[str, Any]]) -> None:
    for name, tool in tools.items():
        assert tool["required_permission"] == REQUIRED.get(name, tool["required_permission"]), name
    assert {"file_read", "file_write", "file_list", "file_exists", "file_grep"} <= set(tools)


def test_a_tool_above_the_level_is_neither_shown_nor_run(
    people: dict[int, ApiClient], tools: dict[str, dict[str, Any]]
) -> None:
    for level, person in people.items():
        shown = {tool["name"] for tool in person.good("GET", "/tools?page_size=100")["items"]}
        assert shown == {name for name, tool in tools.items() if tool["required_permission"] <= level}
        for name, tool in tools.items():
            is_theirs = tool["required_permission"] <= level
            response = person.ask("GET", f"/tools/{name}")
            assert response.status_code == (200 if is_theirs else 404), f"{name} at {level}"
            ran = person.ask("POST", f"/tools/{name}/execute", json={"arguments": {"no such": 1}})
            assert ran.status_code == (400 if is_theirs else 403), f"{name} at {level}: {ran.text}"


def test_a_tool_at_the_level_runs_in_the_users_own_workspace(people: dict[int, ApiClient]) -> None:
    for level in (2, 3, 4):
        arguments = {"path": "note.txt", "content": f"level {level}"}
        result = people[level].good("POST", "/tools/file_write/execute", json={"arguments": arguments})
        assert result["success"] is True, result
    for level in (2, 3, 4):
        result = people[level].good(
            "POST", "/tools/file_read/execute", json={"arguments": {"path": "note.txt"}}
        )
        assert set(result) == {"success", "data", "error"}
        assert f"level {level}" in str(result["data"])
    missing = people[1].good("POST", "/tools/file_read/execute", json={"arguments": {"path": "note.txt"}})
    assert missing["success"] is False
    assert missing["data"] is None
    assert missing["error"]


def test_only_level_4_administers(people: dict[int, ApiClient], admin: ApiClient) -> None:
    for level, person in people.items():
        is_admin = level == 4
        for method, path, body in (
            ("GET", "/auth/users", None),
            ("PUT", f"/auth/users/{people[1].user['id']}", {"permission_level": 1}),
            ("GET", "/admin/allowed-hosts", None),
        ):
            status = person.ask(method, path, json=body).status_code
            assert status == (200 if is_admin else 403), f"{method} {path} at {level}: {status}"
        shared = {"name": "s", "provider_type": "openai", "is_shared": True, "api_key": "k"}
        answer = person.ask("POST", "/providers", json=shared)
        assert answer.status_code == (201 if is_admin else 403), answer.text
        if is_admin:
            admin_sees = admin.good("GET", "/providers?page_size=100")["items"]
            assert answer.json()["data"]["id"] in {provider["id"] for provider in admin_sees}
    hosts = admin.good("GET", "/admin/allowed-hosts")["hosts"]
    for level in (1, 2, 3):
        people[level].bad("PUT", "/admin/allowed-hosts", 403, json={"hosts": ["127.0.0.1:9"]})
    assert admin.good("GET", "/admin/allowed-hosts")["hosts"] == hosts


def test_a_demotion_takes_effect_at_once(server: ServerProcess, document: Document, admin: ApiClient) -> None:
    with ApiClient(server, document).register("demoted") as person:
        path = f"/auth/users/{person.user['id']}"
        admin.good("PUT", path, json={"permission_level": 2})
        person.sign_in("demoted", PASSWORD)
        write = {"arguments": {"path": "a.txt", "content": "x"}}
        assert person.good("POST", "/tools/file_write/execute", json=write)["success"] is True
        admin.good("PUT", path, json={"permission_level": 1})
        assert person.ask("POST", "/tools/file_write/execute", json=write).status_code in (401, 403)
        person.sign_in("demoted", PASSWORD)
        person.bad("POST", "/tools/file_write/execute", 403, json=write)


OPERATORS = ("/admin/",)
ADMINISTRATORS = {"GET /admin/audit", "PUT /tenant"}
"""/auth/users and these are for the administrators of any tenant; the rest of /admin is for operators."""
BODIES: dict[str, dict[str, Any]] = {
    "POST /auth/users": {"username": "somebody-new", "password": PASSWORD},
    "PUT /auth/users/{user_id}": {"permission_level": 2},
    "POST /auth/users/{user_id}/password": {"new_password": PASSWORD + "-new"},
    "PUT /tenant": {"allow_own_providers": True},
    "POST /admin/tenants": {"name": "a tenant more"},
    "PUT /admin/tenants/{tenant_id}": {"name": "renamed"},
    "PUT /admin/allowed-hosts": {"hosts": ["127.0.0.1:9"]},
}


class AdministeredTenant(msgspec.Struct, frozen=True):
    """One user of each role, and the resources that they administer."""

    by_name: dict[str, ApiClient]
    ids: dict[str, Any]


@pytest.fixture
def administered_tenant(
    server: ServerProcess, document: Document, admin: ApiClient
) -> Iterator[AdministeredTenant]:
    """Created for each test, because some requests delete them."""
    number = next(numbers)
    tenant_id = admin.good("POST", "/admin/tenants", json={"name": f"offices {number}"})["id"]
    empty_id = admin.good("POST", "/admin/tenants", json={"name": f"empty {number}"})["id"]
    with ExitStack() as stack:
        made: dict[str, ApiClient] = {}
        for name, level, tenant in (
            ("member", 3, tenant_id), ("chief", 4, tenant_id), ("subject", 1, tenant_id),
            ("user", 3, admin.user["tenant_id"]), ("operator", 4, admin.user["tenant_id"]),
        ):  # fmt: skip
            username = f"{name}-{number}"
            body = {
                "username": username, "password": PASSWORD, "permission_level": level, "tenant_id": tenant
            }  # fmt: skip
            admin.good("POST", "/auth/users", json=body)
            made[name] = stack.enter_context(ApiClient(server, document)).sign_in(username, PASSWORD)
        yield AdministeredTenant(made, {"user_id": made["subject"].user["id"], "tenant_id": empty_id})


numbers = itertools.count()


def administrative(document: Document) -> list[Operation]:
    """The administrative operations; those that delete come last."""
    operations = [
        each
        for each in document.operations
        if each.template.startswith(("/admin/", "/auth/users")) or name_of(each) in ADMINISTRATORS
    ]
    return sorted(operations, key=lambda each: each.method == "DELETE")


def name_of(operation: Operation) -> str:
    return f"{operation.method} {operation.template}"


def is_for_operators(operation: Operation) -> bool:
    return operation.template.startswith(OPERATORS) and name_of(operation) not in ADMINISTRATORS


def administer(person: ApiClient, operation: Operation, ids: dict[str, Any]) -> httpx.Response:
    path = operation.template
    for name in operation.names("path"):
        path = path.replace("{" + name + "}", str(ids[name]))
    return person.ask(operation.method, path, json=BODIES.get(name_of(operation)))


def test_administrative_operations_are_refused_to_other_users(
    document: Document, administered_tenant: AdministeredTenant
) -> None:
    assert len(administrative(document)) >= 14
    for operation in administrative(document):
        for name in ("user", "member", "subject", "chief"):
            if name == "chief" and not is_for_operators(operation):
                continue
            response = administer(administered_tenant.by_name[name], operation, administered_tenant.ids)
            assert response.status_code == 403, f"{operation} as {name}: {response.text}"
    administered_tenant.by_name["subject"].good("GET", "/auth/me")


@pytest.mark.parametrize("name", ["chief", "operator"])
def test_administrative_operations_succeed_for_their_role(
    document: Document, administered_tenant: AdministeredTenant, name: str, admin: ApiClient
) -> None:
    person = administered_tenant.by_name[name]
    hosts = [host["host"] for host in admin.good("GET", "/admin/allowed-hosts")["hosts"]]
    for operation in administrative(document):
        if name == "chief" and is_for_operators(operation):
            continue
        response = administer(person, operation, administered_tenant.ids)
        assert response.is_success, f"{operation} as {name}: {response.status_code} {response.text}"
        if operation.method == "POST" and operation.template == "/auth/users":
            admin.good("DELETE", f"/auth/users/{response.json()['data']['id']}")
    administered_tenant.by_name["subject"].bad("GET", "/auth/me", 401)
    admin.good("PUT", "/admin/allowed-hosts", json={"hosts": hosts})


def test_a_disabled_or_signed_out_administrator_gets_401(
    document: Document, administered_tenant: AdministeredTenant, admin: ApiClient
) -> None:
    operator, chief = administered_tenant.by_name["operator"], administered_tenant.by_name["chief"]
    operator.good("POST", "/auth/logout")
    admin.good("PUT", f"/auth/users/{chief.user['id']}", json={"is_active": False})
    for operation in administrative(document):
        for person in (operator, chief):
            assert administer(person, operation, administered_tenant.ids).status_code == 401, str(operation)
