"""Every tool, at every level, under every kind of rule: all entry points reach the same decision.

The expected decision is that of `/permissions/explain`, which this matrix and `tests/tools/test_rules.py`
check.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from api.client import PASSWORD, ApiClient
from api.conftest import connect, numbers
from api.schema import Document
from api.server_process import ServerProcess
from luxx.providers.scripted import Call, Finish, Rule, Script, ScriptedProvider, Text, When

LEVELS = (1, 2, 3, 4)
ARGUMENTS: dict[str, dict[str, Any]] = {
    "python_eval": {"expression": "1"},
    "python_execute": {"code": "1"},
    "shell_execute": {"command": "true"},
    "file_read": {"path": "a.txt"},
    "file_write": {"path": "b.txt", "content": "b"},
    "file_list": {},
    "file_exists": {"path": "a.txt"},
    "file_grep": {"pattern": "a"},
    "file_glob": {"pattern": "*"},
    "file_edit": {"path": "a.txt", "old_string": "a", "new_string": "b"},
    "file_multi_edit": {"path": "a.txt", "edits": [{"old_string": "a", "new_string": "b"}]},
    "web_search": {"query": " "},  # Of an engine, two processes read what it says.
    "web_fetch": {"url": "http://127.0.0.1:9/"},
    "batch_fetch": {"urls": ["http://127.0.0.1:9/"]},
    "result_read": {"ref": "a"},
    "todo_write": {"todos": [{"title": "a"}]},
    "ui_command": {"command": "refresh", "payload": {"target": "tasks"}},
    "tool_search": {"query": "a"},
    "tool_call": {"name": "a"},
    "delegate": {"task": "a", "tools": []},
    "process_data": {"data": [1], "operation": "minify"},
    "memory_search": {"query": "a"},
    "knowledge_search": {"query": "a"},
    "create_artifact": {"type": "report", "name": "a", "content": "a"},
    "edit_artifact": {"artifact_id": "a", "page": 1, "content": "b"},
    "read_artifact": {"artifact_id": "a"},
    "memory_create": {"content": "a"},
    "memory_forget": {"id": "a"},
    "graph_query": {"query": "MATCH (n) RETURN n"},
    "entity_lookup": {"name": "a"},
    "episode_retrieval": {"query": "a"},
    "summary": {"document_id": "a"},
    "task_get": {"task_id": "a"},
    "task_list": {},
    "task_create": {"name": "a", "goal": "a"},
    "task_update": {"task_id": "a"},
    "task_delete": {"task_id": "a"},
    "task_snooze": {"task_id": "a", "until": None},
    "ask_clarification": {
        "question_type": "scope",
        "question": "Which?",
        "options": [{"label": "this", "is_recommended": True}],
    },
    "ask_decision": {
        "decision_type": "branch",
        "context": "Which way?",
        "options": [{"label": "left", "is_recommended": True}],
    },
}
RULES: dict[str, list[dict[str, str]]] = {
    "none": [],
    "allow": [{"tool": "*", "action": "allow"}],
    "ask": [{"tool": "*", "action": "ask"}],
    "deny": [{"tool": "*", "action": "deny"}],
    "some": [{"tool": "*", "action": "allow"}, {"tool": "file_*", "action": "deny"}],
}
DISTINCT_RULES = ("none", "some")
"""Under these some calls of each level are made, some ask and some are denied."""

ALL_BUT_THE_LOWEST_HEAVY = [
    pytest.param(level, marks=pytest.mark.heavy if level > 1 else ()) for level in LEVELS
]
MIDDLE_LEVELS_HEAVY = [
    pytest.param(level, marks=pytest.mark.heavy if level in (2, 3) else ()) for level in LEVELS
]
"""Each level calls every tool; `make test` runs the lowest and the highest."""

ENTRY_POINTS = ("message", "stream", "branch", "regenerate", "edited", "agent", "invoke")
ASKS_ITSELF = {"memory_forget"}
"""Asks also where rules allow it, but only for a fact that exists."""

ON_DEMAND = {
    "ui_command",
    "tool_search",
    "tool_call",
    "task_get",
    "task_list",
    "task_create",
    "task_update",
    "task_delete",
    "task_snooze",
}
"""Offered only where something asks for them."""

UNATTENDED = {"when_asked": "deny"}


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedProvider]:
    """The model calls all tools at once, whether they are offered or not."""
    every = [Call(name=name, arguments=given, id=f"call-{name}") for name, given in ARGUMENTS.items()]
    rules = [
        Rule(
            when=When(user="everything", has_tool_result=False), reply=[*every, Finish(reason="tool_calls")]
        ),
        Rule(reply=[Text(text="So be it.")]),
    ]
    with ScriptedProvider(Script(rules=rules)) as provider:
        yield provider


@pytest.fixture(scope="module")
def people(
    server: ServerProcess, document: Document, admin: ApiClient, model: ScriptedProvider
) -> Iterator[dict[int, ApiClient]]:
    admin.good("PUT", "/admin/allowed-hosts", json={"hosts": [model.url.removeprefix("http://")]})
    with ExitStack() as stack:
        made: dict[int, ApiClient] = {}
        for level in LEVELS:
            person = stack.enter_context(ApiClient(server, document).register(f"entering{next(numbers)}"))
            admin.good("PUT", f"/auth/users/{person.user['id']}", json={"permission_level": level})
            made[level] = person.sign_in(person.user["username"], PASSWORD)
            connect(person, model)
        yield made


@pytest.fixture(scope="module")
def tools(people: dict[int, ApiClient]) -> dict[str, dict[str, Any]]:
    listed = people[4].good("GET", "/tools?page_size=100")["items"]
    tools_by_name = {tool["name"]: tool for tool in listed}
    assert set(tools_by_name) <= set(ARGUMENTS), "a new tool needs its arguments in this matrix"
    return tools_by_name


_explained: dict[tuple[int, str], dict[str, str]] = {}
"""By user and kind of rules, because it is the same at each entry point."""


def expected(person: ApiClient, tools: dict[str, Any], kind: str) -> dict[str, str]:
    """The expected outcome of each tool's call with these rules, which are in force, from its explanation."""
    known = _explained.get((person.user["id"], kind))
    if known is None:
        known = _explained[person.user["id"], kind] = {
            name: person.good(
                "GET", "/permissions/explain", params={"tool": name, "arguments": json.dumps(ARGUMENTS[name])}
            )["action"]
            for name in tools
        }
    return known


