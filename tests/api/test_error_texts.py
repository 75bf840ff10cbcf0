"""The texts of 400: for every field of every request body and query, a sentence that says what is allowed."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from api.bad_requests import UNKNOWN_ID
from api.client import ApiClient
from api.schema import Document, Operation

JARGON = re.compile(
    r"`|\$[.\[]|[\^\\]|\(\?|\b(?:regex|expected|object missing|str|int|bool|float)\b", re.IGNORECASE
)
"""Words of programs and patterns, which no sentence for people has."""

HUGE = 10**30
BODIES: dict[str, Any] = {
    "/permissions/rules": [],
    "/messages/stream": {"conversation_id": UNKNOWN_ID, "content": "x"},
}
"""Valid bodies of routes whose query is tested."""


def fill_placeholders(path: str) -> str:
    numbered = re.sub(
        r"\{(agent_id|provider_id|seat_id|user_id|tenant_id|index|page_index|number)\}", "1", path
    )
    return numbered.replace("{", "").replace("}", "")


def options(schema: dict[str, Any], document: Document) -> list[dict[str, Any]]:
    """The alternatives of a schema, without references."""
    resolved = document.resolve(schema)
    if "anyOf" in resolved:
        return [alternative for each in resolved["anyOf"] for alternative in options(each, document)]
    return [resolved]


def wrong_values(schema: dict[str, Any], document: Document) -> list[tuple[Any, list[str]]]:
    """Values that the schema refuses, each with words that the refusal must have."""
    allowed = options(schema, document)
    if not any(alternative.keys() - {"description", "default", "title"} for alternative in allowed):
        return []  # Anything is allowed.
    choices = [value for alternative in allowed for value in alternative.get("enum", [])]
    types = {alternative.get("type") for alternative in allowed}
    words = [str(value) for value in choices]
    samples: list[tuple[Any, set[str]]] = [
        ([], {"array"}), ({}, {"object"}), (True, {"boolean"}), ("no such", {"string"}),
        (5, {"integer", "number"}), (HUGE, {"number"}),
    ]  # fmt: skip
    wrong = [(value, words) for value, kinds in samples if not types & kinds]
    return wrong + [each for alternative in allowed for each in out_of_bounds(alternative)]


def out_of_bounds(schema: dict[str, Any]) -> Iterator[tuple[Any, list[str]]]:
    """Values of the right type beyond each limit of a schema, with the limit."""
    if "maximum" in schema:
        yield schema["maximum"] + 1, [f"{schema['maximum']:,}"]
        below = schema["minimum"] - 1 if "minimum" in schema else schema["exclusiveMinimum"]
        yield below, [f"{schema.get('minimum', below):,}"]
    if schema.get("maxLength", HUGE) < 5000:
        yield "x" * (schema["maxLength"] + 1), [f"{schema['maxLength']:,}"]
    if schema.get("minLength"):
        yield "", [f"{schema['minLength']:,}"]
    if "pattern" in schema:
        yield "\x01 \n\n ", []
    if schema.get("minItems"):
        yield [], [f"{schema['minItems']:,}"]
    if schema.get("maxItems", HUGE) < 1000 and schema["items"].get("type") == "string":
        yield ["x"] * (schema["maxItems"] + 1), [f"{schema['maxItems']:,}"]


def objects(
    schema: dict[str, Any], document: Document, path: str = "$", depth: int = 0
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object with named fields in a body, with its JSON path."""
    for alternative in options(schema, document):
        if "properties" in alternative:
            yield path, alternative
            for name, field in alternative["properties"].items():
                if depth < 4:
                    yield from objects(field, document, f"{path}.{name}", depth + 1)
        elif alternative.get("type") == "array":
            yield from objects(alternative.get("items", {}), document, f"{path}[0]", depth + 1)


def body_with(path: str, value: Any) -> Any:
    """A body that has only this value, at this path."""
    for part in reversed(re.findall(r"\.\w+|\[0\]", path)):
        value = [value] if part == "[0]" else {part[1:]: value}
    return value


def operations_with_bodies(document: Document) -> list[tuple[Operation, dict[str, Any]]]:
    operations = [(operation, document.body_schema(operation)) for operation in document.operations]
    return [
        (operation, schema)
        for operation, schema in operations
        # The errors of /v1 have the form of OpenAI's, which names one field (test_bad_requests.py).
        if schema and "import" not in operation.template and not operation.template.startswith("/v1/")
    ]


def refused_fields(person: ApiClient, operation: Operation, body: Any) -> dict[str, str]:
    failure = person.bad(operation.method, fill_placeholders(operation.template), 400, json=body)
    fields: dict[str, str] = failure["detail"]["fields"]
    for path, sentence in fields.items():
        assert not JARGON.search(sentence), f"{operation} {path}: {sentence}"
        assert "another" not in sentence, f"{operation} {path}: {sentence}"
    assert not re.search(r"`|regex|Expected", failure["error"]), failure["error"]
    return fields


def test_every_field_of_every_body_says_what_it_allows(admin: ApiClient, document: Document) -> None:
    checked = 0
    for operation, schema in operations_with_bodies(document):
        for path, object_schema in objects(schema, document):
            wrong = {
                name: wrong_values(field, document) for name, field in object_schema["properties"].items()
            }
            for turn in range(max((len(values) for values in wrong.values()), default=0)):
                sent = {name: values[turn] for name, values in wrong.items() if turn < len(values)}
                body = body_with(path, {name: value for name, (value, _) in sent.items()})
                fields = refused_fields(admin, operation, body)
                for name, (value, words) in sent.items():
                    sentence = fields.get(f"{path}.{name}", "")
                    assert sentence, f"{operation} {path}.{name}: {value!r:.50} in {fields}"
                    missing = [word for word in words if word not in sentence]
                    assert not missing, f"{operation} {path}.{name}: {sentence!r} lacks {missing}"
                    checked += 1
    assert checked > 300


