"""Projects: named groups of a user's conversations. Names need not be unique."""

from datetime import datetime

import msgspec
from msgspec import UNSET, UnsetType
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.conversations.models import ProjectRow
from luxx.errors import InvalidInput, NotFound
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.engine import Store


class ProjectView(msgspec.Struct, frozen=True, kw_only=True):
    """A project as the API shows it; its conversations have its id as their `project_id`."""

    id: str
    user_id: int
    name: str
    description: str
    created_at: datetime
    updated_at: datetime


class ProjectChange(msgspec.Struct, frozen=True, kw_only=True):
    """The fields to set; UNSET leaves a field unchanged."""

    name: str | UnsetType = UNSET
    description: str | UnsetType = UNSET


class ProjectService:
    """One per process."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def create(self, caller: Caller, *, name: str, description: str) -> ProjectView:
        now = utc_now()

        def work(session: Session) -> ProjectView:
            row = ProjectRow(
                id=new_id(), user_id=caller.user_id, name=_visible_name(name), description=description,
                created_at=now, updated_at=now,
            )  # fmt: skip
            session.add(row)
            session.flush()
            return _view(row)

        return await self._store.write(work)

    async def list_page(self, caller: Caller, *, page: int, page_size: int) -> tuple[list[ProjectView], int]:
        """The caller's projects, newest first, and their number."""

        def work(session: Session) -> tuple[list[ProjectView], int]:
            is_own = ProjectRow.user_id == caller.user_id
            total = session.scalar(select(func.count()).select_from(ProjectRow).where(is_own)) or 0
            newest = select(ProjectRow).where(is_own).order_by(ProjectRow.id.desc())
            rows = session.scalars(newest.limit(page_size).offset((page - 1) * page_size))
            return [_view(row) for row in rows], total

        return await self._store.read(work)

    async def get(self, caller: Caller, project_id: str) -> ProjectView:
        return await self._store.read(lambda session: _view(own_project(session, caller, project_id)))

    async def update(self, caller: Caller, project_id: str, changes: ProjectChange) -> ProjectView:
        """Sets the given fields."""

        def work(session: Session) -> ProjectView:
            row = own_project(session, caller, project_id)
            if isinstance(changes.name, str):
                row.name = _visible_name(changes.name)
            if isinstance(changes.description, str):
                row.description = changes.description
            row.updated_at = utc_now()
            session.flush()
            return _view(row)

        return await self._store.write(work)

    async def delete(self, caller: Caller, project_id: str) -> None:
        """Deletes the project; its conversations stay, without a project."""
        await self._store.write(lambda session: session.delete(own_project(session, caller, project_id)))


def own_project(session: Session, caller: Caller, project_id: str) -> ProjectRow:
    """The caller's project of this id. Raises NotFound."""
    row = session.get(ProjectRow, project_id)
    if row is None or row.user_id != caller.user_id:
        raise NotFound("no project with this id", kind="project_not_found")
    return row


def _visible_name(name: str) -> str:
    if not name.strip():
        raise InvalidInput("a project's name needs at least one visible character", field="$.name")
    return name.strip()


def _view(row: ProjectRow) -> ProjectView:
    return ProjectView(
        id=row.id,
        user_id=row.user_id,
        name=row.name,
        description=row.description,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
