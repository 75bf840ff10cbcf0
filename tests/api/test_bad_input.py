"""Wrong requests of every kind get the right status and a sentence, and change nothing."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from api.bad_requests import CASES, LOGIN, UNKNOWN_ID, Case
from api.client import ApiClient
from api.server_process import ServerProcess
from api.stored_content import StoredContent, stored_content


@pytest.fixture(scope="module")
def server(own_server: ServerProcess) -> ServerProcess:
    return own_server


@pytest.fixture(scope="module")
def known(anna: ApiClient) -> dict[str, str]:
    """Ids of anna's resources, by the placeholders in the requests."""
    conversation = anna.good("POST", "/conversations", json={"title": "kept"})["id"]
    message = anna.good("POST", "/messages", json={"conversation_id": conversation, "content": "hello"})
    return {
        "{conversation}": conversation,
        "{message}": message["id"],
        "{asked}": message["parent_id"],
        "{project}": anna.good("POST", "/projects", json={"name": "kept"})["id"],
        "{run}": anna.good("GET", "/runs")["items"][0]["id"],
        "{provider}": str(anna.good("GET", "/providers")["items"][0]["id"]),
        "{user}": str(anna.user["id"]),
        "{name}": anna.user["username"],
    }


@pytest.fixture(scope="module")
def people(anna: ApiClient, admin: ApiClient, nobody: ApiClient) -> dict[str, ApiClient]:
    return {"anna": anna, "admin": admin, "nobody": nobody}


@pytest.fixture(scope="module")
def stored(server: ServerProcess) -> Iterator[StoredContent]:
    with stored_content(server) as stored:
        yield stored


def test_a_write_is_seen_as_a_change(anna: ApiClient, stored: StoredContent) -> None:
    before = stored.read()
    anna.good("POST", "/projects", json={"name": "seen"})
    after = stored.read()
    assert after != before
    anna.good("POST", "/files", files={"file": ("seen.txt", b"seen")})
    assert stored.read() != after
    assert stored.read() == stored.read()


def fill_placeholders(text: str, known: dict[str, str]) -> str:
    for name, value in known.items():
        text = text.replace(name, value)
    return text


def send(person: ApiClient, case: Case, known: dict[str, str]) -> httpx.Response:
    content = case.raw
    if content is None and case.body is not None:
        content = fill_placeholders(json.dumps(case.body), known).encode()
    headers = dict(case.headers)
    if content is not None:
        headers.setdefault("content-type", "application/json")
    path = fill_placeholders(case.path, known)
    if path.count("?") == 2:
        head, _, tail = path.rpartition("?")
        path = f"{head}&{tail}"
    return person.ask(case.method, path, content=content, headers=headers)


@pytest.mark.parametrize("case", CASES, ids=[case.name[:60] for case in CASES])
def test_a_wrong_request_is_refused_and_changes_nothing(
    case: Case, people: dict[str, ApiClient], known: dict[str, str], stored: StoredContent
) -> None:
    before = stored.read()
    response = send(people[case.who], case, known)
    assert stored.read() == before, f"the request changed something: {response.text[:500]}"
    assert response.status_code == case.status, response.text[:500]
    fields = response.json()["detail"].get("fields", {})
    if case.fields:
        assert set(fields) == set(case.fields), fields
    if case.status == 405:
        assert response.headers["allow"]


def test_an_unknown_user_and_a_wrong_password_get_the_same_answer(nobody: ApiClient, anna: ApiClient) -> None:
    answers = [
        nobody.bad("POST", LOGIN, 401, json={"username": name, "password": "wrong"})
        for name in (anna.user["username"], "nobody_at_all", "no name at all", "")
    ]
    assert all(answer == answers[0] for answer in answers)
    assert answers[0]["detail"]["kind"] == "sign_in_failed"


def test_the_kinds_of_common_refusals_are_named(nobody: ApiClient, anna: ApiClient) -> None:
    def kind(status: int, method: str, path: str, person: ApiClient = anna, **more: Any) -> str:
        return str(person.bad(method, path, status, **more)["detail"]["kind"])

    assert kind(404, "GET", f"/conversations/{UNKNOWN_ID}") == "conversation_not_found"
    assert kind(404, "GET", f"/runs/{UNKNOWN_ID}") == "run_not_found"
    assert kind(404, "GET", "/tools/no_such_tool") == "tool_not_found"
    assert kind(404, "GET", "/nothing/here") == "no_such_route"
    assert kind(405, "DELETE", "/health") == "method_not_allowed"
    assert kind(413, "POST", LOGIN, content=b" " * 11_000_000) == "too_large"
    assert kind(400, "POST", "/conversations", json={"title": 1}) == "invalid_input"


def test_wrong_tool_arguments_are_named_and_the_tool_is_not_run(admin: ApiClient) -> None:
    arguments = {"path": "made.txt", "content": 5, "mode": "w"}
    failure = admin.bad("POST", "/tools/file_write/execute", 400, json={"arguments": arguments})
    assert "content" in json.dumps(failure["detail"])
    assert "mode" in json.dumps(failure["detail"])
    exists = admin.good("POST", "/tools/file_exists/execute", json={"arguments": {"path": "made.txt"}})
    assert exists["success"] is True
    assert "true" not in json.dumps(exists["data"]).lower()
