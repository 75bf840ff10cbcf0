"""Agents through the API: what they hold, who may use and change them, and what a run takes from them."""

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest

from api.client import PASSWORD, ApiClient
from api.conftest import connect
from luxx.providers.catalog import Catalog
from luxx.providers.scripted import ScriptedProvider

numbers = itertools.count()
SHIPPED = {"Basic", "Code", "Coder", "Explorer", "Operator", "Plan", "Researcher", "Reviewer"}
WRITER = {
    "name": "Writer",
    "role": "writes short texts",
    "system_prompt": "Write plainly.",
    "temperature": 0.3,
    "max_tokens": 500,
    "max_iterations": 2,
    "tools": ["file_read", "file_list"],
    "thinking_enabled": False,
    "reasoning_effort": "low",
}


def last_request(upstream: ScriptedProvider) -> dict[str, Any]:
    """The body of the newest request to the model."""
    body: dict[str, Any] = json.loads(upstream.requests[-1].body)
    return body


def test_an_agent_is_stored_shown_changed_listed_and_deleted(anna: ApiClient) -> None:
    created = anna.good("POST", "/agents", json=WRITER)
    assert {name: created[name] for name in WRITER} == WRITER
    assert (created["is_own"], created["is_shared"], created["is_shipped"]) == (True, False, False)
    assert created["color"].startswith("#")
    path = f"/agents/{created['id']}"
    changed = anna.good("PUT", path, json={"temperature": None, "tools": [], "color": "#ABCDEF"})
    assert (changed["temperature"], changed["tools"], changed["color"]) == (None, [], "#abcdef")
    assert changed["max_tokens"] == WRITER["max_tokens"], "omitted fields do not change"
    assert anna.good("GET", path) == changed
    listed = anna.good("GET", "/agents?page_size=100")["items"]
    assert listed[0] == changed
    assert {agent["name"] for agent in listed[-len(SHIPPED) :]} == SHIPPED
    anna.good("DELETE", path)
    assert anna.bad("GET", path, 404)["detail"]["kind"] == "agent_not_found"


def test_shipped_agents_can_be_used_by_everybody_and_changed_by_nobody(
    anna: ApiClient, admin: ApiClient
) -> None:
    for person in (anna, admin):
        shipped = [one for one in person.good("GET", "/agents?page_size=100")["items"] if one["is_shipped"]]
        assert {agent["name"] for agent in shipped} == SHIPPED
        for agent in shipped:
            path = f"/agents/{agent['id']}"
            assert "comes with Luxx" in person.bad("PUT", path, 403, json={"name": "mine"})["error"]
            assert "comes with Luxx" in person.bad("DELETE", path, 403)["error"]
            rules = f"/permissions/rules?scope=agent&id={agent['id']}"
            assert "comes with Luxx" in person.bad("PUT", rules, 403, json=[])["error"]


def test_a_run_takes_its_values_from_the_agent_and_the_conversation_overrides_them(
    anna: ApiClient, upstream: ScriptedProvider
) -> None:
    agent_id = anna.good("POST", "/agents", json=WRITER)["id"]
    chat = anna.good("POST", "/conversations", json={"agent_id": agent_id})
    assert chat["agent_id"] == agent_id
    anna.good("POST", "/messages", json={"conversation_id": chat["id"], "content": "hello", "tools": True})
    request = last_request(upstream)
    assert request["messages"][0] == {
        "role": "system",
        "content": "You are Writer: writes short texts.\n\nWrite plainly.",
    }
    assert (request["temperature"], request["max_completion_tokens"]) == (0.3, 500)
    offered = {tool["function"]["name"] for tool in request["tools"]}
    assert offered == {"file_read", "file_list", "result_read"}

    overrides = {"temperature": 1.1, "system_prompt": "Rhyme."}
    anna.good("PUT", f"/conversations/{chat['id']}", json=overrides)
    anna.good("POST", "/messages", json={"conversation_id": chat["id"], "content": "hello", "tools": False})
    request = last_request(upstream)
    assert request["messages"][0]["content"] == "Rhyme."
    assert (request["temperature"], request["max_completion_tokens"]) == (1.1, 500)
    assert "tools" not in request

    anna.good("DELETE", f"/agents/{agent_id}")
    assert anna.good("GET", f"/conversations/{chat['id']}")["agent_id"] is None
    refused = anna.bad("POST", "/messages", 409, json={"conversation_id": chat["id"], "content": "hello"})
    assert refused["detail"] == {"kind": "agent_not_found", "lost": {"agent": "Writer"}}
    anna.good("PUT", f"/conversations/{chat['id']}", json={"agent_id": None})
    anna.good("POST", "/messages", json={"conversation_id": chat["id"], "content": "hello"})
    assert last_request(upstream)["max_completion_tokens"] == Catalog().find("scripted").max_output


