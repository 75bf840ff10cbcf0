"""Which traces of calls and which texts count as repetition, and which do not."""

import time
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from luxx.infra.config.schema import LoopsConfig
from luxx.runs.turn.repetition import (
    LOOK_CHARACTERS,
    MAX_PAIRS,
    CallPair,
    NextCall,
    RepeatedText,
    Repetition,
    call_hash,
    judge,
    pair_of,
    repeated_errors,
)
from luxx.wire.run import LoopKind
from luxx.wire.tool import ToolResult
from luxx.wire.turn import Step, StepStatus, StepType, step_id

LIMITS = LoopsConfig()
Made = tuple[str, object, object]
"""The name of a tool, its argument, and what it returned; an exception is an error."""


def steps_of(index: int, made: Made) -> tuple[Step, Step]:
    tool, argument, returned = made
    result = ToolResult.fail(str(returned)) if isinstance(returned, Exception) else ToolResult.ok(returned)
    call = Step(
        id=step_id(2 * index), index=2 * index, type=StepType.TOOL_CALL, name=tool, id_ref=f"call-{index}",
        arguments=msgspec.json.encode({"of": argument}).decode(), status=StepStatus.DONE,
    )  # fmt: skip
    answer = Step(
        id=step_id(2 * index + 1), index=2 * index + 1, type=StepType.TOOL_RESULT, name=tool,
        id_ref=call.id_ref, content=msgspec.json.encode(result).decode(), success=result.success,
    )  # fmt: skip
    return call, answer


def pairs_of(trace: Sequence[Made], apart: float = 1.0) -> list[CallPair]:
    return [pair_of(*steps_of(at, made), at * apart, at) for at, made in enumerate(trace)]


def first_held(
    trace: Sequence[Made], apart: float = 1.0, limits: LoopsConfig = LIMITS
) -> tuple[int, LoopKind] | None:
    """The number of the first call of the trace that does not run, from 1, and why."""
    pairs: list[CallPair] = []
    for at, made in enumerate(trace):
        call, result = steps_of(at, made)
        new = NextCall(str(call.id_ref), made[0], call_hash(made[0], str(call.arguments)))
        found = judge(pairs[-MAX_PAIRS:], [new], at * apart, limits)
        if found is not None:
            assert found.held == (call.id_ref,)
            assert found.call_ids[-1] == call.id_ref
            return at + 1, found.kind
        pairs.append(pair_of(call, result, at * apart, at))
    return None


A, B, C, D, E = (("read", name, f"text of {name}") for name in "abcde")
BUSY = ("fetch", "page", ValueError("https://example.org answered 429 Too Many Requests"))
FIVE = [("read", f"f{at}", "x") for at in range(5)]


@pytest.mark.parametrize(
    ("trace", "held"),
    [
        pytest.param([A] * 5, (3, LoopKind.CALL), id="the third equal call"),
        pytest.param([A, B, A, B, A], (5, LoopKind.CYCLE), id="A-B in the third round"),
        pytest.param([B, A, B, A, A], (5, LoopKind.CALL), id="with another between, which says nothing new"),
        pytest.param([A, B, C] * 3, (7, LoopKind.CYCLE), id="A-B-C in the third round"),
        pytest.param(
            [("run", "x", ValueError(f"line {at} failed")) for at in range(4)],
            (3, LoopKind.CALL),
            id="errors that differ in their digits",
        ),
        pytest.param([BUSY] * 11, (10, LoopKind.CALL), id="an error that may pass, ten times"),
        pytest.param(FIVE * 5, (15, LoopKind.CALL), id="five calls in the third round"),
        pytest.param([("poll", 1, at) for at in range(12)], None, id="12 polls with changing results"),
        pytest.param([("read", f"f{at}", "same") for at in range(20)], None, id="20 files"),
        pytest.param(
            [step for at in range(5) for step in (("edit", at, "done"), ("test", 0, ValueError("failed")))],
            None,
            id="5 rounds of edit and test",
        ),
        pytest.param([BUSY, BUSY, ("fetch", "page", "text")], None, id="two 429"),
        pytest.param([A, B, A, C, A, D, A, E], None, id="one file again and again beside new ones"),
    ],
)
def test_traces(trace: Sequence[Made], held: tuple[int, LoopKind] | None) -> None:
    assert first_held(trace) == held


