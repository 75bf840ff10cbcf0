"""Task templates: documents of tasks under a name, the user's own or shared in the tenant by an ADMIN."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace
from sqlalchemy import ColumnElement, and_, func, or_, select, update
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.rights import is_admin_now
from luxx.errors import NotAllowed, NotFound
from luxx.features.tasks.changes import create_task, new_task_problems, with_ids
from luxx.features.tasks.checks import ReferenceChecker, refuse, with_wrong
from luxx.features.tasks.document import TaskDocument
from luxx.features.tasks.graph import Problem
from luxx.features.tasks.models import ProjectId, TaskGoal, TaskName, TaskTemplateRow, TaskView
from luxx.features.tasks.queries import task_view
from luxx.features.tasks.resolving import resolve
from luxx.infra.clock import new_id, utc_now
from luxx.infra.field_errors import NOTHING_WRONG, FieldError
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


@dataclass(frozen=True, slots=True)
class TaskTemplateService:
    """One per process."""

    store: Store
    references: ReferenceChecker

    async def list_page(
        self, caller: Caller, *, page: int, page_size: int
    ) -> tuple[list[TaskTemplateSummary], int]:
        """The caller's templates and those shared in the tenant, newest first, and their number."""

        def work(session: Session) -> tuple[list[TaskTemplateSummary], int]:
            where = _visible_to(caller)
            total = session.scalar(select(func.count()).select_from(TaskTemplateRow).where(where)) or 0
            newest = select(TaskTemplateRow).where(where).order_by(TaskTemplateRow.id.desc())
            rows = session.scalars(newest.limit(page_size).offset((page - 1) * page_size))
            return [TaskTemplateSummary(**_fields(row, caller, TaskTemplateSummary)) for row in rows], total

        return await self.store.read(work)

    async def get(self, caller: Caller, template_id: str) -> TaskTemplateView:
        """Raises NotFound."""
        return await self.store.read(
            lambda session: _view(_visible_template(session, caller, template_id), caller)
        )

    async def create(
        self, caller: Caller, new: NewTaskTemplate, wrong: Mapping[str, str] = NOTHING_WRONG
    ) -> TaskTemplateView:
        """Creates a template, unless fields of it are `wrong`.

        Raises InvalidInput or NotFound with every problem, NotAllowed for a user who may not share.
        """

        def work(session: Session) -> TaskTemplateView:
            _check_sharing(session, caller, new.is_shared)
            self._check(session, caller, new.document, wrong)
            return _view(add_template(session, caller, new), caller)

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
                row = _template_to_change(session, caller, template_id)
            except NotFound:
                refuse(with_wrong([], wrong))
                raise
            given = {name for name in changes.__struct_fields__ if getattr(changes, name) is not UNSET}
            if row.user_id != caller.user_id and not given <= {"is_shared"}:
                raise NotAllowed(
                    f"the template '{row.name}' belongs to another administrator; you may only stop sharing "
                    "it (is_shared) or delete it"
                )
            _check_sharing(session, caller, changes.is_shared)
            self._check(session, caller, changes.document, wrong)
            _set_fields(row, changes)
            row.updated_at = utc_now()
            session.flush()
            return _view(row, caller)

        return await self.store.write(work)

    async def delete(self, caller: Caller, template_id: str) -> None:
        """Tasks that were created from it stay. Raises NotFound and NotAllowed."""
        await self.store.write(
            lambda session: session.delete(_template_to_change(session, caller, template_id))
        )

    async def instantiate(self, caller: Caller, template_id: str, given: TaskFromTemplate) -> TaskView:
        """Creates a task of the caller from a template.

        Raises NotFound for the template, and with every problem for what the caller does not have.
        """

        def work(session: Session) -> TaskView:
            row = _visible_template(session, caller, template_id)
            new, problems = resolve(session, caller, _document.decode(row.document))
            values = {name: value for name in given.__struct_fields__ if (value := getattr(given, name))}
            replaced = {"$.agent": "agent_id", "$.provider": "provider_id"}
            problems = [problem for problem in problems if replaced.get(problem.path) not in values]
            return task_view(
                session, create_task(session, caller, replace(new, **values), self.references, problems)
            )

        return await self.store.write(work)

    def _check(
        self,
        session: Session,
        caller: Caller,
        document: TaskDocument | UnsetType,
        wrong: Mapping[str, str],
    ) -> None:
        """Raises one error with the `wrong` fields and every problem of the document."""
        found: list[FieldError] = []
        problems: list[Problem] = []
        if document is not UNSET:
            new, missing = resolve(session, caller, document)
            new = replace(new, steps=with_ids(new.steps, []))
            fields, problems = new_task_problems(session, caller, new, self.references)
            found = [field._replace(path=f"$.document{field.path[1:]}") for field in (*missing, *fields)]
        refuse(with_wrong(found, wrong), () if wrong else problems)


