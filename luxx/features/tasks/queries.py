"""Reads tasks: whose they are, their status, steps, graphs, versions and lists, in the caller's transaction.

The status of a task follows from its newest run and its steps; `task_status` is the only place that says how.
"""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, assert_never

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
    bindparam,
    case,
    exists,
    func,
    literal,
    or_,
    select,
)
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.conversations.search_index import SearchedSubject
from luxx.errors import NotFound
from luxx.features.tasks.graph import (
    GraphStep,
    TaskEdge,
    TaskGraph,
    TaskGraphView,
    TaskNode,
    TaskStepStatus,
)
from luxx.features.tasks.models import (
    NewTask,
    NewTaskStep,
    TaskRow,
    TaskStatus,
    TaskStepRow,
    TaskStepView,
    TaskSummary,
    TaskVersion,
    TaskVersionRow,
    TaskVersionSummary,
    TaskView,
)
from luxx.features.tasks.times import EARLIEST, LATEST
from luxx.infra.clock import utc_now
from luxx.infra.store.engine import contains_text
from luxx.infra.store.tables import read_page
from luxx.runs.models import RunRow
from luxx.wire.run import RunStatus, StopReason
from luxx.wire.turn import Usage, WrittenArtifact


class _CallArtifacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is needed of a stored call."""

    artifacts: list[WrittenArtifact] = []


names_decoder = msgspec.json.Decoder(list[str])
_steps_decoder = msgspec.json.Decoder(list[NewTaskStep])
_usage = msgspec.json.Decoder(Usage)
_calls_decoder = msgspec.json.Decoder(list[_CallArtifacts])
_searched = select(
    TaskRow.id, TaskRow.user_id, TaskRow.name, TaskRow.goal, TaskRow.result, TaskRow.created_at
).where(TaskRow.id.in_(bindparam("ids", expanding=True)))
_searched_steps = (
    select(TaskStepRow.task_id, TaskStepRow.name)
    .where(TaskStepRow.task_id.in_(bindparam("ids", expanding=True)))
    .order_by(TaskStepRow.task_id, TaskStepRow.position)
)
_count_steps = msgspec.json.Decoder(list[msgspec.Raw])


def task_status() -> ColumnElement[str]:
    """The status of a task, as SQL over `tasks` and its newest run, which is joined from outside.

    Where the run carried out what it could, the steps decide: the task is `failed` if a step has failed, and
    `pending` if steps are to be executed: some were added, changed or left out since, or the run reached a
    limit.
    """

    def has_step(status: TaskStepStatus) -> ColumnElement[bool]:
        return exists(
            select(literal(1)).where(TaskStepRow.task_id == TaskRow.id, TaskStepRow.status == status.value)
        )

    return case(
        (TaskRow.run_id.is_(None), TaskStatus.PENDING.value),
        (RunRow.status.in_([RunStatus.QUEUED.value, RunStatus.RUNNING.value]), TaskStatus.RUNNING.value),
        (RunRow.status.in_([RunStatus.WAITING.value, RunStatus.PAUSED.value]), TaskStatus.BLOCK.value),
        (
            and_(
                RunRow.status == RunStatus.FAILED.value,
                RunRow.stop_reason.is_distinct_from(StopReason.STEPS_FAILED.value),
            ),
            TaskStatus.FAILED.value,
        ),
        (RunRow.status == RunStatus.CANCELLED.value, TaskStatus.TERMINATED.value),
        (has_step(TaskStepStatus.FAILED), TaskStatus.FAILED.value),
        (has_step(TaskStepStatus.PENDING), TaskStatus.PENDING.value),
        else_=TaskStatus.COMPLETED.value,
    )


def own_task(session: Session, caller: Caller, task_id: str, *, is_locked: bool = False) -> TaskRow:
    """The caller's task of this id. Raises NotFound. Lock it for every change, and to start a run of it."""
    query: Select[TaskRow] = select(TaskRow).where(TaskRow.id == task_id, TaskRow.user_id == caller.user_id)
    row = session.scalar(query.with_for_update() if is_locked else query)
    if row is None:
        raise NotFound("no task with this id", kind="task_not_found")
    return row


def step_rows(session: Session, task_id: str) -> list[TaskStepRow]:
    """The steps of a task, in their order."""
    query = select(TaskStepRow).where(TaskStepRow.task_id == task_id).order_by(TaskStepRow.position)
    return list(session.scalars(query))


def step_row(session: Session, task: TaskRow, step_id: str) -> TaskStepRow:
    """A step of the task. Raises NotFound."""
    row = session.get(TaskStepRow, (task.id, step_id)) if len(step_id) <= 64 else None
    if row is None:
        raise NotFound("this task has no step with this id", kind="task_step_not_found")
    return row


