"""A program on a pseudo-terminal, for tests of what people see and type."""

import fcntl
import os
import pty
import select
import subprocess
import termios
import time

import psutil
from live_server import plain_environ

PATIENCE_SECONDS = 30.0


class Terminal:
    """A program on a pseudo-terminal; `shown` is everything it has written."""

    def __init__(self, command: list[str], **environ: str) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=plain_environ(**{"TERM": "dumb", **environ}),
            start_new_session=True,
            preexec_fn=lambda: _take_terminal(slave),
        )
        os.close(slave)
        self.shown = ""
        self._at = 0

    def say(self, text: str) -> None:
        os.write(self._master, text.encode())

    def wait_for_input(self) -> None:
        """Returns when the program waits for input: between its prompt and its read Python misses a
        signal."""
        process = psutil.Process(self.process.pid)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while process.status() != psutil.STATUS_SLEEPING:
            assert time.monotonic() < deadline, "it does not come to rest"
            time.sleep(0.01)

    def expect(self, text: str) -> None:
        """Returns when `text` was shown after what was expected before."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (position := self.shown.find(text, self._at)) < 0:
            if time.monotonic() > deadline or not self._read(deadline):
                raise AssertionError(f"{text!r} was not shown: {self.shown[self._at :]!r}")
        self._at = position + len(text)

    def end(self) -> int:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._read(deadline):
            pass
        os.close(self._master)
        return self.process.wait(PATIENCE_SECONDS)

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return False
        try:
            piece = os.read(self._master, 65536)
        except OSError:
            return False
        self.shown += piece.decode("utf-8", "replace").replace("\r\n", "\n")
        return bool(piece)


def _take_terminal(slave: int) -> None:
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
