"""One completion as it arrives: deltas become growing steps, and steps that close. Pure but for the clock.

Thinking and text alternate, so one closes when the other begins; tool calls may grow side by side and
close together at the end.
"""

from typing import Any, assert_never

from luxx.runs.frames import OpenStep
from luxx.runs.hub import Frame
from luxx.wire.delta import (
    Delta,
    FinishDelta,
    FinishReason,
    ReplayDelta,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    UsageDelta,
)
from luxx.wire.step import Step, StepStatus, StepType
from luxx.wire.usage import Usage

Output = Frame | Step
"""A frame to publish, or a step that has closed and is to be logged before anything after it."""


class CompletionReader:
    """Feeds on deltas; `open_steps` is the channel's own dict, so that a late watcher sees what grows."""

    def __init__(self, run_id: str, first_index: int, open_steps: dict[int, OpenStep]) -> None:
        self._run_id = run_id
        self._next = first_index
        self._open = open_steps
        self._speaking: OpenStep | None = None
        self._calls: dict[int, OpenStep] = {}
        self.usage = Usage()
        self.finish = FinishReason.UNKNOWN
        self.replay: dict[str, Any] = {}

    def take(self, deltas: list[Delta]) -> list[Output]:
        """What the deltas of one network read make, in order; fragments of one step become one frame."""
        if len(deltas) == 1 and self._speaking is not None:
            delta = deltas[0]
            if isinstance(delta, TextDelta) and self._speaking.type == StepType.TEXT:
                return [self._grow(self._speaking, delta.text)]
        outputs: list[Output] = []
        for delta in _joined(deltas):
            match delta:
                case TextDelta(text=text):
                    self._speak(StepType.TEXT, text, outputs)
                case ThinkingDelta(text=text):
                    self._speak(StepType.THINKING, text, outputs)
                case ToolCallDelta():
                    self._call(delta, outputs)
                case UsageDelta(usage=usage):
                    self.usage = usage
                case ReplayDelta(data=data):
                    self.replay.update(data)
                case FinishDelta(reason=reason):
                    self.finish = reason
                case _:
                    assert_never(delta)
        return outputs

    def close(self, status: StepStatus) -> list[Step]:
        """Closes all that is open, in order of index; tool calls whose arguments are whole are pending."""
        closing = [self._open[index] for index in sorted(self._open)]
        self._speaking = None
        return [
            step.closed(
                StepStatus.PENDING
                if step.type == StepType.TOOL_CALL and status == StepStatus.DONE
                else status
            )
            for step in closing
        ]

    def _speak(self, type_: StepType, text: str, outputs: list[Output]) -> None:
        if not text:
            return
        step = self._speaking
        if step is None or step.type != type_:
            if step is not None:
                outputs.append(step.closed(StepStatus.DONE))
            step = self._speaking = self._begin(OpenStep(self._run_id, self._next, type_))
        outputs.append(self._grow(step, text))

    def _call(self, delta: ToolCallDelta, outputs: list[Output]) -> None:
        if self._speaking is not None:
            outputs.append(self._speaking.closed(StepStatus.DONE))
            self._speaking = None
        step = self._calls.get(delta.slot)
        if step is None:
            step = OpenStep(
                self._run_id, self._next, StepType.TOOL_CALL, call_id=delta.call_id, name=delta.name
            )
            self._calls[delta.slot] = self._begin(step)
        outputs.append(self._grow(step, delta.arguments))

    def _begin(self, step: OpenStep) -> OpenStep:
        self._open[step.index] = step
        self._next = step.index + 1
        return step

    @staticmethod
    def _grow(step: OpenStep, text: str) -> Frame:
        return Frame(step.grow(text), 0, step, text)


def _joined(deltas: list[Delta]) -> list[Delta]:
    """Neighbouring fragments of the same kind made one."""
    joined: list[Delta] = []
    for delta in deltas:
        last = joined[-1] if joined else None
        if isinstance(delta, TextDelta) and isinstance(last, TextDelta):
            joined[-1] = TextDelta(text=last.text + delta.text)
        elif isinstance(delta, ThinkingDelta) and isinstance(last, ThinkingDelta):
            joined[-1] = ThinkingDelta(text=last.text + delta.text)
        else:
            joined.append(delta)
    return joined
