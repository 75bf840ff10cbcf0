"""Validates a composition and reports all problems by JSON path."""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import msgspec

from luxx.errors import LuxxError
from luxx.infra.field_errors import FieldErrors
from luxx.tools.compositions.templates import (
    END,
    INPUT,
    PREVIOUS,
    TOO_DEEP,
    Problem,
    Reference,
    ReferencePath,
    is_number,
    is_too_deep,
    problems_in,
    read_path,
)
from luxx.tools.core import CommandPermission, ToolDefinition, ToolSet
from luxx.tools.permissions.subjects import MCP_PREFIX
from luxx.wire.todos import TODO_TOOL
from luxx.wire.tool import Branch, Comparison, Composition, CompositionKind, Fallback, Member

MAX_BYTES = 64 * 1024
"""Limit for a composition as JSON."""

RESERVED_NAMES = frozenset({"cache", "compositions"})
"""Names of routes below /tools."""

RESULT_PATH_HELP = "a result has success, data and error; a path into the tool's output begins with data"
_RESERVED_IDS = frozenset({INPUT, PREVIOUS, END})
_NEVER_MEMBERS = frozenset({"activate_skill", "delegate", TODO_TOOL})
_MAX_PROBLEMS = 20
_ORDERED = (Comparison.LESS, Comparison.GREATER)


def check_composition(
    composition: Composition,
    shared: ToolSet | None = None,
    level: CommandPermission = CommandPermission.READ_ONLY,
    own: Collection[str] = (),
) -> None:
    """Raises InvalidInput that names every problem.

    `shared`: the owner's tools without compositions; if it is None, the tools of the members are not checked.
    `own`: names of the owner's compositions.
    """
    try:
        size = len(msgspec.json.encode(composition))
    except RecursionError:
        raise _refusal({"$": TOO_DEEP}) from None
    if size > MAX_BYTES:
        raise _refusal({"$": f"a composition has at most {MAX_BYTES:,} bytes"})
    problems = dict[str, str]()
    available = [] if shared is None else shared.available_to(level)
    check = _Check(composition, shared, own, {tool.name: tool for tool in available})
    for path, problem in check.problems():
        problems.setdefault(path[:200], problem)
        if len(problems) == _MAX_PROBLEMS:
            break
    if problems:
        raise _refusal(problems)


def _refusal(problems: dict[str, str]) -> LuxxError:
    errors = FieldErrors(problems, subject="this composition is not valid")
    return errors.refusal(kind="composition_invalid")


def member_refusal(tool: ToolDefinition) -> str | None:
    """Why no composition may contain this tool; None if one may."""
    if tool.only_asks or tool.name in _NEVER_MEMBERS:
        return f"{tool.name} cannot be a member: only the model may call it"
    return None


