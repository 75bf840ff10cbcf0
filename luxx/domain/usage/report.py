"""Usage reports and limits: sums over the ledger by day, model, provider, conversation and so on. Read-only.

Costs are sums over completions of known price; a report also has the number of the others.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from typing import Any, assert_never, cast

import msgspec
from sqlalchemy import ColumnElement, FunctionElement, Row, Select, Subquery, case, func, select, true
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.models import Tenant, User
from luxx.domain.conversations.access import own_conversations
from luxx.domain.conversations.models import ConversationRow
from luxx.domain.usage.ledger import UsageRow
from luxx.domain.usage.reserve import SpentAndReserved, limits_of, midnight_of, read_day
from luxx.errors import InvalidInput, NotAllowed
from luxx.infra.clock import utc_now
from luxx.infra.config.schema import LimitsConfig
from luxx.infra.store.engine import Store
from luxx.providers.models import ProviderRow
from luxx.providers.queries import PROVIDERS
from luxx.wire.run import RunKind


class TokenAllowance(msgspec.Struct, frozen=True, kw_only=True):
    """`reserved` is for model calls in progress. `limit` and `left` are null if there is no limit."""

    limit: int | None
    spent: int
    reserved: int
    left: int | None


class CostAllowance(msgspec.Struct, frozen=True, kw_only=True):
    """Like TokenAllowance, in US dollars; `spent` counts completions of known price."""

    limit: float | None
    spent: float
    reserved: float
    left: float | None


class RunLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one run, null if there is none. `iterations` are model calls with tools."""

    tokens: int | None
    cost: float | None
    seconds: float | None
    tool_calls: int | None
    iterations: int


class UsageLimits(msgspec.Struct, frozen=True, kw_only=True):
    """`resets_at` is the next midnight UTC.

    `shared_tokens_per_day` is the limit of level 1 at providers of others, and counts only these.
    `concurrent_turns` is how many turns of yours work at once, null if there is no limit.
    """

    resets_at: datetime
    tokens_per_day: TokenAllowance
    shared_tokens_per_day: TokenAllowance
    cost_per_day: CostAllowance
    per_run: RunLimits
    concurrent_turns: int | None


def read_limits(session: Session, caller: Caller, limits: LimitsConfig, iterations: int) -> UsageLimits:
    """The caller's limits and what is left of them."""
    connection = session.connection()
    day = read_day(connection, caller.user_id)
    shared = read_day(connection, caller.user_id, is_shared_only=True)
    level1 = limits_of(limits, caller.permission_level, is_own_provider=False).level1_tokens_per_day
    spent, reserved = day.spent, day.reserved
    return UsageLimits(
        resets_at=midnight_of(utc_now()) + timedelta(days=1),
        tokens_per_day=_token_allowance(limits.tokens_per_day, day),
        shared_tokens_per_day=_token_allowance(level1, shared),
        cost_per_day=CostAllowance(
            limit=limits.cost_per_day or None,
            spent=spent.cost,
            reserved=reserved.cost,
            left=max(0.0, limits.cost_per_day - spent.cost - reserved.cost) if limits.cost_per_day else None,
        ),
        per_run=RunLimits(
            tokens=limits.tokens_per_run or None,
            cost=limits.cost_per_run or None,
            seconds=limits.seconds_per_run or None,
            tool_calls=limits.tool_calls_per_run or None,
            iterations=iterations,
        ),
        concurrent_turns=limits.concurrent_runs_per_user or None,
    )


def _token_allowance(limit: int, used: SpentAndReserved) -> TokenAllowance:
    spent, reserved = used.spent.tokens, used.reserved.tokens
    left = max(0, limit - spent - reserved) if limit else None
    return TokenAllowance(limit=limit or None, spent=spent, reserved=reserved, left=left)


TOTAL_PREFIX = "whole_"
"""The column prefix of sums over all groups."""

COST_DIGITS = 10
"""Decimal places of a cost, so that 0.1 + 0.2 is 0.3."""


class GroupBy(StrEnum):
    """`conversation`, `room` and `task` count only the usage in conversations, rooms and tasks."""

    DAY = "day"
    MODEL = "model"
    PROVIDER = "provider"
    CONVERSATION = "conversation"
    ROOM = "room"
    TASK = "task"
    USER = "user"
    TENANT = "tenant"


class UsageScope(StrEnum):
    """Whose usage: the caller's, the tenant's (ADMIN only) or the whole server's (operators only)."""

    OWN = "own"
    TENANT = "tenant"
    ALL = "all"


