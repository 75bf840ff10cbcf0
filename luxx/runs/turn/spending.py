"""The spending limits of a run, for one drive: reserves for each model call and counts tool calls.

`domain/usage/reserve.py` computes what a limit leaves; `runs/cancel.py` limits time. Without limits this
module writes nothing.
"""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace
from sqlalchemy import Connection, bindparam, select

from luxx.domain.context.tokens import prompt_size
from luxx.domain.usage.ledger import SpentAmount, UsageEntry, record
from luxx.domain.usage.reserve import (
    MIN_ANSWER_TOKENS,
    NO_SPENDING,
    TOKENS_PER_SECOND,
    LimitHeadroom,
    PlannedCall,
    ReserveResult,
    ReserveVerdict,
    SpendingLimit,
    SpentAndReserved,
    add_reserve,
    charge_orphaned_reserve,
    check_price,
    daily_headrooms,
    fit_call,
    has_daily_limits,
    has_limits,
    headrooms_of,
    is_priced,
    release_reserve,
    seconds_to_midnight,
    spent_by_run,
    spent_by_tree,
    without_level1,
)
from luxx.errors import InvalidInput, LimitReached, LuxxError, ProviderError, TooMany
from luxx.infra.clock import utc_now
from luxx.infra.config.schema import LimitsConfig
from luxx.infra.store.tables import Lock, lock_until_commit, table_of
from luxx.providers.adapter import CompletionRequest, Target, run_sized
from luxx.providers.catalog import ModelCard
from luxx.providers.client import CompletionStream
from luxx.providers.retries import Retry
from luxx.runs.cancel import CancelSignal
from luxx.runs.log.events import LogEntry
from luxx.runs.models import RunRow
from luxx.runs.turn.state import RunSpec, TurnState, count_calls, open_calls
from luxx.runs.turn.turn_log import TurnLog
from luxx.wire.delegation import unended_tasks
from luxx.wire.event import ErrorEvent
from luxx.wire.run import ENDED, Delegated, RunPhase, StopReason
from luxx.wire.turn import Step, StepStatus, Usage
from luxx.wire.turn_event import Retrying

MAX_WAIT_SECONDS = 60.0
"""How long a call waits for other calls to end before it takes what is left, or ends its run."""

MIN_POLL_SECONDS, MAX_POLL_SECONDS = 0.05, 1.0
"""Poll interval of that wait; it doubles each time."""

COUNT_MARGIN = 1.1
"""The most by which a provider counts a prompt higher than Luxx, but for rare cases."""

TOKENS_OF_PRICE = 1_000_000
"""The prices of a model card are per this many tokens."""

_runs = table_of(RunRow)
_root = select(_runs.c.id).where(_runs.c.id == bindparam("root")).cte(recursive=True)
_tree_ids = select(_root.union_all(select(_runs.c.id).join(_root, _runs.c.parent_run_id == _root.c.id)).c.id)
"""A run and its subagents, at all depths."""


class ReservedCall(msgspec.Struct, frozen=True, kw_only=True):
    """The reservation of the current call: `tokens` for its answer.

    `since`: when it was sent, on the monotonic clock. `is_spent`: a failed attempt has used it up.
    """

    call: PlannedCall
    tokens: int
    since: float
    is_spent: bool = False


