"""`/graph` and its tools: pictures of now and then, merging and its undoing, files, and queries that read
nothing of others whatever they say."""

import itertools
import json
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import pytest
from memory.hostile_queries import hostile_text

from api.client import ApiClient
from api.owned_ids import NO_UUID
from api.schema import Document
from api.server_process import ServerProcess

FOREIGN = "foreign-canary"
numbers = itertools.count()
JSON = {"content-type": "application/json"}
"""Half of a character, which a JSON escape can contain, is no text that a client could encode."""


@pytest.fixture
def ann(server: ServerProcess, document: Document, admin: ApiClient) -> Iterator[ApiClient]:
    """Somebody new for each test: a graph is all that a person may read."""
    with ApiClient(server, document).register(f"grapher{next(numbers)}") as person:
        yield person


def knows(person: ApiClient, subject: str, object_: str, **more: Any) -> dict[str, str]:
    """Stores that one knows the other; returns the ids of both by their names."""
    body = {
        "text": f"{subject} knows {object_}.",
        "subject": subject,
        "predicate": "knows",
        "object": object_,
    }
    fact = person.good("POST", "/memories", json=body | more)
    return {entity["name"]: entity["id"] for entity in fact["entities"]}


def rows(person: ApiClient, query: str, **more: Any) -> list[list[Any]]:
    return person.good("POST", "/graph/query", json={"query": query, **more})["rows"]


def picture(person: ApiClient, **params: Any) -> tuple[set[str], set[tuple[str, str]]]:
    """The names of the nodes of a picture, and of the ends of its edges."""
    graph = person.good("GET", "/graph", params=params)
    names = [node["name"] for node in graph["nodes"]]
    return set(names), {(names[start], names[end]) for start, end, _ in graph["edges"]}


def test_a_merge_joins_what_is_known_and_is_undone_by_a_split_or_its_change(ann: ApiClient) -> None:
    ids = knows(ann, "Ann", "Ben") | knows(ann, "Anna", "Carl")
    before = ann.ask("GET", "/graph/export").content
    friends = "MATCH (:Entity {name: 'Ann'})-[:RELATES_TO]->(b) RETURN b.name ORDER BY b.name"
    merged = ann.good("POST", f"/graph/entities/{ids['Anna']}/merge", json={"into": ids["Ann"]})
    assert (merged["id"], [part["name"] for part in merged["merged"]]) == (ids["Ann"], ["Anna"])
    assert rows(ann, friends) == [["Ben"], ["Carl"]]
    assert picture(ann) == ({"Ann", "Ben", "Carl"}, {("Ann", "Ben"), ("Ann", "Carl")})
    listed = ann.good("GET", "/graph/entities", params={"q": "aNN"})["items"]
    assert [entity["id"] for entity in listed] == [ids["Ann"]]
    assert ann.good("GET", f"/graph/entities/{ids['Anna']}")["merged_into"] == ids["Ann"]

    parted = ann.good("POST", f"/graph/entities/{ids['Ann']}/split", json={"merged_id": ids["Anna"]})
    assert (parted["id"], parted["merged_into"]) == (ids["Anna"], None)
    assert rows(ann, friends) == [["Ben"]]
    changes = ann.good("GET", "/memories/changes")["items"]
    assert [(change["kind"], change["entity_id"]) for change in changes] == [
        ("split", ids["Anna"]), ("merge", ids["Anna"]),
    ]  # fmt: skip
    for name, expected in (("Ann", changes), ("Anna", changes), ("Ben", [])):
        assert ann.good("GET", f"/memories/changes?entity_id={ids[name]}")["items"] == expected
    for change in changes:
        ann.good("POST", f"/memories/changes/{change['id']}/undo")
    assert ann.ask("GET", "/graph/export").content == before