ROUTED = {
    "name": "Reviewer",
    "role": "reviews code",
    "display_name": "Code reviewer",
    "description": "Reviews changes of Python code for errors.",
    "trigger_type": "hybrid",
    "trigger_patterns": [
        {"pattern": "review this change", "weight": 2.0},
        {"pattern": "审查代码", "weight": 1.0},
    ],
    "enabled": True,
}


def matched(person: ApiClient, text: str) -> list[str]:
    """The names of the agents that the text asks for."""
    found = person.good("POST", "/agents/match", json={"text": text})
    return [match["name"] for match in found["matches"] if match["score"] >= found["threshold"]]


def test_a_text_is_matched_with_the_agents_that_the_caller_may_use(
    join: Callable[..., ApiClient], tenant_id: int
) -> None:
    boss, anna, ben = join(tenant_id, 4), join(tenant_id), join(tenant_id)
    agent = anna.good("POST", "/agents", json=ROUTED)
    assert {name: agent[name] for name in ROUTED} == ROUTED
    text = "Please review this change of the Python code"
    found = anna.good("POST", "/agents/match", json={"text": text})
    best = found["matches"][0]
    assert (best["name"], best["id"], best["scope"]) == ("Reviewer", str(agent["id"]), "user")
    assert best["reasons"] == ["trigger: review this change", "words: review, change, python, code"]
    assert matched(anna, text)[0] == matched(anna, "请审查代码")[0] == "Reviewer"
    others = ben.good("POST", "/agents/match", json={"text": text})["matches"]
    assert {match["scope"] for match in others} == {"system"}, "the agent of somebody else"
    assert matched(anna, "What is a review?") == []
    assert anna.good("POST", "/agents/match", json={"text": "What is a review?"})["is_definition"] is True
    shared = boss.good("POST", "/agents", json=ROUTED | {"is_shared": True})
    found = ben.good("POST", "/agents/match", json={"text": text})["matches"][0]
    assert (found["id"], found["scope"]) == (str(shared["id"]), "tenant")
    document = anna.ask("GET", f"/agents/{agent['id']}/export").text
    copy = anna.good("POST", "/agents/import", content=document)
    kept = [name for name in ROUTED if name != "enabled"]
    assert {name: copy[name] for name in kept} == {name: ROUTED[name] for name in kept}


def test_a_disabled_agent_does_not_answer_and_nothing_takes_its_place(
    anna: ApiClient, join: Callable[..., ApiClient], tenant_id: int, upstream: ScriptedProvider
) -> None:
    agent = anna.good("POST", "/agents", json=ROUTED)
    path = f"/agents/{agent['id']}"
    chat = anna.good("POST", "/conversations", json={"agent_id": agent["id"]})
    room = {"title": "Talk", "task": "Discuss.", "agents": [{"agent_id": agent["id"]}, {"name": "B"}]}
    room = anna.good("POST", "/chat-rooms", json=room)
    step = {"id": "a", "name": "A", "agent_id": agent["id"]}
    task = anna.good("POST", "/tasks", json={"name": "t", "goal": "g", "steps": [step]})
    join(tenant_id).bad("PATCH", f"{path}/enable", 404, json={"enabled": False})
    assert anna.good("PATCH", f"{path}/enable", json={"enabled": False})["enabled"] is False
    before = len(upstream.requests)
    for method, where, body in (
        ("POST", "/messages", {"conversation_id": chat["id"], "content": "hello"}),
        ("POST", f"{path}/invoke", {"content": "hello"}),
        ("POST", f"/chat-rooms/{room['id']}/start", None),
        ("POST", f"/tasks/{task['id']}/execute", None),
    ):
        refused = anna.bad(method, where, 409, json=body)
        assert refused["detail"] == {"kind": "agent_disabled", "agent_id": agent["id"]}, where
        assert "'Reviewer'" in refused["error"]
    assert "Reviewer" not in matched(anna, "review this change of the Python code")
    assert len(upstream.requests) == before
    anna.good("PATCH", f"{path}/enable", json={"enabled": True})
    message = anna.good("POST", "/messages", json={"conversation_id": chat["id"], "content": "hello"})
    assert message["text"] == "Hello there."