@dataclass(slots=True, frozen=True)
class _Check:
    """`tools`: those that its owner may use, by name."""

    composition: Composition
    shared: ToolSet | None
    own: Collection[str]
    tools: dict[str, ToolDefinition]

    def problems(self) -> Iterator[Problem]:
        yield from self._name(self.composition.name)
        yield from _repeated([one.name for one in self.composition.parameters], "$.parameters[{}].name")
        yield from _repeated([member.id for member in self.composition.members], "$.members[{}].id")
        if not self.composition.description.strip():
            yield "$.description", "describe what it does; the model reads this text"
        for position, member in enumerate(self.composition.members):
            yield from self._member(position, member, f"$.members[{position}]")

    def _name(self, name: str) -> Iterator[Problem]:
        # Checked first, so that the message does not reveal MCP tools of other tenants.
        if name in RESERVED_NAMES or name.startswith(MCP_PREFIX):
            yield "$.name", "this name is reserved; choose another"
        elif self.shared is not None and self.shared.lookup(name) is not None:
            yield "$.name", "a tool of the server has this name"

    def _member(self, position: int, member: Member, json_path: str) -> Iterator[Problem]:
        if member.id in _RESERVED_IDS:
            yield f"{json_path}.id", f"{member.id} is a reserved word; choose another id"
        yield from self._call(position, member, json_path)
        for index, fallback in enumerate(member.fallbacks):
            yield from self._call(position, fallback, f"{json_path}.fallbacks[{index}]")
        if member.then and self.composition.kind != CompositionKind.CONDITIONAL:
            yield f"{json_path}.then", "only a conditional composition has branches"
            return
        later = {END, *(member.id for member in self.composition.members[position + 1 :])}
        for index, branch in enumerate(member.then):
            yield from _branch(branch, later, f"{json_path}.then[{index}]")

    def _call(self, position: int, call: Member | Fallback, json_path: str) -> Iterator[Problem]:
        yield from problems_in(call.arguments, f"{json_path}.arguments", partial(self._reference, position))
        if self.shared is None:
            return
        tool = self.tools.get(call.tool)
        if call.tool == self.composition.name or (tool is None and call.tool in self.own):
            yield f"{json_path}.tool", "a composition cannot contain a composition"
        elif tool is None:
            yield f"{json_path}.tool", f"there is no tool named {call.tool} at your permission level"
        elif (reason := member_refusal(tool)) is not None:
            yield f"{json_path}.tool", reason
        else:
            yield from _arguments(tool, call.arguments, f"{json_path}.arguments")

    def _reference(self, position: int, reference: Reference) -> str | None:
        source = reference.source
        if source == INPUT:
            name = reference.parts[0] if reference.parts else None
            parameters = {parameter.name for parameter in self.composition.parameters}
            if name is None or name in parameters:
                return None
            known = ", ".join(sorted(parameters)) or "none"
            return f"the composition has no parameter {name}; it has {known}"
        if self.composition.kind == CompositionKind.PARALLEL:
            return "the members run in parallel, so they can only refer to the input"
        if not _is_in_result(reference.parts):
            return RESULT_PATH_HELP
        earlier = [member.id for member in self.composition.members[:position]]
        if source == PREVIOUS:
            return None if earlier else "the first member has no previous member"
        return None if source in earlier else f"no earlier member has the id {source[:64]}"


def _branch(branch: Branch, later: Collection[str], json_path: str) -> Iterator[Problem]:
    if branch.go not in later:
        yield f"{json_path}.go", f"it must name a later member or {END}: {', '.join(sorted(later))}"
    if is_too_deep(branch.value):
        yield f"{json_path}.value", TOO_DEEP
    if branch.compare is None:
        if branch.path is not None:
            yield f"{json_path}.compare", "a branch with a path needs compare"
        return
    if branch.path is None:
        yield f"{json_path}.path", "a branch with compare needs a path into the result, such as data.total"
    else:
        try:
            if not _is_in_result(read_path(branch.path)):
                yield f"{json_path}.path", RESULT_PATH_HELP
        except ValueError as error:
            yield f"{json_path}.path", str(error)
    if branch.compare in _ORDERED and not (is_number(branch.value) or isinstance(branch.value, str)):
        yield f"{json_path}.value", f"{branch.compare} needs a number or a text"


def _is_in_result(parts: ReferencePath) -> bool:
    return not parts or parts[0] in ("success", "data", "error")


def _arguments(tool: ToolDefinition, call_arguments: dict[str, Any], json_path: str) -> Iterator[Problem]:
    """Checks argument names only; the executor checks the values when the member runs."""
    known = cast("dict[str, Any]", tool.parameters.get("properties", {}))
    for name in cast("list[str]", tool.parameters.get("required", [])):
        if name not in call_arguments:
            yield f"{json_path}.{name}", f"{tool.name} needs this argument"
    if tool.parameters.get("additionalProperties") is False:
        for name in call_arguments:
            if name not in known:
                yield f"{json_path}.{re.sub(r'[^ -~]', '?', name)[:64]}", f"{tool.name} has no such argument"


def _repeated(names: list[str], path: str) -> Iterator[Problem]:
    for index, name in enumerate(names):
        if name in names[:index]:
            yield path.format(index), f"there is already one named {name}"
