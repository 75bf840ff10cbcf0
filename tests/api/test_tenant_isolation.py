"""Every operation of the document that takes an id, with ids of another user: 404, as for an unknown id."""

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from api.client import KEY, PASSWORD, ApiClient
from api.conftest import connect
from api.owned_ids import ID_KINDS, NO_UUID, OwnedIds, create_all
from api.schema import Document, Operation
from api.server_process import ServerProcess
from luxx.providers.scripted import ScriptedProvider

NO_ID_OF_THEIRS = {
    "user_id": "an administrator's, see test_levels; a member's, see test_rooms",
    "change_id": "of an MCP server's tool, see mcp_servers/test_changed_tools",
    "call_id": "a name within a run, and that is walked",
    "step_id": "a name within a task, and that is walked",
    "last_event_id": "a place in a log, not a thing",
    "tenant_id": "an operator's, see test_tenants and test_levels",
    "default_agent_id": "an administrator's, see test_agents",
    "override_skill_id": "an administrator's, see skills/test_skill_layers",
    "previous_response_id": "refused whatever its value, see openai_api/test_responses",
}
TENANT_DEFAULTS = ("/tenant", "/admin/tenants", "/admin/tenants/{tenant_id}")
"""Operations that take the ids of an administrator: `default_provider_id`, see test_lost_choices."""
LEVEL_2 = ("/mcp/servers", "/mcp/servers/{name}")
"""Operations that need another level than the user has, see mcp_servers/test_added_servers."""
PARAMETER_PLACES = {"call_id", "index", "page_index", "number", "step_id", "user_id"}
"""Parameters that select a part of a resource, not a resource."""

NEED_A_RUN = (
    "/answer", "/approve", "/cancel", "/comparison", "/compress", "/finish", "/floor", "/merge", "/pause",
    "/resume", "/retry", "/skip", "/split", "/start", "/stop",
)  # fmt: skip
"""Operations on a run that has ended, has not been paused, or has no failed step, on a short conversation, or
on entities that were merged a moment ago; and comparing where messages wait."""

ALSO_IDS = ("center", "into")
"""Names of ids that do not end with `_id`."""

SECRET = "only-anna-may-read-this"
MINIMAL: dict[str, dict[str, Any]] = {
    "POST /messages": {"content": "hello"},
    "POST /messages/stream": {"content": "hello"},
    "POST /conversations/{conversation_id}/comparison": {"content": "hello"},
    "POST /runs/{run_id}/questions/{question_id}/answer": {"answer": "yes"},
    "PUT /messages/{message_id}": {"content": "changed"},
    "PATCH /agents/{agent_id}/enable": {"enabled": True},
    "POST /shares": {"kind": "conversation"},
    "POST /patterns/match": {"text": "hello"},
    "POST /patterns/{pattern_id}/feedback": {"useful": True},
    "POST /agents": {"name": "new"},
    "POST /agents/{agent_id}/invoke": {"content": "hello"},
    "POST /agents/match": {"text": "hello"},
    "POST /tasks": {"name": "new", "goal": "new"},
    "POST /tasks/plan": {"goal": "hello"},
    "POST /tasks/{task_id}/steps": {"steps": [{"name": "new"}]},
    "PUT /tasks/{task_id}/graph": {"steps": [{"id": "step", "name": "changed"}]},
    "PUT /tools/compositions/{composition_id}": {
        "name": "changed",
        "description": "changed",
        "members": [{"id": "list", "tool": "file_list"}],
    },
    "POST /chat-rooms/{room_id}/messages": {"content": "hello"},
    "PUT /chat-rooms/{room_id}/agents/{seat_id}": {"muted": True},
    "POST /chat-rooms/{room_id}/members": {"username": "admin", "right": "watch"},
    "PUT /chat-rooms/{room_id}/members/{user_id}": {"right": "speak"},
    "POST /skills/match": {"text": "new"},
    "POST /skills": {"name": "new", "description": "new", "scope": "project", "content": "new"},
    "PUT /skills/{skill_id}": {"description": "changed"},
    "POST /knowledge": {"name": "new", "scope": "project"},
    "PUT /knowledge/{base_id}": {"scope": "project"},
    "POST /knowledge/{base_id}/members": {"username": "admin", "right": "read"},
    "PUT /knowledge/{base_id}/members/{user_id}": {"right": "write"},
    "POST /knowledge/{base_id}/search": {"query": "hello"},
    "PUT /conversations/{conversation_id}/queue/{queue_id}": {"content": "hello"},
    "POST /artifacts": {"type": "ppt", "name": "new", "content": "new"},
    "PUT /artifacts/{artifact_id}/content": {"content": "changed", "base_version": 2},
    "POST /artifacts/{artifact_id}/regenerate": {"page_index": 1, "instructions": "shorter"},
    "POST /artifacts/{artifact_id}/restore": {"version": 1},
    "POST /artifacts/{artifact_id}/save": {"path": "saved.md", "format": "md"},
    "PUT /conversations/{conversation_id}/todos": {"todos": [{"title": "hello"}]},
}
"""The bodies of operations, besides those that only change a name or a title."""

