"""From what a tool's function returned or raised to the ToolResult its caller reads. Nothing is run here."""

from typing import Any

import msgspec

from luxx.errors import ToolFailed
from luxx.wire.tool import ToolResult


def result_of(value: Any) -> ToolResult:
    """A returned value as a success; a returned ToolResult as it is. `data` becomes plain JSON values."""
    given = value if isinstance(value, ToolResult) else ToolResult(success=True, data=value)
    try:
        data = msgspec.to_builtins(given.data, str_keys=True)
    except (TypeError, ValueError, NotImplementedError, RecursionError) as error:
        return ToolResult.fail(f"TypeError: the tool's answer cannot be written as JSON: {describe(error)}")
    return ToolResult(success=given.success, data=data, error=given.error)


def result_of_error(error: BaseException) -> ToolResult:
    """A raised error as a failure: a ToolFailed in its own words, any other as `ValueError: words`."""
    if isinstance(error, ToolFailed):
        return ToolResult.fail(error.message)
    return ToolResult.fail(describe(error))


def describe(error: BaseException) -> str:
    """`ValueError: words`, or the class alone where the error has no words."""
    try:
        words = str(error)
    except Exception:
        words = ""
    name = type(error).__name__
    return f"{name}: {words}" if words else name
