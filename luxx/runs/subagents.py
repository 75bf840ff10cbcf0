"""Rows of subagents' runs: made in the transaction that says so in the log of the run that delegates.

So there is one for each call, whoever drives the run that made it, and after whatever crash. It drives and is
driven as any run, has no message and needs no place; what it may do and spend is its parent's.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, bindparam, func, insert, select
from sqlalchemy.sql.dml import ReturningUpdate

from luxx.infra.clock import utc_now
from luxx.infra.store.tables import table_of
from luxx.runs.log.events import read_log
from luxx.runs.models import RunRow, ToolCallRow
from luxx.runs.question_rows import wake
from luxx.runs.turn.spec import ChatRequest, RunSpec
from luxx.runs.turn.state import ChatState, fold
from luxx.tools.builtin.run import DELEGATE_TOOL
from luxx.wire.delegation import SubagentEnd
from luxx.wire.run import ENDED, Run, RunKind, RunPhase, RunStatus
from luxx.wire.step import StepStatus, StepType

_runs = table_of(RunRow)
_insert = insert(_runs)
_ended = [status.value for status in ENDED]
_select_end = select(_runs.c.status, _runs.c.stop_reason, _runs.c.error).where(
    _runs.c.id == bindparam("run_id")
)
_cancel = _runs.update().where(_runs.c.status.not_in(_ended)).values(is_cancelled=True).returning(_runs.c.id)
_cancel_one = _cancel.where(_runs.c.id == bindparam("run_id"))
_cancel_below = _cancel.where(_runs.c.parent_run_id == bindparam("run_id"))
_first_below = select(_runs.c.id).where(_runs.c.parent_run_id == bindparam("root")).cte(recursive=True)
_all_below = _first_below.union_all(
    select(_runs.c.id).join(_first_below, _runs.c.parent_run_id == _first_below.c.id)
)
_count_below = select(func.count()).select_from(_all_below)
_encode = msgspec.json.Encoder().encode


def new_run(run_id: str, spec: RunSpec) -> Run:
    """The run of a subagent of the brief's run, begun at once."""
    now = utc_now()
    return Run(
        id=run_id,
        kind=RunKind.CHAT,
        subject_id=spec.conversation_id,
        status=RunStatus.RUNNING,
        phase=RunPhase.THINKING,
        parent_run_id=spec.run_id,
        created_at=now,
        started_at=now,
    )


def insert_run(connection: Connection, run: Run, spec: RunSpec, request: ChatRequest, process: str) -> None:
    """Adds it, for `process` to drive."""
    row: dict[str, Any] = {
        "id": run.id, "user_id": spec.user_id, "tenant_id": spec.tenant_id, "kind": run.kind.value,
        "subject_id": run.subject_id, "parent_run_id": run.parent_run_id, "question_id": request.parent_id,
        "status": run.status.value, "phase": RunPhase.THINKING.value, "request": _encode(request).decode(),
        "owner": process, "fence": 1, "created_at": run.created_at, "started_at": run.started_at,
    }  # fmt: skip
    connection.execute(_insert, row)


def status_of(connection: Connection, run_id: str) -> RunStatus | None:
    """Where the run stands; None where it is gone."""
    found = connection.execute(_select_end, {"run_id": run_id}).one_or_none()
    return None if found is None else RunStatus(found.status)


def read_end(connection: Connection, run_id: str) -> SubagentEnd | None:
    """How a run that has ended did, by its row and its log; None where it is gone."""
    found = connection.execute(_select_end, {"run_id": run_id}).one_or_none()
    if found is None:
        return None
    state = fold(read_log(connection, run_id))
    return SubagentEnd(
        run_id=run_id,
        status=found.status,
        stop_reason=found.stop_reason,
        answer=_answer(state),
        error=found.error,
        tool_calls=count_calls(state),
        is_tainted=state.tainted_by is not None,
    )


def count_below(connection: Connection, root_run_id: str) -> int:
    """How many subagents there were and are below the run, however deep."""
    return int(connection.scalar(_count_below, {"root": root_run_id}) or 0)


def cancel_subagent(connection: Connection, run_id: str) -> None:
    """Marks one as ended by a person, if it has not ended."""
    _mark_cancelled(connection, _cancel_one, run_id)


def cancel_subagents(connection: Connection, parent_run_id: str) -> list[str]:
    """Marks those of the run's subagents as ended by a person that have not ended; their ids."""
    return _mark_cancelled(connection, _cancel_below, parent_run_id)


def count_calls(state: ChatState) -> int:
    """How many calls of tools have been answered, with those of compositions, and of subagents that ended."""
    results = [step for step in state.steps if step.type == StepType.TOOL_RESULT]
    own = sum(step.calls if isinstance(step.calls, int) else 1 for step in results)
    return own + sum(one.tool_calls for one in state.subagents)


