"""What is deleted, disabled or taken away stops what used it: nothing that a person chose is replaced."""

import itertools
from typing import Any

import pytest

from api.client import KEY, PASSWORD, ApiClient
from api.conftest import Join, connect
from api.room_rows import new_room
from api.server_process import ServerProcess
from luxx.providers.scripted import ScriptedProvider

numbers = itertools.count()


@pytest.fixture(scope="module")
def server(own_server: ServerProcess) -> ServerProcess:
    """Without the shared providers of other modules, of which one would be the default."""
    return own_server


@pytest.fixture
def user(join: Join, upstream: ScriptedProvider) -> ApiClient:
    """A user with a default provider, which must never get what was meant for another."""
    person = join(level=2)
    connect(person, upstream)
    return person


def chosen(person: ApiClient, upstream: ScriptedProvider, **more: Any) -> int:
    """A further provider named "chosen", which is no default."""
    provider_id = connect(person, upstream)
    first = person.good("GET", "/providers")["items"][-1]["id"]
    person.good("PUT", f"/providers/{first}", json={"is_default": True})
    person.good("PUT", f"/providers/{provider_id}", json={"name": "chosen", **more})
    return provider_id


def say(person: ApiClient, conversation: dict[str, Any], status: int, **more: Any) -> dict[str, Any]:
    body = {"conversation_id": conversation["id"], "content": "a secret", **more}
    if status == 200:
        answer: dict[str, Any] = person.good("POST", "/messages", json=body)
        return answer
    return person.bad("POST", "/messages", status, json=body)


def ended(person: ApiClient, task: dict[str, Any]) -> list[dict[str, Any]]:
    """The steps of a task after its execution."""
    person.ask("POST", f"/tasks/{task['id']}/execute")
    steps: list[dict[str, Any]] = person.good("GET", f"/tasks/{task['id']}")["steps"]
    return steps


def refusal(answer: dict[str, Any], kind: str, name: str) -> None:
    """An error of this kind that names what is gone and tells what to do."""
    assert answer["detail"]["kind"] == kind
    assert f"'{name}'" in answer["error"]
    assert "choose another" in answer["error"]


def test_a_conversation_does_not_go_on_with_another_provider(
    user: ApiClient, upstream: ScriptedProvider
) -> None:
    provider_id = chosen(user, upstream)
    body = {"provider_id": provider_id, "model": "only-there"}
    conversation = user.good("POST", "/conversations", json=body)
    path = f"/conversations/{conversation['id']}"
    assert user.good("GET", f"/providers/{provider_id}/uses")["conversations"] == 1
    assert user.good("DELETE", f"/providers/{provider_id}")["conversations"] == 1

    refusal(say(user, conversation, 409), "provider_not_found", "chosen")
    shown = user.good("GET", path)
    assert (shown["provider_id"], shown["lost_provider"]) == (None, "chosen")
    fork = user.good("POST", f"{path}/fork", json={})
    refusal(say(user, fork, 409), "provider_not_found", "chosen")
    default = user.good("GET", "/providers")["items"][0]["id"]
    assert say(user, conversation, 200, provider_id=default)["model"] == "scripted"

    shown = user.good("PUT", path, json={"provider_id": None})
    assert (shown["lost_provider"], shown["model"]) == (None, None)
    assert say(user, conversation, 200)["model"] == "scripted"


