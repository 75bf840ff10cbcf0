"""Every route of the Luxx document exists and answers in the shape of the contract."""

import itertools
import json
from typing import Any

import pytest

from api.client import KEY, PASSWORD, UUID7, ApiClient
from api.conftest import connect
from api.schema import Document
from api.server_process import ServerProcess
from api.streams import stream_message, stream_run
from luxx.providers.scripted import ScriptedProvider

ROUTES = {
    ("POST", "/auth/register"), ("POST", "/auth/login"), ("POST", "/auth/logout"), ("GET", "/auth/me"),
    ("GET", "/auth/users"), ("PUT", "/auth/users/{}"), ("POST", "/auth/refresh"), ("POST", "/auth/password"),
    ("GET", "/conversations"), ("POST", "/conversations"), ("GET", "/conversations/{}"),
    ("PUT", "/conversations/{}"), ("DELETE", "/conversations/{}"),
    ("GET", "/conversations/{}/export"), ("POST", "/conversations/import"),
    ("GET", "/messages"), ("POST", "/messages"), ("POST", "/messages/stream"), ("DELETE", "/messages/{}"),
    ("PUT", "/messages/{}"), ("POST", "/messages/{}/regenerate"), ("GET", "/conversations/{}/tree"),
    ("GET", "/conversations/{}/context"), ("POST", "/conversations/{}/compress"),
    ("POST", "/conversations/{}/fork"), ("GET", "/projects"), ("POST", "/projects"), ("GET", "/projects/{}"),
    ("PUT", "/projects/{}"), ("DELETE", "/projects/{}"), ("GET", "/projects/{}/conversations"),
    ("GET", "/providers"), ("POST", "/providers"), ("GET", "/providers/{}"), ("PUT", "/providers/{}"),
    ("DELETE", "/providers/{}"), ("POST", "/providers/{}/test"), ("GET", "/providers/{}/models"),
    ("GET", "/tools"), ("GET", "/tools/{}"), ("POST", "/tools/{}/execute"), ("DELETE", "/tools/cache"),
    ("GET", "/tools/compositions"), ("POST", "/tools/compositions"), ("GET", "/tools/compositions/{}"),
    ("PUT", "/tools/compositions/{}"), ("DELETE", "/tools/compositions/{}"),
    ("GET", "/runs"), ("GET", "/runs/{}"), ("GET", "/runs/{}/events"), ("POST", "/runs/{}/cancel"),
    ("GET", "/questions"), ("GET", "/runs/{}/questions"), ("POST", "/runs/{}/questions/{}/answer"),
    ("GET", "/settings"), ("PUT", "/settings"), ("GET", "/admin/allowed-hosts"),
    ("PUT", "/admin/allowed-hosts"), ("GET", "/health"), ("GET", "/"), ("GET", "/ready"), ("GET", "/metrics"),
    ("GET", "/openapi.json"), ("GET", "/docs"), ("GET", "/usage"), ("GET", "/usage/limits"),
    ("GET", "/conversations/{}/usage"),
    ("GET", "/conversations/{}/events"), ("GET", "/conversations/{}/execution-status"),
    ("GET", "/conversations/{}/tool-executions"), ("GET", "/tool-calls"), ("GET", "/runs/{}/results/{}"),
    ("GET", "/admin/processes"),
    ("POST", "/auth/ticket"),
    ("GET", "/setup"), ("POST", "/setup"),
}  # fmt: skip
USER = {
    "id", "tenant_id", "username", "email", "role", "permission_level", "workspace_path", "is_active",
    "created_at", "must_change_password",
}  # fmt: skip
CONVERSATION = {
    "id", "user_id", "provider_id", "project_id", "title", "model", "system_prompt", "temperature",
    "max_tokens", "thinking_enabled", "reasoning_effort", "created_at", "updated_at", "agent_id", "pinned",
    "archived", "tags", "run_id", "selected_leaf_id",
}  # fmt: skip
MESSAGE = {
    "id", "conversation_id", "room_id", "parent_id", "role", "steps", "text", "content", "attachments",
    "citations", "token_count", "usage", "status", "sender_name", "sender_color", "round_number",
    "created_at", "finish", "memories_used", "provider_id", "provider_name", "model", "plan_run_id",
}  # fmt: skip
PROVIDER = {
    "id", "user_id", "name", "provider_type", "base_url", "api_key", "default_model", "max_tokens",
    "is_default", "enabled", "is_shared", "created_at", "updated_at",
}  # fmt: skip
RUN = {
    "id", "kind", "subject_id", "status", "phase", "parent_run_id", "stop_reason", "error", "usage", "cost",
    "last_seq", "started_at", "finished_at",
}  # fmt: skip
SETTINGS = {
    "id", "user_id", "default_provider_id", "temperature", "max_tokens", "thinking_enabled", "system_prompt",
    "reasoning_effort",    "created_at", "updated_at",
}  # fmt: skip


