"""Tokens and money set aside before a model call, so that calls that run side by side keep within the limits.

The worst case of a call is held here until its line is in the ledger. What has been spent is the ledger's to
say (`ledger.py`), how large a prompt is `estimate.py`'s.
"""

import math
from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum

import msgspec
from sqlalchemy import (
    Connection,
    Integer,
    String,
    bindparam,
    column,
    delete,
    func,
    insert,
    select,
    table,
    text,
    true,
)
from sqlalchemy import literal as value

from luxx.domain.usage.ledger import ReserveRow, SpentAmount, UsageRow, spent_since
from luxx.errors import InvalidInput, TooMany
from luxx.infra.clock import utc_now
from luxx.infra.config.schema import LimitsConfig
from luxx.infra.store.tables import table_of
from luxx.providers.catalog import ModelCard

MIN_ANSWER_TOKENS = 256
"""Tokens. An answer that could only be shorter is not worth its prompt."""

PREFERRED_ANSWER_TOKENS = 4_096
"""Tokens. For a call that could have as many, the end of other runs' calls is waited for."""

RESERVE_LOCKS = 7_402_119
"""The first half of the PostgreSQL advisory locks that reserves of one user take in turn."""

SECONDS_PER_DAY = 86_400

_reserves, _ledger = table_of(ReserveRow), table_of(UsageRow)
_runs = table(
    "runs",
    column("id", String),
    column("tenant_id", Integer),
    column("kind", String),
    column("subject_id", String),
    column("parent_run_id", String),
)
_lock_user = text("SELECT pg_advisory_xact_lock(:locks, :user_id)")
_insert = insert(_reserves)
_delete_reserve = delete(_reserves).where(_reserves.c.run_id == bindparam("b_run"))
_spent = (
    select(
        func.coalesce(func.sum(_ledger.c.prompt_tokens + _ledger.c.completion_tokens), 0).label("tokens"),
        func.coalesce(func.sum(_ledger.c.cost), 0.0).label("cost"),
    )
    .where(_ledger.c.user_id == bindparam("user_id"), _ledger.c.created_at >= bindparam("midnight"))
    .subquery()
)
_reserved = (
    select(
        func.coalesce(func.sum(_reserves.c.prompt_tokens + _reserves.c.completion_tokens), 0).label("tokens"),
        func.coalesce(func.sum(_reserves.c.cost), 0.0).label("cost"),
    )
    .where(_reserves.c.user_id == bindparam("user_id"))
    .subquery()
)
# One statement: a call whose reserve becomes a line of the ledger between two would be in neither.
_day = select(
    _spent.c.tokens,
    _spent.c.cost,
    _reserved.c.tokens.label("held_tokens"),
    _reserved.c.cost.label("held_cost"),
).select_from(_spent.join(_reserved, true()))


_root = select(_runs.c.id).where(_runs.c.id == bindparam("root")).cte("tree", recursive=True)
_below = _runs.alias("below")
_tree = _root.union_all(select(_below.c.id).join(_root, _below.c.parent_run_id == _root.c.id))
_tree_spent = select(
    func.coalesce(func.sum(_ledger.c.prompt_tokens + _ledger.c.completion_tokens), 0),
    func.coalesce(func.sum(_ledger.c.cost), 0.0),
).where(_ledger.c.run_id.in_(select(_tree.c.id)))
_tree_reserved = select(
    func.coalesce(func.sum(_reserves.c.prompt_tokens + _reserves.c.completion_tokens), 0),
    func.coalesce(func.sum(_reserves.c.cost), 0.0),
).where(_reserves.c.run_id.in_(select(_tree.c.id)))


class SpendingLimit(StrEnum):
    """The limits of tokens and money, by the names of their keys."""

    TOKENS_PER_RUN = "tokens_per_run"
    COST_PER_RUN = "cost_per_run"
    TOKENS_PER_DAY = "tokens_per_day"
    COST_PER_DAY = "cost_per_day"

    @property
    def is_money(self) -> bool:
        return self in (SpendingLimit.COST_PER_RUN, SpendingLimit.COST_PER_DAY)

    @property
    def is_daily(self) -> bool:
        return self in (SpendingLimit.TOKENS_PER_DAY, SpendingLimit.COST_PER_DAY)


