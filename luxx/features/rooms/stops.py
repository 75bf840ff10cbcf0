"""When a room ends: stops, combinable with `any` and `all`. Pure.

A stop looks at totals that only grow, so a part of `all` that has fired stays fired.
"""

from collections.abc import Iterable, Iterator
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from luxx.errors import InvalidInput

HARD_ROUNDS = 100
HARD_MESSAGES = 1_000
"""A room ends here whatever its stop says."""

AFTER_A_REPLY = frozenset({"rounds", "messages", "phrase", "all"})
"""The stops that let the last words of a person be answered first; budgets and persons end a room at once."""

MAX_PARTS = 10
MAX_DEPTH = 4
MAX_CONDITIONS = 30
"""How many conditions a stop has in all, whatever the nesting: each phrase is looked for in each message."""

Count = Annotated[int, Meta(ge=1, le=10_000_000)]
Amount = Annotated[float, Meta(gt=0, le=1_000_000)]
SeatId = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Phrase = Annotated[str, Meta(min_length=1, max_length=200)]


class Stop(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Exactly one of the fields is set, but `seat_id` belongs to `phrase`.

    `rounds`, `messages` and `tokens` are totals of the run; `cost` is in US dollars; `seconds` count while
    the room runs, not while it is paused. `messages` and `phrase` look at the messages of seats, not at those
    of people. `phrase`: a message contains it, in any letter case, by that seat if given. `person`: a person
    with the right to steer ends the room. `any` and `all` combine stops.
    """

    rounds: Count | UnsetType = UNSET
    messages: Count | UnsetType = UNSET
    tokens: Count | UnsetType = UNSET
    cost: Amount | UnsetType = UNSET
    seconds: Count | UnsetType = UNSET
    phrase: Phrase | UnsetType = UNSET
    seat_id: SeatId | UnsetType = UNSET
    person: bool | UnsetType = UNSET
    any: "Annotated[list[Stop], Meta(min_length=1, max_length=MAX_PARTS)] | UnsetType" = UNSET
    all: "Annotated[list[Stop], Meta(min_length=1, max_length=MAX_PARTS)] | UnsetType" = UNSET


class SpokenMessage(Struct, frozen=True, kw_only=True, eq=False):
    """A message of the room; `seat_id` is None for a person's, which no stop looks at.

    `found`: whether the text has each phrase (in folded case) that was looked for, so that each text is
    folded and searched once.
    """

    seat_id: int | None
    text: str
    found: dict[str, bool] = {}


class Totals(Struct, frozen=True, kw_only=True):
    """What stops look at. `rounds` are ended rounds; `messages` those of seats in the run."""

    rounds: int = 0
    messages: tuple[SpokenMessage, ...] = ()
    tokens: int = 0
    cost: float = 0.0
    seconds: float = 0.0
    is_ended_by_person: bool = False


def check_stop(stop: Stop, field: str = "$.stop", depth: int = 1) -> None:
    """Raises InvalidInput, with the field, for a stop that is empty, ambiguous or nested too deeply."""
    given = [name for name in stop.__struct_fields__ if getattr(stop, name) is not UNSET]
    kinds = [name for name in given if name != "seat_id"]
    problem = None
    if depth > MAX_DEPTH:
        problem = f"stops may be nested {MAX_DEPTH} levels deep"
    elif len(kinds) != 1:
        kinds_allowed = ", ".join(name for name in stop.__struct_fields__ if name != "seat_id")
        problem = f"a stop has exactly one of {kinds_allowed}; combine several with any or all"
    elif "seat_id" in given and kinds != ["phrase"]:
        problem = "seat_id belongs to a phrase; leave it out"
    elif stop.person is False:
        problem = "person can only be true; leave the stop out otherwise"
    if problem is not None:
        raise InvalidInput(problem, field=field)
    for name, parts in (("any", stop.any), ("all", stop.all)):
        for index, part in enumerate(parts or []):
            check_stop(part, f"{field}.{name}[{index}]", depth + 1)


def check_size(stop: Stop) -> None:
    """Raises InvalidInput for more than MAX_CONDITIONS conditions in all."""
    count = sum(1 for _ in _conditions(stop))
    if count > MAX_CONDITIONS:
        problem = f"a stop may have {MAX_CONDITIONS} conditions in all, this one has {count}; leave some out"
        raise InvalidInput(problem, field="$.stop")


def _conditions(stop: Stop) -> Iterator[Stop]:
    parts = [*(stop.any or []), *(stop.all or [])]
    if not parts:
        yield stop
    for part in parts:
        yield from _conditions(part)


def fired_stop(stop: Stop | None, totals: Totals) -> str | None:
    """The key of the stop that ends the room now, None if none does.

    For `any`, the key of its first part that fired; for `all`, `all`.
    """
    if stop is not None:
        find_phrases(stop, totals.messages)
        if (key := _fired(stop, totals)) is not None:
            return key
    if totals.is_ended_by_person:
        return "person"
    if totals.rounds >= HARD_ROUNDS:
        return "rounds"
    return "messages" if len(totals.messages) >= HARD_MESSAGES else None


def fired_phrase(stop: Stop | None, totals: Totals) -> str | None:
    """The phrase that ends the room, where `fired_stop` is `phrase`."""
    if stop is None or stop.any is UNSET:
        return None if stop is None or stop.phrase is UNSET else stop.phrase
    return fired_phrase(next((part for part in stop.any if _fired(part, totals) is not None), None), totals)


def find_phrases(stop: Stop | None, messages: Iterable[SpokenMessage]) -> None:
    """Looks for the phrases of a stop in the messages in which they were not looked for yet."""
    conditions = () if stop is None else _conditions(stop)
    phrases = {one.phrase.casefold() for one in conditions if one.phrase is not UNSET}
    for message in messages if phrases else ():
        if new := phrases - message.found.keys():
            text = message.text.casefold()
            message.found.update((phrase, phrase in text) for phrase in new)


def _fired(stop: Stop, totals: Totals) -> str | None:
    if stop.any is not UNSET:
        return next((key for part in stop.any if (key := _fired(part, totals)) is not None), None)
    if stop.all is not UNSET:
        return "all" if all(_fired(part, totals) is not None for part in stop.all) else None
    return next((key for key, is_fired in _single(stop, totals) if is_fired), None)


def _single(stop: Stop, totals: Totals) -> Iterator[tuple[str, bool]]:
    if stop.rounds is not UNSET:
        yield "rounds", totals.rounds >= stop.rounds
    if stop.messages is not UNSET:
        yield "messages", len(totals.messages) >= stop.messages
    if stop.tokens is not UNSET:
        yield "tokens", totals.tokens >= stop.tokens
    if stop.cost is not UNSET:
        yield "cost", totals.cost >= stop.cost
    if stop.seconds is not UNSET:
        yield "seconds", totals.seconds >= stop.seconds
    if stop.person is not UNSET:
        yield "person", totals.is_ended_by_person
    if stop.phrase is not UNSET:
        phrase, seat_id = stop.phrase.casefold(), stop.seat_id
        yield (
            "phrase",
            any(
                message.found[phrase]
                for message in totals.messages
                if seat_id is UNSET or message.seat_id == seat_id
            ),
        )
