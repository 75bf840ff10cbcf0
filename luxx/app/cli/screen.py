"""What the commands print while a run goes on: pieces of text, in colors where a terminal shows them."""

import os
import re
import shutil
import sys
import termios
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from enum import StrEnum
from typing import Protocol, TextIO
from unicodedata import east_asian_width

import msgspec

CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters, removed so that models and tools cannot control the terminal."""

HEX_COLOR = re.compile(r"#[0-9a-fA-F]{6}")
DIM, BOLD, RESET = "\x1b[2m", "\x1b[1m", "\x1b[0m"
ERASE_LINE = "\r\x1b[K"
DEFAULT_COLUMNS = 80


class PieceKind(StrEnum):
    """A name begins a line of text and stands in its own color. Progress is a note where no terminal shows
    it below the text. A call of a tool and its result have a card, and as text they are notes."""

    TEXT = "text"
    NAME = "name"
    THINKING = "thinking"
    NOTE = "note"
    PROGRESS = "progress"
    TOOL_CALL = "tool_call"
    TOOL_RESULT = "tool_result"


class ToolCard(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a tool, and its result once there is one."""

    call_id: str
    name: str
    arguments: str
    result: str = ""
    is_successful: bool = True
    duration_ms: int | None = None


class Piece(msgspec.Struct, frozen=True):
    """New text to show. A note is a line of its own. `color` is `#rrggbb`, or empty."""

    kind: PieceKind
    text: str
    color: str = ""
    card: ToolCard | None = None


def note(text: str, color: str = "") -> Piece:
    return Piece(PieceKind.NOTE, text, color)


FINISH_NOTES = {
    "length": "was cut at the limit of tokens of the model",
    "context_full": "was cut, because the context window of the model is full",
    "content_filter": "was stopped by a content filter of the provider",
    "refusal": "was stopped, because the model declined to answer",
    "loop": "was stopped, because the model repeated itself",
}
"""What is said of an answer that ended in this way (its `finish`)."""


class GrowingText:
    """A text on the server, and what the screen shows of it. Resuming a stream neither repeats nor loses."""

    def __init__(self, what: str = "message", kind: PieceKind = PieceKind.TEXT) -> None:
        self.text = ""
        self._displayed = ""
        self._what = what
        self._kind = kind

    def rest(self, *, is_whole: bool = False) -> list[Piece]:
        """What the screen lacks. `is_whole`: the text does not grow any more."""
        if self.text.startswith(self._displayed):
            new, restarted = self.text[len(self._displayed) :], []
        elif self._displayed.startswith(self.text) and not is_whole:
            return []  # The server repeats the text and has not passed the displayed part yet.
        else:
            new, restarted = self.text, [note(f"[the server restarted this {self._what}]")]
        self._displayed = self.text
        return [*restarted, *([Piece(self._kind, new)] if new else [])]

    @property
    def is_begun(self) -> bool:
        return bool(self._displayed)


class RunScreen(Protocol):
    """Where a run is shown: as plain text, or by `chat/rich_screen.py`."""

    def show(self, piece: Piece) -> None: ...
    def note(self, text: str) -> None: ...
    def user_message(self, text: str) -> None: ...
    def wait_for_answer(self) -> None: ...
    def show_progress(self, text: str) -> None: ...
    def show_typed(self, text: str) -> None: ...
    def ask(self, lines: list[Piece]) -> None: ...
    def release(self) -> None: ...
    def end_line(self) -> None: ...