TEXTS = {"PUT /skills/{skill_id}/content": "---\nname: own\ndescription: changed\n---\nchanged"}
"""The bodies of operations that take text."""

NEEDS = {"PUT /knowledge/{base_id}": ["project_id"], "POST /knowledge/{base_id}/documents": ["file_id"]}
"""The ids that the bodies of operations need besides."""

LISTS = {
    "GET /artifacts": ("conversation_id", "room_id", "task_id"),
    "GET /memories/changes": ("fact_id", "entity_id"),
    "GET /runs": ("subject_id",),
    "GET /shares": ("subject_id",),
    "GET /conversations": ("project_id",),
    "GET /tasks": ("project_id",),
    "GET /usage": ("conversation_id",),
    "GET /tool-calls": ("run_id",),
}
QUERIES = {
    "GET /artifacts/{artifact_id}/diff": {"from": 1, "to": 2},
    "GET /artifacts/{artifact_id}/download": {"format": "md"},
    "GET /permissions/explain": {"tool": "file_read"},
    "GET /search": {"q": "hello"},
}
"""Where an id filters the user's own list, the answer is an empty list, not 404."""

users = itertools.count()


def id_fields(document: Document, operation: Operation) -> list[str]:
    schema = document.body_schema(operation)
    return [name for name in (schema or {}).get("properties", {}) if is_id(name)]


def is_id(name: str) -> bool:
    return name.endswith("_id") or name in ALSO_IDS


class Slot(msgspec.Struct, frozen=True):
    """One parameter of one operation that takes an id."""

    operation: Any
    where: str
    name: str

    @property
    def kind(self) -> str:
        """The key of `ID_KINDS`: messages of rooms are other messages."""
        is_room_message = self.name == "message_id" and "chat-rooms" in self.operation.template
        return "room_message_id" if is_room_message else self.name

    def __str__(self) -> str:
        return f"{self.operation} {self.where}:{self.name}"


def slots(document: Document) -> list[Slot]:
    places: list[Slot] = []
    for operation in document.operations:
        for where in ("path", "query"):
            places += [Slot(operation, where, n) for n in operation.names(where) if is_id(n)]
        if operation.template not in (*TENANT_DEFAULTS, *LEVEL_2):
            places += [Slot(operation, "body", name) for name in id_fields(document, operation)]
    return [slot for slot in places if slot.name not in NO_ID_OF_THEIRS]


def minimal_body(document: Document, operation: Operation) -> dict[str, Any]:
    properties = (document.body_schema(operation) or {}).get("properties", {})
    named = next((name for name in ("name", "title") if name in properties), None)
    change = {named: "changed"} if named and operation.method == "PUT" else {}
    return dict(MINIMAL.get(str(operation), change))


