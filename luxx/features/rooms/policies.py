"""Who speaks next in a room: one pure function for each policy.

A policy sees the seats, who has spoken in the current round, and the last message. It never chooses a muted
or removed seat. A round has as many turns as there were active seats when it began.
"""

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import assert_never

from msgspec import Struct

from luxx.infra.store.search_words import UNSPACED

_WORD = rf"[^\W{UNSPACED}]"
"""A letter or digit of a script that puts spaces between words."""

_unspaced = re.compile(f"[{UNSPACED}]")
_FULL_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {0x3000: 0x20, 0xFE6B: 0x40}
"""The full-width forms of ASCII, the ideographic space and the small commercial at."""


class PolicyName(StrEnum):
    ROUND_ROBIN = "round_robin"
    SEQUENTIAL = "sequential"
    SELECTOR = "selector"
    MENTION = "mention"
    PARALLEL = "parallel"
    MANUAL = "manual"


class SeatState(Struct, frozen=True, kw_only=True):
    """A seat as the policies see it; seats are in their turn order."""

    seat_id: int
    name: str
    is_muted: bool = False


class Floor(Struct, frozen=True, kw_only=True):
    """The state of the discussion. `spoken` has a seat for each ended turn of this round, in order.

    `last_speaker` and `last_text` are of the newest message; a person's has
    no speaker. `chosen` is the seat that a model (selector) or a person (manual) chose for
    the next turn. `ended_rounds` counts from 0. The turns of `interrupted` seats were cut by a pause.
    """

    seats: tuple[SeatState, ...]
    spoken: tuple[int, ...] = ()
    last_speaker: int | None = None
    last_text: str = ""
    chosen: int | None = None
    ended_rounds: int = 0
    interrupted: tuple[int, ...] = ()

    @property
    def active(self) -> tuple[SeatState, ...]:
        return tuple(seat for seat in self.seats if not seat.is_muted)


class Speak(Struct, frozen=True):
    """These seats take the floor, all at once."""

    seat_ids: tuple[int, ...]


class EndRound(Struct, frozen=True):
    """The round is complete; the next one may begin."""


class Choose(Struct, frozen=True):
    """A model chooses among these seats; `fallback` speaks if it names none of them."""

    seat_ids: tuple[int, ...]
    fallback: int


class WaitForPerson(Struct, frozen=True):
    """A person gives the floor."""


class Finished(Struct, frozen=True):
    """The policy has nothing more to do."""


class NobodyLeft(Struct, frozen=True):
    """No seat can speak."""


Next = Speak | EndRound | Choose | WaitForPerson | Finished | NobodyLeft


def next_turn(policy: PolicyName, floor: Floor) -> Next:
    """What happens next, once no turn is in progress."""
    if not floor.active:
        return NobodyLeft()
    again = tuple(seat.seat_id for seat in floor.active if seat.seat_id in floor.interrupted)
    if again and floor.chosen is None:
        return Speak(again)
    match policy:
        case PolicyName.ROUND_ROBIN:
            return round_robin(floor)
        case PolicyName.SEQUENTIAL:
            return sequential(floor)
        case PolicyName.SELECTOR:
            return selector(floor)
        case PolicyName.MENTION:
            return mention(floor)
        case PolicyName.PARALLEL:
            return parallel(floor)
        case PolicyName.MANUAL:
            return manual(floor)
        case _:
            assert_never(policy)


def reply(policy: PolicyName, floor: Floor, text: str) -> Next:
    """Who answers a person whose text nobody has read when the room reaches its end."""
    if not floor.active:
        return NobodyLeft()
    active = {seat.seat_id for seat in floor.active}
    if floor.chosen in active:
        return Speak((floor.chosen,))
    named = mentioned(text, list(floor.active))
    if named:
        return Speak((named[0],))
    if policy == PolicyName.PARALLEL:
        return Speak(tuple(seat.seat_id for seat in floor.active))
    candidates = tuple(seat.seat_id for seat in floor.active)
    fallback = _next_in_order(floor, candidates)
    if policy == PolicyName.SELECTOR and len(candidates) > 1:
        return Choose(candidates, fallback)
    return Speak((fallback,))


