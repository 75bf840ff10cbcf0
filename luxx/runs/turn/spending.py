"""What a run may spend: its model calls are set aside for before they are made, its tool calls are counted.

One drive's. What a limit leaves is `usage/reserve.py`'s to say; time is `wall_time.py`'s. Where nothing is
limited, nothing happens here.
"""

import asyncio
import math
import time
from typing import Any

import msgspec
from msgspec.structs import replace
from sqlalchemy import Connection

from luxx.domain.usage.estimate import prompt_size
from luxx.domain.usage.ledger import Spent, UsageEntry, record
from luxx.domain.usage.reserve import (
    LEAST_ANSWER,
    Answer,
    Call,
    Limit,
    Room,
    Verdict,
    check_price,
    day_of,
    has_amounts,
    has_daily,
    is_priced,
    judged,
    release,
    seconds_to_midnight,
    set_aside,
    settle_left,
    spent_by_run,
    spent_by_tree,
    take_turn,
)
from luxx.errors import InvalidInput, LimitReached, LuxxError, TooMany
from luxx.infra.clock import utc_now
from luxx.infra.config.schema import LimitsConfig
from luxx.providers.adapter import CompletionRequest, Target
from luxx.providers.catalog import ModelCard
from luxx.runs.engine.cancel import CancelSignal
from luxx.runs.subagents import calls_in
from luxx.runs.turn.spec import ChatBrief
from luxx.runs.turn.state import ChatLog, ChatState, open_calls
from luxx.tools.builtin.run import DELEGATE_TOOL
from luxx.wire.delta import Usage
from luxx.wire.event import ErrorEvent, Retrying
from luxx.wire.run import RunPhase, StopReason
from luxx.wire.step import Step, StepStatus

PATIENCE_SECONDS = 60.0
"""How long a call waits for the ends of other calls before it takes what is left, or ends its run."""

FIRST_LOOK_SECONDS, LAST_LOOK_SECONDS = 0.05, 1.0
"""How soon it looks again: twice as long each time."""

TOKENS_OF_PRICE = 1_000_000
"""What a card's prices are for."""

HIDDEN_PER_SECOND = 500
"""Tokens that a model thinks without showing them: faster than those that hide their thoughts are today."""

NOTHING = Spent(tokens=0, cost=0.0)


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """What is set aside for the call that is made: `tokens` for its answer. `since`: when it was sent, on
    the monotonic clock. `is_spent`: a try that failed has taken it."""

    call: Call
    tokens: int
    since: float
    is_spent: bool = False