def add_template(session: Session, caller: Caller, new: NewTaskTemplate) -> TaskTemplateRow:
    """Adds a template of the caller. Checks nothing."""
    now = utc_now()
    row = TaskTemplateRow(
        id=new_id(), user_id=caller.user_id, tenant_id=caller.tenant_id, created_at=now, updated_at=now
    )
    _set_fields(row, new)
    session.add(row)
    session.flush()
    return row


def template_document(row: TaskTemplateRow) -> TaskDocument:
    """The task of a template."""
    return _document.decode(row.document)


def transfer_shared_templates(session: Session, user_id: int, successor_id: int | None) -> None:
    """Transfers a user's shared templates to a successor. Without one they stay and are no longer shared."""
    values = {"is_shared": False} if successor_id is None else {"user_id": successor_id}
    is_shared = (TaskTemplateRow.user_id == user_id, TaskTemplateRow.is_shared)
    session.execute(update(TaskTemplateRow).where(*is_shared).values(values))


def _visible_to(caller: Caller) -> ColumnElement[bool]:
    is_usable = or_(TaskTemplateRow.user_id == caller.user_id, TaskTemplateRow.is_shared)
    return and_(TaskTemplateRow.tenant_id == caller.tenant_id, is_usable)


def _visible_template(session: Session, caller: Caller, template_id: str) -> TaskTemplateRow:
    query = select(TaskTemplateRow).where(TaskTemplateRow.id == template_id, _visible_to(caller))
    row = session.scalar(query)
    if row is None:
        raise NotFound("no task template with this id", kind="task_template_not_found")
    return row


def _template_to_change(session: Session, caller: Caller, template_id: str) -> TaskTemplateRow:
    row = _visible_template(session, caller, template_id)
    if row.is_shared and not is_admin_now(session, caller):
        raise NotAllowed(
            f"the template '{row.name}' is shared with the tenant; only administrators change it"
        )
    return row


def _check_sharing(session: Session, caller: Caller, is_shared: bool | UnsetType) -> None:
    if is_shared is True and not is_admin_now(session, caller):
        raise NotAllowed("only an administrator may share a template with the tenant")


def _set_fields(row: TaskTemplateRow, values: NewTaskTemplate | TaskTemplateChanges) -> None:
    for name in values.__struct_fields__:
        value: Any = getattr(values, name)
        if value is UNSET:
            continue
        if name == "document":
            value = msgspec.json.encode(value).decode()
        elif name == "name":
            value = value.strip()
        setattr(row, name, value)


def _fields(row: TaskTemplateRow, caller: Caller, kind: type[Struct]) -> dict[str, Any]:
    own = {"is_own", "document"}
    fields = {name: getattr(row, name) for name in kind.__struct_fields__ if name not in own}
    return {**fields, "is_own": row.user_id == caller.user_id}


def _view(row: TaskTemplateRow, caller: Caller) -> TaskTemplateView:
    return TaskTemplateView(document=_document.decode(row.document), **_fields(row, caller, TaskTemplateView))