class Spending:
    """The spending of one turn, for the process that drives its run.

    `use` sets the limits of the turn's user and provider; until then those of everybody hold.
    """

    def __init__(self, limits: LimitsConfig, spec: RunSpec, log: TurnLog) -> None:
        self._log = log
        self.use(spec, without_level1(limits))
        self._extra_spent = NO_SPENDING
        """Spent by calls that a crash interrupted or that were retried: the log does not count them."""
        self._reserved: ReservedCall | None = None
        self.has_recorded_lost_call = False
        """Whether this drive has charged the reservation of the turn's interrupted call."""

    def use(self, spec: RunSpec, limits: LimitsConfig) -> None:
        """Sets the model and the limits in force, see `limits_of`; those of a fallback may be others."""
        self._spec = spec
        self._limits = limits
        self.has_limits = has_limits(limits)
        """Whether tokens or money are limited."""
        self._has_daily = has_daily_limits(limits)

    async def recover_reservation(self) -> None:
        """Charges the reservation that an earlier drive left, at the start of a drive.

        Raises LostRun if another process has claimed the run; the reservation may be its own.
        """
        if self._spec.fence <= 1:
            return
        spent_rows: list[SpentAmount] = []

        def extra_write(connection: Connection) -> None:
            charged = charge_orphaned_reserve(connection, self._spec.run_id, _runs)
            self.has_recorded_lost_call = self._spec.turn.key in charged
            spent_rows.append(spent_by_run(connection, self._spec.run_id))

        await self._log.append([], extra_write=extra_write)
        spent, logged_spending = spent_rows[-1], spent_in(self._log.state)
        self._extra_spent = SpentAmount(
            tokens=spent.tokens - logged_spending.tokens, cost=spent.cost - logged_spending.cost
        )

    async def admit(
        self,
        request: CompletionRequest,
        target: Target,
        card: ModelCard,
        signal: CancelSignal,
        *,
        tokens: int,
        may_wait: bool = True,
    ) -> CompletionRequest:
        """Reserves for the request, whose prompt has about this many tokens; returns it with `max_tokens` of
        what the model can produce, and no larger than the reservation.

        If it `may_wait`, waits while other calls hold what it needs. Raises LimitReached if it does not fit
        the limits, InvalidInput if cost is limited but the model's price is unknown.
        """
        request = replace(request, max_tokens=answer_limit(request, card, tokens))
        if not self.has_limits:
            return request
        check_price(card, self._limits, request.model)
        call = await run_sized(len(request.messages), worst_case, request, card)
        until, pause = time.monotonic() + MAX_WAIT_SECONDS * may_wait, MIN_POLL_SECONDS
        while True:
            answer = await self._reserve(call, target, may_wait=time.monotonic() < until)
            if answer.verdict == ReserveVerdict.FITS:
                self._reserved = ReservedCall(call=call, tokens=answer.tokens, since=time.monotonic())
                return replace(request, max_tokens=answer.tokens)
            if answer.verdict == ReserveVerdict.NEVER:
                raise limit_reached(answer.narrowest, call)
            await signal.wait(asyncio.sleep(pause))
            pause = min(2 * pause, MAX_POLL_SECONDS)

    async def log_retry(
        self,
        event: Retrying,
        lost: UsageEntry | None,
        warnings: Sequence[LogEntry] = (),
        *,
        is_over: bool = False,
    ) -> None:
        """Logs a failed attempt; `lost`, its ledger entry if it may be billed, replaces the reservation.

        `is_over`: the call has ended, and another one is made at once.
        """

        def extra_write(connection: Connection) -> None:
            if lost is not None or is_over:
                self.close(connection, lost)

        phase = RunPhase.THINKING if is_over else RunPhase.RETRYING
        await self._log.append([*warnings, event], phase=phase, extra_write=extra_write)
        if lost is not None and self._reserved is not None:
            self._reserved = replace(self._reserved, is_spent=True)
            tokens = lost.usage.prompt_tokens + lost.usage.completion_tokens
            self._extra_spent = SpentAmount(
                tokens=self._extra_spent.tokens + tokens, cost=self._extra_spent.cost + (lost.cost or 0.0)
            )

    async def on_retry(self, retry: Retry, lost: Callable[[], UsageEntry]) -> None:
        """Logs a failed attempt before the delay; `lost` makes its ledger entry, where a limit counts it."""
        event = Retrying(attempt=retry.attempt, delay_ms=retry.delay_ms, reason=retry.reason)
        await self.log_retry(event, lost() if retry.may_be_billed and self.has_limits else None)

    async def before_retry(self, target: Target) -> None:
        """Reserves again what the failed attempt used up. Raises LimitReached if that is not left."""
        reserved = self._reserved
        if reserved is not None and reserved.is_spent:
            call = replace(reserved.call, answer_tokens=reserved.tokens)
            # The request and its max_tokens do not change, so the answer may be as long as before.
            answer = await self._reserve(call, target, may_wait=False, least=reserved.tokens)
            if answer.verdict != ReserveVerdict.FITS:
                raise limit_reached(answer.narrowest, call)
        if reserved is not None:
            self._reserved = replace(reserved, is_spent=False, since=time.monotonic())
        await self._log.append([], phase=RunPhase.THINKING)

    def is_counted(self, stream: CompletionStream | None, deltas: int, error: ProviderError) -> bool:
        """Whether a failed call counts. Providers rarely bill a failure before the first delta; where a limit
        must hold it counts if they might."""
        return deltas > 0 or (self.has_limits and stream is not None and stream.may_be_billed(error))

    def with_hidden(self, usage: Usage) -> Usage:
        """The usage plus the hidden thinking that the model may have done, where a limit must hold."""
        reserved = self._reserved
        if not self.has_limits or reserved is None:
            return usage
        hidden = math.ceil((time.monotonic() - reserved.since) * TOKENS_PER_SECOND)
        completion = max(usage.completion_tokens, min(reserved.tokens, usage.completion_tokens + hidden))
        return replace(usage, completion_tokens=completion, total_tokens=usage.prompt_tokens + completion)

    async def _reserve(
        self, call: PlannedCall, target: Target, *, may_wait: bool, least: int = 0
    ) -> ReserveResult:
        """Checks the limits and reserves what fits, in one transaction under the run's fence.

        A reservation with fewer answer tokens than `least` does not fit.
        """
        answers: list[ReserveResult] = []
        spec = self._spec

        def extra_write(connection: Connection) -> None:
            headrooms = self._headroom_of_run(self._log.state, connection)
            if self._has_daily:
                lock_until_commit(connection, Lock.USER_RESERVES, spec.user_id)
                headrooms += daily_headrooms(connection, spec.user_id, self._limits)
            answer = fit_call(call, headrooms, may_wait=may_wait)
            if answer.verdict == ReserveVerdict.FITS and answer.tokens < least:
                answer = replace(answer, verdict=ReserveVerdict.NEVER)
            answers.append(answer)
            if answer.verdict == ReserveVerdict.FITS:
                now = utc_now()
                row: dict[str, object] = {
                    "run_id": spec.run_id, "turn": spec.turn.key, "user_id": spec.user_id,
                    "provider_id": target.provider_id, "model": spec.request.model,
                    "prompt_tokens": call.prompt_tokens, "completion_tokens": answer.tokens,
                    "cost": call.cost(answer.tokens) if call.is_priced else None,
                    "answer_price": call.answer_price, "made_at": now, "seen_at": now,
                }  # fmt: skip
                add_reserve(connection, row)

        await self._log.append([], extra_write=extra_write)
        return answers[-1]

    def _headroom_of_run(self, state: TurnState, connection: Connection) -> list[LimitHeadroom]:
        limits, extra, origin = self._limits, self._extra_spent, self._spec.request.origin
        if not (limits.tokens_per_run or limits.cost_per_run):
            return []
        has_others = state.subagents or self._spec.turn.key or self._spec.request.checks
        if not (isinstance(origin, Delegated) or has_others):
            logged_spending = spent_in(state)
            spent = SpentAmount(
                tokens=logged_spending.tokens + extra.tokens, cost=logged_spending.cost + extra.cost
            )
            used = SpentAndReserved(spent, NO_SPENDING)
        else:
            # The turns of a run, its checks and all its subagents share one limit and reserve concurrently.
            lock_until_commit(connection, Lock.USER_RESERVES, self._spec.user_id)
            root = origin.root_run_id if isinstance(origin, Delegated) else self._spec.run_id
            used = spent_by_tree(connection, _tree_ids.params(root=root))
        return headrooms_of((limit for limit in SpendingLimit if limit.is_per_run), limits, used)

    def close(self, connection: Connection, entry: UsageEntry | None) -> None:
        """Records the ledger entry of a completion, if there is one, and releases its reservation."""
        if entry is not None:
            record(connection, entry)
        if self.has_limits:
            release_reserve(connection, self._spec.run_id, self._spec.turn.key)

    def excess_calls(self, state: TurnState) -> list[Step]:
        """The pending calls beyond the run's limit of tool calls."""
        if self._max_calls is None:
            return []
        waiting = [call for call in open_calls(state) if call.status == StepStatus.PENDING]
        running = len(open_calls(state)) - len(waiting)
        return waiting[max(0, self._max_calls - self._count_calls(state) - running) :]

    def uses_up_calls(self, state: TurnState) -> bool:
        """Whether the open calls of `state` reach or exceed the run's limit of tool calls."""
        limit, count = self._max_calls, self._count_calls(state)
        return limit is not None and count < limit <= count + len(open_calls(state))

    def out_of_calls_text(self) -> str:
        """The warning when the run reaches its limit of tool calls."""
        return (
            f"This run has reached its limit of {self._max_calls} tool calls and answers with the results "
            "so far. Send another message to continue, or ask an administrator to raise "
            "limits.tool_calls_per_run."
        )

    def is_out_of_calls(self, state: TurnState) -> bool:
        """Whether the limit of tool calls is reached, so the model is offered no more tools."""
        return self._max_calls is not None and self._count_calls(state) >= self._max_calls

    def share_of_calls(self, state: TurnState) -> int | None:
        """How many tool calls each subagent of the open calls may make; None: no limit."""
        if self._max_calls is None:
            return None
        calls = open_calls(state)
        sharing = unended_tasks(calls, [one.call_id for one in state.subagents if one.status in ENDED])
        # Until one of them ends, the result is the same for each, and no share becomes smaller.
        return max(0, self._max_calls - self._count_calls(state) - len(calls)) // max(1, sharing)

    def _count_calls(self, state: TurnState) -> int:
        """The tool calls of the run so far, with this state of the turn."""
        return self._log.calls_of_other_turns() + count_calls(state)

    @property
    def _max_calls(self) -> int | None:
        origin = self._spec.request.origin
        if isinstance(origin, Delegated):
            return origin.most_calls
        return self._limits.tool_calls_per_run or None