def ask(person: ApiClient, slot: Slot, wanted: Any, others: dict[str, Any]) -> httpx.Response:
    """Sends the operation with `wanted` in its slot; the other ids that it needs are the caller's own."""
    operation: Operation = slot.operation
    path = operation.template
    for name in operation.names("path"):
        own = others["room_message_id" if name == "message_id" and "chat-rooms" in path else name]
        value = wanted if (slot.where, slot.name) == ("path", name) else own
        path = path.replace("{" + name + "}", str(value))
    query = dict(QUERIES.get(f"{operation.method} {operation.template}", {}))
    query |= {slot.name: wanted} if slot.where == "query" else {}
    assert person.document is not None
    body = minimal_body(person.document, operation)
    if f"{operation.method} {operation.template}" == "POST /chat-rooms/{room_id}/agents":
        body["name"] = f"seat {next(users)}"
    for name in NEEDS.get(str(operation), ()):
        body[name] = others[name]
    if operation.template.endswith("/comparison"):
        body["compare_with"] = {"provider_id": others["provider_id"], "model": "other"}
    if operation.template == "/chat-rooms/{room_id}/floor":
        body["seat_id"] = others["seat_id"]
    if operation.template.startswith("/graph/entities/") and operation.method == "POST":
        body |= {name: others[name] for name in id_fields(person.document, operation)}
    if slot.where == "body":
        body[slot.name] = wanted
    if operation.template in ("/messages", "/messages/stream") and operation.method == "POST":
        body.setdefault("conversation_id", others["conversation_id"])
    is_bodied = operation.about.get("requestBody") is not None
    headers = {"accept": "application/json"}
    if (text := TEXTS.get(str(operation))) is not None:
        return person.ask(operation.method, path, params=query, content=text, headers=headers)
    return person.ask(operation.method, path, params=query, json=body if is_bodied else None, headers=headers)


@pytest.fixture
def annas(
    server: ServerProcess, document: Document, admin: ApiClient, upstream: ScriptedProvider
) -> Iterator[OwnedIds]:
    """A new owner for every test, because the positive controls delete resources."""
    with ApiClient(server, document).register(f"owner{next(users)}") as person:
        connect(person, upstream)
        yield create_all(person, SECRET)


@pytest.fixture(scope="module")
def bobs(bob: ApiClient) -> OwnedIds:
    return create_all(bob, SECRET)


ASKERS = [
    "another user of the tenant",
    pytest.param("a user of another tenant", marks=pytest.mark.heavy),
    "an administrator of another tenant",
    pytest.param("an operator", marks=pytest.mark.heavy),
]
"""Every user who is not the owner."""


@pytest.fixture(params=ASKERS)
def asker(
    request: pytest.FixtureRequest, server: ServerProcess, document: Document, admin: ApiClient,
    bobs: OwnedIds, upstream: ScriptedProvider,
) -> Iterator[OwnedIds]:  # fmt: skip
    """One of them, with resources of their own."""
    if request.param == "another user of the tenant":
        yield bobs
        return
    name = f"asker{next(users)}"
    tenant_id = admin.user["tenant_id"]
    if request.param != "an operator":
        tenant_id = admin.good("POST", "/admin/tenants", json={"name": f"the others of {name}"})["id"]
    level = 3 if request.param == "a user of another tenant" else 4
    body = {"username": name, "password": PASSWORD, "permission_level": level, "tenant_id": tenant_id}
    admin.good("POST", "/auth/users", json=body)
    with ApiClient(server, document).sign_in(name, PASSWORD) as person:
        connect(person, upstream)
        yield create_all(person, SECRET)


def test_every_id_field_of_the_document_is_covered(document: Document) -> None:
    walked = {slot.kind for slot in slots(document)}
    assert walked | PARAMETER_PLACES == set(ID_KINDS), "a new kind of id needs its place in this walk"
    assert len(slots(document)) >= 15


# It walks all routes with ids; under other load that takes two minutes.
@pytest.mark.timeout(300)
def test_ids_of_another_user_get_404_like_unknown_ids(
    document: Document, annas: OwnedIds, asker: OwnedIds
) -> None:
    before = annas.owner.state()
    walked = slots(document)
    for first in range(0, len(walked), 10):
        some = walked[first : first + 10]
        for slot in some:
            check_is_hidden(slot, asker, annas)
        changed_by = "one of " + ", ".join(str(slot) for slot in some)
        assert annas.owner.state() == before, f"{changed_by} changed something of the owner's"


