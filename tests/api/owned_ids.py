"""The ids of what a user owns, by the names under which requests take them: one row for each kind of id.

When a route with a new kind of id is added, add a row here: the test of all routes then includes it.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from api.client import ApiClient
from api.conftest import CALL_ID

NO_UUID = "01890a5d-ac96-774b-bcce-b302099a8057"
NO_NUMBER = 987_654

IdsByName = dict[str, Any]


class IdKind(msgspec.Struct, frozen=True):
    """`unknown` is an id that does not exist; `make` creates one for the user, from those created before
    it."""

    unknown: Any
    make: Callable[[ApiClient, IdsByName, str], Any]


class OwnedIds(msgspec.Struct, frozen=True):
    """The ids of one user, by the names under which requests take them."""

    ids: IdsByName
    owner: ApiClient


def create_all(person: ApiClient, secret: str) -> OwnedIds:
    """Creates one of each kind. The user has a provider already; only the user may read `secret`."""
    ids: IdsByName = {}
    for name, kind in ID_KINDS.items():
        ids[name] = kind.make(person, ids, secret)
    return OwnedIds(ids, person)


def _provider(person: ApiClient, _ids: IdsByName, _secret: str) -> int:
    providers = person.good("GET", "/providers?page_size=100")["items"]
    return next(provider["id"] for provider in providers if provider["is_own"])


def _agent(person: ApiClient, _ids: IdsByName, secret: str) -> int:
    return person.good("POST", "/agents", json={"name": secret, "system_prompt": secret})["id"]


def _project(person: ApiClient, _ids: IdsByName, secret: str) -> str:
    return person.good("POST", "/projects", json={"name": secret, "description": secret})["id"]


def _task(person: ApiClient, ids: IdsByName, secret: str) -> str:
    """A task whose step `step` was executed and then got another name; another step is pending."""
    body = {"name": secret, "goal": secret, "project_id": ids["project_id"]}
    task_id = person.good(
        "POST", "/tasks", json={**body, "steps": [{"id": "step", "name": secret, "goal": secret}]}
    )["id"]
    with person.http.stream("POST", f"/tasks/{task_id}/execute") as stream:
        assert b"task_complete" in stream.read()
    person.good("PUT", f"/tasks/{task_id}/steps/step", json={"name": f"{secret} again"})
    person.good("POST", f"/tasks/{task_id}/steps", json={"steps": [{"name": secret}]})
    return str(task_id)


def _task_template(person: ApiClient, _ids: IdsByName, secret: str) -> str:
    body = {"name": secret, "document": {"version": 1, "name": secret, "goal": secret}}
    return person.good("POST", "/task-templates", json=body)["id"]


def _prompt(person: ApiClient, _ids: IdsByName, secret: str) -> str:
    body = {"name": "own", "title": secret, "description": secret, "content": secret}
    return person.good("POST", "/prompts", json=body)["id"]


def _share(person: ApiClient, ids: IdsByName, _secret: str) -> str:
    body = {"kind": "conversation", "subject_id": ids["conversation_id"]}
    return person.good("POST", "/shares", json=body)["id"]


def _pattern(person: ApiClient, _ids: IdsByName, secret: str) -> str:
    body = {
        "name": secret,
        "description": secret,
        "goal": f"Make a chart of the sales for {secret}",
        "steps": [{"description": secret, "tools": [secret], "expected_output": secret}],
        "tool_chains": [[secret]],
    }
    return person.good("POST", "/patterns", json=body)["id"]


def _skill(person: ApiClient, ids: IdsByName, secret: str) -> str:
    body = {"name": "own", "description": secret, "scope": "project", "content": secret}
    return person.good("POST", "/skills", json={**body, "project_id": ids["project_id"]})["id"]


def _fact(person: ApiClient, ids: IdsByName, secret: str) -> str:
    """A fact that is not true any more, in a project of the user."""
    body = {"text": secret, "scope": f"project:{ids['project_id']}", "subject": secret, "object": "Ben"}
    fact_id = person.good("POST", "/memories", json=body)["id"]
    person.good("PUT", f"/memories/{fact_id}", json={"invalid_at": "2026-01-31T00:00:00Z"})
    return str(fact_id)


def _memory_change(person: ApiClient, _ids: IdsByName, secret: str) -> str:
    fact_id = person.good("POST", "/memories", json={"text": secret})["id"]
    person.good("PUT", f"/memories/{fact_id}", json={"text": f"{secret} again"})
    return person.good("GET", f"/memories/changes?fact_id={fact_id}")["items"][0]["id"]


def _episode(person: ApiClient, ids: IdsByName, secret: str) -> str:
    """An episode whose facts could not be extracted, because the model answers something else."""
    conversation_id = person.good("POST", "/conversations", json={"title": secret})["id"]
    body = {"conversation_id": conversation_id, "content": secret, "provider_id": ids["provider_id"]}
    person.http.post("/messages/stream", json=body).read()
    run = person.good("POST", "/memories/extract", json={"conversation_id": conversation_id})["run"]
    with person.http.stream("GET", f"/runs/{run['id']}/events") as stream:
        stream.read()
    return person.good("GET", "/memories/episodes")["items"][0]["id"]


def _entity(person: ApiClient, ids: IdsByName, secret: str) -> str:
    """An entity of a project that another one was merged into."""
    body = {"text": secret, "scope": f"project:{ids['project_id']}"}
    into, merged = (
        person.good("POST", "/memories", json=body | {"subject": f"{secret} {name}"})["entities"][0]["id"]
        for name in ("one", "two")
    )
    person.good("POST", f"/graph/entities/{merged}/merge", json={"into": into})
    return str(into)


def _merged(person: ApiClient, ids: IdsByName, _secret: str) -> str:
    return person.good("GET", f"/graph/entities/{ids['entity_id']}")["merged"][0]["id"]


def _other_entity(person: ApiClient, ids: IdsByName, secret: str) -> str:
    """One that can be merged into that one, or that into it."""
    body = {"text": secret, "scope": f"project:{ids['project_id']}", "subject": f"other {secret}"}
    return person.good("POST", "/memories", json=body)["entities"][0]["id"]


def _base(person: ApiClient, _ids: IdsByName, secret: str) -> str:
    return person.good("POST", "/knowledge", json={"name": secret, "description": secret})["id"]


def _document(person: ApiClient, ids: IdsByName, secret: str) -> str:
    body = {"name": f"{secret}.md", "text": secret}
    added = person.good("POST", f"/knowledge/{ids['base_id']}/documents", json=body)
    with person.http.stream("GET", f"/runs/{added['run']['id']}/events") as stream:
        stream.read()
    return str(added["items"][0]["id"])


def _artifact(person: ApiClient, ids: IdsByName, secret: str) -> str:
    """A deck of two versions."""
    body = {"type": "ppt", "name": secret, "content": secret, "conversation_id": ids["conversation_id"]}
    artifact_id = person.good("POST", "/artifacts", json=body)["id"]
    change = {"content": f"{secret} again", "base_version": 1}
    person.good("PUT", f"/artifacts/{artifact_id}/content", json=change)
    return str(artifact_id)


def _composition(person: ApiClient, _ids: IdsByName, secret: str) -> str:
    members = [{"id": "read", "tool": "file_read", "arguments": {"path": secret}}]
    body = {"name": "reads_a_secret", "description": secret, "members": members}
    return person.good("POST", "/tools/compositions", json=body)["id"]


def _key(person: ApiClient, _ids: IdsByName, secret: str) -> str:
    return person.good("POST", "/keys", json={"name": secret, "scopes": ["read"]})["id"]


def _file(person: ApiClient, _ids: IdsByName, secret: str) -> str:
    return person.good("POST", "/files", files={"file": ("secret.txt", secret.encode())})["id"]


def _conversation(person: ApiClient, ids: IdsByName, secret: str) -> str:
    body = {"title": secret, "system_prompt": secret, "project_id": ids["project_id"]}
    return person.good("POST", "/conversations", json=body)["id"]


def _message(person: ApiClient, ids: IdsByName, secret: str) -> str:
    """The user's message with a file, whose answer called a tool. The message before it led to a question."""
    body = {"conversation_id": ids["conversation_id"], "content": f"ask me: {secret}"}
    run_id = person.bad("POST", "/messages", 409, json=body)["detail"]["run_id"]
    (question,) = person.good("GET", f"/runs/{run_id}/questions?status=open")["items"]
    person.good("POST", f"/runs/{run_id}/questions/{question['id']}/answer", json={"answer": secret})
    with person.http.stream("GET", f"/runs/{run_id}/events") as stream:
        stream.read()
    body |= {"content": f"use a tool: {secret}", "attachments": [{"file_id": ids["file_id"]}]}
    return person.good("POST", "/messages", json=body)["parent_id"]


