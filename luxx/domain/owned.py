"""What users own in a tenant and may share with it: the columns, and one set of rules for all such rows.

A feature describes its table by an `Owned` or a `Shared`: which rows a caller finds and may change, unique
names, who takes over shared rows, the audit log, and the rows in an export of a user's data.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, UnsetType
from sqlalchemy import ColumnElement, Exists, ForeignKey, and_, exists, or_, select
from sqlalchemy.orm import InstrumentedAttribute, Mapped, Session, mapped_column
from sqlalchemy.sql.base import ExecutableOption

from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.rights import is_admin_now
from luxx.domain.audit import Action, Actor, AuditEntry, Detail, record
from luxx.errors import Conflict, NotAllowed, NotFound
from luxx.infra.clock import utc_now
from luxx.infra.store.engine import Store, contains_text
from luxx.infra.store.tables import Base, Lock, UtcDateTime, first_given, lock_until_commit, read_page
from luxx.wire.model_settings import MAX_ID


class OwnedColumns:
    """The columns of rows that belong to a user."""

    user_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class OwnedRow(OwnedColumns, Base):
    """A row that belongs to a user and has a name. Its table declares `id` and `name`."""

    __abstract__ = True

    id: Mapped[Any]
    name: Mapped[str]


class SharedRow(OwnedRow):
    """A row that everybody in the tenant may use if it is shared."""

    __abstract__ = True

    is_shared: Mapped[bool] = mapped_column(default=False)


R = TypeVar("R", bound=OwnedRow)
S = TypeVar("S", bound=SharedRow)
View = TypeVar("View", bound=msgspec.Struct)


def given_fields(values: msgspec.Struct) -> dict[str, Any]:
    """The fields of a struct that are not UNSET."""
    fields = {name: getattr(values, name) for name in values.__struct_fields__}
    return {name: value for name, value in fields.items() if value is not UNSET}


def view_of(view: type[View], row: OwnedRow, caller: Caller, **computed: Any) -> View:
    """A row as the API shows it. `computed`: the fields that are no columns, besides `is_own`."""
    computed["is_own"] = row.user_id == caller.user_id
    columns = [name for name in view.__struct_fields__ if name not in computed]
    return view(**first_given(row, names=columns), **computed)


@dataclass(frozen=True, kw_only=True, eq=False)
class Owned(Generic[R]):
    """Rows that users own. `noun` is the word for one in sentences and in the kinds of errors.

    `limit`: how many a user has at most, with unique names of at most `name_length` characters; None: names
    may repeat.
    """

    row: type[R]
    noun: str
    limit: int | None = None
    name_length: int = 0
    full_text: str = "you have {limit} {noun}s, which is the limit; delete one that you no longer use"
    taken_text: str = "you already have a {noun} named '{name}'; choose another name"

    def is_visible(self, tenant_id: Any, user_id: Any) -> ColumnElement[bool]:
        """The condition on the rows that a user may use; the ids may be parameters of a statement."""
        return and_(self.row.tenant_id == tenant_id, self.row.user_id == user_id)

    def visible_to(self, caller: Caller) -> ColumnElement[bool]:
        """The condition on the rows that the caller may use."""
        return self.is_visible(caller.tenant_id, caller.user_id)

    def has_visible(self, tenant_id: Any, user_id: Any, *conditions: ColumnElement[bool]) -> Exists:
        """Whether a user may use one of the rows with these conditions, as a column of a statement."""
        return exists().where(*conditions, self.is_visible(tenant_id, user_id))

    def visible(self, session: Session, caller: Caller, row_id: int | str, *, is_locked: bool = False) -> R:
        """A row that the caller may use. Raises NotFound. `is_locked`: locks it for a write."""
        row = None
        if isinstance(row_id, str) or 0 < row_id <= MAX_ID:
            query = select(self.row).where(self.row.id == row_id, self.visible_to(caller))
            row = session.scalar(query.with_for_update() if is_locked else query)
        if row is None:
            raise self.not_found(row_id)
        return row

    def not_found(self, row_id: int | str) -> NotFound:
        """The error for a row that does not exist or that the caller may not use."""
        is_number = isinstance(row_id, int)
        problem = f"there is no {self.noun} {row_id}" if is_number else f"no {self.noun} with this id"
        return NotFound(problem, kind=f"{self._kind}_not_found")

    @property
    def _kind(self) -> str:
        return self.noun.replace(" ", "_")

    def page(
        self,
        session: Session,
        caller: Caller,
        *conditions: ColumnElement[bool],
        page: int,
        page_size: int,
        order: Sequence[ColumnElement[Any]] = (),
        options: Sequence[ExecutableOption] = (),
    ) -> tuple[list[R], int]:
        """A page of the rows that the caller may use, by `order` and newest first, and the number of all.

        `options`: those of the query of the page.
        """
        query = select(self.row).where(self.visible_to(caller), *conditions)
        ordered = query.order_by(*order, self.row.id.desc())
        return read_page(session, ordered, page=page, page_size=page_size, options=options)

    def lock_names(self, session: Session, user_id: int) -> set[str]:
        """The names of a user's rows; no other transaction changes them until this one ends."""
        lock_until_commit(session.connection(), Lock.USER_NAMES, user_id)
        return set(session.scalars(select(self.row.name).where(self.row.user_id == user_id)))

    def check_limit(self, names: Collection[str]) -> None:
        """Raises Conflict if a user with these names has as many rows as possible."""
        if self.limit is not None and len(names) >= self.limit:
            problem = self.full_text.format(limit=self.limit, noun=self.noun)
            raise Conflict(problem, kind=f"{self._kind}s_full")

    def check_name(self, name: str, names: Collection[str]) -> None:
        """Raises Conflict for a taken name."""
        if name in names:
            problem = self.taken_text.format(noun=self.noun, name=name)
            raise Conflict(problem, kind=f"{self._kind}_name_taken")

    def is_importable(self, name: str, names: Collection[str], notes: list[str]) -> bool:
        """Whether an import can add a row of this name; if not, a note says so."""
        if name not in names and (self.limit is None or len(names) < self.limit):
            return True
        notes.append(f"the {self.noun} {name} was left out: the name is taken, or there are too many")
        return False