def test_a_picture_and_an_entity_show_what_was_true_or_known_at_a_time(ann: ApiClient) -> None:
    ids = knows(ann, "Ann", "Ben", valid_at="2026-01-01T00:00:00Z", invalid_at="2026-03-01T00:00:00Z")
    ids |= knows(ann, "Ann", "Carl", valid_at="2026-03-01T00:00:00Z")
    for as_of, other in (("2026-02-01T00:00:00Z", "Ben"), ("2026-04-01T00:00:00Z", "Carl")):
        assert picture(ann, as_of=as_of) == ({"Ann", other}, {("Ann", other)})
        assert picture(ann, as_of=as_of, center=ids["Ann"], depth=2)[0] == {"Ann", other}
        shown = ann.good("GET", f"/graph/entities/{ids['Ann']}", params={"as_of": as_of})
        assert [fact["object"] for fact in shown["facts"]] == [other]
    assert picture(ann, known_at="2026-01-01T00:00:00Z") == (set(), set())
    assert picture(ann, limit=1)[0] == {"Ann"}
    assert ann.good("GET", "/graph", params={"limit": 1})["truncated"] is True
    assert ann.good("GET", "/graph/communities")["items"] == []


def test_files_of_the_graph_can_be_read(ann: ApiClient) -> None:
    knows(ann, 'O\'Neil "the" <b>', "\\back; {x: 1}")
    exported = ann.ask("GET", "/graph/export")
    assert "graph.json" in exported.headers["content-disposition"]
    assert len(exported.json()["nodes"]) == 2
    (fact,) = exported.json()["relationships"]
    assert (fact["type"], fact["predicate"]) == ("RELATES_TO", "knows")
    xml = ElementTree.fromstring(ann.ask("GET", "/graph/export?format=graphml").text)
    assert {key.attrib["id"] for key in xml.findall("{*}key")} >= {
        data.attrib["key"] for data in xml.iterfind(".//{*}data")
    }
    assert len(xml.findall(".//{*}edge")) == 1
    assert ann.ask("GET", "/graph/export?format=cypher").text.count("CREATE (:Luxx:Entity") == 2


REFUSED = [
    ("POST", "/graph/query", {"query": ""}, "query_refused", None),
    ("POST", "/graph/query", {"query": "MATCH (n) RETURN n", "limit": 0}, None, "$.limit"),
    ("POST", "/graph/query", {"query": "MATCH (n) RETURN n", "limit": 201}, None, "$.limit"),
    ("POST", "/graph/query", {"query": "x" * 4001}, None, "$.query"),
    ("POST", "/graph/query", {"query": 5}, None, "$.query"),
    ("POST", "/graph/query", {"query": "MATCH (n) RETURN n", "scope": "everybody"}, None, "$.scope"),
    ("POST", "/graph/query", {"query": "RETURN $a", "parameters": {"a": {}}}, "query_refused", None),
    ("GET", "/graph?depth=5", None, None, "depth"),
    ("GET", "/graph?limit=2001", None, None, "limit"),
    ("GET", "/graph?center=x", None, None, "center"),
    ("GET", "/graph?as_of=yesterday", None, None, "as_of"),
    ("GET", "/graph?as_of=0001-01-01T00:00:00%2B14:00", None, None, "as_of"),
    ("GET", "/graph?known_at=0001-01-01T00:00:00%2B14:00", None, None, "known_at"),
    ("GET", "/graph?scope=", None, None, "scope"),
    ("GET", f"/graph/entities?q={'x' * 201}", None, None, "q"),
    ("GET", "/graph/entities?type=", None, None, "type"),
    ("GET", "/graph/communities?scope=rooms", None, None, "scope"),
    ("GET", "/graph/export?format=svg", None, None, "format"),
    ("GET", "/memories/episodes?source=mail", None, None, "source"),
]  # fmt: skip