def _answer(person: ApiClient, ids: IdsByName, _secret: str) -> str:
    path = f"/messages?conversation_id={ids['conversation_id']}&limit=1"
    return person.good("GET", path)["items"][0]["id"]


def _run(person: ApiClient, ids: IdsByName, _secret: str) -> str:
    """The run that asked a question."""
    return person.good("GET", f"/runs?subject_id={ids['conversation_id']}")["items"][-1]["id"]


def _question(person: ApiClient, ids: IdsByName, _secret: str) -> str:
    return person.good("GET", f"/runs/{ids['run_id']}/questions")["items"][0]["id"]


def _queued(person: ApiClient, ids: IdsByName, secret: str) -> str:
    """A message in a paused queue: the run before it asked a question and was cancelled."""
    body = {"conversation_id": ids["conversation_id"], "content": f"ask me: {secret}"}
    run_id = person.bad("POST", "/messages", 409, json=body)["detail"]["run_id"]
    body |= {"content": secret, "when_busy": "queue"}
    queued = person.good("POST", "/messages", json=body)
    person.good("POST", f"/runs/{run_id}/cancel")
    with person.http.stream("GET", f"/runs/{run_id}/events") as stream:
        stream.read()
    return str(queued["queue_id"])


def _room(person: ApiClient, _ids: IdsByName, secret: str) -> str:
    seats = [{"name": secret, "system_prompt": secret}]
    body = {"title": secret, "task": secret, "agents": seats, "max_rounds": 1}
    return person.good("POST", "/chat-rooms", json=body)["id"]


