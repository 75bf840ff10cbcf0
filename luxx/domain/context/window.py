"""What is left out of a prompt that fills its context window: a pure decision, which every history has.

First old tool results are cleared. If that is not enough, what is older than the last two turns is replaced
by a summary or, without one, left out as far as needed. A cut lies between two units of the history, so also
within a turn. Kept word for word are the first message, the newest messages of users, the last two turns and
results of protected tools, each up to its share of the window.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

import msgspec
from msgspec.structs import replace

from luxx.domain.context.prompt import History, Prompt, Unit
from luxx.domain.context.tokens import correction
from luxx.infra.config.schema import ContextConfig
from luxx.wire.message import CompressionStrategy, ContextRecord, UserPrompt

OUTPUT_SHARE = 0.15
"""The most of a window that is reserved for the answer."""

TARGET_SHARE = 0.6
"""Of the usable window, what a prompt has at most after something was left out, so that no pass follows
soon."""

GAIN_SHARE = 0.1
"""What a summary must gain at least of the usable window; and how much must be new before the next pass."""

FIRST_TOKENS, FIRST_SHARE = 2_000, 0.15
USERS_TOKENS, USERS_SHARE = 20_000, 0.2
TURNS_SHARE = 0.25
"""The most tokens of the first message, of the newest messages of users and of the last two turns that are
kept, and their shares of a smaller window."""

KEEP_SHARE, CLEAR_SHARE = 0.2, 0.1
"""The most of a window that `clear_keep` and `clear_min` are."""

SUMMARY_SHARE, MIN_SUMMARY_TOKENS = 0.02, 500


class WindowLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a prompt, in tokens. `usable` is the window without the answer."""

    window: int
    usable: int
    trigger: int
    target: int
    clear_keep: int
    clear_min: int
    first: int
    users: int
    turns: int
    summary: int
    step: int

    def divided(self, factor: float) -> "WindowLimits":
        """The limits in units of `factor` tokens."""
        values = ((name, int(getattr(self, name) / factor)) for name in self.__struct_fields__)
        return WindowLimits(**dict(values))


def window_limits(window: int | None, longest_answer: int, config: ContextConfig) -> WindowLimits:
    """The limits for a model with this window (None: it is not known)."""
    window = config.max_tokens if window is None else min(window, config.max_tokens)
    usable = window - min(longest_answer, int(OUTPUT_SHARE * window))
    return WindowLimits(
        window=window,
        usable=usable,
        trigger=int(config.trigger * usable),
        target=int(TARGET_SHARE * usable),
        clear_keep=min(config.clear_keep, int(KEEP_SHARE * window)),
        clear_min=min(config.clear_min, int(CLEAR_SHARE * window)),
        first=min(FIRST_TOKENS, int(FIRST_SHARE * usable)),
        users=min(USERS_TOKENS, int(USERS_SHARE * usable)),
        turns=int(TURNS_SHARE * window),
        summary=max(MIN_SUMMARY_TOKENS, min(int(SUMMARY_SHARE * window), config.summary_tokens)),
        step=int(GAIN_SHARE * usable),
    )


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """What is left out from now on: the record, and the corrected tokens of the prompt before and after.

    Of the strategy `summarize` the record has no text yet, see `summarized`, and `after` counts the longest
    one. Without a strategy, more is sent than before.
    """

    record: ContextRecord
    strategy: CompressionStrategy | None = None
    before: int
    after: int


def next_cut(
    prompt: Prompt,
    record: ContextRecord,
    limits: WindowLimits,
    *,
    summarizes: bool = False,
    is_asked: bool = False,
) -> Cut | None:
    """What to leave out before the next call; None: the prompt is sent as the record says.

    `is_asked`: a person wants it now, whatever fits.
    """
    tokens = round(prompt.estimate(record) * correction(record))
    if not is_asked and tokens <= max(limits.trigger, min(record.next_at, limits.usable)):
        return None
    return _Fitting(prompt, record, limits).cut(summarizes=summarizes, is_asked=is_asked)


