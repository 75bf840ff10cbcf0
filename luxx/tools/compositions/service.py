"""Compositions as tools (schema, level, risk, problems), and the service that stores them."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import msgspec
import structlog
from msgspec.structs import asdict
from sqlalchemy import ColumnElement, Connection, func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.errors import Conflict, NotFound
from luxx.infra.clock import utc_now
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import Lock, lock_until_commit
from luxx.tools.compositions.chain import Chain
from luxx.tools.compositions.checking import check_composition, member_refusal
from luxx.tools.compositions.rows import (
    MAX_COMPOSITIONS,
    CompositionRow,
    StoredComposition,
    composition_of,
    count_call,
    new_row,
    read_own,
    update_row,
)
from luxx.tools.core import (
    CommandPermission,
    OwnTools,
    Risk,
    ToolContext,
    ToolDefinition,
    ToolRegistry,
    ToolResult,
)
from luxx.tools.executor import ToolExecutor
from luxx.tools.permissions.judge import brings_untrusted
from luxx.tools.schema import ArgumentCheck, with_items
from luxx.wire.composition import Composition, CompositionKind, Member, Parameter, ParameterType

CATEGORY = "compositions"

_SPARE_SECONDS = 10
"""Added to the timeout of the tool, so that the composition can report its own timeout first."""

_RISKS = list(Risk)

OnEnded = Callable[[str, bool], Awaitable[None]]
"""Called with the id of a composition that has run, and whether it succeeded."""


class CompositionTraits(msgspec.Struct, frozen=True, kw_only=True):
    """Level and risk are the highest of the members. `problems`: sentences for the owner."""

    required_permission: CommandPermission
    risk: Risk
    is_untrusted: bool
    problems: list[str]


def traits_of(composition: Composition, registry: ToolRegistry, tenant_id: int | None) -> CompositionTraits:
    """The traits with the tools that the owner's tenant has now."""
    problems: list[str] = []
    tools: list[ToolDefinition] = []
    if registry.get(composition.name) is not None:
        problems.append("a tool of the server has the same name and hides it; rename the composition")
    names = [call.tool for member in composition.members for call in (member, *member.fallbacks)]
    for name in dict.fromkeys(names):
        entry = registry.lookup_for(name, tenant_id)
        if entry is None:
            problems.append(f"the tool {name} no longer exists")
            continue
        tool = entry[0]
        tools.append(tool)
        if (reason := member_refusal(tool)) is not None:
            problems.append(reason)
    levels = [tool.required_permission for tool in tools]
    return CompositionTraits(
        required_permission=max(levels, default=CommandPermission.READ_ONLY),
        risk=max((tool.risk for tool in tools), key=_RISKS.index, default=Risk.LOW),
        is_untrusted=any(brings_untrusted(tool) for tool in tools),
        problems=problems,
    )


def schema_of(parameters: Sequence[Parameter]) -> dict[str, Any]:
    """The JSON schema of a composition's arguments."""
    properties: dict[str, Any] = {}
    for parameter in parameters:
        # Model vendors refuse an array without `items`.
        items: dict[str, Any] = {"items": {}} if parameter.type == ParameterType.ARRAY else {}
        description = {"description": parameter.description} if parameter.description else {}
        properties[parameter.name] = {"type": parameter.type.value, **items, **description}
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    if required := [parameter.name for parameter in parameters if parameter.required]:
        schema["required"] = required
    return schema


class Compositions:
    """One user's compositions as tools, without those that a tool of the server hides."""

    def __init__(
        self, stored: Sequence[StoredComposition], executor: ToolExecutor, on_ended: OnEnded
    ) -> None:
        self._stored = {each.name: each for each in stored if executor.registry.get(each.name) is None}
        self._executor = executor
        self._on_ended = on_ended
        self._definitions: dict[str, tuple[ToolDefinition, ArgumentCheck]] = {}

    def lookup(self, name: str) -> tuple[ToolDefinition, ArgumentCheck] | None:
        """The composition of this name, with its argument check."""
        if name not in self._definitions and (stored := self._stored.get(name)) is not None:
            definition = self._define(stored)
            self._definitions[name] = (definition, ArgumentCheck(name, definition.parameters))
        return self._definitions.get(name)

    def list_all(self) -> list[ToolDefinition]:
        """Oldest first."""
        return [self._define(composition) for composition in self._stored.values()]

    def _define(self, stored: StoredComposition) -> ToolDefinition:
        composition = composition_of(stored)
        traits = traits_of(composition, self._executor.registry, stored.tenant_id)

        async def handler(arguments: dict[str, Any], context: ToolContext) -> ToolResult:
            result = await Chain(composition, self._executor, arguments, context).run()
            await self._on_ended(stored.id, result.success)
            return result

        warning = f"\n(Not all of it works now: {'; '.join(traits.problems)}.)" if traits.problems else ""
        return ToolDefinition(
            name=composition.name,
            description=composition.description + warning,
            parameters=with_items(schema_of(composition.parameters)),
            handler=handler,
            category=CATEGORY,
            required_permission=traits.required_permission,
            risk=traits.risk,
            timeout=composition.timeout_seconds + _SPARE_SECONDS,
            brings_untrusted=traits.is_untrusted,
            is_chain=True,
        )


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