def test_an_agent_limits_the_model_calls_of_a_run(anna: ApiClient, upstream: ScriptedProvider) -> None:
    agent = anna.good("POST", "/agents", json={"name": "brief", "max_iterations": 1})
    chat = anna.good("POST", "/conversations", json={"agent_id": agent["id"]})
    body = {"conversation_id": chat["id"], "content": "use a tool", "tools": True}
    before = len(upstream.requests)
    message = anna.good("POST", "/messages", json=body)
    run = anna.good("GET", f"/runs?subject_id={chat['id']}")["items"][0]
    assert run["stop_reason"] == "max_iterations"
    assert message["text"] == "Hello there."
    calls = [json.loads(request.body) for request in upstream.requests[before:]]
    assert [body.get("tool_choice") for body in calls] == [None, "none"], (
        "the second call asks for the final text"
    )


def test_sharing_is_for_administrators_and_needs_a_shared_provider(
    join: Callable[..., ApiClient], tenant_id: int, upstream: ScriptedProvider
) -> None:
    boss, user, stranger = join(tenant_id, 4), join(tenant_id), join(tenant_id)
    assert (
        "only an administrator"
        in user.bad("POST", "/agents", 403, json={"name": "a", "is_shared": True})["error"]
    )
    provider_id = connect(boss, upstream)
    body = {"name": "Team", "provider_id": provider_id, "is_shared": True}
    refused = boss.bad("POST", "/agents", 400, json=body)
    assert refused["detail"]["kind"] == "provider_not_shared"
    assert list(refused["detail"]["fields"]) == ["$.provider_id"]
    boss.good("PUT", f"/providers/{provider_id}", json={"is_shared": True})
    agent = boss.good("POST", "/agents", json=body)
    path = f"/agents/{agent['id']}"

    shown = user.good("GET", path)
    assert (shown["is_shared"], shown["is_own"]) == (True, False)
    user.good("POST", "/conversations", json={"agent_id": agent["id"]})
    assert "only administrators change it" in user.bad("PUT", path, 403, json={"name": "mine"})["error"]
    assert "only administrators change it" in user.bad("DELETE", path, 403)["error"]
    second = join(tenant_id, 4)
    assert "another administrator" in second.bad("PUT", path, 403, json={"name": "mine"})["error"]
    second.good("PUT", path, json={"is_shared": False})
    assert stranger.bad("GET", path, 404)["detail"]["kind"] == "agent_not_found"
    assert boss.good("GET", path)["is_shared"] is False


def test_a_conversation_says_when_its_agent_is_no_longer_shared(
    join: Callable[..., ApiClient], tenant_id: int, upstream: ScriptedProvider
) -> None:
    boss, user = join(tenant_id, 4), join(tenant_id)
    connect(user, upstream)
    agent = boss.good("POST", "/agents", json={"name": "Team", "is_shared": True})
    chat = user.good("POST", "/conversations", json={"agent_id": agent["id"]})
    body = {"conversation_id": chat["id"], "content": "hello"}
    user.good("POST", "/messages", json=body)
    boss.good("PUT", f"/agents/{agent['id']}", json={"is_shared": False})
    refused = user.bad("POST", "/messages", 409, json=body)
    assert "no longer shared with you" in refused["error"]
    user.good("PUT", f"/conversations/{chat['id']}", json={"agent_id": None})
    user.good("POST", "/messages", json=body)