def check_is_hidden(slot: Slot, asker: OwnedIds, owner: OwnedIds) -> None:
    """Checks that the answer for the owner's id is the same as for an unknown id."""
    at, unknown_id = str(slot), ID_KINDS[slot.kind].unknown
    foreign = ask(asker.owner, slot, owner.ids[slot.kind], asker.ids)
    unknown = ask(asker.owner, slot, unknown_id, asker.ids)
    if slot.name in LISTS.get(f"{slot.operation.method} {slot.operation.template}", ()):
        assert foreign.json()["data"]["items"] == [], at
        assert foreign.json()["data"]["total"] == 0, at
    else:
        assert foreign.status_code == 404, f"{at}: {foreign.status_code} {foreign.text}"
    assert foreign.status_code == unknown.status_code, at
    foreign_id = re.escape(str(owner.ids[slot.kind]))
    foreign_text = re.sub(rf"\b{foreign_id}\b", str(unknown_id), foreign.text)
    assert json.loads(foreign_text) == unknown.json(), f"{at} tells the foreign from the unknown"
    assert {*foreign.headers} == {*unknown.headers}, at


def order(slot: Slot) -> tuple[bool, bool, int, bool]:
    """Operations that delete come last, and a resource is deleted before what contains it. A queue resumes
    when its message has been changed and deleted: it would send the message."""
    template, is_deleted = slot.operation.template, slot.operation.method == "DELETE"
    is_last = is_deleted or template.endswith(("/reset", "/queue/resume"))
    return (
        is_last,
        "conversation" in template or "/projects" in template,
        -template.count("/"),
        not is_deleted,
    )


def test_the_owner_sends_the_same_requests_and_is_answered(document: Document, annas: OwnedIds) -> None:
    deleted: set[str] = set()
    for slot in sorted(slots(document), key=order):
        if slot.operation.method == "DELETE" and str(slot.operation) in deleted:
            continue  # It takes two ids and is deleted already.
        deleted.add(str(slot.operation))
        response = ask(annas.owner, slot, annas.ids[slot.kind], annas.ids)
        is_ended = response.status_code == 409 and slot.operation.template.endswith(NEED_A_RUN)
        needs_admin = response.status_code == 403 and slot.operation.template.endswith(("/review", "/share"))
        needs_extra = response.status_code == 503 and slot.operation.template.endswith("{page_index}")
        assert response.is_success or is_ended or needs_admin or needs_extra, (
            f"{slot}: {response.status_code} {response.text}"
        )
        if response.status_code == 202:
            run = response.json()["data"]
            with annas.owner.http.stream("GET", f"/runs/{run['id']}/events") as stream:
                stream.read()


def test_lists_and_searches_show_nothing_of_another_user(
    annas: OwnedIds, bobs: OwnedIds, asker: OwnedIds, admin: ApiClient
) -> None:
    for other in (admin, asker.owner):
        visible = json.dumps(other.state())
        for name, kind in ID_KINDS.items():
            if kind.unknown == NO_UUID and name != "call_id":
                assert annas.ids[name] not in visible, name
        search_hits = other.good("GET", f"/search?q={SECRET}&page_size=100")["items"]
        for name in ("conversation_id", "room_id", "task_id"):
            assert annas.ids[name] not in {hit[name] for hit in search_hits}
    listed = bobs.owner.good("GET", "/providers?page_size=100")["items"]
    assert annas.ids["provider_id"] not in {provider["id"] for provider in listed}
    assert KEY not in json.dumps(listed)


