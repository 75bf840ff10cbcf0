"""Compositions of tools: their table, and the service that stores them and is the source of them as tools."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial

import msgspec
import structlog
from msgspec.structs import asdict
from sqlalchemy import Connection, Index, String, Text, UniqueConstraint, bindparam, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Mapped, Session, mapped_column

from luxx.domain.accounts.caller import Caller
from luxx.domain.owned import Owned, OwnedRow
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import table_of
from luxx.tools.compositions.chain import definition_of, traits_of
from luxx.tools.compositions.checking import check_composition
from luxx.tools.core import CommandPermission, FoundTool, Risk, ToolDefinition, ToolSet
from luxx.tools.executor import ToolExecutor
from luxx.tools.schema import ArgumentCheck
from luxx.tools.sources import ToolSource, ToolSources
from luxx.wire.tool import Composition, CompositionKind, Member, Parameter

MAX_COMPOSITIONS = 50
"""Per user."""


class CompositionRow(OwnedRow):
    """`document` is a CompositionBody as JSON."""

    __tablename__ = "tool_compositions"
    __table_args__ = (
        UniqueConstraint("user_id", "name"),
        Index("ix_tool_compositions_tenant_id", "tenant_id"),
    )

    id: Mapped[str] = mapped_column(String(36), primary_key=True, default=new_id)
    name: Mapped[str] = mapped_column(String(64))
    description: Mapped[str] = mapped_column(Text)
    kind: Mapped[str] = mapped_column(String(20))
    document: Mapped[str] = mapped_column(Text)
    timeout_seconds: Mapped[int] = mapped_column()
    success_count: Mapped[int] = mapped_column()
    failure_count: Mapped[int] = mapped_column()


COMPOSITIONS = Owned(
    row=CompositionRow,
    noun="composition",
    limit=MAX_COMPOSITIONS,
    full_text="you have {limit} {noun}s, which is the limit; delete one",
    taken_text="you already have a {noun} named {name}",
)


class CompositionBody(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters and members of a composition."""

    parameters: list[Parameter]
    members: list[Member]


class StoredComposition(msgspec.Struct, frozen=True, kw_only=True):
    """A composition as a run needs it; `document` is decoded on use."""

    id: str
    name: str
    description: str
    kind: str
    document: str
    timeout_seconds: int


_compositions = table_of(CompositionRow)
_fields = tuple(_compositions.c[name] for name in StoredComposition.__struct_fields__)
_select_own = (
    select(*_fields).where(_compositions.c.user_id == bindparam("user_id")).order_by(_compositions.c.id)
)
_by_id = _compositions.c.id == bindparam("composition_id")
_succeeded = update(_compositions).where(_by_id).values(success_count=_compositions.c.success_count + 1)
_failed = update(_compositions).where(_by_id).values(failure_count=_compositions.c.failure_count + 1)
_decode = msgspec.json.Decoder(CompositionBody).decode


def composition_of(row: StoredComposition | CompositionRow) -> Composition:
    """The composition as its owner wrote it."""
    body = _decode(row.document)
    return Composition(
        name=row.name,
        description=row.description,
        kind=CompositionKind(row.kind),
        parameters=body.parameters,
        members=body.members,
        timeout_seconds=row.timeout_seconds,
    )


def document_of(composition: Composition) -> str:
    """The content of the column `document`."""
    body = CompositionBody(parameters=composition.parameters, members=composition.members)
    return msgspec.json.encode(body).decode()


def new_row(tenant_id: int, user_id: int, composition: Composition, now: datetime) -> CompositionRow:
    """A new row with counters at zero."""
    row = CompositionRow(
        tenant_id=tenant_id, user_id=user_id, success_count=0, failure_count=0, created_at=now
    )
    update_row(row, composition, now)
    return row


def update_row(row: CompositionRow, composition: Composition, now: datetime) -> None:
    """Write the composition into the row and keep the counters."""
    row.name = composition.name
    row.description = composition.description
    row.kind = composition.kind.value
    row.document = document_of(composition)
    row.timeout_seconds = composition.timeout_seconds
    row.updated_at = now


def read_own(connection: Connection, user_id: int) -> list[StoredComposition]:
    """All compositions of a user, oldest first."""
    rows = connection.execute(_select_own, {"user_id": user_id}).mappings()
    return [msgspec.convert(dict(row), StoredComposition) for row in rows]


def count_call(connection: Connection, composition_id: str, *, is_success: bool) -> None:
    """Add one to the success or failure counter, atomically."""
    connection.execute(_succeeded if is_success else _failed, {"composition_id": composition_id})


