"""What `luxx chat` shows on a terminal that can replace lines: Markdown while it is written, cards of tools.

Complete blocks are printed once and scroll away. Only what still grows is painted again: at most as many
lines as the terminal shows. `screen.py` prints plain text for all other outputs.
"""

import asyncio
import re
import time
from itertools import takewhile
from typing import Any, ClassVar

import msgspec
from rich.box import ROUNDED
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.markdown import Heading, Markdown, MarkdownElement
from rich.panel import Panel
from rich.text import Text
from rich.theme import Theme

from luxx.app.cli.chat.markdown_blocks import MarkdownBlocks
from luxx.app.cli.chat.todos import item_line
from luxx.app.cli.screen import CONTROL_CHARACTERS, Piece, PieceKind, ToolCard, note
from luxx.wire.todos import TODO_TOOL, TodoList

STYLE = re.compile(r"\x1b\[[0-9;]*m")
PAINT_SECONDS = 0.05
TICK_SECONDS = 1.0
CARD_LINES = 8
"""The most lines of arguments, and of a result, in a card."""

THEME = Theme({"markdown.code": "cyan", "markdown.h2": "bold"})
CODE_THEME = "ansi_dark"
"""Colors of the terminal's own palette, without a background."""

RESERVED_LINES = 4
"""Lines of the terminal that growing text leaves to the line of status and to the prompt."""


class _WrittenTodos(msgspec.Struct, frozen=True):
    """The result of a call that wrote the to-do list."""

    data: TodoList


class LeftHeading(Heading):
    """A heading that begins at the left, like the text below it."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class AnswerMarkdown(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": LeftHeading,
    }


class RichScreen:
    """Shows pieces of an answer. Needs a running event loop while text grows."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, theme=THEME)
        self._blocks = MarkdownBlocks()
        self._is_first_block = True
        self._live: list[str] = []
        """The lines at the end of the output that are painted again."""
        self._held: list[Piece] | None = None
        self._calls: dict[str, ToolCard] = {}
        self._status = self._typed = ""
        self._since = 0.0
        self._is_thinking = False
        self._timer: asyncio.TimerHandle | None = None

    def show(self, piece: Piece) -> None:
        """Shows the piece; after `hold`, keeps it for `release`."""
        if self._held is not None:
            self._held.append(piece)
            return
        text = CONTROL_CHARACTERS.sub("", piece.text)
        if self._is_thinking and piece.kind is not PieceKind.THINKING:
            self._fold_thinking()
        match piece.kind:
            case PieceKind.TEXT:
                self._set_status("")
                self._add_text(text)
            case PieceKind.THINKING:
                if not self._is_thinking:
                    self._is_thinking = True
                    self._set_status("thinking")
            case PieceKind.TOOL_CALL if piece.card is not None:
                self._end_text()
                self._calls[piece.card.call_id] = piece.card
                self._set_status("running")
            case PieceKind.TOOL_RESULT if piece.card is not None:
                self._end_text()
                self._calls.pop(piece.card.call_id, None)
                self._set_status("running" if self._calls else "waiting for the model")
                self._print(_card_panel(piece.card))
            case _:
                self._end_text()
                self._print(Text(text, style=f"bold {piece.color}" if piece.color else "dim"))

    def note(self, text: str) -> None:
        self.show(note(text))

    def user_message(self, text: str) -> None:
        """Shows what a person said before."""
        lines = CONTROL_CHARACTERS.sub("", text).split("\n")
        self._print(Text("\n".join(["> " + lines[0], *("  " + line for line in lines[1:])]), style="bold"))

    def wait_for_answer(self) -> None:
        """Shows that a message was sent."""
        self._set_status("waiting for the model")
        self._paint()

    def show_typed(self, text: str) -> None:
        """Shows what is being typed, below the answer."""
        if text != self._typed:
            self._typed = text
            self._paint()

    def show_progress(self, text: str) -> None:
        """The answer of a chat has no progress to show."""

    def end_line(self) -> None:
        """Ends the answer: all that grew is complete."""
        if self._is_thinking:
            self._fold_thinking()
        self._end_text()
        self._calls.clear()
        self._set_status("")
        self._paint()

    def ask(self, lines: list[Piece]) -> None:
        """Shows a question, and keeps what comes from now on, so that it does not disturb its menu."""
        for line in lines:
            self.show(line)
        self._held = []

    def release(self) -> None:
        """Shows what was kept."""
        held, self._held = self._held or [], None
        for piece in held:
            self.show(piece)

    def _add_text(self, text: str) -> None:
        for finished in self._blocks.feed(text):
            self._print_block(finished)
        self._schedule(PAINT_SECONDS)

    def _end_text(self) -> None:
        for block in self._blocks.end():
            self._print_block(block)
        self._is_first_block = True

    def _fold_thinking(self) -> None:
        self._is_thinking = False
        seconds = time.monotonic() - self._since
        self._print(Text(f"▸ thought for {seconds:.1f} s", style="dim"))

    def _set_status(self, status: str) -> None:
        if status != self._status:
            self._since = time.monotonic()
        self._status = status
        if status:
            self._schedule(PAINT_SECONDS)

    # Output

    def _print_block(self, source: str, *, is_followed: bool = False) -> None:
        """Prints Markdown for good, one empty line after the block before it."""
        lines = self._render(AnswerMarkdown(source, code_theme=CODE_THEME, hyperlinks=False))
        gap = [] if self._is_first_block else [""]
        self._is_first_block = is_followed
        self._replace([*gap, *lines], [])

    def _print(self, renderable: RenderableType) -> None:
        self._replace(self._render(renderable), [])

    def _render(self, renderable: RenderableType) -> list[str]:
        """The lines of it, without empty ones at its beginning and end."""
        with self._console.capture() as captured:
            self._console.print(renderable)
        lines = [line.rstrip() for line in captured.get().split("\n")]
        filled = [at for at, line in enumerate(lines) if STYLE.sub("", line).strip()]
        return lines[filled[0] : filled[-1] + 1] if filled else []

    def _schedule(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._paint)

    def _paint(self) -> None:
        """Paints what still grows."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lines = self._growing_lines()
        if not self._is_first_block and lines:
            lines = ["", *lines]
        self._replace([], [*lines, *self._status_lines(), *self._typed_lines()])
        if self._status:
            self._schedule(TICK_SECONDS)

    def _growing_lines(self) -> list[str]:
        """The lines of the block that grows. Prints the beginning of one that is too tall for good."""
        limit = max(3, self._console.size.height - RESERVED_LINES)
        while True:
            source = self._blocks.tail
            if not source.strip():
                return []
            lines = self._render(AnswerMarkdown(source, code_theme=CODE_THEME, hyperlinks=False))
            if len(lines) <= limit:
                return lines
            head = self._blocks.cut()
            if not head:
                return lines[-limit:]
            self._print_block(head, is_followed=True)

    def _status_lines(self) -> list[str]:
        if not self._status:
            return []
        seconds = int(time.monotonic() - self._since)
        after = f"… {seconds} s" if seconds else "…"
        names = ", ".join(card.name for card in self._calls.values())
        text = CONTROL_CHARACTERS.sub("", f"{self._status} {names}".rstrip()).replace("\n", " ")
        return self._render(Text(text + after, style="dim", no_wrap=True, overflow="ellipsis"))[:1]

    def _typed_lines(self) -> list[str]:
        """The end of what is typed, in one line."""
        if not self._typed or self._held is not None:
            return []
        shown = self._typed[-max(10, self._console.size.width // 2 - 4) :]
        return self._render(Text(f"> {shown}", style="bold", no_wrap=True))[:1]

    def _replace(self, printed: list[str], live: list[str]) -> None:
        """Removes the lines that grow, prints lines for good, and paints new lines that grow."""
        if not printed and live == self._live:
            return
        # Lines that stay as they are need not be written again.
        same = 0
        if not printed:
            pairs = zip(self._live[:-1], live[:-1], strict=False)
            same = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
        output = ""
        if self._live:
            up = len(self._live) - 1 - same
            output = "\r" + (f"\x1b[{up}A" if up else "") + "\x1b[J"
        output += "".join(f"{line}\n" for line in printed) + "\n".join(live[same:])
        self._live = live
        self._console.file.write(output)
        self._console.file.flush()


def _card_panel(card: ToolCard) -> Panel:
    """A card: the tool's name, its arguments, its result and its time; of a to-do list the items alone."""
    mark, style = ("✓", "green") if card.is_successful else ("✗", "red")
    duration = None if card.duration_ms is None else _duration_text(card.duration_ms)
    if todos := _todo_lines(card):
        lines = [Text(line) for line in todos]
    else:
        lines = [Text(line, style="dim") for line in _shortened(_argument_lines(card.arguments))]
        result = _shortened(_result_text(card.result).split("\n"))
        lines.append(Text.assemble((f"{mark} ", style), "\n  ".join(result)))
    return Panel(
        Group(*lines),
        title=Text(CONTROL_CHARACTERS.sub("", card.name)),
        title_align="left",
        subtitle=duration,
        subtitle_align="right",
        box=ROUNDED,
        border_style=style,
    )


