"""One completion as it arrives: turns deltas into steps.

A thinking step closes when a text step begins, and the reverse. Tool calls may grow concurrently; they close
together at the end.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Any, assert_never, cast

from msgspec.structs import replace

from luxx.domain.usage.ledger import clamped
from luxx.errors import MalformedStream
from luxx.infra.clock import new_id
from luxx.infra.strict_json import REPLACEMENT, readable_escapes
from luxx.providers.adapter import merge_fragments
from luxx.runs.log.channel import Frame, OpenStep
from luxx.runs.log.events import LogEntry
from luxx.runs.turn.repetition import LOOK_CHARACTERS, TEXT_CHARACTERS, RepeatedText
from luxx.runs.turn.shown_parts import ShownParts, StopPhrases
from luxx.runs.turn.turn_log import NOTICES, REGULAR
from luxx.wire.run import LoopKind
from luxx.wire.turn import (
    CHAT_TURN,
    CUT_SHORT,
    WITHHELD,
    CitationDelta,
    CompletionEnd,
    Delta,
    FinishDelta,
    FinishReason,
    HostedCallDelta,
    ImageDelta,
    ReplayDelta,
    ReplayNote,
    Step,
    StepFile,
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
    with_end,
)
from luxx.wire.turn_event import DoomLoopDetected, Warning

REPLACED = (
    "The answer has characters that were no valid text, such as half of a surrogate pair; each stands as "
    "U+FFFD."
)

CALL_KEYS = frozenset({"id", "call"})
"""The keys under which replay notes name a call."""

MAX_CHARACTERS = 4_000_000
"""About ten times the longest answer of current models; bounds the memory of one run."""

MAX_STEPS = 3_000  # Of one completion, whose calls are logged in one transaction.
MAX_NAME_CHARACTERS = 10_000
"""Limit for a call's name and id together, which each of its frames repeats."""

MAX_REASON_CHARACTERS = 100
Output = Frame | Step
"""A frame to publish, or a closed step, which must be logged before any later output."""