def test_an_agent_does_not_go_on_with_another_provider(user: ApiClient, upstream: ScriptedProvider) -> None:
    provider_id = chosen(user, upstream)
    body = {"name": "Guide", "provider_id": provider_id, "model": "only-there"}
    agent = user.good("POST", "/agents", json=body)
    invoke = f"/agents/{agent['id']}/invoke"
    room = new_room(user, agents=[{"agent_id": agent["id"]}])
    task = user.good("POST", "/tasks", json={"name": "T", "goal": "G", "agent_id": agent["id"]})
    assert user.good("DELETE", f"/providers/{provider_id}")["agents"] == 1

    refusal(user.bad("POST", invoke, 409, json={"content": "a secret"}), "provider_not_found", "chosen")
    conversation = user.good("POST", "/conversations", json={"agent_id": agent["id"]})
    refusal(say(user, conversation, 409), "provider_not_found", "chosen")
    refusal(user.bad("POST", f"/chat-rooms/{room['id']}/start", 409), "provider_not_found", "chosen")
    refusal(user.bad("POST", f"/tasks/{task['id']}/execute", 409), "provider_not_found", "chosen")
    assert user.good("GET", f"/agents/{agent['id']}")["lost_provider"] == "chosen"
    changed = user.good("PUT", f"/agents/{agent['id']}", json={"provider_id": None})
    assert (changed["lost_provider"], changed["model"]) == (None, None)
    assert user.good("POST", invoke, json={"content": "hello"})["model"] == "scripted"


def test_seats_tasks_and_policies_do_not_go_on_with_another_provider(
    user: ApiClient, upstream: ScriptedProvider
) -> None:
    provider_id = chosen(user, upstream)
    room = new_room(user, agents=[{"name": "A", "provider_id": provider_id}])
    policy = {"name": "selector", "provider_id": provider_id}
    selecting = new_room(user, "A", "B", policy=policy)
    task = user.good("POST", "/tasks", json={"name": "T", "goal": "G", "provider_id": provider_id})
    uses = user.good("DELETE", f"/providers/{provider_id}")
    assert (uses["seats"], uses["tasks"]) == (1, 1)

    refusal(user.bad("POST", f"/chat-rooms/{room['id']}/start", 409), "provider_not_found", "chosen")
    (seat,) = user.good("GET", f"/chat-rooms/{room['id']}/agents")
    assert (seat["provider_id"], seat["lost_provider"]) == (None, "chosen")
    seat = user.good("PUT", f"/chat-rooms/{room['id']}/agents/{seat['id']}", json={"provider_id": None})
    assert seat["lost_provider"] is None
    user.good("POST", f"/chat-rooms/{room['id']}/start", headers={"accept": "application/json"})

    refused = user.bad("POST", f"/chat-rooms/{selecting['id']}/start", 409)
    assert refused["detail"]["kind"] == "provider_not_found"
    assert "the policy selector" in refused["error"]

    refusal(user.bad("POST", f"/tasks/{task['id']}/execute", 409), "provider_not_found", "chosen")
    assert user.good("GET", f"/tasks/{task['id']}")["lost_provider"] == "chosen"
    assert user.good("PUT", f"/tasks/{task['id']}", json={"provider_id": None})["lost_provider"] is None


def test_a_default_provider_is_not_replaced_by_another(user: ApiClient, upstream: ScriptedProvider) -> None:
    other = chosen(user, upstream)
    (default,) = (one["id"] for one in user.good("GET", "/providers")["items"] if one["is_default"])
    conversation = user.good("POST", "/conversations", json={})
    user.good("PUT", f"/providers/{default}", json={"enabled": False, "name": "mine"})
    assert say(user, conversation, 400)["detail"]["kind"] == "provider_disabled"
    user.good("DELETE", f"/providers/{default}")
    refusal(say(user, conversation, 409), "provider_not_found", "mine")
    assert user.good("GET", "/settings")["lost_default_provider"] == "mine"
    user.good("PUT", f"/providers/{other}", json={"is_default": True})
    assert user.good("GET", "/settings")["lost_default_provider"] is None
    say(user, conversation, 200)

    user.good("PUT", "/settings", json={"default_provider_id": other})
    user.good("PUT", f"/providers/{other}", json={"enabled": False})
    connect(user, upstream)
    assert say(user, conversation, 400)["detail"]["kind"] == "provider_disabled"
    user.good("DELETE", f"/providers/{other}")
    refusal(say(user, conversation, 409), "provider_not_found", "chosen")
    user.good("PUT", "/settings", json={"default_provider_id": None})
    say(user, conversation, 200)