class CompositionService:
    """One per process."""

    def __init__(self, store: Store, executor: ToolExecutor) -> None:
        self._store = store
        self._executor = executor

    async def list_page(
        self, caller: Caller, *, page: int, page_size: int
    ) -> tuple[list[CompositionView], int]:
        """A page of the caller's compositions, newest first, and their total number."""

        def work(session: Session) -> tuple[list[CompositionView], int]:
            owned = CompositionRow.user_id == caller.user_id
            total = session.scalar(select(func.count()).select_from(CompositionRow).where(owned)) or 0
            newest = select(CompositionRow).where(owned).order_by(CompositionRow.id.desc())
            rows = session.scalars(newest.limit(page_size).offset((page - 1) * page_size))
            return [self._view(row) for row in rows], total

        return await self._store.read(work)

    async def get(self, caller: Caller, composition_id: str) -> CompositionView:
        """Raises NotFound."""
        return await self._store.read(lambda session: self._view(_owned_row(session, caller, composition_id)))

    async def create(self, caller: Caller, composition: Composition) -> CompositionView:
        """Raises InvalidInput for an invalid composition, Conflict for a name in use or too many."""

        def work(session: Session) -> CompositionView:
            lock_until_commit(session.connection(), Lock.USER_COMPOSITIONS, caller.user_id)
            names = _names_in_use(session, caller)
            if len(names) >= MAX_COMPOSITIONS:
                raise Conflict(
                    f"you have {MAX_COMPOSITIONS} compositions, which is the limit; delete one",
                    kind="compositions_full",
                )
            self._check(caller, composition, names)
            row = new_row(caller.tenant_id, caller.user_id, composition, utc_now())
            session.add(row)
            session.flush()
            return self._view(row)

        return await self._store.write(work)

    async def replace(self, caller: Caller, composition_id: str, composition: Composition) -> CompositionView:
        """Replace a composition and keep its counters. Raises like `create`, and NotFound."""

        def work(session: Session) -> CompositionView:
            lock_until_commit(session.connection(), Lock.USER_COMPOSITIONS, caller.user_id)
            row = _owned_row(session, caller, composition_id)
            self._check(caller, composition, _names_in_use(session, caller, CompositionRow.id != row.id))
            update_row(row, composition, utc_now())
            session.flush()
            return self._view(row)

        return await self._store.write(work)

    async def delete(self, caller: Caller, composition_id: str) -> None:
        """Delete a composition. Raises NotFound."""

        def work(session: Session) -> None:
            lock_until_commit(session.connection(), Lock.USER_COMPOSITIONS, caller.user_id)
            session.delete(_owned_row(session, caller, composition_id))

        await self._store.write(work)

    def read_own_tools(self, connection: Connection, user_id: int) -> OwnTools:
        """The user's own tools, read in the transaction of the caller."""
        return Compositions(read_own(connection, user_id), self._executor, self._count)

    async def own_tools(self, caller: Caller) -> OwnTools:
        """The caller's own tools, read in a new transaction."""
        return await self._store.read_rows(lambda connection: self.read_own_tools(connection, caller.user_id))

    async def _count(self, composition_id: str, is_success: bool) -> None:
        try:
            await self._store.write_rows(
                partial(count_call, composition_id=composition_id, is_success=is_success)
            )
        except SQLAlchemyError:
            # The tools have run, so a failed count must not make the call fail.
            logger.exception("composition_not_counted", composition_id=composition_id)

    def _check(self, caller: Caller, composition: Composition, names: set[str]) -> None:
        check_composition(
            composition, self._executor.registry, caller.permission_level, names, caller.tenant_id
        )
        if composition.name in names:
            raise Conflict(
                f"you already have a composition named {composition.name}", kind="composition_name_taken"
            )

    def _view(self, row: CompositionRow) -> CompositionView:
        composition = composition_of(row)
        traits = traits_of(composition, self._executor.registry, row.tenant_id)
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


def _names_in_use(session: Session, caller: Caller, *conditions: ColumnElement[bool]) -> set[str]:
    owned = select(CompositionRow.name).where(CompositionRow.user_id == caller.user_id, *conditions)
    return set(session.scalars(owned))


def _owned_row(session: Session, caller: Caller, composition_id: str) -> CompositionRow:
    row = session.get(CompositionRow, composition_id)
    if row is None or row.user_id != caller.user_id:
        raise NotFound("no composition with this id", kind="composition_not_found")
    return row
