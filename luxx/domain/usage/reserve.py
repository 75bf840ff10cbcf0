"""Reserves of tokens and money before a model call, so that concurrent calls stay within the limits.

The worst case of a call is reserved until its row is in the ledger. `ledger.py` has what is spent and the
size of a prompt.
"""

import math
from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Float,
    ForeignKey,
    Row,
    Select,
    String,
    Table,
    and_,
    bindparam,
    delete,
    insert,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.orm import Mapped, mapped_column

from luxx.domain.usage.ledger import SpentAmount, UsageRow, sum_rows, sums_of
from luxx.errors import InvalidInput, TooMany
from luxx.infra.clock import utc_now
from luxx.infra.config.schema import LimitsConfig
from luxx.infra.store.tables import Base, UtcDateTime, table_of
from luxx.providers.catalog import ModelCard
from luxx.providers.models import ProviderRow
from luxx.wire.tool import CommandPermission
from luxx.wire.turn import TURN_LENGTH


class ReserveRow(Base):
    """The worst case of a turn's current model call, reserved until its row is in the ledger.

    A turn makes one call at a time; `turn` is its key, empty of a chat's. `model` and `provider_id` are for
    the ledger row of a call whose process died, and so are `answer_price`, in US dollars per token, and
    `seen_at`, when the process was alive last (null: made by an older version). `user_id` is no foreign key,
    which saves a lock; `run_id` already deletes the row with the user.
    """

    __tablename__ = "usage_reserves"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    turn: Mapped[str] = mapped_column(String(TURN_LENGTH), primary_key=True, default="", server_default="")
    user_id: Mapped[int] = mapped_column(index=True)
    provider_id: Mapped[int | None] = mapped_column()
    model: Mapped[str] = mapped_column(String(200))
    prompt_tokens: Mapped[int] = mapped_column()
    completion_tokens: Mapped[int] = mapped_column()
    cost: Mapped[float | None] = mapped_column(Float)
    answer_price: Mapped[float | None] = mapped_column(Float)
    made_at: Mapped[datetime] = mapped_column(UtcDateTime)
    seen_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


TOKENS_PER_SECOND = 500
"""Assumed of a call whose answer is not known; more than current models produce."""

UNSEEN_SECONDS = 10
"""How much longer than its process was seen a call may have worked, and the provider on its answer."""

MIN_ANSWER_TOKENS = 256
"""A call is not made if its completion would be limited to fewer tokens."""

PREFERRED_ANSWER_TOKENS = 4_096
"""A call waits for other runs' calls to end if it could then have this many completion tokens."""

SECONDS_PER_DAY = 86_400

_reserves, _ledger = table_of(ReserveRow), table_of(UsageRow)
_insert = insert(_reserves)
_delete_reserve = delete(_reserves).where(
    _reserves.c.run_id == bindparam("b_run"), _reserves.c.turn == bindparam("b_turn")
)


_providers = table_of(ProviderRow)
_own_providers = select(_providers.c.id).where(_providers.c.user_id == bindparam("user_id"))


def _day_of(*, is_shared_only: bool) -> Select[int, float, int, float]:
    """Sums what a user has spent since midnight and has reserved; or only of it at providers of others.

    One statement: between two, a reserve could become a ledger row and be counted in neither.
    """

    def is_counted(rows: Table) -> ColumnElement[bool]:
        is_of_user = rows.c.user_id == bindparam("user_id")
        if not is_shared_only:
            return is_of_user
        # A provider that was deleted counts as shared.
        is_shared = or_(rows.c.provider_id.is_(None), rows.c.provider_id.not_in(_own_providers))
        return and_(is_of_user, is_shared)

    is_today = _ledger.c.created_at >= bindparam("midnight")
    spent = select(*sums_of(_ledger)).where(is_counted(_ledger), is_today).subquery()
    reserved = select(*sums_of(_reserves)).where(is_counted(_reserves)).subquery()
    return select(
        spent.c.tokens,
        spent.c.cost,
        reserved.c.tokens.label("reserved_tokens"),
        reserved.c.cost.label("reserved_cost"),
    ).select_from(spent.join(reserved, true()))