def test_what_an_administrator_stops_sharing_is_not_replaced(
    join: Join, tenant_id: int, upstream: ScriptedProvider
) -> None:
    boss, user = join(tenant_id, 4), join(tenant_id)
    shared = connect(boss, upstream)
    boss.good("PUT", f"/providers/{shared}", json={"is_shared": True, "name": "team"})
    own = connect(user, upstream)
    conversation = user.good("POST", "/conversations", json={"provider_id": shared})
    by_default = user.good("POST", "/conversations", json={})
    user.good("PUT", f"/providers/{own}", json={"is_default": False})
    own_of_boss = boss.good("POST", "/conversations", json={"provider_id": shared})
    agent = boss.good("POST", "/agents", json={"name": "Helper", "is_shared": True})["id"]
    with_agent = user.good("POST", "/conversations", json={"agent_id": agent, "provider_id": own})
    task = user.good("POST", "/tasks", json={"name": "T", "goal": "G", "agent_id": agent})

    boss.good("PUT", f"/providers/{shared}", json={"is_shared": False})
    boss.good("PUT", f"/providers/{shared}", json={"name": "a secret name"})
    boss.good("PUT", f"/agents/{agent}", json={"is_shared": False})
    refusal(say(user, conversation, 409), "provider_not_found", "team")
    refusal(say(user, by_default, 409), "provider_not_found", "team")
    refusal(say(user, with_agent, 409), "agent_not_found", "Helper")
    refusal(user.bad("POST", f"/tasks/{task['id']}/execute", 409), "agent_not_found", "Helper")
    assert say(boss, own_of_boss, 200)["provider_id"] == shared
    assert boss.good("GET", f"/conversations/{own_of_boss['id']}")["lost_provider"] is None

    boss.good("PUT", f"/providers/{shared}", json={"is_shared": True})
    say(user, conversation, 200)
    say(user, by_default, 200)


def test_what_is_no_longer_shared_stops_wherever_others_chose_it(
    join: Join, tenant_id: int, upstream: ScriptedProvider
) -> None:
    boss, user = join(tenant_id, 4), join(tenant_id)
    team = connect(boss, upstream)
    boss.good("PUT", f"/providers/{team}", json={"is_shared": True, "is_default": False, "name": "team"})
    through = {"name": "Through", "is_shared": True, "provider_id": team}
    agent, helper = (
        boss.good("POST", "/agents", json=body)["id"]
        for body in (through, {"name": "Helper", "is_shared": True})
    )
    own = connect(user, upstream)
    by_agent = user.good("POST", "/conversations", json={"agent_id": agent})
    seated = new_room(user, agents=[{"agent_id": helper}])
    seat_by_team = new_room(user, agents=[{"name": "A", "provider_id": team}])
    selecting = new_room(user, "A", "B", policy={"name": "selector", "provider_id": team})
    steps = [{"id": "a", "name": "one", "agent_id": helper}]
    of_step = user.good("POST", "/tasks", json={"name": "T", "goal": "G", "steps": steps})
    of_task = user.good("POST", "/tasks", json={"name": "T", "goal": "G", "provider_id": team})
    fallbacks = {"fallbacks": [{"provider_id": team, "model": "m"}]}
    careful = user.good("POST", "/agents", json={"name": "Careful", "provider_id": own, **fallbacks})["id"]
    careful_talk = user.good("POST", "/conversations", json={"agent_id": careful})
    for id_ in (agent, helper):
        assert boss.good("POST", f"/agents/{id_}/invoke", json={"content": "hello"})["text"]

    boss.good("PUT", f"/providers/{team}", json={"is_shared": False})
    boss.good("PUT", f"/agents/{helper}", json={"is_shared": False})
    before, said = len(upstream.requests), {"content": "x"}
    for refused in (say(user, by_agent, 409), user.bad("POST", f"/agents/{agent}/invoke", 409, json=said)):
        refusal(refused, "provider_not_found", "team")
        assert "'Through'" in refused["error"]
        assert refused["detail"]["lost"] == {"provider": "team"}
    refusal(user.bad("POST", f"/chat-rooms/{seated['id']}/start", 409), "agent_not_found", "Helper")
    refusal(user.bad("POST", f"/chat-rooms/{seat_by_team['id']}/start", 409), "provider_not_found", "team")
    refusal(user.bad("POST", f"/chat-rooms/{selecting['id']}/start", 409), "provider_not_found", "team")
    refusal(user.bad("POST", f"/tasks/{of_step['id']}/execute", 409), "agent_not_found", "Helper")
    refusal(user.bad("POST", f"/tasks/{of_task['id']}/execute", 409), "provider_not_found", "team")
    called = {"model": "agent/Helper", "messages": [{"role": "user", "content": "x"}]}
    assert user.ask("POST", "/v1/chat/completions", json=called).status_code == 404
    assert len(upstream.requests) == before, "nothing went to another provider"
    assert say(user, careful_talk, 200)["provider_id"] == own, "a fallback that is gone is passed over"
    assert boss.good("POST", f"/agents/{agent}/invoke", json={"content": "hello"})["provider_id"] == team


