"""The tasks and templates of a user in an export of all their data, and their import on another server.

An import of a single document (`document.py`) is stricter: it refuses what this one leaves out with a note.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec.structs import replace
from sqlalchemy import select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.backup.user_export import FeatureExport, ImportedIds
from luxx.errors import LuxxError
from luxx.features.tasks.changes import add_task
from luxx.features.tasks.checks import TaskErrors, check_graph, check_metadata
from luxx.features.tasks.document import TaskDocument, document_of, new_task_of
from luxx.features.tasks.models import NewTask, TaskRow, TaskTemplateRow
from luxx.features.tasks.queries import step_rows
from luxx.features.tasks.templates import TASK_TEMPLATES, NewTaskTemplate, template_document
from luxx.infra.field_errors import FieldErrors


class ExportedStepResult(msgspec.Struct, frozen=True, kw_only=True):
    status: str
    output: str | None = None
    error: str | None = None
    provider_name: str | None = None
    model: str | None = None
    finish: str | None = None


class ExportedTask(msgspec.Struct, frozen=True, kw_only=True):
    """`project`: the position of its project in the file. `result` and `results`, those of its steps by their
    ids, are for the user's information: their runs stay on the other server, so they are not imported. Nor is
    `start_at`: an import executes nothing. Without it, the task is not to be started any more."""

    document: TaskDocument
    project: int | None = None
    result: str | None = None
    results: dict[str, ExportedStepResult] = {}
    start_at: datetime | None = None
    due_at: datetime | None = None
    snoozed_until: datetime | None = None
    created_at: datetime
    updated_at: datetime


class ExportedTaskTemplate(msgspec.Struct, frozen=True, kw_only=True):
    template: NewTaskTemplate
    created_at: datetime
    updated_at: datetime


class ExportedTasks(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks and own templates of a user, oldest first."""

    tasks: list[ExportedTask] = []
    templates: list[ExportedTaskTemplate] = []


def read_tasks(session: Session, caller: Caller, project_ids: Sequence[str]) -> ExportedTasks:
    """The tasks and templates that the user owns."""
    positions = {project_id: position for position, project_id in enumerate(project_ids)}
    rows = session.scalars(
        select(TaskRow).where(TaskRow.user_id == caller.user_id).order_by(TaskRow.id)
    ).all()
    templates = session.scalars(
        select(TaskTemplateRow).where(TaskTemplateRow.user_id == caller.user_id).order_by(TaskTemplateRow.id)
    )
    return ExportedTasks(
        tasks=[
            ExportedTask(
                document=document_of(session, caller, row),
                project=None if row.project_id is None else positions.get(row.project_id),
                result=row.result,
                results={
                    step.id: ExportedStepResult(
                        **{name: getattr(step, name) for name in ExportedStepResult.__struct_fields__}
                    )
                    for step in step_rows(session, row.id)
                    if step.attempts or step.output is not None
                },
                start_at=row.start_at if row.is_start_due else None,
                due_at=row.due_at,
                snoozed_until=row.snoozed_until,
                created_at=row.created_at,
                updated_at=row.updated_at,
            )
            for row in rows
        ],
        templates=[
            ExportedTaskTemplate(
                template=NewTaskTemplate(
                    name=row.name, description=row.description, document=template_document(row)
                ),
                created_at=row.created_at,
                updated_at=row.updated_at,
            )
            for row in templates
        ],
    )


def add_tasks(session: Session, caller: Caller, ids: ImportedIds, value: Any) -> list[str]:
    """Adds tasks and templates, which are not shared. Returns notes about what was left out.

    Agents and providers that the user does not have are left out. Unknown tools and skills stay. Raises
    LuxxError for what no server has exported.
    """
    try:
        exported = msgspec.convert(value, ExportedTasks)
    except msgspec.ValidationError as error:
        raise LuxxError(f"the tasks in it cannot be read ({error})") from error
    notes: dict[str, None] = {}
    for task in exported.tasks:
        document = task.document
        missing = FieldErrors()
        new = new_task_of(session, caller, document, missing)
        _check(document.name, new)
        for error in missing:
            notes[f"the task {document.name}: {error.problem.partition(';')[0]}; it was left out"] = None
        if task.project is not None and 0 <= task.project < len(ids.projects):
            new = replace(new, project_id=ids.projects[task.project])
        row = add_task(session, caller, new)
        _keep_names(session, row, document)
        row.due_at, row.snoozed_until = task.due_at, task.snoozed_until
        row.created_at, row.updated_at = task.created_at, task.updated_at
        if task.start_at is not None:
            notes[f"the task {document.name} is not started by itself; choose its start_at again"] = None
    for one in exported.templates:
        _check(one.template.name, new_task_of(session, caller, one.template.document, FieldErrors()))
        times = {"created_at": one.created_at, "updated_at": one.updated_at}
        TASK_TEMPLATES.add(session, caller, one.template, is_shared=False, **times)
    if any(task.results for task in exported.tasks):
        notes["the results of tasks were left out, because their runs stay on the other server"] = None
    session.flush()
    return list(notes)


def _keep_names(session: Session, row: TaskRow, document: TaskDocument) -> None:
    """Keeps the names of agents and providers that the user does not have: the task stops until others are
    chosen."""
    row.lost_provider = document.provider if row.provider_id is None else None
    row.lost_agent = document.agent if row.agent_id is None else None
    for stored, step in zip(step_rows(session, row.id), document.steps, strict=True):
        stored.lost_agent = step.agent if stored.agent_id is None else None


def _check(name: str, new: NewTask) -> None:
    errors = TaskErrors()
    check_graph(new.steps, errors)
    check_metadata(new.metadata, errors)
    for error in errors:
        raise LuxxError(f"the task {name} in it is not valid: {error.path}: {error.problem}")


TASK_EXPORT = FeatureExport(name="tasks", read=read_tasks, add=add_tasks)
