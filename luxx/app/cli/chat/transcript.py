"""What a terminal shows of a run: frames of its stream in, what is new of it out, and onto the screen.

Attaching again repeats and loses nothing. No network here: that is `chat_client.py`.
"""

import re
import sys
from enum import StrEnum
from typing import TextIO

import msgspec
from msgspec import UNSET, UnsetType

from luxx.app.cli.chat.questions import HeardOption, HeardQuestion, question_lines
from luxx.wire.event import ENDING
from luxx.wire.run import ENDED
from luxx.wire.step import StepType

SHOWN_RESULT = 200
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


class HeardStep(msgspec.Struct, frozen=True, kw_only=True):
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


class HeardRun(msgspec.Struct, frozen=True, kw_only=True):
    id: str


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """A frame, as far as a terminal shows it. `seq` is 0 for what is not in the log."""

    type: str
    seq: int = 0
    run: HeardRun | None = None
    step: HeardStep | None = None
    message: str = ""
    reason: str = ""
    delay_ms: int = 0
    status: str = ""
    question_id: str = ""
    run_id: str = ""
    subagent_run_id: str = ""
    prompt: str = ""
    options: list[HeardOption] = []
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
        self.questions: dict[str, HeardQuestion] = {}
        self.subagents: set[str] = set()
        """The runs of those that have not ended."""
        self._asked: set[str] = set()
        self._texts: dict[int, str] = {}
        self._shown: dict[int, str] = {}
        self._told: set[int] = set()

    def hear(self, heard: Heard) -> list[Piece]:
        """Takes a frame; the pieces to show now."""
        if heard.seq:
            if heard.seq <= self.last_seq:
                return []
            self.last_seq = heard.seq
        if heard.run is not None:
            self.run_id = heard.run.id
            self._texts.clear()
        if heard.subagent_run_id:
            (self.subagents.discard if heard.status in ENDED else self.subagents.add)(heard.subagent_run_id)
        if heard.type in ENDING:
            self.is_over = True
            self.status = heard.status
        match heard.type:
            case "process_step" if heard.step is not None:
                return self._step(heard.step, is_logged=heard.seq > 0)
            case "question_asked":
                return self._question(heard)
            case "question_answered":
                is_open = self.questions.pop(heard.question_id, None) is not None
                return [note("answered: nobody needs to any more")] if is_open else []
            case "retrying":
                return [note(f"trying again in {heard.delay_ms / 1000:.1f} s: {heard.reason}")]
            case "warning":
                return [note(heard.message)]
            case "error":
                self.error = heard.message
                return []
            case _:
                return []

    def _question(self, heard: Heard) -> list[Piece]:
        names = HeardQuestion.__struct_fields__
        return self.ask(HeardQuestion(**{name: getattr(heard, name) for name in names}))

    def pause(self) -> float | None:
        """How long there may be silence before it is asked what subagents ask: no frame tells of it."""
        return SUBAGENTS_SECONDS if self.subagents else None

    def ask(self, question: HeardQuestion) -> list[Piece]:
        """Takes in a question, unless it was before."""
        if question.question_id in self._asked:
            return []
        self._asked.add(question.question_id)
        self.questions[question.question_id] = question
        return [note(line) for line in question_lines(question)]

    def _step(self, step: HeardStep, *, is_logged: bool) -> list[Piece]:
        match step.type:
            case StepType.TEXT:
                return self._grow(PieceKind.TEXT, step, is_logged=is_logged)
            case StepType.THINKING:
                return self._grow(PieceKind.THINKING, step, is_logged=is_logged)
            case StepType.TOOL_CALL if is_logged and step.index not in self._told:
                self._told.add(step.index)
                return [note(f"→ {step.name} {step.arguments or ''}".rstrip())]
            case StepType.TOOL_RESULT:
                return [note(_result_line(step))]
            case _:
                return []

    def _grow(self, kind: PieceKind, step: HeardStep, *, is_logged: bool) -> list[Piece]:
        """`_texts` is what the server says the step holds, `_shown` what stands on the screen."""
        so_far, shown = self._texts.get(step.index, ""), self._shown.get(step.index, "")
        text = so_far + step.delta if isinstance(step.delta, str) else step.content or ""
        self._texts[step.index] = text
        if text.startswith(shown):
            new = text[len(shown) :]
        elif shown.startswith(text) and not is_logged:
            return []  # A step that is made again, still inside what was shown of it.
        else:
            self._shown[step.index] = text
            return [note("[the server began this again]"), Piece(kind, text)]
        self._shown[step.index] = text
        return [Piece(kind, new)] if new else []


def note(text: str) -> Piece:
    return Piece(PieceKind.NOTE, text)


def _result_line(step: HeardStep) -> str:
    took = "" if step.duration_ms is None else f" ({step.duration_ms} ms)"
    told = " ".join((step.content or "").split())
    cut = told if len(told) <= SHOWN_RESULT else told[:SHOWN_RESULT] + "…"
    return f"{'✓' if step.success else '✗'} {step.name}{took} {cut}"


class Screen:
    """Where pieces are shown; a note begins on a line of its own, thinking is dim on a terminal."""

    def __init__(self) -> None:
        self._is_open: TextIO | None = None
        self._kind = PieceKind.NOTE

    def show(self, piece: Piece) -> None:
        stream = sys.stdout if piece.kind is PieceKind.TEXT else sys.stderr
        if self._is_open is not None and (piece.kind is not self._kind or piece.kind is PieceKind.NOTE):
            self.end_line()
        is_terminal = stream.isatty()
        text = CONTROL.sub("", piece.text) if is_terminal else piece.text
        if is_terminal and piece.kind is not PieceKind.TEXT:
            text = f"\x1b[2m{text}\x1b[0m"
        stream.write(text + ("\n" if piece.kind is PieceKind.NOTE else ""))
        stream.flush()
        self._kind = piece.kind
        if piece.kind is not PieceKind.NOTE:
            self._is_open = None if piece.text.endswith("\n") else stream

    def note(self, text: str) -> None:
        self.show(note(text))

    def end_line(self) -> None:
        """Ends a line that is begun."""
        if self._is_open is not None:
            self._is_open.write("\n")
            self._is_open.flush()
            self._is_open = None
