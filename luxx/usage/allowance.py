"""What a user may still spend: today, and in one run. It only reads; what enforces it is `reserve.py`."""

from datetime import datetime, timedelta

import msgspec
from sqlalchemy.orm import Session

from luxx.accounts.caller import Caller
from luxx.clock import utc_now
from luxx.config import LimitsConfig
from luxx.usage.reserve import day_of, midnight_of


class DayOfTokens(msgspec.Struct, frozen=True, kw_only=True):
    """`reserved` is set aside for model calls under way. Where there is no limit, it and `left` are null."""

    limit: int | None
    spent: int
    reserved: int
    left: int | None


class DayOfMoney(msgspec.Struct, frozen=True, kw_only=True):
    """The same in US dollars; `spent` counts completions of known price."""

    limit: float | None
    spent: float
    reserved: float
    left: float | None


class RunLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one run may take; null where there is no limit. `iterations` are model calls with tools."""

    tokens: int | None
    cost: float | None
    seconds: float | None
    tool_calls: int | None
    iterations: int


class UsageLimits(msgspec.Struct, frozen=True, kw_only=True):
    """`resets_at`: when the day, which is one of UTC, is over."""

    resets_at: datetime
    tokens_per_day: DayOfTokens
    cost_per_day: DayOfMoney
    per_run: RunLimits


def read_limits(session: Session, caller: Caller, limits: LimitsConfig, iterations: int) -> UsageLimits:
    """The caller's own."""
    day = day_of(session.connection(), caller.user_id)
    spent, held = day.spent, day.held
    return UsageLimits(
        resets_at=midnight_of(utc_now()) + timedelta(days=1),
        tokens_per_day=DayOfTokens(
            limit=limits.tokens_per_day or None,
            spent=spent.tokens,
            reserved=held.tokens,
            left=max(0, limits.tokens_per_day - spent.tokens - held.tokens)
            if limits.tokens_per_day
            else None,
        ),
        cost_per_day=DayOfMoney(
            limit=limits.cost_per_day or None,
            spent=spent.cost,
            reserved=held.cost,
            left=max(0.0, limits.cost_per_day - spent.cost - held.cost) if limits.cost_per_day else None,
        ),
        per_run=RunLimits(
            tokens=limits.tokens_per_run or None,
            cost=limits.cost_per_run or None,
            seconds=limits.seconds_per_run or None,
            tool_calls=limits.tool_calls_per_run or None,
            iterations=iterations,
        ),
    )