def test_what_a_user_chose_in_a_tenant_is_not_replaced_in_another(
    join: Join, tenant_id: int, admin: ApiClient, upstream: ScriptedProvider
) -> None:
    boss, user = join(tenant_id, 4), join(tenant_id)
    team = connect(boss, upstream)
    boss.good("PUT", f"/providers/{team}", json={"is_shared": True, "name": "team"})
    agent = boss.good("POST", "/agents", json={"name": "Helper", "is_shared": True})["id"]
    by_team = user.good("POST", "/conversations", json={"provider_id": team})
    by_agent = user.good("POST", "/conversations", json={"agent_id": agent})
    user.good("PUT", "/settings", json={"default_provider_id": team})
    by_default = user.good("POST", "/conversations", json={})
    admin.good("PUT", f"/auth/users/{user.user['id']}", json={"tenant_id": 1})
    user.sign_in(user.user["username"], PASSWORD)
    connect(user, upstream)

    boss.good("PUT", f"/providers/{team}", json={"name": "Plans of next year"})
    refused = say(user, by_team, 409)
    assert refused["detail"]["kind"] == "provider_not_found"
    assert "Plans of next year" not in refused["error"]
    assert say(user, by_agent, 409)["detail"]["kind"] == "agent_not_found"
    assert say(user, by_default, 409)["detail"]["kind"] == "provider_not_found"


def test_nothing_goes_on_without_the_agent_that_was_chosen(
    user: ApiClient, upstream: ScriptedProvider
) -> None:
    agent = user.good("POST", "/agents", json={"name": "Strict", "system_prompt": "Be strict.", "tools": []})
    rules = [{"tool": "file_read", "action": "deny"}]
    user.good("PUT", f"/permissions/rules?scope=agent&id={agent['id']}", json=rules)
    conversation = user.good("POST", "/conversations", json={"agent_id": agent["id"]})
    room = new_room(user, agents=[{"agent_id": agent["id"]}])
    steps = [{"id": "a", "name": "one", "agent_id": agent["id"]}]
    task = user.good("POST", "/tasks", json={"name": "T", "goal": "G", "steps": steps})
    uses = user.good("DELETE", f"/agents/{agent['id']}")
    assert (uses["conversations"], uses["seats"], uses["steps"]) == (1, 1, 1)

    refusal(say(user, conversation, 409), "agent_not_found", "Strict")
    assert user.good("GET", f"/conversations/{conversation['id']}")["lost_agent"] == "Strict"
    user.good("PUT", f"/conversations/{conversation['id']}", json={"agent_id": None})
    say(user, conversation, 200)

    path = f"/chat-rooms/{room['id']}"
    refusal(user.bad("POST", f"{path}/start", 409), "agent_not_found", "Strict")
    (seat,) = user.good("GET", f"{path}/agents")
    assert (seat["lost_agent"], seat["system_prompt"]) == ("Strict", "Be strict.")
    seat = user.good("PUT", f"{path}/agents/{seat['id']}", json={"agent_id": None})
    assert (seat["lost_agent"], seat["system_prompt"]) == (None, "Be strict.")
    basic = next(one for one in user.good("GET", "/agents")["items"] if one["name"] == "Basic")
    seat = user.good("PUT", f"{path}/agents/{seat['id']}", json={"agent_id": basic["id"]})
    assert (seat["agent_id"], seat["name"]) == (basic["id"], "Strict")
    user.good("POST", f"{path}/start", headers={"accept": "application/json"})

    execute = f"/tasks/{task['id']}/execute"
    refusal(user.bad("POST", execute, 409), "agent_not_found", "Strict")
    (step,) = user.good("GET", f"/tasks/{task['id']}")["steps"]
    assert (step["agent_id"], step["lost_agent"]) == (None, "Strict")
    graph = [{"id": "a", "name": "renamed"}]
    user.good("PUT", f"/tasks/{task['id']}/graph", json={"steps": graph})
    refusal(user.bad("POST", execute, 409), "agent_not_found", "Strict")
    user.good("PUT", f"/tasks/{task['id']}/steps/a", json={"agent_id": None})
    user.good("POST", execute, headers={"accept": "application/json"})