def test_every_missing_and_every_unknown_field_is_named(admin: ApiClient, document: Document) -> None:
    for operation, schema in operations_with_bodies(document):
        for path, object_schema in objects(schema, document):
            known = list(object_schema["properties"])
            first = known[0] if known else "unknown field"
            fields = refused_fields(admin, operation, body_with(path, {f"{first}x": 1, "zzzzzz": 2}))
            assert first in fields[f"{path}.{first}x"], fields
            assert first in fields[f"{path}.zzzzzz"], fields
            for name in object_schema.get("required", []):
                assert "required" in fields[f"{path}.{name}"], fields


def test_every_query_parameter_says_what_it_allows(admin: ApiClient, document: Document) -> None:
    checked = 0
    for operation in document.operations:
        for parameter in operation.parameters:
            if parameter["in"] != "query" or operation.template == "/setup":
                continue
            schema = options(parameter["schema"], document)[0]
            path, name = fill_placeholders(operation.template), parameter["name"]
            wrong: list[tuple[str, list[str]]] = []
            if schema.get("type") in ("integer", "boolean") or "format" in schema:
                wrong.append(("nonsense", []))
            if "maximum" in schema:
                wrong.append((str(HUGE), [f"{schema['maximum']:,}"]))
            if "minimum" in schema:
                wrong.append((str(schema["minimum"] - 1), [f"{schema['minimum']:,}"]))
            if "enum" in schema:
                wrong.append(("nonsense", [str(each) for each in schema["enum"]]))
            if schema.get("maxLength", HUGE) < 5000:
                wrong.append(("x" * (schema["maxLength"] + 1), [f"{schema['maxLength']:,}"]))
            others = {
                each["name"]: "x"
                for each in operation.parameters
                if each["in"] == "query" and each["required"] and each["name"] != name
            }
            takes_body = operation.template in BODIES and operation.method != "GET"
            body = {"json": BODIES[operation.template]} if takes_body else {}
            for value, words in wrong:
                failure = admin.bad(operation.method, path, 400, params={**others, name: value}, **body)
                sentence = failure["detail"]["fields"][name]
                assert not JARGON.search(sentence), f"{operation} {name}: {sentence}"
                assert not [word for word in words if word not in sentence], f"{operation} {name}: {sentence}"
                checked += 1
            if parameter["required"]:
                failure = admin.bad(operation.method, path, 400, params=others, **body)
                assert "required" in failure["detail"]["fields"][name]
    assert checked > 80


@pytest.mark.parametrize(
    ("method", "path", "body", "field", "sentence"),
    [
        ("POST", "/conversations", {"title": ""}, "$.title", "must be text of 1 to 300 characters"),
        ("POST", "/conversations", {"temprature": 1}, "$.temprature",
         "unknown field; did you mean temperature?"),
        ("POST", "/conversations", {"temperature": "x"}, "$.temperature",
         "must be a number from 0 to 2, or null"),
        ("POST", "/conversations", {"max_tokens": 0}, "$.max_tokens",
         "must be a whole number from 1 to 10,000,000, or null"),
        ("POST", "/projects", {}, "$.name", "this field is required and must be text of 1 to 200 characters"),
        ("PUT", "/auth/users/1", {"permission_level": 7}, "$.permission_level", "must be one of 1, 2, 3, 4"),
        ("PUT", "/auth/users/1", {"email": "x"}, "$.email",
         "must be text of at most 254 characters: an e-mail address, such as name@example.org, or null"),
        ("POST", "/auth/users", {"username": "a b", "password": "long enough"}, "$.username",
         "must be 3 to 64 letters a-z, digits, '.', '_' and '-'"),
        ("POST", f"/messages/{UNKNOWN_ID}/regenerate", {"when_asked": "never"}, "$.when_asked",
         "must be one of 'wait', 'deny', or null"),
        ("POST", f"/messages/{UNKNOWN_ID}/regenerate", {"tools": "all"}, "$.tools",
         "must be true or false, or a list of at most 200 items, each text of 1 to 200 characters, or null"),
        ("PUT", "/permissions/rules", [{"tool": "a", "action": "may"}], "$[0].action",
         "must be one of 'allow', 'ask', 'deny'"),
    ],
)  # fmt: skip
def test_sentences_read_well(
    admin: ApiClient, method: str, path: str, body: Any, field: str, sentence: str
) -> None:
    assert admin.bad(method, path, 400, json=body)["detail"]["fields"][field] == sentence


def test_a_large_body_gets_the_same_sentence(admin: ApiClient) -> None:
    body = {"system_prompt": "x" * 70_000, "tags": ["a", 5]}
    fields = admin.bad("POST", "/conversations", 400, json=body)["detail"]["fields"]
    assert fields == {"$.tags[1]": "must be text of 1 to 50 characters"}
    body = {"system_prompt": "x" * 70_000, "titel": "a"}
    fields = admin.bad("POST", "/conversations", 400, json=body)["detail"]["fields"]
    assert fields == {"$.titel": "unknown field; did you mean title?"}
    body = {"description": "x" * 70_000}
    fields = admin.bad("POST", "/projects", 400, json=body)["detail"]["fields"]
    assert set(fields) in ({"$.name"}, {"$.description"})