class Screen:
    """Prints text and names to stdout, notes and thinking to stderr. A note starts a new line.

    A terminal also gets colors and, below the text, one line that `show_progress` replaces. `keeps_lines`: a
    note does not end a line of text unless both are shown on a terminal, so that stdout has the text only.
    `folds_thinking`: of what a model thinks only the time is shown.
    """

    def __init__(self, *, keeps_lines: bool = False, folds_thinking: bool = False) -> None:
        self._keeps_lines = keeps_lines
        self._folds_thinking = folds_thinking
        self._thinks_since: float | None = None
        self._open_stream: TextIO | None = None
        self._kind = PieceKind.NOTE
        self._progress = ""
        self._held: list[Piece] | None = None

    def show(self, piece: Piece) -> None:
        """Prints the piece; while `hold` is in force, keeps it for later."""
        if self._held is not None:
            self._held.append(piece)
            return
        if self._folds_thinking and piece.kind is PieceKind.THINKING:
            self._thinks_since = self._thinks_since or time.monotonic()
            return
        if self._thinks_since is not None:
            seconds, self._thinks_since = time.monotonic() - self._thinks_since, None
            self.note(f"thought for {seconds:.1f} s")
        if piece.kind is PieceKind.PROGRESS and sys.stderr.isatty():
            return
        if piece.kind in (PieceKind.PROGRESS, PieceKind.TOOL_CALL, PieceKind.TOOL_RESULT):
            piece = note(piece.text)
        stream = sys.stdout if piece.kind in (PieceKind.TEXT, PieceKind.NAME) else sys.stderr
        if piece.kind is PieceKind.NOTE and self._leaves_line():
            _write(stream, piece)
            return
        self._erase_progress()
        continues = self._kind is piece.kind or (self._kind, piece.kind) == (PieceKind.NAME, PieceKind.TEXT)
        if self._open_stream is not None and (not continues or piece.kind is PieceKind.NOTE):
            self.end_line()
        _write(stream, piece)
        self._kind = piece.kind
        if piece.kind is not PieceKind.NOTE:
            self._open_stream = None if piece.text.endswith("\n") else stream
        self._write_progress()

    def note(self, text: str) -> None:
        self.show(note(text))

    def user_message(self, text: str) -> None:
        """Shows what a person said before."""
        self.note("\n".join(f"> {line}" for line in text.split("\n")))

    def wait_for_answer(self) -> None:
        """Plain text shows nothing before the answer begins."""

    def end_line(self) -> None:
        if self._open_stream is not None:
            self._open_stream.write("\n")
            self._open_stream.flush()
            self._open_stream = None

    def show_progress(self, text: str) -> None:
        """Replaces the line below the text; an empty text removes it. Nothing without a terminal."""
        text = CONTROL_CHARACTERS.sub("", text)
        if text != self._progress:
            self._erase_progress()
            self._progress = text
            self._write_progress()

    def show_typed(self, text: str) -> None:
        """Plain text has no place for it."""

    def ask(self, lines: list[Piece]) -> None:
        """Shows a question and holds all other pieces until `release`."""
        self.show_progress("")
        for line in lines:
            self.show(line)
        self._held = []

    def release(self) -> None:
        """Shows what was held."""
        held, self._held = self._held or [], None
        for piece in held:
            self.show(piece)

    def _leaves_line(self) -> bool:
        """Whether a note leaves the open line of text as it is."""
        are_both_shown = sys.stdout.isatty() and sys.stderr.isatty()
        return self._keeps_lines and self._open_stream is sys.stdout and not are_both_shown

    def _erase_progress(self) -> None:
        if self._progress and self._shows_progress():
            sys.stderr.write(ERASE_LINE)
            sys.stderr.flush()

    def _write_progress(self) -> None:
        if self._progress and self._shows_progress():
            columns = shutil.get_terminal_size((DEFAULT_COLUMNS, 24)).columns
            sys.stderr.write(f"{DIM}{cut_to_width(self._progress, columns - 1)}{RESET}")
            sys.stderr.flush()

    def _shows_progress(self) -> bool:
        """Only below complete lines: the line could not be erased beside growing text."""
        is_possible = sys.stderr.isatty() and not is_dumb_terminal()
        return is_possible and self._open_stream is None and self._held is None


@contextmanager
def silent_keys() -> Generator[None]:
    """What is typed while an answer is shown does not appear in it; it is in the next prompt."""
    if is_dumb_terminal():
        yield
        return
    try:
        descriptor = sys.stdin.fileno()
        before = termios.tcgetattr(descriptor)
    except (OSError, ValueError, termios.error):
        yield
        return
    changed = termios.tcgetattr(descriptor)
    changed[3] &= ~termios.ECHO
    termios.tcsetattr(descriptor, termios.TCSANOW, changed)
    try:
        yield
    finally:
        with suppress(termios.error):
            termios.tcsetattr(descriptor, termios.TCSANOW, before)


def cut_to_width(text: str, columns: int) -> str:
    """The beginning of the text that fits into this many columns; a wide character takes two."""
    used = 0
    for position, character in enumerate(text):
        used += 2 if east_asian_width(character) in "WF" else 1
        if used > columns:
            return text[:position]
    return text


def write_below(text: str) -> None:
    """Writes to the terminal while the screen holds what it shows."""
    sys.stderr.write(text)
    sys.stderr.flush()


def _write(stream: TextIO, piece: Piece) -> None:
    text = _for_terminal(piece) if stream.isatty() else piece.text
    stream.write(text + ("\n" if piece.kind is PieceKind.NOTE else ""))
    stream.flush()


def _for_terminal(piece: Piece) -> str:
    """The text in its color, without control characters."""
    text, color = CONTROL_CHARACTERS.sub("", piece.text), _color_code(piece.color)
    if piece.kind is PieceKind.TEXT or is_dumb_terminal():
        return text
    if piece.kind is PieceKind.NAME:
        return f"{BOLD}{color}{text}{RESET}" if _has_colors() else text
    return f"{color or DIM}{text}{RESET}"


def is_dumb_terminal() -> bool:
    """Whether the terminal takes text only, without sequences for styles and the cursor."""
    return os.environ.get("TERM", "dumb") in ("dumb", "unknown", "")


def _has_colors() -> bool:
    return not os.environ.get("NO_COLOR") and not is_dumb_terminal()


def _color_code(color: str) -> str:
    """The sequence for `#rrggbb`; where the terminal has 256 colors only, the nearest of its color cube."""
    if not HEX_COLOR.fullmatch(color) or not _has_colors():
        return ""
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    if os.environ.get("COLORTERM") in ("truecolor", "24bit"):
        return f"\x1b[38;2;{red};{green};{blue}m"
    cube = [round(value / 255 * 5) for value in (red, green, blue)]
    return f"\x1b[38;5;{16 + 36 * cube[0] + 6 * cube[1] + cube[2]}m"