def test_the_default_of_a_tenant_stays_when_its_owner_goes_or_another_default_is_shared(
    join: Join, tenant_id: int, upstream: ScriptedProvider
) -> None:
    owner, successor, member = join(tenant_id, 4), join(tenant_id, 4), join(tenant_id)
    team, of_owner = connect(owner, upstream), connect(owner, upstream)
    owner.good("PUT", f"/providers/{team}", json={"is_default": True, "is_shared": True, "name": "team"})
    other = connect(successor, upstream)
    successor.good("PUT", f"/providers/{other}", json={"is_shared": True, "name": "other"})
    conversation = member.good("POST", "/conversations", json={})
    own = successor.good("POST", "/conversations", json={})
    assert member.good("GET", "/tenant")["default_provider_id"] == team
    assert member.good("GET", f"/providers/{team}")["is_tenant_default"] is True
    assert [one["id"] for one in member.good("GET", "/providers")["items"] if one["is_tenant_default"]] == [
        team
    ]

    successor.good("PUT", f"/auth/users/{owner.user['id']}", json={"permission_level": 3})
    owner.sign_in(owner.user["username"], PASSWORD)
    assert say(member, conversation, 200)["provider_id"] == team
    assert say(successor, own, 200)["provider_id"] == other
    kept = owner.good("POST", "/conversations", json={})
    assert say(owner, kept, 200)["provider_id"] == team, "the former owner has not chosen another default"
    owner.good("PUT", "/settings", json={"default_provider_id": of_owner})

    successor.good("PUT", f"/providers/{team}", json={"enabled": False})
    refused = say(member, conversation, 400)
    assert refused["detail"]["kind"] == "provider_disabled"
    assert "'team'" in refused["error"]
    successor.good("DELETE", f"/providers/{team}")
    refusal(say(member, conversation, 409), "provider_not_found", "team")
    tenant = member.good("GET", "/tenant")
    assert (tenant["default_provider_id"], tenant["lost_default_provider"]) == (None, "team")
    changed = successor.good("PUT", "/tenant", json={"default_provider_id": other})
    assert (changed["default_provider_id"], changed["lost_default_provider"]) == (other, None)
    assert say(member, conversation, 200)["provider_id"] == other


