"""Policies choose who speaks next; stops end a room. Every combination of them ends."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from luxx.errors import InvalidInput
from luxx.features.rooms.policies import (
    Choose,
    EndRound,
    Finished,
    Floor,
    NobodyLeft,
    PolicyName,
    SeatState,
    Speak,
    WaitForPerson,
    mentioned,
    names_in,
    next_turn,
)
from luxx.features.rooms.stops import (
    HARD_MESSAGES,
    HARD_ROUNDS,
    MAX_CONDITIONS,
    SpokenMessage,
    Stop,
    Totals,
    check_size,
    check_stop,
    fired_phrase,
    fired_stop,
)

ADA, BOB, CAT = (
    SeatState(seat_id=1, name="Ada"),
    SeatState(seat_id=2, name="Bob"),
    SeatState(seat_id=3, name="Cat"),
)
FLOOR = Floor(seats=(ADA, BOB, CAT))


def muted(seat: SeatState) -> SeatState:
    return replace(seat, is_muted=True)


def test_round_robin_gives_each_seat_one_turn_in_order() -> None:
    assert next_turn(PolicyName.ROUND_ROBIN, FLOOR) == Speak((1,))
    assert next_turn(PolicyName.ROUND_ROBIN, replace(FLOOR, spoken=(1,))) == Speak((2,))
    assert next_turn(PolicyName.ROUND_ROBIN, replace(FLOOR, spoken=(1, 2, 3))) == EndRound()


def test_round_robin_leaves_out_a_muted_seat() -> None:
    floor = Floor(seats=(ADA, muted(BOB), CAT), spoken=(1,))
    assert next_turn(PolicyName.ROUND_ROBIN, floor) == Speak((3,))


def test_a_seat_that_joins_in_the_middle_speaks_in_the_same_round() -> None:
    floor = Floor(seats=(ADA, BOB, CAT), spoken=(1, 2))
    assert next_turn(PolicyName.ROUND_ROBIN, floor) == Speak((3,))


def test_sequential_ends_after_one_pass() -> None:
    assert next_turn(PolicyName.SEQUENTIAL, replace(FLOOR, spoken=(1, 2, 3))) == EndRound()
    assert next_turn(PolicyName.SEQUENTIAL, replace(FLOOR, ended_rounds=1)) == Finished()


def test_parallel_gives_the_floor_to_all_at_once() -> None:
    assert next_turn(PolicyName.PARALLEL, FLOOR) == Speak((1, 2, 3))
    assert next_turn(PolicyName.PARALLEL, replace(FLOOR, spoken=(1, 2, 3))) == EndRound()


def test_after_a_crash_parallel_goes_on_with_those_who_have_not_spoken() -> None:
    assert next_turn(PolicyName.PARALLEL, replace(FLOOR, spoken=(2,))) == Speak((1, 3))


def test_the_selector_asks_a_model_and_leaves_out_the_last_speaker() -> None:
    floor = replace(FLOOR, spoken=(1,), last_speaker=1)
    assert next_turn(PolicyName.SELECTOR, floor) == Choose((2, 3), 2)
    assert next_turn(PolicyName.SELECTOR, replace(floor, chosen=3)) == Speak((3,))


@pytest.mark.parametrize("chosen", [1, 2, 99], ids=["the last speaker", "a muted seat", "an unknown seat"])
def test_the_selector_refuses_a_choice_that_cannot_speak(chosen: int) -> None:
    floor = Floor(
        seats=(ADA, muted(BOB), CAT, SeatState(seat_id=4, name="Dan")), last_speaker=1, chosen=chosen
    )
    assert next_turn(PolicyName.SELECTOR, floor) == Choose((3, 4), 3)


def test_the_selector_asks_no_model_about_a_single_candidate() -> None:
    assert next_turn(PolicyName.SELECTOR, Floor(seats=(ADA, BOB), last_speaker=1)) == Speak((2,))
    assert next_turn(PolicyName.SELECTOR, Floor(seats=(ADA,), last_speaker=1)) == Speak((1,))


def test_a_mentioned_seat_speaks_next() -> None:
    floor = replace(FLOOR, last_speaker=1, last_text="What do you think, @cat?")
    assert next_turn(PolicyName.MENTION, floor) == Speak((3,))


def test_without_a_mention_the_next_seat_in_order_speaks() -> None:
    floor = replace(FLOOR, last_speaker=3, last_text="mail bob@cat.example")
    assert next_turn(PolicyName.MENTION, floor) == Speak((1,))


def test_the_longest_name_is_mentioned() -> None:
    seats = [SeatState(seat_id=1, name="Ann"), SeatState(seat_id=2, name="Ann Lee")]
    assert mentioned("@ann lee and @Ann, and @annabel", seats) == [2, 1]
    paths = [
        SeatState(seat_id=1, name="a"),
        SeatState(seat_id=2, name="a/b"),
        SeatState(seat_id=3, name="a b"),
    ]
    assert mentioned("@a/b", paths) == [2]
    assert mentioned("@a, then @a b", paths) == [1, 3]
    assert mentioned("@a/bc", paths) == [1], "the name of nobody, and a name before a sign"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("小红帽和小红", ["小红帽", "小红"]),
        ("Also good would be: Bob", ["Bob"]),
        ("Bobby or Ann-Lee", ["Ann"]),
        ("请Ann Lee回答", ["Ann Lee"]),
        ("김C++님", ["C++"]),
        ("", []),
    ],
)
def test_names_are_whole_words_and_the_longest(text: str, names: list[str]) -> None:
    assert names_in(text, ["Al", "Ann", "Ann Lee", "Bob", "小红", "小红帽", "C++"]) == names


def test_name_of_the_last_speaker_names_nobody_else() -> None:
    floor = Floor(
        seats=(SeatState(seat_id=1, name="Ann"), SeatState(seat_id=2, name="Ann Lee"), BOB),
        last_speaker=2,
        last_text="So says @Ann Lee.",
    )
    assert next_turn(PolicyName.MENTION, replace(floor, seats=floor.seats[1:])) == Speak((2,))
    assert next_turn(PolicyName.MENTION, floor) == Speak((1,))


def test_manual_waits_until_a_person_gives_the_floor() -> None:
    assert next_turn(PolicyName.MANUAL, FLOOR) == WaitForPerson()
    assert next_turn(PolicyName.MANUAL, replace(FLOOR, chosen=2)) == Speak((2,))


@pytest.mark.parametrize("policy", PolicyName)
def test_a_room_in_which_all_seats_are_muted_has_nobody_left(policy: PolicyName) -> None:
    assert next_turn(policy, Floor(seats=(muted(ADA),))) == NobodyLeft()


def said(*texts: str) -> tuple[SpokenMessage, ...]:
    return tuple(SpokenMessage(seat_id=1, text=text) for text in texts)


@pytest.mark.parametrize(
    ("stop", "totals", "key"),
    [
        (Stop(rounds=2), Totals(rounds=1), None),
        (Stop(rounds=2), Totals(rounds=2), "rounds"),
        (Stop(messages=2), Totals(messages=said("a", "b")), "messages"),
        (Stop(tokens=100), Totals(tokens=100), "tokens"),
        (Stop(cost=0.5), Totals(cost=0.49), None),
        (Stop(cost=0.5), Totals(cost=0.5), "cost"),
        (Stop(seconds=60), Totals(seconds=61.5), "seconds"),
        (Stop(phrase="Done"), Totals(messages=said("we are DONE.")), "phrase"),
        (Stop(phrase="done", seat_id=2), Totals(messages=said("done")), None),
        (Stop(person=True), Totals(is_ended_by_person=True), "person"),
        (Stop(rounds=9), Totals(is_ended_by_person=True), "person"),
        (Stop(any=[Stop(rounds=9), Stop(tokens=5)]), Totals(tokens=6), "tokens"),
        (Stop(all=[Stop(rounds=1), Stop(phrase="ok")]), Totals(rounds=1), None),
        (Stop(all=[Stop(rounds=1), Stop(phrase="ok")]), Totals(rounds=1, messages=said("ok", "no")), "all"),
        (Stop(rounds=10_000), Totals(rounds=HARD_ROUNDS), "rounds"),
        (None, Totals(messages=said(*["x"] * HARD_MESSAGES)), "messages"),
    ],
)
def test_a_stop_fires_when_its_total_is_reached(stop: Stop | None, totals: Totals, key: str | None) -> None:
    assert fired_stop(stop, totals) == key


def test_of_several_phrases_the_one_that_was_said_is_named() -> None:
    totals = Totals(rounds=3, messages=said("We are done."))
    inner = Stop(any=[Stop(phrase="finished"), Stop(phrase="Done")])
    stop = Stop(any=[Stop(rounds=9), Stop(all=[Stop(rounds=1), Stop(rounds=9)]), inner, Stop(phrase="are")])
    assert fired_stop(stop, totals) == "phrase"
    assert fired_phrase(stop, totals) == "Done"
    assert fired_phrase(Stop(rounds=1), totals) is None
    assert fired_phrase(None, totals) is None


@pytest.mark.parametrize(
    ("stop", "field"),
    [
        (Stop(), "$.stop"),
        (Stop(rounds=1, messages=2), "$.stop"),
        (Stop(rounds=1, seat_id=2), "$.stop"),
        (Stop(person=False), "$.stop"),
        (Stop(any=[Stop(rounds=1), Stop()]), "$.stop.any[1]"),
        (
            Stop(all=[Stop(any=[Stop(all=[Stop(any=[Stop(rounds=1)])])])]),
            "$.stop.all[0].any[0].all[0].any[0]",
        ),
    ],
)
def test_a_stop_that_means_nothing_is_refused(stop: Stop, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_stop(stop)
    assert list(refused.value.detail["fields"]) == [field]


@pytest.mark.parametrize("count", [MAX_CONDITIONS, MAX_CONDITIONS + 1])
def test_a_stop_has_so_many_conditions_whatever_their_nesting(count: int) -> None:
    parts = [Stop(phrase=f"word {number}") for number in range(count)]
    stop = Stop(any=[Stop(all=parts[start : start + 10]) for start in range(0, count, 10)])
    check_stop(stop)
    if count <= MAX_CONDITIONS:
        check_size(stop)
        return
    with pytest.raises(InvalidInput, match="30 conditions"):
        check_size(stop)


def test_each_message_is_searched_once_for_each_phrase() -> None:
    class Text(str):
        folds = 0

        def casefold(self) -> str:
            self.folds += 1
            return super().casefold()

    text = Text("Nearly DONE")
    message = SpokenMessage(seat_id=1, text=text)
    totals = Totals(messages=(message,))
    stop = Stop(any=[Stop(phrase="finished"), Stop(all=[Stop(phrase="done"), Stop(phrase="nearly")])])
    assert [fired_stop(stop, totals) for _ in range(3)] == ["all"] * 3
    assert text.folds == 1
    assert fired_stop(Stop(phrase="ly d"), totals) == "phrase"
    assert text.folds == 2


singles = st.one_of(
    st.builds(Stop, rounds=st.integers(1, 200)),
    st.builds(Stop, messages=st.integers(1, 3000)),
    st.builds(Stop, tokens=st.integers(1, 100_000)),
    st.builds(Stop, phrase=st.text(string.ascii_lowercase, min_size=1, max_size=3)),
    st.just(Stop(person=True)),
)
stops = st.recursive(
    singles,
    lambda parts: st.one_of(
        st.builds(Stop, any=st.lists(parts, min_size=1, max_size=3)),
        st.builds(Stop, all=st.lists(parts, min_size=1, max_size=3)),
    ),
    max_leaves=5,
)
mutes = st.lists(st.booleans(), min_size=1, max_size=5)


@given(policy=st.sampled_from(PolicyName), stop=stops, mute=mutes, text=st.text("abc@ ", max_size=6))
def test_every_composition_of_policy_and_stop_ends(
    policy: PolicyName, stop: Stop, mute: list[bool], text: str
) -> None:
    """Drives a room in which a model or a person always chooses the first seat, which may be muted."""
    seats = tuple(SeatState(seat_id=n, name="abc"[: n + 1], is_muted=mute[n]) for n in range(len(mute)))
    floor, totals = Floor(seats=seats, chosen=0), Totals()
    active = {seat.seat_id for seat in floor.active}
    for _ in range(HARD_MESSAGES + HARD_ROUNDS + 1):
        if fired_stop(stop, totals) is not None:
            return
        match next_turn(policy, floor):
            case Speak(seat_ids=ids):
                assert ids
                assert set(ids) <= active
            case Choose(seat_ids=candidates, fallback=fallback):
                assert fallback in candidates
                assert set(candidates) <= active
                ids = (fallback,)
            case EndRound():
                assert len(floor.spoken) == len(active)
                floor = replace(floor, spoken=(), ended_rounds=floor.ended_rounds + 1)
                totals = replace(totals, rounds=totals.rounds + 1)
                continue
            case NobodyLeft() | Finished() | WaitForPerson():
                return
        floor = replace(floor, spoken=(*floor.spoken, *ids), last_speaker=ids[-1], last_text=text)
        messages = tuple(SpokenMessage(seat_id=seat_id, text=text) for seat_id in ids)
        totals = replace(totals, messages=totals.messages + messages, tokens=totals.tokens + 10 * len(ids))
    raise AssertionError("the room did not end")
