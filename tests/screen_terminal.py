"""`luxx` on a terminal whose screen tests can read as a person sees it, emulated by pyte."""

import fcntl
import os
import pty
import select
import struct
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pyte
from forked_luxx import ForkedProcess
from process_environment import plain_environ

PATIENCE_SECONDS = 40.0
KEPT_LINES = 2000


class AnsweringScreen(pyte.HistoryScreen):
    """Answers the questions of programs, as for the place of the cursor."""

    def __init__(self, columns: int, lines: int, answer: Callable[[str], None]) -> None:
        super().__init__(columns, lines, history=KEPT_LINES, ratio=0.5)
        self.answer = answer

    def write_process_input(self, data: str) -> None:
        self.answer(data)


class ScreenTerminal:
    """`shown` is everything that was written, with its control sequences."""

    _read_to = 0
    """Where in `shown` that ends which `expect_next` has found."""

    def __init__(
        self, *arguments: str, url: str, cwd: Path, columns: int = 80, lines: int = 24, **environ: str
    ) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        env = plain_environ() | {"TERM": "xterm-256color", "LUXX_URL": url, **environ}
        # Programs believe these more than the terminal.
        env = {name: value for name, value in env.items() if name not in ("COLUMNS", "LINES")}
        with os.fdopen(slave, "r+b", buffering=0) as terminal:
            self.process = ForkedProcess(arguments, cwd, env, terminal=terminal)
        self.process.stdout.close()  # All it writes is on the terminal.
        self._is_closed = False
        self.screen = AnsweringScreen(columns, lines, lambda data: self.type(data))
        self._stream = pyte.ByteStream(self.screen)
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def paste(self, text: str) -> None:
        """As terminals do for programs that have asked for bracketed paste."""
        assert "\x1b[?2004h" in self.shown
        self.type(f"\x1b[200~{text}\x1b[201~")

    @property
    def text(self) -> str:
        """The lines of the screen and those that scrolled away."""
        lines = [*(self._line(row) for row in self.screen.history.top), *self.screen.display]
        return "\n".join(line.rstrip() for line in lines).rstrip("\n")

    def _line(self, row: dict[int, pyte.screens.Char]) -> str:
        return "".join(row[column].data for column in range(self.screen.columns))

    def expect(self, text: str, count: int = 1) -> None:
        """Returns when the text is there, so many times."""
        self.wait_for(lambda: self.text.count(text) >= count, f"{count} × {text!r}")

    def expect_next(self, text: str) -> None:
        """Returns when the text was written after what was expected before."""
        self.wait_for(lambda: text in self.shown[self._read_to :], repr(text))
        self._read_to = self.shown.index(text, self._read_to) + len(text)

    def expect_prompt(self) -> None:
        """Returns when a message can be typed in an empty line."""
        self.wait_for(lambda: self.text.splitlines()[-1:] == [">"], "a prompt")

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            if time.monotonic() > deadline or not self._read(deadline):
                raise AssertionError(f"{what} was not shown:\n{self.text}\n{self.shown[-2000:]!r}")

    def end(self) -> int:
        """The exit code, once the program has ended."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._read(deadline):
            pass
        self._is_closed = True
        os.close(self._master)
        return self.process.wait(PATIENCE_SECONDS)

    def kill(self) -> None:
        """Ends it if it still runs."""
        if not self._is_closed:
            self.process.kill()
            self.end()

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:
            return False
        self._stream.feed(data)
        self.shown += data.decode("utf-8", "replace")
        return bool(data)
