"""`/tools/compositions`: create, list, run and count them; ownership; and a composition whose tool is
removed.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from api.client import PASSWORD, ApiClient
from api.owned_ids import NO_UUID
from api.schema import Document
from api.server_process import ServerProcess
from luxx.tools.compositions.service import MAX_COMPOSITIONS

PATH = "/tools/compositions"
FIELDS = {
    "id", "user_id", "name", "description", "kind", "parameters", "members", "timeout_seconds",
    "required_permission", "risk", "problems", "success_count", "failure_count", "created_at", "updated_at",
}  # fmt: skip


def composition(name: str, *members: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": name, "description": "For a test.", "members": list(members), **more}


def lists(name: str = "lists") -> dict[str, Any]:
    return composition(name, {"id": "list", "tool": "file_list"})


PICKS = composition(
    "picks",
    {
        "id": "pick",
        "tool": "process_data",
        "arguments": {"data": {"$from": "input", "path": "data"}, "operation": "minify"},
    },
    {
        "id": "again",
        "tool": "process_data",
        "arguments": {"data": {"$from": "pick", "path": "data"}, "operation": "minify"},
        "fallbacks": [{"tool": "file_list"}],
    },
    parameters=[{"name": "data", "type": "array", "description": "What to look at"}],
)


@pytest.fixture
def carla(server: ServerProcess, document: Document, admin: ApiClient, request: pytest.FixtureRequest) -> Any:
    """A new user without compositions."""
    name = f"c{abs(hash(request.node.name))}"[:30]
    with ApiClient(server, document).register(name) as person:
        yield person


def test_a_composition_is_made_listed_shown_replaced_and_deleted(carla: ApiClient) -> None:
    composition = carla.good("POST", PATH, json=PICKS)
    assert set(composition) == FIELDS
    assert (composition["kind"], composition["timeout_seconds"], composition["risk"]) == (
        "sequential",
        120,
        "low",
    )
    assert (composition["required_permission"], composition["problems"]) == (1, [])
    assert composition["members"][1]["arguments"] == PICKS["members"][1]["arguments"]
    other = carla.good("POST", PATH, json=lists())
    assert carla.good("GET", PATH) == {"items": [other, composition], "total": 2, "page": 1, "page_size": 20}
    assert carla.good("GET", f"{PATH}?page=2&page_size=1")["items"] == [composition]
    assert carla.good("GET", f"{PATH}/{composition['id']}") == composition
    changed = carla.good("PUT", f"{PATH}/{composition['id']}", json=lists("listed") | {"kind": "parallel"})
    assert (changed["id"], changed["name"], changed["parameters"]) == (composition["id"], "listed", [])
    assert carla.bad("PUT", f"{PATH}/{composition['id']}", 409, json=lists())["detail"]["kind"] == (
        "composition_name_taken"
    )
    carla.bad("POST", PATH, 409, json=lists())
    carla.good("DELETE", f"{PATH}/{composition['id']}")
    carla.bad("GET", f"{PATH}/{composition['id']}", 404)
    assert carla.good("GET", PATH)["total"] == 1


def test_a_composition_is_a_tool_of_its_owner_alone(carla: ApiClient, bob: ApiClient) -> None:
    carla.good("POST", PATH, json=PICKS)
    (shown,) = carla.good("GET", "/tools?category=compositions")["items"]
    assert shown["name"] == "picks"
    assert shown["parameters"] == {
        "type": "object",
        "properties": {"data": {"type": "array", "items": {}, "description": "What to look at"}},
        "required": ["data"],
        "additionalProperties": False,
    }
    assert carla.good("GET", "/tools/picks") == shown
    assert "picks" in [tool["name"] for tool in carla.good("GET", "/tools?page_size=100")["items"]]
    executed = carla.good("POST", "/tools/picks/execute", json={"arguments": {"data": [1, 2]}})
    assert executed["success"], executed
    assert [member["status"] for member in executed["data"]["members"]] == ["done", "done"]
    carla.bad("POST", "/tools/picks/execute", 400, json={"arguments": {}})
    assert bob.good("GET", "/tools?category=compositions")["items"] == []
    for method, path in (("GET", "/tools/picks"), ("POST", "/tools/picks/execute")):
        hidden = bob.bad(method, path, 404, **({"json": {}} if method == "POST" else {}))
        assert hidden["detail"]["kind"] == "tool_not_found"


def test_counters_count_every_concurrent_call(carla: ApiClient) -> None:
    composition_id = carla.good("POST", PATH, json=PICKS)["id"]
    fails = composition("fails", {"id": "a", "tool": "file_read", "arguments": {"path": "nothing.txt"}})
    failing = carla.good("POST", PATH, json=fails)["id"]

    def call(name: str) -> bool:
        arguments = {"data": [1]} if name == "picks" else {}
        is_successful: bool = carla.good("POST", f"/tools/{name}/execute", json={"arguments": arguments})[
            "success"
        ]
        return is_successful

    with ThreadPoolExecutor(8) as threads:
        executions = list(threads.map(call, ["picks", "fails"] * 20))
    assert executions == [True, False] * 20
    counted = [carla.good("GET", f"{PATH}/{each}") for each in (composition_id, failing)]
    assert [(each["success_count"], each["failure_count"]) for each in counted] == [(20, 0), (0, 20)]
    carla.good("PUT", f"{PATH}/{composition_id}", json=PICKS)
    assert carla.good("GET", f"{PATH}/{composition_id}")["success_count"] == 20


def test_errors_name_their_path(carla: ApiClient) -> None:
    members = [
        {"id": "a", "tool": "file_read"},
        {"id": "b", "tool": "shell_execute", "arguments": {"command": {"$from": "c"}}},
        {"id": "c", "tool": "delegate"},
    ]
    refused = carla.bad("POST", PATH, 400, json=composition("wrong", *members))
    assert refused["detail"]["kind"] == "composition_invalid"
    assert set(refused["detail"]["fields"]) == {
        "$.members[0].arguments.path",
        "$.members[1].arguments.command",
        "$.members[1].tool",
        "$.members[2].tool",
    }
    carla.good("POST", PATH, json=lists())
    nested = composition("outer", {"id": "a", "tool": "lists"})
    said = carla.bad("POST", PATH, 400, json=nested)["detail"]["fields"]["$.members[0].tool"]
    assert said == "a composition cannot contain a composition"


def test_concurrent_requests_do_not_exceed_the_limit(carla: ApiClient) -> None:
    def make(number: int) -> int:
        return carla.ask("POST", PATH, json=lists(f"lists{number}")).status_code

    with ThreadPoolExecutor(8) as threads:
        statuses = list(threads.map(make, range(MAX_COMPOSITIONS + 10)))
    assert sorted(statuses) == [201] * MAX_COMPOSITIONS + [409] * 10
    assert carla.bad("POST", PATH, 409, json=lists("one"))["detail"]["kind"] == "compositions_full"
    assert carla.good("GET", PATH)["total"] == MAX_COMPOSITIONS


def test_concurrent_requests_for_one_name_create_one_composition(carla: ApiClient) -> None:
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: carla.ask("POST", PATH, json=lists()).status_code, range(8)))
    assert sorted(answers) == [201] + [409] * 7


def test_compositions_of_other_users_look_like_missing_ones(
    carla: ApiClient, bob: ApiClient, admin: ApiClient
) -> None:
    composition_id = carla.good("POST", PATH, json=lists())["id"]
    for other in (bob, admin):
        for which in (composition_id, NO_UUID):
            for method, more in (("GET", {}), ("PUT", {"json": lists("x")}), ("DELETE", {})):
                refused = other.bad(method, f"{PATH}/{which}", 404, **more)
                assert refused["detail"] == {"kind": "composition_not_found"}
    bob_made = bob.good("POST", PATH, json=lists())["id"]
    bob.good("DELETE", f"{PATH}/{bob_made}")
    assert carla.good("GET", f"{PATH}/{composition_id}")["name"] == "lists"


def test_a_demoted_user_keeps_compositions_and_cannot_run_them(
    server: ServerProcess, document: Document, admin: ApiClient
) -> None:
    with ApiClient(server, document).register("lowered") as person:
        path = f"/auth/users/{person.user['id']}"
        admin.good("PUT", path, json={"permission_level": 2})
        person.sign_in("lowered", PASSWORD)
        writes = composition(
            "writes", {"id": "a", "tool": "file_write", "arguments": {"path": "a", "content": "b"}}
        )
        new_composition = person.good("POST", PATH, json=writes)
        assert (new_composition["required_permission"], new_composition["risk"]) == (2, "medium")
        assert person.good("POST", "/tools/writes/execute", json={})["success"]
        admin.good("PUT", path, json={"permission_level": 1})
        person.sign_in("lowered", PASSWORD)
        person.bad("POST", "/tools/writes/execute", 403, json={})
        person.bad("GET", "/tools/writes", 404)
        assert person.good("GET", "/tools?category=compositions")["items"] == []
        assert person.good("GET", f"{PATH}/{new_composition['id']}")["required_permission"] == 2


def test_the_explanation_covers_the_users_own_compositions(carla: ApiClient, bob: ApiClient) -> None:
    carla.good("POST", PATH, json=lists())
    explained = carla.good("GET", "/permissions/explain?tool=lists&tainted=true")
    assert (explained["action"], explained["decided_by"]) == ("allow", "members")
    bob.bad("GET", "/permissions/explain?tool=lists", 404)
    carla.good("PUT", "/permissions/rules", json=[{"tool": "lists", "action": "deny"}])
    assert carla.good("GET", "/permissions/explain?tool=lists")["decided_by"] == "rule"
    carla.bad("POST", "/tools/lists/execute", 403, json={})


def test_a_refused_member_is_in_the_audit_log_at_every_entry_point(
    carla: ApiClient, admin: ApiClient
) -> None:
    carla.good("POST", PATH, json=lists())
    carla.good("PUT", "/permissions/rules", json=[{"tool": "file_list", "action": "deny"}])
    assert "denied" in carla.good("POST", "/tools/lists/execute", json={})["error"]
    query = f"/admin/audit?action=tool_call&user_id={carla.user['id']}"
    (entry,) = admin.good("GET", query)["items"]
    assert (entry["outcome"], entry["target_id"]) == ("refused", None)
    assert entry["detail"] == {"name": "file_list", "kind": "rule", "permission_level": 1}


def test_compositions_of_a_deleted_user_are_deleted(
    server: ServerProcess, document: Document, admin: ApiClient
) -> None:
    with ApiClient(server, document).register("leaver") as person:
        composition_id = person.good("POST", PATH, json=lists())["id"]
        tenant_id = admin.good("POST", "/admin/tenants", json={"name": "elsewhere"})["id"]
        path = f"/auth/users/{person.user['id']}"
        admin.good("PUT", path, json={"tenant_id": tenant_id})
        person.sign_in("leaver", PASSWORD)
        assert person.good("GET", f"{PATH}/{composition_id}")["name"] == "lists"
        assert person.good("POST", "/tools/lists/execute", json={})["success"]
        admin.good("DELETE", path)
        admin.good("DELETE", f"/admin/tenants/{tenant_id}")


TOOLS = '''
from luxx.tools.factory import tool

@tool()
def comes_and_goes() -> str:
    """Is there now."""
    return "here"

@tool()
def stays() -> str:
    """Is always there."""
    return "still here"
'''


def test_a_composition_reports_that_its_tool_no_longer_exists(tmp_path: Path) -> None:
    (tmp_path / "my_tools_now.py").write_text(TOOLS)
    (tmp_path / "my_tools_later.py").write_text(TOOLS.replace("comes_and_goes", "takes_the_name"))
    settings = {"PYTHONPATH": f"{Path(__file__).parents[2]}:{tmp_path}"}
    one = composition("both", {"id": "a", "tool": "comes_and_goes"}, {"id": "b", "tool": "stays"})
    with (
        ServerProcess(tmp_path, LUXX_TOOLS__MODULES="my_tools_now", **settings) as server,
        ApiClient(server, None).sign_in() as admin,
    ):
        composition_id = admin.good("POST", PATH, json=one)["id"]
        admin.good("POST", PATH, json=lists("takes_the_name"))
        assert admin.good("POST", "/tools/both/execute", json={})["data"]["output"] == "still here"
    with (
        ServerProcess(tmp_path, LUXX_TOOLS__MODULES="my_tools_later", **settings) as server,
        ApiClient(server, None).sign_in() as admin,
    ):
        tool_missing = "the tool comes_and_goes no longer exists"
        assert admin.good("GET", f"{PATH}/{composition_id}")["problems"] == [tool_missing]
        assert tool_missing in admin.good("GET", "/tools/both")["description"]
        executed = admin.good("POST", "/tools/both/execute", json={})
        assert "there is no tool named 'comes_and_goes'" in executed["error"]
        hidden = next(each for each in admin.good("GET", PATH)["items"] if each["name"] == "takes_the_name")
        assert "has the same name and hides it" in hidden["problems"][0]
        names = [tool["name"] for tool in admin.good("GET", "/tools?page_size=100")["items"]]
        assert names.count("takes_the_name") == 1
        assert admin.good("POST", "/tools/takes_the_name/execute", json={})["data"] == "here"
