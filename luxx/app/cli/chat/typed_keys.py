"""What is typed in `luxx chat` while an answer is shown: lines that steer it or wait for its end.

The keys are shown below the answer until Enter sends them; what was not sent is the next message's beginning.
"""

import asyncio
import codecs
import os
import re
import sys
import termios
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from luxx.app.cli.menu import FrameQuestion, Menu

READ_BYTES = 4096
ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|O.|[^\[O])?", re.DOTALL)
"""Arrow keys and the like."""

BEGUN_ESCAPE = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*|O)?\Z")
"""The beginning of one, whose rest may come with the next read."""

ERASE, CLEAR, END = ("\x7f", "\b"), "\x15", ("\r", "\n")

BEGIN_PASTE, END_PASTE = "\x1b[200~", "\x1b[201~"
PASTE_MARK = re.compile(r"(\x1b\[20[01]~)")
MARK_PASTES, LEAVE_PASTES = "\x1b[?2004h", "\x1b[?2004l"
"""What has the terminal mark what is pasted: lines of it are one text, which Enter sends."""


class _MenuBetweenKeys:
    def __init__(self, keys: "TypedKeys", menu: Menu) -> None:
        self._keys = keys
        self._menu = menu

    async def answer(self, question: FrameQuestion) -> str | list[str]:
        self._keys.end()
        try:
            return await self._menu.answer(question)
        finally:
            self._keys.begin()


class TypedKeys:
    """Reads the keys of the terminal while it is entered. `show` gets what is typed, `send` each line.

    `text` is what was typed and not sent.
    """

    def __init__(self, show: Callable[[str], None], send: Callable[[str], None]) -> None:
        self.text = ""
        self._show = show
        self._send = send
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._begun = ""
        self._is_pasted = False
        self._before: list[Any] | None = None

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def begin(self) -> None:
        """Reads the keys one by one."""
        descriptor = sys.stdin.fileno()
        self._before = termios.tcgetattr(descriptor)
        changed = termios.tcgetattr(descriptor)
        changed[3] &= ~(termios.ICANON | termios.ECHO)
        termios.tcsetattr(descriptor, termios.TCSANOW, changed)
        print(MARK_PASTES, end="", flush=True)
        asyncio.get_running_loop().add_reader(descriptor, self._read)

    def end(self) -> None:
        """Leaves the keys to others."""
        if self._before is not None:
            before, self._before = self._before, None
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, before)
            print(LEAVE_PASTES, end="", flush=True)
            self._is_pasted = False
            self._show("")

    def between(self, menu: Menu) -> Menu:
        """The menu, which gets the keys while it asks."""
        return _MenuBetweenKeys(self, menu)

    def _read(self) -> None:
        try:
            data = os.read(sys.stdin.fileno(), READ_BYTES)
        except OSError:
            data = b""
        if not data:  # The terminal is gone.
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        keys = self._begun + self._decode(data)
        if self._begun == "\x1b" and keys[1:2] not in ("[", "O"):
            keys = keys[1:]  # The key Escape, and then another one.
        begun = BEGUN_ESCAPE.search(keys)
        self._begun = "" if begun is None else begun[0]
        for part in PASTE_MARK.split(keys.removesuffix(self._begun)):
            if part in (BEGIN_PASTE, END_PASTE):
                self._is_pasted = part == BEGIN_PASTE
                continue
            for character in ESCAPES.sub("", part):
                self._take(character)
        self._show(self.text.replace("\n", " "))

    def _take(self, character: str) -> None:
        if self._is_pasted:
            is_text = character.isprintable() or character in (*END, "\t")
            self.text += "\n" if character == "\r" else character if is_text else ""
        elif character in END:
            line, self.text = self.text.strip(), ""
            if line:
                self._send(line)
        elif character in ERASE:
            self.text = self.text[:-1]
        elif character == CLEAR:
            self.text = ""
        elif character.isprintable():
            self.text += character
