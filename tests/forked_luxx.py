"""Starts `luxx` commands as forks of a process that has imported Luxx already: one for each test process.

Two thirds of the CPU time of a start are imports. `api/test_starting_and_stopping.py`, `test_entry.py` and
`test_documentation.py` start the installed command itself.
"""

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import IO

from fork_server import NUMBER

FORK_SECONDS = 60.0
_lock = threading.Lock()


class ForkedProcess:
    """One command, with what tests use of `subprocess.Popen`.

    `stdout` is text, and stderr is in it unless it goes elsewhere. With `terminal` this is all its streams.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        cwd: Path,
        env: Mapping[str, str],
        pass_fds: Sequence[int] = (),
        stderr: IO[bytes] | None = None,
        terminal: IO[bytes] | None = None,
    ) -> None:
        reading, writing = os.pipe()
        self.stdout = os.fdopen(reading, encoding="utf-8")
        self.returncode: int | None = None
        self._lock = threading.Lock()
        with open(os.devnull, "rb") as nothing, os.fdopen(writing, "wb") as output:
            streams = (terminal,) * 3 if terminal else (nothing, output, stderr or output)
            self._status = _fork(arguments, cwd, env, streams, pass_fds, has_terminal=terminal is not None)
        pid = _read_number(self._status, FORK_SECONDS)
        assert pid is not None, "the process that forks does not answer"
        self.pid = pid

    def poll(self) -> int | None:
        """Its exit status, negative where a signal ended it; None while it runs."""
        with self._lock:
            if self.returncode is None:
                self._read_status(0)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Like `poll`, once it has ended; raises TimeoutExpired."""
        with self._lock:
            if self.returncode is None:
                self._read_status(timeout)
            if self.returncode is None:
                raise subprocess.TimeoutExpired("luxx", timeout or 0)
            return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # It has ended a moment ago.
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _read_status(self, timeout: float | None) -> None:
        self.returncode = _read_number(self._status, timeout)
        if self.returncode is not None:
            os.close(self._status)


def run_luxx(
    *arguments: str, cwd: Path, env: Mapping[str, str], input: str = "", timeout: float = FORK_SECONDS
) -> "subprocess.CompletedProcess[str]":
    """`subprocess.run` for a command of `luxx`, its output captured as text."""
    with ExitStack() as stack:
        stdin, *outputs = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        stdin.write(input.encode())
        stdin.seek(0)
        status = _fork(arguments, cwd, env, (stdin, *outputs))
        stack.callback(os.close, status)
        pid, code = _read_number(status, FORK_SECONDS), _read_number(status, timeout)
        if pid is None or code is None:
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(["luxx", *arguments], timeout)
        for output in outputs:
            output.seek(0)
        texts = [output.read().decode() for output in outputs]
    return subprocess.CompletedProcess(["luxx", *arguments], code, *texts)


def _fork(
    arguments: Sequence[str],
    cwd: Path,
    env: Mapping[str, str],
    streams: Sequence[IO[bytes]],
    pass_fds: Sequence[int] = (),
    *,
    has_terminal: bool = False,
) -> int:
    """Starts a command; the descriptor at which its pid and later its exit status can be read."""
    request = {
        "arguments": [str(argument) for argument in arguments],
        "cwd": str(cwd),
        "environment": dict(env),
        "inherited": list(pass_fds),
        "has_terminal": has_terminal,
    }
    reading, writing = os.pipe()
    descriptors = [writing, *(stream.fileno() for stream in streams), *pass_fds]
    try:
        socket.send_fds(_fork_server(), [json.dumps(request).encode()], descriptors)
    finally:
        os.close(writing)
    return reading


def _fork_server() -> socket.socket:
    with _lock:
        return _start_fork_server()


@cache
def _start_fork_server() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", Path(__file__).with_name("fork_server.py")], stdin=theirs
        )

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _read_number(descriptor: int, timeout: float | None) -> int | None:
    """The next number, and None if there is none yet."""
    if not select.select([descriptor], [], [], timeout)[0]:
        return None
    return NUMBER.unpack(os.read(descriptor, NUMBER.size))[0]