class Spending:
    """For the one process that drives the run."""

    def __init__(self, limits: LimitsConfig, brief: ChatBrief) -> None:
        self._limits = limits
        self._brief = brief
        self.has_amounts = has_amounts(limits)
        """Whether tokens or money are limited."""
        self._has_daily = has_daily(limits)
        self._before = NOTHING
        """Spent by calls that ended with their process, or that were made again: they are in the ledger, but
        not in the run's sums."""
        self._held: Held | None = None
        self.has_settled = False
        """Whether this drive has entered such a call."""

    async def take_over(self, log: ChatLog) -> None:
        """At the beginning of a drive: enters what was set aside for a call that nobody saw the end of.

        Raises LostRun where the run is another's by now, who has set aside something of its own.
        """
        if self._brief.fence <= 1:
            return
        found: list[Spent] = []

        def also(connection: Connection) -> None:
            self.has_settled = settle_left(connection, self._brief.run_id)
            found.append(spent_by_run(connection, self._brief.run_id))

        await log.append([], also=also)
        spent, known = found[-1], spent_in(log.state)
        self._before = Spent(tokens=spent.tokens - known.tokens, cost=spent.cost - known.cost)

    async def admitted(
        self, request: CompletionRequest, target: Target, card: ModelCard, log: ChatLog, signal: CancelSignal
    ) -> CompletionRequest:
        """The request, its answer no longer than what was set aside for it.

        Waits for the ends of other calls where they hold what this one needs. Raises LimitReached where it
        cannot be made, InvalidInput where its price is not known but limited.
        """
        if not self.has_amounts:
            return request
        check_price(card, self._limits, request.model)
        call = worst_case(request, card)
        until, pause = time.monotonic() + PATIENCE_SECONDS, FIRST_LOOK_SECONDS
        while True:
            answer = await self._reserve(call, target, log, may_wait=time.monotonic() < until)
            if answer.verdict == Verdict.FITS:
                self._held = Held(call=call, tokens=answer.tokens, since=time.monotonic())
                return replace(request, max_tokens=answer.tokens)
            if answer.verdict == Verdict.NEVER:
                raise too_little(answer.narrowest, call)
            await signal.wait(asyncio.sleep(pause))
            pause = min(2 * pause, LAST_LOOK_SECONDS)

    async def retried(self, log: ChatLog, event: Retrying, lost: UsageEntry | None) -> None:
        """Logs that a try failed; `lost`, if it may be billed, replaces what was set aside for it."""

        def also(connection: Connection) -> None:
            if lost is not None:
                self.close(connection, lost)

        await log.append([event], phase=RunPhase.RETRYING, also=also)
        if lost is not None and self._held is not None:
            self._held = replace(self._held, is_spent=True)
            tokens = lost.usage.prompt_tokens + lost.usage.completion_tokens
            self._before = Spent(
                tokens=self._before.tokens + tokens, cost=self._before.cost + (lost.cost or 0.0)
            )

    async def admit_again(self, log: ChatLog, target: Target) -> None:
        """Sets aside for the next try what the last one took. Raises LimitReached where that is not left."""
        held = self._held
        if held is None:
            return
        if held.is_spent:
            call = replace(held.call, answer=held.tokens)
            # The request is what it was, so its answer may become as long as before.
            answer = await self._reserve(call, target, log, may_wait=False, least=held.tokens)
            if answer.verdict != Verdict.FITS:
                raise too_little(answer.narrowest, call)
        self._held = replace(held, is_spent=False, since=time.monotonic())

    def with_hidden(self, usage: Usage) -> Usage:
        """An estimate that has to keep limits: with what the model may have thought and not shown so far."""
        held = self._held
        if not self.has_amounts or held is None:
            return usage
        hidden = math.ceil((time.monotonic() - held.since) * HIDDEN_PER_SECOND)
        completion = max(usage.completion_tokens, min(held.tokens, usage.completion_tokens + hidden))
        return replace(usage, completion_tokens=completion, total_tokens=usage.prompt_tokens + completion)

    async def _reserve(
        self, call: Call, target: Target, log: ChatLog, *, may_wait: bool, least: int = 0
    ) -> Answer:
        """Asks, and sets aside what fits, in one transaction under the run's fence.

        An answer that could not be as long as `least` does not fit.
        """
        answers: list[Answer] = []
        brief = self._brief

        def also(connection: Connection) -> None:
            rooms = self._rooms_of_run(log.state, connection)
            if self._has_daily:
                take_turn(connection, brief.user_id)
                rooms += self._rooms_of_day(connection)
            answer = judged(call, rooms, may_wait=may_wait)
            if answer.verdict == Verdict.FITS and answer.tokens < least:
                answer = replace(answer, verdict=Verdict.NEVER)
            answers.append(answer)
            if answer.verdict == Verdict.FITS:
                row: dict[str, object] = {
                    "run_id": brief.run_id, "user_id": brief.user_id, "provider_id": target.provider_id,
                    "model": brief.request.model, "prompt_tokens": call.prompt,
                    "completion_tokens": answer.tokens,
                    "cost": call.cost(answer.tokens) if call.is_priced else None, "made_at": utc_now(),
                }  # fmt: skip
                set_aside(connection, row)

        await log.append([], also=also)
        return answers[-1]

    def _rooms_of_run(self, state: ChatState, connection: Connection) -> list[Room]:
        limits, before, delegated = self._limits, self._before, self._brief.request.delegated
        if not (limits.tokens_per_run or limits.cost_per_run):
            return []
        if delegated is None and not state.subagents:
            known = spent_in(state)
            spent = Spent(tokens=known.tokens + before.tokens, cost=known.cost + before.cost)
            held = NOTHING
        else:
            # A run and all its subagents have one limit together, and set aside side by side.
            take_turn(connection, self._brief.user_id)
            root = self._brief.run_id if delegated is None else delegated.root_run_id
            tree = spent_by_tree(connection, root)
            spent, held = tree.spent, tree.held
        tokens = Room(
            limit=Limit.TOKENS_PER_RUN, amount=limits.tokens_per_run, spent=spent.tokens, held=held.tokens
        )
        cost = Room(limit=Limit.COST_PER_RUN, amount=limits.cost_per_run, spent=spent.cost, held=held.cost)
        return [room for room in (tokens, cost) if room.amount]

    def _rooms_of_day(self, connection: Connection) -> list[Room]:
        day, limits = day_of(connection, self._brief.user_id), self._limits
        spent, held = day.spent, day.held
        tokens = Room(
            limit=Limit.TOKENS_PER_DAY, amount=limits.tokens_per_day, spent=spent.tokens, held=held.tokens
        )
        cost = Room(limit=Limit.COST_PER_DAY, amount=limits.cost_per_day, spent=spent.cost, held=held.cost)
        return [room for room in (tokens, cost) if room.amount]

    def close(self, connection: Connection, entry: UsageEntry | None) -> None:
        """Records a completion's line, if it has one, and gives back what was set aside for it."""
        if entry is not None:
            record(connection, entry)
        if self.has_amounts:
            release(connection, self._brief.run_id)

    def calls_too_many(self, state: ChatState) -> list[Step]:
        """The calls that wait to be started although the run has made those it may."""
        most = self._most_calls
        if most is None:
            return []
        waiting = [call for call in open_calls(state) if call.status == StepStatus.PENDING]
        running = len(open_calls(state)) - len(waiting)
        return waiting[max(0, most - calls_in(state) - running) :]

    def uses_up_calls(self, state: ChatState) -> bool:
        """Whether the open calls of `state` are the last that the run may make, or more."""
        most, before = self._most_calls, calls_in(state)
        return most is not None and before < most <= before + len(open_calls(state))

    def out_of_calls(self) -> str:
        """What is said when the last call is made."""
        return (
            f"This run makes no more than {self._most_calls} calls of tools; it answers with "
            "what these tell. Go on with another message, or an administrator raises "
            "limits.tool_calls_per_run."
        )

    def is_out_of_calls(self, state: ChatState) -> bool:
        """Whether the model is offered no more tools."""
        return self._most_calls is not None and calls_in(state) >= self._most_calls

    def share_of_calls(self, state: ChatState) -> int | None:
        """How many calls one of the subagents may make that are delegated to now; None: any number."""
        if self._most_calls is None:
            return None
        calls = open_calls(state)
        sharing = sum(call.name == DELEGATE_TOOL for call in calls)
        # As long as none of them has ended, what is left is as much as when the first was begun.
        return max(0, self._most_calls - calls_in(state) - len(calls)) // max(1, sharing)

    @property
    def _most_calls(self) -> int | None:
        delegated = self._brief.request.delegated
        if delegated is not None:
            return delegated.most_calls
        return self._limits.tool_calls_per_run or None