def definition_of(row: TaskStepRow) -> NewTaskStep:
    """A step as it was defined, without what its execution produced."""
    return NewTaskStep(
        id=row.id,
        name=row.name,
        goal=row.goal,
        depends_on=names_decoder.decode(row.depends_on),
        agent_id=row.agent_id,
        required_skills=_names(row.required_skills),
        required_tools=_names(row.required_tools),
        expected_output=row.expected_output,
        thought_prompt=row.thought_prompt,
        require_approval=row.require_approval,
    )


def searched_tasks(connection: Connection, task_ids: Sequence[str]) -> dict[str, SearchedSubject]:
    """What the search finds of tasks, by id: the name, the goal, the names of the steps and the final result.

    Tasks that do not exist are left out.
    """
    names: dict[str, list[str]] = {}
    for row in connection.execute(_searched_steps, {"ids": task_ids}):
        names.setdefault(row.task_id, []).append(row.name)
    return {
        row.id: SearchedSubject(
            id=row.id,
            user_id=row.user_id,
            title=row.name,
            text="\n".join([row.name, row.goal, *names.get(row.id, []), row.result or ""]).strip("\n"),
            created_at=row.created_at,
        )
        for row in connection.execute(_searched, {"ids": task_ids})
    }


def graph_of_rows(rows: Sequence[TaskStepRow]) -> TaskGraph:
    """The graph of stored steps; it is valid."""
    return TaskGraph(
        [
            GraphStep(id=row.id, name=row.name, depends_on=tuple(names_decoder.decode(row.depends_on)))
            for row in rows
        ]
    )


def statuses_of(rows: Sequence[TaskStepRow]) -> dict[str, TaskStepStatus]:
    """The statuses of steps by their ids."""
    return {row.id: TaskStepStatus(row.status) for row in rows}


def artifacts_of_calls(tool_calls: str) -> list[WrittenArtifact]:
    """The artifacts that the stored calls of a step wrote, each in its last version."""
    if '"artifacts"' not in tool_calls:
        return []
    found = [one for call in _calls_decoder.decode(tool_calls) for one in call.artifacts]
    return list({one.artifact_id: one for one in found}.values())


def step_view(row: TaskStepRow) -> TaskStepView:
    """A step as the API shows it."""
    own = {"artifacts"}
    fields = {name: getattr(row, name) for name in TaskStepView.__struct_fields__ if name not in own}
    fields |= {
        "depends_on": names_decoder.decode(row.depends_on),
        "required_skills": _names(row.required_skills),
        "required_tools": _names(row.required_tools),
        "tool_calls": msgspec.json.decode(row.tool_calls),
        "artifacts": artifacts_of_calls(row.tool_calls),
        "usage": _usage.decode(row.usage),
        "status": TaskStepStatus(row.status),
    }
    return TaskStepView(**fields)


def task_fields(row: TaskRow) -> dict[str, Any]:
    """The fields of a task as it was defined, without its steps."""
    own = {"metadata", "steps"}
    fields = {name: getattr(row, name) for name in NewTask.__struct_fields__ if name not in own}
    return {**fields, "metadata": msgspec.json.decode(row.metadata_json)}


def task_view(session: Session, row: TaskRow) -> TaskView:
    """A task with its steps as the API shows it. Flush changes first."""
    query = (
        select(task_status())
        .select_from(TaskRow)
        .outerjoin(RunRow, RunRow.id == TaskRow.run_id)
        .where(TaskRow.id == row.id)
    )
    own = {"status", "metadata", "steps"}
    fields = {name: getattr(row, name) for name in TaskView.__struct_fields__ if name not in own}
    return TaskView(
        status=TaskStatus(session.scalars(query).one()),
        metadata=msgspec.json.decode(row.metadata_json),
        steps=[step_view(step) for step in step_rows(session, row.id)],
        **fields,
    )


def graph_view(rows: Sequence[TaskStepRow]) -> TaskGraphView:
    """The graph of stored steps as the API shows it."""
    graph = graph_of_rows(rows)
    measured = {row.id: float(row.duration_ms) for row in rows if row.duration_ms is not None}
    mean = sum(measured.values()) / len(measured) if measured else 1.0
    durations = {row.id: measured.get(row.id, mean) for row in rows}
    problems = graph.problems()
    return TaskGraphView(
        nodes=[TaskNode(id=row.id, name=row.name, status=TaskStepStatus(row.status)) for row in rows],
        edges=[TaskEdge(source=source, target=target) for source, target in graph.edges()],
        levels=graph.levels(),
        order=graph.order(),
        critical_path=graph.critical_path(durations),
        valid=not problems,
        problems=problems,
    )


class TaskOrder(StrEnum):
    """The order of a list. Among equals, and for tasks without a time, the newest comes first."""

    NEWEST = "newest"
    PRIORITY = "priority"
    DUE = "due"


