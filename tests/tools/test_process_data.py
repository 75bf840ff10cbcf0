"""process_data: an example of each operation, wrong arguments, and data whose result would be huge."""

import json
from typing import Any

import pytest

from luxx.tools.builtin.data import OPERATIONS, process_data

ROWS = [{"n": 3, "k": "a", "in": {"x": 1}}, {"n": 1, "k": "b"}, {"n": 2, "k": "a"}]


def run(data: Any, operation: str, **options: Any) -> Any:
    result = process_data({"data": data, "operation": operation, "options": options})
    assert result.success, result.error
    return result.data["result"]


@pytest.mark.parametrize(
    ("operation", "data", "options", "result"),
    [
        ("parse", '{"a": [1]}', {}, {"a": [1]}),
        ("format", '{"b":1,"a":2}', {"sort_keys": True, "indent": 1}, '{\n "a": 2,\n "b": 1\n}'),
        ("minify", '{ "a" : [ 1 ] }', {}, '{"a":[1]}'),
        ("get", ROWS, {"path": "0.in.x"}, 1),
        ("filter", ROWS, {"path": "k", "value": "a"}, [ROWS[0], ROWS[2]]),
        ("filter", ROWS, {"path": "n", "test": "ge", "value": 2}, [ROWS[0], ROWS[2]]),
        ("filter", ROWS, {"path": "in.x", "test": "exists"}, [ROWS[0]]),
        ("filter", ROWS, {"path": "k", "test": "in", "value": ["b"]}, [ROWS[1]]),
        ("filter", ROWS, {"path": "k", "test": "matches", "value": "^B"}, []),
        ("filter", ["ab", "c"], {"test": "contains", "value": "b"}, ["ab"]),
        ("filter", [1, "x", None], {"test": "gt", "value": 0}, [1]),
        ("filter", ROWS, {"path": "z", "test": "ne", "value": 1}, ROWS),
        ("sort", ROWS, {"path": "n"}, [ROWS[1], ROWS[2], ROWS[0]]),
        ("sort", [2, "a", None, 1.5, [0]], {}, [1.5, 2, "a", [0], None]),
        ("unique", ROWS, {"path": "k"}, ROWS[:2]),
        ("slice", ROWS, {"start": 1, "end": 2}, [ROWS[1]]),
        ("pick", ROWS[0], {"keys": ["k", "z"]}, {"k": "a"}),
        ("omit", ROWS[1:], {"keys": ["n"]}, [{"k": "b"}, {"k": "a"}]),
        ("rename", {"a": 1, "b": 2}, {"names": {"a": "c"}}, {"c": 1, "b": 2}),
        ("keys", ROWS, {}, ["n", "k", "in"]),
        ("group", ROWS, {"by": "k"}, {"a": [ROWS[0], ROWS[2]], "b": [ROWS[1]]}),
        ("aggregate", ROWS, {"measure": "sum", "path": "n", "by": "k"}, {"a": 5, "b": 1}),
        ("aggregate", ROWS, {"measure": "mean", "path": "n"}, 2.0),
        ("aggregate", [], {"measure": "max", "path": "n"}, None),
        ("aggregate", ROWS, {"measure": "count", "path": "in"}, 1),
        ("aggregate", [3, 1, 2], {"measure": "median"}, 2),
        ("flatten", {"a": {"b": [1, {"c": 2}]}, "d": {}}, {}, {"a.b.0": 1, "a.b.1.c": 2, "d": {}}),
        ("csv_to_json", 'a,b\n1,"x\ny"\n', {}, [{"a": "1", "b": "x\ny"}]),
        ("csv_to_json", "", {}, []),
        ("csv_to_json", "a;b\n1;2", {"delimiter": ";"}, [{"a": "1", "b": "2"}]),
        ("json_to_csv", [{"a": 1, "b": "x,y"}, {"b": None, "c": [1]}], {}, 'a,b,c\n1,"x,y",\n,,[1]\n'),
    ],
)
def test_an_operation_gives_this_result(
    operation: str, data: Any, options: dict[str, Any], result: Any
) -> None:
    assert run(data, operation, **options) == result


def test_every_operation_is_described_to_the_model() -> None:
    described = process_data.definition.description
    assert all(f"\n{name}: " in described for name in OPERATIONS)
    assert process_data.definition.parameters["properties"]["operation"]["enum"] == list(OPERATIONS)


def test_csv_and_json_convert_both_ways() -> None:
    rows = [{"a": "1", "b": 'quote " and, comma'}, {"a": "é", "b": "line\nbreak"}]
    assert run(run(rows, "json_to_csv"), "csv_to_json") == rows


@pytest.mark.parametrize(
    ("operation", "data", "options", "words"),
    [
        ("parse", "{", {}, "not valid JSON"),
        ("parse", "[" * 50_000, {}, "not valid JSON"),
        ("get", {"a": 1}, {"path": "b"}, "no value at the path 'b'"),
        ("get", {"a": 1}, {}, "wrong options"),
        ("sort", {"a": 1}, {}, "needs a list"),
        ("pick", [1], {"keys": []}, "list of objects"),
        ("filter", [1], {"tset": "eq"}, "wrong options"),
        ("filter", [1], {"test": "near"}, "wrong options"),
        ("filter", ["a"], {"test": "matches", "value": "("}, "regular expression"),
        (
            "filter",
            ["ab" * 100_000],
            {"test": "matches", "value": "[ab]*a[ab]{900}c"},
            "200,000 characters is too long for this pattern; it can search at most 110,253",
        ),
        ("filter", [1], {"test": "in", "value": list(range(2000))}, "at most 1000"),
        ("format", [1], {"indent": 9}, "indent must be from 0 to 8"),
        ("csv_to_json", [1], {}, "must be CSV text"),
        ("csv_to_json", "a\n1,2", {}, "row 2 has 2 fields"),
        ("csv_to_json", 'a\n"x', {}, "not CSV"),
        ("csv_to_json", "a", {"delimiter": "xx"}, "not CSV"),
        ("aggregate", [1], {"measure": "mode"}, "wrong options"),
    ],
)
def test_wrong_arguments_are_reported(operation: str, data: Any, options: dict[str, Any], words: str) -> None:
    result = process_data({"data": data, "operation": operation, "options": options})
    assert not result.success
    assert words in result.error


def nested(depth: int, inner: Any, key: str = "") -> Any:
    value = inner
    for _ in range(depth):
        value = {key: value} if key else [value]
    return value


@pytest.mark.parametrize(
    ("operation", "data", "options"),
    [
        ("format", nested(300, list(range(100_000))), {"indent": 8}),
        ("flatten", nested(40, list(range(10_000)), "k" * 1000), {}),
        ("flatten", nested(100, 1), {}),
        ("flatten", [[0] * 1000], {"separator": "-" * 1000}),
        ("rename", [{"a": 1}] * 100_000, {"names": {"a": "b" * 100_000}}),
        ("csv_to_json", "h" * 100_000 + "\n" + "1\n" * 100_000, {}),
        ("json_to_csv", [{str(n): 1} for n in range(10_000)], {}),
    ],
)
def test_data_with_a_huge_result_is_refused(operation: str, data: Any, options: dict[str, Any]) -> None:
    result = process_data({"data": data, "operation": operation, "options": options})
    assert not result.success


def test_the_result_is_valid_json() -> None:
    assert json.loads(run(ROWS, "format")) == ROWS
