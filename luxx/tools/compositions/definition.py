"""A composition as a tool: its schema, the level and risk of its members, and what does not work now."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from luxx.tools.compositions.chain import Chain
from luxx.tools.compositions.checking import why_no_member
from luxx.tools.compositions.rows import Stored, composition_of
from luxx.tools.core import CommandPermission, Risk, ToolContext, ToolDefinition, ToolRegistry, ToolResult
from luxx.tools.executor import ToolExecutor
from luxx.tools.permission import brings_untrusted
from luxx.tools.schema import ArgumentCheck
from luxx.wire.composition import Composition, Parameter, ParameterType

CATEGORY = "compositions"

_SPARE_SECONDS = 10
"""Beside its own time, after which it says itself what became of it."""

_RISKS = list(Risk)

OnEnded = Callable[[str, bool], Awaitable[None]]
"""Is told the id of a composition that has run, and whether with success."""


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What follows from its members: of the highest of them. `problems` are sentences for its owner."""

    required_permission: CommandPermission
    risk: Risk
    is_untrusted: bool
    problems: list[str]


def shape_of(composition: Composition, registry: ToolRegistry, tenant_id: int | None) -> Shape:
    """As things are now for its owner's tenant: tools come and go with configuration."""
    problems: list[str] = []
    tools: list[ToolDefinition] = []
    if registry.get(composition.name) is not None:
        problems.append("a tool of the server has its name, and runs in its place; give it another")
    for name in dict.fromkeys(_names(composition)):
        found = registry.lookup_for(name, tenant_id)
        if found is None:
            problems.append(f"there is no tool named {name} any more")
            continue
        tool = found[0]
        tools.append(tool)
        if (reason := why_no_member(tool)) is not None:
            problems.append(reason)
    return Shape(
        required_permission=max(
            (tool.required_permission for tool in tools), default=CommandPermission.READ_ONLY
        ),
        risk=max((tool.risk for tool in tools), key=_RISKS.index, default=Risk.LOW),
        is_untrusted=any(brings_untrusted(tool) for tool in tools),
        problems=problems,
    )


def schema_of(parameters: Sequence[Parameter]) -> dict[str, Any]:
    """The JSON schema of a composition's arguments."""
    properties = {each.name: _schema_of(each) for each in parameters}
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    if required := [each.name for each in parameters if each.required]:
        schema["required"] = required
    return schema


def _schema_of(parameter: Parameter) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": parameter.type.value}
    if parameter.type == ParameterType.ARRAY:
        # Vendors refuse a list of which nothing is said.
        schema["items"] = {}
    if parameter.description:
        schema["description"] = parameter.description
    return schema


def definition_of(stored: Stored, executor: ToolExecutor, on_ended: OnEnded) -> ToolDefinition:
    """The tool that a registry would hold, were it not its owner's alone."""
    composition = composition_of(stored)
    shape = shape_of(composition, executor.registry, stored.tenant_id)

    async def handler(arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        result = await Chain(composition, executor, arguments, context).run()
        await on_ended(stored.id, result.success)
        return result

    warning = f"\n(Not all of it works now: {'; '.join(shape.problems)}.)" if shape.problems else ""
    return ToolDefinition(
        name=composition.name,
        description=composition.description + warning,
        parameters=schema_of(composition.parameters),
        handler=handler,
        category=CATEGORY,
        required_permission=shape.required_permission,
        risk=shape.risk,
        timeout=composition.timeout_seconds + _SPARE_SECONDS,
        brings_untrusted=shape.is_untrusted,
        is_chain=True,
    )


class Compositions:
    """One user's, as tools: made when they are looked up, and none that a tool of the server hides."""

    def __init__(self, stored: Sequence[Stored], executor: ToolExecutor, on_ended: OnEnded) -> None:
        self._stored = {each.name: each for each in stored if executor.registry.get(each.name) is None}
        self._executor = executor
        self._on_ended = on_ended
        self._found: dict[str, tuple[ToolDefinition, ArgumentCheck]] = {}

    def lookup(self, name: str) -> tuple[ToolDefinition, ArgumentCheck] | None:
        """The composition of this name, with the check of its arguments."""
        if name not in self._found and (stored := self._stored.get(name)) is not None:
            definition = self._define(stored)
            self._found[name] = (definition, ArgumentCheck(name, definition.parameters))
        return self._found.get(name)

    def list_all(self) -> list[ToolDefinition]:
        """Oldest first."""
        return [self._define(each) for each in self._stored.values()]

    def _define(self, stored: Stored) -> ToolDefinition:
        return definition_of(stored, self._executor, self._on_ended)


def _names(composition: Composition) -> list[str]:
    return [call.tool for member in composition.members for call in (member, *member.fallbacks)]