class Compositions(ToolSet):
    """One user's compositions as tools; their members call tools of `shared`."""

    def __init__(
        self,
        stored: Sequence[StoredComposition],
        shared: ToolSet,
        executor: ToolExecutor,
        count: Callable[[str, bool], Awaitable[None]],
    ) -> None:
        self._stored = {each.name: each for each in stored}
        self._shared = shared
        self._executor = executor
        self._count = count
        self._definitions: dict[str, FoundTool] = {}

    def lookup(self, name: str) -> FoundTool | None:
        if name not in self._definitions and (stored := self._stored.get(name)) is not None:
            definition = self._define(stored)
            self._definitions[name] = (definition, ArgumentCheck(name, definition.parameters))
        return self._definitions.get(name)

    def list_all(self) -> list[ToolDefinition]:
        """Oldest first."""
        return [self._define(stored) for stored in self._stored.values()]

    def _define(self, stored: StoredComposition) -> ToolDefinition:
        on_ended = partial(self._count, stored.id)
        return definition_of(composition_of(stored), self._shared, self._executor, on_ended)


logger = structlog.get_logger()


class CompositionView(msgspec.Struct, frozen=True, kw_only=True):
    """A composition as the API shows it. Level and risk are the highest of its members.

    `problems`: what does not work now, such as a tool that no longer exists.
    """

    id: str
    user_id: int
    name: str
    description: str
    kind: CompositionKind
    parameters: list[Parameter]
    members: list[Member]
    timeout_seconds: int
    required_permission: CommandPermission
    risk: Risk
    problems: list[str]
    success_count: int
    failure_count: int
    created_at: datetime
    updated_at: datetime


class CompositionService(ToolSource):
    """One per process. `shared`: the sources of the tools that members may call."""

    reads_database = True

    def __init__(self, store: Store, executor: ToolExecutor, shared: ToolSources) -> None:
        self._store = store
        self._executor = executor
        self._shared = shared

    def for_caller(self, session: Session, caller: Caller) -> ToolSet:
        stored = read_own(session.connection(), caller.user_id)
        return Compositions(stored, self._shared.for_caller(session, caller), self._executor, self._count)

    async def list_page(
        self, caller: Caller, *, page: int, page_size: int
    ) -> tuple[list[CompositionView], int]:
        """A page of the caller's compositions, newest first, and their total number."""

        def work(session: Session) -> tuple[list[CompositionView], int]:
            rows, total = COMPOSITIONS.page(session, caller, page=page, page_size=page_size)
            shared = self._shared.for_caller(session, caller)
            return [_view(row, shared) for row in rows], total

        return await self._store.read(work)

    async def get(self, caller: Caller, composition_id: str) -> CompositionView:
        """Raises NotFound."""

        def work(session: Session) -> CompositionView:
            row = COMPOSITIONS.visible(session, caller, composition_id)
            return _view(row, self._shared.for_caller(session, caller))

        return await self._store.read(work)

    async def create(self, caller: Caller, composition: Composition) -> CompositionView:
        """Raises InvalidInput for an invalid composition, Conflict for a name in use or too many."""

        def work(session: Session) -> CompositionView:
            names = COMPOSITIONS.lock_names(session, caller.user_id)
            COMPOSITIONS.check_limit(names)
            shared = self._shared.for_caller(session, caller)
            _check(caller, composition, shared, names)
            row = new_row(caller.tenant_id, caller.user_id, composition, utc_now())
            session.add(row)
            session.flush()
            return _view(row, shared)

        return await self._store.write(work)

    async def replace(self, caller: Caller, composition_id: str, composition: Composition) -> CompositionView:
        """Replace a composition and keep its counters. Raises like `create`, and NotFound."""

        def work(session: Session) -> CompositionView:
            names = COMPOSITIONS.lock_names(session, caller.user_id)
            row = COMPOSITIONS.visible(session, caller, composition_id)
            shared = self._shared.for_caller(session, caller)
            _check(caller, composition, shared, names - {row.name})
            update_row(row, composition, utc_now())
            session.flush()
            return _view(row, shared)

        return await self._store.write(work)

    async def delete(self, caller: Caller, composition_id: str) -> None:
        """Delete a composition. Raises NotFound."""

        def work(session: Session) -> None:
            COMPOSITIONS.lock_names(session, caller.user_id)
            session.delete(COMPOSITIONS.visible(session, caller, composition_id))

        await self._store.write(work)

    async def _count(self, composition_id: str, is_success: bool) -> None:
        try:
            await self._store.write_rows(
                partial(count_call, composition_id=composition_id, is_success=is_success)
            )
        except SQLAlchemyError:
            # The tools have run, so a failed count must not make the call fail.
            logger.exception("composition_not_counted", composition_id=composition_id)


def _check(caller: Caller, composition: Composition, shared: ToolSet, names: set[str]) -> None:
    check_composition(composition, shared, caller.permission_level, names)
    COMPOSITIONS.check_name(composition.name, names)


def _view(row: CompositionRow, shared: ToolSet) -> CompositionView:
    composition = composition_of(row)
    traits = traits_of(composition, shared)
    return CompositionView(
        **asdict(composition),
        id=row.id,
        user_id=row.user_id,
        required_permission=traits.required_permission,
        risk=traits.risk,
        problems=traits.problems,
        success_count=row.success_count,
        failure_count=row.failure_count,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
