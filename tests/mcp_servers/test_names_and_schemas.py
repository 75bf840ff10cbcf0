"""Names and schemas of MCP tools: valid for models, unique, and without patterns that take long."""

import math
import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luxx.domain.mcp.offering import UnusableSchema, sanitized_schema, server_prefix, tool_name
from luxx.tools.schema import ArgumentCheck

TAKEN_BY_ALL = re.compile(r"[a-zA-Z0-9_-]{1,64}")
SERVERS = st.from_regex(r"\A[a-z0-9][a-z0-9-]{0,19}\Z")


@given(tenant=st.text(min_size=1, max_size=200), server=SERVERS, tools=st.sets(st.text(), max_size=20))
def test_every_tool_gets_a_unique_valid_name(tenant: str, server: str, tools: set[str]) -> None:
    prefix = server_prefix(tenant, server)
    names = [tool_name(prefix, tool) for tool in sorted(tools)]
    assert len(set(names)) == len(names)
    for name in names:
        assert TAKEN_BY_ALL.fullmatch(name)
        assert name.startswith(prefix)


@given(first=st.tuples(st.text(min_size=1), SERVERS), second=st.tuples(st.text(min_size=1), SERVERS))
def test_no_prefix_of_a_server_is_that_of_another(first: tuple[str, str], second: tuple[str, str]) -> None:
    first_prefix, other = server_prefix(*first), server_prefix(*second)
    assert (first_prefix == other) == (first == second)
    assert first == second or not first_prefix.startswith(other)


def test_valid_names_are_unchanged() -> None:
    assert tool_name(server_prefix("default", "mail"), "send_mail") == "mcp__default_mail__send_mail"


def test_changed_names_are_stable() -> None:
    prefix = server_prefix("Ünïon & Sons, a rather long name", "mail")
    assert prefix == server_prefix("Ünïon & Sons, a rather long name", "mail")
    assert tool_name(prefix, "send.mail") != tool_name(prefix, "send/mail")


def test_a_valid_schema_is_copied_keyword_by_keyword() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "path": {"type": "string", "pattern": "^[a-z]+$", "description": "x" * 5000},
            "pattern": {"type": "integer", "minimum": 1},
            "deep": {"properties": {"$ref": {"enum": ["a", None]}}},
        },
        "required": ["path"],
        "additionalProperties": False,
        "x-mine": 1,
    }
    sanitized = sanitized_schema(schema)
    assert set(sanitized) == {"type", "properties", "required", "additionalProperties"}
    assert set(sanitized["properties"]) == {"path", "pattern", "deep"}
    assert set(sanitized["properties"]["deep"]["properties"]) == {"$ref"}
    assert len(sanitized["properties"]["path"]["description"]) == 1000
    check = ArgumentCheck("t", sanitized)
    assert check.problems({"path": "abc", "pattern": 1, "deep": {"$ref": None}}) == {}
    assert set(check.problems({"path": "A", "pattern": 0})) == {"arguments.path", "arguments.pattern"}


def test_references_are_inlined_and_circular_ones_allow_anything() -> None:
    tree = {"type": "object", "properties": {"name": {"type": "string"}, "child": {"$ref": "#/$defs/tree"}}}
    sanitized = sanitized_schema(
        {"properties": {"root": {"$ref": "#/$defs/tree", "description": "d"}}, "$defs": {"tree": tree}}
    )
    assert "$ref" not in str(sanitized)
    check = ArgumentCheck("t", sanitized)
    assert check.problems({"root": {"child": {"child": {"name": 1}}}}) == {}
    assert set(check.problems({"root": {"name": 1}})) == {"arguments.root.name"}


def test_a_reference_beside_other_keywords_is_combined_with_them() -> None:
    sanitized = sanitized_schema(
        {
            "properties": {"n": {"$ref": "#/$defs/small", "minimum": 3}, "never": {"$ref": "#/$defs/none"}},
            "$defs": {"small": {"maximum": 5}, "none": False},
        }
    )
    check = ArgumentCheck("t", sanitized)
    assert [bool(check.problems({"n": n})) for n in (2, 4, 6)] == [True, False, True]
    assert check.problems({"never": 1})