def test_wrong_requests_are_refused_with_their_field_or_place(ann: ApiClient) -> None:
    for method, path, body, kind, field in REFUSED:
        detail = ann.bad(method, path, 400, json=body)["detail"]
        assert list(detail.get("fields", [None])) == [field], (path, body, detail)
        assert kind in (None, detail["kind"]), (path, detail)
        assert "`" not in str(detail), path
    refused = ann.bad("POST", "/graph/query", 400, json={"query": "MATCH (n)\nDELETE n"})
    assert (refused["detail"]["line"], refused["detail"]["column"]) == (2, 1)
    assert "RETURN" in refused["detail"]["expected"]
    failed = ann.good(
        "POST", "/tools/graph_query/execute", json={"arguments": {"query": "MATCH (n)\nDELETE n"}}
    )
    assert failed["error"] == refused["error"]

    ids = knows(ann, "Ann", "Ben")
    project = ann.good("POST", "/projects", json={"name": "Other"})["id"]
    other = knows(ann, "Ann", "Prague", scope=f"project:{project}")
    merge, split = f"/graph/entities/{ids['Ann']}/merge", f"/graph/entities/{ids['Ann']}/split"
    for into in (ids["Ann"], other["Ann"]):
        ann.bad("POST", merge, 400, json={"into": into})
    ann.bad("POST", merge, 404, json={"into": NO_UUID})
    assert (
        ann.bad("POST", split, 409, json={"merged_id": ids["Ben"]})["detail"]["kind"] == "entity_not_merged"
    )
    ann.good("POST", merge, json={"into": ids["Ben"]})
    assert ann.bad("POST", merge, 409, json={"into": ids["Ben"]})["detail"]["kind"] == "entity_merged"


def test_an_entity_is_looked_up_by_its_name_its_former_name_or_its_id(ann: ApiClient) -> None:
    ids = knows(ann, "Miso", "Ann") | knows(ann, "Ann", "Ben") | knows(ann, "The Cat", "Carl")
    ann.good("POST", f"/graph/entities/{ids['The Cat']}/merge", json={"into": ids["Miso"]})

    def look_up(**arguments: Any) -> dict[str, Any]:
        return ann.good("POST", "/tools/entity_lookup/execute", json={"arguments": arguments})

    for given in ({"name": "miso"}, {"name": "THE CAT"}, {"id": ids["Miso"]}, {"id": ids["The Cat"]}):
        (found,) = look_up(**given)["data"]["entities"]
        assert (found["name"], found["merged"]) == ("Miso", ["The Cat"]), given
        assert {fact["text"] for fact in found["facts"]} == {"Miso knows Ann.", "The Cat knows Carl."}
        assert {near["name"] for near in found["neighbours"]} == {"Ann", "Carl"}
    (found,) = look_up(name="Miso", depth=2)["data"]["entities"]
    assert {near["name"] for near in found["neighbours"]} == {"Ann", "Carl", "Ben"}
    assert look_up(name="Miso the great")["data"] == {"entities": [], "similar": ["Miso"]}
    assert "no entity" in look_up(id=NO_UUID)["error"]
    assert "either" in look_up()["error"]


def test_hostile_queries_read_nothing_of_others_and_write_nothing(ann: ApiClient, bob: ApiClient) -> None:
    foreign = knows(bob, FOREIGN, f"{FOREIGN} 2")
    knows(ann, "Ann", "Ben")
    before = [person.ask("GET", "/graph/export").content for person in (ann, bob)]
    answered = 0
    for seed in range(500):
        body = {"query": hostile_text(seed), "parameters": {"p": "' OR 1=1 --", "scopes": [1, 2, 3]}}
        if seed % 2:
            response = ann.ask("POST", "/graph/query", content=json.dumps(body), headers=JSON)
            assert response.status_code in (200, 400), (body, response.text)
            answered += response.is_success
        else:
            content = json.dumps({"arguments": body})
            response = ann.ask("POST", "/tools/graph_query/execute", content=content, headers=JSON)
            assert response.status_code in (200, 400), (body, response.text)
            answered += '"success":true,"data":{"columns"' in response.text.replace(" ", "")
        assert FOREIGN not in response.text, body
    assert answered >= 20
    for path in (f"/graph?center={foreign[FOREIGN]}", f"/graph/entities/{foreign[FOREIGN]}"):
        ann.bad("GET", path, 404)
    found = ann.good("POST", "/tools/entity_lookup/execute", json={"arguments": {"name": FOREIGN}})
    assert found["data"] == {"entities": [], "similar": []}
    assert FOREIGN not in json.dumps(ann.good("GET", "/graph/entities"))
    assert [person.ask("GET", "/graph/export").content for person in (ann, bob)] == before
