"""A composition as a tool: its schema, level, risk and problems, and one call of it.

A call runs the members in order, each through the executor like any call.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from typing import Any, assert_never, cast

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from luxx.errors import ToolFailed
from luxx.tools.compositions.checking import member_refusal
from luxx.tools.compositions.templates import END, INPUT, PREVIOUS, fill_template, next_member_id
from luxx.tools.core import (
    ChainContext,
    CommandPermission,
    NeedsAnswer,
    Risk,
    ToolContext,
    ToolDefinition,
    ToolSet,
)
from luxx.tools.executor import ToolExecutor
from luxx.tools.history import CallStatus, Executed
from luxx.tools.permissions.judge import brings_untrusted
from luxx.tools.schema import with_items
from luxx.wire.tool import (
    Composition,
    CompositionKind,
    Fallback,
    Member,
    MemberEnded,
    MemberStatus,
    Parameter,
    ParameterType,
    ToolCall,
    ToolResult,
)

CATEGORY = "compositions"

_SPARE_SECONDS = 10
"""Added to the timeout of the tool, so that the composition can report its own timeout first."""

_RISKS = list(Risk)

OnEnded = Callable[[bool], Awaitable[None]]
"""Called when a composition has run, with whether it succeeded."""


class CompositionTraits(msgspec.Struct, frozen=True, kw_only=True):
    """Level and risk are the highest of the members. `problems`: sentences for the owner."""

    required_permission: CommandPermission
    risk: Risk
    is_untrusted: bool
    problems: list[str]


def traits_of(composition: Composition, shared: ToolSet) -> CompositionTraits:
    """The traits with the tools that the owner has now; `shared`: without compositions."""
    problems: list[str] = []
    tools: list[ToolDefinition] = []
    if shared.lookup(composition.name) is not None:
        problems.append("a tool of the server has the same name and hides it; rename the composition")
    names = [call.tool for member in composition.members for call in (member, *member.fallbacks)]
    for name in dict.fromkeys(names):
        found = shared.lookup(name)
        if found is None:
            problems.append(f"the tool {name} no longer exists")
            continue
        tool = found[0]
        tools.append(tool)
        if (reason := member_refusal(tool)) is not None:
            problems.append(reason)
    levels = [tool.required_permission for tool in tools]
    return CompositionTraits(
        required_permission=max(levels, default=CommandPermission.READ_ONLY),
        risk=max((tool.risk for tool in tools), key=_RISKS.index, default=Risk.LOW),
        is_untrusted=any(brings_untrusted(tool) for tool in tools),
        problems=problems,
    )


def schema_of(parameters: Sequence[Parameter]) -> dict[str, Any]:
    """The JSON schema of a composition's arguments."""
    properties: dict[str, Any] = {}
    for parameter in parameters:
        # Model vendors refuse an array without `items`.
        items: dict[str, Any] = {"items": {}} if parameter.type == ParameterType.ARRAY else {}
        description = {"description": parameter.description} if parameter.description else {}
        properties[parameter.name] = {"type": parameter.type.value, **items, **description}
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    if required := [parameter.name for parameter in parameters if parameter.required]:
        schema["required"] = required
    return schema