def test_cursors_of_another_user_are_refused(annas: OwnedIds, bobs: OwnedIds) -> None:
    mine = bobs.ids["conversation_id"]
    path = f"/messages?conversation_id={mine}&before={annas.ids['message_id']}"
    response = bobs.owner.ask("GET", path)
    assert annas.ids["message_id"] not in response.text
    if response.is_success:
        assert all(item["conversation_id"] == mine for item in response.json()["data"]["items"])
    runs = bobs.owner.ask("GET", f"/runs?before={annas.ids['run_id']}")
    assert annas.ids["run_id"] not in runs.text


def test_a_busy_conversation_of_another_is_404_and_no_conflict(annas: OwnedIds, bobs: OwnedIds) -> None:
    body = {"conversation_id": annas.ids["conversation_id"], "content": "wait here"}
    headers = {"accept": "application/json"}
    run = annas.owner.good("POST", "/messages/stream", json=body, headers=headers)
    busy = annas.owner.bad("POST", "/messages", 409, json=body)
    assert busy["detail"]["run_id"] == run["id"]
    assert bobs.owner.bad("POST", "/messages", 404, json=body)["detail"].keys() == {"kind"}
    assert bobs.owner.bad("POST", f"/runs/{run['id']}/cancel", 404)
    assert bobs.owner.bad("GET", f"/runs/{run['id']}/events", 404)
    assert annas.owner.good("GET", f"/runs/{run['id']}")["status"] in ("queued", "running")
    annas.owner.cancel(run["id"])


def test_two_users_may_give_providers_the_same_name(annas: OwnedIds, bobs: OwnedIds) -> None:
    body = {"name": "the same name", "provider_type": "openai", "api_key": KEY}
    annas.owner.good("POST", "/providers", json=body)
    bobs.owner.good("POST", "/providers", json=body)


def test_workspaces_are_apart(annas: OwnedIds, bobs: OwnedIds, admin: ApiClient) -> None:
    write = {"arguments": {"path": "private.txt", "content": SECRET}}
    admin.good("POST", "/tools/file_write/execute", json=write)
    own = admin.user["workspace_path"]
    for path in ("private.txt", f"{own}/private.txt", "../" + own.rsplit("/", 1)[-1] + "/private.txt"):
        answer = bobs.owner.good("POST", "/tools/file_read/execute", json={"arguments": {"path": path}})
        assert answer["success"] is False, path
        assert SECRET not in json.dumps(answer)
    assert own.rsplit("/", 1)[-1] != bobs.owner.user["workspace_path"].rsplit("/", 1)[-1]


def test_a_shared_provider_may_be_used_by_all_and_its_key_seen_by_none(
    admin: ApiClient, bobs: OwnedIds, upstream: ScriptedProvider
) -> None:
    body = {
        "name": "for everybody", "provider_type": "openai", "base_url": f"{upstream.url}/v1", "api_key": KEY,
        "default_model": "scripted", "is_shared": True,
    }  # fmt: skip
    shared = admin.good("POST", "/providers", json=body)["id"]
    private = admin.good("POST", "/providers", json=body | {"name": "mine", "is_shared": False})["id"]
    bob = bobs.owner
    listed = {provider["id"]: provider for provider in bob.good("GET", "/providers?page_size=100")["items"]}
    assert private not in listed
    assert listed[shared]["is_own"] is False
    assert listed[shared]["is_shared"] is True
    for shown in (listed[shared], bob.good("GET", f"/providers/{shared}")):
        assert KEY[-4:] not in shown["api_key"]
    conversation = bob.good("POST", "/conversations", json={"provider_id": shared, "model": "scripted"})
    answer = bob.good("POST", "/messages", json={"conversation_id": conversation["id"], "content": "hi"})
    assert answer["text"] == "Hello there."
    assert bob.ask("PUT", f"/providers/{shared}", json={"name": "mine now"}).status_code in (403, 404)
    assert bob.ask("PUT", f"/providers/{shared}", json={"base_url": "http://a.b/"}).status_code in (403, 404)
    assert bob.ask("DELETE", f"/providers/{shared}").status_code in (403, 404)
    assert admin.good("GET", f"/providers/{shared}")["name"] == "for everybody"
    bob.bad("GET", f"/providers/{private}", 404)