def _seat(person: ApiClient, ids: IdsByName, _secret: str) -> int:
    return person.good("GET", f"/chat-rooms/{ids['room_id']}/agents")[0]["id"]


def _room_message(person: ApiClient, ids: IdsByName, _secret: str) -> str:
    """The message of a seat, in a room that has ended."""
    with person.http.stream("POST", f"/chat-rooms/{ids['room_id']}/start") as stream:
        stream.read()
    return str(person.good("GET", f"/chat-rooms/{ids['room_id']}/messages")["items"][0]["id"])


def _member(person: ApiClient, ids: IdsByName, _secret: str) -> int:
    """A new user as a member of the room and of the knowledge base, if the user's tenant is the default one,
    which people join."""
    with ApiClient(person.server, person.document).register(f"guest-{ids['seat_id']}") as guest:
        body = {"user_id": guest.user["id"], "right": "watch"}
        person.ask("POST", f"/chat-rooms/{ids['room_id']}/members", json=body)
        body["right"] = "read"
        person.ask("POST", f"/knowledge/{ids['base_id']}/members", json=body)
        return int(guest.user["id"])


def _same_as(name: str) -> Callable[[ApiClient, IdsByName, str], Any]:
    return lambda _person, ids, _secret: ids[name]


ID_KINDS: dict[str, IdKind] = {
    "provider_id": IdKind(NO_NUMBER, _provider),
    "default_provider_id": IdKind(NO_NUMBER, _same_as("provider_id")),
    "title_provider_id": IdKind(NO_NUMBER, _same_as("provider_id")),
    "agent_id": IdKind(NO_NUMBER, _agent),
    "project_id": IdKind(NO_UUID, _project),
    "task_id": IdKind(NO_UUID, _task),
    "step_id": IdKind("no-such-step", lambda _person, _ids, _secret: "step"),
    "number": IdKind(NO_NUMBER, lambda _person, _ids, _secret: 1),
    "template_id": IdKind(NO_UUID, _task_template),
    "pattern_id": IdKind(NO_UUID, _pattern),
    "prompt_id": IdKind(NO_UUID, _prompt),
    "skill_id": IdKind(NO_UUID, _skill),
    "fact_id": IdKind(NO_UUID, _fact),
    "episode_id": IdKind(NO_UUID, _episode),
    "memory_change_id": IdKind(NO_UUID, _memory_change),
    "entity_id": IdKind(NO_UUID, _entity),
    "merged_id": IdKind(NO_UUID, _merged),
    "into": IdKind(NO_UUID, _other_entity),
    "center": IdKind(NO_UUID, _same_as("entity_id")),
    "base_id": IdKind(NO_UUID, _base),
    "document_id": IdKind(NO_UUID, _document),
    "composition_id": IdKind(NO_UUID, _composition),
    "file_id": IdKind(NO_UUID, _file),
    "key_id": IdKind(NO_UUID, _key),
    "conversation_id": IdKind(NO_UUID, _conversation),
    "share_id": IdKind(NO_UUID, _share),
    "subject_id": IdKind(NO_UUID, _same_as("conversation_id")),
    "artifact_id": IdKind(NO_UUID, _artifact),
    "message_id": IdKind(NO_UUID, _message),
    "parent_id": IdKind(NO_UUID, _answer),
    "selected_leaf_id": IdKind(NO_UUID, _same_as("parent_id")),
    "page_index": IdKind(NO_NUMBER, lambda _person, _ids, _secret: 1),
    "index": IdKind(NO_NUMBER, lambda _person, _ids, _secret: 0),
    "run_id": IdKind(NO_UUID, _run),
    "room_id": IdKind(NO_UUID, _room),
    "seat_id": IdKind(NO_NUMBER, _seat),
    "room_message_id": IdKind(NO_UUID, _room_message),
    "user_id": IdKind(NO_NUMBER, _member),
    "question_id": IdKind(NO_UUID, _question),
    "queue_id": IdKind(NO_UUID, _queued),
    "call_id": IdKind(NO_UUID, lambda _person, _ids, _secret: CALL_ID),
}