def answered_at(entry_point: str, person: ApiClient) -> dict[str, Any]:
    """The answer to the message "everything" at this entry point."""
    if entry_point == "invoke":
        agent = person.good("POST", "/agents", json={"name": "Any"})["id"]
        return person.good("POST", f"/agents/{agent}/invoke", json={"content": "everything", **UNATTENDED})
    with_agent = {}
    if entry_point == "agent":
        with_agent = {"agent_id": person.good("POST", "/agents", json={"name": "Any"})["id"]}
    conversation = person.good("POST", "/conversations", json=with_agent)["id"]
    body = {"conversation_id": conversation, "content": "everything", **UNATTENDED}
    if entry_point == "stream":
        with person.http.stream("POST", "/messages/stream", json=body) as response:
            assert response.status_code == 200
            response.read()
        return person.good("GET", f"/messages?conversation_id={conversation}&limit=1")["items"][0]
    if entry_point == "branch":
        first = person.good("POST", "/messages", json={**body, "content": "hello"})
        return person.good("POST", "/messages", json={**body, "parent_id": first["id"]})
    if entry_point in ("message", "agent"):
        return person.good("POST", "/messages", json=body)
    words = "everything" if entry_point == "regenerate" else "hello"
    user_message_id = person.good("POST", "/messages", json={**body, "content": words})["parent_id"]
    if entry_point == "edited":
        user_message_id = person.good("PUT", f"/messages/{user_message_id}", json={"content": "everything"})[
            "id"
        ]
    with person.http.stream("POST", f"/messages/{user_message_id}/regenerate", json=UNATTENDED) as response:
        assert response.status_code == 200
        response.read()
    return person.good("GET", f"/messages?conversation_id={conversation}&limit=1")["items"][0]


def rules_at(level: int) -> Iterable[str]:
    """The kinds of rules that are tried at this level: all at the lowest and the highest."""
    return RULES if level in (1, 4) else DISTINCT_RULES


def entries() -> Iterator[Any]:
    """Every entry point with the lowest and the highest level, and with one of the levels between them."""
    for position, entry_point in enumerate(ENTRY_POINTS):
        for level in (1, 2 + position % 2, 4):
            is_quick = entry_point == "message" and level in (1, 4)
            yield pytest.param(level, entry_point, marks=() if is_quick else pytest.mark.heavy)


@pytest.mark.parametrize(("level", "entry_point"), [*entries()])
def test_every_run_makes_the_calls_that_are_allowed_and_no_other(
    people: dict[int, ApiClient], tools: dict[str, dict[str, Any]], level: int, entry_point: str
) -> None:
    person = people[level]
    for kind in RULES if entry_point == "message" else DISTINCT_RULES:
        person.good("PUT", "/permissions/rules", json=RULES[kind])
        wanted = expected(person, tools, kind)
        message = answered_at(entry_point, person)
        results = {step["name"]: step for step in message["steps"] if step["type"] == "tool_result"}
        denied = {name for name in tools if results[name].get("outcome") == "denied"}
        refused = {name for name, action in wanted.items() if action != "allow"}
        refused |= ON_DEMAND
        if kind in ("allow", "some"):
            refused -= {name for name in ASKS_ITSELF if wanted[name] == "ask"}
        assert denied == refused, (kind, entry_point)


