"""Turns the answer of an MCP server to a call into a tool result. Pure.

What text and structured content both say is given once. Images and sounds are named by type and size, images
also by their file.
"""

import binascii
from base64 import b64decode
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import msgspec

from luxx.domain.mcp.inbox import MOST_PARTS, parts
from luxx.wire.tool import ToolResult
from luxx.wire.turn import StepFile

if TYPE_CHECKING:
    from mcp_types import CallToolResult

_NO_REASON = "the tool failed without an error message"


def images_of_answer(answer: "CallToolResult") -> list[bytes]:
    """The bytes of its images, in order; empty where they are no base64."""
    return [_bytes_of(text) for block in answer.content if (text := _image_of(block)) is not None]


def result_of_answer(answer: "CallToolResult", images: Sequence[StepFile | str] = ()) -> ToolResult:
    """Text content as text, structured content as data; both only where the text says more than the data.

    `images`: for each image of the answer its stored file, or why it cannot be shown.
    """
    shown = iter(images)
    blocks = [
        _block_text(block, "" if _image_of(block) is None else next(shown, "")) for block in answer.content
    ]
    structured = answer.structured_content
    if answer.is_error:
        return ToolResult(success=False, data=structured, error="\n".join(blocks) or _NO_REASON)
    if structured is None:
        return ToolResult.ok("\n".join(blocks))
    inner = _unwrapped(structured)
    if _says_same("\n".join(blocks), structured, inner):
        return ToolResult.ok(inner)
    texts = {text.strip() for text in _texts_in(structured)}
    further = [
        block for block in blocks if block.strip() not in texts and not _says_same(block, structured, inner)
    ]
    if not further:
        return ToolResult.ok(inner)
    return ToolResult.ok({"text": "\n".join(further), "structured": structured})


def _unwrapped(structured: Any) -> Any:
    """Undoes the wrapping of one value, which servers do because structured content has to be an object:
    the official SDK under `result`, others put their text under `content`."""
    if isinstance(structured, dict):
        values = cast("dict[str, Any]", structured)
        if list(values) == ["result"]:
            return values["result"]
        if list(values) == ["content"] and isinstance(values["content"], str):
            return values["content"]
    return cast(Any, structured)


def _says_same(text: str, *values: Any) -> bool:
    """Whether the text is one of the values, as it is or as JSON, or empty."""
    if not text or text in [value for value in values if isinstance(value, str)]:
        return True
    encoded = text.encode("utf-8", "replace")
    if parts(encoded) > MOST_PARTS:
        # Parsing would take too long; the result then holds both.
        return False
    with suppress(msgspec.DecodeError, RecursionError):
        return msgspec.json.decode(encoded) in values
    return False


def _texts_in(value: Any) -> Iterator[str]:
    """All texts in JSON data. Not recursive, because a server chooses the depth."""
    pending = [value]
    while pending:
        current = pending.pop()
        if isinstance(current, str):
            yield current
        elif isinstance(current, dict):
            pending += cast("dict[str, Any]", current).values()
        elif isinstance(current, list):
            pending += cast("list[Any]", current)


def _image_of(block: Any) -> str | None:
    """The base64 text of an image, which may be embedded as a resource; None for anything else."""
    if block.type == "image":
        return block.data
    blob = getattr(block.resource, "blob", None) if block.type == "resource" else None
    is_image = isinstance(blob, str) and str(block.resource.mime_type).startswith("image/")
    return blob if is_image else None


def _bytes_of(base64: str) -> bytes:
    try:
        return b64decode(base64, validate=True)
    except (binascii.Error, ValueError):
        return b""


def _block_text(block: Any, image: StepFile | str) -> str:
    match block.type:
        case "text":
            return block.text
        case "image" | "audio":
            head = f"[{block.type}: {_short(block.mime_type) or 'unknown kind'}, {_bytes_in(block.data)}"
            return f"{head}{_file_of(image)}]"
        case "resource_link":
            return _line("resource", block.uri, block.title or block.name, block.mime_type)
        case "resource":
            return _resource(block.resource, image)
        case _:
            return f"[{_short(str(block.type))}]"


def _resource(resource: Any, image: StepFile | str) -> str:
    head = _line("resource", resource.uri, None, resource.mime_type)
    text = getattr(resource, "text", None)
    if isinstance(text, str):
        return f"{head}\n{text}"
    return f"{head[:-1]}, {_bytes_in(resource.blob)}{_file_of(image)}]"


def _file_of(image: StepFile | str) -> str:
    if isinstance(image, StepFile):
        return f", saved as {image.path}"
    return f", not shown: {_short(image)}" if image else ""


def _line(*values: str | None) -> str:
    first, *others = [_short(value) for value in values if value]
    return f"[{first}: {', '.join(others)}]" if others else f"[{first}]"


def _bytes_in(base64: str) -> str:
    """The decoded size of a base64 text."""
    return f"{len(base64.rstrip('=')) * 3 // 4:,} bytes"


def _short(text: str) -> str:
    return text if len(text) <= 500 else f"{text[:500]}…"
