"""`/permissions`: who owns rules, which rules are valid, and the explanation of a decision."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from api.client import PASSWORD, ApiClient
from api.owned_ids import NO_UUID
from api.schema import Document
from api.server_process import ServerProcess
from luxx.tools.permissions.subjects import MAX_PARTS

RULES = "/permissions/rules"
READS = {"tool": "file_read", "pattern": "docs/*", "action": "allow"}
WRITES = {"tool": "file_write", "pattern": "*", "action": "deny"}


@pytest.fixture(autouse=True)
def nobody_has_rules(admin: ApiClient, anna: ApiClient, bob: ApiClient) -> Iterator[None]:
    yield
    for person in (admin, anna, bob):
        person.good("PUT", RULES, json=[])
    admin.good("PUT", f"{RULES}?scope=tenant", json=[])


def without_ids(rules: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: rule[name] for name in ("tool", "pattern", "action")} for rule in rules]


def explain(person: ApiClient, tool: str, arguments: dict[str, Any] | None = None, **query: Any) -> Any:
    params = {"tool": tool, "arguments": json.dumps(arguments or {}), **query}
    return person.good("GET", "/permissions/explain", params=params)


def test_a_list_of_rules_is_what_was_put_in_that_order(anna: ApiClient) -> None:
    assert anna.good("GET", RULES) == []
    made = anna.good("PUT", RULES, json=[READS, {"tool": "file_*", "action": "ask"}])
    assert without_ids(made) == [READS, {"tool": "file_*", "pattern": "*", "action": "ask"}]
    assert [(rule["scope"], rule["scope_id"], rule["place"]) for rule in made] == [
        ("user", None, 0),
        ("user", None, 1),
    ]
    turned = anna.good("PUT", RULES, json=without_ids(made[::-1]))
    assert without_ids(turned) == without_ids(made[::-1])
    assert anna.good("GET", f"{RULES}?scope=user") == turned
    assert anna.good("PUT", RULES, json=[]) == []


def test_rules_are_their_owners_alone(anna: ApiClient, bob: ApiClient, admin: ApiClient) -> None:
    project = anna.good("POST", "/projects", json={"name": "p"})["id"]
    anna.good("PUT", RULES, json=[READS])
    anna.good("PUT", f"{RULES}?scope=project&id={project}", json=[WRITES])
    assert bob.good("GET", RULES) == []
    assert explain(bob, "file_read", {"path": "docs/a"})["rule"] is None
    for other in (bob, admin):
        for wrong in (project, NO_UUID):
            path = f"{RULES}?scope=project&id={wrong}"
            assert other.bad("GET", path, 404)["detail"]["kind"] == "project_not_found"
            assert other.bad("PUT", path, 404, json=[])["detail"]["kind"] == "project_not_found"
    assert without_ids(anna.good("GET", f"{RULES}?scope=project&id={project}")) == [WRITES]
    anna.good("DELETE", f"/projects/{project}")
    anna.bad("GET", f"{RULES}?scope=project&id={project}", 404)


def test_a_tenants_rules_are_set_by_its_admins_seen_by_its_users_and_bind_them_alone(
    admin: ApiClient, anna: ApiClient, server: ServerProcess, document: Document
) -> None:
    path = f"{RULES}?scope=tenant"
    anna.bad("PUT", path, 403, json=[])
    admin.good("PUT", path, json=[{"tool": "file_read", "action": "deny"}])
    assert without_ids(anna.good("GET", path)) == [{"tool": "file_read", "pattern": "*", "action": "deny"}]
    anna.good("PUT", RULES, json=[{"tool": "*", "action": "allow"}])
    refused = anna.bad("POST", "/tools/file_read/execute", 403, json={"arguments": {"path": "a"}})
    assert "the tenant's rule 1 says: deny file_read(*)" in refused["error"]
    tenant_id = admin.good("POST", "/admin/tenants", json={"name": "free"})["id"]
    body = {"username": "eve", "password": PASSWORD, "permission_level": 4, "tenant_id": tenant_id}
    admin.good("POST", "/auth/users", json=body)
    with ApiClient(server, document).sign_in("eve", PASSWORD) as eve:
        eve.good(
            "POST", "/auth/password", json={"current_password": PASSWORD, "new_password": PASSWORD + "2"}
        )
        eve.sign_in("eve", PASSWORD + "2")
        assert eve.good("GET", path) == []
        assert explain(eve, "file_read", {"path": "a"})["action"] == "allow"
        eve.good("PUT", path, json=[{"tool": "*", "action": "deny"}])
    assert len(anna.good("GET", path)) == 1


@pytest.mark.parametrize(
    ("query", "kind"),
    [
        ("?scope=project", "invalid_input"),
        ("?scope=agent", "invalid_input"),
        ("?id=x", "invalid_input"),
        ("?scope=tenant&id=1", "invalid_input"),
        ("?scope=server", "invalid_input"),
        ("?scope=project&id=", "invalid_input"),
    ],
)
def test_an_unknown_scope_is_refused(anna: ApiClient, query: str, kind: str) -> None:
    assert anna.bad("GET", RULES + query, 400)["detail"]["kind"] == kind
    assert anna.bad("PUT", RULES + query, 400, json=[])["detail"]["kind"] == kind


@pytest.mark.parametrize("agent", ["999999999", "0", "x", "99999999999999999999"])
def test_agents_that_do_not_exist_have_no_rules(anna: ApiClient, agent: str) -> None:
    refused = anna.bad("GET", f"{RULES}?scope=agent&id={agent}", 404)
    assert refused["detail"]["kind"] == "agent_not_found"


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        ({"tool": "a", "action": "perhaps"}, "$[0].action"),
        ({"action": "ask"}, "$[0].tool"),
        ({"tool": "", "action": "ask"}, "$[0].tool"),
        ({"tool": "a b", "action": "ask"}, "$[0].tool"),
        ({"tool": "a\n", "action": "deny"}, "$[0].tool"),
        ({"tool": "a" * 65, "action": "ask"}, "$[0].tool"),
        ({"tool": "a", "action": "ask", "pattern": "x" * 4001}, "$[0].pattern"),
        ({"tool": "a", "action": "ask", "pattern": "*a" * 21}, "$[0].pattern"),
        ({"tool": "a", "action": "ask", "pattern": "a\0"}, "$[0].pattern"),
        ({"tool": "a", "action": "ask", "scope": "tenant"}, "$[0].scope"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_an_invalid_rule_is_refused_with_its_path_and_nothing_changes(
    anna: ApiClient, rule: Any, field: str
) -> None:
    anna.good("PUT", RULES, json=[READS])
    refused = anna.bad("PUT", RULES, 400, json=[rule])
    assert list(refused["detail"]["fields"]) == [field]
    assert without_ids(anna.good("GET", RULES)) == [READS]


def test_a_user_may_have_200_rules(anna: ApiClient) -> None:
    assert len(anna.good("PUT", RULES, json=[READS] * 200)) == 200
    anna.bad("PUT", RULES, 400, json=[READS] * 201)


def test_a_tool_run_directly_is_denied_by_rules_and_never_asked_about(admin: ApiClient) -> None:
    body = {"arguments": {"expression": "1 + 1"}}
    for action, status in (("deny", 403), ("ask", 200), ("allow", 200)):
        admin.good("PUT", RULES, json=[{"tool": "python_*", "pattern": "1 + *", "action": action}])
        assert admin.ask("POST", "/tools/python_eval/execute", json=body).status_code == status
    admin.good("PUT", RULES, json=[{"tool": "python_eval", "pattern": "2*", "action": "deny"}])
    admin.good("POST", "/tools/python_eval/execute", json=body)


def test_a_call_that_may_match_a_tenants_deny_rule_is_not_run_directly_either(
    admin: ApiClient, anna: ApiClient
) -> None:
    rule = {"tool": "file_read", "pattern": "secret/*", "action": "deny"}
    admin.good("PUT", f"{RULES}?scope=tenant", json=[rule])
    body = {"arguments": {"path": "/somewhere/secret/a"}}
    refused = anna.bad("POST", "/tools/file_read/execute", 403, json=body)
    assert "not a path within the workspace, so it may be what the tenant's rule 1 denies" in refused["error"]
    anna.good("POST", "/tools/file_read/execute", json={"arguments": {"path": "docs/a"}})


def test_no_explanation_takes_long_enough_to_delay_others(anna: ApiClient) -> None:
    project = anna.good("POST", "/projects", json={"name": "p"})["id"]
    many = [{"tool": "*", "pattern": f"?*a*{number}*x", "action": "deny"} for number in range(200)]
    anna.good("PUT", RULES, json=many)
    anna.good("PUT", f"{RULES}?scope=project&id={project}", json=many)
    began = time.monotonic()
    for tool, arguments in (
        ("file_read", {"path": ["/a"] * 600}),
        ("batch_fetch", {"urls": [f"x{number}" for number in range(600)]}),
    ):
        explanation = explain(anna, tool, arguments, project_id=project)
        assert len(explanation["parts"]) <= MAX_PARTS
    assert time.monotonic() - began < 3


def test_every_outgoing_call_asks_in_a_tainted_run(anna: ApiClient) -> None:
    for tool in ("web_search", "web_fetch", "batch_fetch"):
        assert explain(anna, tool)["action"] == "allow"
        assert explain(anna, tool, tainted="true")["decided_by"] == "taint"


def test_always_is_offered_where_its_rule_would_allow_the_call(anna: ApiClient, admin: ApiClient) -> None:
    unclear = {"command": "echo $HOME > a"}
    explanation = explain(admin, "shell_execute", unclear)
    assert explanation["action"] == "ask"
    assert explanation["because"].endswith(
        "so only a rule for exactly this call, or for all calls, can allow it"
    )
    added = {"tool": "shell_execute", "pattern": explanation["usual"], "action": "allow"}
    admin.good("PUT", RULES, json=[added])
    assert explain(admin, "shell_execute", unclear)["action"] == "allow"
    project = anna.good("POST", "/projects", json={"name": "p"})["id"]
    asking = {"tool": "file_read", "action": "ask"}
    anna.good("PUT", RULES, json=[asking])
    assert explain(anna, "file_read", {"path": "docs/a.md"})["usual"] == "docs/*"
    anna.good("PUT", f"{RULES}?scope=project&id={project}", json=[asking])
    explanation = explain(anna, "file_read", {"path": "docs/a.md"}, project_id=project)
    assert (explanation["action"], explanation["usual"]) == ("ask", None)


def test_the_explanation_names_the_rule_or_what_decides_without_one(
    anna: ApiClient, admin: ApiClient
) -> None:
    project = anna.good("POST", "/projects", json={"name": "p"})["id"]
    anna.good("PUT", RULES, json=[{"tool": "file_*", "action": "ask"}, READS])
    anna.good("PUT", f"{RULES}?scope=project&id={project}", json=[{"tool": "file_read", "action": "deny"}])
    explanation = explain(anna, "file_read", {"path": "docs/a.md"})
    assert (explanation["action"], explanation["decided_by"], explanation["usual"]) == (
        "allow",
        "rule",
        "docs/*",
    )
    assert explanation["rule"] == {**READS, "scope": "user", "scope_id": None, "place": 1}
    assert explanation["because"] == "the user's rule 2 says: allow file_read(docs/*)"
    assert [part["text"] for part in explanation["parts"]] == ["docs/a.md"]
    explanation = explain(anna, "file_read", {"path": "docs/a.md"}, project_id=project)
    assert (explanation["action"], explanation["rule"]["scope"], explanation["rule"]["scope_id"]) == (
        "deny",
        "project",
        project,
    )
    explanation = explain(anna, "file_write", {"path": "a"})
    assert (explanation["action"], explanation["decided_by"], explanation["rule"]) == ("deny", "level", None)
    explanation = explain(anna, "process_data")
    assert (explanation["action"], explanation["decided_by"]) == ("allow", "risk")
    assert explain(anna, "ask_decision")["decided_by"] == "question"
    assert explain(admin, "python_eval")["action"] == "allow"
    explanation = explain(admin, "python_eval", tainted="true")
    assert (explanation["action"], explanation["decided_by"]) == ("ask", "taint")


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({}, 400),
        ({"tool": "no_such_tool"}, 404),
        ({"tool": "file_read", "arguments": "["}, 400),
        ({"tool": "file_read", "arguments": "[]"}, 400),
        ({"tool": "file_read", "arguments": '{"path": 5}'}, 200),
        ({"tool": "file_read", "arguments": "[" * 3_000}, 400),
        ({"tool": "file_read", "project_id": NO_UUID}, 404),
        ({"tool": "file_read", "tainted": "perhaps"}, 400),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_bad_request_for_an_explanation_is_refused(anna: ApiClient, query: Any, status: int) -> None:
    assert anna.ask("GET", "/permissions/explain", params=query).status_code == status


def test_changes_of_rules_are_in_the_audit_log(admin: ApiClient, anna: ApiClient) -> None:
    anna.good("PUT", RULES, json=[READS, WRITES])
    (entry, *_) = admin.good("GET", f"/admin/audit?action=rules_change&user_id={anna.user['id']}")["items"]
    assert (entry["target_type"], entry["target_id"]) == ("user", str(anna.user["id"]))
    assert entry["detail"] == {"count": 2}


def test_what_tools_of_memory_ask_or_refuse_themselves_is_explained(admin: ApiClient) -> None:
    project = admin.good("POST", "/projects", json={"name": "p", "memory": "ask"})["id"]
    agent = admin.good("POST", "/agents", json={"name": "Forgetful", "memory": "off"})["id"]
    admin.good("PUT", RULES, json=[{"tool": "memory_*", "action": "allow"}])
    forgets = {"id": "x"}
    asks, off = ("ask", "memory"), ("deny", "memory")
    for tool, arguments, query, expected, word in (
        ("memory_create", {"content": "x"}, {}, ("allow", "rule"), "allow"),
        ("memory_create", {"content": "x"}, {"project_id": project}, asks, "set to ask"),
        ("memory_create", {"content": "x"}, {"tainted": "true"}, asks, "untrusted"),
        ("memory_create", {"content": "x"}, {"project_id": project, "agent_id": agent}, off, "off here"),
        ("memory_search", {"query": "x"}, {"project_id": project}, ("allow", "rule"), "allow"),
        ("graph_query", {"query": "x"}, {"agent_id": agent}, off, "off here"),
        ("memory_forget", forgets, {}, asks, "for good"),
    ):
        explanation = explain(admin, tool, arguments, **query)
        assert (explanation["action"], explanation["decided_by"]) == expected, (tool, query)
        assert word in explanation["because"]
        assert (explanation["rule"] is None) == (expected[1] == "memory")
    admin.good("PUT", "/settings", json={"memory": "off"})
    assert explain(admin, "memory_search", {"query": "x"})["action"] == "deny"
    admin.good("PUT", "/settings", json={"memory": None})
    assert explain(admin, "memory_search", {"query": "x"})["action"] == "allow"
    admin.good("PUT", RULES, json=[{"tool": "memory_*", "action": "deny"}])
    assert explain(admin, "memory_forget", forgets)["decided_by"] == "rule"