@pytest.mark.parametrize("level", MIDDLE_LEVELS_HEAVY)
def test_a_called_agent_makes_the_calls_that_it_offers_and_its_rules_allow(
    people: dict[int, ApiClient], tools: dict[str, dict[str, Any]], level: int
) -> None:
    person = people[level]
    person.good("PUT", "/permissions/rules", json=[])
    offered = {"file_list", "file_exists", "shell_execute", "python_eval"}
    agent = person.good("POST", "/agents", json={"name": "Some", "tools": sorted(offered)})["id"]
    rules = [{"tool": "shell_execute", "action": "allow"}, {"tool": "file_exists", "action": "deny"}]
    person.good("PUT", f"/permissions/rules?scope=agent&id={agent}", json=rules)
    body = {"content": "everything", **UNATTENDED}
    message = person.good("POST", f"/agents/{agent}/invoke", json=body)
    results = {step["name"]: step for step in message["steps"] if step["type"] == "tool_result"}
    made = {name for name in tools if results[name].get("outcome") != "denied"}
    allowed = {name for name in offered if tools[name]["required_permission"] <= level} - {"file_exists"}
    # What the agent offers includes reading results that were cut.
    assert made - {"result_read"} == allowed


@pytest.mark.parametrize("level", ALL_BUT_THE_LOWEST_HEAVY)
def test_a_direct_tool_call_is_refused_where_a_run_would_be_denied_and_asks_nothing(
    people: dict[int, ApiClient], tools: dict[str, dict[str, Any]], level: int
) -> None:
    person = people[level]
    for kind in rules_at(level):
        person.good("PUT", "/permissions/rules", json=RULES[kind])
        wanted = expected(person, tools, kind)
        refused = {
            name
            for name in tools
            if person.ask("POST", f"/tools/{name}/execute", json={"arguments": ARGUMENTS[name]}).status_code
            == 403
        }
        assert refused == {name for name, action in wanted.items() if action == "deny"}, kind


@pytest.mark.parametrize("level", LEVELS)
def test_the_explanation_denies_tools_above_the_level_and_otherwise_follows_the_rules(
    people: dict[int, ApiClient], tools: dict[str, dict[str, Any]], level: int
) -> None:
    person = people[level]
    for kind, rules in RULES.items():
        person.good("PUT", "/permissions/rules", json=rules)
        wanted = expected(person, tools, kind)
        for name, tool in tools.items():
            if tool["required_permission"] > level:
                assert wanted[name] == "deny", (kind, name)
            elif kind == "some":
                allowed = "ask" if name in ASKS_ITSELF else "allow"
                assert wanted[name] == ("deny" if name.startswith("file_") else allowed)
            elif kind == "none":
                assert wanted[name] == "ask" or tool["risk"] != "high", name
            else:
                is_asking = kind == "allow" and name in ASKS_ITSELF
                assert wanted[name] == ("ask" if is_asking else kind), name


def test_refused_calls_of_runs_are_in_the_audit_log(
    server: ServerProcess,
    document: Document,
    people: dict[int, ApiClient],
    admin: ApiClient,
    model: ScriptedProvider,
) -> None:
    # A new user: for a user with many refusals in this minute, the log has only a count.
    with ApiClient(server, document).register("refused") as person:
        connect(person, model)
        person.good("PUT", "/permissions/rules", json=[{"tool": "file_read", "action": "deny"}])
        answered_at("message", person)
        query = f"/admin/audit?action=tool_call&user_id={person.user['id']}&page_size=100"
    entries = admin.good("GET", query)["items"]
    assert "file_read" in {entry["detail"]["name"] for entry in entries}
    assert {entry["outcome"] for entry in entries} == {"refused"}
    # After a minute, the log has a count of the refusals that it did not record, which belongs to no run.
    assert {entry["target_type"] for entry in entries if "count" not in entry["detail"]} == {"run"}


def composed(person: ApiClient, name: str) -> str:
    """Creates a composition of this tool alone. Returns its id."""
    members = [{"id": "only", "tool": name, "arguments": ARGUMENTS[name]}]
    body = {"name": f"only_{name}", "description": "One tool.", "members": members}
    composition_id: str = person.good("POST", "/tools/compositions", json=body)["id"]
    return composition_id


@pytest.mark.parametrize("level", ALL_BUT_THE_LOWEST_HEAVY)
def test_a_member_of_a_composition_is_refused_like_a_call_of_its_own(
    people: dict[int, ApiClient], tools: dict[str, dict[str, Any]], level: int
) -> None:
    """Also a composition that was made at the highest level: its level is that of its tool."""
    person = people[level]
    not_members = ("delegate", "todo_write", "ask_clarification", "ask_decision")
    may_be = {name for name in tools if name not in not_members}
    reached = {name for name in may_be if tools[name]["required_permission"] <= level}
    made = [composed(person, name) for name in reached]
    for kind in rules_at(level):
        about_members = [rule for rule in RULES[kind] if rule["tool"] != "*"]
        about_members += [
            rule | {"tool": name} for rule in RULES[kind] if rule["tool"] == "*" for name in may_be
        ]
        person.good("PUT", "/permissions/rules", json=about_members)
        wanted = expected(person, tools, f"{kind} by name")
        denied: set[str] = set()
        for name in reached:
            executed = person.good("POST", f"/tools/only_{name}/execute", json={})
            denied |= {name} if executed["data"]["members"][0]["status"] == "denied" else set()
        assert denied == {name for name in reached if wanted[name] == "deny"}, kind
    for composition_id in made:
        person.good("DELETE", f"/tools/compositions/{composition_id}")
