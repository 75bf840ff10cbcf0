"""Replay: reads the events of all runs of a conversation, its tool calls and full tool outputs.

`streams/watch.py` follows a run while it is in progress.
"""

import base64
import binascii
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, assert_never

import msgspec
from sqlalchemy import ColumnElement, Row, and_, func, or_, select
from sqlalchemy.orm import Session, aliased

from luxx.domain.accounts.caller import Caller
from luxx.domain.conversations.access import message_in, own_conversation
from luxx.domain.conversations.models import ConversationRow
from luxx.errors import InvalidInput, NotFound
from luxx.infra.store.engine import Store
from luxx.runs.log.events import StoredEvent, count_within_bytes
from luxx.runs.log.retention import check_log
from luxx.runs.models import (
    CALL_ID_LENGTH,
    RunEventRow,
    RunResultRow,
    RunRow,
    ToolCallRow,
    find_run,
    member_subjects,
    run_view,
    visible_to,
)
from luxx.runs.slots import find_waiting_subagent
from luxx.wire.event import Event, ProcessStep
from luxx.wire.message import with_files
from luxx.wire.run import ENDED, Run, RunStatus
from luxx.wire.tool import ToolResult
from luxx.wire.turn import StepStatus

MAX_CURSOR_LENGTH = 120
_is_top_level = RunRow.parent_run_id.is_(None)
"""Top-level runs of a conversation follow each other, so a cursor can continue after one. Subagents run
concurrently; their events are read by their own run."""

_event_decoder = msgspec.json.Decoder(Event)
_result_decoder = msgspec.json.Decoder(ToolResult)


class ReplayPosition(msgspec.Struct, frozen=True, array_like=True):
    """The position of a cursor: after entry `number` of a run (an event's seq, or a step's index)."""

    run_id: str
    number: int


class ExecutionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a conversation. `last_sequence` is the end of the log of `run`, its newest run;
    `current_message_id` is the message in progress. `is_waiting`: the run or a subagent waits for a person.
    """

    is_running: bool
    is_waiting: bool
    last_sequence: int
    current_message_id: str | None
    run: Run | None


class ToolExecutionStatus(StrEnum):
    """`interrupted`: the server stopped while the tool was running; it is unknown whether it took effect.
    `waiting`: the call must ask a person first.
    """

    RUNNING = "running"
    WAITING = "waiting"
    SUCCESS = "success"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"


class ToolExecution(msgspec.Struct, frozen=True, kw_only=True):
    """One tool call. `seq` is the event of the call in the run's log, `step_number` the index of its step.

    `tool_input` is the JSON text that the model wrote. `tool_output` is null until there is a result; for a
    shortened result, `GET /runs/{run_id}/results/{call_id}` has the full output.
    """

    run_id: str
    seq: int
    subject_id: str
    message_id: str | None
    call_id: str
    tool_name: str
    tool_input: str
    tool_output: ToolResult | None
    status: ToolExecutionStatus
    step_number: int
    started_at: datetime | None
    completed_at: datetime | None
    duration_ms: int | None


class WholeResult(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a tool call's output; `offset` and `total` in characters. `is_cut`: the model got less."""

    call_id: str
    output: str
    offset: int
    total: int
    has_more: bool
    is_cut: bool