def _duration_text(milliseconds: int) -> str:
    return f"{milliseconds} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"


def _argument_lines(arguments: str) -> list[str]:
    """One line for each argument, or more if it is a text of several lines."""
    try:
        values: Any = msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        values = None
    if not isinstance(values, dict):
        return _clean(arguments).split("\n") if arguments else []
    lines: list[str] = []
    for name, value in msgspec.convert(values, dict[str, Any]).items():
        text = value.rstrip("\n") if isinstance(value, str) else _json(value)
        first, *rest = _clean(text).split("\n")
        lines += [f"{_clean(name)}: {first}", *(f"  {line}" for line in rest)]
    return lines


def _result_text(result: str) -> str:
    """The data of a result, or its error."""
    try:
        values: Any = msgspec.json.decode(result)
    except msgspec.DecodeError:
        return _clean(result)
    if not isinstance(values, dict):
        return _clean(result)
    fields = msgspec.convert(values, dict[str, Any])
    data: Any = fields.get("error") or fields.get("data")
    return _clean(data if isinstance(data, str) else _json(data)).strip("\n")


def _todo_lines(card: ToolCard) -> list[str]:
    """The items of the to-do list that a call has written; empty for other calls."""
    if card.name != TODO_TOOL or not card.is_successful:
        return []
    try:
        items = msgspec.json.decode(card.result, type=_WrittenTodos).data.todos
    except msgspec.DecodeError:
        return []
    return _shortened([_clean(item_line(item)) for item in items])


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _clean(text: str) -> str:
    return CONTROL_CHARACTERS.sub("", text)


def _shortened(lines: list[str]) -> list[str]:
    rest = len(lines) - CARD_LINES
    return lines if rest <= 1 else [*lines[:CARD_LINES], f"… {rest} more lines"]
