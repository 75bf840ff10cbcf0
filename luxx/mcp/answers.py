"""What a tool of an MCP server answered, as the result of a Luxx tool. Pure.

Images and sounds have no place in a result: they are told of by kind and size.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import msgspec

from luxx.mcp.inbox import MOST_PARTS, parts
from luxx.wire.tool import ToolResult

if TYPE_CHECKING:
    from mcp_types import CallToolResult

_NO_WORDS = "the tool failed and did not say why"


def result_of_answer(answer: "CallToolResult") -> ToolResult:
    """Text as text, structured content as data; where both say the same, it is said once."""
    text = "\n".join(_told(block) for block in answer.content)
    structured = answer.structured_content
    if answer.is_error:
        return ToolResult(success=False, data=structured, error=text or _NO_WORDS)
    if structured is None:
        return ToolResult.ok(text)
    inner = _unwrapped(structured)
    for data in (structured, inner):
        if not text or _says(text, data):
            return ToolResult.ok(inner)
    return ToolResult.ok({"text": text, "structured": structured})


def _unwrapped(structured: Any) -> Any:
    """Servers made with the official SDK wrap what is no object."""
    if isinstance(structured, dict) and list(cast("dict[str, Any]", structured)) == ["result"]:
        return cast("dict[str, Any]", structured)["result"]
    return cast(Any, structured)


def _says(text: str, data: Any) -> bool:
    if text == data:
        return True
    said = text.encode("utf-8", "replace")
    if parts(said) > MOST_PARTS:
        # Reading it would take long; then it is given as it is.
        return False
    with suppress(msgspec.DecodeError, RecursionError):
        return bool(msgspec.json.decode(said) == data)
    return False


def _told(block: Any) -> str:
    match block.type:
        case "text":
            return block.text
        case "image" | "audio":
            return f"[{block.type}: {_kind(block.mime_type)}, {_bytes_in(block.data)}]"
        case "resource_link":
            return _line("resource", block.uri, block.title or block.name, block.mime_type)
        case "resource":
            return _resource(block.resource)
        case _:
            return f"[{_short(str(block.type))}]"


def _resource(resource: Any) -> str:
    head = _line("resource", resource.uri, None, resource.mime_type)
    text = getattr(resource, "text", None)
    return f"{head}\n{text}" if isinstance(text, str) else f"{head[:-1]}, {_bytes_in(resource.blob)}]"


def _line(*words: str | None) -> str:
    return f"[{_joined(words)}]"


def _joined(words: Iterable[str | None]) -> str:
    first, *others = [_short(one) for one in words if one]
    return f"{first}: {', '.join(others)}" if others else first


def _kind(mime: str) -> str:
    return _short(mime) or "unknown kind"


def _bytes_in(base64: str) -> str:
    """How much a base64 text holds."""
    return f"{len(base64.rstrip('=')) * 3 // 4:,} bytes"


def _short(text: str) -> str:
    return text if len(text) <= 500 else f"{text[:500]}…"