def test_the_default_of_a_tenant_follows_the_default_of_its_owner_until_it_is_ended(
    join: Join, tenant_id: int, upstream: ScriptedProvider
) -> None:
    boss, member = join(tenant_id, 4), join(tenant_id)
    first, second = connect(boss, upstream), connect(boss, upstream)
    for provider_id in (first, second):
        boss.good("PUT", f"/providers/{provider_id}", json={"is_shared": True})
    assert member.good("GET", "/tenant")["default_provider_id"] == second
    boss.good("PUT", f"/providers/{first}", json={"is_default": True})
    assert member.good("GET", "/tenant")["default_provider_id"] == first
    private = connect(boss, upstream)
    assert member.good("GET", "/tenant")["default_provider_id"] == first, "a private default is no other's"
    boss.good("PUT", f"/providers/{private}", json={"is_default": False})
    assert member.good("GET", "/tenant")["default_provider_id"] == first
    boss.good("PUT", f"/providers/{first}", json={"is_default": True})
    boss.good("PUT", f"/providers/{first}", json={"is_default": False})
    tenant = member.good("GET", "/tenant")
    assert (tenant["default_provider_id"], tenant["lost_default_provider"]) == (None, None)


def test_the_default_of_a_tenant_is_a_shared_provider_of_it(
    join: Join, tenant_id: int, upstream: ScriptedProvider, admin: ApiClient
) -> None:
    boss, member = join(tenant_id, 4), join(tenant_id)
    private, elsewhere = connect(boss, upstream), connect(admin, upstream)
    admin.good("PUT", f"/providers/{elsewhere}", json={"is_shared": True})
    refused = boss.bad("PUT", "/tenant", 400, json={"default_provider_id": private})
    assert refused["detail"]["kind"] == "provider_not_shared"
    boss.bad("PUT", "/tenant", 404, json={"default_provider_id": elsewhere})
    boss.bad("PUT", "/tenant", 404, json={"default_provider_id": 2**31 - 1})
    admin.bad("PUT", f"/admin/tenants/{tenant_id}", 404, json={"default_provider_id": elsewhere})
    admin.good("DELETE", f"/providers/{elsewhere}")
    body = {"name": "half", "provider_type": "openai", "is_shared": True, "is_default": False}
    half = boss.good("POST", "/providers", json=body)["id"]
    refused = boss.bad("PUT", "/tenant", 400, json={"default_provider_id": half})
    assert refused["detail"]["kind"] == "provider_incomplete"
    boss.good("PUT", f"/providers/{private}", json={"is_shared": True, "is_default": False})
    member.bad("PUT", "/tenant", 403, json={"default_provider_id": private})
    assert (
        boss.good("PUT", "/tenant", json={"default_provider_id": private})["default_provider_id"] == private
    )
    boss.good("PUT", f"/providers/{private}", json={"is_shared": False})
    assert boss.good("GET", "/tenant")["lost_default_provider"] == "scripted"
    boss.good("PUT", f"/providers/{private}", json={"is_shared": True})
    assert boss.good("GET", "/tenant")["lost_default_provider"] is None
    assert boss.good("PUT", "/tenant", json={"default_provider_id": None})["default_provider_id"] is None


def test_a_provider_without_the_key_that_its_vendor_demands_is_refused_before_it_is_called(
    user: ApiClient, upstream: ScriptedProvider
) -> None:
    body = {"name": "keyless", "provider_type": "openai", "default_model": "gpt-4o", "api_key": KEY}
    keyless = user.good("POST", "/providers", json=body)["id"]
    conversation = user.good("POST", "/conversations", json={"provider_id": keyless})
    user.good("PUT", f"/providers/{keyless}", json={"api_key": ""})
    refused = say(user, conversation, 400)
    assert refused["detail"]["kind"] == "provider_incomplete"
    assert "provider 'keyless' has no key" in refused["error"]
    room = new_room(user, agents=[{"name": "A", "provider_id": keyless}])
    assert "provider 'keyless' has no key" in user.ask("POST", f"/chat-rooms/{room['id']}/start").text
    own = connect(user, upstream)
    user.good("PUT", f"/providers/{own}", json={"api_key": ""})
    assert say(user, conversation, 200, provider_id=own)["text"] == "Hello there."


