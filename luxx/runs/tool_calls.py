"""The table of tool calls: what of them the log says, kept beside it so that calls can be listed.

A call's arguments and its result stay in the log; here is where in it they are.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, insert
from sqlalchemy.dialects import postgresql, sqlite

from luxx.clock import utc_now
from luxx.runs.models import TOOL_LENGTH, RunResultRow, ToolCallRow
from luxx.store.tables import table_of
from luxx.wire.event import LoggedEvent, ProcessStep
from luxx.wire.step import Step, StepStatus, StepType

_calls, _results = table_of(ToolCallRow), table_of(RunResultRow)
_keep_output = insert(_results)
_forget_output = delete(_results).where(
    _results.c.run_id == bindparam("b_run"), _results.c.call_id == bindparam("b_call")
)


def noted_calls(run_id: str, logged: Sequence[LoggedEvent]) -> list[dict[str, Any]]:
    """The rows that these events of one append make or change.

    A result is logged right after the last word on the call it answers.
    """
    calls: dict[int, dict[str, Any]] = {}
    answered: dict[str, Any] = {}
    for item in logged:
        if not isinstance(item.event, ProcessStep):
            continue
        step = item.event.step
        if step.type == StepType.TOOL_CALL:
            answered = calls.setdefault(step.index, _new(run_id, item.seq, step))
            _note(answered, step, utc_now())
        elif step.type == StepType.TOOL_RESULT and answered:
            answered["result_seq"] = item.seq
    return list(calls.values())


def keep_calls(connection: Connection, calls: list[dict[str, Any]]) -> None:
    """Writes what `noted_calls` made; what was known before and is not said again stays."""
    connection.execute(_keep[connection.dialect.name], calls)


def keep_output(connection: Connection, row: dict[str, str]) -> None:
    """Stores the whole of an output that was cut in the log, in place of one that the call may have."""
    connection.execute(_forget_output, {"b_run": row["run_id"], "b_call": row["call_id"]})
    connection.execute(_keep_output, row)


def _new(run_id: str, seq: int, step: Step) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "step_index": step.index,
        "tool": (step.name or "")[:TOOL_LENGTH].replace("\0", "\ufffd"),
        "seq": seq,
        "result_seq": None,
        "status": step.status.value,
        "started_at": None,
        "completed_at": None,
        "duration_ms": None,
    }


def _note(call: dict[str, Any], step: Step, now: datetime) -> None:
    call["status"] = step.status.value
    if step.status == StepStatus.RUNNING:
        call["started_at"] = now
    elif step.status != StepStatus.PENDING:
        call["completed_at"] = now
        call["duration_ms"] = step.duration_ms if isinstance(step.duration_ms, int) else None


def _upsert(dialect_insert: Any) -> Any:
    made = dialect_insert(_calls)
    changed = {
        name: func.coalesce(made.excluded[name], _calls.c[name])
        for name in ("result_seq", "started_at", "completed_at", "duration_ms")
    }
    return made.on_conflict_do_update(
        index_elements=["run_id", "step_index"], set_={"status": made.excluded.status, **changed}
    )


_keep = {"sqlite": _upsert(sqlite.insert), "postgresql": _upsert(postgresql.insert)}
"""Made once: every tool call is written with it, twice."""