def slid(history: History, record: ContextRecord, begin: int, limits: WindowLimits) -> ContextRecord:
    """The record with the messages before `begin` left out, except the first one of a conversation."""
    first = history.units[0] if history.units and not history.has_task else None
    kept = (first.place,) if first is not None and first.is_user else ()
    message = None if first is None or not kept else first.prompts[0]
    characters = 0
    if isinstance(message, UserPrompt) and first is not None and first.tokens > limits.first:
        characters = max(1, len(message.text) * limits.first // first.tokens)
    cleared = max(record.cleared, (begin, 0))
    return replace(
        record,
        messages=begin,
        part=0,
        kept=kept,
        first=characters,
        cleared=cleared,
        window=limits.window,
    )


def begun_anew(record: ContextRecord, limits: WindowLimits) -> ContextRecord:
    """The record with nothing left out, for a model with a larger window than the one before."""
    return replace(
        record, messages=0, part=0, kept=(), first=0, cleared=(0, 0), summary="", is_summarized=False,
        next_at=0, learned=0, learned_by="", window=limits.window,
    )  # fmt: skip


def truncated(
    prompt: Prompt, record: ContextRecord, limits: WindowLimits, most: int | None = None
) -> Cut | None:
    """The oldest turns left out until the target is reached; with `most`, until the prompt has so many
    tokens.

    None: nothing can be left out.
    """
    if most is not None:
        limits = replace(
            limits,
            target=min(most, limits.target),
            usable=min(most, limits.usable),
            first=min(limits.first, int(FIRST_SHARE * most)),
            users=min(limits.users, int(USERS_SHARE * most)),
            turns=min(limits.turns, int(TURNS_SHARE * most)),
        )
    return _Fitting(prompt, record, limits).truncated()


def summarized(prompt: Prompt, cut: Cut, summary: str, limits: WindowLimits) -> Cut | None:
    """The cut with its summary; None if it gains too little."""
    record = replace(cut.record, summary=summary, is_summarized=True)
    after = round(prompt.estimate(record) * correction(record))
    if cut.before - after < limits.step:
        return None
    return replace(cut, record=_with_next(record, after, limits), after=after)


def _with_next(record: ContextRecord, after: int, limits: WindowLimits) -> ContextRecord:
    """The record with the size before which no other pass follows, where the target was not reached."""
    next_at = after + int(GAIN_SHARE * limits.window) if after > limits.target else 0
    return replace(record, next_at=next_at, window=limits.window)


class _Fitting:
    """The decision for one prompt, in estimated tokens."""

    def __init__(self, prompt: Prompt, record: ContextRecord, limits: WindowLimits) -> None:
        self._prompt, self._record = prompt, record
        self._factor = correction(record)
        self._given, self._limits = limits, limits.divided(self._factor)
        self._history = prompt.history
        self._units: Sequence[Unit] = prompt.history.units
        self._begin = prompt.history.begin(record)
        self._before = prompt.estimate(record)
        self._sums = list(accumulate((unit.tokens for unit in self._units), initial=0))
        """How many tokens the units before each one have."""
        self._aligned = self._aligned_places()

    def cut(self, *, summarizes: bool, is_asked: bool) -> Cut | None:
        cleared = self._clearing()
        if cleared is not None and not is_asked and self._size(cleared) <= self._limits.target:
            return self._made(cleared, CompressionStrategy.CLEAR)
        if summarizes:
            found = self._summary(self._record if cleared is None else cleared)
            if found is not None:
                return self._made(found, CompressionStrategy.SUMMARIZE, self._limits.summary)
        if is_asked:
            return None if cleared is None else self._made(cleared, CompressionStrategy.CLEAR)
        return self.truncated(cleared)

    def truncated(self, cleared: ContextRecord | None = None) -> Cut | None:
        record = self._record if cleared is None else cleared
        starts = self._starts()
        chosen = self._smallest(record, starts)
        if chosen is not None:
            record = chosen
        for smaller in (self._without_users, self._with_results_shortened):
            if self._size(record) > self._limits.usable:
                record = smaller(record)
        if record is self._record or self._size(record) >= self._before:
            return None
        is_cleared = record is cleared
        return self._made(record, CompressionStrategy.CLEAR if is_cleared else CompressionStrategy.TRUNCATE)

    def _made(self, record: ContextRecord, strategy: CompressionStrategy, more: int = 0) -> Cut | None:
        """The cut; None if it gains less than a token as the provider counts them."""
        before = round(self._before * self._factor)
        after = round((self._size(record) + more) * self._factor)
        if after >= before:
            return None
        return Cut(
            record=_with_next(record, after, self._given), strategy=strategy, before=before, after=after
        )

    def _size(self, record: ContextRecord) -> int:
        return self._prompt.estimate(record)

    def _clearing(self) -> ContextRecord | None:
        """The record with old results cleared; None if that frees too little."""
        units, limits, kept = self._units, self._limits, 0
        newest = min(self._last_turns(2, limits.turns), len(units) - 1)
        at = len(units)
        while at > self._begin and kept <= limits.clear_keep:
            at -= 1
            kept += units[at].result_tokens
        boundary = min(at + 1, newest) if kept > limits.clear_keep else self._begin
        if boundary <= self._begin or units[boundary].place <= self._record.cleared:
            return None
        already = max(self._begin, self._history.index(self._record.cleared))
        freed = sum(unit.tokens - self._history.cleared(unit).tokens for unit in units[already:boundary])
        return replace(self._record, cleared=units[boundary].place) if freed >= limits.clear_min else None

    def _last_turns(self, count: int, most: int) -> int:
        """The unit with which the last turns begin, where they have at most so many tokens; else no unit."""
        starts = [at for at, unit in enumerate(self._units) if unit.starts_turn][-count:]
        begin = starts[0] if starts else 0
        return begin if self._sums[-1] - self._sums[begin] <= most else len(self._units)

    def _summary(self, record: ContextRecord) -> ContextRecord | None:
        """The record with all left out that a summary replaces; None if that gains too little.

        The last two turns stay if they are not too large, else the last one, else its last two completions.
        """
        limits, count = self._limits, len(self._units)
        places = [self._last_turns(2, limits.turns), self._last_turns(1, limits.turns), count - 2, count - 1]
        best: ContextRecord | None = None
        for at in (self._aligned[at] for at in places if 0 <= at < count):
            if at <= self._begin:
                continue
            found = self._left_out(record, at)
            if self._before - self._size(found) - limits.summary < limits.step:
                continue
            best = found
            if self._size(found) + limits.summary <= limits.target:
                break
        return None if best is None else replace(best, summary="", is_summarized=False)

    def _starts(self) -> list[int]:
        """The units before which may be cut: of the last two turns all, of earlier ones the first."""
        units = self._units
        last_two = self._last_turns(2, self._sums[-1])
        starts = (at for at in range(self._begin + 1, len(units)) if units[at].starts_turn or at >= last_two)
        return [at for at in starts if self._aligned[at] == at]

    def _aligned_places(self) -> list[int]:
        """Where each unit may be cut before: within a turn, what is sent must begin with thinking, if it has
        any, because vendors take no more of it else."""
        places: list[int] = []
        thought: int | None = None
        for at, unit in enumerate(self._units):
            if unit.starts_turn or unit.is_user:
                thought = None
            elif unit.has_thinking:
                thought = at
            places.append(at if thought is None else thought)
        return places

    def _smallest(self, record: ContextRecord, starts: Sequence[int]) -> ContextRecord | None:
        """The record with as little left out as the target needs, or with the most that can be."""
        if not starts or self._size(record) <= self._limits.target:
            return None
        target = self._limits.target
        at = bisect_left(starts, -target, key=lambda start: -self._size(self._left_out(record, start)))
        return self._left_out(record, starts[min(at, len(starts) - 1)])

    def _left_out(self, record: ContextRecord, at: int) -> ContextRecord:
        """The record with the units before this one left out, except those that are kept."""
        units, limits, history = self._units, self._limits, self._history
        users = [place for place in range(at) if units[place].is_user]
        kept = set(users[-1:]) if not any(unit.is_user for unit in units[at:]) else set[int]()
        if not history.has_task:
            # In a discussion the messages of the others are turns like the own ones.
            kept |= {*users[:1], *self._newest(users, limits.users)}
        kept |= self._newest(
            [place for place in range(at) if history.is_protected(units[place])], limits.turns
        )
        messages, part = units[at].place
        return replace(
            record,
            messages=messages,
            part=part,
            kept=tuple(units[place].place for place in sorted(kept)),
            first=self._first_characters(users),
            cleared=max(record.cleared, units[at].place),
        )

    def _newest(self, places: Sequence[int], most: int) -> set[int]:
        found: set[int] = set()
        for place in reversed(places):
            most -= self._history.cleared(self._units[place]).tokens
            if most < 0:
                break
            found.add(place)
        return found

    def _first_characters(self, users: Sequence[int]) -> int:
        """How much is sent of the first message; 0: all of it, as of the newest one."""
        if (
            not users
            or self._history.has_task
            or not any(unit.is_user for unit in self._units[users[0] + 1 :])
        ):
            return 0
        unit = self._units[users[0]]
        message = unit.prompts[0]
        if not isinstance(message, UserPrompt) or unit.tokens <= self._limits.first:
            return 0
        return max(1, len(message.text) * self._limits.first // unit.tokens)

    def _without_users(self, record: ContextRecord) -> ContextRecord:
        """The record with nothing kept but the first and the newest message of users."""
        of_users = {unit.place for unit in self._units if unit.is_user}
        kept = [place for place in record.kept if place in of_users]
        has_later = any(unit.is_user for unit in self._units[self._history.begin(record) :])
        return replace(record, kept=tuple(dict.fromkeys([*kept[:1], *([] if has_later else kept[-1:])])))

    def _with_results_shortened(self, record: ContextRecord) -> ContextRecord:
        """The record with all results cleared, also the newest."""
        messages, part = self._units[-1].place if self._units else (0, 0)
        return replace(record, cleared=(messages, part + 1))