def test_calls_that_wait_in_between_may_be_repeated_more_often() -> None:
    assert first_held([A] * 6, apart=30) is None
    assert first_held([A] * 12, apart=30) == (10, LoopKind.CALL)
    failed = ("run", "x", ValueError("no such file"))
    assert first_held([failed] * 4, apart=30) == (3, LoopKind.CALL)


def test_cycles() -> None:
    """A call that waits may be repeated more often, but not as a part of a block; one whose error may pass
    may."""
    pairs = pairs_of([A, B] * 2, apart=30)
    a, b = (NextCall("next", "read", pairs[at].call) for at in (0, 1))
    earlier = ("call-0", "call-1", "call-2", "call-3")
    expected = Repetition(LoopKind.CYCLE, "read", 3, earlier, ("next",))
    assert judge(pairs, [a], 120, LIMITS) == expected
    assert judge(pairs, [a], 120, LIMITS, freed={a.call, b.call}) is None
    assert judge(pairs, [b], 120, LIMITS, freed={a.call}) is None
    assert first_held([BUSY, ("wait", 1, "waited")] * 12, apart=15) == (15, LoopKind.STALL)
    assert first_held([A, B, A], limits=LoopsConfig(times=2)) == (3, LoopKind.CYCLE)


def test_twelve_calls_without_anything_new_are_a_stall() -> None:
    """Rounds of five calls whose order changes are no cycle; with `times` no single call is held first."""
    order = [FIVE[at] for at in (0, 1, 2, 3, 4, 1, 0, 2, 4, 3, 0, 2, 1, 3, 4, 4, 1, 0)]
    limits = LoopsConfig(times=16)
    assert first_held(order, limits=limits) == (18, LoopKind.STALL)
    pairs = pairs_of(order[:17])
    new = NextCall("new", "read", call_hash("read", '{"of":"never read"}'))
    old = NextCall("old", "read", pairs[0].call)
    assert judge(pairs, [new], 99, limits) is None
    assert judge(pairs, [old, new], 99, limits) is None, "a new call may end the stall"
    found = judge(pairs, [old, NextCall("too", "read", pairs[1].call)], 99, limits)
    assert found is not None
    assert (found.held, found.times) == (("old", "too"), 12)
    assert judge(pairs, [old], 99, limits, freed={one.call for one in pairs}) is None


def test_calls_of_one_completion_count_once_and_are_held_together() -> None:
    side_by_side = [pair_of(*steps_of(at, A), 0.0, 0) for at in range(4)]
    again = [NextCall(name, "read", side_by_side[0].call) for name in ("one", "two")]
    assert judge(side_by_side, again, 1, LIMITS) is None
    more = [*side_by_side, *(pair_of(*steps_of(9 + at, A), 1.0, 1) for at in range(4))]
    found = judge(more, again, 2, LIMITS)
    assert found is not None
    assert (found.kind, found.times, found.held) == (LoopKind.CALL, 3, ("one", "two"))


def test_the_order_of_arguments_and_the_duration_of_a_program_say_nothing() -> None:
    assert call_hash("x", '{"a": 1, "b": [2]}') == call_hash("x", '{"b":[2],"a":1}')
    assert call_hash("x", '{"a": 1}') != call_hash("y", '{"a": 1}')
    assert call_hash("x", "") == call_hash("x", "{}")
    assert call_hash("x", "{not json") != call_hash("x", "{}")
    assert call_hash("x", "[" * 100_000) == call_hash("x", "[" * 100_000)
    runs = [("shell", 1, {"stdout": "ok", "duration_ms": at}) for at in range(3)]
    assert first_held(runs) == (3, LoopKind.CALL)
    ends = [("delegate", 1, {"answer": "no", "run_id": str(at)}) for at in range(3)]
    assert first_held(ends) == (3, LoopKind.CALL)


