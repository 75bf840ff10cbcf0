"""Rows of subagents' runs: made in the transaction that says so in the log of the run that delegates.

So there is one for each call, whoever drives the run that made it, and after whatever crash. It drives and is
driven as any run, has no message and needs no place; what it may do and spend is its parent's.
"""

from typing import Any

import msgspec
from sqlalchemy import Connection, bindparam, func, insert, select
from sqlalchemy.sql.dml import ReturningUpdate

from luxx.clock import utc_now
from luxx.runs.brief import ChatBrief, ChatRequest
from luxx.runs.events import read_log
from luxx.runs.models import RunRow
from luxx.runs.questions_rows import wake
from luxx.runs.state import ChatState, fold
from luxx.store.tables import table_of
from luxx.wire.delegation import SubagentEnd
from luxx.wire.run import ENDED, Run, RunKind, RunPhase, RunStatus
from luxx.wire.step import StepStatus, StepType

_runs = table_of(RunRow)
_insert = insert(_runs)
_ended = [status.value for status in ENDED]
_look = select(_runs.c.status, _runs.c.stop_reason, _runs.c.error).where(_runs.c.id == bindparam("run_id"))
_cancel = _runs.update().where(_runs.c.status.not_in(_ended)).values(is_cancelled=True).returning(_runs.c.id)
_cancel_one = _cancel.where(_runs.c.id == bindparam("run_id"))
_cancel_below = _cancel.where(_runs.c.parent_run_id == bindparam("run_id"))
_first_below = select(_runs.c.id).where(_runs.c.parent_run_id == bindparam("root")).cte(recursive=True)
_all_below = _first_below.union_all(
    select(_runs.c.id).join(_first_below, _runs.c.parent_run_id == _first_below.c.id)
)
_count_below = select(func.count()).select_from(_all_below)
_encode = msgspec.json.Encoder().encode


def new_run(run_id: str, brief: ChatBrief) -> Run:
    """The run of a subagent of the brief's run, begun at once."""
    now = utc_now()
    return Run(
        id=run_id,
        kind=RunKind.CHAT,
        subject_id=brief.conversation_id,
        status=RunStatus.RUNNING,
        phase=RunPhase.THINKING,
        parent_run_id=brief.run_id,
        created_at=now,
        started_at=now,
    )


def insert_run(
    connection: Connection, run: Run, brief: ChatBrief, request: ChatRequest, process: str
) -> None:
    """Adds it, for `process` to drive."""
    row: dict[str, Any] = {
        "id": run.id, "user_id": brief.user_id, "tenant_id": brief.tenant_id, "kind": run.kind.value,
        "subject_id": run.subject_id, "parent_run_id": run.parent_run_id, "question_id": request.parent_id,
        "status": run.status.value, "phase": RunPhase.THINKING.value, "request": _encode(request).decode(),
        "owner": process, "fence": 1, "created_at": run.created_at, "started_at": run.started_at,
    }  # fmt: skip
    connection.execute(_insert, row)


def status_of(connection: Connection, run_id: str) -> RunStatus | None:
    """Where the run stands; None where it is gone."""
    found = connection.execute(_look, {"run_id": run_id}).one_or_none()
    return None if found is None else RunStatus(found.status)


def end_of(connection: Connection, run_id: str) -> SubagentEnd | None:
    """How a run that has ended did, by its row and its log; None where it is gone."""
    found = connection.execute(_look, {"run_id": run_id}).one_or_none()
    if found is None:
        return None
    state = fold(read_log(connection, run_id))
    return SubagentEnd(
        run_id=run_id,
        status=found.status,
        stop_reason=found.stop_reason,
        answer=_answer(state),
        error=found.error,
        tool_calls=calls_in(state),
        is_tainted=state.tainted_by is not None,
    )


def count_below(connection: Connection, root_run_id: str) -> int:
    """How many subagents there were and are below the run, however deep."""
    return int(connection.scalar(_count_below, {"root": root_run_id}) or 0)


def cancel_subagent(connection: Connection, run_id: str) -> None:
    """Marks one as ended by a person, if it has not ended."""
    _mark(connection, _cancel_one, run_id)


def cancel_subagents(connection: Connection, parent_run_id: str) -> list[str]:
    """Marks those of the run's subagents as ended by a person that have not ended; their ids."""
    return _mark(connection, _cancel_below, parent_run_id)


def calls_in(state: ChatState) -> int:
    """How many calls of tools have been answered, with those of compositions, and of subagents that ended."""
    results = [step for step in state.steps if step.type == StepType.TOOL_RESULT]
    own = sum(step.calls if isinstance(step.calls, int) else 1 for step in results)
    return own + sum(one.tool_calls for one in state.subagents)


def _mark(connection: Connection, cancelling: ReturningUpdate[str], run_id: str) -> list[str]:
    found = list(connection.execute(cancelling, {"run_id": run_id}).scalars())
    if found:
        # One that waits for a person is driven once more, to its end.
        wake(connection, RunRow.id.in_(found))
    return found


def _answer(state: ChatState) -> str:
    """What it said last: the text after its last tool call, or where there is none, all of it."""
    texts = [
        (step.index, step.content)
        for step in state.steps
        if step.type == StepType.TEXT and step.status != StepStatus.INTERRUPTED
    ]
    last = max((step.index for step in state.steps if step.type == StepType.TOOL_RESULT), default=-1)
    said = "".join(text for index, text in texts if index > last).strip()
    return said or "".join(text for _, text in texts).strip()
