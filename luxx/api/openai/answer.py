"""Reads the frames of a run as the text, thinking and calls of an answer; subclasses write them.

Nothing is written twice: of a step whose text arrived in deltas, a later snapshot or the closed step adds
only what is missing.
"""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from luxx.api.openai.speakers import PAUSED, Speakers
from luxx.runs.log.channel import Frame, OpenStep
from luxx.runs.log.events import StoredEvent
from luxx.wire.event import CostUpdate, Done, DoneStatus, ErrorEvent, ProcessStep
from luxx.wire.run import Run
from luxx.wire.turn import StepStatus, StepType, Usage, turn_of
from luxx.wire.turn_event import Warning, WarningCode

_step = msgspec.json.Decoder(ProcessStep)
_cost = msgspec.json.Decoder(CostUpdate)
_error = msgspec.json.Decoder(ErrorEvent)
_warning = msgspec.json.Decoder(Warning)
_done = msgspec.json.Decoder(Done)

STATUS_OF_KIND = {
    "rate_limited": 429,
    "provider_quota": 429,
    "provider_overloaded": 503,
    "context_too_long": 400,
    "provider_content_refused": 400,
    "internal_error": 500,
    "room_paused": 409,
    "no_seat_left": 409,
}
"""The HTTP status for kinds of errors that end a run; the others are the provider's, 502."""

LOST = ErrorEvent(
    message="the server process that wrote the answer was lost; send the request again",
    code="answer_interrupted",
    retryable=True,
)


class AnswerFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a run gave no answer; `retryable`: whether the same request may succeed."""

    status: int
    message: str
    kind: str
    retryable: bool


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """How an answer ended. `finish` in OpenAI's words."""

    finish: str
    usage: Usage


