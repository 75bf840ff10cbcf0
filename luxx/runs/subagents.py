"""Rows of subagents' runs, and the idle runs that wait for them.

The transaction that logs a subagent in its parent's log inserts its row, so each call has one subagent, even
after a crash. A subagent's run has no message and needs no slot; it has the rights and limits of its parent.
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
_cancel_children = _cancel.where(_runs.c.parent_run_id == bindparam("run_id"))
_children = select(_runs.c.id).where(_runs.c.parent_run_id == bindparam("root")).cte(recursive=True)
_descendants = _children.union_all(
    select(_runs.c.id).join(_children, _runs.c.parent_run_id == _children.c.id)
)
_count_descendants = select(func.count()).select_from(_descendants)
_encode = msgspec.json.Encoder().encode


def new_run(run_id: str, spec: RunSpec) -> Run:
    """A run of a subagent of the run of `spec`, which starts at once."""
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
    """Inserts the row, with `process` as the owner."""
    row: dict[str, Any] = {
        "id": run.id, "user_id": spec.user_id, "tenant_id": spec.tenant_id, "kind": run.kind.value,
        "subject_id": run.subject_id, "parent_run_id": run.parent_run_id, "question_id": request.parent_id,
        "status": run.status.value, "phase": RunPhase.THINKING.value, "request": _encode(request).decode(),
        "owner": process, "fence": 1, "created_at": run.created_at, "started_at": run.started_at,
    }  # fmt: skip
    connection.execute(_insert, row)


def status_of(connection: Connection, run_id: str) -> RunStatus | None:
    """The status of the run; None if it was deleted."""
    row = connection.execute(_select_end, {"run_id": run_id}).one_or_none()
    return None if row is None else RunStatus(row.status)


def read_end(connection: Connection, run_id: str) -> SubagentEnd | None:
    """The end of a run, from its row and its log; None if it was deleted."""
    row = connection.execute(_select_end, {"run_id": run_id}).one_or_none()
    if row is None:
        return None
    state = fold(read_log(connection, run_id))
    return SubagentEnd(
        run_id=run_id,
        status=row.status,
        stop_reason=row.stop_reason,
        answer=_answer(state),
        error=row.error,
        tool_calls=count_calls(state),
        is_tainted=state.tainted_by is not None,
    )


def count_descendants(connection: Connection, root_run_id: str) -> int:
    """How many subagents the run has had, at all depths."""
    return int(connection.scalar(_count_descendants, {"root": root_run_id}) or 0)


def cancel_subagent(connection: Connection, run_id: str) -> None:
    """Marks the run as cancelled, if it has not ended."""
    _mark_cancelled(connection, _cancel_one, run_id)


def cancel_subagents(connection: Connection, parent_run_id: str) -> list[str]:
    """Marks the run's unended subagents as cancelled; returns their ids."""
    return _mark_cancelled(connection, _cancel_children, parent_run_id)


def count_calls(state: ChatState) -> int:
    """How many tool calls have a result, with those of compositions and of ended subagents."""
    results = [step for step in state.steps if step.type == StepType.TOOL_RESULT]
    own = sum(step.calls if isinstance(step.calls, int) else 1 for step in results)
    return own + sum(one.tool_calls for one in state.subagents)


def _mark_cancelled(connection: Connection, cancelling: ReturningUpdate[str], run_id: str) -> list[str]:
    cancelled_ids = list(connection.execute(cancelling, {"run_id": run_id}).scalars())
    if cancelled_ids:
        # A run that waits for a person is driven once more, so that it ends.
        wake(connection, RunRow.id.in_(cancelled_ids))
    return cancelled_ids


def _answer(state: ChatState) -> str:
    """The text after the last tool call or, if that is empty, all text."""
    texts = [
        (step.index, step.content)
        for step in state.steps
        if step.type == StepType.TEXT and step.status != StepStatus.INTERRUPTED
    ]
    last = max((step.index for step in state.steps if step.type == StepType.TOOL_RESULT), default=-1)
    last_text = "".join(text for index, text in texts if index > last).strip()
    return last_text or "".join(text for _, text in texts).strip()


MAX_IDLE_PER_USER = 100
"""How many idle runs of a user need no slot. Further ones keep theirs: each is a drive in memory."""

_idle_runs, _calls = table_of(RunRow), table_of(ToolCallRow)
_parents = _idle_runs.alias("parents")
_unended = _idle_runs.c.status.not_in([status.value for status in ENDED])
_unended_subagents = select(
    _idle_runs.c.id, _idle_runs.c.parent_run_id, _idle_runs.c.user_id, _idle_runs.c.status
).where(_unended)
_children_of_roots = _unended_subagents.join(_parents, _parents.c.id == _idle_runs.c.parent_run_id).where(
    _parents.c.parent_run_id.is_(None), _parents.c.status == RunStatus.RUNNING.value
)
_unended_children = _unended_subagents.where(_idle_runs.c.parent_run_id.in_(bindparam("ids", expanding=True)))
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
    """A subagent that has not ended, with its parent and user."""

    run_id: str
    parent_id: str
    user_id: int
    status: RunStatus


class IdleRuns(msgspec.Struct, frozen=True, kw_only=True):
    """Runs that only wait for subagents which wait for a person.

    `roots`: their number per user id. `resuming`: the user id of each queued subagent below them; it got its
    answer and needs a slot.
    """

    roots: Mapping[int, int]
    resuming: Mapping[str, int]


def find_idle(connection: Connection) -> IdleRuns:
    """The idle runs among those in progress."""
    tree: dict[str, list[UnendedSubagent]] = {}
    level = [_read(row) for row in connection.execute(_children_of_roots)]
    roots = {one.parent_id: one.user_id for one in level}
    while level:
        for one in level:
            tree.setdefault(one.parent_id, []).append(one)
        running_ids = [one.run_id for one in level if one.status == RunStatus.RUNNING]
        level = _read_children(connection, running_ids)
    if all(one.status == RunStatus.RUNNING for children in tree.values() for one in children):
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
    """The id of a subagent of the run, at any depth, that waits for a person."""
    ids = [run_id]
    while children := _read_children(connection, ids):
        for one in children:
            if one.status == RunStatus.WAITING:
                return one.run_id
        ids = [one.run_id for one in children]
    return None


def has_subagents(connection: Connection, subject_id: str) -> bool:
    """Whether the subject has a subagent that has not ended."""
    return connection.scalar(_runs_of_subject, {"subject": subject_id}) is not None


def _read_children(connection: Connection, ids: Sequence[str]) -> list[UnendedSubagent]:
    return [_read(row) for row in connection.execute(_unended_children, {"ids": list(ids)})] if ids else []


def _read(row: Row[*tuple[Any, ...]]) -> UnendedSubagent:
    return UnendedSubagent(row.id, row.parent_run_id, row.user_id, RunStatus(row.status))


def _is_busy(run_id: str, tree: Mapping[str, Sequence[UnendedSubagent]], acting: set[str]) -> bool:
    children = tree.get(run_id, ())
    if not children or run_id in acting:
        return True
    return any(one.status == RunStatus.RUNNING and _is_busy(one.run_id, tree, acting) for one in children)


def _resuming(run_id: str, tree: Mapping[str, Sequence[UnendedSubagent]]) -> list[str]:
    run_ids: list[str] = []
    for one in tree.get(run_id, ()):
        if one.status == RunStatus.QUEUED:
            run_ids.append(one.run_id)
        run_ids += _resuming(one.run_id, tree)
    return run_ids