def newest_first(items: list[dict[str, Any]]) -> bool:
    times = [(item["created_at"], str(item["id"])) for item in items]
    return [time for time, _id in times] == sorted((time for time, _id in times), reverse=True)


def page_of(person: ApiClient, path: str, **query: Any) -> dict[str, Any]:
    page: dict[str, Any] = person.good("GET", path, params=query)
    more = {"has_more"} if path == "/messages" else set[str]()
    assert set(page) == {"items", "total", "page", "page_size"} | more
    assert page["page"] == query.get("page", 1)
    assert page["page_size"] == query.get("page_size", query.get("limit", 20))
    assert len(page["items"]) <= page["page_size"]
    return page


def test_every_route_is_in_the_document(document: Document) -> None:
    def bare(template: str) -> str:
        return "/".join("{}" if part.startswith("{") else part for part in template.split("/"))

    there = {(each.method, bare(each.template)) for each in document.operations}
    assert not ROUTES - there


def test_registering_and_signing_in_answer_tokens_and_the_user(
    server: ServerProcess, document: Document
) -> None:
    with ApiClient(server, document) as person:
        body = {"username": "Routes.User-1", "password": PASSWORD, "email": "routes@example.org"}
        for path, sent in (
            ("/auth/register", body),
            ("/auth/login", {"username": "Routes.User-1", "password": PASSWORD}),
        ):
            answer = person.good("POST", path, json=sent)
            assert set(answer) == {"access_token", "refresh_token", "token_type", "expires_in", "user"}
            assert answer["token_type"].lower() == "bearer"
            assert answer["expires_in"] == 30 * 60
            assert set(answer["user"]) >= USER
            assert type(answer["user"]["id"]) is int
            assert answer["user"]["email"] == "routes@example.org"
            assert "password" not in json.dumps({**answer["user"], "must_change_password": None}).replace(
                "must_change_password", ""
            )
            person.token = answer["access_token"]
        assert person.good("GET", "/auth/me") == answer["user"]


def test_changing_the_password_makes_the_new_one_the_only_one(
    server: ServerProcess, document: Document
) -> None:
    with ApiClient(server, document).register("changing") as person:
        new = PASSWORD + "!"
        wrong = {"current_password": "not it at all", "new_password": new}
        assert person.ask("POST", "/auth/password", json=wrong).status_code in (400, 401, 403)
        person.sign_in("changing", PASSWORD)
        person.good("POST", "/auth/password", json={"current_password": PASSWORD, "new_password": new})
        person.good("GET", "/auth/me")
        person.bad("POST", "/auth/login", 401, json={"username": "changing", "password": PASSWORD})
        person.sign_in("changing", new)


