"""Steps of a completion: the same steps close however the deltas are grouped into reads."""

import json
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from luxx.errors import MalformedStream
from luxx.runs.log.channel import Frame, OpenStep
from luxx.runs.turn.completion import MAX_CHARACTERS, MAX_NAME_CHARACTERS, MAX_STEPS, CompletionReader
from luxx.runs.turn.state import fold
from luxx.wire.event import LoggedEvent, ProcessStep
from luxx.wire.turn import (
    CUT_SHORT,
    WITHHELD,
    Delta,
    FinishDelta,
    FinishReason,
    HostedCallDelta,
    ReplayDelta,
    Step,
    StepStatus,
    StepType,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    Usage,
    UsageDelta,
)

FIRST = 3
PIECE = st.text(alphabet='ab"\\ ä🙂\n\u2028', max_size=4)


@st.composite
def streams(draw: st.DrawFn) -> list[Delta]:
    """Deltas as a parser emits them: slots count from 0, in the order in which the calls begin."""
    deltas: list[Delta] = []
    began = 0
    for _ in range(draw(st.integers(0, 12))):
        kind = draw(st.sampled_from(["text", "thinking", "new call", "call", "usage", "replay"]))
        if kind == "text":
            deltas.append(TextDelta(text=draw(PIECE)))
        elif kind == "thinking":
            deltas.append(ThinkingDelta(text=draw(PIECE)))
        elif kind == "usage":
            deltas.append(UsageDelta(usage=Usage(completion_tokens=draw(st.integers(0, 9)))))
        elif kind == "replay":
            deltas.append(ReplayDelta(data={draw(st.sampled_from("ab")): draw(PIECE)}))
        elif kind == "new call" or began:
            slot = began if kind == "new call" else draw(st.integers(0, began - 1))
            began = max(began, slot + 1)
            deltas.append(call(slot, draw(PIECE)))
    deltas.append(FinishDelta(reason=draw(st.sampled_from(FinishReason))))
    return deltas


def call(slot: int, arguments: str) -> ToolCallDelta:
    return ToolCallDelta(slot=slot, call_id=f"call_{slot}", name=f"tool_{slot}", arguments=arguments)


@st.composite
def groupings(draw: st.DrawFn, size: int) -> list[int]:
    """The number of deltas in each network read; their sum is `size`."""
    lengths: list[int] = []
    while sum(lengths) < size:
        lengths.append(draw(st.integers(1, size - sum(lengths))))
    return lengths


class FoldedStream:
    """What a reader emits for a stream: frames, and steps in the order in which they are logged."""

    def __init__(self, deltas: Sequence[Delta], lengths: Sequence[int], status: StepStatus) -> None:
        self.frames: list[Frame] = []
        self.logged: list[Step] = []
        self.open_steps: dict[int, OpenStep] = {}
        self.reader = CompletionReader("run", FIRST, self.open_steps)
        at = 0
        for length in lengths:
            for output in self.reader.feed(list(deltas[at : at + length])):
                if isinstance(output, Frame):
                    self.frames.append(output)
                else:
                    # The log removes a logged step from the open ones.
                    self.logged.append(output)
                    self.open_steps.pop(output.index, None)
            at += length
        self.logged += self.reader.close(status)

    @property
    def steps(self) -> list[Step]:
        """In the order of their index, without durations."""
        return sorted((replace(step, duration_ms=UNSET) for step in self.logged), key=lambda step: step.index)


def fold_steps(
    deltas: Sequence[Delta], lengths: Sequence[int], status: StepStatus = StepStatus.DONE
) -> FoldedStream:
    return FoldedStream(deltas, lengths, status)


@given(deltas=streams(), data=st.data())
def test_the_same_steps_close_however_the_deltas_are_grouped(
    deltas: list[Delta], data: st.DataObject
) -> None:
    one = fold_steps(deltas, [1] * len(deltas))
    other = fold_steps(deltas, data.draw(groupings(len(deltas))))
    whole = fold_steps(deltas, [len(deltas)])
    assert one.steps == other.steps == whole.steps
    assert one.reader.usage == other.reader.usage == whole.reader.usage
    notes = [each.reader.replay_of("m") for each in (one, other, whole)]
    assert notes[0] == notes[1] == notes[2]
    assert one.reader.finish == other.reader.finish == whole.reader.finish


@given(deltas=streams(), data=st.data())
def test_indexes_are_dense_and_every_step_closes_once(deltas: list[Delta], data: st.DataObject) -> None:
    steps = fold_steps(deltas, data.draw(groupings(len(deltas)))).steps
    assert [step.index for step in steps] == list(range(FIRST, FIRST + len(steps)))
    assert [step.id for step in steps] == [f"step-{step.index}" for step in steps]