class SpentAndReserved(msgspec.Struct, frozen=True):
    """What a user spent since midnight UTC, and what is set aside for calls that are under way.

    A reserve counts for any day: a call that began before midnight is in the ledger of the day after.
    """

    spent: SpentAmount
    reserved: SpentAmount


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A model call to come: tokens of its prompt and of its longest answer, prices in dollars per token.

    Both prices are 0 where they are not known.
    """

    prompt: int
    answer: int
    prompt_price: float = 0.0
    answer_price: float = 0.0
    is_priced: bool = True

    def cost(self, answer: int) -> float:
        """The most that the call costs with so long an answer."""
        return self.prompt * self.prompt_price + answer * self.answer_price


class LimitHeadroom(msgspec.Struct, frozen=True, kw_only=True):
    """What a limit leaves: `spent` of it is gone, `held` is set aside for calls of other runs."""

    limit: SpendingLimit
    amount: float
    spent: float
    reserved: float = 0.0

    def answer(self, call: Call, *, without_others: bool) -> float:
        """How long an answer fits, in tokens; `alone`: if no other run held anything. Below 0: none."""
        orphaned = self.amount - self.spent - (0.0 if without_others else self.reserved)
        if not self.limit.is_money:
            return orphaned - call.prompt
        orphaned -= call.prompt * call.prompt_price
        if call.answer_price > 0:
            return orphaned / call.answer_price
        return math.inf if orphaned >= 0 else -1.0


class ReserveVerdict(StrEnum):
    """What becomes of a call: it may be made, others' calls must end first, or it will never fit."""

    FITS = "fits"
    WAITS = "waits"
    NEVER = "never"


class ReserveResult(msgspec.Struct, frozen=True):
    """A verdict; `tokens` is how long the answer may be, `narrowest` the limit that leaves it least."""

    verdict: ReserveVerdict
    tokens: int
    narrowest: LimitHeadroom


def fit_call(call: Call, headrooms: Iterable[LimitHeadroom], *, may_wait: bool) -> ReserveResult:
    """Whether a call fits all of the rooms, of which there is one at least, and with how long an answer."""
    headrooms = list(headrooms)
    narrowest = min(headrooms, key=lambda headroom: headroom.answer(call, without_others=True))
    without_others = math.floor(min(call.answer, narrowest.answer(call, without_others=True)))
    now = math.floor(
        min(call.answer, *(headroom.answer(call, without_others=False) for headroom in headrooms))
    )
    least, usual = min(MIN_ANSWER_TOKENS, call.answer), min(PREFERRED_ANSWER_TOKENS, call.answer)
    if without_others < least:
        return ReserveResult(ReserveVerdict.NEVER, 0, narrowest)
    if now >= (min(usual, without_others) if may_wait else least):
        return ReserveResult(ReserveVerdict.FITS, now, narrowest)
    return ReserveResult(ReserveVerdict.WAITS if may_wait else ReserveVerdict.NEVER, 0, narrowest)


def has_limits(limits: LimitsConfig) -> bool:
    """Whether anything must be set aside before a call."""
    return any(getattr(limits, limit.value) for limit in SpendingLimit)


def has_daily_limits(limits: LimitsConfig) -> bool:
    return any(getattr(limits, limit.value) for limit in SpendingLimit if limit.is_daily)


def is_priced(card: ModelCard) -> bool:
    """Whether it is known what the model costs."""
    return card.input_price is not None and card.output_price is not None


def check_price(card: ModelCard, limits: LimitsConfig, model: str) -> None:
    """Raises InvalidInput where money is limited and nobody knows what the model costs."""
    if (limits.cost_per_day or limits.cost_per_run) and not is_priced(card):
        raise InvalidInput(
            f"this server limits what may be spent, and the price of {model} is not known; choose another "
            "model, or have its price added to `models` in the configuration (0 where it is free)",
            kind="price_unknown",
        )


def read_day(connection: Connection, user_id: int) -> SpentAndReserved:
    """What the user spent today and what is set aside, as of one moment."""
    row = connection.execute(_day, {"user_id": user_id, "midnight": midnight_of(utc_now())}).one()
    return SpentAndReserved(
        SpentAmount(tokens=int(row.tokens), cost=float(row.cost)),
        SpentAmount(tokens=int(row.held_tokens), cost=float(row.held_cost)),
    )