def test_users_are_listed_for_an_admin_newest_first_and_changed(admin: ApiClient, anna: ApiClient) -> None:
    # Other modules have users on the same server.
    users: list[dict[str, Any]] = []
    for number in itertools.count(1):
        page = page_of(admin, "/auth/users", page_size=100, page=number)
        users += page["items"]
        if len(page["items"]) < page["page_size"]:
            break
    ids = [user["id"] for user in users]
    assert ids == sorted(set(ids), reverse=True)
    assert {anna.user["id"], admin.user["id"]} <= set(ids)
    assert page["total"] == len(ids)
    assert all(set(user) >= USER for user in users)


def test_a_conversation_is_made_listed_shown_changed_and_deleted(anna: ApiClient) -> None:
    conversation = anna.ask(
        "POST", "/conversations", json={"title": "First", "temperature": 0.5, "max_tokens": 99}
    )
    assert conversation.status_code == 201
    body = conversation.json()["data"]
    assert set(body) >= CONVERSATION
    assert UUID7.fullmatch(body["id"])
    assert type(body["user_id"]) is int
    assert (body["title"], body["temperature"], body["max_tokens"]) == ("First", 0.5, 99)
    path = f"/conversations/{body['id']}"
    assert anna.good("GET", path) == body
    changed = anna.good("PUT", path, json={"title": "Second", "pinned": True, "tags": ["a", "b"]})
    assert (changed["title"], changed["pinned"], changed["tags"]) == ("Second", True, ["a", "b"])
    assert (changed["temperature"], changed["max_tokens"]) == (0.5, 99)
    assert changed["updated_at"] >= body["updated_at"]
    assert anna.good("PUT", path, json={"temperature": None})["temperature"] is None
    assert anna.good("GET", path)["title"] == "Second"
    anna.good("DELETE", path)
    anna.bad("GET", path, 404)
    anna.bad("DELETE", path, 404)
    assert body["id"] not in json.dumps(anna.good("GET", "/conversations?page_size=100"))


def test_lists_are_paged_newest_first_and_every_item_is_on_one_page(anna: ApiClient) -> None:
    conversation = [
        anna.good("POST", "/conversations", json={"title": f"c{number}"})["id"] for number in range(7)
    ]
    total = page_of(anna, "/conversations")["total"]
    listed: list[str] = []
    number = 1
    while items := page_of(anna, "/conversations", page=number, page_size=3)["items"]:
        listed += [item["id"] for item in items]
        number += 1
    assert len(listed) == len(set(listed)) == total
    assert listed[:7] == conversation[::-1]
    everything = page_of(anna, "/conversations", page_size=100)["items"]
    assert newest_first(everything)
    beyond = page_of(anna, "/conversations", page=1_000_000, page_size=100)
    assert beyond["items"] == []
    assert beyond["total"] == total


def test_a_message_is_answered_stored_and_counted(anna: ApiClient) -> None:
    conversation_id = anna.good("POST", "/conversations", json={"title": "talk"})["id"]
    attachment = {"name": "utils.py", "extension": "py", "content": "x = 1\n"}
    body = {"conversation_id": conversation_id, "content": "hello", "attachments": [attachment]}
    answer = anna.good("POST", "/messages", json=body)
    assert set(answer) == MESSAGE
    assert UUID7.fullmatch(answer["id"])
    assert (answer["role"], answer["status"]) == ("assistant", "complete")
    assert answer["text"] == answer["content"] == "Hello there."
    assert answer["token_count"] == 2
    assert answer["usage"]["prompt_tokens"] == 3
    assert answer["usage"]["completion_tokens"] == 2
    for at, step in enumerate(answer["steps"]):
        assert (step["id"], step["index"], step["status"]) == (f"step-{at}", at, "done")
    page = page_of(anna, "/messages", conversation_id=conversation_id)
    assert page["total"] == 2
    newest, oldest = page["items"]
    assert newest == answer
    assert oldest["role"] == "user"
    assert oldest["text"] == "hello"
    assert oldest["attachments"] == [attachment]
    assert answer["parent_id"] == oldest["id"]
    assert oldest["parent_id"] is None
    cursor = page_of(anna, "/messages", conversation_id=conversation_id, before=newest["id"], limit=5)
    assert [item["id"] for item in cursor["items"]] == [oldest["id"]]
    assert anna.good("GET", f"/conversations/{conversation_id}")["run_id"] is None


