"""One completion as it arrives: turns deltas into steps; and the log entries of calls and results.

A thinking step closes when a text step begins, and the reverse. Tool calls may grow concurrently; they close
together at the end.
"""

from collections.abc import Iterator
from itertools import groupby
from typing import Any, assert_never, cast

import msgspec
from msgspec import UNSET

from luxx.errors import MalformedStream
from luxx.infra.clock import new_id
from luxx.runs.log.events import LogEntry
from luxx.runs.models import CALL_ID_LENGTH
from luxx.runs.streams.channel import Frame, OpenStep
from luxx.tools.history import CallStatus, Executed
from luxx.wire.event import ProcessStep
from luxx.wire.tool import ToolCall, ToolResult
from luxx.wire.turn import (
    CHAT_TURN,
    PAUSED_KEY,
    CallOutcome,
    CitationDelta,
    Delta,
    FinishDelta,
    FinishReason,
    ImageDelta,
    ReplayDelta,
    Step,
    StepStatus,
    StepType,
    TextDelta,
    TextWasThinking,
    ThinkingDelta,
    ToolCallDelta,
    TurnRef,
    Usage,
    UsageDelta,
    step_id,
)

REFUSAL = "refusal"
"""The key of a replay note with the model's refusal text."""

CALL_KEYS = frozenset({"id", "call"})
"""The keys under which replay notes name a call."""

MAX_TOKENS = 100_000_000
"""More than any context window; larger counts of a provider are reduced to this."""

MAX_CHARACTERS = 4_000_000
"""About ten times the longest answer of current models; bounds the memory of one run."""

MAX_STEPS = 10_000
MAX_NAME_CHARACTERS = 10_000
"""Limit for a call's name and id together, which each of its frames repeats."""

Output = Frame | Step
"""A frame to publish, or a closed step, which must be logged before any later output."""