def test_an_agent_whose_provider_is_no_longer_shared_says_so_to_others(
    join: Callable[..., ApiClient], tenant_id: int, upstream: ScriptedProvider
) -> None:
    boss, user = join(tenant_id, 4), join(tenant_id)
    provider_id = connect(boss, upstream)
    boss.good("PUT", f"/providers/{provider_id}", json={"is_shared": True})
    agent = boss.good("POST", "/agents", json={"name": "Team", "provider_id": provider_id, "is_shared": True})
    chat = user.good("POST", "/conversations", json={"agent_id": agent["id"]})
    body = {"conversation_id": chat["id"], "content": "hello"}
    user.good("POST", "/messages", json=body)
    boss.good("PUT", f"/providers/{provider_id}", json={"is_shared": False})
    own_id = connect(user, upstream)
    invoke = f"/agents/{agent['id']}/invoke"
    for refused in (
        user.bad("POST", "/messages", 409, json=body),
        user.bad("POST", invoke, 409, json={"content": "hello"}),
    ):
        assert refused["detail"]["kind"] == "provider_not_found"
        assert (
            "the provider 'scripted' of the agent 'Team' was deleted or is no longer shared"
            in refused["error"]
        )
    assert user.bad("POST", invoke, 404, json={"content": "hello", "provider_id": provider_id})
    user.good("POST", invoke, json={"content": "hello", "provider_id": own_id})
    user.good("PUT", f"/conversations/{chat['id']}", json={"provider_id": own_id})
    user.good("POST", "/messages", json=body)
    boss.good("POST", invoke, json={"content": "hello"})


def test_the_default_agent_of_a_tenant_is_that_of_new_conversations(
    join: Callable[..., ApiClient], tenant_id: int
) -> None:
    boss, user = join(tenant_id, 4), join(tenant_id)
    private = boss.good("POST", "/agents", json={"name": "Private"})["id"]
    refused = boss.bad("PUT", "/tenant", 400, json={"default_agent_id": private})
    assert refused["detail"]["kind"] == "agent_not_shared"
    boss.good("PUT", f"/agents/{private}", json={"is_shared": True})
    assert boss.good("PUT", "/tenant", json={"default_agent_id": private})["default_agent_id"] == private
    assert user.good("POST", "/conversations", json={})["agent_id"] == private
    assert user.good("POST", "/conversations", json={"agent_id": None})["agent_id"] is None
    boss.good("PUT", f"/agents/{private}", json={"is_shared": False})
    tenant = boss.good("GET", "/tenant")
    assert (tenant["default_agent_id"], tenant["lost_default_agent"]) == (None, "Private")
    refused = user.bad("POST", "/conversations", 409, json={})
    assert refused["detail"] == {"kind": "agent_not_found", "lost": {"agent": "Private"}}
    assert user.good("POST", "/conversations", json={"agent_id": None})["agent_id"] is None
    assert boss.good("PUT", "/tenant", json={"default_agent_id": None})["lost_default_agent"] is None
    assert user.good("POST", "/conversations", json={})["agent_id"] is None
    basic = next(one for one in boss.good("GET", "/agents")["items"] if one["name"] == "Basic")
    boss.good("PUT", "/tenant", json={"default_agent_id": basic["id"]})
    assert user.good("POST", "/conversations", json={})["agent_id"] == basic["id"]


def test_agents_of_another_tenant_are_no_default(
    join: Callable[..., ApiClient], tenant_id: int, admin: ApiClient
) -> None:
    elsewhere = admin.good("POST", "/admin/tenants", json={"name": f"agents {next(numbers)}"})["id"]
    boss, other_boss = join(tenant_id, 4), join(elsewhere, 4)
    agent = boss.good("POST", "/agents", json={"name": "Team", "is_shared": True})["id"]
    for refused in (
        other_boss.bad("PUT", "/tenant", 404, json={"default_agent_id": agent}),
        admin.bad("PUT", f"/admin/tenants/{elsewhere}", 404, json={"default_agent_id": agent}),
        admin.bad("POST", "/admin/tenants", 404, json={"name": "new one", "default_agent_id": agent}),
    ):
        assert refused["detail"]["kind"] == "agent_not_found"
    admin.good("PUT", f"/admin/tenants/{tenant_id}", json={"default_agent_id": agent})