def test_deleting_a_message_deletes_what_follows_it(anna: ApiClient) -> None:
    conversation_id = anna.good("POST", "/conversations", json={})["id"]
    for _ in range(3):
        anna.good("POST", "/messages", json={"conversation_id": conversation_id, "content": "hello"})
    path = f"/messages?conversation_id={conversation_id}&page_size=100"
    before = anna.good("GET", path)["items"][::-1]
    assert [message["role"] for message in before] == ["user", "assistant"] * 3
    anna.good("DELETE", f"/messages/{before[2]['id']}")
    assert [message["id"] for message in anna.good("GET", path)["items"]] == [
        before[1]["id"],
        before[0]["id"],
    ]
    anna.bad("DELETE", f"/messages/{before[3]['id']}", 404)
    answer = anna.good("POST", "/messages", json={"conversation_id": conversation_id, "content": "again"})
    after = anna.good("GET", path)["items"]
    assert [message["id"] for message in after][2:] == [before[1]["id"], before[0]["id"]]
    assert after[1]["parent_id"] == before[1]["id"]
    assert after[0] == answer


def test_deleting_a_conversation_takes_messages_and_runs_with_it(anna: ApiClient) -> None:
    conversation_id = anna.good("POST", "/conversations", json={})["id"]
    anna.good("POST", "/messages", json={"conversation_id": conversation_id, "content": "hello"})
    body = {"conversation_id": conversation_id, "content": "wait here"}
    run = anna.good("POST", "/messages/stream", json=body, headers={"accept": "application/json"})
    assert anna.good("GET", f"/conversations/{conversation_id}")["run_id"] == run["id"]
    anna.good("DELETE", f"/conversations/{conversation_id}")
    anna.bad("GET", f"/messages?conversation_id={conversation_id}", 404)
    assert anna.ask("GET", f"/runs/{run['id']}").status_code in (200, 404)
    assert page_of(anna, "/runs", subject_id=conversation_id, status="running")["items"] == []


def test_a_stream_opens_with_the_run_and_ends_with_done(anna: ApiClient) -> None:
    conversation_id = anna.good("POST", "/conversations", json={})["id"]
    with stream_message(anna, conversation_id, "hello") as stream:
        frames = stream.read_to_end()
    assert frames[0]["type"] == "run"
    assert set(frames[0]["run"]) >= RUN
    assert frames[-1]["type"] == "done"
    assert {"message_id", "token_count", "usage", "status"} <= set(frames[-1])
    assert frames[-1]["status"] == "completed"
    numbered = [frame["seq"] for frame in frames if frame["seq"]]
    assert numbered == list(range(1, len(numbered) + 1))
    run_id = frames[0]["run"]["id"]
    run = anna.good("GET", f"/runs/{run_id}")
    assert UUID7.fullmatch(run["id"])
    assert (run["kind"], run["status"], run["stop_reason"]) == ("chat", "completed", "finished")
    assert run["subject_id"] == conversation_id
    assert run["last_seq"] == numbered[-1]
    accept = {"accept": "application/json"}
    logged = anna.good("GET", f"/runs/{run_id}/events?limit=1000", headers=accept)
    assert set(logged) == {"events", "has_more"}
    assert logged["has_more"] is False
    assert [event["seq"] for event in logged["events"]] == numbered
    first = anna.good("GET", f"/runs/{run_id}/events?limit=1", headers=accept)
    assert first["has_more"] is True
    assert [event["seq"] for event in first["events"]] == [1]
    with stream_run(anna, run_id, **{"Last-Event-ID": str(numbered[0])}) as again:
        replayed = again.read_to_end()
    assert [frame["seq"] for frame in replayed if frame["seq"]] == numbered[1:]
    page = page_of(anna, "/runs", kind="chat", subject_id=conversation_id, status="completed")
    assert [each["id"] for each in page["items"]] == [run_id]