@pytest.mark.parametrize("lost", ["providers", "agents"])
def test_a_run_in_progress_does_not_go_on_without_what_it_uses(
    user: ApiClient, upstream: ScriptedProvider, lost: str
) -> None:
    provider_id = chosen(user, upstream)
    agent = user.good("POST", "/agents", json={"name": "Asker", "provider_id": provider_id})["id"]
    conversation = user.good("POST", "/conversations", json={"agent_id": agent})
    body = {"conversation_id": conversation["id"], "content": "ask me", "tools": True}
    run_id = user.bad("POST", "/messages", 409, json=body)["detail"]["run_id"]
    (question,) = user.good("GET", f"/runs/{run_id}/questions?status=open")["items"]
    user.good("DELETE", f"/{lost}/{provider_id if lost == 'providers' else agent}")

    path = f"/runs/{run_id}/questions/{question['id']}/answer"
    user.good("POST", path, json={"answer": "yes"})
    events = user.ask("GET", f"/runs/{run_id}/events").text
    assert f'"code":"{lost.removesuffix("s")}_not_found"' in events
    assert "deleted or is no longer shared with you" in user.good("GET", f"/runs/{run_id}")["error"]


def test_the_rules_of_a_deleted_project_are_not_lifted_in_silence(user: ApiClient) -> None:
    project = user.good("POST", "/projects", json={"name": "Careful"})["id"]
    other = user.good("POST", "/projects", json={"name": "Plain"})["id"]
    rules = [{"tool": "file_read", "action": "deny"}]
    user.good("PUT", f"/permissions/rules?scope=project&id={project}", json=rules)
    conversation = user.good("POST", "/conversations", json={"project_id": project})
    plain = user.good("POST", "/conversations", json={"project_id": other})
    task = user.good("POST", "/tasks", json={"name": "T", "goal": "G", "project_id": project})
    user.good("DELETE", f"/projects/{project}")
    user.good("DELETE", f"/projects/{other}")
    say(user, plain, 200)
    refused = say(user, conversation, 409)
    assert refused["detail"]["kind"] == "project_not_found"
    assert "'Careful'" in refused["error"]
    assert user.bad("POST", f"/tasks/{task['id']}/execute", 409)["detail"]["kind"] == "project_not_found"
    user.good("PUT", f"/conversations/{conversation['id']}", json={"project_id": None})
    say(user, conversation, 200)


def test_only_those_who_may_delete_see_how_much_uses_something(
    join: Join, tenant_id: int, upstream: ScriptedProvider
) -> None:
    boss, user = join(tenant_id, 4), join(tenant_id)
    shared = connect(boss, upstream)
    boss.good("PUT", f"/providers/{shared}", json={"is_shared": True})
    agent = boss.good("POST", "/agents", json={"name": "Helper", "is_shared": True})["id"]
    user.good("PUT", "/settings", json={"default_provider_id": shared})
    user.good("POST", "/conversations", json={"agent_id": agent})
    boss.good("PUT", f"/providers/{shared}", json={"is_default": False})
    assert boss.good("GET", f"/providers/{shared}/uses")["defaults"] == 1
    assert boss.good("GET", f"/agents/{agent}/uses")["conversations"] == 1
    user.bad("GET", f"/providers/{shared}/uses", 403)
    user.bad("GET", f"/agents/{agent}/uses", 403)


def test_users_whose_default_a_provider_is_count_before_it_is_deleted(
    join: Join, tenant_id: int, upstream: ScriptedProvider
) -> None:
    boss, user = join(tenant_id, 4), join(tenant_id)
    own = connect(user, upstream)
    assert user.good("GET", f"/providers/{own}/uses")["defaults"] == 1

    shared = connect(boss, upstream)
    assert boss.good("GET", f"/providers/{shared}/uses")["defaults"] == 1
    boss.good("PUT", f"/providers/{shared}", json={"is_shared": True})
    before = boss.good("GET", f"/providers/{shared}/uses")["defaults"]
    join(tenant_id)
    assert boss.good("GET", f"/providers/{shared}/uses")["defaults"] == before + 1
    user.good("DELETE", f"/providers/{own}")  # The user has lost a default, and gets no other in its place.
    assert boss.good("DELETE", f"/providers/{shared}")["defaults"] == before + 1


