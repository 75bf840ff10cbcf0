"""The outcome of a handler as a result, its metadata, and the hooks around calls.

Hooks are plugin functions that run before or after the calls of all tools whose name matches a pattern. A
hook before a call may refuse it but cannot change it, because a user may have approved these arguments. A
hook after a call may replace the result. Cached results run no hooks.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from copy import deepcopy
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import structlog
from sqlalchemy import Connection

from luxx.errors import ToolFailed
from luxx.tools.pattern import matches_wildcards
from luxx.wire.artifacts import ArtifactUpdated
from luxx.wire.tool import ToolResult
from luxx.wire.turn import StepFile


def result_of(value: Any) -> ToolResult:
    """The return value of a handler as a ToolResult; `data` is converted to plain JSON values."""
    result = value if isinstance(value, ToolResult) else ToolResult(success=True, data=value)
    try:
        data = msgspec.to_builtins(result.data, str_keys=True)
    except (TypeError, ValueError, NotImplementedError, RecursionError) as error:
        return ToolResult.fail(
            f"TypeError: the tool's answer cannot be written as JSON: {describe_error(error)}"
        )
    return ToolResult(success=result.success, data=data, error=result.error)


def result_of_error(error: BaseException) -> ToolResult:
    """An exception as a failed result: the message of a ToolFailed, else `ValueError: message`."""
    if isinstance(error, ToolFailed):
        return ToolResult.fail(error.message)
    return ToolResult.fail(describe_error(error))


def describe_error(error: BaseException) -> str:
    """`ValueError: message`, or only the class name if there is no message."""
    try:
        message = str(error)
    except Exception:
        message = ""
    name = type(error).__name__
    return f"{name}: {message}" if message else name


HOOK_SECONDS = 10.0
"""Timeout of one hook; the call fails after it."""

MOST_KEPT = 1_000
"""Tools and phases whose hooks are kept, so that a call compares no names with patterns."""

logger = structlog.get_logger()


class HookPhase(StrEnum):
    BEFORE = "before"
    AFTER = "after"


class HookedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A permitted call, before or after its execution."""

    tool: str
    arguments: dict[str, Any]
    user_id: int
    username: str
    run_id: str | None


class ToolHook(msgspec.Struct, frozen=True, kw_only=True):
    """`function(call)` runs before a call, `function(call, result)` after; `tools` may have wildcards."""

    tools: str
    phase: HookPhase
    function: Callable[..., Any]


def before_tool(tools: str = "*") -> Callable[[Callable[[HookedCall], Any]], ToolHook]:
    """Make a hook that runs before calls; a call is refused if it raises ToolFailed."""
    return lambda function: ToolHook(tools=tools, phase=HookPhase.BEFORE, function=function)


def after_tool(tools: str = "*") -> Callable[[Callable[[HookedCall, ToolResult], Any]], ToolHook]:
    """Make a hook that runs after calls; its return value, unless None, replaces the result."""
    return lambda function: ToolHook(tools=tools, phase=HookPhase.AFTER, function=function)


class Hooks:
    """The hooks of one registry, in the order they were added."""

    def __init__(self) -> None:
        self._hooks: list[ToolHook] = []
        self._hooks_for = lru_cache(maxsize=MOST_KEPT)(self._find)

    def add(self, hook: ToolHook) -> None:
        self._hooks.append(hook)
        self._hooks_for.cache_clear()

    async def run_with_hooks(self, call: HookedCall, run: Callable[[], Awaitable[ToolResult]]) -> ToolResult:
        """Run the call between its hooks and return the final result. A failing hook fails the call."""
        try:
            for hook in self._hooks_for(call.tool, HookPhase.BEFORE):
                await _call_hook(hook, call)
        except ToolFailed as error:
            return ToolResult.fail(f"{call.tool} was not run: {error.message}")
        result = await run()
        try:
            for hook in self._hooks_for(call.tool, HookPhase.AFTER):
                replacement = await _call_hook(hook, call, result)
                result = result if replacement is None else result_of(replacement)
        except ToolFailed as error:
            return ToolResult.fail(f"{call.tool} was run, but its result is withheld: {error.message}")
        return result

    def _find(self, tool: str, phase: HookPhase) -> list[ToolHook]:
        return [hook for hook in self._hooks if hook.phase == phase and matches_wildcards(hook.tools, tool)]


async def _call_hook(hook: ToolHook, *hook_arguments: Any) -> Any:
    """The return value of the hook. Raises ToolFailed, also for any other exception and for a timeout."""
    call, *results = hook_arguments
    try:
        # The hook gets a copy, so that it cannot change the arguments of the call or of other hooks.
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
        logger.exception("hook_failed", tool=call.tool)
        raise ToolFailed(f"a hook failed: {describe_error(error)}") from error


class ChangeRefused(Exception):
    """What a call would write does not fit any more what is stored; the call must run again."""


class CallChange(msgspec.Struct, frozen=True, kw_only=True):
    """What a call writes in the transaction that logs its result, so that a result and its change are stored
    together or not at all. `write(connection, step_id)` gets the step of a task, or an empty text, and raises
    ChangeRefused; `event` follows the result."""

    event: ArtifactUpdated
    write: Callable[[Connection, str], None]


class CallMetadata(msgspec.Struct):
    """Metadata of one call, written by its tool: the `files` it shows, whether its content is untrusted,
    whether it followed a redirect, the number of member `calls` it made, and the `change` that the log of the
    run writes with the result."""

    call_id: str = ""
    files: list[StepFile] = []
    is_untrusted: bool = False
    is_redirected: bool = False
    calls: int = 0
    change: CallChange | None = None


class SavedFigures(msgspec.Struct, frozen=True, kw_only=True):
    """`problems`: one sentence per figure that is not shown."""

    images: list[StepFile] = []
    problems: list[str] = []


SaveFigures = Callable[[int, Path, list[str]], Awaitable[SavedFigures]]
"""Saves files as images, given the user id, the workspace and the paths in it. Raises nothing."""


StoreImages = Callable[[int, Path | None, Sequence[bytes]], Awaitable[list[StepFile | str]]]
"""Stores images as files, given the user id, the workspace and the bytes of each. Returns the image of each,
or why it cannot be shown. Raises nothing."""


async def store_no_images(
    user_id: int, workspace: Path | None, images: Sequence[bytes]
) -> list[StepFile | str]:
    """Default for servers without a file store."""
    return ["no files are stored here"] * len(images)


async def save_no_figures(user_id: int, workspace: Path, paths: list[str]) -> SavedFigures:
    """Default for servers without a file store."""
    return SavedFigures()
