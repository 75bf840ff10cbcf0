"""Whether what somebody wrote is a composition that can be run, with all that is wrong by JSON path."""

import re
from collections.abc import Collection, Iterator
from functools import partial
from typing import Any, cast

import msgspec

from luxx.errors import InvalidInput
from luxx.tools.compositions.templates import (
    END,
    INPUT,
    PREVIOUS,
    TOO_DEEP,
    Parts,
    Problem,
    Reference,
    is_too_deep,
    problems_in,
    read_path,
)
from luxx.tools.core import CommandPermission, ToolDefinition, ToolRegistry
from luxx.tools.permissions.subjects import MCP_PREFIX
from luxx.wire.composition import Branch, Comparison, Composition, CompositionKind, Fallback, Member

MOST_BYTES = 64 * 1024
"""Of a composition, as JSON."""

RESERVED_NAMES = frozenset({"cache", "compositions"})
"""Words of the routes below /tools."""

NO_RESULT = "a result has success, data and error; a path into what the tool said begins with data"
_RESERVED_IDS = frozenset({INPUT, PREVIOUS, END})
_NEVER_MEMBERS = frozenset({"activate_skill", "delegate"})
_MOST_PROBLEMS = 20
_ORDERED = (Comparison.LESS, Comparison.GREATER)


def check(
    composition: Composition,
    registry: ToolRegistry | None = None,
    level: CommandPermission = CommandPermission.READ_ONLY,
    own: Collection[str] = (),
    tenant_id: int | None = None,
) -> None:
    """Raises InvalidInput that names every wrong place.

    `own`: names of the owner's compositions; `tenant_id`: the owner's. Without a `registry`, which tools
    there are is not looked at.
    """
    try:
        size = len(msgspec.json.encode(composition))
    except RecursionError:
        raise refusal({"$": TOO_DEEP}) from None
    if size > MOST_BYTES:
        raise refusal({"$": f"a composition has at most {MOST_BYTES:,} bytes"})
    problems = dict[str, str]()
    for path, problem in _Check(composition, registry, level, own, tenant_id).problems():
        problems.setdefault(path[:200], problem)
        if len(problems) == _MOST_PROBLEMS:
            break
    if problems:
        raise refusal(problems)


def refusal(problems: dict[str, str]) -> InvalidInput:
    """The error that names these places."""
    named = "; ".join(f"{path}: {problem}" for path, problem in problems.items())
    return InvalidInput(
        f"this is no composition that can be run: {named}",
        kind="composition_invalid",
        detail={"fields": problems},
    )


def why_no_member(tool: ToolDefinition) -> str | None:
    """Why no composition may contain this tool, which is there."""
    if tool.only_asks or tool.name in _NEVER_MEMBERS:
        return f"{tool.name} cannot be a member: it is for the model alone"
    return None