def lock_user_reserves(connection: Connection, user_id: int) -> None:
    """Until the transaction ends, nobody else sets anything aside for this user."""
    if connection.dialect.name == "postgresql":
        # On SQLite one thread writes anyway.
        connection.execute(_lock_user, {"locks": RESERVE_LOCKS, "user_id": user_id})


def add_reserve(connection: Connection, row: dict[str, object]) -> None:
    """Adds a run's reserve (`ReserveRow`)."""
    connection.execute(_insert, row)


def release_reserve(connection: Connection, run_id: str) -> None:
    """Deletes a run's reserve, in the transaction that records what was spent."""
    connection.execute(_delete_reserve, {"b_run": run_id})


def charge_orphaned_reserve(connection: Connection, run_id: str) -> bool:
    """Enters what was set aside for a call that ended with its process; False where nothing was.

    How much of it the provider billed nobody knows; counting less would let spending pass the limits.
    """
    columns = ["user_id", "provider_id", "model", "prompt_tokens", "completion_tokens", "cost", "run_id"]
    orphaned = select(
        *(_reserves.c[name] for name in columns),
        *(_runs.c[name] for name in ("tenant_id", "kind", "subject_id")),
        *(value(0).label(name) for name in ("cached_tokens", "cache_write_tokens", "reasoning_tokens")),
        true().label("is_estimated"),
        value(utc_now(), _ledger.c.created_at.type).label("created_at"),
    ).where(_reserves.c.run_id == run_id, _runs.c.id == _reserves.c.run_id)
    names = [column.name for column in orphaned.selected_columns]
    inserted = connection.execute(insert(_ledger).from_select(names, orphaned))
    if inserted.rowcount:
        release_reserve(connection, run_id)
    return bool(inserted.rowcount)


def spent_by_run(connection: Connection, run_id: str) -> SpentAmount:
    """The sums of a run's lines of the ledger."""
    row = connection.execute(
        select(
            func.coalesce(func.sum(_ledger.c.prompt_tokens + _ledger.c.completion_tokens), 0),
            func.coalesce(func.sum(_ledger.c.cost), 0.0),
        ).where(_ledger.c.run_id == run_id)
    ).one()
    return SpentAmount(tokens=int(row[0]), cost=float(row[1]))


def spent_by_tree(connection: Connection, root_run_id: str) -> SpentAndReserved:
    """What a run and all its subagents have spent, and what is set aside for calls they make just now.

    A reserve that becomes a line of the ledger meanwhile counts twice rather than not at all.
    """
    reserved = connection.execute(_tree_reserved, {"root": root_run_id}).one()
    spent = connection.execute(_tree_spent, {"root": root_run_id}).one()
    return SpentAndReserved(
        SpentAmount(tokens=int(spent[0]), cost=float(spent[1])),
        SpentAmount(tokens=int(reserved[0]), cost=float(reserved[1])),
    )


def check_daily_limits(connection: Connection, user_id: int, limits: LimitsConfig, now: datetime) -> None:
    """Before a run is admitted. Raises TooMany where the user's day is spent."""
    if not has_daily_limits(limits):
        return
    spent, wait = spent_since(connection, user_id, midnight_of(now)), seconds_to_midnight(now)
    if limits.tokens_per_day and spent.tokens >= limits.tokens_per_day:
        raise TooMany(
            f"today's {limits.tokens_per_day} tokens are used up; there are new ones at midnight UTC",
            retry_after=wait,
            kind=SpendingLimit.TOKENS_PER_DAY,
        )
    if limits.cost_per_day and spent.cost >= limits.cost_per_day:
        raise TooMany(
            f"today's budget of ${limits.cost_per_day:g} is spent; there is a new one at midnight UTC",
            retry_after=wait,
            kind=SpendingLimit.COST_PER_DAY,
        )


def midnight_of(now: datetime) -> datetime:
    return now.replace(hour=0, minute=0, second=0, microsecond=0)


def seconds_to_midnight(now: datetime) -> int:
    return SECONDS_PER_DAY - int((now - midnight_of(now)).total_seconds())