_day, _day_shared = _day_of(is_shared_only=False), _day_of(is_shared_only=True)


class SpendingLimit(StrEnum):
    """The limits of tokens and money; the values are their config keys."""

    TOKENS_PER_RUN = "tokens_per_run"
    COST_PER_RUN = "cost_per_run"
    TOKENS_PER_DAY = "tokens_per_day"
    COST_PER_DAY = "cost_per_day"
    LEVEL1_TOKENS_PER_DAY = "level1_tokens_per_day"
    """Of a user of level 1, at providers of others."""

    @property
    def is_money(self) -> bool:
        return self in (SpendingLimit.COST_PER_RUN, SpendingLimit.COST_PER_DAY)

    @property
    def is_daily(self) -> bool:
        return not self.is_per_run

    @property
    def is_per_run(self) -> bool:
        return self in (SpendingLimit.TOKENS_PER_RUN, SpendingLimit.COST_PER_RUN)


class SpentAndReserved(msgspec.Struct, frozen=True):
    """What is spent, and what is reserved for calls in progress.

    Of a user, `spent` counts since midnight UTC. A reserve counts for any day, because a call that starts
    before midnight may be entered in the ledger after it.
    """

    spent: SpentAmount
    reserved: SpentAmount


NO_SPENDING = SpentAmount(tokens=0, cost=0.0)


class PlannedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A planned model call: the tokens of its prompt and of its longest completion; prices in US dollars per
    token, 0 if unknown.
    """

    prompt_tokens: int
    answer_tokens: int
    prompt_price: float = 0.0
    answer_price: float = 0.0
    is_priced: bool = True

    def cost(self, answer_tokens: int) -> float:
        """The highest cost of the call in US dollars, with a completion of `answer_tokens`."""
        return self.prompt_tokens * self.prompt_price + answer_tokens * self.answer_price


class LimitHeadroom(msgspec.Struct, frozen=True, kw_only=True):
    """The headroom of a limit: `spent` is used up, `reserved` is reserved for calls of other runs."""

    limit: SpendingLimit
    amount: float
    spent: float
    reserved: float = 0.0

    def max_answer_tokens(self, call: PlannedCall, *, without_others: bool) -> float:
        """The longest completion that fits, in tokens; below 0 if none does.

        `without_others` ignores the reserves of other runs.
        """
        left = self.amount - self.spent - (0.0 if without_others else self.reserved)
        if not self.limit.is_money:
            return left - call.prompt_tokens
        left -= call.prompt_tokens * call.prompt_price
        if call.answer_price > 0:
            return left / call.answer_price
        return math.inf if left >= 0 else -1.0


class ReserveVerdict(StrEnum):
    """Whether a call may be made now, must wait for calls of other runs, or never fits."""

    FITS = "fits"
    WAITS = "waits"
    NEVER = "never"


class ReserveResult(msgspec.Struct, frozen=True):
    """A verdict; `tokens` limits the completion, `narrowest` is the limit that leaves the fewest tokens."""

    verdict: ReserveVerdict
    tokens: int
    narrowest: LimitHeadroom


def fit_call(call: PlannedCall, headrooms: Iterable[LimitHeadroom], *, may_wait: bool) -> ReserveResult:
    """Whether a call fits all headrooms (at least one), and with how many completion tokens."""
    headrooms = list(headrooms)
    narrowest = min(headrooms, key=lambda headroom: headroom.max_answer_tokens(call, without_others=True))
    later = math.floor(min(call.answer_tokens, narrowest.max_answer_tokens(call, without_others=True)))
    fitting = (headroom.max_answer_tokens(call, without_others=False) for headroom in headrooms)
    now = math.floor(min(call.answer_tokens, *fitting))
    least = min(MIN_ANSWER_TOKENS, call.answer_tokens)
    preferred = min(PREFERRED_ANSWER_TOKENS, call.answer_tokens)
    if later < least:
        return ReserveResult(ReserveVerdict.NEVER, 0, narrowest)
    if now >= (min(preferred, later) if may_wait else least):
        return ReserveResult(ReserveVerdict.FITS, now, narrowest)
    return ReserveResult(ReserveVerdict.WAITS if may_wait else ReserveVerdict.NEVER, 0, narrowest)


def limits_of(limits: LimitsConfig, level: int, *, is_own_provider: bool) -> LimitsConfig:
    """The limits in force for calls of a provider by a user of this level.

    `level1_tokens_per_day` is 0 unless it holds: for users of level 1 at providers of others, where neither
    `tokens_per_day` nor `cost_per_day` is set. The functions of this module take limits of this form.
    """
    has_other_limit = limits.tokens_per_day or limits.cost_per_day
    if level > CommandPermission.READ_ONLY or is_own_provider or has_other_limit:
        return without_level1(limits)
    return limits


def without_level1(limits: LimitsConfig) -> LimitsConfig:
    """The limits that hold for everybody and for calls of any provider."""
    return msgspec.structs.replace(limits, level1_tokens_per_day=0)


def has_limits(limits: LimitsConfig) -> bool:
    """Whether calls need a reserve."""
    return any(getattr(limits, limit.value) for limit in SpendingLimit)


def has_daily_limits(limits: LimitsConfig) -> bool:
    return any(getattr(limits, limit.value) for limit in SpendingLimit if limit.is_daily)


def is_priced(card: ModelCard) -> bool:
    return card.input_price is not None and card.output_price is not None


def check_price(card: ModelCard, limits: LimitsConfig, model: str) -> None:
    """Raises InvalidInput if money is limited and the price of the model is unknown."""
    if (limits.cost_per_day or limits.cost_per_run) and not is_priced(card):
        raise InvalidInput(
            f"this server limits spending, and the price of {model} is unknown; choose another model, or ask "
            "an administrator to add its price to `models` in the configuration (0 if it is free)",
            kind="price_unknown",
            field="$.model",
        )


def read_day(connection: Connection, user_id: int, *, is_shared_only: bool = False) -> SpentAndReserved:
    """What the user has spent today and what is reserved, read in one statement.

    `is_shared_only` leaves out the user's own providers.
    """
    day = _day_shared if is_shared_only else _day
    row = connection.execute(day, {"user_id": user_id, "midnight": midnight_of(utc_now())}).one()
    return SpentAndReserved(
        SpentAmount(tokens=int(row.tokens), cost=float(row.cost)),
        SpentAmount(tokens=int(row.reserved_tokens), cost=float(row.reserved_cost)),
    )


def add_reserve(connection: Connection, row: dict[str, object]) -> None:
    """Adds a turn's reserve; `row` has the columns of ReserveRow."""
    connection.execute(_insert, row)


