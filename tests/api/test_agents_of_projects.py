"""Agents of a project: seen by its owner alone, matched in its chats only, never shared."""

from api.client import ApiClient

MATCHED = {"text": "Translate the quarterly balance sheet"}
AGENT = {"name": "Ledger", "description": "Translates the quarterly balance sheet.", "trigger_patterns": []}


def matched(person: ApiClient, conversation_id: str | None = None) -> list[str]:
    body = MATCHED if conversation_id is None else {**MATCHED, "project_id": conversation_id}
    return [match["name"] for match in person.good("POST", "/agents/match", json=body)["matches"]]


def test_an_agent_of_a_project_is_for_the_owner_of_the_project_and_its_chats(
    anna: ApiClient, bob: ApiClient
) -> None:
    project = anna.good("POST", "/projects", json={"name": "Books"})["id"]
    other = bob.good("POST", "/projects", json={"name": "Other"})["id"]
    for wrong in (other, "no-such-project"):
        refused = anna.bad("POST", "/agents", 404, json=AGENT | {"project_id": wrong})
        assert refused["detail"]["kind"] == "project_not_found"
    agent = anna.good("POST", "/agents", json=AGENT | {"project_id": project})
    assert agent["project_id"] == project
    path = f"/agents/{agent['id']}"
    bob.bad("GET", path, 404)
    bob.bad("PUT", path, 404, json={"project_id": other})
    bob.bad("POST", "/conversations", 404, json={"agent_id": agent["id"]})
    assert anna.bad("PUT", path, 404, json={"project_id": other})["detail"]["kind"] == "project_not_found"
    assert "Ledger" not in matched(anna)
    assert "Ledger" in matched(anna, project)
    assert anna.good("PUT", path, json={"project_id": None})["project_id"] is None
    assert "Ledger" in matched(anna)
    anna.good("PUT", path, json={"project_id": project})
    anna.good("DELETE", f"/projects/{project}")
    assert anna.good("GET", path)["project_id"] is None


def test_an_agent_of_a_project_is_not_shared(admin: ApiClient) -> None:
    project = admin.good("POST", "/projects", json={"name": "Shared books"})["id"]
    both = AGENT | {"project_id": project, "is_shared": True}
    assert admin.bad("POST", "/agents", 400, json=both)["detail"]["kind"] == "agent_of_project"
    agent = admin.good("POST", "/agents", json=AGENT | {"project_id": project})["id"]
    refused = admin.bad("PUT", f"/agents/{agent}", 400, json={"is_shared": True})
    assert refused["detail"]["kind"] == "agent_of_project"
    admin.good("PUT", f"/agents/{agent}", json={"is_shared": True, "project_id": None})
    refused = admin.bad("PUT", f"/agents/{agent}", 400, json={"project_id": project})
    assert refused["detail"]["kind"] == "agent_of_project"
    admin.good("DELETE", f"/agents/{agent}")