def test_asked_for_json_a_stream_answers_202_with_the_run(anna: ApiClient) -> None:
    conversation_id = anna.good("POST", "/conversations", json={})["id"]
    body = {"conversation_id": conversation_id, "content": "wait here"}
    response = anna.ask("POST", "/messages/stream", json=body, headers={"accept": "application/json"})
    assert response.status_code == 202
    run = response.json()["data"]
    assert set(run) >= RUN
    anna.cancel(run["id"])
    message = anna.good("GET", f"/messages?conversation_id={conversation_id}")["items"][0]
    assert (message["role"], message["status"]) == ("assistant", "partial")


def test_a_provider_is_made_listed_shown_changed_tested_and_deleted(
    anna: ApiClient, upstream: ScriptedProvider
) -> None:
    provider_id = connect(anna, upstream)
    assert type(provider_id) is int
    path = f"/providers/{provider_id}"
    body = anna.good("GET", path)
    assert set(body) >= PROVIDER
    assert body["is_default"] is True
    listed = page_of(anna, "/providers", page_size=100)["items"]
    assert newest_first(listed)
    assert [each["is_default"] for each in listed if each["is_own"]].count(True) == 1
    changed = anna.good("PUT", path, json={"name": "other", "max_tokens": 5, "enabled": False})
    assert (changed["name"], changed["max_tokens"], changed["enabled"]) == ("other", 5, False)
    assert changed["api_key"] == f"****{KEY[-4:]}"
    anna.good("PUT", path, json={"enabled": True})
    offered = anna.good("GET", f"{path}/models")
    assert offered["models"] == [card["name"] for card in offered["cards"]] == ["scripted"]
    assert anna.good("POST", f"{path}/test")["ok"] is True
    anna.good("DELETE", path)
    anna.bad("GET", path, 404)


def test_tools_are_listed_shown_and_run(anna: ApiClient) -> None:
    page = page_of(anna, "/tools", page_size=100)
    names = [tool["name"] for tool in page["items"]]
    assert {"file_read", "file_list", "file_exists", "file_grep"} <= set(names)
    for tool in page["items"]:
        assert {"name", "description", "parameters", "category", "required_permission"} <= set(tool)
        assert tool["parameters"]["type"] == "object"
        assert anna.good("GET", f"/tools/{tool['name']}") == tool
    category = page["items"][0]["category"]
    some = page_of(anna, "/tools", category=category, page_size=100)["items"]
    assert some
    assert all(tool["category"] == category for tool in some)
    result = anna.good("POST", "/tools/file_list/execute", json={"arguments": {}})
    assert set(result) == {"success", "data", "error"}
    assert result["success"] is True
    assert result["error"] is None
    anna.good("DELETE", "/tools/cache")


def test_settings_are_shown_changed_and_used(anna: ApiClient) -> None:
    assert set(anna.good("GET", "/settings")) >= SETTINGS
    changed = anna.good("PUT", "/settings", json={"temperature": 0.25, "system_prompt": "Be brief."})
    assert (changed["temperature"], changed["system_prompt"]) == (0.25, "Be brief.")
    assert anna.good("GET", "/settings") == changed
    cleared = anna.good("PUT", "/settings", json={"temperature": None, "system_prompt": None})
    assert cleared["temperature"] is None


@pytest.mark.parametrize("path", ["/", "/health", "/ready"])
def test_public_information_is_in_the_envelope(nobody: ApiClient, path: str) -> None:
    data = nobody.good("GET", path)
    assert isinstance(data, dict)
    if path == "/health":
        assert {"status", "version", "sandbox", "database", "bus"} <= set(data)
        in_force = [
            backend["name"] for backend in data["sandbox_backends"] if backend["standing"] == "in_force"
        ]
        assert in_force == [data["sandbox"]]
        assert data["document_readers"] == data["sandbox"]
        assert data["bus"] == "none"
