"""The matrix of levels: which tools and which routes are for whom."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from api.person import PASSWORD, Person
from api.schema import Document
from api.server import Server

LEVELS = (1, 2, 3, 4)
REQUIRED = {
    "python_execute": 3, "python_eval": 3, "shell_execute": 3, "file_read": 1, "file_list": 1,
    "file_exists": 1, "file_grep": 1, "file_glob": 1, "file_write": 2, "file_edit": 2, "file_multi_edit": 2,
    "web_search": 1, "web_fetch": 1, "batch_fetch": 1, "process_data": 1,
}  # fmt: skip
"""As the document has it; those it does not name follow their like."""


@pytest.fixture(scope="module")
def people(server: Server, document: Document, admin: Person) -> Iterator[dict[int, Person]]:
    """One user of each level."""
    with ExitStack() as stack:
        made: dict[int, Person] = {}
        for level in LEVELS:
            person = stack.enter_context(Person(server, document).register(f"level{level}"))
            admin.good("PUT", f"/auth/users/{person.user['id']}", json={"permission_level": level})
            made[level] = person.sign_in(f"level{level}", PASSWORD)
        yield made


@pytest.fixture(scope="module")
def tools(people: dict[int, Person]) -> dict[str, dict[str, Any]]:
    listed = people[4].good("GET", "/tools?page_size=100")["items"]
    return {tool["name"]: tool for tool in listed}


def test_a_new_user_reads_only(server: Server, document: Document) -> None:
    with Person(server, document).register("newcomer") as person:
        assert person.user["permission_level"] == 1
        assert person.user["role"] == "user"
        assert person.user["is_active"] is True


def test_role_is_admin_exactly_at_level_4(people: dict[int, Person]) -> None:
    for level, person in people.items():
        me = person.good("GET", "/auth/me")
        assert me["permission_level"] == level
        assert (me["role"] == "admin") is (level == 4)


def test_tools_require_the_levels_of_the_document(tools: dict[str, dict[str, Any]]) -> None:
    for name, tool in tools.items():
        assert tool["required_permission"] == REQUIRED.get(name, tool["required_permission"]), name
    assert {"file_read", "file_write", "file_list", "file_exists", "file_grep"} <= set(tools)


def test_a_tool_above_the_level_is_neither_shown_nor_run(
    people: dict[int, Person], tools: dict[str, dict[str, Any]]
) -> None:
    for level, person in people.items():
        shown = {tool["name"] for tool in person.good("GET", "/tools?page_size=100")["items"]}
        assert shown == {name for name, tool in tools.items() if tool["required_permission"] <= level}
        for name, tool in tools.items():
            is_theirs = tool["required_permission"] <= level
            one = person.ask("GET", f"/tools/{name}")
            assert one.status_code == (200 if is_theirs else 404), f"{name} at {level}"
            ran = person.ask("POST", f"/tools/{name}/execute", json={"arguments": {"no such": 1}})
            assert ran.status_code == (400 if is_theirs else 403), f"{name} at {level}: {ran.text}"


def test_a_tool_at_the_level_runs_in_ones_own_workspace(people: dict[int, Person]) -> None:
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


def test_only_level_4_administers(people: dict[int, Person], admin: Person) -> None:
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


def test_a_demotion_counts_at_once(server: Server, document: Document, admin: Person) -> None:
    with Person(server, document).register("demoted") as person:
        path = f"/auth/users/{person.user['id']}"
        admin.good("PUT", path, json={"permission_level": 2})
        person.sign_in("demoted", PASSWORD)
        write = {"arguments": {"path": "a.txt", "content": "x"}}
        assert person.good("POST", "/tools/file_write/execute", json=write)["success"] is True
        admin.good("PUT", path, json={"permission_level": 1})
        assert person.ask("POST", "/tools/file_write/execute", json=write).status_code in (401, 403)
        person.sign_in("demoted", PASSWORD)
        person.bad("POST", "/tools/file_write/execute", 403, json=write)
