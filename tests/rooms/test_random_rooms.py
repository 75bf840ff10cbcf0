"""Simulated rooms: whatever policy, stop, failures and people, each ends, and for a named reason."""

import itertools
from collections.abc import Iterator
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine

from luxx.features.rooms.policies import PolicyName
from luxx.features.rooms.stops import HARD_MESSAGES, HARD_ROUNDS, SpokenMessage, Stop, Totals, fired_stop
from luxx.wire.orchestration_event import FloorGiven, MessageStored, RoomCompleted
from rooms.simulated_room import Act, simulated

KEYS = {name for name in Stop.__struct_fields__ if name not in ("any", "seat_id")} | {"finished"}


singles = st.one_of(
    st.builds(Stop, rounds=st.integers(1, 8)),
    st.builds(Stop, messages=st.integers(1, 30)),
    st.builds(Stop, tokens=st.integers(1, 300)),
    st.builds(Stop, phrase=st.sampled_from(["says", "is", "never said"])),
    st.just(Stop(person=True)),
)


def combined(parts: st.SearchStrategy[Stop]) -> st.SearchStrategy[Stop]:
    lists = st.lists(parts, min_size=1, max_size=3)
    return st.one_of(st.builds(Stop, any=lists), st.builds(Stop, all=lists))


stops = st.recursive(singles, combined, max_leaves=5)
outcomes = st.lists(
    st.sampled_from(["says", "says", "fails", "is cut", "is skipped", "cannot begin"]), max_size=12
)
acts = st.lists(
    st.one_of(
        st.builds(Act, st.sampled_from(["mute", "unmute", "remove", "floor", "floor"]), st.integers(0, 6)),
        st.builds(Act, st.sampled_from(["add", "pause", "skip", "finish"]), st.integers(0, 1)),
    ),
    max_size=10,
)


@settings(max_examples=60, deadline=None)
@given(
    policy=st.sampled_from(PolicyName),
    stop=stops,
    seats=st.lists(st.booleans(), min_size=1, max_size=4),
    turn_outcomes=outcomes,
    person_acts=acts,
)
def test_every_room_ends_and_names_why_and_no_muted_or_removed_seat_speaks(
    engine: Engine,
    policy: PolicyName,
    stop: Stop,
    seats: list[bool],
    turn_outcomes: list[str],
    person_acts: list[Act],
) -> None:
    with simulated(
        engine, policy=policy, stop=stop, seats=seats, outcomes=iter(turn_outcomes), acts=iter(person_acts)
    ) as room:
        reason = room.run()
        if reason == "waiting":
            assert policy == PolicyName.MANUAL
            return
        if reason == "nobody left":
            assert all(muted for _, muted in room.seats_now())
            return
        assert reason in KEYS
        last = room.logged[-1].event
        assert isinstance(last, RoomCompleted)
        assert last.stop_reason == reason
        assert last.rounds <= HARD_ROUNDS
        messages = sum(isinstance(one.event, MessageStored) for one in room.logged)
        # Seats that speak at once may pass the limit together.
        assert messages <= HARD_MESSAGES + len(room.seat_ids)


@pytest.mark.parametrize("policy", [name for name in PolicyName if name != PolicyName.SEQUENTIAL])
def test_a_room_whose_stop_never_fires_ends_after_the_hard_number_of_rounds(
    engine: Engine, policy: PolicyName
) -> None:
    floor = (Act("floor", number) for number in itertools.count())
    given_acts = floor if policy == PolicyName.MANUAL else iter(())
    never = Stop(phrase="never said")
    with simulated(engine, policy=policy, stop=never, seats=[False, False], acts=given_acts) as room:
        assert room.run() == "rounds"
        assert len(room.spoken) == 2 * HARD_ROUNDS
        chosen = sum(isinstance(one.event, FloorGiven) and one.event.by == "fallback" for one in room.logged)
        # Of two seats one has just spoken, so only the first turn has a choice.
        assert chosen == (1 if policy == PolicyName.SELECTOR else 0)


def test_a_room_of_many_seats_ends_after_the_hard_number_of_messages(engine: Engine) -> None:
    with simulated(
        engine, policy=PolicyName.PARALLEL, stop=Stop(tokens=10_000_000), seats=[False] * 20
    ) as room:
        assert room.run() == "messages"
        assert len(room.spoken) == HARD_MESSAGES


def parts_of(stop: Stop) -> Iterator[Stop]:
    """The stop and all stops within it."""
    yield stop
    for part in [*(stop.any or []), *(stop.all or [])]:
        yield from parts_of(part)


growth = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["says", "is", "x"]), st.integers(0, 90), st.booleans()),
    min_size=1,
    max_size=20,
)


@settings(max_examples=100, deadline=None)
@given(stop=stops, steps=growth)
def test_a_part_that_has_fired_stays_fired(stop: Stop, steps: list[tuple[int, str, int, bool]]) -> None:
    totals, fired = Totals(), set[int]()
    parts = list(parts_of(stop))
    for rounds, text, tokens, is_ended in steps:
        totals = Totals(
            rounds=totals.rounds + rounds,
            messages=(*totals.messages, SpokenMessage(seat_id=1, text=text)),
            tokens=totals.tokens + tokens,
            is_ended_by_person=totals.is_ended_by_person or is_ended,
        )
        now = {number for number, part in enumerate(parts) if has_fired(part, totals)}
        assert fired <= now
        fired = now
        key = fired_stop(stop, totals)
        assert (key is not None) == (0 in fired or totals.is_ended_by_person)
        assert key is None or key in KEYS


def has_fired(stop: Stop, totals: Totals) -> bool:
    """Whether the stop itself has fired, by what it says; `person` also by the hard default."""
    if stop.all:
        return all(map(partial(has_fired, totals=totals), stop.all))
    if stop.any:
        return any(map(partial(has_fired, totals=totals), stop.any))
    if stop.phrase:
        return any(str(stop.phrase) in message.text for message in totals.messages)
    return bool(
        (stop.rounds and totals.rounds >= stop.rounds)
        or (stop.messages and len(totals.messages) >= stop.messages)
        or (stop.tokens and totals.tokens >= stop.tokens)
        or (stop.person and totals.is_ended_by_person)
    )
