"""Converts the stream frames of a run to pieces of text and shows them. `client.py` does network calls."""

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
"""Control characters, removed so that models and tools cannot control the terminal."""


class PieceKind(StrEnum):
    TEXT = "text"
    THINKING = "thinking"
    NOTE = "note"


class Piece(msgspec.Struct, frozen=True):
    """New text to show. A note is a line of its own."""

    kind: PieceKind
    text: str


class FrameStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step in a frame: `delta` is the new text, `content` and `arguments` are complete."""

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
    """The fields of a frame that a terminal shows. `seq` is 0 for frames that are not in the event log."""

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
    """The state of a run. Resuming the stream neither repeats nor loses text."""

    def __init__(self) -> None:
        self.run_id = ""
        self.last_seq = 0
        self.status = ""
        self.error = ""
        self.is_over = False
        self.questions: dict[str, FrameQuestion] = {}
        self.subagents: set[str] = set()
        """The runs of subagents that have not ended."""
        self._asked_ids: set[str] = set()
        self._texts: dict[int, str] = {}
        self._displayed: dict[int, str] = {}
        self._announced: set[int] = set()

    def receive(self, frame: StreamFrame) -> list[Piece]:
        """Applies a frame and returns the pieces to show."""
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
                return [note("the question was answered elsewhere")] if is_open else []
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
        """The silence after which the client polls for questions of subagents, which come in no frame."""
        return SUBAGENTS_SECONDS if self.subagents else None

    def add_question(self, question: FrameQuestion) -> list[Piece]:
        """Adds a question and returns its pieces; none if it was added before."""
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
        """Updates the text of a step. `_texts`: as on the server; `_displayed`: as on the screen."""
        so_far, displayed = self._texts.get(step.index, ""), self._displayed.get(step.index, "")
        text = so_far + step.delta if isinstance(step.delta, str) else step.content or ""
        self._texts[step.index] = text
        if text.startswith(displayed):
            new = text[len(displayed) :]
        elif displayed.startswith(text) and not is_logged:
            return []  # The server repeats the step and has not passed the displayed text yet.
        else:
            self._displayed[step.index] = text
            return [note("[the server restarted this step]"), Piece(kind, text)]
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
    """Prints pieces. A note starts a new line; thinking is dim on a terminal."""

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
        """Ends an unfinished line."""
        if self._open_stream is not None:
            self._open_stream.write("\n")
            self._open_stream.flush()
            self._open_stream = None