@dataclass(frozen=True, kw_only=True, eq=False)
class Shared(Owned[S]):
    """Rows that users own and that administrators share with their tenant.

    `short`: the noun in sentences, if it is not `noun`. `is_public`: the condition on the rows without an
    owner, which everybody may use and nobody change. `admin_fields`: what an administrator may change in the
    shared row of another one. `before_transfer` is called before a successor, or nobody (None), gets a shared
    row. `new`: the struct that a row is created and exported as, for those that are exported by themselves;
    `check` raises InvalidInput for one with wrong values; `columns` returns the columns that one sets.
    """

    short: str = ""
    is_public: ColumnElement[bool] | None = None
    is_audited: bool = False
    admin_fields: frozenset[str] = frozenset({"is_shared"})
    shared_text: str = "the {noun} '{name}' is shared with the tenant; only administrators change it"
    others_text: str = (
        "the {noun} '{name}' belongs to another administrator; you may only stop sharing it (is_shared) or "
        "delete it"
    )
    before_transfer: Callable[[Session, S, int | None], None] | None = None
    new: type[msgspec.Struct] | None = None
    check: Callable[[Any], None] = lambda _values: None
    columns: Callable[[Any], Mapping[str, Any]] = given_fields
    searched: Sequence[InstrumentedAttribute[str]] = ()

    @property
    def word(self) -> str:
        return self.short or self.noun

    def is_visible(self, tenant_id: Any, user_id: Any) -> ColumnElement[bool]:
        """A user's own rows, those shared in the tenant, and those without an owner."""
        is_usable = or_(self.row.user_id == user_id, self.row.is_shared)
        in_tenant = and_(self.row.tenant_id == tenant_id, is_usable)
        return in_tenant if self.is_public is None else or_(in_tenant, self.is_public)

    def check_sharing(self, session: Session | None, caller: Caller, is_shared: bool | UnsetType) -> None:
        """Raises NotAllowed if a user without the administrator right shares a row.

        Without a session it is a check before the write transaction, which repeats it.
        """
        if is_shared is not True:
            return
        if not (caller.is_admin if session is None else is_admin_now(session, caller)):
            article = "an" if self.word[0] in "aeiou" else "a"
            raise NotAllowed(f"only an administrator may share {article} {self.word} with the tenant")

    def check_changeable(self, row: S, *, is_admin: bool) -> None:
        """Raises NotAllowed for a shared row, unless an administrator asks, and for one without an owner."""
        if row.user_id is None:  # pyright: ignore[reportUnnecessaryComparison]
            raise NotAllowed(
                f"the {self.word} '{row.name}' comes with Luxx; export it and import it to have one of your "
                "own"
            )
        if row.is_shared and not is_admin:
            raise NotAllowed(self.shared_text.format(noun=self.word, name=row.name))

    def check_own(self, row: S, caller: Caller) -> None:
        """Raises NotAllowed for the row of another administrator."""
        if row.user_id != caller.user_id:
            raise NotAllowed(self.others_text.format(noun=self.word, name=row.name))

    def to_change(
        self,
        session: Session,
        caller: Caller,
        row_id: int | str,
        changes: msgspec.Struct | None,
        *,
        is_locked: bool = True,
    ) -> S:
        """The row, if the caller may make these changes; None means to delete it.

        Raises NotFound or NotAllowed. `is_locked` is false for a check without a write.
        """
        is_admin = is_admin_now(session, caller) if is_locked else caller.is_admin
        row = self.visible(session, caller, row_id, is_locked=is_locked)
        self.check_changeable(row, is_admin=is_admin)
        if changes is not None:
            given = given_fields(changes)
            if not self.admin_fields.issuperset(given):
                self.check_own(row, caller)
            self.check_sharing(session if is_locked else None, caller, given.get("is_shared", UNSET))
        return row

    def add(self, session: Session, caller: Caller, new: msgspec.Struct, **columns: Any) -> S:
        """Adds a row of the caller. Checks nothing. `columns` replace the values of others."""
        now = utc_now()
        values = {"created_at": now, "updated_at": now, **self.columns(new), **columns}
        row = self.row(user_id=caller.user_id, tenant_id=caller.tenant_id, **values)
        session.add(row)
        session.flush()
        return row

    def set(self, session: Session, row: S, changes: msgspec.Struct) -> None:
        """Sets the given fields of a row. Raises Conflict for a taken name, if names are unique."""
        columns = self.columns(changes)
        name = columns.get("name", row.name)
        if self.limit is not None and name != row.name:
            self.check_name(name, self.lock_names(session, row.user_id))
        for column, value in columns.items():
            setattr(row, column, value)
        row.updated_at = utc_now()
        session.flush()

    def transfer(self, session: Session, user_id: int, successor_id: int | None, actor: Actor) -> None:
        """Transfers a user's shared rows to a successor. Without one they stay and are no longer shared.

        A unique name that the successor already has gets a number.
        """
        shared = select(self.row).where(self.row.user_id == user_id, self.row.is_shared).order_by(self.row.id)
        rows = session.scalars(shared.with_for_update()).all()
        names = set[str]()
        if rows and successor_id is not None and self.limit is not None:
            names = self.lock_names(session, successor_id)
        for row in rows:
            if self.before_transfer is not None:
                self.before_transfer(session, row, successor_id)
            if successor_id is None:
                row.is_shared = False
            else:
                if self.limit is not None:
                    row.name = _free_name(row.name, names, self.name_length)
                    names.add(row.name)
                row.user_id = successor_id
            self.record(session, actor, "change", row, ["is_shared" if successor_id is None else "user_id"])
        session.flush()

    def record(
        self, session: Session, actor: Actor, what: str, row: S, fields: list[str] | UnsetType = UNSET
    ) -> None:
        """Writes the audit entry for a row that is created, changed or deleted (`what`), if these are
        audited. It has the names of the changed fields, not their values."""
        if not self.is_audited:
            return
        entry = AuditEntry(
            action=Action(f"{self.noun}_{what}"),
            actor=actor,
            target_type=self.noun,
            target_id=str(row.id),
            tenant_id=row.tenant_id,
            detail=Detail(name=row.name, fields=fields),
        )
        record(session, entry)

    def has(self, session: Session, part: str) -> ColumnElement[bool]:
        """Whether one of the searched columns contains the text, whatever the letter case."""
        dialect = session.connection().dialect.name
        return or_(*(contains_text(dialect, column, part) for column in self.searched))


