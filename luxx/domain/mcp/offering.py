"""Turns tools of MCP servers into Luxx tool definitions: their names, and their sanitized JSON schemas. Pure.

A sanitized schema has known keywords, no references, and a bounded size and depth. Removing a keyword may
only make the schema allow more, because the server validates its arguments itself. So keywords that allow
less when their subschema allows more (`not`, `if`) are dropped, and `oneOf` becomes `anyOf`.
"""

import hashlib
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from luxx.domain.mcp.call import CallTool, McpCall
from luxx.domain.mcp.inbox import Secrets, shortened
from luxx.domain.mcp.sdk import ListedTool
from luxx.errors import ConfigError, ToolFailed
from luxx.infra.config.schema import McpServerConfig
from luxx.tools.core import ToolContext, ToolDefinition, ToolRegistry
from luxx.tools.hooks import StoreImages
from luxx.tools.pattern import compile_regex
from luxx.tools.permissions.subjects import MCP_PREFIX
from luxx.tools.schema import with_items
from luxx.wire.tool import CommandPermission, Risk, ToolResult
from luxx.wire.turn import StepFile

MOST = 64
MOST_TENANT = 20
_DIGEST = 8
_NOT_PLAIN = re.compile(r"[^a-z0-9-]")
_OF_USER = re.compile(r"u[0-9]+")
_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9_-]")


def server_prefix(tenant: str, server: str) -> str:
    """The prefix of this server's tool names, and of no other's. `server` has only allowed characters."""
    plain = _NOT_PLAIN.sub("-", tenant.lower())
    if plain != tenant or len(plain) > MOST_TENANT or _OF_USER.fullmatch(plain):
        # The digest keeps tenants apart whose names differ only in replaced characters, and from users.
        plain = f"{plain[: MOST_TENANT - _DIGEST - 1]}-{_digest(tenant)}"
    return f"{MCP_PREFIX}{plain}_{server}__"


def user_server_prefix(user_id: int, server: str) -> str:
    """The prefix of the names of the tools of a user's own server."""
    return f"{MCP_PREFIX}u{user_id}_{server}__"


def tool_name(prefix: str, tool: str) -> str:
    """The Luxx name of a server's tool; it depends on the prefix and the tool's own name only."""
    plain = _NOT_ALLOWED.sub("_", tool)
    if plain and plain == tool and len(prefix) + len(plain) <= MOST:
        return prefix + plain
    return f"{prefix}{plain[: MOST - len(prefix) - _DIGEST - 1]}_{_digest(tool)}"


def server_of(name: str) -> str:
    """The name of the server that has the tool of this Luxx name: neither it nor the part for the tenant has
    an underscore."""
    return name.removeprefix(MCP_PREFIX).partition("__")[0].partition("_")[2]


def own_name(name: str) -> str:
    """The tool's own name in a Luxx name, as far as that keeps it."""
    return name.removeprefix(MCP_PREFIX).partition("__")[2]


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

McpHandler = Callable[[dict[str, Any], ToolContext], Awaitable[ToolResult]]


class OfferedTools(msgspec.Struct, frozen=True, kw_only=True):
    """The usable tools of a list; `left_out` has the name of each other tool and why it cannot be used."""

    tools: ToolRegistry
    left_out: list[str]


def build_offered_tools(
    config: McpServerConfig,
    prefix: str,
    tools: Sequence[ListedTool],
    call: CallTool,
    store_images: StoreImages,
    *,
    is_remote: bool = False,
    resumes: bool = False,
) -> OfferedTools:
    """The definitions, in the order of the list, without unusable tools. Slow: call it in a thread.

    `is_remote`: no program is started here. `resumes`: `call` finds out what became of a lost call.
    """
    registry = ToolRegistry()
    left_out: list[str] = []
    secrets = Secrets(config.env)
    spent = 0
    for tool in tools:
        if len(registry.list_all()) >= MOST_TOOLS:
            left_out.append(f"others: only the first {MOST_TOOLS} tools are offered")
            break
        try:
            if tool.problem:
                raise UnusableSchema(f"it does not follow the protocol: {tool.problem}")
            name = tool_name(prefix, tool.name)
            definition = _definition(config, name, tool, _handler(tool, call, store_images), secrets)
            definition = replace(definition, starts_programs=not is_remote, resumes=resumes)
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


