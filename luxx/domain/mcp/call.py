"""A call of a tool of an MCP server, as the connection gets it."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from luxx.domain.mcp.elicitation import AskAll, Continued, Elicit
from luxx.tools.core import ToolContext
from luxx.wire.tool import ToolResult
from luxx.wire.turn import StepFile

KeepImages = Callable[[Sequence[bytes]], Awaitable[list[StepFile | str]]]
"""Stores the images of one call. Returns the image of each, or why it cannot be shown."""


class McpCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a server's tool, by the server's own name of it, for the user of `context`.

    `elicit` asks the user while the server waits, `ask_all` before the call is made again; None: nobody can
    be asked. `continued`: the answers to what the server asked before.
    """

    tool: str
    arguments: dict[str, Any]
    is_read_only: bool
    context: ToolContext
    keep_images: KeepImages
    mirrors_arguments: bool
    """Whether the tool's schema has some arguments sent as headers, too."""

    elicit: Elicit | None = None
    ask_all: AskAll | None = None
    continued: Continued | None = None


CallTool = Callable[[McpCall], Awaitable[ToolResult]]