class CompletionReader:
    """Reads deltas. `open_steps` is the channel's own dict, so that a late subscriber gets the growing steps.

    `preceding` is the text of the turn's message so far. `used_call_ids` are the ids of the run's earlier
    calls. A call with such an id gets a new one, because results are matched by call id. `follows_text`: the
    message has text already, so that a regular end without text needs no notice. `stops` end the text.
    `level`: of the thinking steps.
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
        follows_text: bool = True,
        stops: Sequence[str] = (),
        level: str = "",
    ) -> None:
        self._run_id = run_id
        self._follows_text = follows_text
        self._stops = StopPhrases(stops) if stops else None
        self._level = level
        self._has_answer = False
        self._turn = turn
        self._preceding = preceding
        self._first = self._next = first_index
        self._used_call_ids = set[str]() if used_call_ids is None else used_call_ids
        self._new_call_ids: dict[object, str] = {}
        self._open = open_steps
        self._current_step: OpenStep | None = None
        self._calls: dict[int, OpenStep] = {}
        self._hosted: list[Step] = []
        self._size, self._next_look = 0, TEXT_CHARACTERS
        self._text_look: RepeatedText | None = None
        self._repeats = 0  # How often the end of the text repeats; then the completion is cut.
        self._has_replaced = False
        self._last_text: Step | None = None  # The newest that is logged.
        self._parts: ShownParts | None = None  # Most texts show nothing beside them.
        self.new_images: list[bytes] = []  # Not stored yet; `show_images` shows them.
        self.usage = Usage()
        self.finish = FinishReason.UNKNOWN
        self.raw_finish = ""
        self.replay: ReplayNote = {}
        self._refusal = self._notice = ""
        self._is_cut = self._is_paused = False

    def feed_text(self, deltas: list[Delta]) -> Frame | None:
        """The frame of a single fragment of the growing text, the most frequent case; else None."""
        step = self._current_step
        if step is None or step.type is not StepType.TEXT or len(deltas) != 1 or self._stops is not None:
            return None
        delta = deltas[0] if self._size < self._next_look else None
        return self._grow(step, delta.text) if isinstance(delta, TextDelta) and delta.text else None

    def feed(self, deltas: list[Delta]) -> Iterator[Output]:
        """The outputs of one network read, in order; fragments of one step become one frame.

        This is a generator so that a step grows only when its frame is published. Else a client that attaches
        while an earlier output is being logged would get the text twice: in its snapshot and in the frame.
        """
        deltas = merge_fragments(deltas if self._stops is None else self._stops.read(deltas))
        for delta in takewhile(self._goes_on, deltas):
            match delta:
                case TextDelta(text=text):
                    yield from self._append_text(StepType.TEXT, text)
                case ThinkingDelta(text=text):
                    yield from self._append_text(StepType.THINKING, text)
                case TextWasThinking():
                    yield from self._retype_text()
                case ToolCallDelta():
                    yield from self._call(delta)
                case HostedCallDelta():
                    yield from self._hosted_call(delta)
                case UsageDelta(usage=usage):
                    self.usage = clamped(usage)
                case ReplayDelta(data=data):
                    self.replay.update({key: self._with_new_call_ids(value) for key, value in data.items()})
                case CitationDelta(source=source):
                    self._shown_parts().add_source(source)
                case ImageDelta(data=data):
                    self._has_answer = True
                    self.new_images.append(data)
                case FinishDelta():
                    yield from self._finish(delta)
                case _:
                    assert_never(delta)

    def _goes_on(self, _delta: Delta) -> bool:
        return not self._repeats

    def _is_endless(self, step: OpenStep) -> bool:
        """Whether the growing text or thinking repeats itself without end."""
        if (look := self._text_look) is None or look.place != step.index:
            look = self._text_look = RepeatedText(step.index)
        self._repeats = look.repeats(step.end(self._size - look.size))
        look.size, self._next_look = self._size, self._size + LOOK_CHARACTERS
        return self._repeats > 0

    def close(self, status: StepStatus, *, calls_end: bool = False) -> list[Step]:
        """Closes the open steps in order of index; complete tool calls become pending, unless the client
        makes them (`calls_end`). Those of a refused or an endless answer fail: they are not to be made."""
        held = "" if self._stops is None else self._stops.take_held()
        late = [one for one in self._append_text(StepType.TEXT, held) if isinstance(one, Step)]
        closing = [self._open[index] for index in sorted(self._open)]
        self._current_step = None
        of_calls = status
        if status == StepStatus.DONE and self.finish in (*WITHHELD, FinishReason.LOOP):
            of_calls = StepStatus.ERROR
        elif status == StepStatus.DONE and not calls_end:
            of_calls = StepStatus.PENDING
        steps = [step.closed(of_calls if step.type == StepType.TOOL_CALL else status) for step in closing]
        steps = sorted([*late, *map(self._readable, steps), *self._hosted], key=lambda step: step.index)
        not_shown = [] if self._parts is None else self._parts.not_shown
        if notice := "\n".join([*not_shown, *self._missing_text(status, steps)]):
            steps.append(Step(id=step_id(self._next), index=self._next, type=StepType.TEXT, notice=notice))
        return steps if self._parts is None else self._parts.beside(steps, self._last_text, self._next)

    @property
    def is_stopped(self) -> bool:
        """Whether a stop or an endless text ended the completion, so that the rest is not wanted."""
        return self._repeats > 0 or (self._stops is not None and self._stops.is_stopped)

    def show_images(self, stored: Sequence[StepFile | str]) -> None:
        """Adds the stored images to the text; one that cannot be shown is a notice, given why."""
        self.new_images = []
        self._shown_parts().add_images(stored)

    def _shown_parts(self) -> ShownParts:
        if self._parts is None:
            self._parts = ShownParts()
        return self._parts

    @property
    def has_usage(self) -> bool:
        """Whether the provider reported the usage of the whole completion."""
        return not self._is_cut and bool(self.usage.prompt_tokens or self.usage.completion_tokens)

    def replay_of(self, model: str) -> ReplayNote:
        """The replay note of the completion, which `model` made."""
        refused_by = model if self.finish in WITHHELD else ""
        end = CompletionEnd(is_paused=self._is_paused, refusal=self._refusal, refused_by=refused_by)
        return with_end(self.replay, end)

    def warnings(self) -> list[LogEntry]:
        """The warnings about characters that were replaced, and about an end for a reason that Luxx does not
        know; and the event on a text without end."""
        warnings: list[LogEntry] = [Warning(message=REPLACED)] if self._has_replaced else []
        if self._repeats:
            repeats = DoomLoopDetected(kind=LoopKind.TEXT, tool="", call_ids=[], times=self._repeats)
            return [*warnings, repeats]
        if self.finish != FinishReason.UNKNOWN or not self.raw_finish:
            return warnings
        reason = self.raw_finish[:MAX_REASON_CHARACTERS]
        text = f"The provider ended this answer for a reason that Luxx does not know ({reason})"
        return [*warnings, Warning(message=f"{text}; the answer may be incomplete.")]

    def _readable(self, step: Step) -> Step:
        """The step; a call whose arguments have half of a character gets a replacement for it."""
        arguments = readable_escapes(str(step.arguments or ""))
        if step.type == StepType.TOOL_CALL and arguments != step.arguments:
            self._has_replaced = True
            step = replace(step, arguments=arguments)
        texts = (step.content, arguments, str(step.name or ""), str(step.id_ref or ""))
        self._has_replaced = self._has_replaced or any(REPLACEMENT in text for text in texts)
        return step

    def _finish(self, delta: FinishDelta) -> Iterator[Output]:
        self.finish, self.raw_finish, self._is_cut = delta.reason, delta.raw, delta.is_cut
        if delta.reason == FinishReason.UNKNOWN and not delta.raw:
            # The server ended its answer regularly, and names no reason.
            self.finish = FinishReason.STOP
        if delta.reason not in CUT_SHORT | WITHHELD:
            # A call that ended without arguments has an empty object, which every client can read.
            for call in self._calls.values():
                if not call.content().strip():
                    yield self._grow(call, "{}")
        self._is_paused = delta.reason == FinishReason.PAUSED and not self._calls
        self._refusal, self._notice = delta.refusal, delta.notice
        if self._current_step is not None:
            self._note_text(self._current_step.closed(StepStatus.DONE))
        if delta.reason == FinishReason.REFUSAL and not self._has_answer:
            yield from self._append_text(StepType.TEXT, delta.refusal)

    def _append_text(self, type_: StepType, text: str) -> Iterator[Output]:
        if not text:
            return
        step = self._current_step
        if step is None or step.type != type_:
            yield from self._close_current_step()
            step = self._current_step = self._add_open_step(type_)
            yield replace(self._grow(step, text), is_opening=True)
        else:
            yield self._grow(step, text)
        if self._size >= self._next_look and self._is_endless(step):
            yield from self._finish(FinishDelta(reason=FinishReason.LOOP, is_cut=True))

    def _retype_text(self) -> Iterator[Output]:
        """Closes the current text as thinking. Before, clients drop it: a step never changes its type."""
        step, self._current_step = self._current_step, None
        if step is None or step.type != StepType.TEXT:
            return
        yield Frame(step.reset_frame())
        step.level = self._level
        yield replace(step.closed(StepStatus.DONE), type=StepType.THINKING)

    def _call(self, delta: ToolCallDelta) -> Iterator[Output]:
        yield from self._close_current_step()
        step = self._calls.get(delta.slot)
        if step is None:
            call_id = self._unique_call_id(delta.call_id)
            step = self._add_open_step(StepType.TOOL_CALL, call_id, delta.name)
            self._calls[delta.slot] = step
            yield replace(self._grow(step, delta.arguments), is_opening=True)
            return
        yield self._grow(step, delta.arguments)

    def _hosted_call(self, delta: HostedCallDelta) -> Iterator[Output]:
        """The complete step of a hosted call; while other calls are open, it is kept for `close`."""
        yield from self._close_current_step()
        self._size += len(delta.arguments)
        self._check_bounds(self._next, delta.name + delta.call_id)
        step = Step(
            id=step_id(self._next),
            index=self._next,
            type=StepType.TOOL_CALL,
            name=delta.name,
            arguments=delta.arguments,
            id_ref=self._hosted_call_id(delta.call_id),
            is_hosted=True,
        )
        self._next += 1
        if self._calls:
            self._hosted.append(step)
        else:
            yield step

    def _hosted_call_id(self, call_id: str) -> str:
        """The provider's id, which stands in its notes too and stays there; a new one if it is not unique."""
        is_new = bool(call_id) and call_id not in self._used_call_ids
        return call_id if is_new else f"call_{new_id().replace('-', '')}"

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
            closed = self._readable(step.closed(StepStatus.DONE))
            self._note_text(closed)
            if step.is_chunk:
                self._preceding += closed.content
            if closed.type == StepType.TEXT:
                self._last_text = closed
            yield closed

    def _missing_text(self, status: StepStatus, steps: Iterable[Step]) -> list[str]:
        """The notice on a completion that ended without the text that people expect, if it did."""
        for step in steps:
            self._note_text(step)
        is_asking = bool(self._calls) and self.finish not in WITHHELD
        if self._has_answer or is_asking or status != StepStatus.DONE:
            return []
        needs_none = self._follows_text and self.finish in REGULAR
        notice = self._notice or ("" if needs_none else NOTICES.get(self.finish, ""))
        return [notice] if notice else []

    def _note_text(self, step: Step) -> None:
        self._has_answer = self._has_answer or (step.type == StepType.TEXT and bool(step.content.strip()))

    def _add_open_step(self, type_: StepType, call_id: str = "", name: str = "") -> OpenStep:
        self._check_bounds(self._next, name + call_id)
        step = self._open[self._next] = OpenStep(
            self._run_id,
            self._next,
            type_,
            turn=self._turn,
            call_id=call_id,
            name=name,
            preceding=self._preceding if type_ == StepType.TEXT else "",
            level=self._level if type_ == StepType.THINKING else "",
        )
        self._next += 1
        return step

    def _check_bounds(self, index: int, name_and_id: str) -> None:
        if index - self._first >= MAX_STEPS or len(name_and_id) > MAX_NAME_CHARACTERS:
            raise MalformedStream(
                f"The provider's answer has more than {MAX_STEPS:,} steps, or a call with more than "
                f"{MAX_NAME_CHARACTERS:,} characters of name and id; it was cut there.",
                retryable=False,
            )

    def _grow(self, step: OpenStep, text: str) -> Frame:
        self._size += len(text)
        if self._size > MAX_CHARACTERS:
            raise MalformedStream(
                f"The provider's answer is longer than {MAX_CHARACTERS:,} characters; it was cut there.",
                retryable=False,
            )
        return Frame(step.grow(text), 0, step, text)