def test_an_administrator_who_moves_takes_shared_agents_along_and_no_tenant_keeps_one_as_default(
    join: Callable[..., ApiClient], tenant_id: int, admin: ApiClient
) -> None:
    elsewhere = admin.good("POST", "/admin/tenants", json={"name": f"agents {next(numbers)}"})["id"]
    boss, second, user = join(tenant_id, 4), join(tenant_id, 4), join(tenant_id)
    agent = boss.good("POST", "/agents", json={"name": "Team", "is_shared": True})["id"]
    boss.good("PUT", "/tenant", json={"default_agent_id": agent})
    admin.good("PUT", f"/auth/users/{boss.user['id']}", json={"tenant_id": elsewhere})
    assert second.good("GET", "/tenant")["lost_default_agent"] == "Team"
    assert user.bad("POST", "/conversations", 409, json={})["detail"]["lost"] == {"agent": "Team"}
    assert user.bad("GET", f"/agents/{agent}", 404)["detail"]["kind"] == "agent_not_found"
    boss.sign_in(boss.user["username"], PASSWORD)
    moved = boss.good("GET", f"/agents/{agent}")
    assert (moved["is_own"], moved["is_shared"]) == (True, False)


@pytest.mark.parametrize("format", ["yaml", "json"])
def test_an_exported_agent_imports_as_an_equal_one(
    join: Callable[..., ApiClient], tenant_id: int, upstream: ScriptedProvider, format: str
) -> None:
    owner, other = join(tenant_id), join(tenant_id)
    provider_id = connect(owner, upstream)
    body = {
        **WRITER,
        "provider_id": provider_id,
        "model": "scripted",
        "system_prompt": "Write plainly.\n\n- no: colons\n- no # signs  \n\tnor tabs",
        "fallbacks": [{"provider_id": provider_id, "model": None}],
        "mcp_servers": [],
    }
    agent = owner.good("POST", "/agents", json=body)
    rules = [{"tool": "shell_execute", "pattern": "git *", "action": "deny"}]
    owner.good("PUT", f"/permissions/rules?scope=agent&id={agent['id']}", json=rules)
    exported = owner.ask("GET", f"/agents/{agent['id']}/export?format={format}").text
    copy = owner.good("POST", "/agents/import", content=exported)
    assert copy.pop("rules") == rules
    varying = {"id", "created_at", "updated_at"}
    assert {name: copy[name] for name in copy if name not in varying} == {
        name: agent[name] for name in agent if name not in varying
    }
    copied = owner.good("GET", f"/permissions/rules?scope=agent&id={copy['id']}")
    assert [{name: rule[name] for name in rules[0]} for rule in copied] == rules
    refused = other.bad("POST", "/agents/import", 400, content=exported)
    missing = "there is no provider named 'scripted'; GET /providers lists yours"
    assert refused["detail"]["fields"] == {"$.provider": missing, "$.fallbacks[0].provider": missing}
    assert all(one["is_shipped"] for one in other.good("GET", "/agents")["items"]), "nothing was created"


DOCUMENT = "version: 1\nname: Imported\n"
BAD_DOCUMENTS = {
    "": "$",
    "just text": "$",
    "name: Imported\n": "$.version",
    DOCUMENT + "colour: red\n": "$.colour",
    DOCUMENT + "color: red\n": "$.color",
    DOCUMENT + "temperature: hot\n": "$.temperature",
    DOCUMENT + "tools: file_read\n": "$.tools",
    DOCUMENT + "tools: [no_such_tool]\n": "$.tools",
    DOCUMENT + "skills: [no_such_skill]\n": "$.skills",
    DOCUMENT + "rules: [{tool: shell_execute, action: perhaps}]\n": "$.rules[0].action",
    DOCUMENT + "max_iterations: 0\n": "$.max_iterations",
    "version: 2\nname: Imported\n": "$.version",
    "version: 1\nname: ''\n": "$.name",
}
UNREADABLE = {
    "a: [1": "not valid YAML",
    "version: 1\nname: a\nname: b\n": "twice",
    "a: &x [1]\nb: *x": "alias",
    "[" * 50: "nested",
    "a: 2026-06-31": "cannot be read",
    "a: !!python/object:os.system 1": "not valid YAML",
}


@pytest.mark.parametrize("text", BAD_DOCUMENTS)
def test_a_wrong_document_is_refused_with_the_path_of_the_field(anna: ApiClient, text: str) -> None:
    before = anna.good("GET", "/agents")["total"]
    refused = anna.bad("POST", "/agents/import", 400, content=text)
    assert list(refused["detail"]["fields"]) == [BAD_DOCUMENTS[text]]
    assert anna.good("GET", "/agents")["total"] == before