@dataclass(frozen=True, slots=True)
class ReplayService:
    """What a caller may read of runs that have happened."""

    store: Store

    async def list_events(
        self, caller: Caller, conversation_id: str, *, cursor: str | None, limit: int
    ) -> tuple[list[StoredEvent], str | None, bool]:
        """Up to `limit` events of the conversation's top-level runs, oldest first; fewer if they are large.

        Returns also the cursor after them, and whether there are more.
        """
        position = _read_cursor(cursor)

        def work(session: Session) -> tuple[list[StoredEvent], str | None, bool]:
            own_conversation(session, caller, conversation_id)
            event = RunEventRow
            query = (
                select(event.run_id, event.seq, event.type, event.data)
                .join(RunRow, RunRow.id == event.run_id)
                .where(
                    visible_to(caller),
                    RunRow.subject_id == conversation_id,
                    _is_top_level,
                    *_after(position, event.seq),
                )
                .order_by(RunRow.id, event.seq)
            )
            sizes = session.scalars(query.with_only_columns(func.length(event.data)).limit(limit + 1)).all()
            page = session.execute(query.limit(count_within_bytes(sizes[:limit]))).all()
            after = ReplayPosition(page[-1].run_id, page[-1].seq) if page else position
            events = [StoredEvent(row.seq, row.type, with_files(bytes(row.data))) for row in page]
            return events, _write_cursor(after), len(sizes) > len(page)

        return await self.store.read(work)

    async def read_status(self, caller: Caller, conversation_id: str) -> ExecutionStatus:
        """The state of the conversation."""

        def work(session: Session) -> ExecutionStatus:
            active = own_conversation(session, caller, conversation_id).run_id
            newest = (
                select(RunRow)
                .where(RunRow.subject_id == conversation_id, visible_to(caller), _is_top_level)
                .order_by(RunRow.id.desc())
                .limit(1)
            )
            row = session.scalar(newest) if active is None else session.get(RunRow, active)
            run = None if row is None else run_view(row)
            is_running = run is not None and run.status not in ENDED
            return ExecutionStatus(
                is_running=is_running,
                is_waiting=run is not None and _is_waiting(session, run),
                last_sequence=0 if run is None else run.last_seq,
                current_message_id=run.message_id if run is not None and is_running else None,
                run=run,
            )

        return await self.store.read(work)

    async def list_executions(
        self, caller: Caller, conversation_id: str, *, message_id: str | None, cursor: str | None, limit: int
    ) -> tuple[list[ToolExecution], str | None, bool]:
        """The calls of the conversation's top-level runs, oldest first; with `message_id` only of its runs.

        Raises NotFound for a message of another conversation.
        """
        position = _read_cursor(cursor)

        def work(session: Session) -> tuple[list[ToolExecution], str | None, bool]:
            conversation = own_conversation(session, caller, conversation_id)
            query = _calls_query().where(
                visible_to(caller),
                RunRow.subject_id == conversation_id,
                _is_top_level,
                *_after(position, ToolCallRow.seq),
            )
            if message_id is not None:
                query = query.where(_condition_of_message(session, caller, conversation, message_id))
            rows = session.execute(query.order_by(RunRow.id, ToolCallRow.seq).limit(limit + 1)).all()
            page = rows[:limit]
            after = ReplayPosition(page[-1].run_id, page[-1].seq) if page else position
            return [_execution_of(row) for row in page], _write_cursor(after), len(rows) > limit

        return await self.store.read(work)

    async def list_calls(
        self, caller: Caller, *, tool: str | None, run_id: str | None, page: int, page_size: int
    ) -> tuple[list[ToolExecution], int]:
        """The tool calls of all runs that the caller may see, newest first, and how many match."""

        def work(session: Session) -> tuple[list[ToolExecution], int]:
            conditions: list[ColumnElement[bool]] = []
            if tool is not None:
                conditions.append(ToolCallRow.tool == tool)
            if run_id is not None:
                conditions.append(RunRow.id == run_id)
            conditions.append(visible_to(caller, member_subjects(session, caller)))
            counted = select(func.count()).select_from(ToolCallRow).join(RunRow)
            total = session.scalar(counted.where(*conditions)) or 0
            newest_first = (RunRow.id.desc(), ToolCallRow.seq.desc())
            query = _calls_query().where(*conditions).order_by(*newest_first)
            rows = session.execute(query.limit(page_size).offset((page - 1) * page_size))
            return [_execution_of(row) for row in rows], total

        return await self.store.read(work)

    async def read_result(
        self, caller: Caller, run_id: str, call_id: str, *, offset: int, limit: int
    ) -> WholeResult:
        """A part of a tool call's output. Raises NotFound if the call has no result."""

        def work(session: Session) -> WholeResult:
            run = find_run(session, caller, run_id)
            is_wanted = (RunResultRow.run_id == run_id, RunResultRow.call_id == call_id[:CALL_ID_LENGTH])
            piece = func.substr(RunResultRow.output, offset + 1, limit)
            # Only an output that was cut for the model has a row; any other is whole in the log.
            stored_output = session.execute(
                select(piece, func.length(RunResultRow.output)).where(*is_wanted)
            ).one_or_none()
            if stored_output is not None:
                output, total = str(stored_output[0]), int(stored_output[1])
            else:
                check_log(session.connection(), run)  # Raises Gone if the log was deleted.
                whole = _logged_output(session, run_id, call_id)
                output, total = whole[offset : offset + limit], len(whole)
            return WholeResult(
                call_id=call_id,
                output=output,
                offset=offset,
                total=total,
                has_more=offset + len(output) < total,
                is_cut=stored_output is not None,
            )

        return await self.store.read(work)


def _is_waiting(session: Session, run: Run) -> bool:
    if run.status == RunStatus.RUNNING:
        return find_waiting_subagent(session.connection(), run.id) is not None
    return run.status == RunStatus.WAITING


def _read_cursor(cursor: str | None) -> ReplayPosition | None:
    """The position of a cursor. Raises InvalidInput if it is not valid."""
    if cursor is None:
        return None
    try:
        position = msgspec.msgpack.decode(
            base64.urlsafe_b64decode(cursor.encode("ascii")), type=ReplayPosition
        )
    except (ValueError, binascii.Error, msgspec.DecodeError) as error:
        raise _invalid_cursor() from error
    is_in_bounds = len(position.run_id) <= 36 and "\0" not in position.run_id and 0 <= position.number < 2**31
    if not is_in_bounds or _write_cursor(position) != cursor:
        raise _invalid_cursor()
    return position


