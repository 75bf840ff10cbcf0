"""Compositions as their owner uses them: make, list, show, replace, delete; and have them as tools."""

from collections.abc import Callable
from datetime import datetime
from functools import partial

import msgspec
import structlog
from sqlalchemy import ColumnElement, Connection, func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from luxx.accounts.caller import Caller
from luxx.clock import utc_now
from luxx.errors import Conflict, NotFound
from luxx.store.engine import Store
from luxx.tools.compositions.checking import check
from luxx.tools.compositions.definition import Compositions, shape_of
from luxx.tools.compositions.rows import (
    MOST_COMPOSITIONS,
    CompositionRow,
    composition_of,
    count_call,
    fill,
    new_row,
    read_own,
    take_turn,
)
from luxx.tools.core import CommandPermission, OwnTools, Risk
from luxx.tools.executor import ToolExecutor
from luxx.wire.composition import Composition, CompositionKind, Member, Parameter

OwnToolsIn = Callable[[Connection, int], OwnTools]
"""Reads which tools a user has beside those of the server."""

logger = structlog.get_logger()


class CompositionView(msgspec.Struct, frozen=True, kw_only=True):
    """A composition as the API shows it. Level and risk are the highest of its members'.

    `problems` says what of it does not work now, such as a tool that is not there any more.
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


class CompositionService:
    """One per process."""

    def __init__(self, store: Store, executor: ToolExecutor) -> None:
        self._store = store
        self._executor = executor

    async def list_page(
        self, caller: Caller, *, page: int, page_size: int
    ) -> tuple[list[CompositionView], int]:
        """The caller's, newest first, and how many there are."""

        def work(session: Session) -> tuple[list[CompositionView], int]:
            mine = CompositionRow.user_id == caller.user_id
            total = session.scalar(select(func.count()).select_from(CompositionRow).where(mine)) or 0
            newest = select(CompositionRow).where(mine).order_by(CompositionRow.id.desc())
            rows = session.scalars(newest.limit(page_size).offset((page - 1) * page_size))
            return [self._view(row) for row in rows], total

        return await self._store.read(work)

    async def get(self, caller: Caller, composition_id: str) -> CompositionView:
        """Raises NotFound."""
        return await self._store.read(lambda session: self._view(_own(session, caller, composition_id)))

    async def create(self, caller: Caller, wanted: Composition) -> CompositionView:
        """Raises InvalidInput for what cannot be run, Conflict for a name that is taken or too many."""

        def work(session: Session) -> CompositionView:
            take_turn(session.connection(), caller.user_id)
            names = _names(session, caller)
            if len(names) >= MOST_COMPOSITIONS:
                raise Conflict(
                    f"you have {MOST_COMPOSITIONS} compositions, and there is room for no more; delete one",
                    kind="compositions_full",
                )
            self._check(caller, wanted, names)
            row = new_row(caller.tenant_id, caller.user_id, wanted, utc_now())
            session.add(row)
            session.flush()
            return self._view(row)

        return await self._store.write(work)

    async def replace(self, caller: Caller, composition_id: str, wanted: Composition) -> CompositionView:
        """It is then this one; what has been counted stays. Raises as `create` does, and NotFound."""

        def work(session: Session) -> CompositionView:
            take_turn(session.connection(), caller.user_id)
            row = _own(session, caller, composition_id)
            self._check(caller, wanted, _names(session, caller, CompositionRow.id != row.id))
            fill(row, wanted, utc_now())
            session.flush()
            return self._view(row)

        return await self._store.write(work)

    async def delete(self, caller: Caller, composition_id: str) -> None:
        """A run that has begun with it goes on without. Raises NotFound."""

        def work(session: Session) -> None:
            take_turn(session.connection(), caller.user_id)
            session.delete(_own(session, caller, composition_id))

        await self._store.write(work)

    def own_tools_in(self, connection: Connection, user_id: int) -> OwnTools:
        """What the user may call beside the server's tools, in a transaction of the asker's."""
        return Compositions(read_own(connection, user_id), self._executor, self._count)

    async def own_tools(self, caller: Caller) -> OwnTools:
        """The same, in a transaction of its own."""
        return await self._store.read_rows(lambda connection: self.own_tools_in(connection, caller.user_id))

    async def _count(self, composition_id: str, is_success: bool) -> None:
        try:
            await self._store.write_rows(
                partial(count_call, composition_id=composition_id, is_success=is_success)
            )
        except SQLAlchemyError:
            # What the tools did is done: that it was not counted is no reason to say that it failed.
            logger.exception("composition_not_counted", composition_id=composition_id)

    def _check(self, caller: Caller, wanted: Composition, names: set[str]) -> None:
        check(wanted, self._executor.registry, caller.permission_level, names, caller.tenant_id)
        if wanted.name in names:
            raise Conflict(
                f"you have a composition named {wanted.name} already", kind="composition_name_taken"
            )

    def _view(self, row: CompositionRow) -> CompositionView:
        composition = composition_of(row)
        shape = shape_of(composition, self._executor.registry, row.tenant_id)
        return CompositionView(
            id=row.id,
            user_id=row.user_id,
            name=row.name,
            description=row.description,
            kind=composition.kind,
            parameters=composition.parameters,
            members=composition.members,
            timeout_seconds=row.timeout_seconds,
            required_permission=shape.required_permission,
            risk=shape.risk,
            problems=shape.problems,
            success_count=row.success_count,
            failure_count=row.failure_count,
            created_at=row.created_at,
            updated_at=row.updated_at,
        )


def _names(session: Session, caller: Caller, *others: ColumnElement[bool]) -> set[str]:
    mine = select(CompositionRow.name).where(CompositionRow.user_id == caller.user_id, *others)
    return set(session.scalars(mine))


def _own(session: Session, caller: Caller, composition_id: str) -> CompositionRow:
    row = session.get(CompositionRow, composition_id)
    if row is None or row.user_id != caller.user_id:
        raise NotFound("no composition with this id", kind="composition_not_found")
    return row