def test_unknown_and_mistyped_fields_of_a_document_do_not_hide_its_other_problems(anna: ApiClient) -> None:
    rules = [{"tool": "a*" * 21, "action": "allow"}, {"tool": "file_read", "actions": "allow"}]
    document = {
        "version": 1, "name": "Imported", "colour": "red", "temperature": "hot", "provider": "none",
        "fallbacks": [{"provider": "none"}, {"model": "m"}], "tools": ["no_such_tool"], "rules": rules,
    }  # fmt: skip
    refused = anna.bad("POST", "/agents/import", 400, content=json.dumps(document))
    assert set(refused["detail"]["fields"]) == {
        "$.colour", "$.temperature", "$.provider", "$.fallbacks[0].provider", "$.fallbacks[1].provider",
        "$.tools", "$.rules[0].tool", "$.rules[1].actions", "$.rules[1].action",
    }  # fmt: skip


@pytest.mark.parametrize("text", UNREADABLE)
def test_an_unreadable_document_is_refused_with_a_sentence(anna: ApiClient, text: str) -> None:
    assert UNREADABLE[text] in anna.bad("POST", "/agents/import", 400, content=text)["error"]


def test_the_rules_of_an_agent_apply_to_its_runs_and_of_a_shared_one_only_its_restrictions(
    join: Callable[..., ApiClient], tenant_id: int
) -> None:
    boss, user = join(tenant_id, 4), join(tenant_id, 3)
    agent = boss.good("POST", "/agents", json={"name": "Team", "is_shared": True})["id"]
    rules = [
        {"tool": "shell_execute", "pattern": "git *", "action": "allow"},
        {"tool": "shell_execute", "pattern": "git push *", "action": "deny"},
    ]
    path = f"/permissions/rules?scope=agent&id={agent}"
    assert [one["scope_id"] for one in boss.good("PUT", path, json=rules)] == [str(agent)] * 2
    assert user.bad("PUT", path, 403, json=[])["code"] == 403
    assert len(user.good("GET", path)) == 2

    def action(person: ApiClient, command: str, **more: Any) -> str:
        arguments = json.dumps({"command": command})
        query = {"tool": "shell_execute", "arguments": arguments, **more}
        verdict: dict[str, Any] = person.good("GET", "/permissions/explain", params=query)
        return str(verdict["action"])

    assert action(boss, "git status", agent_id=agent) == "allow"
    assert action(boss, "git status") == "ask"
    assert action(user, "git status", agent_id=agent) == "ask", "the owner cannot allow calls of others"
    assert action(user, "git push x", agent_id=agent) == "deny"
    assert action(user, "git push x") == "ask"


def test_an_agent_answers_without_a_conversation(anna: ApiClient, upstream: ScriptedProvider) -> None:
    agent_id = anna.good("POST", "/agents", json=WRITER)["id"]
    before = [anna.good("GET", path)["total"] for path in ("/conversations", "/search?q=Hello")]
    body = {"content": "hello", "attachments": [{"name": "a", "extension": "txt", "content": "inside"}]}
    message = anna.good("POST", f"/agents/{agent_id}/invoke", json=body)
    assert (message["text"], message["status"], message["conversation_id"]) == (
        "Hello there.",
        "complete",
        None,
    )
    request = last_request(upstream)
    assert request["messages"][0]["content"].endswith("Write plainly.")
    assert "inside" in request["messages"][1]["content"]
    after = [anna.good("GET", path)["total"] for path in ("/conversations", "/search?q=Hello")]
    assert after == before, "no conversation was created, and search finds conversations only"

    (run,) = anna.good("GET", f"/agents/{agent_id}/activities")["items"]
    assert (run["subject_id"], run["status"], run["message_id"]) == (
        str(agent_id),
        "completed",
        message["id"],
    )
    events = anna.good(
        "GET", f"/runs/{run['id']}/events?from_sequence=0", headers={"accept": "application/json"}
    )["events"]
    assert events[-1]["type"] == "done"


def test_a_called_agent_streams_like_a_message(anna: ApiClient) -> None:
    agent_id = anna.good("POST", "/agents", json=WRITER)["id"]
    headers = {"accept": "text/event-stream"}
    path = f"/agents/{agent_id}/invoke"
    with anna.http.stream("POST", path, json={"content": "hello"}, headers=headers) as stream:
        text = stream.read().decode()
    events = [line.removeprefix("event: ") for line in text.splitlines() if line.startswith("event: ")]
    assert (events[0], events[-1]) == ("run", "done")
    assert "process_step" in events


