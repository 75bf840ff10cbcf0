"""An Anthropic answer comes back unchanged in the next request: signatures, server tools, order."""

from typing import Any

from anthropic_answers import AnswerBlock, answers, stream_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sdk_types import accepted_by_anthropic
from wire_reading import Reading, read_in_pieces

from luxx.domain.context.messages import assistant_messages
from luxx.providers.adapter import CompletionRequest, Target
from luxx.providers.anthropic.adapter import ANTHROPIC
from luxx.runs.log.channel import OpenStep
from luxx.runs.turn.completion import CompletionReader
from luxx.wire.message import AssistantPrompt, PromptMessage, ToolPrompt, UserPrompt
from luxx.wire.tool import ToolCall
from luxx.wire.turn import Step, StepStatus, StepType, step_id

Json = dict[str, Any]
MODEL = "claude-sonnet-4-5"
RELAXED = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)


def sent(messages: list[PromptMessage], model: str = MODEL) -> list[Json]:
    """The turns of a request with this history; checks that the vendor's types accept it."""
    request = CompletionRequest(model=model, messages=messages)
    target = Target(provider_id=1, provider_type="anthropic", base_url="https://models.example")
    body = ANTHROPIC.build_request(request, target, stream=True).body
    return accepted_by_anthropic(body)["messages"]


def read(answer: list[AnswerBlock], **ending: str) -> Reading:
    reading = read_in_pieces(ANTHROPIC.parser, stream_of(answer, **ending), 4096)
    assert reading.error is None
    return reading


def prompts(reading: Reading) -> list[PromptMessage]:
    """The answer as a history, with the results of its calls."""
    calls = [ToolCall(call_id=c["id"], name=c["name"], arguments=c["arguments"]) for c in reading.calls]
    answer = AssistantPrompt(
        text=reading.text, thinking=reading.thinking, tool_calls=calls, replay=reading.replay
    )
    return [answer, *(ToolPrompt(call_id=call.call_id, name=call.name, content="{}") for call in calls)]


def complete_blocks(answer: list[AnswerBlock]) -> list[Json]:
    return [part.whole for part in answer]


def is_thought(block: Json) -> bool:
    return block["type"] in ("thinking", "redacted_thinking")


@RELAXED
@given(answer=answers())
def test_answer_is_sent_back_unchanged_in_its_turn_and_in_later_ones(answer: list[AnswerBlock]) -> None:
    reading = read(answer)
    user_message = UserPrompt(text="Go on.")

    for then in ([], [UserPrompt(text="And?")]):
        turns = sent(
            [user_message, *prompts(reading), *then, *([] if then or reading.calls else [user_message])]
        )
        back = [block for turn in turns if turn["role"] == "assistant" for block in turn["content"]]
        expected = complete_blocks(answer)
        if all(is_thought(block) for block in expected):
            expected = []
        if not reading.replay:
            # Plain text needs no note; its blocks come back as one, before the calls.
            assert text_of(back) == text_of(expected)
            assert calls_of(back) == calls_of(expected)
        else:
            assert back == expected


@RELAXED
@given(answer=answers())
def test_another_models_thinking_is_left_out_once_its_turn_is_over(answer: list[AnswerBlock]) -> None:
    reading = read(answer)
    history = [UserPrompt(text="Go on."), *prompts(reading), UserPrompt(text="And?")]

    turns = sent(history, model="claude-opus-5-5")

    back = [block for turn in turns if turn["role"] == "assistant" for block in turn["content"]]
    assert not any(is_thought(block) for block in back)
    assert text_of(back) == text_of(complete_blocks(answer))


@RELAXED
@given(first=answers(), second=answers(), size=st.integers(1, 200))
def test_paused_answer_and_its_continuation_are_one_turn(
    first: list[AnswerBlock], second: list[AnswerBlock], size: int
) -> None:
    first = [part for part in first if part.whole["type"] != "tool_use"]
    second = [renamed(part) for part in second]
    state = Steps()
    state.complete(stream_of(first, stop_reason="pause_turn"), size)

    paused = sent([UserPrompt(text="Search."), *state.messages()])

    if not all(is_thought(part.whole) for part in first):
        assert paused[-1] == {"role": "assistant", "content": complete_blocks(first)}
    state.complete(stream_of(second), size)
    state.answer_calls()
    turns = sent([UserPrompt(text="Search."), *state.messages(), UserPrompt(text="And?")])
    back = [block for turn in turns if turn["role"] == "assistant" for block in turn["content"]]
    expected = complete_blocks(first) + complete_blocks(second)
    if all(is_thought(block) for block in expected):
        expected = []
    if state.notes[-1]:
        assert back == expected
    assert text_of(back) == text_of(expected)


def renamed(part: AnswerBlock) -> AnswerBlock:
    """The same block with other ids, as in a second answer."""

    def own(value: Json) -> Json:
        return {key: f"{v}_b" if key in ("id", "tool_use_id") else v for key, v in value.items()}

    return AnswerBlock(own(part.start), part.deltas, own(part.whole))


class Steps:
    """A run's steps and notes, as its loop makes them from streams."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.notes: list[dict[str, Any]] = []

    def complete(self, stream: bytes, size: int) -> None:
        open_steps: dict[int, OpenStep] = {}
        reader = CompletionReader("run", len(self.steps), open_steps)
        parser = ANTHROPIC.parser()
        pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
        for deltas in [*map(parser.feed, pieces), parser.close()]:
            for output in reader.feed(deltas):
                if isinstance(output, Step):
                    self._log(output)
                    # The step of a hosted call was never open.
                    open_steps.pop(output.index, None)
        for step in reader.close(StepStatus.DONE):
            self._log(step)
        self.notes.append(reader.replay_of("claude"))

    def _log(self, step: Step) -> None:
        """A step that is logged again replaces the one at its place."""
        self.steps[step.index : step.index + 1] = [step]

    def answer_calls(self) -> None:
        calls = [
            step for step in self.steps if step.type == StepType.TOOL_CALL and step.is_hosted is not True
        ]
        for call in calls:
            at = len(self.steps)
            self.steps.append(
                Step(
                    id=step_id(at), index=at, type=StepType.TOOL_RESULT, content="{}", name=call.name,
                    id_ref=call.id_ref, success=True,
                )
            )  # fmt: skip

    def messages(self) -> list[PromptMessage]:
        return assistant_messages(self.steps, self.notes)


def text_of(blocks: list[Json]) -> str:
    return "".join(block.get("text", "") for block in blocks)


def calls_of(blocks: list[Json]) -> list[Json]:
    return [block for block in blocks if block["type"] == "tool_use"]
