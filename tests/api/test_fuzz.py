"""Every operation with whatever JSON, path and query: an answer that the document describes, never a 500."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api.conftest import connect
from api.person import Person
from api.schema import Document, Operation
from api.server import Server
from luxx.providers.scripted import ScriptedProvider

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
ODD = st.sampled_from(["", " ", "\x00", "null", "-1", "1e9", "%00", "../..", "'; --", "ß" * 300, "🙂", "1_0"])
NUMBER = st.one_of(
    st.integers(), st.integers(-2, 101), st.sampled_from([2**31, 2**63, 10**40]), st.floats(0, 3)
)
LEAF = st.one_of(st.none(), st.booleans(), NUMBER, TEXT, ODD)
JSON = st.recursive(
    LEAF, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=6
)
EXAMPLES = 25
LEFT_OUT = {("POST", "/auth/logout"), ("POST", "/auth/password"), ("POST", "/auth/register")}
"""These would sign the asker out, or make users without end."""


def of_schema(document: Document, schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that may well be what the schema wants."""
    schema = document.resolve(schema)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return st.one_of([of_schema(document, each) for each in schema[key]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema.get("type"):
        case "boolean":
            return st.booleans()
        case "integer":
            return st.integers(schema.get("minimum", -3), min(schema.get("maximum", 1000), 1000))
        case "number":
            return st.floats(0, 2)
        case "string":
            least = schema.get("minLength", 0)
            return st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=least, max_size=least + 9)
        case "array":
            return st.lists(of_schema(document, schema.get("items", {})), max_size=3)
        case "object" if "properties" in schema:
            return body_of(document, schema)
        case _:
            return JSON


def body_of(document: Document, schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    fields = {name: of_schema(document, each) | JSON for name, each in schema["properties"].items()}
    required = {name: fields.pop(name) for name in schema.get("required", [])}
    return st.fixed_dictionaries(required, optional=fields)


@pytest.fixture(scope="module")
def ids(anna: Person) -> dict[str, str]:
    conversation_id = anna.good("POST", "/conversations", json={})["id"]
    message = anna.good("POST", "/messages", json={"conversation_id": conversation_id, "content": "hi"})
    run = anna.good("GET", "/runs")["items"][0]
    file = anna.good("POST", "/files", files={"file": ("a.txt", b"a")})
    project_id = anna.good("POST", "/projects", json={"name": "p"})["id"]
    known = {"conversation_id": conversation_id, "message_id": message["id"], "run_id": run["id"]}
    return known | {"project_id": project_id, "file_id": file["id"], "index": "0"}


def test_whatever_is_asked_the_answer_is_as_described(
    anna: Person, document: Document, server: Server, upstream: ScriptedProvider, ids: dict[str, str]
) -> None:
    for operation in document.operations:
        if (operation.method, operation.template) not in LEFT_OUT:
            fuzz(anna, document, operation, ids)
    anna.good("GET", "/auth/me")
    connect(anna, upstream)
    assert "request_broke" not in server.output
    assert '"level":"error"' not in server.output


def fuzz(person: Person, document: Document, operation: Operation, ids: dict[str, str]) -> None:
    schema = document.body_schema(operation)
    bodies = st.none() if schema is None else (body_of(document, schema) if "properties" in schema else JSON)
    value = st.one_of(TEXT, ODD, st.integers(-2, 3).map(str), st.sampled_from(sorted(ids.values())))
    query = st.fixed_dictionaries({}, optional=dict.fromkeys(operation.names("query"), value))
    places = st.fixed_dictionaries(dict.fromkeys(operation.names("path"), value))

    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(body=bodies, params=query, path=places)
    def ask(body: Any, params: dict[str, str], path: dict[str, str]) -> None:
        url = operation.template
        for name, each in path.items():
            url = url.replace("{" + name + "}", person.quoted(each) or "1")
        headers = {"accept": "application/json"}
        person.ask(operation.method, url, params=params, json=body, headers=headers)

    ask()
