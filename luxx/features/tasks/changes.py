"""Writes tasks and their graphs, in a transaction of the caller. Checks everything before it writes.

Every change of a graph keeps the steps from before it as a version. A step keeps its results when neither its
definition nor that of a step before it has changed; otherwise it is `pending` again.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace
from sqlalchemy import Connection, delete, func, select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.conversations.search_index import index_subject
from luxx.errors import Conflict
from luxx.features.tasks.checks import (
    ReferenceChecker,
    TaskErrors,
    check_graph,
    check_metadata,
    check_task,
    graph_of,
    path_in_list,
)
from luxx.features.tasks.graph import TaskStepStatus
from luxx.features.tasks.models import (
    MAX_VERSIONS,
    NewTask,
    NewTaskStep,
    TaskChanges,
    TaskRow,
    TaskStepChanges,
    TaskStepRow,
    TaskVersionRow,
)
from luxx.features.tasks.queries import definition_of, searched_tasks, step_row, step_rows
from luxx.features.tasks.times import check_times
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.search_words import SearchKind
from luxx.runs.models import RunRow
from luxx.wire.run import IN_PROGRESS

MEANING = ("agent_id", "required_skills", "required_tools", "expected_output", "thought_prompt")
"""Fields of a step whose change makes its results obsolete, with its goal and its dependencies."""

_SERVER_ID = re.compile(r"s([0-9]{1,18})")


def create_task(
    session: Session,
    caller: Caller,
    new: NewTask,
    references: ReferenceChecker,
    errors: TaskErrors,
) -> TaskRow:
    """Adds a task with its steps. Raises InvalidInput or NotFound with the given `errors` and its own."""
    new = check_new_task(session, caller, new, references, errors)
    errors.raise_if_any()
    return add_task(session, caller, new)


def check_new_task(
    session: Session, caller: Caller, new: NewTask, references: ReferenceChecker, errors: TaskErrors
) -> NewTask:
    """The task, all of whose steps have ids. Adds everything that is wrong with it."""
    new = replace(new, steps=with_ids(new.steps, []))
    check_metadata(new.metadata, errors)
    check_times(new, None, errors)
    check_graph(new.steps, errors)
    check_task(
        session, caller, errors, provider_id=new.provider_id, agent_id=new.agent_id, project_id=new.project_id
    )
    references.check(session, caller, new.steps, errors, project_id=new.project_id)
    return new


def add_task(session: Session, caller: Caller, new: NewTask) -> TaskRow:
    """Adds a valid task whose steps have ids. Checks nothing."""
    now = utc_now()
    row = TaskRow(
        id=new_id(), user_id=caller.user_id, tenant_id=caller.tenant_id, created_at=now, updated_at=now
    )
    _set_fields(row, new)
    session.add(row)
    session.flush()
    _store_steps(session, row, new.steps)
    index_task(session.connection(), row.id)
    return row


def change_task(session: Session, caller: Caller, row: TaskRow, changes: TaskChanges) -> None:
    """Sets the given fields. A run in progress keeps the values it started with.

    Raises InvalidInput or NotFound with every problem.
    """
    errors = TaskErrors()
    if changes.metadata is not UNSET:
        check_metadata(changes.metadata, errors)
    check_times(changes, row, errors)
    given = {
        name: value
        for name in ("provider_id", "agent_id", "project_id")
        if (value := getattr(changes, name)) is not UNSET
    }
    check_task(session, caller, errors, **given)
    errors.raise_if_any()
    _set_fields(row, changes)
    row.updated_at = utc_now()
    session.flush()
    if changes.name is not UNSET or changes.goal is not UNSET:
        index_task(session.connection(), row.id)


def add_steps(
    session: Session, caller: Caller, row: TaskRow, new: Sequence[NewTaskStep], references: ReferenceChecker
) -> list[str]:
    """Adds steps behind those that the task has; returns their ids. They may depend on any step.

    Raises Conflict while a run is in progress, InvalidInput or NotFound with every problem.
    """
    check_idle(session, row)
    existing = [definition_of(step) for step in step_rows(session, row.id)]
    added = with_ids(new, existing)
    count = len(existing)

    def path_of(index: int) -> str:
        return path_in_list(index - count) if index >= count else "$.steps"

    errors = TaskErrors()
    check_graph([*existing, *added], errors, path_of)
    references.check(session, caller, added, errors, project_id=row.project_id)
    errors.raise_if_any()
    replace_steps(session, row, [*existing, *added])
    return [str(step.id) for step in added]


def replace_graph(
    session: Session, caller: Caller, row: TaskRow, new: Sequence[NewTaskStep], references: ReferenceChecker
) -> None:
    """Replaces all steps. Raises what `add_steps` raises."""
    check_idle(session, row)
    steps = with_ids(new, [])
    errors = TaskErrors()
    check_graph(steps, errors)
    references.check(session, caller, steps, errors, project_id=row.project_id)
    errors.raise_if_any()
    replace_steps(session, row, steps)


def change_step(
    session: Session,
    caller: Caller,
    row: TaskRow,
    step_id: str,
    changes: TaskStepChanges,
    references: ReferenceChecker,
) -> None:
    """Sets the given fields of a step. Raises what `add_steps` raises, and NotFound for the step."""
    stored = step_row(session, row, step_id)
    check_idle(session, row)
    given: dict[str, Any] = {
        name: value for name in changes.__struct_fields__ if (value := getattr(changes, name)) is not UNSET
    }
    steps = [definition_of(step) for step in step_rows(session, row.id)]
    changed = [replace(step, **given) if step.id == step_id else step for step in steps]

    def path_of(index: int) -> str:
        return "$"

    errors = TaskErrors()
    check_graph(changed, errors, path_of)
    # What was named earlier and cannot be used any more does not prevent other changes.
    named = {name: given[name] for name in ("agent_id", "required_tools", "required_skills") if name in given}
    new = NewTaskStep(name=step_id, **named)
    references.check(session, caller, [new], errors, path_of, project_id=row.project_id)
    errors.raise_if_any()
    if "agent_id" in given:
        stored.lost_agent = None
    replace_steps(session, row, changed)


def delete_step(session: Session, row: TaskRow, step_id: str) -> None:
    """Deletes a step on which no other depends. Raises Conflict and NotFound."""
    step_row(session, row, step_id)
    check_idle(session, row)
    steps = [definition_of(step) for step in step_rows(session, row.id)]
    dependents = [str(step.id) for step in steps if step_id in step.depends_on]
    if dependents:
        raise Conflict(
            f"other steps depend on this one: {', '.join(dependents[:20])}; change their depends_on first, "
            "or replace the graph",
            kind="task_step_needed",
            detail={"step_ids": dependents},
        )
    replace_steps(session, row, [step for step in steps if step.id != step_id])


def check_idle(session: Session, row: TaskRow) -> None:
    """Raises Conflict while a run of the task is queued, running or waiting."""
    if row.run_id is None:
        return
    status = session.scalar(select(RunRow.status).where(RunRow.id == row.run_id))
    if status in IN_PROGRESS:
        raise Conflict(
            "a run of this task is in progress; cancel it or wait until it has ended",
            kind="run_active",
            detail={"run_id": row.run_id},
        )


def with_ids(new: Sequence[NewTaskStep], existing: Sequence[NewTaskStep]) -> list[NewTaskStep]:
    """The steps, those without an id with the next `s1`, `s2`, …, and each dependency once."""
    numbers = [
        int(match.group(1)) for step in (*existing, *new) if (match := _SERVER_ID.fullmatch(step.id or ""))
    ]
    number = max(numbers, default=0)
    steps: list[NewTaskStep] = []
    for step in new:
        step_id = step.id
        if step_id is None:
            number += 1
            step_id = f"s{number}"
        steps.append(replace(step, id=step_id, depends_on=list(dict.fromkeys(step.depends_on))))
    return steps


def replace_steps(session: Session, row: TaskRow, steps: Sequence[NewTaskStep]) -> None:
    """Makes `steps`, a valid graph with ids, the steps of the task. Checks nothing."""
    if _store_steps(session, row, steps):
        index_task(session.connection(), row.id)


def index_task(connection: Connection, task_id: str) -> None:
    """Lets the search find a task by its texts as they are now. Flush changes first."""
    index_subject(connection, SearchKind.TASK, searched_tasks, task_id)


def _store_steps(session: Session, row: TaskRow, steps: Sequence[NewTaskStep]) -> bool:
    """Whether they differ from those that the task has."""
    steps = [replace(step, name=step.name.strip()) for step in steps]
    rows = {step.id: step for step in step_rows(session, row.id)}
    before = {step_id: definition_of(step) for step_id, step in rows.items()}
    if list(before.values()) == steps:
        return False
    if before:
        _keep_version(session, row.id, list(before.values()))
    valid = _with_valid_results(before, steps)
    kept_ids = {step.id for step in steps}
    for step_id, stored in rows.items():
        if step_id not in kept_ids:
            session.delete(stored)
    for position, step in enumerate(steps):
        stored = rows.get(str(step.id))
        if stored is None:
            stored = TaskStepRow(task_id=row.id, id=str(step.id))
            reset_step(stored)
            session.add(stored)
        elif step.id not in valid:
            reset_step(stored)
        _define(stored, step, position)
    row.updated_at = utc_now()
    session.flush()
    return True


def reset_step(row: TaskStepRow) -> None:
    """Makes a step `pending`, without what earlier executions of it produced."""
    row.status = TaskStepStatus.PENDING.value
    row.tool_calls, row.usage = "[]", "{}"
    row.output = row.error = row.cost = row.duration_ms = None
    row.skipped_because = row.tainted_by = None
    row.provider_id = row.provider_name = row.model = row.finish = None
    row.approved_at = row.started_at = row.finished_at = None
    row.attempts = 0


def _with_valid_results(before: dict[str, NewTaskStep], steps: Sequence[NewTaskStep]) -> set[str | None]:
    by_id = {step.id: step for step in steps}
    valid: set[str | None] = set()
    for step_id in graph_of(steps).order():
        old, new = before.get(step_id), by_id[step_id]
        if old is not None and _meaning(old) == _meaning(new) and valid.issuperset(new.depends_on):
            valid.add(step_id)
    return valid


def _meaning(step: NewTaskStep) -> list[Any]:
    return [step.goal or step.name, sorted(step.depends_on), *(getattr(step, name) for name in MEANING)]


def _define(row: TaskStepRow, step: NewTaskStep, position: int) -> None:
    row.position = position
    row.name, row.goal = step.name, step.goal
    row.depends_on = _json(step.depends_on)
    row.agent_id = step.agent_id
    if step.agent_id is not None:
        row.lost_agent = None
    row.required_skills = None if step.required_skills is None else _json(step.required_skills)
    row.required_tools = None if step.required_tools is None else _json(step.required_tools)
    row.expected_output, row.thought_prompt = step.expected_output, step.thought_prompt
    row.require_approval = step.require_approval


def _keep_version(session: Session, task_id: str, steps: list[NewTaskStep]) -> None:
    is_of_task = TaskVersionRow.task_id == task_id
    number = (session.scalar(select(func.max(TaskVersionRow.number)).where(is_of_task)) or 0) + 1
    session.add(TaskVersionRow(task_id=task_id, number=number, steps=_json(steps), created_at=utc_now()))
    session.execute(
        delete(TaskVersionRow)
        .where(is_of_task, TaskVersionRow.number <= number - MAX_VERSIONS)
        .execution_options(synchronize_session=False)
    )


def _set_fields(row: TaskRow, values: NewTask | TaskChanges) -> None:
    for name in values.__struct_fields__:
        value: Any = getattr(values, name)
        if value is UNSET or name == "steps":
            continue
        if name == "metadata":
            row.metadata_json = _json(value)
        else:
            if name in ("provider_id", "agent_id", "project_id"):
                setattr(row, f"lost_{name.removesuffix('_id')}", None)
            if isinstance(value, datetime):
                value = value.astimezone(UTC)
            if name == "start_at" and value != row.start_at:
                row.is_start_due = value is not None
            setattr(row, name, value.strip() if name == "name" else value)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