def answer_limit(request: CompletionRequest, card: ModelCard, tokens: int) -> int | None:
    """The `max_tokens` to send: at most what the model can produce and what fits beside a prompt of `tokens`.

    Nothing is known of an unknown model, so only a limit that somebody set is sent to it.
    """
    if card.is_unknown:
        return request.max_tokens
    longest = min(card.max_output, _room_for_answer(tokens, card))
    return min(request.max_tokens or longest, longest)


def _room_for_answer(tokens: int, card: ModelCard) -> int:
    """Providers refuse a max_tokens that does not fit the context window, as they count the prompt."""
    return max(card.context_window - int(tokens * COUNT_MARGIN), MIN_ANSWER_TOKENS)


def worst_case(request: CompletionRequest, card: ModelCard) -> PlannedCall:
    """The upper bound of a request: no cached prompt tokens and the longest possible answer."""
    size = prompt_size(request.messages, request.tools, request.response_schema)
    longest_answer = _room_for_answer(size.estimate, card)
    prices = (card.input_price or 0.0, card.cached_input_price or 0.0, card.cache_write_price or 0.0)
    return PlannedCall(
        prompt_tokens=size.bound,
        answer_tokens=request.max_tokens or min(card.max_output, longest_answer),
        prompt_price=max(prices) / TOKENS_OF_PRICE,
        answer_price=(card.output_price or 0.0) / TOKENS_OF_PRICE,
        is_priced=is_priced(card),
    )