def _mark_cancelled(connection: Connection, cancelling: ReturningUpdate[str], run_id: str) -> list[str]:
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
    last_text = "".join(text for index, text in texts if index > last).strip()
    return last_text or "".join(text for _, text in texts).strip()


MAX_IDLE_PER_USER = 100
"""Idle runs that hold no place; what more of them a user has hold theirs, for each is a drive in memory."""

_idle_runs, _calls = table_of(RunRow), table_of(ToolCallRow)
_parents = _idle_runs.alias("parents")
_unended = _idle_runs.c.status.not_in([status.value for status in ENDED])
_below_some = select(
    _idle_runs.c.id, _idle_runs.c.parent_run_id, _idle_runs.c.user_id, _idle_runs.c.status
).where(_unended)
_below_roots = _below_some.join(_parents, _parents.c.id == _idle_runs.c.parent_run_id).where(
    _parents.c.parent_run_id.is_(None), _parents.c.status == RunStatus.RUNNING.value
)
_below = _below_some.where(_idle_runs.c.parent_run_id.in_(bindparam("ids", expanding=True)))
_runs_of_subject = (
    select(_idle_runs.c.id)
    .where(_idle_runs.c.subject_id == bindparam("subject"), _idle_runs.c.parent_run_id.is_not(None), _unended)
    .limit(1)
)
_acting = select(_calls.c.run_id).where(
    _calls.c.run_id.in_(bindparam("ids", expanding=True)),
    _calls.c.status == StepStatus.RUNNING.value,
    _calls.c.tool != DELEGATE_TOOL,
)


class UnendedSubagent(msgspec.Struct, frozen=True):
    """An unended subagent, and whose."""

    run_id: str
    parent_id: str
    user_id: int
    status: RunStatus


class IdleRuns(msgspec.Struct, frozen=True, kw_only=True):
    """`roots` are runs without a parent, by user; `resuming` the subagents below them that got their answer,
    and whose is the place that they need."""

    roots: Mapping[int, int]
    resuming: Mapping[str, int]


def find_idle(connection: Connection) -> IdleRuns:
    """Among the runs that are in progress."""
    tree: dict[str, list[UnendedSubagent]] = {}
    level = [_read(row) for row in connection.execute(_below_roots)]
    roots = {one.parent_id: one.user_id for one in level}
    while level:
        for one in level:
            tree.setdefault(one.parent_id, []).append(one)
        running_ids = [one.run_id for one in level if one.status == RunStatus.RUNNING]
        level = _read_children(connection, running_ids)
    if all(one.status == RunStatus.RUNNING for below in tree.values() for one in below):
        return IdleRuns(roots={}, resuming={})
    acting = set(connection.scalars(_acting, {"ids": list(tree)}))
    counts: dict[int, int] = {}
    resuming: dict[str, int] = {}
    for root, user_id in sorted(roots.items()):
        if _is_busy(root, tree, acting) or counts.get(user_id, 0) >= MAX_IDLE_PER_USER:
            continue
        counts[user_id] = counts.get(user_id, 0) + 1
        resuming |= dict.fromkeys(_resuming(root, tree), user_id)
    return IdleRuns(roots=counts, resuming=resuming)


def find_waiting_subagent(connection: Connection, run_id: str) -> str | None:
    """A subagent of the run, however deep, that waits for a person."""
    ids = [run_id]
    while found := _read_children(connection, ids):
        for one in found:
            if one.status == RunStatus.WAITING:
                return one.run_id
        ids = [one.run_id for one in found]
    return None


def has_subagents(connection: Connection, subject_id: str) -> bool:
    """Whether any in the subject has not ended."""
    return connection.scalar(_runs_of_subject, {"subject": subject_id}) is not None


def _read_children(connection: Connection, ids: Sequence[str]) -> list[UnendedSubagent]:
    return [_read(row) for row in connection.execute(_below, {"ids": list(ids)})] if ids else []


def _read(row: Row[*tuple[Any, ...]]) -> UnendedSubagent:
    return UnendedSubagent(row.id, row.parent_run_id, row.user_id, RunStatus(row.status))


def _is_busy(run_id: str, tree: Mapping[str, Sequence[UnendedSubagent]], acting: set[str]) -> bool:
    below = tree.get(run_id, ())
    if not below or run_id in acting:
        return True
    return any(one.status == RunStatus.RUNNING and _is_busy(one.run_id, tree, acting) for one in below)


def _resuming(run_id: str, tree: Mapping[str, Sequence[UnendedSubagent]]) -> list[str]:
    found: list[str] = []
    for one in tree.get(run_id, ()):
        if one.status == RunStatus.QUEUED:
            found.append(one.run_id)
        found += _resuming(one.run_id, tree)
    return found