def test_tools_and_skills_that_are_gone_stop_what_named_them(
    user: ApiClient, upstream: ScriptedProvider
) -> None:
    chain = {"name": "my_chain", "description": "d", "members": [{"id": "list", "tool": "file_list"}]}
    made = user.good("POST", "/tools/compositions", json=chain)
    agent = user.good("POST", "/agents", json={"name": "Tooled", "tools": ["my_chain", "file_read"]})
    conversation = user.good("POST", "/conversations", json={"agent_id": agent["id"]})
    steps = [{"id": "a", "name": "one", "required_tools": ["my_chain"]}]
    task = user.good("POST", "/tasks", json={"name": "T", "goal": "G", "steps": steps})
    say(user, conversation, 200)
    user.good("DELETE", f"/tools/compositions/{made['id']}")

    refused = say(user, conversation, 409)
    assert refused["detail"] == {"kind": "tool_unknown", "lost": {"tools": ["my_chain"]}}
    assert "the agent 'Tooled' names tools that are not available any more: my_chain" in refused["error"]
    user.good("PUT", f"/agents/{agent['id']}", json={"tools": ["file_read"]})
    say(user, conversation, 200)

    (step,) = ended(user, task)
    assert step["status"] == "failed"
    assert "my_chain" in step["error"]


def test_a_step_is_never_completed_without_a_tool_that_it_requires(
    user: ApiClient, admin: ApiClient, upstream: ScriptedProvider
) -> None:
    steps = [
        {"id": "a", "name": "a tool above the level", "required_tools": ["shell_execute"]},
        {"id": "b", "name": "a tool that the level has", "required_tools": ["file_read"]},
    ]
    task = user.good("POST", "/tasks", json={"name": "T", "goal": "G", "steps": steps})
    above, has = ended(user, task)
    assert above["status"] == "failed"
    assert "shell_execute (needs permission level" in above["error"]
    assert has["status"] == "completed"

    agent = user.good("POST", "/agents", json={"name": "Small", "model": "smollm2-135m-instruct"})["id"]
    body = {"name": "T", "goal": "G", "agent_id": agent, "steps": [steps[1]]}
    (step,) = ended(user, user.good("POST", "/tasks", json=body))
    assert step["status"] == "failed"
    assert "file_read (the model smollm2-135m-instruct is not known to handle tools)" in step["error"]


def test_a_plan_keeps_the_tools_that_were_named(user: ApiClient, upstream: ScriptedProvider) -> None:
    agent = user.good("POST", "/agents", json={"name": "Unknown", "model": "nobody-knows-it"})["id"]
    body = {"goal": "Do it", "tools": ["file_read", "result_read"], "agent_id": agent}
    user.good("POST", "/tasks/plan", json=body)
    asked = upstream.requests[-1].json["messages"][-1]["content"]
    assert "- file_read:" in asked
    assert "- result_read:" in asked


def test_a_half_connected_provider_is_no_default(join: Join, upstream: ScriptedProvider) -> None:
    user = join()
    body = {"name": "half", "provider_type": "openai", "api_key": KEY}
    half = user.good("POST", "/providers", json=body)
    assert half["is_default"] is False, "the first one, but without a model"
    path = f"/providers/{half['id']}"
    refused = user.bad("PUT", path, 400, json={"is_default": True})
    assert refused["detail"]["kind"] == "provider_incomplete"
    assert "it has no model (default_model)" in refused["error"]
    user.bad("PUT", "/settings", 400, json={"default_provider_id": half["id"]})
    user.bad("PUT", path, 400, json={"default_model": "gpt-4o", "api_key": "", "is_default": True})
    assert user.good("PUT", path, json={"default_model": "gpt-4o", "is_default": True})["is_default"]
    keyless = user.good(
        "POST", "/providers", json={"name": "n", "provider_type": "openai", "default_model": "m"}
    )
    refused = user.bad("PUT", "/settings", 400, json={"default_provider_id": keyless["id"]})
    assert "it has no key (api_key)" in refused["error"]
