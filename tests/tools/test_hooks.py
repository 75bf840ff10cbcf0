"""Hooks see every call of the tools they name, may refuse it, and may put another result in its place."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from luxx.errors import ToolFailed
from luxx.infra.config.schema import ToolsConfig
from luxx.tools.core import ToolDefinition, ToolRegistry, ToolResult
from luxx.tools.executor import ToolExecutor
from luxx.tools.history import CallStatus, Executed
from luxx.tools.hooks import HookedCall, ToolHook, after_tool, before_tool
from luxx.tools.service_tools import load_modules

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "integer"}}}


def run(
    context_of: Any, call: Any, *hooks: ToolHook, name: str = "say", **more: Any
) -> tuple[Executed, list[int]]:
    """What became of `say(n=2)`, and with which numbers it was run."""
    ran: list[int] = []

    def say(arguments: dict[str, Any], context: Any) -> int:
        ran.append(arguments["n"])
        return arguments["n"] * 10

    definition = ToolDefinition(name="say", description="d", parameters=SCHEMA, handler=say, **more)
    registry = ToolRegistry([definition])
    for hook in hooks:
        registry.hooks.add(hook)
    executor = ToolExecutor(registry, ToolsConfig())
    return asyncio.run(executor.execute(call(name, {"n": 2}), context_of())), ran


def test_hooks_see_the_call_and_its_result_in_order(context_of: Any, call: Any) -> None:
    record: list[Any] = []

    @before_tool()
    def first(hooked: HookedCall) -> None:
        record.append((hooked.tool, hooked.arguments))

    @before_tool("s?y")
    async def second(hooked: HookedCall) -> None:
        record.append("second")

    @after_tool("say")
    def third(hooked: HookedCall, result: ToolResult) -> None:
        record.append(result.data)

    @before_tool("other*")
    def never(hooked: HookedCall) -> None:
        record.append("never")

    done, ran = run(context_of, call, first, second, third, never)
    assert (done.result.data, done.status, ran) == (20, CallStatus.DONE, [2])
    assert record == [("say", {"n": 2}), "second", 20]


def test_a_before_hook_can_refuse_a_call(context_of: Any, call: Any) -> None:
    @before_tool()
    def refuse(hooked: HookedCall) -> None:
        raise ToolFailed("not on a Sunday")

    done, ran = run(context_of, call, refuse)
    assert (done.result.error, ran) == ("say was not run: not on a Sunday", [])


def test_a_before_hook_changes_neither_the_call_nor_the_input_of_the_next_hook(
    context_of: Any, call: Any
) -> None:
    record: list[int] = []

    @before_tool()
    def change(hooked: HookedCall) -> None:
        hooked.arguments["n"] = 3

    @before_tool()
    def look(hooked: HookedCall) -> None:
        record.append(hooked.arguments["n"])

    done, ran = run(context_of, call, change, look)
    assert (done.result.data, ran, record) == (20, [2], [2])


def test_an_after_hook_can_replace_or_withhold_the_result(context_of: Any, call: Any) -> None:
    @after_tool()
    async def double(hooked: HookedCall, result: ToolResult) -> int:
        return result.data * 2

    @after_tool()
    def withhold(hooked: HookedCall, result: ToolResult) -> None:
        raise ToolFailed("secret")

    assert run(context_of, call, double, double)[0].result == ToolResult.ok(80)
    done, ran = run(context_of, call, withhold)
    assert (done.result.error, ran) == ("say was run, but its result is withheld: secret", [2])


def test_a_hook_that_raises_fails_the_call(context_of: Any, call: Any) -> None:
    @before_tool()
    def breaks(hooked: HookedCall) -> None:
        raise ValueError("oops")

    done, ran = run(context_of, call, breaks)
    assert (done.result.error, ran) == ("say was not run: a hook failed: ValueError: oops", [])


async def test_hooks_of_a_module_are_loaded_with_its_tools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "from luxx.tools.hooks import before_tool\n\n@before_tool('a*')\ndef look(call):\n    pass\n"
    (tmp_path / "a_module_of_hooks.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    registry = ToolRegistry()
    assert load_modules(registry, ["a_module_of_hooks"]) == []
    sys.modules.pop("a_module_of_hooks")
    hooked = HookedCall(tool="abc", arguments={}, user_id=1, username="ann", run_id=None)

    async def answer() -> ToolResult:
        return ToolResult.ok(1)

    assert (await registry.hooks.run_with_hooks(hooked, answer)) == ToolResult.ok(1)
