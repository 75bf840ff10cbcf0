"""Scopes of memory: whose memory is read and written. Only `visible_scopes` makes lists of them.

A scope is written `user`, `project:ID`, `room:ID`, `tenant` or, of a knowledge base, `base:ID`. Its row
exists from the first fact on, that of a base from its beginning on.
"""

from collections.abc import Collection, Iterator
from typing import Any

import msgspec
from sqlalchemy import BindParameter, Connection, and_, bindparam, case, literal, select, union_all
from sqlalchemy.dialects import postgresql, sqlite

from luxx.domain.accounts.caller import Caller
from luxx.domain.conversations.models import ProjectRow
from luxx.domain.knowledge_bases import BASES, BaseMemberRow, BaseRight, KnowledgeBaseRow
from luxx.errors import InvalidInput, NotAllowed, NotFound
from luxx.features.memory.models import MemoryScopeRow
from luxx.features.rooms.models import ChatRoomRow, RoomRight
from luxx.features.rooms.queries import is_right_enough
from luxx.infra.clock import utc_now
from luxx.infra.store.tables import table_of
from luxx.runs.models import SubjectMemberRow
from luxx.wire.memory import ScopeKind

SCOPE_LENGTH = 50
"""Characters of a scope as written."""

IN_SCOPE = "user, tenant, project:ID, room:ID or base:ID"
_WITH_ID = (ScopeKind.PROJECT, ScopeKind.ROOM, ScopeKind.BASE)


class ScopeName(msgspec.Struct, frozen=True):
    """A scope as written. `target`: the id of the project, room or base, empty for the others."""

    kind: ScopeKind
    target: str = ""

    def __str__(self) -> str:
        return f"{self.kind.value}:{self.target}" if self.target else self.kind.value


USER_SCOPE = ScopeName(ScopeKind.USER)