def _free_name(name: str, names: Collection[str], length: int) -> str:
    free, number = name, 2
    while free in names:
        end = f"-{number}"
        free, number = name[: length - len(end)] + end, number + 1
    return free


class SharedService(Generic[S, View]):
    """Lists, shows, creates, changes and deletes the rows of a `Shared`, as views of the API."""

    def __init__(self, store: Store, shared: Shared[S], view: Callable[[S, Caller], View]) -> None:
        self._store = store
        self._shared = shared
        self._view = view

    async def list_page(
        self, caller: Caller, *, part: str | None = None, page: int, page_size: int
    ) -> tuple[list[View], int]:
        """The caller's rows and those shared in the tenant, newest first, and their number.

        `part`: only those whose searched columns contain it, whatever the letter case.
        """

        def work(session: Session) -> tuple[list[View], int]:
            conditions = [self._shared.has(session, part)] if part else []
            rows, total = self._shared.page(session, caller, *conditions, page=page, page_size=page_size)
            return [self._view(row, caller) for row in rows], total

        return await self._store.read(work)

    async def get(self, caller: Caller, row_id: str) -> View:
        """Raises NotFound."""
        return await self._store.read(
            lambda session: self._view(self._shared.visible(session, caller, row_id), caller)
        )

    async def create(self, caller: Caller, new: Any) -> View:
        """Raises InvalidInput for wrong values, Conflict for a taken name or too many rows, and NotAllowed
        for a user who may not share."""
        self._shared.check(new)

        def work(session: Session) -> View:
            self._shared.check_sharing(session, caller, new.is_shared)
            if self._shared.limit is not None:
                names = self._shared.lock_names(session, caller.user_id)
                self._shared.check_limit(names)
                self._shared.check_name(new.name, names)
            return self._view(self._shared.add(session, caller, new), caller)

        return await self._store.write(work)

    async def update(self, caller: Caller, row_id: str, changes: Any) -> View:
        """Sets the given fields. Raises what `create` raises, NotFound, and NotAllowed for the row of
        somebody else, of which an ADMIN may only end the sharing."""
        self._shared.check(changes)

        def work(session: Session) -> View:
            row = self._shared.to_change(session, caller, row_id, changes)
            self._shared.set(session, row, changes)
            return self._view(row, caller)

        return await self._store.write(work)

    async def delete(self, caller: Caller, row_id: str) -> None:
        """Raises NotFound and NotAllowed."""
        await self._store.write(
            lambda session: session.delete(self._shared.to_change(session, caller, row_id, None))
        )
