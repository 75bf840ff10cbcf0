"""result_read: for a model, the rest of what a tool of its run has answered.

Not here: where whole outputs are kept, and whose they are (runs).
"""

from typing import Any

import msgspec

from luxx.errors import ToolFailed
from luxx.tools.core import ToolContext, ToolDefinition
from luxx.tools.factory import tool
from luxx.tools.output import MAX_REF, fit

DEFAULT_CHARACTERS = 20_000
MAX_CHARACTERS = 40_000
_MAX_CONTENT_BYTES = 40 * 1024
_LATEST = 2_000_000_000
"""Databases count the characters of a text a little further."""


@tool(
    name="result_read",
    description=(
        "Read on in the whole output of an earlier tool call of this run, where the answer was cut and named "
        "a `ref`. Gives at most `limit` characters from `offset` on; `next_offset` says where to read on."
    ),
    parameters={
        "ref": {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_REF,
            "description": "As the cut answer says",
        },
        "offset": {"type": "integer", "minimum": 0, "maximum": _LATEST, "default": 0},
        "limit": {"type": "integer", "minimum": 1, "maximum": MAX_CHARACTERS, "default": DEFAULT_CHARACTERS},
    },
    required_params=["ref"],
    category="general",
)
async def result_read(arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
    ref: str = arguments["ref"]
    offset, limit = int(arguments.get("offset", 0)), int(arguments.get("limit", DEFAULT_CHARACTERS))
    page = await context.read_result(ref, offset, limit)
    if offset and offset >= page.total:
        raise ToolFailed(f"this output has {page.total:,} characters; there is none at offset {offset:,}")
    content = fit(page.output, _MAX_CONTENT_BYTES)
    end = offset + len(content)
    answer: dict[str, Any] = {
        "ref": ref,
        "content": content,
        "offset": offset,
        "characters": len(content),
        "total_characters": page.total,
        "truncated": end < page.total,
    }
    if end < page.total:
        answer["next_offset"] = end
        answer["note"] = f"The output has {page.total - end:,} more characters; read on with offset {end}."
    return answer


def reading_tools() -> list[ToolDefinition]:
    """It, as a registry takes it: a page is as long as was asked for, whatever the lines in it."""
    return [msgspec.structs.replace(result_read.definition, keeps_lines=True)]