def test_only_calls_of_the_last_seconds_count_where_the_server_says_so() -> None:
    assert first_held([A] * 6, apart=5, limits=LoopsConfig(seconds=4)) is None
    assert first_held([A] * 6, apart=5, limits=LoopsConfig(seconds=20)) == (3, LoopKind.CALL)


def test_the_sixth_equal_failure_of_a_tool_is_found_once() -> None:
    failures = [("read", f"f{at}", ValueError(f"no such file ({at})")) for at in range(9)]
    pairs = pairs_of(failures)
    found = [repeated_errors(pairs[:at], [pairs[at]]) for at in range(9)]
    assert [bool(each) for each in found] == [False] * 5 + [True] + [False] * 3
    repetition = found[5]["call-5"]
    assert repetition.kind == LoopKind.ERROR
    assert repetition.call_ids == [f"call-{at}" for at in range(6)]
    assert repeated_errors([], pairs) == found[5], "also where they end together"
    others = pairs_of([(f"tool{at % 3}", at, ValueError("no")) for at in range(9)])
    assert repeated_errors([], others) == {}


def test_judging_the_most_calls_of_a_completion_is_fast() -> None:
    pairs = pairs_of([("read", at % 30, at % 30) for at in range(MAX_PAIRS)])
    calls = [NextCall(str(at), "read", pairs[at % MAX_PAIRS].call) for at in range(3000)]
    start = time.perf_counter()
    judge(pairs, calls, 1e9, LoopsConfig(times=16))
    assert time.perf_counter() - start < 0.1


# Texts


def cut_at(text: str) -> int | None:
    """After how many characters the text is cut."""
    look = RepeatedText()
    for end in range(LOOK_CHARACTERS, len(text) + 1, LOOK_CHARACTERS):
        if look.repeats(text[end - LOOK_CHARACTERS : end]):
            return end
    return None


@pytest.mark.parametrize(
    "piece", ["a", "ha ", "I am sorry. ", "\n", "x" * 150 + "\n", "漢字かな", "| a | b |\n"]
)
def test_an_endless_text_is_cut_within_4000_characters(piece: str) -> None:
    beginning = " ".join(f"Sentence number {at} says something else." for at in range(60))
    for text in (piece * 5000, beginning + piece * 5000):
        found = cut_at(text)
        start = 0 if text[0] == piece[0] and len(text) == 5000 * len(piece) else len(beginning)
        assert found is not None
        assert found - start <= 4000


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"| {at} | row {at} |\n" for at in range(10_000)),
        "```\n" + "0, 0, 0, 0\n" * 2000 + "```\n",
        "1. A list:\n   ~~~text\n" + "   0\n" * 2000,
        "ha " * 500,
        "".join(f"{chr(97 + at % 26)}{at}" for at in range(4000)),
        ("x" * 150 + "y" * 60) * 40,
    ],
    ids=["table", "code", "code in a list", "short", "differing", "a period above the limit"],
)
def test_a_text_that_goes_on_is_not_cut(text: str) -> None:
    assert cut_at(text) is None


def test_after_the_end_of_code_a_text_is_cut_again() -> None:
    code = "```python\n" + "pass\n" * 1000 + "```\n"
    found = cut_at(code + "No. " * 2000)
    assert found is not None
    assert len(code) < found <= len(code) + 4000


@given(st.text(alphabet="ab`\n ~", max_size=600), st.integers(1, 40))
def test_looks_of_any_size_see_the_same_code(text: str, step: int) -> None:
    whole, parts = RepeatedText(), RepeatedText()
    whole.repeats(text)
    for start in range(0, len(text), step):
        parts.repeats(text[start : start + step])
    assert whole.__dict__ == parts.__dict__ or not text
