"""Hooks: functions of others that are called before a tool runs and after, for all tools whose names fit.

A hook before may refuse the call, and sees it as it will be made: it cannot change what a person allowed.
A hook after may put another result in the place of the tool's. Answers from the cache have none.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from copy import deepcopy
from enum import StrEnum
from typing import Any

import msgspec
import structlog

from luxx.errors import ToolFailed
from luxx.tools.pattern import matches_wildcards
from luxx.wire.tool import ToolResult


def result_of(value: Any) -> ToolResult:
    """A returned value as a success; a returned ToolResult as it is. `data` becomes plain JSON values."""
    result = value if isinstance(value, ToolResult) else ToolResult(success=True, data=value)
    try:
        data = msgspec.to_builtins(result.data, str_keys=True)
    except (TypeError, ValueError, NotImplementedError, RecursionError) as error:
        return ToolResult.fail(
            f"TypeError: the tool's answer cannot be written as JSON: {describe_error(error)}"
        )
    return ToolResult(success=result.success, data=data, error=result.error)


def result_of_error(error: BaseException) -> ToolResult:
    """A raised error as a failure: a ToolFailed in its own words, any other as `ValueError: words`."""
    if isinstance(error, ToolFailed):
        return ToolResult.fail(error.message)
    return ToolResult.fail(describe_error(error))


def describe_error(error: BaseException) -> str:
    """`ValueError: words`, or the class alone where the error has no words."""
    try:
        message = str(error)
    except Exception:
        message = ""
    name = type(error).__name__
    return f"{name}: {message}" if message else name


HOOK_SECONDS = 10.0
"""How long one hook may take; the call fails after that."""

logger = structlog.get_logger()


class HookPhase(StrEnum):
    BEFORE = "before"
    AFTER = "after"


class HookedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that is permitted and about to be made, or made."""

    tool: str
    arguments: dict[str, Any]
    user_id: int
    username: str
    run_id: str | None


class ToolHook(msgspec.Struct, frozen=True, kw_only=True):
    """`function(call)` before, `function(call, result)` after; sync or async. `tools` takes wildcards."""

    tools: str
    phase: HookPhase
    function: Callable[..., Any]


def before_tool(tools: str = "*") -> Callable[[Callable[[HookedCall], Any]], ToolHook]:
    """Make a hook of a function that looks at calls before they are made; ToolFailed refuses one."""
    return lambda function: ToolHook(tools=tools, phase=HookPhase.BEFORE, function=function)


def after_tool(tools: str = "*") -> Callable[[Callable[[HookedCall, ToolResult], Any]], ToolHook]:
    """Make a hook of a function that looks at results; what it returns, if anything, is the result then."""
    return lambda function: ToolHook(tools=tools, phase=HookPhase.AFTER, function=function)


class Hooks:
    """Those of one registry, in the order they were added."""

    def __init__(self) -> None:
        self._hooks: list[ToolHook] = []

    def add(self, hook: ToolHook) -> None:
        self._hooks.append(hook)

    async def run_with_hooks(self, call: HookedCall, run: Callable[[], Awaitable[ToolResult]]) -> ToolResult:
        """What the tool answers, or the hooks in its place. A hook that breaks fails the call."""
        try:
            for hook in self._hooks_for(call, HookPhase.BEFORE):
                await _call_hook(hook, call)
        except ToolFailed as error:
            return ToolResult.fail(f"{call.tool} was not run: {error.message}")
        result = await run()
        try:
            for hook in self._hooks_for(call, HookPhase.AFTER):
                replacement = await _call_hook(hook, call, result)
                result = result if replacement is None else result_of(replacement)
        except ToolFailed as error:
            return ToolResult.fail(f"{call.tool} was run, but its result is withheld: {error.message}")
        return result

    def _hooks_for(self, call: HookedCall, phase: HookPhase) -> list[ToolHook]:
        return [
            hook for hook in self._hooks if hook.phase == phase and matches_wildcards(hook.tools, call.tool)
        ]


async def _call_hook(hook: ToolHook, *hook_arguments: Any) -> Any:
    """What the hook says. Raises ToolFailed, also for a hook that breaks or takes too long."""
    call, *results = hook_arguments
    try:
        # Its own copy: what it does to the arguments changes neither the call nor what others see.
        hook_arguments = (msgspec.structs.replace(call, arguments=deepcopy(call.arguments)), *results)
        async with asyncio.timeout(HOOK_SECONDS):
            if inspect.iscoroutinefunction(hook.function):
                return await hook.function(*hook_arguments)
            return await asyncio.to_thread(hook.function, *hook_arguments)
    except ToolFailed:
        raise
    except TimeoutError as error:
        raise ToolFailed(f"a hook did not finish within {HOOK_SECONDS:g} seconds") from error
    except Exception as error:
        logger.exception("hook_broke", tool=call.tool)
        raise ToolFailed(f"a hook broke: {describe_error(error)}") from error