class CompletionReader:
    """Reads deltas. `open_steps` is the channel's own dict, so that a late subscriber gets the growing steps.

    `preceding` is the text of the turn's message so far. `used_call_ids` are the ids of the run's earlier
    calls. A call with such an id gets a new one, because results are matched by call id.
    """

    def __init__(
        self,
        run_id: str,
        first_index: int,
        open_steps: dict[int, OpenStep],
        *,
        turn: TurnRef = CHAT_TURN,
        preceding: str = "",
        used_call_ids: set[str] | None = None,
    ) -> None:
        self._run_id = run_id
        self._turn = turn
        self._preceding = preceding
        self._first = self._next = first_index
        self._used_call_ids = set[str]() if used_call_ids is None else used_call_ids
        self._new_call_ids: dict[object, str] = {}
        self._open = open_steps
        self._current_step: OpenStep | None = None
        self._calls: dict[int, OpenStep] = {}
        self._size = 0
        self.usage = Usage()
        self.finish = FinishReason.UNKNOWN
        self.replay: dict[str, Any] = {}

    def feed_text(self, deltas: list[Delta]) -> Frame | None:
        """The frame of a single fragment of the growing text, the most frequent case; else None."""
        step = self._current_step
        if step is None or step.type is not StepType.TEXT or len(deltas) != 1:
            return None
        delta = deltas[0]
        return self._grow(step, delta.text) if isinstance(delta, TextDelta) and delta.text else None

    def feed(self, deltas: list[Delta]) -> Iterator[Output]:
        """The outputs of one network read, in order; fragments of one step become one frame.

        This is a generator so that a step grows only when its frame is published. Else a client that attaches
        while an earlier output is being logged would get the text twice: in its snapshot and in the frame.
        """
        for delta in _merge_fragments(deltas):
            match delta:
                case TextDelta(text=text):
                    yield from self._append_text(StepType.TEXT, text)
                case ThinkingDelta(text=text):
                    yield from self._append_text(StepType.THINKING, text)
                case TextWasThinking():
                    yield from self._retype_text()
                case ToolCallDelta():
                    yield from self._call(delta)
                case UsageDelta(usage=usage):
                    self.usage = _clamped(usage)
                case ReplayDelta(data=data):
                    self.replay.update({key: self._with_new_call_ids(value) for key, value in data.items()})
                case CitationDelta() | ImageDelta():
                    pass  # No step shows them.
                case FinishDelta(reason=reason):
                    self.finish = reason
                    if reason == FinishReason.PAUSED and not self._calls:
                        self.replay[PAUSED_KEY] = True
                    yield from self._append_refusal()
                case _:
                    assert_never(delta)

    def close(self, status: StepStatus, *, calls_end: bool = False) -> list[Step]:
        """Closes the open steps in order of index; complete tool calls become pending, unless the client
        makes them (`calls_end`)."""
        closing = [self._open[index] for index in sorted(self._open)]
        self._current_step = None
        return [
            step.closed(
                StepStatus.PENDING
                if step.type == StepType.TOOL_CALL and status == StepStatus.DONE and not calls_end
                else status
            )
            for step in closing
        ]

    def _append_text(self, type_: StepType, text: str) -> Iterator[Output]:
        if not text:
            return
        step = self._current_step
        if step is None or step.type != type_:
            yield from self._close_current_step()
            opened = OpenStep(self._run_id, self._next, type_, turn=self._turn, preceding=self._preceding)
            step = self._current_step = self._add_open_step(opened)
        yield self._grow(step, text)

    def _retype_text(self) -> Iterator[Output]:
        """Closes the current text as thinking. Before, clients drop it: a step never changes its type."""
        step, self._current_step = self._current_step, None
        if step is None or step.type != StepType.TEXT:
            return
        yield Frame(step.reset_frame())
        yield msgspec.structs.replace(step.closed(StepStatus.DONE), type=StepType.THINKING)

    def _call(self, delta: ToolCallDelta) -> Iterator[Output]:
        yield from self._close_current_step()
        step = self._calls.get(delta.slot)
        if step is None:
            call_id = self._unique_call_id(delta.call_id)
            step = OpenStep(
                self._run_id,
                self._next,
                StepType.TOOL_CALL,
                turn=self._turn,
                call_id=call_id,
                name=delta.name,
            )
            self._calls[delta.slot] = self._add_open_step(step)
        yield self._grow(step, delta.arguments)

    def _unique_call_id(self, call_id: str) -> str:
        if call_id not in self._used_call_ids:
            if self._turn.key:
                # Turns that work at once share the set.
                self._used_call_ids.add(call_id)
            return call_id
        new_call_id = self._new_call_ids[call_id] = f"call_{new_id().replace('-', '')}"
        return new_call_id

    def _with_new_call_ids(self, note: Any) -> Any:
        """The replay note with the call ids of the log in place of the provider's."""
        if not self._new_call_ids:
            return note
        if isinstance(note, list):
            return [self._with_new_call_ids(item) for item in cast("list[Any]", note)]
        if isinstance(note, dict):
            return {
                key: self._new_call_ids.get(value, value)
                if key in CALL_KEYS and isinstance(value, str)
                else self._with_new_call_ids(value)
                for key, value in cast("dict[str, Any]", note).items()
            }
        return note

    def _close_current_step(self) -> Iterator[Output]:
        """Closes the current step unless calls are open: steps are logged in order of index."""
        step, self._current_step = self._current_step, None
        if step is not None and not self._calls:
            closed = step.closed(StepStatus.DONE)
            if step.is_chunk:
                self._preceding += closed.content
            yield closed

    def _append_refusal(self) -> Iterator[Output]:
        """Adds the refusal text, which some providers send apart from the text."""
        refusal = self.replay.get(REFUSAL)
        has_text = self._current_step is not None and self._current_step.type == StepType.TEXT
        if self.finish == FinishReason.REFUSED and isinstance(refusal, str) and not has_text:
            yield from self._append_text(StepType.TEXT, refusal)

    def _add_open_step(self, step: OpenStep) -> OpenStep:
        if step.index - self._first >= MAX_STEPS or len(step.name) + len(step.call_id) > MAX_NAME_CHARACTERS:
            raise MalformedStream(
                f"The provider's answer has more than {MAX_STEPS:,} steps, or a call with more than "
                f"{MAX_NAME_CHARACTERS:,} characters of name and id; it was cut there.",
                retryable=False,
            )
        self._open[step.index] = step
        self._next = step.index + 1
        return step

    def _grow(self, step: OpenStep, text: str) -> Frame:
        self._size += len(text)
        if self._size > MAX_CHARACTERS:
            raise MalformedStream(
                f"The provider's answer is longer than {MAX_CHARACTERS:,} characters; it was cut there.",
                retryable=False,
            )
        return Frame(step.grow(text), 0, step, text)


