"""`/runs`, their questions and their event logs: list, follow, cancel, answer, replay."""

from collections.abc import Iterable
from typing import Annotated, Any, cast

import msgspec
from litestar import Controller, Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromQuery, JSONBody, QueryParameter
from msgspec import Meta

from luxx.api.http.authentication import CHAT
from luxx.api.http.envelope import Page, Success, page_of, success
from luxx.api.http.event_streams import Streams, wants_json
from luxx.api.http.request_input import (
    BeforeId,
    InjectedCaller,
    LimitParameter,
    PageNumber,
    PageSize,
    Seq,
    TextId,
)
from luxx.domain.accounts.caller import Caller
from luxx.errors import InvalidInput
from luxx.runs.admission import Admission
from luxx.runs.log.events import StoredEvent
from luxx.runs.log.replay import MAX_CURSOR_LENGTH, ExecutionStatus, ReplayService, ToolExecution, WholeResult
from luxx.runs.models import RunFilter
from luxx.runs.questions import GivenAnswer, QuestionFilter, QuestionService
from luxx.runs.service import RunService
from luxx.wire.event import Event
from luxx.wire.run import ENDED, QuestionStatus, QuestionView, Run, RunKind, RunStatus, TitledRun

InjectedRuns = NamedDependency[RunService]

LastEventId = Annotated[int | None, QueryParameter(ge=0, le=2**31 - 1)]
LogPageSize = Annotated[int, QueryParameter(ge=1, le=1000)]


class LoggedEvents(msgspec.Struct, frozen=True, kw_only=True):
    """Logged events, oldest first, each with its `seq`."""

    events: list[Event]
    has_more: bool


class RunController(Controller):
    path = "/runs"
    tags = ("runs",)
    opt = CHAT

    @get()
    async def list_runs(
        self,
        caller: InjectedCaller,
        runs: InjectedRuns,
        kind: FromQuery[RunKind | None] = None,
        subject_id: Annotated[str | None, QueryParameter(max_length=64)] = None,
        status: FromQuery[RunStatus | None] = None,
        page: PageNumber = 1,
        page_size: PageSize = 20,
        before: BeforeId = None,
        limit: LimitParameter = None,
    ) -> Success[Page[TitledRun]]:
        """Your runs and those of the rooms that you are a member of, newest first."""
        run_filter = RunFilter(kind=kind, subject_id=subject_id, status=status, before=before)
        size = limit or page_size
        found = await runs.list_page(caller, run_filter, page=page, page_size=size)
        return page_of(found, page, size)

    @get("/{run_id:str}")
    async def show(self, caller: InjectedCaller, runs: InjectedRuns, run_id: TextId) -> Success[TitledRun]:
        """The current state of one run."""
        return success(await runs.get_titled(caller, run_id))

    @get("/{run_id:str}/events")
    async def events(
        self,
        request: Request[Any, Any, Any],
        caller: InjectedCaller,
        runs: InjectedRuns,
        streams: NamedDependency[Streams],
        run_id: TextId,
        last_event_id: LastEventId = None,
        from_sequence: Seq = 0,
        limit: LogPageSize = 100,
        accumulated: FromQuery[bool] = False,
    ) -> Response[Any]:
        """Stream a run from the event after `Last-Event-ID`; with `Accept: application/json` read its log."""
        place = LogPlace(last_event_id, from_sequence, limit)
        return await follow_run(request, caller, runs, streams, run_id, place, accumulated=accumulated)

    @post("/{run_id:str}/cancel", status_code=200)
    async def cancel(self, caller: InjectedCaller, runs: InjectedRuns, run_id: TextId) -> Success[Run]:
        """End a run for good. Its output so far is kept."""
        run = await runs.cancel(caller, run_id)
        return success(run, "cancelled" if run.status in ENDED else "cancelling")

    @post("/{run_id:str}/resume", status_code=200)
    async def resume(
        self,
        caller: InjectedCaller,
        admission: NamedDependency[Admission],
        run_id: TextId,
    ) -> Success[Run]:
        """Continue a paused run of a room or task."""
        return success(await admission.resume(caller, run_id), "resumed")