class _Check:
    def __init__(
        self,
        composition: Composition,
        registry: ToolRegistry | None,
        level: CommandPermission,
        own: Collection[str],
        tenant_id: int | None,
    ) -> None:
        self._all = composition
        self._registry = registry
        available = [] if registry is None else registry.available_to(level, tenant_id=tenant_id)
        self._tools = {tool.name: tool for tool in available}
        self._own = own
        self._is_conditional = composition.kind == CompositionKind.CONDITIONAL
        self._parameters = {parameter.name for parameter in composition.parameters}

    def problems(self) -> Iterator[Problem]:
        yield from self._name(self._all.name)
        yield from _repeated([one.name for one in self._all.parameters], "$.parameters[{}].name")
        yield from _repeated([member.id for member in self._all.members], "$.members[{}].id")
        if not self._all.description.strip():
            yield "$.description", "say what it does: a model reads it"
        for place, member in enumerate(self._all.members):
            yield from self._member(place, member, f"$.members[{place}]")

    def _name(self, name: str) -> Iterator[Problem]:
        # First: which tools of MCP servers there are is their tenant's affair.
        if name in RESERVED_NAMES or name.startswith(MCP_PREFIX):
            yield "$.name", "this name is reserved; choose another"
        elif self._registry is not None and self._registry.get(name) is not None:
            yield "$.name", "a tool of the server has this name"

    def _member(self, place: int, member: Member, at: str) -> Iterator[Problem]:
        if member.id in _RESERVED_IDS:
            yield f"{at}.id", f"{member.id} is a word of the grammar; choose another id"
        yield from self._call(place, member, at)
        for index, fallback in enumerate(member.fallbacks):
            yield from self._call(place, fallback, f"{at}.fallbacks[{index}]")
        if member.then and not self._is_conditional:
            yield f"{at}.then", "only a conditional composition has branches"
            return
        later = {END, *(one.id for one in self._all.members[place + 1 :])}
        for index, branch in enumerate(member.then):
            yield from _branch(branch, later, f"{at}.then[{index}]")

    def _call(self, place: int, call: Member | Fallback, at: str) -> Iterator[Problem]:
        yield from problems_in(call.arguments, f"{at}.arguments", partial(self._reference, place))
        if self._registry is None:
            return
        tool = self._tools.get(call.tool)
        if call.tool == self._all.name or (tool is None and call.tool in self._own):
            yield f"{at}.tool", "a composition cannot contain a composition"
        elif tool is None:
            yield f"{at}.tool", f"there is no tool named {call.tool} at your permission level"
        elif (reason := why_no_member(tool)) is not None:
            yield f"{at}.tool", reason
        else:
            yield from _arguments(tool, call.arguments, f"{at}.arguments")

    def _reference(self, place: int, reference: Reference) -> str | None:
        source = reference.source
        if source == INPUT:
            name = reference.parts[0] if reference.parts else None
            known = ", ".join(sorted(self._parameters)) or "none"
            is_known = name is None or name in self._parameters
            return None if is_known else f"the composition has no parameter {name}; it has {known}"
        if self._all.kind == CompositionKind.PARALLEL:
            return "all members run at once, so there is only the input to take from"
        if not _is_in_result(reference.parts):
            return NO_RESULT
        earlier = [member.id for member in self._all.members[:place]]
        if source == PREVIOUS:
            return None if earlier else "nothing is before the first member"
        return None if source in earlier else f"no earlier member has the id {source[:64]}"


def _branch(branch: Branch, later: Collection[str], at: str) -> Iterator[Problem]:
    if branch.go not in later:
        yield f"{at}.go", f"it leads to a later member or to {END}: {', '.join(sorted(later))}"
    if is_too_deep(branch.value):
        yield f"{at}.value", TOO_DEEP
    if branch.compare is None:
        if branch.path is not None:
            yield f"{at}.compare", "say how to compare what is at the path"
        return
    if branch.path is None:
        yield f"{at}.path", "say where in the result to look, such as data.total"
    else:
        try:
            if not _is_in_result(read_path(branch.path)):
                yield f"{at}.path", NO_RESULT
        except ValueError as error:
            yield f"{at}.path", str(error)
    is_number = isinstance(branch.value, int | float) and not isinstance(branch.value, bool)
    if branch.compare in _ORDERED and not (is_number or isinstance(branch.value, str)):
        yield f"{at}.value", "a number or a text is needed to say what is more"


def _is_in_result(parts: Parts) -> bool:
    return not parts or parts[0] in ("success", "data", "error")


def _arguments(tool: ToolDefinition, given: dict[str, Any], at: str) -> Iterator[Problem]:
    """Names alone: what the values are like is known when they are there, and checked then."""
    known = cast("dict[str, Any]", tool.parameters.get("properties", {}))
    for name in cast("list[str]", tool.parameters.get("required", [])):
        if name not in given:
            yield f"{at}.{name}", f"{tool.name} needs this argument"
    if tool.parameters.get("additionalProperties") is False:
        for name in given:
            if name not in known:
                yield f"{at}.{re.sub(r'[^ -~]', '?', name)[:64]}", f"{tool.name} has no such argument"


def _repeated(names: list[str], path: str) -> Iterator[Problem]:
    for index, name in enumerate(names):
        if name in names[:index]:
            yield path.format(index), f"there is already one named {name}"
