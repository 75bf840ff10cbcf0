"""Knowledge bases and their members, as people manage them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.models import User
from luxx.domain.accounts.users import check_member_name, find_new_member
from luxx.domain.agents.models import AgentRow
from luxx.domain.conversations.models import ConversationRow
from luxx.domain.conversations.service import own_project
from luxx.domain.knowledge_bases import (
    BASES,
    NAME_LENGTH,
    BaseMemberRow,
    BaseRight,
    KnowledgeBaseRow,
    find_base,
    named_in,
    rights_to,
)
from luxx.domain.owned import given_fields
from luxx.errors import Conflict, InvalidInput, NotFound
from luxx.features.knowledge.deletion import BaseDeletion, hide_base
from luxx.features.knowledge.models import DocumentRow
from luxx.features.knowledge.search import ChunkSearch, FoundChunk
from luxx.features.memory.scopes import ScopeName, stored_scope, visible_scopes
from luxx.features.rooms.models import ChatRoomRow
from luxx.infra.clock import utc_now
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import table_of
from luxx.infra.strict_json import IN_NAME, NAME
from luxx.wire.memory import ScopeKind
from luxx.wire.model_settings import MAX_ID

MAX_MEMBERS = 100
"""Members of a knowledge base."""


class BaseScope(StrEnum):
    """Who reads a base besides its members: its owner, conversations of a project, or the whole tenant."""

    USER = "user"
    PROJECT = "project"
    TENANT = "tenant"


BaseName = Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH, pattern=NAME, description=IN_NAME)]
BaseDescription = Annotated[str, Meta(max_length=2_000)]
ProjectId = Annotated[str, Meta(min_length=1, max_length=36)]


class NewBase(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A knowledge base to create. `project_id` belongs to the scope `project` only."""

    name: BaseName
    description: BaseDescription = ""
    scope: BaseScope = BaseScope.USER
    project_id: ProjectId | None = None


