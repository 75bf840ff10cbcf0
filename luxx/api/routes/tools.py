"""`/tools`: list tools, run one and read its output on, clear cached results; and compositions.

Running a tool here asks no question, because the caller approves it. Levels and deny rules apply.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, assert_never

import msgspec
from litestar import Controller, delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import JSONBody, QueryParameter, SkipValidation
from msgspec import UNSET, Meta, UnsetType

from luxx.api.http.envelope import Page, Success, page_of, success
from luxx.api.http.request_input import InjectedCaller, PageNumber, PageSize, TextId
from luxx.domain.accounts.caller import Caller
from luxx.errors import NotAllowed, NotFound
from luxx.infra.clock import new_id
from luxx.infra.field_errors import FieldErrors
from luxx.tools.compositions.service import CompositionService, CompositionView
from luxx.tools.core import (
    CallActions,
    CallPermissions,
    CommandPermission,
    Risk,
    ToolCall,
    ToolContext,
    ToolDefinition,
    ToolSet,
)
from luxx.tools.executor import ToolExecutor
from luxx.tools.history import OUTPUT_MINUTES, CallOutputs, CallStatus, Executed
from luxx.tools.sources import tool_caller
from luxx.wire.tool import UNKNOWN_OUTCOME, Composition, PlacedRule, SkillHead
from luxx.wire.turn import StepFile

WorkspaceOf = Callable[[Caller], Awaitable[Path]]
ToolsOf = Callable[[Caller, Collection[str] | None], Awaitable[ToolSet]]
"""The tools that exist for a caller; with names, at least those of them that exist."""
RulesAndTools = Callable[[Caller, str], Awaitable[tuple[tuple[PlacedRule, ...], ToolSet]]]
"""The rules for a direct call of this tool, and the tools that exist for the caller."""
SkillsOf = Callable[[Caller], Awaitable[Mapping[str, SkillHead]]]
"""The skills that a direct call may use."""
ClearCache = Callable[[int], int]
"""Removes the cached results of a user; returns how many this process had."""
InjectedExecutor = NamedDependency[ToolExecutor]
InjectedClearCache = NamedDependency[SkipValidation[ClearCache]]
InjectedWorkspaceOf = NamedDependency[SkipValidation[WorkspaceOf]]
InjectedToolsOf = NamedDependency[SkipValidation[ToolsOf]]
InjectedRulesAndTools = NamedDependency[SkipValidation[RulesAndTools]]
InjectedSkillsOf = NamedDependency[SkipValidation[SkillsOf]]
InjectedOutputs = NamedDependency[CallOutputs]

_READ_ON = "Read on within {minutes} minutes with GET /tools/results/{ref}?offset=…&limit=… (characters)."


class ToolView(msgspec.Struct, frozen=True, kw_only=True):
    """A tool in the API. `required_permission` is the level, 1 to 4."""

    name: str
    description: str
    parameters: dict[str, Any]
    category: str
    required_permission: CommandPermission
    risk: Risk


class ExecuteTool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    arguments: dict[str, Any] = {}


class ToolAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the tool; `error` is the reason if it failed. `images` are shown with it."""

    success: bool
    data: Any
    error: str | None
    images: list[StepFile] | UnsetType = UNSET
    ref: Annotated[
        str | UnsetType,
        Meta(description="of a result that was cut: GET /tools/results/{ref} reads it all"),
    ] = UNSET
    outcome: Annotated[
        Literal["unknown"] | UnsetType,
        Meta(description="of a failed call that may have been carried out nevertheless"),
    ] = UNSET