def release_reserve(connection: Connection, run_id: str, turn: str) -> None:
    """Deletes a turn's reserve, in the transaction that enters the call in the ledger."""
    connection.execute(_delete_reserve, {"b_run": run_id, "b_turn": turn})


def charge_orphaned_reserve(
    connection: Connection, run_id: str, runs: Table, turn: str | None = None
) -> set[str]:
    """Enters calls whose process died in the ledger, instead of their reserves; returns the keys of their
    turns.

    `turn`: only of this one; None: of all turns of the run. What was billed is not known. Entered are the
    counted prompt and the longest answer that the time of the call allows, at most what was reserved. The
    table `runs` has the tenant, kind and subject.
    """
    gone = delete(_reserves).where(_reserves.c.run_id == run_id).returning(*_reserves.c)
    if turn is not None:
        gone = gone.where(_reserves.c.turn == turn)
    lost = connection.execute(gone).all()
    if lost:
        run = select(runs.c.tenant_id, runs.c.kind, runs.c.subject_id).where(runs.c.id == run_id)
        of_run = connection.execute(run).mappings().one()
        connection.execute(insert(_ledger), [{**_lost_call(row), **of_run} for row in lost])
    return {row.turn for row in lost}


def _lost_call(row: Row[*tuple[Any, ...]]) -> dict[str, Any]:
    """The ledger row of a call whose process died, without what it has of the run."""
    seconds = math.inf if row.seen_at is None else max(0.0, (row.seen_at - row.made_at).total_seconds())
    tokens = math.ceil(min(row.completion_tokens, (seconds + UNSEEN_SECONDS) * TOKENS_PER_SECOND))
    unused = (row.completion_tokens - tokens) * (row.answer_price or 0.0)
    return {
        **{name: getattr(row, name) for name in ("user_id", "provider_id", "model", "run_id")},
        **dict.fromkeys(("cached_tokens", "cache_write_tokens", "reasoning_tokens"), 0),
        "prompt_tokens": row.prompt_tokens,
        "completion_tokens": tokens,
        "cost": None if row.cost is None else row.cost - unused,
        "is_estimated": True,
        "created_at": utc_now(),
    }


