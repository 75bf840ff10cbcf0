"""The tools of an MCP server as tools of its tenant: named, bounded, and taken in or left out."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from luxx.config import McpServerConfig
from luxx.errors import ConfigError
from luxx.mcp.connection import Listed
from luxx.mcp.naming import tool_name
from luxx.mcp.schema import Unfit, harmless, shortened
from luxx.tools.core import ToolContext, ToolDefinition, ToolRegistry
from luxx.wire.tool import CommandPermission, Risk, ToolResult

CATEGORY = "mcp"
MOST_TOOLS = 64
"""Of one server; models are told of each with every question, and some vendors take 128 in all."""

MOST_WORDS = 2_000
"""Characters of a tool's description."""

SPARE_SECONDS = 5.0
"""What a call may take beyond the server's own times, which then say more than the executor's."""

CallTool = Callable[[str, dict[str, Any]], Awaitable[ToolResult]]


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of a list: `left_out` says why of each tool that is not there."""

    tools: ToolRegistry
    left_out: list[str]


def offer(
    config: McpServerConfig, prefix: str, tenant_id: int, tools: Sequence[Listed], call: CallTool
) -> Offer:
    """The definitions, in the order of the list; what cannot be taken over is left out. Takes a while."""
    found = ToolRegistry()
    left_out: list[str] = []
    for tool in tools:
        name = tool_name(prefix, tool.name)
        if len(found.list_all()) >= MOST_TOOLS:
            left_out.append(f"others: the first {MOST_TOOLS} are taken")
            break
        try:
            found.register(_definition(config, name, tenant_id, tool, call))
        except (Unfit, ConfigError) as error:
            left_out.append(f"{shortened(tool.name, 100)}: {shortened(str(error), 300)}")
    return Offer(tools=found, left_out=left_out)


def _definition(
    config: McpServerConfig, name: str, tenant_id: int, tool: Listed, call: CallTool
) -> ToolDefinition:
    async def handler(arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        return await call(tool.name, arguments)

    return ToolDefinition(
        name=name,
        description=shortened(tool.description, MOST_WORDS),
        parameters=harmless(tool.parameters),
        handler=handler,
        category=CATEGORY,
        required_permission=CommandPermission(config.level),
        risk=Risk.LOW if tool.is_read_only else Risk.HIGH,
        timeout=config.start_seconds * 2 + config.call_seconds + SPARE_SECONDS,
        brings_untrusted=True,
        is_egress=True,
        starts_programs=True,
        tenant_id=tenant_id,
    )
