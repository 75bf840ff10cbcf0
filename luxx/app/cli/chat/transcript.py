"""What a terminal shows of a run: frames of its stream in, what is new of it out, and onto the screen.

Attaching again repeats and loses nothing. No network here: that is `chat_client.py`.
"""

import re
import sys
from enum import StrEnum
from typing import TextIO

import msgspec
from msgspec import UNSET, UnsetType

from luxx.app.cli.chat.questions import FrameOption, FrameQuestion, question_lines
from luxx.wire.event import CLOSING_EVENT_TYPES
from luxx.wire.run import ENDED
from luxx.wire.step import StepType

MAX_RESULT_CHARS = 200
SUBAGENTS_SECONDS = 2.0
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What a model or a tool says may not steer the terminal."""


class PieceKind(StrEnum):
    TEXT = "text"
    THINKING = "thinking"
    NOTE = "note"


class Piece(msgspec.Struct, frozen=True):
    """Something new to show; a note is a line of its own."""

    kind: PieceKind
    text: str


class FrameStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step as a frame tells of it: `delta` is what is new, `content` or `arguments` all of it."""

    index: int
    type: str
    status: str = ""
    name: str = ""
    content: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    success: bool = True
    duration_ms: int | None = None


class FrameRun(msgspec.Struct, frozen=True, kw_only=True):
    id: str


class StreamFrame(msgspec.Struct, frozen=True, kw_only=True):
    """A frame, as far as a terminal shows it. `seq` is 0 for what is not in the log."""

    type: str
    seq: int = 0
    run: FrameRun | None = None
    step: FrameStep | None = None
    message: str = ""
    reason: str = ""
    delay_ms: int = 0
    status: str = ""
    question_id: str = ""
    run_id: str = ""
    subagent_run_id: str = ""
    prompt: str = ""
    options: list[FrameOption] = []
    multiple: bool = False
    required: bool = False
    arguments: str = ""
    because: str = ""


class Transcript:
    """What is known of a run: frames in, what is new of it out. Attaching again repeats and loses nothing."""

    def __init__(self) -> None:
        self.run_id = ""
        self.last_seq = 0
        self.status = ""
        self.error = ""
        self.is_over = False
        self.questions: dict[str, FrameQuestion] = {}
        self.subagents: set[str] = set()
        """The runs of those that have not ended."""
        self._asked_ids: set[str] = set()
        self._texts: dict[int, str] = {}
        self._displayed: dict[int, str] = {}
        self._announced: set[int] = set()

    def receive(self, frame: StreamFrame) -> list[Piece]:
        """Takes a frame; the pieces to show now."""
        if frame.seq:
            if frame.seq <= self.last_seq:
                return []
            self.last_seq = frame.seq
        if frame.run is not None:
            self.run_id = frame.run.id
            self._texts.clear()
        if frame.subagent_run_id:
            (self.subagents.discard if frame.status in ENDED else self.subagents.add)(frame.subagent_run_id)
        if frame.type in CLOSING_EVENT_TYPES:
            self.is_over = True
            self.status = frame.status
        match frame.type:
            case "process_step" if frame.step is not None:
                return self._step(frame.step, is_logged=frame.seq > 0)
            case "question_asked":
                return self._question(frame)
            case "question_answered":
                is_open = self.questions.pop(frame.question_id, None) is not None
                return [note("answered: nobody needs to any more")] if is_open else []
            case "retrying":
                return [note(f"trying again in {frame.delay_ms / 1000:.1f} s: {frame.reason}")]
            case "warning":
                return [note(frame.message)]
            case "error":
                self.error = frame.message
                return []
            case _:
                return []

    def _question(self, frame: StreamFrame) -> list[Piece]:
        names = FrameQuestion.__struct_fields__
        return self.add_question(FrameQuestion(**{name: getattr(frame, name) for name in names}))

    def pause(self) -> float | None:
        """How long there may be silence before it is asked what subagents ask: no frame tells of it."""
        return SUBAGENTS_SECONDS if self.subagents else None

    def add_question(self, question: FrameQuestion) -> list[Piece]:
        """Takes in a question, unless it was before."""
        if question.question_id in self._asked_ids:
            return []
        self._asked_ids.add(question.question_id)
        self.questions[question.question_id] = question
        return [note(line) for line in question_lines(question)]

    def _step(self, step: FrameStep, *, is_logged: bool) -> list[Piece]:
        match step.type:
            case StepType.TEXT:
                return self._append(PieceKind.TEXT, step, is_logged=is_logged)
            case StepType.THINKING:
                return self._append(PieceKind.THINKING, step, is_logged=is_logged)
            case StepType.TOOL_CALL if is_logged and step.index not in self._announced:
                self._announced.add(step.index)
                return [note(f"→ {step.name} {step.arguments or ''}".rstrip())]
            case StepType.TOOL_RESULT:
                return [note(_result_line(step))]
            case _:
                return []

    def _append(self, kind: PieceKind, step: FrameStep, *, is_logged: bool) -> list[Piece]:
        """`_texts` is what the server says the step holds, `_shown` what stands on the screen."""
        so_far, displayed = self._texts.get(step.index, ""), self._displayed.get(step.index, "")
        text = so_far + step.delta if isinstance(step.delta, str) else step.content or ""
        self._texts[step.index] = text
        if text.startswith(displayed):
            new = text[len(displayed) :]
        elif displayed.startswith(text) and not is_logged:
            return []  # A step that is made again, still inside what was shown of it.
        else:
            self._displayed[step.index] = text
            return [note("[the server began this again]"), Piece(kind, text)]
        self._displayed[step.index] = text
        return [Piece(kind, new)] if new else []


def note(text: str) -> Piece:
    return Piece(PieceKind.NOTE, text)


def _result_line(step: FrameStep) -> str:
    duration = "" if step.duration_ms is None else f" ({step.duration_ms} ms)"
    result_text = " ".join((step.content or "").split())
    shortened = result_text if len(result_text) <= MAX_RESULT_CHARS else result_text[:MAX_RESULT_CHARS] + "…"
    return f"{'✓' if step.success else '✗'} {step.name}{duration} {shortened}"


class Screen:
    """Where pieces are shown; a note begins on a line of its own, thinking is dim on a terminal."""

    def __init__(self) -> None:
        self._open_stream: TextIO | None = None
        self._kind = PieceKind.NOTE

    def show(self, piece: Piece) -> None:
        stream = sys.stdout if piece.kind is PieceKind.TEXT else sys.stderr
        if self._open_stream is not None and (piece.kind is not self._kind or piece.kind is PieceKind.NOTE):
            self.end_line()
        is_terminal = stream.isatty()
        text = CONTROL.sub("", piece.text) if is_terminal else piece.text
        if is_terminal and piece.kind is not PieceKind.TEXT:
            text = f"\x1b[2m{text}\x1b[0m"
        stream.write(text + ("\n" if piece.kind is PieceKind.NOTE else ""))
        stream.flush()
        self._kind = piece.kind
        if piece.kind is not PieceKind.NOTE:
            self._open_stream = None if piece.text.endswith("\n") else stream

    def note(self, text: str) -> None:
        self.show(note(text))

    def end_line(self) -> None:
        """Ends a line that is begun."""
        if self._open_stream is not None:
            self._open_stream.write("\n")
            self._open_stream.flush()
            self._open_stream = None