def see_reserves(connection: Connection, run_ids: Select[str], since: datetime) -> None:
    """Notes that the process of the calls of these runs is alive; it started at `since`, so older ones are
    those of a dead process."""
    is_alive = (_reserves.c.run_id.in_(run_ids), _reserves.c.made_at >= since)
    connection.execute(update(_reserves).where(*is_alive).values(seen_at=utc_now()))


def spent_by_run(connection: Connection, run_id: str) -> SpentAmount:
    """The sums of a run's rows in the ledger."""
    return sum_rows(connection, select(*sums_of(_ledger)).where(_ledger.c.run_id == run_id))


def spent_by_tree(connection: Connection, run_ids: Select[str]) -> SpentAndReserved:
    """What a run and all its subagents have spent, and what is reserved for their current calls.

    Reads reserves first: one that becomes a ledger row in between is counted twice rather than not at all.
    """
    reserved, spent = (
        sum_rows(connection, select(*sums_of(rows)).where(rows.c.run_id.in_(run_ids)))
        for rows in (_reserves, _ledger)
    )
    return SpentAndReserved(spent, reserved)


def daily_headrooms(connection: Connection, user_id: int, limits: LimitsConfig) -> list[LimitHeadroom]:
    """The headroom of those limits of a day that are set."""
    headrooms: list[LimitHeadroom] = []
    if limits.tokens_per_day or limits.cost_per_day:
        used = read_day(connection, user_id)
        headrooms += headrooms_of((SpendingLimit.TOKENS_PER_DAY, SpendingLimit.COST_PER_DAY), limits, used)
    if limits.level1_tokens_per_day:
        used = read_day(connection, user_id, is_shared_only=True)
        headrooms += headrooms_of((SpendingLimit.LEVEL1_TOKENS_PER_DAY,), limits, used)
    return headrooms


def headrooms_of(
    of: Iterable[SpendingLimit], limits: LimitsConfig, used: SpentAndReserved
) -> list[LimitHeadroom]:
    """The headroom of those of these limits that are set."""
    return [
        LimitHeadroom(
            limit=limit,
            amount=amount,
            spent=used.spent.cost if limit.is_money else used.spent.tokens,
            reserved=used.reserved.cost if limit.is_money else used.reserved.tokens,
        )
        for limit in of
        if (amount := getattr(limits, limit.value))
    ]


def check_daily_limits(connection: Connection, user_id: int, limits: LimitsConfig, now: datetime) -> None:
    """Called before a run is admitted. Raises TooMany if the user has reached a daily limit."""
    if not has_daily_limits(limits):
        return
    for headroom in daily_headrooms(connection, user_id, limits):
        if headroom.spent >= headroom.amount:
            amount = f"${headroom.amount:g}" if headroom.limit.is_money else f"{headroom.amount} tokens"
            where = " at shared providers" if headroom.limit == SpendingLimit.LEVEL1_TOKENS_PER_DAY else ""
            problem = f"the daily limit of {amount}{where} is reached; it resets at midnight UTC"
            raise TooMany(problem, retry_after=seconds_to_midnight(now), kind=headroom.limit)


def midnight_of(now: datetime) -> datetime:
    return now.replace(hour=0, minute=0, second=0, microsecond=0)


def seconds_to_midnight(now: datetime) -> int:
    return SECONDS_PER_DAY - int((now - midnight_of(now)).total_seconds())