def worst_case(request: CompletionRequest, card: ModelCard) -> Call:
    """The most that a request can take: all of its prompt unread before, an answer as long as it may be."""
    size = prompt_size(request.messages, request.tools, request.response_schema)
    # A server refuses an answer that cannot fit its window, however short it would have become.
    roomy = max(card.context_window - size.estimate, LEAST_ANSWER)
    prices = (card.input_price or 0.0, card.cached_input_price or 0.0, card.cache_write_price or 0.0)
    return Call(
        prompt=size.bound,
        answer=request.max_tokens or min(card.max_output, roomy),
        prompt_price=max(prices) / TOKENS_OF_PRICE,
        answer_price=(card.output_price or 0.0) / TOKENS_OF_PRICE,
        is_priced=is_priced(card),
    )


def too_little(room: Room, call: Call) -> LimitReached:
    """Says which limit leaves too little for a call, and what can be done."""
    if room.limit.is_money:
        amount, spent, needed = (
            f"${sum_:.6g}" for sum_ in (room.amount, room.spent, call.cost(min(call.answer, 1)))
        )
    else:
        amount, spent = f"{room.amount:,.0f} tokens", f"{room.spent:,.0f}"
        needed = f"{call.prompt:,}"
    if room.limit.is_daily:
        said = f"You may use {amount} a day and have used {spent}"
        advice = "There is more at midnight UTC; until then a shorter conversation may fit"
    else:
        said = f"This run may use {amount} and has used {spent}"
        advice = "Ask for less at once, go on with another message, or begin a new conversation"
    return LimitReached(
        f"{said}; the next model call could take {needed} before it answers. {advice}, "
        f"or an administrator raises limits.{room.limit}.",
        kind=room.limit.value,
        stop_reason=StopReason.COST if room.limit.is_money else StopReason.TOKENS,
    )


def nothing_fits(said: ErrorEvent | None, where: dict[str, Any]) -> LuxxError:
    """The refusal of a message that was stored, and whose answer a limit left no room for."""
    message = "there is no room for an answer" if said is None else said.message
    kind = LimitReached.kind if said is None else said.code
    if kind not in (Limit.TOKENS_PER_DAY, Limit.COST_PER_DAY):
        return InvalidInput(message, kind=kind, detail=where)
    refused = TooMany(message, retry_after=seconds_to_midnight(utc_now()), kind=kind)
    refused.detail = where
    return refused


def spent_in(state: ChatState) -> Spent:
    """What the log tells that the run has spent."""
    return Spent(tokens=state.usage.prompt_tokens + state.usage.completion_tokens, cost=state.cost or 0.0)
