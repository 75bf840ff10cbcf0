"""The tools with which models manage the tasks of a person: service functions as tools.

They act as the caller, on the caller's own tasks, with the checks of the API. They are offered where a
message, an agent or a skill asks for them (`is_on_demand`).
"""

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta
from msgspec.structs import replace
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.errors import Conflict, InvalidInput
from luxx.features.tasks import changes
from luxx.features.tasks.checks import ReferenceChecker, TaskErrors
from luxx.features.tasks.models import (
    IN_VISIBLE,
    VISIBLE,
    NewTask,
    TaskChanges,
    TaskStatus,
    TaskSummary,
    TaskTime,
    TaskView,
)
from luxx.features.tasks.queries import TaskFilter, TaskOrder, own_task, page_of_tasks, step_rows, task_view
from luxx.infra.store.engine import Store
from luxx.infra.strict_json import IN_NAME, NAME
from luxx.runs.admission import newest_run
from luxx.runs.service import delete_runs
from luxx.tools.core import Risk, ToolContext, ToolDefinition
from luxx.tools.service_tools import ServiceTool, service_tool
from luxx.wire.run import ENDED
from luxx.wire.turn_event import RefreshTarget

MOST_LISTED = 50

TaskId = Annotated[str, Meta(min_length=1, max_length=64, description="The id of the task")]
Name = Annotated[str, Meta(min_length=1, max_length=200, description="A short name, in one line")]
Goal = Annotated[str, Meta(min_length=1, max_length=10_000, description="What is there at the end")]
Urgency = Annotated[int, Meta(ge=1, le=5, description="1 is the most urgent")]
StartAt = Annotated[TaskTime, Meta(description="When the server executes it; with a time zone")] | None
DueAt = Annotated[TaskTime, Meta(description="Until when it is to be done; with a time zone")] | None


@dataclass(frozen=True, slots=True)
class TaskTools:
    """Makes the tools. One per process. `references` check what new tasks name."""

    references: ReferenceChecker

    def all(self, store: Store) -> list[ToolDefinition]:
        """The tools with sessions of this database."""
        changes_list: dict[str, Any] = {"category": "tasks", "writes": True, "refreshes": RefreshTarget.TASKS}
        writes: dict[str, Any] = {**changes_list, "subject": "task_id"}
        tools: list[ServiceTool] = [
            service_tool(task_get, category="tasks", subject="task_id"),
            service_tool(task_list, category="tasks"),
            service_tool(self._create, name="task_create", **changes_list, subject="name"),
            service_tool(task_update, **writes),
            service_tool(task_delete, **writes, risk=Risk.HIGH),
            service_tool(task_snooze, **writes),
        ]
        acting = ("task_create", "task_update")
        return [
            replace(definition, is_on_demand=True, acts_later=definition.name in acting)
            for definition in (tool.bind_store(store) for tool in tools)
        ]

    def _create(
        self,
        session: Session,
        caller: Caller,
        name: Name,
        goal: Goal,
        priority: Urgency = 3,
        start_at: StartAt = None,
        due_at: DueAt = None,
    ) -> dict[str, Any]:
        """Store a task. With start_at the server executes it then by itself; without, it is only kept."""
        _check_texts(name, goal)
        new = NewTask(name=name, goal=goal, priority=priority, start_at=start_at, due_at=due_at)
        row = changes.create_task(session, caller, new, self.references, TaskErrors())
        return _shown(task_view(session, row))


def task_get(session: Session, caller: Caller, context: ToolContext, task_id: TaskId) -> dict[str, Any]:
    """Read a task with its steps and its result."""
    row = own_task(session, caller, task_id)
    context.metadata.is_untrusted = any(step.tainted_by for step in step_rows(session, row.id))
    task = task_view(session, row)
    steps = [
        {"id": step.id, "name": step.name, "status": step.status, "output": step.output}
        for step in task.steps
    ]
    return _shown(task) | {"steps": steps, "result": task.result}


def task_list(
    session: Session,
    caller: Caller,
    q: Annotated[str, Meta(max_length=300, description="A part of the name or goal")] = "",
    status: TaskStatus | None = None,
    snoozed: Annotated[bool, Meta(description="Also the snoozed ones")] = False,
    order: TaskOrder = TaskOrder.NEWEST,
    limit: Annotated[int, Meta(ge=1, le=MOST_LISTED)] = 20,
) -> dict[str, Any]:
    """List the person's tasks."""
    wanted = TaskFilter(q=q or None, status=status, snoozed=snoozed, order=order)
    tasks, total = page_of_tasks(session, caller, wanted, page=1, page_size=limit)
    return {"tasks": [_shown(task) for task in tasks], "total": total}


def task_update(
    session: Session,
    caller: Caller,
    task_id: TaskId,
    name: Name | None = None,
    goal: Goal | None = None,
    priority: Urgency | None = None,
    start_at: StartAt = None,
    due_at: DueAt = None,
    clear: Annotated[list[Literal["start_at", "due_at"]], Meta(max_length=2, description="Times to remove")]
    | None = None,
) -> dict[str, Any]:
    """Change the given fields of a task."""
    _check_texts(name, goal)
    given = {"name": name, "goal": goal, "priority": priority, "start_at": start_at, "due_at": due_at}
    fields: dict[str, Any] = dict.fromkeys(clear or ())
    fields |= {field: value for field, value in given.items() if value is not None}
    return _changed(session, caller, task_id, TaskChanges(**fields))


def task_snooze(
    session: Session,
    caller: Caller,
    task_id: TaskId,
    until: Annotated[TaskTime, Meta(description="With a time zone; null shows it again")] | None,
) -> dict[str, Any]:
    """Leave a task out of lists until a time."""
    return _changed(session, caller, task_id, TaskChanges(snoozed_until=until))


def task_delete(session: Session, caller: Caller, task_id: TaskId) -> dict[str, Any]:
    """Delete a task for good, with its steps and results. The person is asked first."""
    row = own_task(session, caller, task_id, is_locked=True)
    run = newest_run(session, row)
    if run is not None and run.status not in ENDED:
        raise Conflict(
            "a run of this task has not ended; the person has to cancel it first", kind="run_active"
        )
    while delete_runs(session, row.id):
        pass
    name = row.name
    session.delete(row)
    return {"deleted": task_id, "name": name}


def _check_texts(name: str | None, goal: str | None) -> None:
    """Raises InvalidInput; the check of arguments does not know these patterns."""
    if name is not None and not re.search(NAME, name):
        raise InvalidInput(f"name must be {IN_NAME}")
    if goal is not None and not re.search(VISIBLE, goal):
        raise InvalidInput(f"goal must be {IN_VISIBLE}")


def _changed(session: Session, caller: Caller, task_id: str, new: TaskChanges) -> dict[str, Any]:
    row = own_task(session, caller, task_id, is_locked=True)
    changes.change_task(session, caller, row, new)
    return _shown(task_view(session, row))


_SHOWN = ("id", "name", "goal", "status", "priority", "start_at", "due_at", "snoozed_until")


def _shown(task: TaskView | TaskSummary) -> dict[str, Any]:
    fields = {name: getattr(task, name) for name in _SHOWN}
    return {name: value for name, value in fields.items() if value is not None}