@given(deltas=streams(), data=st.data())
def test_no_text_is_lost_or_repeated(deltas: list[Delta], data: st.DataObject) -> None:
    steps = fold_steps(deltas, data.draw(groupings(len(deltas)))).steps

    def said(type_: StepType) -> str:
        return "".join(step.content for step in steps if step.type == type_)

    assert said(StepType.TEXT) == "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
    assert said(StepType.THINKING) == "".join(
        delta.text for delta in deltas if isinstance(delta, ThinkingDelta)
    )
    calls = [step for step in steps if step.type == StepType.TOOL_CALL]
    slots = sorted({delta.slot for delta in deltas if isinstance(delta, ToolCallDelta)})
    assert [step.id_ref for step in calls] == [f"call_{slot}" for slot in slots]
    for slot, step in zip(slots, calls, strict=True):
        parts = [d.arguments for d in deltas if isinstance(d, ToolCallDelta) and d.slot == slot]
        given = "".join(parts)
        has_end = isinstance(deltas[-1], FinishDelta) and deltas[-1].reason not in CUT_SHORT | WITHHELD
        assert step.arguments == (given if given.strip() or not has_end else f"{given}{{}}")
        assert step.name == f"tool_{slot}"


@given(deltas=streams(), data=st.data())
def test_the_deltas_of_frames_join_to_the_closed_steps(deltas: list[Delta], data: st.DataObject) -> None:
    result = fold_steps(deltas, data.draw(groupings(len(deltas))))
    texts: dict[int, str] = {}
    for frame in result.frames:
        assert frame.seq == 0
        assert frame.data.startswith(b"event: process_step\ndata: ")
        assert frame.data.endswith(b"\n\n")
        assert frame.data.count(b"\n") == 3, "a line break inside of the data would end it"
        event = json.loads(frame.data.split(b"data: ", 1)[1])
        step = event["step"]
        assert event["type"] == "process_step"
        assert step["delta"] == frame.text
        assert step["status"] in ("running", "pending")
        texts[step["index"]] = texts.get(step["index"], "") + step["delta"]
    for step in result.steps:
        closed = step.arguments if step.type == StepType.TOOL_CALL else step.content
        assert texts.get(step.index, "") == closed


@given(deltas=streams(), data=st.data())
@example(deltas=[call(0, "{}"), TextDelta(text="between"), call(1, "{}")], data=None)
@example(deltas=[call(0, "{"), TextDelta(text="a"), call(0, "}")], data=None)
@example(deltas=[call(0, "{}"), TextDelta(text="a"), ThinkingDelta(text="b")], data=None)
def test_steps_logged_in_their_order_fold_into_the_message(
    deltas: list[Delta], data: st.DataObject | None
) -> None:
    lengths = [1] * len(deltas) if data is None else data.draw(groupings(len(deltas)))
    result = fold_steps(deltas, lengths)
    before = [Step(id=f"step-{at}", index=at, type=StepType.TEXT, content="earlier") for at in range(FIRST)]
    events = [
        LoggedEvent(seq=seq, event=ProcessStep(step=replace(step, duration_ms=UNSET)))
        for seq, step in enumerate([*before, *result.logged], 1)
    ]
    assert list(fold(events).steps) == [*before, *result.steps]


@given(deltas=streams(), status=st.sampled_from([StepStatus.ERROR, StepStatus.CANCELLED]))
def test_an_interrupted_completion_keeps_its_text_and_its_status(
    deltas: list[Delta], status: StepStatus
) -> None:
    cut = fold_steps(deltas, [1] * len(deltas), status)
    whole = fold_steps(deltas, [1] * len(deltas))
    # Only a completion that ended says why it has no text.
    said = [step.content for step in whole.steps if step.notice is UNSET]
    assert [step.content for step in cut.steps] == said
    cut_steps = [step for step in cut.logged if step.status != StepStatus.DONE]
    assert all(step.status == status for step in cut_steps)
    assert not [step for step in cut.steps if step.status in (StepStatus.PENDING, StepStatus.RUNNING)]


@given(deltas=streams())
def test_calls_of_an_ended_completion_are_pending_and_other_steps_are_done(deltas: list[Delta]) -> None:
    folded = fold_steps(deltas, [1] * len(deltas))
    of_calls = (
        StepStatus.ERROR if folded.reader.finish in (*WITHHELD, FinishReason.LOOP) else StepStatus.PENDING
    )
    for step in folded.steps:
        assert step.status == (of_calls if step.type == StepType.TOOL_CALL else StepStatus.DONE)