def _clamped(usage: Usage) -> Usage:
    """The usage with counts that a database column can hold: the provider may send any number."""
    counts = {name: min(max(getattr(usage, name), 0), MAX_TOKENS) for name in usage.__struct_fields__}
    return Usage(**counts)


def _merge_fragments(deltas: list[Delta]) -> list[Delta]:
    """Merges neighbouring fragments of the same kind."""
    if len(deltas) == 1:
        return deltas
    merged: list[Delta] = []
    for kind, group in groupby(deltas, type):
        if kind is TextDelta or kind is ThinkingDelta:
            fragments = cast("Iterator[TextDelta | ThinkingDelta]", group)
            merged.append(kind(text="".join(delta.text for delta in fragments)))
        else:
            merged.extend(group)
    return merged


_encode = msgspec.json.Encoder().encode

INTERRUPTED = ToolResult.fail(
    "The server stopped while this tool was running, so it is not known whether it took effect. "
    "It was not run again."
)

NOT_RUN = ToolResult.fail(
    "This call was not run: the run has reached its limit of tool calls. Answer with what is known."
)


def full_output_row(run_id: str, call_id: str, output: str) -> dict[str, str]:
    """The row of the full output of a shortened result; NUL is replaced and the id cut for PostgreSQL."""
    return {"run_id": run_id, "call_id": call_id[:CALL_ID_LENGTH], "output": output.replace("\0", "\ufffd")}


def closed_entries(steps: list[Step]) -> list[LogEntry]:
    """The entries that log closed steps."""
    return [ProcessStep(step=step) for step in steps]


def status_entry(step: Step, status: StepStatus, duration_ms: int | None = None) -> ProcessStep:
    """The entry that gives a logged step another status."""
    duration = UNSET if duration_ms is None else duration_ms
    return ProcessStep(step=msgspec.structs.replace(step, status=status, duration_ms=duration))


def call_of(step: Step) -> ToolCall:
    """The tool call of a step."""
    return ToolCall(call_id=str(step.id_ref), name=str(step.name), arguments=str(step.arguments or "{}"))


def executed_entry(call: Step, index: int, executed: Executed) -> ProcessStep:
    """The entry of the result of an executed or refused call."""
    entry = result_entry(call, index, executed.result, executed.duration_ms)
    outcome = CallOutcome.CORRECTED if executed.is_corrected else UNSET
    if executed.status in (CallStatus.DENIED, CallStatus.REJECTED):
        outcome = CallOutcome(executed.status.value)
    step = msgspec.structs.replace(
        entry.step,
        outcome=outcome,
        note=UNSET if executed.note is None else executed.note,
        is_untrusted=True if executed.is_untrusted else UNSET,
        images=list(executed.images) or UNSET,
        calls=executed.calls or UNSET,
    )
    return ProcessStep(step=step)


def result_entry(call: Step, index: int, result: ToolResult, duration_ms: int | None = None) -> ProcessStep:
    """The entry of a call's result, as the step of this index."""
    return ProcessStep(
        step=Step(
            id=step_id(index),
            index=index,
            type=StepType.TOOL_RESULT,
            content=_encode(result).decode(),
            name=call.name,
            id_ref=call.id_ref,
            success=result.success,
            status=StepStatus.DONE if result.success else StepStatus.ERROR,
            duration_ms=UNSET if duration_ms is None else duration_ms,
        )
    )