class UsageSums(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over `completions`. `cost`, in US dollars, counts only those of known price and is null if there
    are none; `unpriced` is the number of the others. `estimated` is the number of completions whose tokens
    Luxx estimated, because the provider did not report them.
    """

    completions: int
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    cost: float | None
    unpriced: int
    estimated: int


class UsageGroup(UsageSums, frozen=True, kw_only=True):
    """`key` is the day, the model's name, or an id, null after deletion. `name` is null if it has none or the
    caller may not see it.
    """

    key: str | None
    name: str | None


class UsageReport(msgspec.Struct, frozen=True, kw_only=True):
    """One page of groups: days newest first, others most expensive first. `total` and `sums` cover all."""

    items: list[UsageGroup]
    total: int
    page: int
    page_size: int
    sums: UsageSums


class UsageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """`first` and `last` are days in UTC, both included. `subject_id` selects one conversation."""

    group_by: GroupBy = GroupBy.DAY
    scope: UsageScope = UsageScope.OWN
    first: date | None = None
    last: date | None = None
    subject_id: str | None = None
    page: int = 1
    page_size: int = 20


@dataclass(frozen=True, slots=True)
class UsageService:
    """One per process. `iterations`: the limit of model calls per run."""

    store: Store
    limits_config: LimitsConfig
    iterations: int

    async def report(self, caller: Caller, query: UsageQuery) -> UsageReport:
        """Raises InvalidInput if `first` is after `last`, NotAllowed for a scope the caller may not read."""
        if query.first is not None and query.last is not None and query.first > query.last:
            raise InvalidInput("'from' must not be later than 'to'", field="from")
        _check_scope(caller, query.scope)
        return await self.store.read(lambda session: _report(session, caller, query))

    async def limits(self, caller: Caller) -> UsageLimits:
        """The caller's limits and what is left of them."""
        return await self.store.read(
            lambda session: read_limits(session, caller, self.limits_config, self.iterations)
        )


def _check_scope(caller: Caller, scope: UsageScope) -> None:
    match scope:
        case UsageScope.OWN:
            return
        case UsageScope.TENANT:
            if not caller.is_admin:
                raise NotAllowed("only an administrator may read the usage of others")
        case UsageScope.ALL:
            if not caller.is_operator:
                raise NotAllowed(
                    "only an administrator of the default tenant may read the whole server's usage"
                )
        case _:
            assert_never(scope)


_SUMS: tuple[tuple[str, ColumnElement[Any]], ...] = (
    ("completions", func.count()),
    ("prompt_tokens", func.sum(UsageRow.prompt_tokens)),
    ("completion_tokens", func.sum(UsageRow.completion_tokens)),
    ("cached_tokens", func.sum(UsageRow.cached_tokens)),
    ("cache_write_tokens", func.sum(UsageRow.cache_write_tokens)),
    ("reasoning_tokens", func.sum(UsageRow.reasoning_tokens)),
    ("cost", func.sum(UsageRow.cost)),
    ("priced", func.count(UsageRow.cost)),
    ("estimated", func.sum(case((UsageRow.is_estimated, 1), else_=0))),
)


def _report(session: Session, caller: Caller, query: UsageQuery) -> UsageReport:
    groups = _groups(caller, query)
    page = session.execute(_page(groups, query)).all()
    # Every row also has the totals, so the ledger is read once. Only an empty page needs a second query.
    totals = page[0] if page else session.execute(_select_totals(groups)).one()
    keys = [row.key for row in page if row.key is not None]
    names = _names(session, caller, query.group_by, keys)
    return UsageReport(
        items=[
            UsageGroup(
                key=None if row.key is None else str(row.key), name=names.get(row.key), **_sums_of(row)
            )
            for row in page
        ],
        total=totals.groups or 0,
        page=query.page,
        page_size=query.page_size,
        sums=UsageSums(**_sums_of(totals, TOTAL_PREFIX)),
    )


def _groups(caller: Caller, query: UsageQuery) -> Subquery:
    key, kind = _key(query.group_by)
    rows = select(key.label("key"), *(column.label(name) for name, column in _SUMS))
    rows = rows.where(_in_scope(caller, query.scope))
    if kind is not None:
        rows = rows.where(UsageRow.kind == kind.value)
    if query.first is not None:
        rows = rows.where(UsageRow.created_at >= datetime.combine(query.first, time.min, UTC))
    if query.last is not None:
        rows = rows.where(UsageRow.created_at <= datetime.combine(query.last, time.max, UTC))
    if query.subject_id is not None:
        rows = rows.where(UsageRow.subject_id == query.subject_id)
    return rows.group_by(key).subquery()


def _total_columns(groups: Subquery) -> list[tuple[str, FunctionElement[Any]]]:
    sums = [(TOTAL_PREFIX + name, func.sum(groups.c[name])) for name, _ in _SUMS]
    return [("groups", func.count()), *sums]


def _select_totals(groups: Subquery) -> Select[Any]:
    return select(*(sum_.label(name) for name, sum_ in _total_columns(groups))).select_from(groups)


def _page(groups: Subquery, query: UsageQuery) -> Select[Any]:
    over_all = [sum_.over().label(name) for name, sum_ in _total_columns(groups)]
    statement = select(groups, *over_all).limit(query.page_size).offset((query.page - 1) * query.page_size)
    if query.group_by == GroupBy.DAY:
        return statement.order_by(groups.c.key.desc())
    tokens = groups.c.prompt_tokens + groups.c.completion_tokens
    return statement.order_by(func.coalesce(groups.c.cost, -1.0).desc(), tokens.desc(), groups.c.key)


def _key(group_by: GroupBy) -> tuple[ColumnElement[Any], RunKind | None]:
    """The column to group by, and the kind of the rows to include, None for all."""
    match group_by:
        case GroupBy.DAY:
            return func.date(UsageRow.created_at), None
        case GroupBy.MODEL:
            return UsageRow.__table__.c.model, None
        case GroupBy.PROVIDER:
            return UsageRow.__table__.c.provider_id, None
        case GroupBy.CONVERSATION:
            return UsageRow.__table__.c.subject_id, RunKind.CHAT
        case GroupBy.ROOM:
            return UsageRow.__table__.c.subject_id, RunKind.ROOM
        case GroupBy.TASK:
            return UsageRow.__table__.c.subject_id, RunKind.TASK
        case GroupBy.USER:
            return UsageRow.__table__.c.user_id, None
        case GroupBy.TENANT:
            return UsageRow.__table__.c.tenant_id, None
        case _:
            assert_never(group_by)


def _in_scope(caller: Caller, scope: UsageScope) -> ColumnElement[bool]:
    match scope:
        case UsageScope.OWN:
            return UsageRow.user_id == caller.user_id
        case UsageScope.TENANT:
            return UsageRow.tenant_id == caller.tenant_id
        case UsageScope.ALL:
            return true()
        case _:
            assert_never(scope)


def _names(session: Session, caller: Caller, group_by: GroupBy, keys: list[Any]) -> dict[Any, str]:
    """The names of the keys that the caller may see; a conversation's title only for its owner."""
    statement: Any
    match group_by:
        case GroupBy.PROVIDER:
            statement = select(ProviderRow.id, ProviderRow.name).where(
                ProviderRow.id.in_(keys), PROVIDERS.visible_to(caller)
            )
        case GroupBy.CONVERSATION:
            titles = select(ConversationRow.id, ConversationRow.title).where(
                ConversationRow.id.in_(keys), own_conversations
            )
            statement = titles.params(user_id=caller.user_id)
        case GroupBy.USER:
            is_visible = true() if caller.is_operator else User.tenant_id == caller.tenant_id
            statement = select(User.id, User.username).where(User.id.in_(keys), is_visible)
        case GroupBy.TENANT:
            is_visible = true() if caller.is_operator else Tenant.id == caller.tenant_id
            statement = select(Tenant.id, Tenant.name).where(Tenant.id.in_(keys), is_visible)
        case GroupBy.DAY | GroupBy.MODEL | GroupBy.ROOM | GroupBy.TASK:
            return {}
        case _:
            assert_never(group_by)
    return dict(cast("Iterable[tuple[Any, str]]", session.execute(statement).all()))


def _sums_of(row: Row[Any], prefix: str = "") -> dict[str, Any]:
    counts = {name: int(getattr(row, prefix + name) or 0) for name, _ in _SUMS if name != "cost"}
    cost = float(getattr(row, prefix + "cost") or 0.0)
    priced = counts.pop("priced")
    unpriced = counts["completions"] - priced
    return {
        **counts,
        "total_tokens": counts["prompt_tokens"] + counts["completion_tokens"],
        "cost": None if unpriced and not priced else round(cost, COST_DIGITS),
        "unpriced": unpriced,
    }