class TaskFilter(msgspec.Struct, frozen=True, kw_only=True):
    """None does not filter. `q`: a part of the name or the goal, ignoring case. `due_before`: tasks with an
    earlier `due_at`. `snoozed`: also the tasks that are snoozed now."""

    status: TaskStatus | None = None
    project_id: str | None = None
    q: str | None = None
    priority: int | None = None
    due_before: datetime | None = None
    snoozed: bool = False
    order: TaskOrder = TaskOrder.NEWEST


def page_of_tasks(
    session: Session, caller: Caller, task_filter: TaskFilter, *, page: int, page_size: int
) -> tuple[list[TaskSummary], int]:
    """The caller's matching tasks in the wanted order, and the number of matches."""
    status = task_status()
    where = _conditions(session, caller, task_filter, status)
    joined = select(TaskRow, status.label("status")).outerjoin(RunRow, RunRow.id == TaskRow.run_id)
    matching = joined.where(*where)
    total = session.scalar(select(func.count()).select_from(matching.subquery())) or 0
    rows = session.execute(
        matching.order_by(*_order(task_filter.order), TaskRow.id.desc())
        .limit(page_size)
        .offset((page - 1) * page_size)
    ).all()
    counts = _step_counts(session, [row.TaskRow.id for row in rows])
    return [_summary(row.TaskRow, row.status, counts.get(row.TaskRow.id, {})) for row in rows], total


def _conditions(
    session: Session, caller: Caller, task_filter: TaskFilter, status: ColumnElement[str]
) -> list[ColumnElement[bool]]:
    where: list[ColumnElement[bool]] = [TaskRow.user_id == caller.user_id]
    if task_filter.status is not None:
        where.append(status == task_filter.status.value)
    if task_filter.project_id is not None:
        where.append(TaskRow.project_id == task_filter.project_id)
    if task_filter.priority is not None:
        where.append(TaskRow.priority == task_filter.priority)
    if task_filter.due_before is not None:
        # A time at the ends of what Python knows cannot be changed to UTC.
        where.append(TaskRow.due_at < min(max(task_filter.due_before, EARLIEST), LATEST))
    if not task_filter.snoozed:
        where.append(or_(TaskRow.snoozed_until.is_(None), TaskRow.snoozed_until <= utc_now()))
    if task_filter.q:
        dialect = session.connection().dialect.name
        texts = (TaskRow.name, TaskRow.goal)
        where.append(or_(*(contains_text(dialect, text, task_filter.q) for text in texts)))
    return where


def _order(order: TaskOrder) -> list[ColumnElement[Any]]:
    by_due = TaskRow.due_at.asc().nulls_last()
    match order:
        case TaskOrder.NEWEST:
            return []
        case TaskOrder.PRIORITY:
            return [TaskRow.priority.asc(), by_due]
        case TaskOrder.DUE:
            return [by_due, TaskRow.priority.asc()]
        case _:
            assert_never(order)


def _summary(row: TaskRow, status: str, counts: dict[str, int]) -> TaskSummary:
    own = {"status", "step_counts"}
    fields: dict[str, Any] = {
        name: getattr(row, name) for name in TaskSummary.__struct_fields__ if name not in own
    }
    return TaskSummary(status=TaskStatus(status), step_counts=counts, **fields)


def _step_counts(session: Session, task_ids: list[str]) -> dict[str, dict[str, int]]:
    query = (
        select(TaskStepRow.task_id, TaskStepRow.status, func.count())
        .where(TaskStepRow.task_id.in_(task_ids))
        .group_by(TaskStepRow.task_id, TaskStepRow.status)
    )
    counts: dict[str, dict[str, int]] = {}
    for task_id, status, count in session.execute(query) if task_ids else ():
        counts.setdefault(task_id, {})[status] = count
    return counts


def page_of_versions(
    session: Session, task: TaskRow, *, page: int, page_size: int
) -> tuple[list[TaskVersionSummary], int]:
    """The earlier graphs of a task, newest first, and their number."""
    query = select(TaskVersionRow).where(TaskVersionRow.task_id == task.id)
    rows, total = read_page(
        session, query.order_by(TaskVersionRow.number.desc()), page=page, page_size=page_size
    )
    items = [
        TaskVersionSummary(
            number=row.number, step_count=len(_count_steps.decode(row.steps)), created_at=row.created_at
        )
        for row in rows
    ]
    return items, total


def version_view(session: Session, task: TaskRow, number: int) -> TaskVersion:
    """An earlier graph of a task. Raises NotFound."""
    row = session.get(TaskVersionRow, (task.id, number)) if 0 < number < 2**31 else None
    if row is None:
        raise NotFound("this task has no version with this number", kind="task_version_not_found")
    return TaskVersion(number=row.number, steps=_steps_decoder.decode(row.steps), created_at=row.created_at)


def _names(stored: str | None) -> list[str] | None:
    return None if stored is None else names_decoder.decode(stored)
