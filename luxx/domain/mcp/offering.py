"""Turns tools of MCP servers into Luxx tool definitions, and their answers into tool results. Pure.

A result holds no images and sounds: text names their type and size instead.
"""

import hashlib
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import msgspec

from luxx.domain.mcp.connection import ListedTool
from luxx.domain.mcp.inbox import MOST_PARTS, Secrets, parts
from luxx.domain.mcp.schema import UnusableSchema, sanitized_schema
from luxx.errors import ConfigError, ToolFailed
from luxx.infra.config.schema import McpServerConfig
from luxx.tools.core import ToolContext, ToolDefinition, ToolRegistry
from luxx.wire.tool import CommandPermission, Risk, ToolResult

if TYPE_CHECKING:
    from mcp_types import CallToolResult

_NO_REASON = "the tool failed without an error message"


def result_of_answer(answer: "CallToolResult") -> ToolResult:
    """Text content as text, structured content as data; only the data if both are equal."""
    text = "\n".join(_block_text(block) for block in answer.content)
    structured = answer.structured_content
    if answer.is_error:
        return ToolResult(success=False, data=structured, error=text or _NO_REASON)
    if structured is None:
        return ToolResult.ok(text)
    inner = _unwrapped(structured)
    for data in (structured, inner):
        if not text or _says_same(text, data):
            return ToolResult.ok(inner)
    return ToolResult.ok({"text": text, "structured": structured})


def _unwrapped(structured: Any) -> Any:
    """Undoes the wrapping of values that are no objects, which servers with the official SDK do."""
    if isinstance(structured, dict) and list(cast("dict[str, Any]", structured)) == ["result"]:
        return cast("dict[str, Any]", structured)["result"]
    return cast(Any, structured)


def _says_same(text: str, data: Any) -> bool:
    if text == data:
        return True
    encoded = text.encode("utf-8", "replace")
    if parts(encoded) > MOST_PARTS:
        # Parsing would take too long; the result then holds both.
        return False
    with suppress(msgspec.DecodeError, RecursionError):
        return bool(msgspec.json.decode(encoded) == data)
    return False


def _block_text(block: Any) -> str:
    match block.type:
        case "text":
            return block.text
        case "image" | "audio":
            return f"[{block.type}: {_short(block.mime_type) or 'unknown kind'}, {_bytes_in(block.data)}]"
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


def _line(*values: str | None) -> str:
    first, *others = [_short(one) for one in values if one]
    return f"[{first}: {', '.join(others)}]" if others else f"[{first}]"


def _bytes_in(base64: str) -> str:
    """The decoded size of a base64 text."""
    return f"{len(base64.rstrip('=')) * 3 // 4:,} bytes"


def _short(text: str) -> str:
    return text if len(text) <= 500 else f"{text[:500]}…"


PREFIX = "mcp__"
MOST = 64
MOST_SERVER = 20
MOST_TENANT = 20
_DIGEST = 8
_NOT_PLAIN = re.compile(r"[^a-z0-9-]")
_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9_-]")


def server_prefix(tenant: str, server: str) -> str:
    """The prefix of this server's tool names, and of no other's. `server` has only allowed characters."""
    plain = _NOT_PLAIN.sub("-", tenant.lower())
    if plain != tenant or len(plain) > MOST_TENANT:
        # The digest keeps tenants apart whose names differ only in replaced characters.
        plain = f"{plain[: MOST_TENANT - _DIGEST - 1]}-{_digest(tenant)}"
    return f"{PREFIX}{plain}_{server}__"


def tool_name(prefix: str, tool: str) -> str:
    """The Luxx name of a server's tool; it depends on the prefix and the tool's own name only."""
    plain = _NOT_ALLOWED.sub("_", tool)
    if plain and plain == tool and len(prefix) + len(plain) <= MOST:
        return prefix + plain
    return f"{prefix}{plain[: MOST - len(prefix) - _DIGEST - 1]}_{_digest(tool)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:_DIGEST]


CATEGORY = "mcp"
MOST_TOOLS = 64
"""Tools of one server: each is in every request to a model, and some vendors take 128 in all."""

MOST_BYTES = 128 * 1024
"""Descriptions and schemas of all tools of one server: they are part of every request and cost tokens."""

MOST_REASONS = 50

MOST_DESCRIPTION = 2_000
"""Characters of a tool's description."""

MOST_ARGUMENT_BYTES = 1024 * 1024
"""Bytes of the arguments of one call."""

SPARE_SECONDS = 5.0
"""The executor's timeout exceeds the server's own ones by this, because theirs have better error messages."""

CallTool = Callable[[str, dict[str, Any]], Awaitable[ToolResult]]


class OfferedTools(msgspec.Struct, frozen=True, kw_only=True):
    """The usable tools of a list; `left_out` has the name of each other tool and why it cannot be used."""

    tools: ToolRegistry
    left_out: list[str]


def build_offered_tools(
    config: McpServerConfig, prefix: str, tenant_id: int, tools: Sequence[ListedTool], call: CallTool
) -> OfferedTools:
    """The definitions, in the order of the list, without unusable tools. Slow: call it in a thread."""
    registry = ToolRegistry()
    left_out: list[str] = []
    secrets = Secrets(config.env)
    spent = 0
    for tool in tools:
        if len(registry.list_all()) >= MOST_TOOLS:
            left_out.append(f"others: only the first {MOST_TOOLS} tools are offered")
            break
        try:
            name = tool_name(prefix, tool.name)
            definition = _definition(config, name, tenant_id, tool, call, secrets)
            size = len(msgspec.json.encode((definition.description, definition.parameters)))
            if spent + size > MOST_BYTES:
                raise UnusableSchema(f"all tools together take more than {MOST_BYTES // 1024} KiB")
            # Counted even if registering fails: the check takes time, too.
            spent += size
            registry.register(definition)
        except (UnusableSchema, ConfigError) as error:
            left_out.append(f"{secrets.cut(tool.name, 100)}: {secrets.cut(str(error), 300)}")
    if len(left_out) > MOST_REASONS:
        left_out[MOST_REASONS:] = [f"{len(left_out) - MOST_REASONS} more"]
    return OfferedTools(tools=registry, left_out=left_out)


def _definition(
    config: McpServerConfig, name: str, tenant_id: int, tool: ListedTool, call: CallTool, secrets: Secrets
) -> ToolDefinition:
    async def handler(arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        if len(msgspec.json.encode(arguments)) > MOST_ARGUMENT_BYTES:
            raise ToolFailed(f"the arguments have more than {MOST_ARGUMENT_BYTES // 1024:,} KiB; send less")
        return await call(tool.name, arguments)

    parameters = sanitized_schema(tool.parameters)
    if secrets.occur_in(parameters) or secrets.hidden(name) != name:
        raise UnusableSchema("it contains a value of the server's env")
    return ToolDefinition(
        name=name,
        description=secrets.cut(tool.description, MOST_DESCRIPTION),
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