class AnswerReader:
    """A `FrameEncoder`. Of the calls, only those of the client's own tools are written (`has_calls`).

    With `speakers` it reads the run of a room, whose thinking is not written.
    """

    def __init__(self, *, has_calls: bool = False, speakers: Speakers | None = None) -> None:
        self.answer: Answer | None = None
        self.failure: AnswerFailure | None = None
        self.run_id = ""
        self._has_calls = has_calls
        self._speakers = speakers
        self._lengths: dict[tuple[str, int], int] = {}
        self._calls: dict[int, int] = {}
        self._last_error: ErrorEvent | None = None
        self._is_unmet = False
        self.reasoning_details: list[dict[str, Any]] | UnsetType = UNSET
        """Of the newest completion, as its server wants them back."""
        self._has_text = False
        self._growing_text: tuple[str, int] | None = None

    @property
    def is_over(self) -> bool:
        """Whether the answer has ended, or never will."""
        return self.answer is not None or self.failure is not None

    # What subclasses write

    def on_text(self, text: str) -> bytes:
        """The next fragment of the text."""
        raise NotImplementedError

    def on_thinking(self, text: str) -> bytes:
        """The next fragment of the thinking."""
        raise NotImplementedError

    def on_refused(self, place: tuple[str, int], text: str) -> bytes:
        """A check refused this text of a step, and another one follows. What was written stays."""
        return b""

    def on_retyped(self, text: str) -> bytes:
        """The text so far ends with this thinking. What was written of it cannot be taken back."""
        return b""

    def on_call(self, position: int, call_id: str, name: str) -> bytes:
        """A call begins; `position` counts the calls from 0."""
        raise NotImplementedError

    def on_arguments(self, position: int, text: str) -> bytes:
        """The next fragment of a call's arguments."""
        raise NotImplementedError

    def on_end(self, answer: Answer) -> bytes:
        """The answer ended."""
        raise NotImplementedError

    def on_failure(self, failure: AnswerFailure) -> bytes:
        """There is no answer, or it was cut."""
        raise NotImplementedError

    # What a watch calls

    def run_state(self, run: Run) -> bytes:
        """See `FrameEncoder`."""
        self.run_id = run.id
        return b""

    def logged(self, events: list[StoredEvent]) -> bytes:
        """See `FrameEncoder`."""
        return b"".join([self._event(event.type, event.data) for event in events])

    def snapshots(self, texts: list[tuple[OpenStep, str]]) -> bytes:
        """See `FrameEncoder`."""
        return b"".join([self._rest(step, text) for step, text in texts])

    def frames(self, frames: list[Frame]) -> bytes:
        """See `FrameEncoder`."""
        return b"".join([self._frame(frame) for frame in frames])

    def _frame(self, frame: Frame) -> bytes:
        step = frame.step
        if step is not None:
            if frame.is_reset:
                return self._reset(step.place, step.type)
            return self._grow(step.place, step.type, frame.text, step.call_id, step.name)
        if not frame.seq:
            return b""
        _, event, data = frame.data.rstrip(b"\n").split(b"\n", 2)
        return self._event(event.removeprefix(b"event: ").decode(), data.removeprefix(b"data: "))

    def _event(self, type_: str, data: bytes) -> bytes:
        if self.is_over:
            return b""
        match type_:
            case "process_step":
                return self._closed(_step.decode(data))
            case "error":
                self._last_error = _error.decode(data)
                return b""
            case "warning":
                self._is_unmet |= _warning.decode(data).code == WarningCode.SCHEMA_NOT_MET
                return b""
            case "cost_update" if self._speakers is None:
                self.reasoning_details = _cost.decode(data).reasoning_details
                return b""
            case "done":
                return self._end(_done.decode(data))
            case _:
                return b"" if self._speakers is None else self._room_event(self._speakers, type_, data)

    def _room_event(self, speakers: Speakers, type_: str, data: bytes) -> bytes:
        text = speakers.on_event(type_, data)
        if speakers.finish is None and not speakers.has_paused:
            return self.on_text(text) if text else b""
        error = speakers.last_error or self._last_error
        if speakers.finish is None or (error is not None and not speakers.has_text):
            return self.fail(error or PAUSED)
        rest = speakers.rest()
        written = self.on_text(rest) if rest else b""
        self.answer = Answer(finish=speakers.finish, usage=speakers.usage)
        return written + self.on_end(self.answer)

    def _closed(self, event: ProcessStep) -> bytes:
        step = event.step
        if step.type == StepType.TOOL_RESULT or step.is_hosted is True:
            return b""
        place = (turn_of(event).key, step.index)
        if step.status == StepStatus.INTERRUPTED:
            return self._reset(place, step.type)
        if step.type == StepType.TOOL_CALL:
            text = str(step.arguments or "")
            return self._add(place, step.type, text, str(step.id_ref), str(step.name))
        if step.superseded is True:
            return self.on_refused(place, step.content)
        retyped = b""
        if step.type == StepType.THINKING and place == self._growing_text:
            retyped = self.on_retyped(step.content[: self._lengths[place]])
        return retyped + self._add(place, step.type, step.content, "", "")

    def _rest(self, step: OpenStep, text: str) -> bytes:
        return self._add(step.place, step.type, text, step.call_id, step.name)

    def _add(self, place: tuple[str, int], type_: StepType, whole: str, call_id: str, name: str) -> bytes:
        """What is missing of a step's whole text; of a call that begins also its head."""
        missing = whole[self._lengths.get(place, 0) :]
        if not missing and (place in self._lengths or type_ != StepType.TOOL_CALL):
            return b""
        return self._grow(place, type_, missing, call_id, name)

    def _grow(self, place: tuple[str, int], type_: StepType, text: str, call_id: str, name: str) -> bytes:
        if self.is_over:
            return b""
        self._lengths[place] = self._lengths.get(place, 0) + len(text)
        if self._speakers is not None:
            said = self._speakers.add(place[0], text) if type_ == StepType.TEXT else ""
            return self.on_text(said) if said else b""
        match type_:
            case StepType.TEXT:
                self._has_text = True
                self._growing_text = place
                return self.on_text(text)
            case StepType.THINKING:
                return self.on_thinking(text)
            case StepType.TOOL_CALL if self._has_calls:
                return self._grow_call(place[1], text, call_id, name)
            case _:
                return b""

    def _grow_call(self, index: int, text: str, call_id: str, name: str) -> bytes:
        head = b""
        position = self._calls.get(index)
        if position is None:
            position = self._calls[index] = len(self._calls)
            head = self.on_call(position, call_id, name)
        return head + (self.on_arguments(position, text) if text else b"")

    def _reset(self, place: tuple[str, int], type_: StepType) -> bytes:
        """The text of a step is discarded: the client cannot take it back, so the answer fails."""
        length = self._lengths.pop(place, 0)
        is_written = type_ == StepType.TEXT or (type_ == StepType.TOOL_CALL and self._has_calls)
        return self.fail(LOST) if length and is_written else b""

    def _end(self, done: Done) -> bytes:
        error = self._last_error
        if done.status == DoneStatus.FAILED or (error is not None and not self._has_text):
            return self.fail(error or LOST)
        self.answer = Answer(finish=self._finish(done), usage=done.usage)
        return self.on_end(self.answer)

    def fail(self, error: ErrorEvent) -> bytes:
        """Ends the answer with an error."""
        is_limit = error.code.startswith("limits.")
        status = 429 if is_limit else STATUS_OF_KIND.get(error.code, 502)
        retryable = error.retryable and not is_limit
        self.failure = AnswerFailure(
            status=status, message=error.message, kind=error.code, retryable=retryable
        )
        return self.on_failure(self.failure)

    def _finish(self, done: Done) -> str:
        if done.finish in ("content_filter", "refusal"):
            return "content_filter"
        if done.finish in ("length", "context_full"):
            return "length"
        if self._calls:
            return "tool_calls"
        if done.status != DoneStatus.COMPLETED:
            return "length"
        if self._is_unmet:
            return "schema_not_met"
        return "stop" if done.finish else "unknown"


