"""What happened in a conversation and what its tools did, as JSON: for looking back."""

from typing import Annotated, cast

import msgspec
from litestar import Controller, get
from litestar.di import NamedDependency
from litestar.params import QueryParameter

from luxx.api.envelope import Page, Success, success
from luxx.api.parameters import GivenCaller, PageNumber, PageSize, TextId
from luxx.api.runs import numbered
from luxx.runs.replay import CURSOR_LENGTH, ExecutionStatus, ReplayService, ToolExecution, WholeResult
from luxx.wire.event import Event

GivenReplay = NamedDependency[ReplayService]
Cursor = Annotated[
    str | None,
    QueryParameter(
        min_length=1, max_length=CURSOR_LENGTH, description="the `cursor` of the answer before this one"
    ),
]
Many = Annotated[int, QueryParameter(ge=1, le=1000)]
OptionalId = Annotated[str | None, QueryParameter(min_length=1, max_length=64)]


class ReplayedEvents(msgspec.Struct, frozen=True, kw_only=True):
    """Logged events of all runs, oldest first, each with its `run_id` and `seq`.

    `cursor` goes on after them, now or when there is more; null where there is nothing yet.
    """

    events: list[Event]
    has_more: bool
    cursor: str | None


class ToolExecutions(msgspec.Struct, frozen=True, kw_only=True):
    """Tool calls, oldest first; `cursor` goes on after them."""

    executions: list[ToolExecution]
    has_more: bool
    cursor: str | None


class ReplayController(Controller):
    path = "/"
    tags = ("replay",)

    @get("/conversations/{conversation_id:str}/events")
    async def conversation_events(
        self,
        caller: GivenCaller,
        replay: GivenReplay,
        conversation_id: TextId,
        cursor: Cursor = None,
        limit: Many = 100,
    ) -> Success[ReplayedEvents]:
        """Everything that was logged in a conversation, over all its runs, oldest first."""
        events, after, has_more = await replay.events(caller, conversation_id, cursor=cursor, limit=limit)
        # They are sent as they stand in the log; the type is what they are.
        shown = cast("list[Event]", [numbered(event) for event in events])
        return success(ReplayedEvents(events=shown, has_more=has_more, cursor=after))

    @get("/conversations/{conversation_id:str}/execution-status")
    async def execution_status(
        self, caller: GivenCaller, replay: GivenReplay, conversation_id: TextId
    ) -> Success[ExecutionStatus]:
        """Whether something runs in a conversation, and how far its log goes."""
        return success(await replay.status(caller, conversation_id))

    @get("/conversations/{conversation_id:str}/tool-executions")
    async def tool_executions(
        self,
        caller: GivenCaller,
        replay: GivenReplay,
        conversation_id: TextId,
        message_id: OptionalId = None,
        cursor: Cursor = None,
        limit: Many = 100,
    ) -> Success[ToolExecutions]:
        """The tool calls of a conversation, oldest first; with `message_id` those made for it."""
        found, after, has_more = await replay.executions(
            caller, conversation_id, message_id=message_id, cursor=cursor, limit=limit
        )
        return success(ToolExecutions(executions=found, has_more=has_more, cursor=after))

    @get("/tool-calls")
    async def tool_calls(
        self,
        caller: GivenCaller,
        replay: GivenReplay,
        tool: Annotated[str | None, QueryParameter(max_length=200, description="the tool's name")] = None,
        run_id: OptionalId = None,
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[ToolExecution]]:
        """All tool calls of your runs, newest first."""
        items, total = await replay.calls(caller, tool=tool, run_id=run_id, page=page, page_size=page_size)
        return success(Page(items=items, total=total, page=page, page_size=page_size))

    @get("/runs/{run_id:str}/results/{call_id:str}")
    async def result(
        self,
        caller: GivenCaller,
        replay: GivenReplay,
        run_id: TextId,
        call_id: TextId,
        offset: Annotated[int, QueryParameter(ge=0, le=2**31 - 1)] = 0,
        limit: Annotated[int, QueryParameter(ge=1, le=100_000, description="characters")] = 50_000,
    ) -> Success[WholeResult]:
        """The whole output of a tool call, piece by piece, also where the model got less."""
        return success(await replay.result(caller, run_id, call_id, offset=offset, limit=limit))