def doubling() -> dict[str, Any]:
    links = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    return {"properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": {**links, "d40": {"type": "string"}}}


def nested(depth: int) -> dict[str, Any]:
    sanitized: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        sanitized = {"type": "array", "items": sanitized}
    return {"type": "object", "properties": {"a": sanitized}}


UNFIT: dict[str, dict[str, Any]] = {
    "doubles with each reference": doubling(),
    "is nested": nested(500),
    "has many parts": {"properties": {f"p{n}": {} for n in range(3000)}},
    "is long": {"properties": {f"{'p' * 900}{n}": {} for n in range(60)}},
    "is no object": {"type": "string"},
    "has an argument that vendors refuse": {"properties": {"a bä": {"type": "string"}}},
    "has an argument of a long name": {"properties": {"a" * 65: {"type": "string"}}},
    "is alternatives alone": {"anyOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]},
}


@pytest.mark.parametrize("what", UNFIT)
def test_an_oversized_schema_is_refused_at_once(what: str) -> None:
    began = time.monotonic()
    with pytest.raises(UnusableSchema):
        sanitized_schema(UNFIT[what])
    assert time.monotonic() - began < 2


def test_keywords_that_vendors_refuse_at_the_top_are_left_out() -> None:
    refused = {"anyOf": [{"required": ["a"]}], "not": {}, "enum": [1], "if": {}, "then": False}
    sanitized = sanitized_schema({"properties": {"a": {"type": "string"}}, "required": ["b", []], **refused})
    assert sanitized == {"type": "object", "properties": {"a": {"type": "string"}}}
    whole = {"type": "object", "$ref": "#/$defs/it", "$defs": {"it": sanitized}}
    assert sanitized_schema(whole) == sanitized


def test_only_short_valid_values_are_copied() -> None:
    left = [
        {"maximum": math.inf},
        {"minimum": 10**400},
        {"maxLength": 10**30},
        {"enum": ["x" * 300]},
        {"enum": [["a"]]},
        {"enum": list(range(501))},
        {"const": {}},
        {"default": nested(3000)},
        {"title": "Run python first", "examples": ["x"]},
    ]
    sanitized = sanitized_schema({"properties": {f"p{n}": left_out for n, left_out in enumerate(left)}})
    assert sanitized["properties"] == {f"p{n}": {} for n in range(len(left))}
    expected = {"enum": ["a", 1, None], "default": "a", "maximum": 5}
    assert sanitized_schema({"properties": {"a": expected}})["properties"]["a"] == expected


def test_the_number_of_alternatives_is_bounded() -> None:
    some = [{"type": "null"}] * 20
    sanitized = sanitized_schema({"properties": {f"p{n}": {"anyOf": some} for n in range(11)}})
    assert sum("anyOf" in property_schema for property_schema in sanitized["properties"].values()) == 10
    assert sanitized_schema({"properties": {"a": {"anyOf": [*some, {}]}}})["properties"]["a"] == {}


def test_a_sanitized_schema_never_refuses_arguments_that_the_server_accepts() -> None:
    evil = [{"pattern": "(?=a)a"}, {"pattern": "(?=b)b"}]
    words = [{"oneOf": evil}, {"not": {"allOf": evil}}, {"if": evil[0], "then": {"const": "a"}}]
    check = ArgumentCheck(
        "t", sanitized_schema({"properties": {f"p{n}": word for n, word in enumerate(words)}})
    )
    assert check.problems({"p0": "b", "p1": "c", "p2": "b"}) == {}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(
                    ["type", "properties", "items", "$ref", "allOf", "pattern", "required", "enum", "a"]
                ),
                inner,
            )
        ),
    )
)
def test_any_value_in_place_of_a_schema_is_handled(anything: Any) -> None:
    try:
        sanitized = sanitized_schema({"properties": {"a": anything}})
    except UnusableSchema:
        return
    assert sanitized["type"] == "object"
