"""The tools of an MCP server as tools of its tenant: named, bounded, and taken in or left out."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from luxx.config import McpServerConfig
from luxx.errors import ConfigError, ToolFailed
from luxx.mcp.connection import Listed
from luxx.mcp.naming import tool_name
from luxx.mcp.schema import Unfit, harmless
from luxx.mcp.secrets import Secrets
from luxx.tools.core import ToolContext, ToolDefinition, ToolRegistry
from luxx.wire.tool import CommandPermission, Risk, ToolResult

CATEGORY = "mcp"
MOST_TOOLS = 64
"""Of one server; models are told of each with every question, and some vendors take 128 in all."""

MOST_BYTES = 128 * 1024
"""Of what all tools of one server say of themselves: models are told all of it each time, and it costs."""

MOST_REASONS = 50

MOST_WORDS = 2_000
"""Characters of a tool's description."""

MOST_GIVEN = 1024 * 1024
"""Bytes of the arguments of one call."""

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
    secrets = Secrets(config.env)
    spent = 0
    for tool in tools:
        if len(found.list_all()) >= MOST_TOOLS:
            left_out.append(f"others: the first {MOST_TOOLS} are taken")
            break
        try:
            name = tool_name(prefix, tool.name)
            definition = _definition(config, name, tenant_id, tool, call, secrets)
            size = len(msgspec.json.encode((definition.description, definition.parameters)))
            if spent + size > MOST_BYTES:
                raise Unfit(f"all tools together take more than {MOST_BYTES // 1024} KiB")
            # Spent even if there turns out to be something wrong with it: finding that takes its time, too.
            spent += size
            found.register(definition)
        except (Unfit, ConfigError) as error:
            left_out.append(f"{secrets.cut(tool.name, 100)}: {secrets.cut(str(error), 300)}")
    if len(left_out) > MOST_REASONS:
        left_out[MOST_REASONS:] = [f"{len(left_out) - MOST_REASONS} more"]
    return Offer(tools=found, left_out=left_out)


def _definition(
    config: McpServerConfig, name: str, tenant_id: int, tool: Listed, call: CallTool, secrets: Secrets
) -> ToolDefinition:
    async def handler(arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        if len(msgspec.json.encode(arguments)) > MOST_GIVEN:
            raise ToolFailed(f"MCP servers are given arguments of {MOST_GIVEN // 1024:,} KiB at most")
        return await call(tool.name, arguments)

    parameters = harmless(tool.parameters)
    if secrets.are_in(parameters) or secrets.hidden(name) != name:
        raise Unfit("it tells what the server was given as env")
    return ToolDefinition(
        name=name,
        description=secrets.cut(tool.description, MOST_WORDS),
        parameters=parameters,
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