def test_an_endless_answer_is_ended_with_the_reason() -> None:
    reader = CompletionReader("run", 0, {})
    piece = TextDelta(text=" ".join(map(str, range(150_000)))[: MAX_CHARACTERS // 5])
    for _ in range(5):
        assert len(list(reader.feed([piece]))) == 1
    with pytest.raises(MalformedStream, match="longer than"):
        list(reader.feed([piece]))
    (step,) = reader.close(StepStatus.ERROR)
    assert len(step.content) == MAX_CHARACTERS


def test_an_answer_of_endless_steps_is_ended_with_the_reason() -> None:
    reader = CompletionReader("run", FIRST, {})
    for slot in range(MAX_STEPS):
        list(reader.feed([call(slot, "")]))
    with pytest.raises(MalformedStream, match="steps"):
        list(reader.feed([call(MAX_STEPS, "")]))


def test_a_call_with_an_endless_name_is_refused() -> None:
    reader = CompletionReader("run", FIRST, {})
    named = ToolCallDelta(slot=0, call_id="call", name="x" * MAX_NAME_CHARACTERS, arguments="")
    with pytest.raises(MalformedStream, match="name"):
        list(reader.feed([named]))


class JoinOnlyText(str):
    """A string that can be joined but not concatenated, because concatenation copies the text for each
    fragment."""

    __slots__ = ()

    def __add__(self, other: str) -> str:
        raise AssertionError("texts were added one by one")


@pytest.mark.parametrize("kind", [TextDelta, ThinkingDelta])
def test_fragments_of_one_read_are_joined_at_once(kind: type[TextDelta | ThinkingDelta]) -> None:
    reader = CompletionReader("run", FIRST, {})
    (frame,) = reader.feed([kind(text=JoinOnlyText(text)) for text in "xyz"])
    assert isinstance(frame, Frame)
    assert frame.text == "xyz"


def test_the_text_of_a_refusal_is_shown_after_thinking_but_not_after_an_answer() -> None:
    refused = FinishDelta(reason=FinishReason.REFUSAL, refusal="No.")

    def texts(first: Delta) -> list[str]:
        steps = fold_steps([first, refused], [2]).steps
        return [step.content for step in steps if step.type == StepType.TEXT]

    assert texts(ThinkingDelta(text="Hm.")) == ["No."]
    assert texts(TextDelta(text="Well,")) == ["Well,"]


def test_a_call_with_a_repeated_id_gets_a_new_one_also_for_the_adapter() -> None:
    note = {"gemini": [{"call": "call_0", "signature": "s"}, {"call": "call_1"}], "said": "call_0"}
    deltas: list[Delta] = [call(0, "{"), call(1, "{}"), call(0, "}"), ReplayDelta(data=note)]
    reader = CompletionReader("run", FIRST, {}, used_call_ids={"call_0"})
    list(reader.feed(deltas))
    first, second = reader.close(StepStatus.DONE)

    assert (second.id_ref, first.arguments) == ("call_1", "{}")
    assert isinstance(first.id_ref, str)
    assert first.id_ref not in ("call_0", "call_1")
    own = [{"call": first.id_ref, "signature": "s"}, {"call": "call_1"}]
    assert reader.replay_of("m") == {"gemini": own, "said": "call_0"}


def test_a_call_that_the_provider_ran_is_a_complete_step_in_its_place() -> None:
    search = HostedCallDelta(call_id="ws_1", name="web_search", arguments='{"query":"x"}')
    deltas: list[Delta] = [TextDelta(text="I look."), search, TextDelta(text="Found."), call(0, "{}")]
    deltas += [msgspec.structs.replace(search, call_id="ws_2"), FinishDelta(reason=FinishReason.TOOL_CALLS)]

    steps = fold_steps(deltas, [1] * len(deltas), StepStatus.DONE).steps

    assert [(step.index - FIRST, step.name or step.content, step.status) for step in steps] == [
        (0, "I look.", "done"),
        (1, "web_search", "done"),
        (2, "Found.", "done"),
        (3, "tool_0", "pending"),
        (4, "web_search", "done"),
    ]
    assert [step.is_hosted for step in steps if step.name == "web_search"] == [True, True]


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        (r'{"a": "\ud83d"}', r'{"a": "\ufffd"}'),
        (r'{"a": "\ud83d\ude00"}', r'{"a": "\ud83d\ude00"}'),
        (r'{"a": "\ude00\ud83d"}', r'{"a": "\ufffd\ufffd"}'),
        (r'{"a": "\\ud83d"}', r'{"a": "\\ud83d"}'),
        ('{"a": 1}', '{"a": 1}'),
    ],
)
def test_half_of_a_pair_in_arguments_is_replaced_and_told(written: str, kept: str) -> None:
    result = fold_steps([call(0, written), FinishDelta(reason=FinishReason.TOOL_CALLS)], [2])
    assert [step.arguments for step in result.steps] == [kept]
    assert len(result.reader.warnings()) == (0 if kept == written else 1)
