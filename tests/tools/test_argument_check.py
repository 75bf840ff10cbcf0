"""Arguments are checked within bounds of time and memory, whatever the schema and the arguments are."""

import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from luxx.app.core_services import CoreServices
from luxx.errors import ConfigError
from luxx.infra.config.schema import Config, WorkspaceConfig
from luxx.tools.core import ToolDefinition, ToolRegistry
from luxx.tools.schema import ArgumentCheck

TOO_MANY = {"arguments": "the arguments are too many to be checked; give fewer or shorter ones"}


def check(schema: dict[str, Any]) -> ArgumentCheck:
    return ArgumentCheck("t", {"type": "object", "properties": {"q": schema}})


NULLS = [{"type": "null"}] * 1700

ENDLESS: dict[str, tuple[dict[str, Any], Any]] = {
    "alternatives of each of many": ({"items": {"anyOf": [*NULLS, {"type": "integer"}]}}, [1] * 10_000),
    "one of many alternatives": ({"items": {"oneOf": [*NULLS, {"type": "integer"}]}}, [1] * 10_000),
    "values of each of many": ({"items": {"enum": list(range(5000))}}, [4999] * 10_000),
    "names of each of many": ({"items": {"required": [f"n{n}" for n in range(900)]}}, [{}] * 10_000),
    "many problems": ({"items": {"not": {}}, "contains": {"type": "null"}}, [{"a": 1}] * 100_000),
}


@pytest.mark.parametrize("what", ENDLESS)
def test_an_endless_check_ends(what: str) -> None:
    schema, value = ENDLESS[what]
    one, began = check(schema), time.process_time()
    assert one.problems({"q": value})
    assert time.process_time() - began < 2


def test_a_check_that_would_fill_the_memory_ends() -> None:
    checked = check({"anyOf": NULLS})
    tracemalloc.start()
    try:
        assert checked.problems({"q": "x" * 300_000}) == TOO_MANY
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()


def test_ten_unknown_names_are_listed() -> None:
    known: dict[str, Any] = {f"known_{n}": {} for n in range(2000)}
    argument_check = ArgumentCheck(
        "t", {"type": "object", "properties": known, "additionalProperties": False}
    )
    began = time.process_time()
    problems = argument_check.problems({f"unknown_{n}" + "x" * 400: 1 for n in range(5_000)})
    assert len(problems) == 10
    assert all(len(path) <= 300 and len(words) <= 300 for path, words in problems.items())
    assert time.process_time() - began < 2


def test_many_records_are_all_checked() -> None:
    record = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}
    checked = check({"type": "array", "items": {**record, "required": ["a"], "additionalProperties": False}})
    records: list[dict[str, Any]] = [{"a": "x", "b": n} for n in range(5000)]
    assert checked.problems({"q": records}) == {}
    assert set(checked.problems({"q": [*records, {"b": 1}]})) == {"arguments.q[5000].a"}
    assert checked.problems({"q": records[:3]}) == {}


def test_the_schema_of_each_shipped_tool_is_valid(tmp_path: Path) -> None:
    """No start checks them."""
    services = CoreServices(
        Config(data_dir=str(tmp_path), workspace=WorkspaceConfig(root=str(tmp_path / "w")))
    )
    shipped = services.registry.list_all()
    services.store.close()
    assert {"file_read", "task_create", "create_artifact"} <= {each.name for each in shipped}
    for each in shipped:
        ArgumentCheck(each.name, each.parameters)


def test_a_tool_of_somebody_else_needs_a_valid_schema() -> None:
    wrong = {"type": "object", "properties": {"q": {"type": "text"}}}
    definition = ToolDefinition(name="theirs", description="x", parameters=wrong, handler=lambda *_: None)
    with pytest.raises(ConfigError, match="theirs: its parameters are not a JSON schema"):
        ToolRegistry([definition])