class CallOutput(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the whole output of a call by hand; `offset` and `total` in characters."""

    output: str
    offset: int
    total: int
    has_more: bool


class ClearedCache(msgspec.Struct, frozen=True, kw_only=True):
    cleared: int


class Hand(NamedTuple):
    """What calls of tools by hand need, in the routes that make them."""

    executor: ToolExecutor
    workspace_of: WorkspaceOf
    rules_and_tools: RulesAndTools
    skills_of: SkillsOf
    call_outputs: CallOutputs

    async def call(self, caller: Caller, name: str, arguments: dict[str, Any]) -> ToolAnswer:
        """Calls a tool. Raises a LuxxError for a call that does not reach its tool."""
        ref = new_id()
        call = ToolCall(call_id=ref, name=name, arguments=msgspec.json.encode(arguments).decode())
        workspace = await self.workspace_of(caller)
        rules, tools = await self.rules_and_tools(caller, name)
        context = ToolContext(
            caller=tool_caller(caller, tools=tools, skills=await self.skills_of(caller)),
            permissions=CallPermissions(workspace=workspace, rules=rules),
            actions=CallActions(read_on=_READ_ON.format(ref=ref, minutes=OUTPUT_MINUTES)),
        )
        done = await self.executor.execute(call, context)
        _check_was_run(done)
        if done.full_output is not None:
            await self.call_outputs.store_output(caller.user_id, ref, done.full_output)
        is_unknown = not done.result.success and done.result.data == UNKNOWN_OUTCOME
        return ToolAnswer(
            success=done.result.success,
            data=done.result.data,
            error=done.result.error,
            images=list(done.files) or UNSET,
            ref=UNSET if done.full_output is None else ref,
            outcome="unknown" if is_unknown else UNSET,
        )


class ToolController(Controller):
    path = "/tools"
    tags = ("tools",)

    @get(summary="The tools the caller may run")
    async def list_tools(
        self,
        caller: InjectedCaller,
        tools_of: InjectedToolsOf,
        category: Annotated[str | None, QueryParameter(max_length=64)] = None,
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[ToolView]]:
        """In the order of registration, followed by the caller's compositions."""
        available = (await tools_of(caller, None)).available_to(caller.permission_level)
        tools = [tool for tool in available if category is None or tool.category == category]
        first = (page - 1) * page_size
        items = [_tool_view(tool) for tool in tools[first : first + page_size]]
        return success(Page(items=items, total=len(tools), page=page, page_size=page_size))

    @get("/{name:str}", summary="One tool")
    async def get_tool(
        self, caller: InjectedCaller, tools_of: InjectedToolsOf, name: TextId
    ) -> Success[ToolView]:
        """404 also for a tool above the caller's level."""
        found = (await tools_of(caller, (name,))).lookup(name)
        if found is None or found[0].required_permission > caller.permission_level:
            raise _not_found(name)
        return success(_tool_view(found[0]))

    @post("/{name:str}/execute", status_code=200, summary="Run a tool")
    async def execute_tool(
        self,
        caller: InjectedCaller,
        tool_executor: InjectedExecutor,
        workspace_of: InjectedWorkspaceOf,
        rules_and_tools: InjectedRulesAndTools,
        skills_of: InjectedSkillsOf,
        call_outputs: InjectedOutputs,
        name: TextId,
        data: JSONBody[ExecuteTool],
    ) -> Success[ToolAnswer]:
        """`data` is the tool's result, also if the tool failed. 400 for invalid arguments."""
        hand = Hand(tool_executor, workspace_of, rules_and_tools, skills_of, call_outputs)
        return success(await hand.call(caller, name, data.arguments))

    @get("/results/{ref:str}", summary="Read a result that was cut")
    async def read_output(
        self,
        caller: InjectedCaller,
        call_outputs: InjectedOutputs,
        ref: TextId,
        offset: Annotated[int, QueryParameter(ge=0, le=2**31 - 1)] = 0,
        limit: Annotated[int, QueryParameter(ge=1, le=100_000, description="characters")] = 50_000,
    ) -> Success[CallOutput]:
        """A part of the whole output of a call at `/tools/{name}/execute`, for its caller, for an hour."""
        part = await call_outputs.read_output(caller.user_id, ref, offset, limit)
        has_more = offset + len(part.output) < part.total
        return success(CallOutput(output=part.output, offset=offset, total=part.total, has_more=has_more))

    @delete("/cache", status_code=200, summary="Clear cached results")
    async def clear_cache(
        self, caller: InjectedCaller, clear_tool_cache: InjectedClearCache
    ) -> Success[ClearedCache]:
        """Only those of the caller, at every server of the database. `cleared` counts those of the one that
        answers."""
        return success(ClearedCache(cleared=clear_tool_cache(caller.user_id)))


def _check_was_run(done: Executed) -> None:
    """Raises a LuxxError for a call that did not reach its tool."""
    message = done.result.error or "the tool was not run"
    match done.status:
        case CallStatus.UNKNOWN:
            raise _not_found(done.name)
        case CallStatus.DENIED | CallStatus.REJECTED:
            raise NotAllowed(message)
        case CallStatus.INVALID:
            raise FieldErrors(done.problems).refusal(message=message, kind="arguments_invalid")
        case (
            CallStatus.DONE
            | CallStatus.CACHED
            | CallStatus.FAILED
            | CallStatus.TIMEOUT
            | CallStatus.CANCELLED
        ):
            return
        case _:
            assert_never(done.status)


def _not_found(name: str) -> NotFound:
    return NotFound(f"there is no tool named {name[:64]!r}; GET /tools lists yours", kind="tool_not_found")


def _tool_view(tool: ToolDefinition) -> ToolView:
    return ToolView(**{name: getattr(tool, name) for name in ToolView.__struct_fields__})


InjectedCompositions = NamedDependency[CompositionService]


class CompositionController(Controller):
    path = "/tools/compositions"
    tags = ("tools",)

    @get()
    async def list_compositions(
        self,
        caller: InjectedCaller,
        compositions: InjectedCompositions,
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[CompositionView]]:
        """Your compositions, newest first, also those that do not work at the moment."""
        found = await compositions.list_page(caller, page=page, page_size=page_size)
        return page_of(found, page, page_size)

    @post(status_code=201)
    async def create(
        self, caller: InjectedCaller, compositions: InjectedCompositions, data: JSONBody[Composition]
    ) -> Success[CompositionView]:
        """Create a composition. It becomes one of your tools."""
        return success(await compositions.create(caller, data), "created")

    @get("/{composition_id:str}")
    async def show(
        self, caller: InjectedCaller, compositions: InjectedCompositions, composition_id: TextId
    ) -> Success[CompositionView]:
        """One composition."""
        return success(await compositions.get(caller, composition_id))

    @put("/{composition_id:str}")
    async def replace(
        self,
        caller: InjectedCaller,
        compositions: InjectedCompositions,
        composition_id: TextId,
        data: JSONBody[Composition],
    ) -> Success[CompositionView]:
        """Replace a composition completely; its counters continue."""
        return success(await compositions.replace(caller, composition_id, data), "saved")

    @delete("/{composition_id:str}", status_code=200)
    async def delete(
        self, caller: InjectedCaller, compositions: InjectedCompositions, composition_id: TextId
    ) -> Success[None]:
        """Delete a composition; the tools that it calls stay."""
        await compositions.delete(caller, composition_id)
        return success(None, "deleted")