def test_a_called_agent_that_fails_is_reported_like_a_message(anna: ApiClient) -> None:
    agent_id = anna.good("POST", "/agents", json=WRITER)["id"]
    failed = anna.bad("POST", f"/agents/{agent_id}/invoke", 502, json={"content": "refuse this"})
    assert set(failed["detail"]) >= {"run_id", "message_id"}
    assert (
        "visible character"
        in anna.bad("POST", f"/agents/{agent_id}/invoke", 400, json={"content": " "})["error"]
    )


def test_activities_are_the_own_runs_with_the_agent(
    join: Callable[..., ApiClient], tenant_id: int, upstream: ScriptedProvider
) -> None:
    boss, user = join(tenant_id, 4), join(tenant_id)
    connect(user, upstream)
    agent_id = boss.good("POST", "/agents", json={"name": "Team", "is_shared": True})["id"]
    chat = user.good("POST", "/conversations", json={"agent_id": agent_id})
    user.good("POST", "/messages", json={"conversation_id": chat["id"], "content": "hello"})
    user.good("POST", f"/agents/{agent_id}/invoke", json={"content": "hello"})
    activities = user.good("GET", f"/agents/{agent_id}/activities")["items"]
    assert [run["subject_id"] for run in activities] == [str(agent_id), chat["id"]]
    assert boss.good("GET", f"/agents/{agent_id}/activities")["items"] == []


def test_the_first_choice_of_a_model_setting_counts(
    join: Callable[..., ApiClient], tenant_id: int, upstream: ScriptedProvider
) -> None:
    """The message, the conversation, its agent, the user's settings: in this order."""
    person = join(tenant_id)
    connect(person, upstream, provider_type="openrouter")
    agent = person.good("POST", "/agents", json={"name": "Thinker"})
    chat = person.good("POST", "/conversations", json={"agent_id": agent["id"]})

    def reasoning(**options: Any) -> Any:
        body = {"conversation_id": chat["id"], "content": "hello", **options}
        person.good("POST", "/messages", json=body)
        return last_request(upstream).get("reasoning")

    assert reasoning() is None
    person.good("PUT", "/settings", json={"thinking_enabled": True})
    assert reasoning() == {"enabled": True}
    person.good("PUT", "/settings", json={"reasoning_effort": "low"})
    assert reasoning() == {"effort": "low"}
    person.good("PUT", f"/agents/{agent['id']}", json={"reasoning_effort": "medium"})
    assert reasoning() == {"effort": "medium"}
    person.good("PUT", f"/conversations/{chat['id']}", json={"reasoning_effort": "high"})
    assert reasoning() == {"effort": "high"}
    assert reasoning(reasoning_effort="low") == {"effort": "low"}
    assert reasoning(thinking_enabled=False, reasoning_effort="low") is None
    person.good("PUT", f"/conversations/{chat['id']}", json={"reasoning_effort": None})
    assert reasoning() == {"effort": "medium"}
    assert reasoning(temperature=0.7, max_tokens=90) == {"effort": "medium"}
    request = last_request(upstream)
    assert (request["temperature"], request["max_tokens"]) == (0.7, 90)
    person.good("PUT", "/settings", json={"max_tokens": 2**31 - 1})
    assert person.good("GET", "/settings")["max_tokens"] == 2**31 - 1
    assert reasoning() == {"effort": "medium"}


def test_a_seat_thinks_as_much_as_it_or_its_agent_says(
    join: Callable[..., ApiClient], upstream: ScriptedProvider
) -> None:
    person = join()
    connect(person, upstream, provider_type="openrouter")
    thinks = {"thinking_enabled": True, "reasoning_effort": "high"}
    agent = person.good("POST", "/agents", json={"name": "Thinker", **thinks})
    seats = [{"agent_id": agent["id"]}, {"agent_id": agent["id"], "name": "Brief", "reasoning_effort": "low"}]
    room = person.good(
        "POST", "/chat-rooms", json={"title": "Thinking", "task": "Think.", "max_rounds": 1, "agents": seats}
    )
    begun = len(upstream.requests)
    with person.http.stream("POST", f"/chat-rooms/{room['id']}/start") as stream:
        stream.read()
    requests = [json.loads(request.body) for request in upstream.requests[begun:]]
    assert [request["reasoning"] for request in requests] == [{"effort": "high"}, {"effort": "low"}]