def _handler(tool: ListedTool, call: CallTool, store_images: StoreImages) -> McpHandler:
    mirrors_arguments = b'"x-mcp-header"' in msgspec.json.encode(tool.parameters)

    async def handler(arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        if len(msgspec.json.encode(arguments)) > MOST_ARGUMENT_BYTES:
            raise ToolFailed(f"the arguments have more than {MOST_ARGUMENT_BYTES // 1024:,} KiB; send less")

        async def keep_images(images: Sequence[bytes]) -> list[StepFile | str]:
            stored = await store_images(context.caller.user_id, context.permissions.workspace, images)
            context.metadata.files.extend(one for one in stored if isinstance(one, StepFile))
            return stored

        return await call(
            McpCall(
                tool=tool.name,
                arguments=arguments,
                is_read_only=tool.is_read_only,
                context=context,
                keep_images=keep_images,
                mirrors_arguments=mirrors_arguments,
            )
        )

    return handler


def _definition(
    config: McpServerConfig,
    name: str,
    tool: ListedTool,
    handler: McpHandler,
    secrets: Secrets,
) -> ToolDefinition:
    parameters = sanitized_schema(tool.parameters)
    if secrets.occur_in(parameters) or secrets.hidden(name) != name:
        raise UnusableSchema("it contains a value of the server's env")
    return ToolDefinition(
        name=name,
        description=secrets.cut(tool.description, MOST_DESCRIPTION),
        parameters=parameters,
        sent_parameters=with_items(parameters),
        handler=handler,
        category=CATEGORY,
        required_permission=CommandPermission(config.level),
        risk=Risk.LOW if tool.is_read_only else Risk.HIGH,
        timeout=config.start_seconds * 2 + config.call_seconds + SPARE_SECONDS,
        brings_untrusted=True,
        is_egress=True,
        is_trusted=config.trusted and tool.is_read_only,
    )


MOST_NODES = 2_000
MOST_DEPTH = 24
MOST_SCHEMA_BYTES = 32 * 1024
MOST_NODE_DESCRIPTION = 1_000
"""Characters of one description."""

MOST_ALTERNATIVES = 20
MOST_ALTERNATIVES_IN_ALL = 200
"""In one `anyOf` or `allOf`, and in the whole schema; a keyword with more is dropped."""

MOST_VALUES = 500
MOST_VALUE = 200
"""Values of an `enum`, and characters of one value."""

LARGEST = 2**53
"""JSON parsers differ for larger numbers, or refuse them."""

Schema = dict[str, Any]

_ONE = frozenset({"items", "additionalProperties", "contains", "propertyNames"})
_SEVERAL = {"allOf": "allOf", "anyOf": "anyOf", "oneOf": "anyOf", "prefixItems": "prefixItems"}
_COUNTS = frozenset(
    {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains"}
)
_NUMBERS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_COPIED = frozenset({"type", "required"})
_ANNOTATIONS = frozenset({"description", "default"})
"""Keywords beside a reference that do not restrict values."""

_REFUSED_AT_THE_TOP = frozenset({"allOf", "anyOf", "enum", "const", "not"})
"""Model vendors refuse a request if one tool's schema has these at the top level."""

_ALTERNATIVES = frozenset({"allOf", "anyOf", "oneOf"})

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""Argument names that all vendors accept; they restrict the top level only."""


class UnusableSchema(Exception):
    """The tool cannot be offered; the message says why."""


def sanitized_schema(original: Schema) -> Schema:
    """The schema for models and for the check of arguments. Raises UnusableSchema."""
    if original.get("type", "object") != "object":
        raise UnusableSchema("its arguments are no object")
    try:
        schema = _at_the_top(_Sanitizer(original).copy(original, (), 0), original)
        size = len(msgspec.json.encode(schema))
    except RecursionError as error:
        raise UnusableSchema("its schema is nested too deeply") from error
    if size > MOST_SCHEMA_BYTES:
        raise UnusableSchema(f"its schema takes more than {MOST_SCHEMA_BYTES // 1024} KiB")
    return schema


def _at_the_top(sanitized: Schema, original: Schema) -> Schema:
    schema: Schema = {key: sanitized[key] for key in sanitized if key not in _REFUSED_AT_THE_TOP}
    schema["type"] = "object"
    properties = schema.setdefault("properties", {})
    if not properties and not _ALTERNATIVES.isdisjoint(sanitized.keys() | original.keys()):
        raise UnusableSchema("its arguments are described only as alternatives, which models do not support")
    for name in properties:
        if not _NAME.fullmatch(name):
            raise UnusableSchema(f"models do not accept an argument named {name!r}")
    required = schema.pop("required", None)
    if isinstance(required, list):
        # Some vendors refuse a required name without a property; the server still checks for it.
        names = [name for name in cast("list[Any]", required) if isinstance(name, str) and name in properties]
        schema |= {"required": names} if names else {}
    return schema


class _Sanitizer:
    """Copies a schema within the bounds on its nodes and alternatives."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._nodes = 0
        self._alternatives = 0

    def copy(self, node: Any, within: tuple[str, ...], depth: int) -> Any:
        """The sanitized node. `within`: the references on the path; a circular one allows anything."""
        self._nodes += 1
        if self._nodes > MOST_NODES:
            raise UnusableSchema(f"its schema has more than {MOST_NODES:,} parts")
        if depth > MOST_DEPTH:
            raise UnusableSchema("its schema is nested too deeply")
        if node is False:
            return {"not": {}}
        if not isinstance(node, dict):
            return {}
        source = cast(Schema, node)

        def inner(child: Any) -> Any:
            return self.copy(child, within, depth + 1)

        copied = self._plain(source) | self._nested(source, inner)
        reference = source.get("$ref")
        if not isinstance(reference, str) or reference in within:
            return copied
        target = self.copy(self._target(reference), (*within, reference), depth + 1)
        same_type = {"type"} if copied.get("type") == target.get("type") else set[str]()
        if copied.keys() - same_type <= _ANNOTATIONS:
            return target | copied
        return {**copied, "allOf": [target, *copied.get("allOf", [])]}

    def _plain(self, source: Schema) -> Schema:
        """The keywords of a node without subschemas."""
        kept: Schema = {key: source[key] for key in source if key in _COPIED}
        kept |= {key: source[key] for key in source if key in _NUMBERS and _is_number(source[key])}
        kept |= {
            key: source[key]
            for key in source
            if key in _COUNTS and type(source[key]) is int and _is_number(source[key])
        }
        kept |= {key: source[key] for key in ("const", "default") if key in source and _is_short(source[key])}
        if _are_values(source.get("enum")):
            kept["enum"] = source["enum"]
        if isinstance(source.get("description"), str):
            kept["description"] = shortened(source["description"], MOST_NODE_DESCRIPTION)
        if isinstance(source.get("format"), str) and len(source["format"]) <= MOST_VALUE:
            kept["format"] = source["format"]
        if isinstance(source.get("pattern"), str) and _is_searchable(source["pattern"]):
            kept["pattern"] = source["pattern"]
        return kept

    def _nested(self, source: Schema, inner: Callable[[Any], Any]) -> Schema:
        """The keywords of a node with subschemas."""
        copied: Schema = {}
        for key in source:
            if key == "items" and isinstance(source[key], list):
                copied["prefixItems"] = [inner(item) for item in source[key]]
            elif key == "additionalProperties" and isinstance(source[key], bool):
                copied[key] = source[key]
            elif key in _ONE:
                copied[key] = inner(source[key])
        for key in source:
            if key in _SEVERAL and isinstance(source[key], list) and self._are_few(key, len(source[key])):
                copied.setdefault(_SEVERAL[key], [inner(item) for item in source[key]])
        properties = source.get("properties")
        if isinstance(properties, dict):
            copied["properties"] = {name: inner(schema) for name, schema in cast(Schema, properties).items()}
        if "patternProperties" in source:
            # The dropped patternProperties allow more properties.
            copied.pop("additionalProperties", None)
        return copied

    def _are_few(self, key: str, count: int) -> bool:
        if key == "prefixItems":
            return count > 0
        if not 0 < count <= MOST_ALTERNATIVES or self._alternatives + count > MOST_ALTERNATIVES_IN_ALL:
            return False
        self._alternatives += count
        return True

    def _target(self, reference: str) -> Any:
        """The node that a local reference points to; `True` (allows anything) for any other reference."""
        if not reference.startswith("#"):
            return True
        node: Any = self._root
        for part in reference[1:].split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(node, dict) or key not in node:
                return True
            node = cast(Schema, node)[key]
        return node


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= LARGEST


def _is_short(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= MOST_VALUE
    return value is None or isinstance(value, bool) or _is_number(value)


def _are_values(values: Any) -> bool:
    many = cast("list[Any]", values) if isinstance(values, list) else []
    return 0 < len(many) <= MOST_VALUES and all(_is_short(value) for value in many)


def _is_searchable(pattern: str) -> bool:
    try:
        compile_regex(pattern)
    except ToolFailed:
        return False
    return True
