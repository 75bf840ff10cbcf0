"""Three tenants of five people: by all routes and tools of memory each reads what is theirs and their
tenant's, and every id of somebody else is unknown."""

import json
from typing import Any

import msgspec

from api.client import ApiClient
from api.conftest import Join

PEOPLE = 5
READS = (
    "/memories?page_size=100", "/memories?q={secret}", "/memories?q=secret*",
    "/memories/changes?page_size=100", "/memories/export", "/memories/episodes", "/graph", "/graph/entities",
    "/graph/communities", "/graph/export?format=json", "/graph/export?format=cypher",
)  # fmt: skip
TOOLS: dict[str, dict[str, Any]] = {
    "memory_search": {"query": "secret zebra"},
    "graph_query": {"query": "MATCH (a)-[r:RELATES_TO]->(b) RETURN a.name, r.fact, b.name"},
    "entity_lookup": {"name": "Zebra"},
    "episode_retrieval": {"query": "secret"},
}
QUERY = {"query": "MATCH (a:Entity) RETURN a.name, a.id"}
FOREIGN: tuple[tuple[str, str, dict[str, Any] | None], ...] = (
    ("GET", "/memories/{fact}", None),
    ("PUT", "/memories/{fact}", {"text": "mine"}),
    ("POST", "/memories/{fact}/restore", None),
    ("DELETE", "/memories/{fact}", None),
    ("POST", "/memories/changes/{change}/undo", None),
    ("GET", "/graph/entities/{entity}", None),
    ("POST", "/graph/entities/{own_entity}/merge", {"into": "{entity}"}),
    ("POST", "/graph/entities/{entity}/merge", {"into": "{own_entity}"}),
    ("POST", "/graph/entities/{own_entity}/split", {"merged_id": "{entity}"}),
    ("GET", "/graph?center={entity}", None),
    ("POST", "/memories/extract", {"conversation_id": "{conversation}"}),
)
SCOPES = ("project:{project}", "room:{room}", "base:{base}")
OF_SCOPE: tuple[tuple[str, str, dict[str, Any] | None], ...] = (
    *(
        ("GET", f"{path}?scope={{scope}}", None)
        for path in (
            "/memories", "/memories/export", "/memories/changes", "/graph", "/graph/entities",
            "/graph/communities", "/graph/export",
        )
    ),
    ("DELETE", "/memories?scope={scope}", None),
    ("DELETE", "/memories?scope={scope}&source=person", None),
    ("POST", "/memories", {"text": "mine", "scope": "{scope}"}),
    ("POST", "/graph/query", {**QUERY, "scope": "{scope}"}),
)  # fmt: skip
FOREIGN_TOOLS: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("memory_search", {"query": "secret", "scope": "{scope}"}, "has memory that you may use"),
    ("memory_forget", {"id": "{fact}"}, "nothing with this id"),
    ("entity_lookup", {"id": "{entity}"}, "no entity with this id"),
    ("knowledge_search", {"query": "secret", "base_ids": ["{base}"]}, "can be used here"),
    ("summary", {"document_id": "{document}"}, "can be used here"),
)


class Member(msgspec.Struct, frozen=True):
    person: ApiClient
    tenant: int
    secret: str
    ids: dict[str, str]

    def filled(self, text: str, other: dict[str, str]) -> str:
        for name, value in {**other, "own_entity": self.ids["entity"], "secret": self.secret}.items():
            text = text.replace(f"{{{name}}}", value)
        return text


def member(person: ApiClient, tenant: int, number: int) -> Member:
    """A person who has a fact of their own, changed once, and one in a project."""
    secret = f"secret{tenant}x{number}y"
    project = person.good("POST", "/projects", json={"name": "P"})["id"]
    person.good("POST", "/memories", json={"text": f"{secret} project", "scope": f"project:{project}"})
    body = {"text": f"{secret} before", "subject": "Zebra", "predicate": "is", "object": f"Thing of {secret}"}
    fact = person.good("POST", "/memories", json=body)
    person.good("PUT", f"/memories/{fact['id']}", json={"text": f"{secret} after"})
    conversation = person.good("POST", "/conversations", json={})["id"]
    room = person.good("POST", "/chat-rooms", json={"title": "R", "task": "Talk."})["id"]
    base = person.good("POST", "/knowledge", json={"name": "B"})["id"]
    document = base
    if number == 0:  # Indexing one for each of them would take seconds.
        body = {"name": "a.txt", "text": secret}
        document = person.good("POST", f"/knowledge/{base}/documents", json=body)["items"][0]["id"]
    [change] = person.good("GET", f"/memories/changes?fact_id={fact['id']}")["items"]
    ids = {
        "fact": fact["id"], "change": change["id"], "entity": fact["entities"][0]["id"], "project": project,
        "conversation": conversation, "room": room, "base": base, "document": document,
    }  # fmt: skip
    return Member(person, tenant, secret, ids)


def test_nobody_reads_or_changes_the_memory_of_somebody_else(admin: ApiClient, join: Join) -> None:
    members: list[Member] = []
    for tenant in range(3):
        tenant_id = admin.good("POST", "/admin/tenants", json={"name": f"isolated {tenant}"})["id"]
        people = [join(tenant_id, 4 if number == 0 else 2) for number in range(PEOPLE)]
        people[0].good("POST", "/memories", json={"text": f"secret of all {tenant}", "scope": "tenant"})
        members += [member(person, tenant, number) for number, person in enumerate(people)]
    for position, each in enumerate(members):
        own = [each.person.ask("GET", each.filled(path, {})) for path in READS]
        own += [
            each.person.ask("POST", f"/tools/{name}/execute", json={"arguments": arguments})
            for name, arguments in TOOLS.items()
        ]
        own.append(each.person.ask("POST", "/graph/query", json=QUERY))
        assert [answer.status_code for answer in own] == [200] * len(own)
        shown = "\n".join(answer.text for answer in own)
        assert each.secret in own[0].text
        assert f"secret of all {each.tenant}" in own[0].text
        hidden = [other.secret for other in members if other is not each]
        hidden += [f"secret of all {tenant}" for tenant in range(3) if tenant != each.tenant]
        assert [secret for secret in hidden if secret in shown] == []
        for other in (members[(position + 1) % len(members)], members[(position + PEOPLE) % len(members)]):
            scope = each.filled(SCOPES[position % len(SCOPES)], other.ids)
            for method, path, body in (*FOREIGN, *OF_SCOPE):
                ids = {**other.ids, "scope": scope}
                given = {} if body is None else {"json": json.loads(each.filled(json.dumps(body), ids))}
                each.person.bad(method, each.filled(path, ids), 404, **given)
            changes = each.person.good("GET", f"/memories/changes?entity_id={other.ids['entity']}")
            assert changes["items"] == []
            for name, arguments, words in FOREIGN_TOOLS:
                called = each.filled(json.dumps({"arguments": arguments}), {**other.ids, "scope": scope})
                failed = each.person.good("POST", f"/tools/{name}/execute", json=json.loads(called))
                assert (failed["success"], words in failed["error"]) == (False, True), (name, failed)
            source = f"/memories?source=person:{other.person.user['id']}"
            assert each.person.good("DELETE", source) == {"deleted": 0}
    for each in members:
        assert each.person.good("GET", f"/memories/{each.ids['fact']}")["text"] == f"{each.secret} after"