class LogPlace(msgspec.Struct, frozen=True):
    """Where reading a log begins: `last_event_id` for a stream, `from_sequence` and `limit` for JSON."""

    last_event_id: int | None
    from_sequence: int
    limit: int


async def follow_run(
    request: Request[Any, Any, Any],
    caller: Caller,
    runs: RunService,
    streams: Streams,
    run_id: str,
    place: LogPlace,
    *,
    accumulated: bool,
) -> Response[Any]:
    """A run's stream or, for a client that accepts JSON, a page of its log."""
    header_seq = _last_event_id(request)
    if wants_json(request):
        after = max(0, place.from_sequence - 1)
        try:
            events, has_more = await runs.events(caller, run_id, after=after, limit=place.limit)
        except InvalidInput as error:
            raise error.about("from_sequence") from error
        return Response(success(LoggedEvents(events=_with_seq(events), has_more=has_more)))
    is_header = place.last_event_id is None
    after = header_seq if place.last_event_id is None else place.last_event_id
    try:
        return await streams.follow(
            caller, lambda: runs.watch(caller, run_id, after=after, accumulated=accumulated)
        )
    except InvalidInput as error:
        raise error.about("Last-Event-ID" if is_header else "last_event_id") from error


async def follow_resumed(
    request: Request[Any, Any, Any],
    caller: Caller,
    runs: RunService,
    streams: Streams,
    run: Run,
    *,
    accumulated: bool,
) -> Response[Any]:
    """The stream of a resumed run from its pause on; 202 and the run for a client that accepts JSON."""
    if wants_json(request):
        return Response(success(run, "resumed"), status_code=202, media_type="application/json")
    return await streams.follow(
        caller, lambda: runs.watch(caller, run.id, after=run.last_seq, accumulated=accumulated)
    )


def _last_event_id(request: Request[Any, Any, Any]) -> int:
    header = request.headers.get("last-event-id", "0").strip(" \t") or "0"
    if not header.isascii() or not header.isdigit() or len(header) > 9:
        problem = "Last-Event-ID must be the number of an event of this run"
        raise InvalidInput(problem, kind="last_event_id", field="Last-Event-ID")
    return int(header)


def _with_seq(events: Iterable[StoredEvent]) -> list[Event]:
    """The JSON of the log with the `seq` of each event; the cast only states its type."""
    return cast("list[Event]", [msgspec.Raw(b'{"seq":%d,%s' % (one.seq, one.data[1:])) for one in events])


InjectedQuestions = NamedDependency[QuestionService]
AnswerText = Annotated[str, Meta(min_length=1, max_length=10_000)]


class AnswerBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`answer`: an option's label or your own text, or a list of them if `multiple`; for a permission `once`,
    `always` (also adds a rule of yours, so only the run's owner may) or `reject`. `note`: a text for the
    model. `arguments`: replaces the arguments of the tool call that needs permission; with `accept` they are
    the values that an MCP server asks for.
    """

    answer: AnswerText | Annotated[list[AnswerText], Meta(min_length=1, max_length=50)]
    note: Annotated[str, Meta(max_length=10_000)] | None = None
    arguments: dict[str, Any] | None = None


class QuestionController(Controller):
    path = "/"
    tags = ("questions",)
    opt = CHAT

    @get("/questions")
    async def list_questions(
        self,
        caller: InjectedCaller,
        questions: InjectedQuestions,
        status: FromQuery[QuestionStatus | None] = None,
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[QuestionView]]:
        """The questions of your runs and of the rooms that you are a member of, newest first."""
        question_filter = QuestionFilter(status=status)
        found = await questions.list_page(caller, question_filter, page=page, page_size=page_size)
        return page_of(found, page, page_size)

    @get("/runs/{run_id:str}/questions")
    async def questions_of_run(
        self,
        caller: InjectedCaller,
        questions: InjectedQuestions,
        run_id: TextId,
        status: FromQuery[QuestionStatus | None] = None,
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[QuestionView]]:
        """The questions of one run, open and answered, newest first."""
        question_filter = QuestionFilter(run_id=run_id, status=status)
        found = await questions.list_page(caller, question_filter, page=page, page_size=page_size)
        return page_of(found, page, page_size)

    @post("/runs/{run_id:str}/questions/{question_id:str}/answer", status_code=200)
    async def answer_question(
        self,
        caller: InjectedCaller,
        questions: InjectedQuestions,
        run_id: TextId,
        question_id: TextId,
        data: JSONBody[AnswerBody],
    ) -> Success[QuestionView]:
        """Answer a question. The run continues after the last open question; 409 for a second answer.

        In a room, members with the right to steer may answer too.
        """
        given_answer = GivenAnswer(answer=data.answer, note=data.note, arguments=data.arguments)
        return success(await questions.answer(caller, run_id, question_id, given_answer), "answered")


InjectedReplay = NamedDependency[ReplayService]
Cursor = Annotated[
    str | None,
    QueryParameter(
        min_length=1, max_length=MAX_CURSOR_LENGTH, description="the `cursor` of the previous response"
    ),
]
OptionalId = Annotated[str | None, QueryParameter(min_length=1, max_length=64)]


class ReplayedEvents(LoggedEvents, frozen=True, kw_only=True):
    """Logged events of all runs, oldest first, each with its `run_id` and `seq`.

    `cursor` continues after them, now or later; null if there are no events yet.
    """

    cursor: str | None


class ToolExecutions(msgspec.Struct, frozen=True, kw_only=True):
    """Tool calls, oldest first; `cursor` continues after them."""

    executions: list[ToolExecution]
    has_more: bool
    cursor: str | None


class ReplayController(Controller):
    path = "/"
    tags = ("replay",)

    @get("/conversations/{conversation_id:str}/events")
    async def conversation_events(
        self,
        caller: InjectedCaller,
        replay: InjectedReplay,
        conversation_id: TextId,
        cursor: Cursor = None,
        limit: LogPageSize = 100,
    ) -> Success[ReplayedEvents]:
        """All logged events of a conversation, over all its runs, oldest first."""
        events, after, has_more = await replay.list_events(
            caller, conversation_id, cursor=cursor, limit=limit
        )
        return success(ReplayedEvents(events=_with_seq(events), has_more=has_more, cursor=after))

    @get("/conversations/{conversation_id:str}/execution-status")
    async def execution_status(
        self, caller: InjectedCaller, replay: InjectedReplay, conversation_id: TextId
    ) -> Success[ExecutionStatus]:
        """The current run of a conversation, if any, and the end of its log."""
        return success(await replay.read_status(caller, conversation_id))

    @get("/conversations/{conversation_id:str}/tool-executions")
    async def tool_executions(
        self,
        caller: InjectedCaller,
        replay: InjectedReplay,
        conversation_id: TextId,
        message_id: OptionalId = None,
        cursor: Cursor = None,
        limit: LogPageSize = 100,
    ) -> Success[ToolExecutions]:
        """The tool calls of a conversation, oldest first; with `message_id` only those of that message."""
        executions_page, after, has_more = await replay.list_executions(
            caller, conversation_id, message_id=message_id, cursor=cursor, limit=limit
        )
        return success(ToolExecutions(executions=executions_page, has_more=has_more, cursor=after))

    @get("/tool-calls")
    async def tool_calls(
        self,
        caller: InjectedCaller,
        replay: InjectedReplay,
        tool: Annotated[str | None, QueryParameter(max_length=200, description="the tool's name")] = None,
        run_id: OptionalId = None,
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[ToolExecution]]:
        """The tool calls of your runs and of the rooms that you are a member of, newest first."""
        found = await replay.list_calls(caller, tool=tool, run_id=run_id, page=page, page_size=page_size)
        return page_of(found, page, page_size)

    @get("/runs/{run_id:str}/results/{call_id:str}")
    async def result(
        self,
        caller: InjectedCaller,
        replay: InjectedReplay,
        run_id: TextId,
        call_id: TextId,
        offset: Annotated[int, QueryParameter(ge=0, le=2**31 - 1)] = 0,
        limit: Annotated[int, QueryParameter(ge=1, le=100_000, description="characters")] = 50_000,
    ) -> Success[WholeResult]:
        """The whole output of a tool call in parts, also if the model got a shortened one."""
        return success(await replay.read_result(caller, run_id, call_id, offset=offset, limit=limit))