def round_robin(floor: Floor) -> Next:
    """Each seat once a round, in turn order."""
    waiting = [seat for seat in floor.active if seat.seat_id not in floor.spoken]
    return Speak((waiting[0].seat_id,)) if waiting else EndRound()


def sequential(floor: Floor) -> Next:
    """Each seat once, then the room ends."""
    return Finished() if floor.ended_rounds else round_robin(floor)


def parallel(floor: Floor) -> Next:
    """All seats at once; the next round begins when all have spoken."""
    waiting = [seat.seat_id for seat in floor.active if seat.seat_id not in floor.spoken]
    return Speak(tuple(waiting)) if waiting else EndRound()


def selector(floor: Floor) -> Next:
    """A model chooses the next seat; the same seat does not speak twice running unless it is alone."""
    if _is_round_full(floor):
        return EndRound()
    candidates = _others(floor)
    if floor.chosen in candidates:
        return Speak((floor.chosen,))
    if len(candidates) == 1:
        return Speak(candidates)
    return Choose(candidates, _next_in_order(floor, candidates))


def mention(floor: Floor) -> Next:
    """The first seat that the last message names with @name, else the next in turn order."""
    if _is_round_full(floor):
        return EndRound()
    candidates = _others(floor)
    named = [one for one in mentioned(floor.last_text, list(floor.seats)) if one in candidates]
    return Speak((named[0] if named else _next_in_order(floor, candidates),))


def manual(floor: Floor) -> Next:
    """A person gives the floor."""
    if _is_round_full(floor):
        return EndRound()
    active = {seat.seat_id for seat in floor.active}
    return Speak((floor.chosen,)) if floor.chosen in active else WaitForPerson()


def mentioned(text: str, seats: list[SeatState]) -> list[int]:
    """The seats that the text names as @name, in the order of the text; longer names are read first."""
    by_name = {seat.name: seat.seat_id for seat in reversed(seats)}
    return [by_name[name] for name in names_in(text, by_name, sign="@")]


def names_in(text: str, names: Iterable[str], *, sign: str = "") -> list[str]:
    """The names that stand in the text as whole words behind `sign`, each once, in the order of the text.

    Letter case and full-width forms make no difference, and a longer name is read before one that it begins
    with. Where a script puts no spaces between words, any place within them is the edge of a name.
    """
    by_fold = {_fold(name): name for name in reversed(list(names))}
    folded = _fold(text)
    if not by_fold or sign not in folded:
        return []
    longest_first = sorted(by_fold, key=len, reverse=True)
    found = re.findall("|".join(_pattern(sign, name) for name in longest_first), folded)
    return list(dict.fromkeys(by_fold[match.removeprefix(sign)] for match in found))


def _pattern(sign: str, name: str) -> str:
    """A name with its edges. It begins with its first character, by which `re` finds candidates fast."""
    first, rest = (sign or name)[0], name if sign else name[1:]
    before = "" if _unspaced.match(first) else f"(?<!{_WORD}{re.escape(first)})"
    after = "" if _unspaced.match(name[-1]) else f"(?!{_WORD})"
    return re.escape(first) + before + re.escape(rest) + after


def _fold(text: str) -> str:
    return text.translate(_FULL_WIDTH).casefold()


def _is_round_full(floor: Floor) -> bool:
    return len(floor.spoken) >= len(floor.active)


def _others(floor: Floor) -> tuple[int, ...]:
    """The active seats but the last speaker, or the last speaker if it is alone."""
    active = tuple(seat.seat_id for seat in floor.active)
    return tuple(seat_id for seat_id in active if seat_id != floor.last_speaker) or active


def _next_in_order(floor: Floor, candidates: tuple[int, ...]) -> int:
    """The candidate that follows the last speaker in turn order, beginning anew after the last seat."""
    order = [seat.seat_id for seat in floor.seats]
    start = order.index(floor.last_speaker) + 1 if floor.last_speaker in order else 0
    return next(seat_id for seat_id in order[start:] + order[:start] if seat_id in candidates)
