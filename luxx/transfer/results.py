"""Results of tools that ran elsewhere, as a step of ours keeps them."""

import msgspec

from luxx.wire.tool import ToolResult


def result_text(text: str, *, is_error: bool) -> str:
    """The JSON text of a result that is this text."""
    result = ToolResult.fail(text) if is_error else ToolResult.ok(text)
    return msgspec.json.encode(result).decode()