class CollectedAnswer(AnswerReader):
    """Collects an answer; writes nothing."""

    def __init__(self, *, has_calls: bool = False, speakers: Speakers | None = None) -> None:
        super().__init__(has_calls=has_calls, speakers=speakers)
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._heads: list[tuple[str, str]] = []
        self._arguments: list[list[str]] = []

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._text)

    @property
    def thinking(self) -> str:
        """The thinking so far."""
        return "".join(self._thinking)

    @property
    def calls(self) -> list[tuple[str, str, str]]:
        """The calls so far: id, name and arguments."""
        heads = zip(self._heads, self._arguments, strict=True)
        return [(call_id, name, "".join(parts)) for (call_id, name), parts in heads]

    def on_text(self, text: str) -> bytes:
        self._text.append(text)
        return b""

    def on_thinking(self, text: str) -> bytes:
        self._thinking.append(text)
        return b""

    def on_refused(self, place: tuple[str, int], text: str) -> bytes:
        before, _, after = self.text.rpartition(text) if text else (self.text, "", "")
        self._text, self._lengths[place] = [before, after], 0
        return b""

    def on_retyped(self, text: str) -> bytes:
        self._text = [self.text.removesuffix(text)]
        self._thinking.append(text)
        return b""

    def on_call(self, position: int, call_id: str, name: str) -> bytes:
        self._heads.append((call_id, name))
        self._arguments.append([])
        return b""

    def on_arguments(self, position: int, text: str) -> bytes:
        self._arguments[position].append(text)
        return b""

    def on_end(self, answer: Answer) -> bytes:
        return b""

    def on_failure(self, failure: AnswerFailure) -> bytes:
        return b""


def chat_usage(usage: Usage) -> dict[str, Any]:
    """The usage in the form of chat completions."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