class BaseChanges(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Omitted fields do not change."""

    name: BaseName | UnsetType = UNSET
    description: BaseDescription | UnsetType = UNSET
    scope: BaseScope | UnsetType = UNSET
    project_id: ProjectId | UnsetType | None = UNSET


class BaseColumns(Struct, frozen=True, kw_only=True):
    """The fields of a base as columns of its row."""

    name: str | UnsetType = UNSET
    description: str | UnsetType = UNSET
    is_shared: bool | UnsetType = UNSET
    project_id: str | UnsetType | None = UNSET


class BaseView(Struct, frozen=True, kw_only=True):
    """A knowledge base as the API shows it. `right` is the caller's, `user_id` the owner."""

    id: str
    user_id: int
    name: str
    description: str
    scope: BaseScope
    project_id: str | None
    right: BaseRight
    documents: int
    created_at: datetime
    updated_at: datetime


class DocumentRight(StrEnum):
    """What a member may do in a knowledge base. `write` includes `read`."""

    READ = "read"
    WRITE = "write"


class NewBaseMember(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A user of the owner's tenant, by `user_id` or `username`."""

    user_id: Annotated[int, Meta(ge=1, le=MAX_ID)] | None = None
    username: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    right: DocumentRight


class BaseMemberView(Struct, frozen=True, kw_only=True):
    """A member of a knowledge base."""

    user_id: int
    username: str
    right: DocumentRight
    created_at: datetime


@dataclass(frozen=True, slots=True)
class KnowledgeService:
    """One per process."""

    store: Store
    searches: ChunkSearch
    deletion: BaseDeletion

    async def list_page(
        self, caller: Caller, part: str | None, *, page: int, page_size: int
    ) -> tuple[list[BaseView], int]:
        """The bases that the caller may read, newest first, and their number. `part`: only those whose name
        or description contains it."""

        def work(session: Session) -> tuple[list[BaseView], int]:
            conditions = [BASES.has(session, part)] if part else []
            rows, total = BASES.page(session, caller, *conditions, page=page, page_size=page_size)
            return _views(session, rows, caller), total

        return await self.store.read(work)

    async def get(self, caller: Caller, base_id: str) -> BaseView:
        """Raises NotFound."""
        return await self.store.read(
            lambda session: _view(session, BASES.visible(session, caller, base_id), caller)
        )

    async def create(self, caller: Caller, new: NewBase) -> BaseView:
        """Raises NotFound for a project, NotAllowed for who may not share, Conflict for a taken name or too
        many bases."""

        def work(session: Session) -> BaseView:
            row = add_base(session, caller, _columns(session, caller, new))
            return _view(session, row, caller)

        return await self.store.write(work)

    async def update(self, caller: Caller, base_id: str, changes: BaseChanges) -> BaseView:
        """Sets the given fields. Raises what `create` raises, and NotAllowed for who may not change it."""

        def work(session: Session) -> BaseView:
            row = BASES.visible(session, caller, base_id)
            columns = _columns(session, caller, changes, row)
            row = BASES.to_change(session, caller, base_id, columns)
            BASES.set(session, row, columns)
            return _view(session, row, caller)

        return await self.store.write(work)

    async def delete(self, caller: Caller, base_id: str) -> None:
        """Deletes a base with its documents; nothing names it any more. Raises NotFound and NotAllowed."""

        def work(session: Session) -> None:
            row = BASES.to_change(session, caller, base_id, None)
            _forget_named(session, row.id)
            hide_base(session, row)

        await self.store.write(work)
        await self.deletion.finish(base_id)

    async def search(self, caller: Caller, base_id: str, query: str, limit: int) -> list[FoundChunk]:
        """The passages of a base that fit a text best. Raises NotFound."""

        def scopes_of(session: Session) -> list[int]:
            base = find_base(session, caller, base_id)
            scope = visible_scopes(session.connection(), caller).named(ScopeName(ScopeKind.BASE, base.id))
            return [] if scope.id is None else [scope.id]

        found = await self.searches.find(scopes_of, query, user_id=caller.user_id, limit=limit)
        return found.items

    # Members

    async def members(
        self, caller: Caller, base_id: str, *, page: int, page_size: int
    ) -> tuple[list[BaseMemberView], int]:
        """The members of a base in the order in which they were added, and their number."""

        def work(session: Session) -> tuple[list[BaseMemberView], int]:
            base = find_base(session, caller, base_id)
            query = (
                select(BaseMemberRow, User.username)
                .join(User, User.id == BaseMemberRow.user_id)
                .where(BaseMemberRow.base_id == base.id)
                .order_by(BaseMemberRow.created_at, BaseMemberRow.user_id)
            )
            rows = session.execute(query.limit(page_size).offset((page - 1) * page_size))
            return [_member_view(row, username) for row, username in rows], _count(session, base)

        return await self.store.read(work)

    async def add_member(self, caller: Caller, base_id: str, new: NewBaseMember) -> BaseMemberView:
        """Adds a user of the owner's tenant. Raises NotFound, NotAllowed, InvalidInput, or Conflict if the
        user is a member already or there are MAX_MEMBERS."""
        check_member_name(new.user_id, new.username)

        def work(session: Session) -> BaseMemberView:
            base = find_base(session, caller, base_id, BaseRight.OWNER, is_locked=True)
            user = find_new_member(session, base.tenant_id, new.user_id, new.username)
            if user.id == base.user_id:
                raise InvalidInput("you own this knowledge base and have every right", kind="own_base")
            if session.get(BaseMemberRow, (base.id, user.id)) is not None:
                raise Conflict(
                    f"'{user.username}' is a member already; change the right with PUT", kind="member_exists"
                )
            if _count(session, base) >= MAX_MEMBERS:
                raise Conflict(
                    f"a knowledge base has at most {MAX_MEMBERS} members; remove one first",
                    kind="too_many_members",
                )
            row = BaseMemberRow(base_id=base.id, user_id=user.id, right=new.right.value, created_at=utc_now())
            session.add(row)
            session.flush()
            return _member_view(row, user.username)

        return await self.store.write(work)

    async def change_member(
        self, caller: Caller, base_id: str, user_id: int, right: DocumentRight
    ) -> BaseMemberView:
        """Sets the right of a member. Raises NotFound or NotAllowed."""

        def work(session: Session) -> BaseMemberView:
            base = find_base(session, caller, base_id, BaseRight.OWNER, is_locked=True)
            row = _find_member(session, base, user_id)
            row.right = right.value
            session.flush()
            return _member_view(row, session.get_one(User, user_id).username)

        return await self.store.write(work)

    async def remove_member(self, caller: Caller, base_id: str, user_id: int) -> None:
        """Removes a member, whose next query finds nothing here; members may remove themselves. Raises
        NotFound or NotAllowed."""
        right = BaseRight.READ if user_id == caller.user_id else BaseRight.OWNER

        def work(session: Session) -> None:
            base = find_base(session, caller, base_id, right, is_locked=True)
            session.delete(_find_member(session, base, user_id))

        await self.store.write(work)


def add_base(session: Session, caller: Caller, columns: BaseColumns) -> KnowledgeBaseRow:
    """A new base of the caller, with a scope of its own. Raises NotAllowed or Conflict."""
    BASES.check_sharing(session, caller, columns.is_shared)
    names = BASES.lock_names(session, caller.user_id)
    BASES.check_limit(names)
    assert isinstance(columns.name, str)
    BASES.check_name(columns.name, names)
    row = BASES.add(session, caller, columns)
    connection = session.connection()
    stored_scope(connection, visible_scopes(connection, caller), ScopeName(ScopeKind.BASE, row.id))
    return row


_NAMING = (table_of(ConversationRow), table_of(AgentRow), table_of(ChatRoomRow))


def _forget_named(session: Session, base_id: str) -> None:
    """Removes the id of a base that is deleted from what names it."""
    connection = session.connection()
    for table in _NAMING:
        naming = select(table.c.id, table.c.knowledge).where(table.c.knowledge.contains(base_id))
        for row in connection.execute(naming).all():
            rest = [each for each in named_in(row.knowledge) if each != base_id]
            values = {"knowledge": msgspec.json.encode(rest).decode()}
            connection.execute(update(table).where(table.c.id == row.id).values(**values))


def _columns(
    session: Session, caller: Caller, given: NewBase | BaseChanges, row: KnowledgeBaseRow | None = None
) -> BaseColumns:
    """The columns that a request sets. Raises InvalidInput or NotFound for a project that does not fit."""
    columns = given_fields(given)
    if "name" in columns:
        columns["name"] = columns["name"].strip()
    scope = columns.pop("scope", UNSET)
    if scope is UNSET and "project_id" not in columns:
        return BaseColumns(**columns)
    if scope is UNSET:
        scope = BaseScope.USER if row is None else _scope_of(row)
    project_id = columns.pop("project_id", None if row is None else row.project_id)
    if scope != BaseScope.PROJECT:
        if given.project_id:
            problem = "only a knowledge base of the scope 'project' has a project"
            raise InvalidInput(problem, field="$.project_id")
        project_id = None
    elif project_id is None:
        raise InvalidInput("the scope 'project' needs the id of a project", field="$.project_id")
    elif row is None or project_id != row.project_id:
        try:
            own_project(session, caller, project_id)
        except NotFound as error:
            raise error.about("$.project_id") from error
    return BaseColumns(**columns, is_shared=scope == BaseScope.TENANT, project_id=project_id)


def _scope_of(row: KnowledgeBaseRow) -> BaseScope:
    if row.is_shared:
        return BaseScope.TENANT
    return BaseScope.USER if row.project_id is None else BaseScope.PROJECT


def _view(session: Session, row: KnowledgeBaseRow, caller: Caller) -> BaseView:
    return _views(session, [row], caller)[0]


def _views(session: Session, rows: Sequence[KnowledgeBaseRow], caller: Caller) -> list[BaseView]:
    counted = select(DocumentRow.base_id, func.count()).group_by(DocumentRow.base_id)
    counted = counted.where(DocumentRow.base_id.in_([row.id for row in rows]))
    counts = dict(session.execute(counted).all())
    rights = rights_to(session, caller, rows)
    names: list[Any] = ["id", "user_id", "name", "description", "project_id", "created_at", "updated_at"]
    return [
        BaseView(
            **{name: getattr(row, name) for name in names},
            scope=_scope_of(row),
            right=rights[row.id],
            documents=counts.get(row.id, 0),
        )
        for row in rows
    ]


def _count(session: Session, base: KnowledgeBaseRow) -> int:
    return session.scalar(select(func.count()).where(BaseMemberRow.base_id == base.id)) or 0


def _find_member(session: Session, base: KnowledgeBaseRow, user_id: int) -> BaseMemberRow:
    row = session.get(BaseMemberRow, (base.id, user_id)) if 0 < user_id <= MAX_ID else None
    if row is None:
        raise NotFound("this knowledge base has no member with this id", kind="member_not_found")
    return row


def _member_view(row: BaseMemberRow, username: str) -> BaseMemberView:
    return BaseMemberView(
        user_id=row.user_id, username=username, right=DocumentRight(row.right), created_at=row.created_at
    )