def limit_reached(headroom: LimitHeadroom, call: PlannedCall) -> LimitReached:
    """The error that names the limit that leaves too little for a call, and what can be done."""
    if headroom.limit.is_money:
        amount, spent, needed = (
            f"${dollars:.6g}"
            for dollars in (headroom.amount, headroom.spent, call.cost(min(call.answer_tokens, 1)))
        )
    else:
        amount, spent = f"{headroom.amount:,.0f} tokens", f"{headroom.spent:,.0f}"
        needed = f"{call.prompt_tokens:,}"
    if headroom.limit.is_daily:
        where = " at shared providers" if headroom.limit == SpendingLimit.LEVEL1_TOKENS_PER_DAY else ""
        usage_text = f"You may use {amount} a day{where} and have used {spent}"
        advice = "The limit resets at midnight UTC; until then a shorter conversation may fit"
    else:
        usage_text = f"This run may use {amount} and has used {spent}"
        advice = "Ask for less at once, continue with another message, or begin a new conversation"
    return LimitReached(
        f"{usage_text}; the next model call could take {needed} before it answers. {advice}, "
        f"or ask an administrator to raise limits.{headroom.limit}.",
        kind=headroom.limit.value,
        stop_reason=StopReason.COST if headroom.limit.is_money else StopReason.TOKENS,
    )


def no_budget_left(last_error: ErrorEvent | None, detail: dict[str, Any]) -> LuxxError:
    """The error for a stored message whose answer did not fit a limit."""
    message = "the limits leave nothing for an answer" if last_error is None else last_error.message
    kind = LimitReached.kind if last_error is None else last_error.code
    if kind not in {limit.value for limit in SpendingLimit if limit.is_daily}:
        return InvalidInput(message, kind=kind, detail=detail)
    refused = TooMany(message, retry_after=seconds_to_midnight(utc_now()), kind=kind)
    refused.detail = detail
    return refused


def spent_in(state: TurnState) -> SpentAmount:
    """The tokens and cost of the run's log."""
    return SpentAmount(
        tokens=state.usage.prompt_tokens + state.usage.completion_tokens, cost=state.cost or 0.0
    )
