"""The registry and the definition: names, levels, formats."""

from typing import Any

import pytest

from luxx.errors import ConfigError
from luxx.tools.builtin import builtin_tools
from luxx.tools.core import CommandPermission, Risk, ToolDefinition, ToolRegistry

SCHEMA: dict[str, Any] = {"type": "object", "properties": {}}


def definition(name: str, **more: Any) -> ToolDefinition:
    return ToolDefinition(
        name=name, description="d", parameters=SCHEMA, handler=lambda arguments, context: None, **more
    )


@pytest.mark.parametrize("name", ["", "1a", "a b", "a.b", "x" * 65, "é", "a\n", "-a"])
def test_a_bad_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be a tool's name"):
        ToolRegistry([definition(name)])


def test_a_second_tool_of_the_same_name_is_refused_and_the_first_one_stays() -> None:
    first = definition("one")
    registry = ToolRegistry([first])
    with pytest.raises(ConfigError, match="already a tool named one"):
        registry.register(definition("one"))
    assert registry.get("one") is first


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"type": "object", "properties": {"a": {"type": "nonsense"}}},
        {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:1/schema.json"}}},
    ],
)
def test_invalid_parameter_schemas_are_refused(schema: dict[str, Any]) -> None:
    bad = ToolDefinition(
        name="bad", description="d", parameters=schema, handler=lambda arguments, context: None
    )
    with pytest.raises(ConfigError, match="tool bad"):
        ToolRegistry([bad])


def test_a_removed_tool_is_gone_and_its_name_is_free() -> None:
    registry = ToolRegistry([definition("one")])
    assert registry.remove("one")
    assert not registry.remove("one")
    assert registry.get("one") is None
    registry.register(definition("one"))


def test_tools_are_listed_in_order_and_by_category() -> None:
    registry = ToolRegistry([definition("b"), definition("a", category="x"), definition("c")])
    assert [tool.name for tool in registry.list_all()] == ["b", "a", "c"]
    assert [tool.name for tool in registry.list_by_category("x")] == ["a"]


def test_only_tools_at_or_below_the_level_are_available_and_unknown_names_are_left_out() -> None:
    registry = ToolRegistry(definition(level.name, required_permission=level) for level in CommandPermission)
    names = [tool.name for tool in registry.available_to(CommandPermission.WRITE)]
    assert names == ["READ_ONLY", "WRITE"]
    some = registry.available_to(CommandPermission.WRITE, ["WRITE", "ADMIN", "nothing"])
    assert [tool.name for tool in some] == ["WRITE"]
    assert registry.available_to(CommandPermission.ADMIN, []) == []


def test_a_definition_has_the_openai_format() -> None:
    assert definition("one").to_openai_format() == {
        "type": "function",
        "function": {"name": "one", "description": "d", "parameters": SCHEMA},
    }
    assert definition("one").to_spec().name == "one"


def test_the_built_in_tools_have_the_documented_levels_and_risks() -> None:
    levels_and_risks = {tool.name: (tool.required_permission, tool.risk) for tool in builtin_tools()}
    read_only, low = CommandPermission.READ_ONLY, Risk.LOW
    assert levels_and_risks == {
        "python_eval": (CommandPermission.EXECUTE, low),
        "file_read": (read_only, low),
        "file_write": (CommandPermission.WRITE, Risk.MEDIUM),
        "file_list": (read_only, low),
        "file_exists": (read_only, low),
        "file_edit": (CommandPermission.WRITE, Risk.MEDIUM),
        "file_multi_edit": (CommandPermission.WRITE, Risk.MEDIUM),
        "file_glob": (read_only, low),
        "file_grep": (read_only, low),
        "result_read": (read_only, low),
        "process_data": (read_only, low),
        "web_search": (read_only, low),
        "web_fetch": (read_only, low),
        "batch_fetch": (read_only, low),
        "ask_clarification": (read_only, low),
        "ask_decision": (read_only, low),
        "todo_write": (read_only, low),
        "ui_command": (read_only, low),
        "delegate": (read_only, low),
    }