def parse_scope(text: str, field: str = "scope") -> ScopeName:
    """Raises InvalidInput, naming `field`, for what is no scope."""
    kind, colon, target = text.partition(":")
    if kind not in list(ScopeKind):
        raise InvalidInput(f"must be one of {IN_SCOPE}", field=field)
    name = ScopeName(ScopeKind(kind), target)
    if name.kind not in _WITH_ID and colon:
        raise InvalidInput(f"'{kind}' takes no id; write only '{kind}'", field=field)
    if name.kind in _WITH_ID and not target:
        raise InvalidInput(f"'{kind}' needs an id: write {kind}:ID", field=field)
    if len(text) > SCOPE_LENGTH:
        raise InvalidInput(f"the id of a {kind} is shorter; copy it from the {kind}", field=field)
    return name


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where memory is used by a run. The page of a person is no place: there, everything visible counts.

    `project_id`: that of the conversation or task. `is_shared`: a task with members.
    """

    project_id: str | None = None
    room_id: str | None = None
    is_shared: bool = False

    @property
    def own_scope(self) -> ScopeName | None:
        """The scope of what a run stores here unless it names one; None: a shared task has no scope of its
        own outside of a project."""
        if self.room_id is not None:
            return ScopeName(ScopeKind.ROOM, self.room_id)
        if not self.is_shared:
            return USER_SCOPE
        return None if self.project_id is None else ScopeName(ScopeKind.PROJECT, self.project_id)

    def has(self, name: ScopeName) -> bool:
        """Whether memory of this scope is used here at all."""
        match name.kind:
            case ScopeKind.USER:
                return self.room_id is None and not self.is_shared
            case ScopeKind.PROJECT:
                return name.target == self.project_id and self.room_id is None
            case ScopeKind.ROOM:
                return name.target == self.room_id
            case ScopeKind.TENANT:
                return True
            case ScopeKind.BASE:
                return False  # Its documents are searched by a tool of their own.


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """A scope that the caller may read. `id` is that of its row; None: nothing was stored in it yet."""

    name: ScopeName
    can_write: bool
    id: int | None = None


class Scopes:
    """The scopes that a caller may read, at a place or everywhere. Made by `visible_scopes` only."""

    def __init__(self, caller: Caller, place: Place | None, found: Collection[Scope]) -> None:
        self.caller = caller
        self.place = place
        self._by_name = {scope.name: scope for scope in found}
        self.by_id = {scope.id: scope for scope in found if scope.id is not None}

    @property
    def ids(self) -> list[int]:
        """The ids of the scopes in which something may be stored; every query of memory is limited to
        them."""
        return list(self.by_id)

    def __iter__(self) -> Iterator[Scope]:
        return iter(self._by_name.values())

    def named(self, name: ScopeName) -> Scope:
        """Raises NotFound for a scope that the caller may not read here."""
        scope = self._by_name.get(name)
        if scope is None:
            raise NotFound(
                f"no {name.kind.value} with this id has memory that you may use here", kind="scope_not_found"
            )
        return scope

    def only(self, name: ScopeName | None) -> "Scopes":
        """These scopes without all others than `name`, if one is given. Raises NotFound."""
        return self if name is None else Scopes(self.caller, self.place, [self.named(name)])

    def with_scope(self, scope: Scope) -> "Scopes":
        """These scopes and one that got its row from `stored_scope`."""
        return Scopes(self.caller, self.place, [*self._by_name.values(), scope])

    def writable(self, name: ScopeName) -> Scope:
        """Raises NotFound, or NotAllowed if the caller may only read it."""
        scope = self.named(name)
        check_writable(scope)
        return scope


_NEEDED = {ScopeKind.TENANT: "be an ADMIN", ScopeKind.ROOM: "have the right to speak in the room"}


def check_writable(scope: Scope) -> None:
    """Raises NotAllowed if the caller may only read the scope."""
    if not scope.can_write:
        needed = _NEEDED.get(scope.name.kind, "have the right to write in this knowledge base")
        raise NotAllowed(f"you must {needed} to change what is remembered in this scope")


_scopes = table_of(MemoryScopeRow)
_projects = table_of(ProjectRow)
_rooms = table_of(ChatRoomRow)
_members = table_of(SubjectMemberRow)
_user: BindParameter[int] = bindparam("user")
_tenant: BindParameter[int] = bindparam("tenant")


def _of_kind(kind: ScopeKind, target: Any, right: Any) -> list[Any]:
    return [_scopes.c.id, literal(kind.value).label("kind"), target.label("target"), right.label("right")]


_visible = union_all(
    select(*_of_kind(ScopeKind.USER, literal(""), literal(""))).where(_scopes.c.user_id == _user),
    select(*_of_kind(ScopeKind.TENANT, literal(""), literal(""))).where(
        _scopes.c.tenant_id == _tenant, _scopes.c.kind == literal("tenant", literal_execute=True)
    ),
    select(*_of_kind(ScopeKind.PROJECT, _projects.c.id, literal("")))
    .select_from(_projects.outerjoin(_scopes, _scopes.c.project_id == _projects.c.id))
    .where(_projects.c.user_id == _user),
    select(*_of_kind(ScopeKind.ROOM, _rooms.c.id, literal(RoomRight.OWNER.value)))
    .select_from(_rooms.outerjoin(_scopes, _scopes.c.room_id == _rooms.c.id))
    .where(_rooms.c.user_id == _user),
    select(*_of_kind(ScopeKind.ROOM, _rooms.c.id, _members.c.right))
    .select_from(
        _members.join(
            _rooms, and_(_rooms.c.id == _members.c.subject_id, _rooms.c.tenant_id == _tenant)
        ).outerjoin(_scopes, _scopes.c.room_id == _rooms.c.id)
    )
    .where(_members.c.user_id == _user, _rooms.c.user_id != _user),
)
_bases, _base_members = table_of(KnowledgeBaseRow), table_of(BaseMemberRow)
_SHARED = "shared"
_visible_bases = (
    select(
        *_of_kind(
            ScopeKind.BASE,
            _bases.c.id,
            case(
                (_bases.c.user_id == _user, BaseRight.OWNER.value),
                (_base_members.c.right == BaseRight.WRITE.value, BaseRight.WRITE.value),
                (_bases.c.is_shared, _SHARED),
                else_=BaseRight.READ.value,
            ),
        )
    )
    .select_from(
        _bases.outerjoin(
            _base_members, and_(_base_members.c.base_id == _bases.c.id, _base_members.c.user_id == _user)
        ).outerjoin(_scopes, _scopes.c.base_id == _bases.c.id)
    )
    .where(BASES.is_visible(_tenant, _user))
)


def visible_scopes(connection: Connection, caller: Caller, place: Place | None = None) -> Scopes:
    """The scopes that the caller may read: the own one, projects that they own, rooms that they own or are a
    member of, that of the tenant, and knowledge bases. `place` restricts them to those that a run uses
    there, which are never those of bases."""
    values = {"user": caller.user_id, "tenant": caller.tenant_id}
    rows = connection.execute(_visible, values).all()
    if place is None:
        rows = [*rows, *connection.execute(_visible_bases, values)]
    found = {scope.name: scope for scope in (_scope(row, caller) for row in rows)}
    for kind, can_write in ((ScopeKind.USER, True), (ScopeKind.TENANT, caller.is_admin)):
        found.setdefault(ScopeName(kind), Scope(name=ScopeName(kind), can_write=can_write))
    return Scopes(
        caller, place, [scope for scope in found.values() if place is None or place.has(scope.name)]
    )


def _scope(row: Any, caller: Caller) -> Scope:
    kind = ScopeKind(row.kind)
    match kind:
        case ScopeKind.USER | ScopeKind.PROJECT:
            can_write = True
        case ScopeKind.ROOM:
            can_write = is_right_enough(RoomRight(row.right), RoomRight.SPEAK)
        case ScopeKind.TENANT:
            can_write = caller.is_admin
        case ScopeKind.BASE:
            can_write = caller.is_admin if row.right == _SHARED else row.right != BaseRight.READ.value
    return Scope(name=ScopeName(kind, row.target), can_write=can_write, id=row.id)


_TARGETS = {
    ScopeKind.USER: "user_id",
    ScopeKind.PROJECT: "project_id",
    ScopeKind.ROOM: "room_id",
    ScopeKind.BASE: "base_id",
}
_dialects: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}
_insert = {name: insert(_scopes).on_conflict_do_nothing() for name, insert in _dialects.items()}


def stored_scope(connection: Connection, scopes: Scopes, name: ScopeName) -> Scope:
    """A scope that the caller may write, with a row: it is inserted if nothing was stored in it before, by
    one of several transactions. Raises NotFound or NotAllowed."""
    scope = scopes.writable(name)
    if scope.id is not None:
        return scope
    caller = scopes.caller
    target: dict[str, Any] = {}
    if name.kind in _TARGETS:
        target = {_TARGETS[name.kind]: caller.user_id if name.kind == ScopeKind.USER else name.target}
    values = {"tenant_id": caller.tenant_id, "kind": name.kind.value, "created_at": utc_now(), **target}
    connection.execute(_insert[connection.dialect.name].values(**values))
    condition = _scopes.c.kind == name.kind.value
    if target:
        ((column, value),) = target.items()
        condition = _scopes.c[column] == value
    else:
        condition &= _scopes.c.tenant_id == caller.tenant_id
    row_id = connection.execute(select(_scopes.c.id).where(condition)).scalar_one()
    return msgspec.structs.replace(scope, id=row_id)