def definition_of(
    composition: Composition, shared: ToolSet, executor: ToolExecutor, on_ended: OnEnded
) -> ToolDefinition:
    """The composition as a tool; its members call tools of `shared`."""
    traits = traits_of(composition, shared)

    async def handler(arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        result = await Chain(composition, shared, executor, arguments, context).run()
        await on_ended(result.success)
        return result

    warning = f"\n(Not all of it works now: {'; '.join(traits.problems)}.)" if traits.problems else ""
    return ToolDefinition(
        name=composition.name,
        description=composition.description + warning,
        parameters=with_items(schema_of(composition.parameters)),
        handler=handler,
        category=CATEGORY,
        required_permission=traits.required_permission,
        risk=traits.risk,
        timeout=composition.timeout_seconds + _SPARE_SECONDS,
        brings_untrusted=traits.is_untrusted,
        is_chain=True,
    )


async def cannot_ask(question: dict[str, Any]) -> dict[str, Any]:
    """The `ask` of a member call."""
    raise ToolFailed("a tool cannot ask a person while it is a member of a composition")


class Chain:
    """One call. `run` returns its result; it reraises NeedsAnswer with the members that have ended."""

    def __init__(
        self,
        composition: Composition,
        shared: ToolSet,
        executor: ToolExecutor,
        arguments: dict[str, Any],
        context: ToolContext,
    ) -> None:
        self._composition = composition
        self._shared = shared
        self._executor = executor
        self._context = context
        self._sources: dict[str, Any] = {INPUT: arguments}
        self._calls: list[MemberEnded] = []
        self._outputs: dict[str, Any] = {}
        self._tainted_by = context.permissions.tainted_by

    async def run(self) -> ToolResult:
        """Run the members within the composition's timeout."""
        seconds = self._composition.timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                error = await self._run()
        except NeedsAnswer as signal:
            finished_members = self._context.actions.chain.finished_members
            new = tuple(call for call in self._calls if call.key not in finished_members)
            raise NeedsAnswer(signal.question, new) from None
        except TimeoutError:
            error = f"it did not end within {seconds} seconds; its running members were cancelled"
        return self._answer(error)

    async def _run(self) -> str | None:
        """The reason of a failure; None on success."""
        match self._composition.kind:
            case CompositionKind.PARALLEL:
                return await self._run_parallel()
            case CompositionKind.SEQUENTIAL | CompositionKind.CONDITIONAL:
                return await self._run_in_order()
            case _:
                assert_never(self._composition.kind)

    async def _run_in_order(self) -> str | None:
        members = self._composition.members
        positions = {member.id: position for position, member in enumerate(members)} | {END: len(members)}
        position = 0
        while position < len(members):
            member = members[position]
            ended = await self._member(member)
            self._sources[member.id] = self._sources[PREVIOUS] = ended.result.to_dict()
            go = None if ended.status == MemberStatus.REJECTED else next_member_id(member.then, ended.result)
            if go is None and ended.status != MemberStatus.DONE:
                return _failure_text(ended)
            position = position + 1 if go is None else positions[go]
        return None

    async def _run_parallel(self) -> str | None:
        tasks = [self._member(member) for member in self._composition.members]
        # A NeedsAnswer of one member is raised after the others have ended. Cancellation cancels all.
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in ended:
            if isinstance(outcome, BaseException):
                raise outcome
        calls = cast("list[MemberEnded]", ended)
        return "; ".join(_failure_text(call) for call in calls if call.status != MemberStatus.DONE) or None

    async def _member(self, member: Member) -> MemberEnded:
        """Call the member, then its fallbacks, until one succeeds or a user rejects it; return the last."""
        ended = await self._call(member.id, member.id, member)
        for index, fallback in enumerate(member.fallbacks, 1):
            if ended.status in (MemberStatus.DONE, MemberStatus.REJECTED):
                break
            ended = await self._call(f"{member.id}.{index}", member.id, fallback)
        if ended.status == MemberStatus.DONE:
            self._outputs[member.id] = ended.result.data
        return ended

    async def _call(self, position: str, member_id: str, call: Member | Fallback) -> MemberEnded:
        """`position`: identifies the member or its fallback, unique within the composition."""
        self._context.metadata.calls += 1
        found = self._shared.lookup(call.tool)
        try:
            if found is not None and (reason := member_refusal(found[0])) is not None:
                raise ToolFailed(reason)
            arguments = msgspec.json.encode(fill_template(call.arguments, self._sources)).decode()
        except (ToolFailed, RecursionError) as error:
            message = error.message if isinstance(error, ToolFailed) else "its arguments are nested too deep"
            result = ToolResult.fail(f"{call.tool} was not run: {message}")
            ended = MemberEnded(
                key="", id=member_id, tool=call.tool, status=MemberStatus.FAILED, result=result, duration_ms=0
            )
        else:
            key = _key(position, call.tool, arguments)
            earlier = self._context.actions.chain.finished_members.get(key)
            ended = earlier or await self._execute(key, position, member_id, call.tool, arguments)
        self._calls.append(ended)
        self._context.metadata.files.extend(ended.images)
        if ended.is_untrusted:
            self._context.metadata.is_untrusted = True
            self._tainted_by = self._tainted_by or ended.tool
        return ended

    async def _execute(
        self, key: str, position: str, member_id: str, tool: str, arguments: str
    ) -> MemberEnded:
        chain = self._context.actions.chain
        member_context = chain.context_for_member(self._context, position, tool, arguments)
        context = ToolContext(
            caller=replace(member_context.caller, tools=self._shared, is_composition=True),
            # An offered composition includes its members, so these need not be offered by name.
            permissions=replace(member_context.permissions, tainted_by=self._tainted_by, offered=None),
            actions=replace(member_context.actions, ask=cannot_ask, chain=ChainContext()),
        )
        call_id = f"{self._context.metadata.call_id}.{member_id}"
        executed = await self._executor.execute(
            ToolCall(call_id=call_id, name=tool, arguments=arguments), context
        )
        return _member_ended(key, member_id, executed)

    def _answer(self, error: str | None) -> ToolResult:
        is_parallel = self._composition.kind == CompositionKind.PARALLEL
        last = next(reversed(self._outputs.values()), None)
        by_member = {
            member.id: self._outputs[member.id]
            for member in self._composition.members
            if member.id in self._outputs
        }
        data: dict[str, Any] = {
            "output": by_member if is_parallel else last,
            "members": [_summary(call) for call in self._calls],
        }
        # Citations refer to the field `sources` of a result.
        if sources := [source for call in self._calls for source in _sources_of(call.result.data)]:
            data["sources"] = sources
        name = self._composition.name
        return ToolResult(
            success=error is None, data=data, error=None if error is None else f"{name}: {error}"
        )


def _key(position: str, tool: str, arguments: str) -> str:
    return sha256(msgspec.json.encode([position, tool, arguments])).hexdigest()


def _member_ended(key: str, member_id: str, executed: Executed) -> MemberEnded:
    match executed.status:
        case CallStatus.DONE | CallStatus.CACHED:
            status = MemberStatus.DONE
        case CallStatus.DENIED:
            status = MemberStatus.DENIED
        case CallStatus.REJECTED:
            status = MemberStatus.REJECTED
        case (
            CallStatus.FAILED
            | CallStatus.TIMEOUT
            | CallStatus.INVALID
            | CallStatus.UNKNOWN
            | CallStatus.CANCELLED
        ):
            status = MemberStatus.FAILED
        case _:
            assert_never(executed.status)
    return MemberEnded(
        key=key,
        id=member_id,
        tool=executed.name,
        status=status,
        result=executed.result,
        duration_ms=executed.duration_ms,
        is_untrusted=executed.is_untrusted,
        images=executed.files,
        note=UNSET if executed.note is None else executed.note,
    )


def _summary(call: MemberEnded) -> dict[str, Any]:
    """The entry for one member call in the result of a composition."""
    error = {} if call.result.error is None else {"error": call.result.error}
    note = {} if call.note is UNSET else {"note": call.note}
    named = {"id": call.id, "tool": call.tool, "status": call.status.value}
    return {**named, "duration_ms": call.duration_ms, **error, **note}


def _failure_text(ended: MemberEnded) -> str:
    return f"its member {ended.id} ({ended.tool}) {_STATUS_TEXT[ended.status]}: {ended.result.error}"


_STATUS_TEXT = {
    MemberStatus.DONE: "was run",
    MemberStatus.FAILED: "failed",
    MemberStatus.DENIED: "was denied",
    MemberStatus.REJECTED: "was rejected",
}


def _sources_of(data: Any) -> list[Any]:
    sources: Any = cast("dict[str, Any]", data).get("sources") if isinstance(data, dict) else None
    return cast("list[Any]", sources) if isinstance(sources, list) else []
