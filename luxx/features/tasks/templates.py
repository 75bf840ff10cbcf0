"""Task templates: documents of tasks under a name, the user's own or shared in the tenant by an ADMIN."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.owned import Shared, given_fields, view_of
from luxx.errors import NotFound
from luxx.features.tasks.changes import check_new_task, create_task
from luxx.features.tasks.checks import ReferenceChecker, TaskErrors
from luxx.features.tasks.document import TaskDocument, new_task_of
from luxx.features.tasks.models import (
    Priority,
    ProjectId,
    TaskGoal,
    TaskName,
    TaskTemplateRow,
    TaskTime,
    TaskView,
)
from luxx.features.tasks.queries import task_view
from luxx.infra.field_errors import NOTHING_WRONG
from luxx.infra.store.engine import Store
from luxx.wire.model_settings import ProviderId

TemplateDescription = Annotated[str, Meta(max_length=2_000)]


class NewTaskTemplate(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`document`: a task as `GET /tasks/{task_id}/export` has it."""

    name: TaskName
    description: TemplateDescription = ""
    document: TaskDocument
    is_shared: bool = False


class TaskTemplateChanges(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Omitted fields do not change."""

    name: TaskName | UnsetType = UNSET
    description: TemplateDescription | UnsetType = UNSET
    document: TaskDocument | UnsetType = UNSET
    is_shared: bool | UnsetType = UNSET


class TaskFromTemplate(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the new task has instead of the values of the template; null: the template's."""

    name: TaskName | None = None
    goal: TaskGoal | None = None
    provider_id: ProviderId | None = None
    agent_id: ProviderId | None = None
    project_id: ProjectId | None = None
    priority: Priority | None = None
    start_at: TaskTime | None = None
    due_at: TaskTime | None = None


class TaskTemplateSummary(Struct, frozen=True, kw_only=True):
    """A template in a list."""

    id: str
    user_id: int
    name: str
    description: str
    is_shared: bool
    is_own: bool
    created_at: datetime
    updated_at: datetime


class TaskTemplateView(Struct, frozen=True, kw_only=True):
    """A template with its document."""

    id: str
    user_id: int
    name: str
    description: str
    document: TaskDocument
    is_shared: bool
    is_own: bool
    created_at: datetime
    updated_at: datetime


_document = msgspec.json.Decoder(TaskDocument)


def _columns(values: NewTaskTemplate | TaskTemplateChanges) -> dict[str, Any]:
    columns = given_fields(values)
    if "name" in columns:
        columns["name"] = columns["name"].strip()
    if "document" in columns:
        columns["document"] = msgspec.json.encode(columns["document"]).decode()
    return columns


TASK_TEMPLATES = Shared(row=TaskTemplateRow, noun="task template", short="template", columns=_columns)


@dataclass(frozen=True, slots=True)
class TaskTemplateService:
    """One per process. `on_created`: called with the document of each template, in its transaction."""

    store: Store
    references: ReferenceChecker
    on_created: Callable[[Session, Caller, TaskDocument], None]

    async def list_page(
        self, caller: Caller, *, page: int, page_size: int
    ) -> tuple[list[TaskTemplateSummary], int]:
        """The caller's templates and those shared in the tenant, newest first, and their number."""

        def work(session: Session) -> tuple[list[TaskTemplateSummary], int]:
            rows, total = TASK_TEMPLATES.page(session, caller, page=page, page_size=page_size)
            return [view_of(TaskTemplateSummary, row, caller) for row in rows], total

        return await self.store.read(work)

    async def get(self, caller: Caller, template_id: str) -> TaskTemplateView:
        """Raises NotFound."""
        return await self.store.read(
            lambda session: _view(TASK_TEMPLATES.visible(session, caller, template_id), caller)
        )

    async def create(
        self, caller: Caller, new: NewTaskTemplate, wrong: Mapping[str, str] = NOTHING_WRONG
    ) -> TaskTemplateView:
        """Creates a template, unless fields of it are `wrong`.

        Raises InvalidInput or NotFound with every problem, NotAllowed for a user who may not share.
        """

        def work(session: Session) -> TaskTemplateView:
            TASK_TEMPLATES.check_sharing(session, caller, new.is_shared)
            self._check(session, caller, new.document, wrong)
            self.on_created(session, caller, new.document)
            return _view(TASK_TEMPLATES.add(session, caller, new), caller)

        return await self.store.write(work)

    async def update(
        self,
        caller: Caller,
        template_id: str,
        changes: TaskTemplateChanges,
        wrong: Mapping[str, str] = NOTHING_WRONG,
    ) -> TaskTemplateView:
        """Sets the given fields. Raises what `create` raises, and NotAllowed for a template of somebody
        else, of which an ADMIN may only end the sharing."""

        def work(session: Session) -> TaskTemplateView:
            try:
                row = TASK_TEMPLATES.to_change(session, caller, template_id, changes)
            except NotFound:
                TaskErrors(wrong).raise_if_any()
                raise
            self._check(session, caller, changes.document, wrong)
            TASK_TEMPLATES.set(session, row, changes)
            return _view(row, caller)

        return await self.store.write(work)

    async def delete(self, caller: Caller, template_id: str) -> None:
        """Tasks that were created from it stay. Raises NotFound and NotAllowed."""
        await self.store.write(
            lambda session: session.delete(TASK_TEMPLATES.to_change(session, caller, template_id, None))
        )

    async def instantiate(self, caller: Caller, template_id: str, given: TaskFromTemplate) -> TaskView:
        """Creates a task of the caller from a template.

        Raises NotFound for the template, and with every problem for what the caller does not have.
        """

        def work(session: Session) -> TaskView:
            row = TASK_TEMPLATES.visible(session, caller, template_id)
            values = {name: value for name in given.__struct_fields__ if (value := getattr(given, name))}
            document = template_document(row)
            replaced = [name for name in ("agent", "provider") if f"{name}_id" in values]
            document = replace(document, **dict.fromkeys(replaced))
            errors = TaskErrors()
            new = replace(new_task_of(session, caller, document, errors), **values)
            return task_view(session, create_task(session, caller, new, self.references, errors))

        return await self.store.write(work)

    def _check(
        self,
        session: Session,
        caller: Caller,
        document: TaskDocument | UnsetType,
        wrong: Mapping[str, str],
    ) -> None:
        """Raises one error with the `wrong` fields and every problem of the document."""
        errors = TaskErrors(wrong, root="$.document")
        if document is not UNSET:
            new = new_task_of(session, caller, document, errors)
            check_new_task(session, caller, new, self.references, errors)
        errors.raise_if_any()


def template_document(row: TaskTemplateRow) -> TaskDocument:
    """The task of a template."""
    return _document.decode(row.document)


def _view(row: TaskTemplateRow, caller: Caller) -> TaskTemplateView:
    return view_of(TaskTemplateView, row, caller, document=template_document(row))