def _write_cursor(position: ReplayPosition | None) -> str | None:
    return None if position is None else base64.urlsafe_b64encode(msgspec.msgpack.encode(position)).decode()


def _invalid_cursor() -> InvalidInput:
    return InvalidInput("this is not a cursor from an earlier response", field="cursor")


def _after(position: ReplayPosition | None, number: Any) -> list[ColumnElement[bool]]:
    if position is None:
        return []
    return [RunRow.id >= position.run_id, or_(RunRow.id > position.run_id, number > position.number)]


def _condition_of_message(
    session: Session, caller: Caller, conversation: ConversationRow, message_id: str
) -> ColumnElement[bool]:
    """The condition on runs: the run that writes the message or, for a user's message, all that answer it."""
    writes = and_(RunRow.message_id == message_id, RunRow.subject_id == conversation.id)
    run_id = session.scalar(select(RunRow.id).where(visible_to(caller), writes))
    if run_id is not None:
        return RunRow.id == run_id
    message = message_in(session, conversation, message_id)
    return or_(RunRow.question_id == message_id, RunRow.id == (message.run_id or ""))


_CALL_COLUMNS = ("run_id", "seq", "started_at", "completed_at", "duration_ms")
_RUN_COLUMNS = ("subject_id",)
"""The columns of a call and of its run that a ToolExecution has unchanged."""


def _calls_query() -> Any:
    call_event, result_event = aliased(RunEventRow), aliased(RunEventRow)
    return (
        select(
            *(getattr(ToolCallRow, name) for name in _CALL_COLUMNS),
            ToolCallRow.step_index,
            ToolCallRow.status,
            *(getattr(RunRow, name) for name in _RUN_COLUMNS),
            RunRow.message_id,
            RunRow.status.label("run_status"),
            call_event.data.label("call_event"),
            result_event.data.label("result_event"),
        )
        .join(RunRow, RunRow.id == ToolCallRow.run_id)
        .join(call_event, and_(call_event.run_id == ToolCallRow.run_id, call_event.seq == ToolCallRow.seq))
        .outerjoin(
            result_event,
            and_(result_event.run_id == ToolCallRow.run_id, result_event.seq == ToolCallRow.result_seq),
        )
    )


def _execution_of(row: Row[Any]) -> ToolExecution:
    call_event = _event_decoder.decode(row.call_event)
    assert isinstance(call_event, ProcessStep)
    return ToolExecution(
        **{name: getattr(row, name) for name in (*_CALL_COLUMNS, *_RUN_COLUMNS)},
        # In a room each turn writes a message of its own.
        message_id=call_event.msg_id if isinstance(call_event.msg_id, str) else row.message_id,
        call_id=call_event.step.id_ref or "",
        tool_name=call_event.step.name or "",
        tool_input=call_event.step.arguments or "",
        tool_output=None if row.result_event is None else _output_of(row.result_event),
        status=_status_of(StepStatus(row.status), RunStatus(row.run_status)),
        step_number=row.step_index,
    )


def _output_of(data: bytes) -> ToolResult:
    event = _event_decoder.decode(data)
    assert isinstance(event, ProcessStep)
    return _result_decoder.decode(event.step.content)


def _status_of(status: StepStatus, run: RunStatus) -> ToolExecutionStatus:
    match status:
        case StepStatus.PENDING if run == RunStatus.WAITING:
            return ToolExecutionStatus.WAITING
        case StepStatus.PENDING | StepStatus.RUNNING:
            # A run that `fail_run` ended leaves calls open.
            return ToolExecutionStatus.INTERRUPTED if run in ENDED else ToolExecutionStatus.RUNNING
        case StepStatus.DONE:
            return ToolExecutionStatus.SUCCESS
        case StepStatus.ERROR:
            return ToolExecutionStatus.FAILED
        case StepStatus.CANCELLED:
            return ToolExecutionStatus.CANCELLED
        case StepStatus.INTERRUPTED:
            return ToolExecutionStatus.INTERRUPTED
        case _:
            assert_never(status)


def _logged_output(session: Session, run_id: str, call_id: str) -> str:
    """The output of a call from the log: text unchanged, other data as JSON. Raises NotFound."""
    result_events = session.scalars(
        select(RunEventRow.data)
        .join(
            ToolCallRow,
            and_(ToolCallRow.run_id == RunEventRow.run_id, ToolCallRow.result_seq == RunEventRow.seq),
        )
        .where(ToolCallRow.run_id == run_id)
        .order_by(ToolCallRow.seq.desc())
    )
    for data in result_events:
        event = _event_decoder.decode(data)
        if isinstance(event, ProcessStep) and event.step.id_ref == call_id:
            result = _result_decoder.decode(event.step.content)
            value = result.data if result.data is not None else result.error
            return value if isinstance(value, str) else msgspec.json.encode(value).decode()
    raise NotFound("this run has no result of this id", kind="result_not_found")
