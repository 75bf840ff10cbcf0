"""Tools of the operator's own module and of installed packages."""

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from luxx.errors import ConfigError
from luxx.tools.core import ToolRegistry
from luxx.tools.service_tools import installed_entry_points, load_modules

MODULE = """
from luxx.tools.factory import tool

@tool(name="mine", description="d", parameters={})
def mine(arguments):
    return 1

@tool(name="second", description="d", parameters={})
def second(arguments):
    return 2

both = [mine, second]
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_the_tools_of_a_named_module_are_registered(module: Path) -> None:
    (module / "my_tools_a.py").write_text(MODULE)
    registry = ToolRegistry()
    assert load_modules(registry, ["my_tools_a"]) == ["mine", "second"]
    assert registry.get("mine") is not None


def test_a_tool_imported_by_two_modules_is_registered_once(module: Path) -> None:
    (module / "my_tools_b.py").write_text(MODULE)
    (module / "my_tools_c.py").write_text("from my_tools_b import mine\n")
    assert load_modules(ToolRegistry(), ["my_tools_b", "my_tools_c"]) == ["mine", "second"]


@pytest.mark.parametrize("what", ["my_tools_d", "my_tools_d:mine", "my_tools_d:both"])
def test_an_entry_point_names_a_module_a_tool_or_a_list(module: Path, what: str) -> None:
    (module / "my_tools_d.py").write_text(MODULE)
    entry = EntryPoint(name="x", value=what, group="luxx.tools")
    assert "mine" in load_modules(ToolRegistry(), [], [entry])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("raise ValueError('boom')", "ValueError: boom"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("import a_module_that_is_missing", "ModuleNotFoundError"),
        ("x = 1", "contains no tool"),
    ],
)
def test_a_module_that_brings_no_tools_stops_the_start_by_name(module: Path, text: str, words: str) -> None:
    name = f"my_tools_{abs(hash(text))}"
    (module / f"{name}.py").write_text(text)
    with pytest.raises(ConfigError, match=name) as caught:
        load_modules(ToolRegistry(), [name])
    assert words in caught.value.message


def test_a_broken_entry_point_stops_the_start_by_name() -> None:
    entry = EntryPoint(name="x", value="no_such_module:tool", group="luxx.tools")
    with pytest.raises(ConfigError, match=r"entry point x \(no_such_module:tool\)"):
        load_modules(ToolRegistry(), [], [entry])


def test_the_installed_entry_points_can_be_listed() -> None:
    assert all(entry.group == "luxx.tools" for entry in installed_entry_points())