def test_the_statistics_of_an_agent_are_the_sums_over_chats_rooms_and_steps(
    join: Callable[..., ApiClient], tenant_id: int, upstream: ScriptedProvider
) -> None:
    boss, member = join(tenant_id, 4), join(tenant_id)
    provider_id = connect(boss, upstream)
    boss.good("PUT", f"/providers/{provider_id}", json={"is_shared": True})
    body = {"name": f"Counted {next(numbers)}", "provider_id": provider_id, "is_shared": True}
    agent = boss.good("POST", "/agents", json=body)
    path, agent_id = f"/agents/{agent['id']}/stats", agent["id"]
    unused = boss.good("GET", path)
    assert unused == {
        "scope": "tenant", "total_invocations": 0, "failures": 0, "success_rate": None,
        "avg_execution_time_ms": None, "total_tokens": 0, "total_cost": None, "last_used_at": None,
    }  # fmt: skip
    boss.good("POST", f"/agents/{agent_id}/invoke", json={"content": "hello"})
    boss.ask("POST", f"/agents/{agent_id}/invoke", json={"content": "refuse this"})
    seats = {"title": "r", "task": "t", "max_rounds": 1, "agents": [{"agent_id": agent_id}]}
    room = boss.good("POST", "/chat-rooms", json=seats)["id"]
    with boss.http.stream("POST", f"/chat-rooms/{room}/start") as stream:
        stream.read()
    step = {"id": "a", "name": "Do it", "agent_id": agent_id}
    task = boss.good("POST", "/tasks", json={"name": "t", "goal": "g", "steps": [step]})["id"]
    with boss.http.stream("POST", f"/tasks/{task}/execute") as stream:
        stream.read()
    member.good("POST", f"/agents/{agent_id}/invoke", json={"content": "hello"})
    stats, own = boss.good("GET", path), member.good("GET", path)
    counted = ("scope", "total_invocations", "failures", "success_rate", "total_tokens")
    # The refused call has no tokens: four answers of five tokens each.
    assert [stats[name] for name in counted] == ["tenant", 5, 1, 0.8, 20]
    assert [own[name] for name in counted] == ["own", 1, 0, 1.0, 5]
    runs = boss.good("GET", f"/agents/{agent_id}/activities")["items"]
    assert (len(runs), sum(run["usage"]["total_tokens"] for run in runs)) == (2, 5)
    assert stats["avg_execution_time_ms"] > 0
    assert stats["last_used_at"] == own["last_used_at"]
    boss.good("DELETE", f"/chat-rooms/{room}")
    left = boss.good("GET", path)
    assert (left["total_invocations"], left["total_tokens"]) == (4, 20)


def test_the_rules_of_shipped_agents_hold_for_everybody_and_are_shown_to_all(
    join: Callable[..., ApiClient], tenant_id: int
) -> None:
    user = join(tenant_id, 3)
    agents = {one["name"]: one["id"] for one in user.good("GET", "/agents?page_size=100")["items"]}
    commands = {
        "Explorer": {"ls": "deny"},
        "Coder": {"sudo ls": "deny", "git push origin": "deny", "rm a.txt": "ask"},
        "Operator": {"ls": "ask", "sudo ls": "deny", "rm -rf a": "deny"},
    }
    for name, verdicts in commands.items():
        shown = user.good("GET", f"/permissions/rules?scope=agent&id={agents[name]}")
        assert shown, name
        assert [rule["scope_id"] for rule in shown] == [str(agents[name])] * len(shown)
        user.bad("PUT", f"/permissions/rules?scope=agent&id={agents[name]}", 403, json=[])
        for command, verdict in verdicts.items():
            query = {"tool": "shell_execute", "arguments": json.dumps({"command": command})}
            query |= {"agent_id": str(agents[name])}
            explained = user.good("GET", "/permissions/explain", params=query)
            assert explained["action"] == verdict, (name, command, explained)
    exported = user.ask("GET", f"/agents/{agents['Coder']}/export?format=json").json()
    assert {"tool": "shell_execute", "pattern": "sudo *", "action": "deny"} in exported["rules"]
