"""A real `luxx serve` process on a data directory of its own: started, killed, started again."""

import os
import re
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from forked_luxx import ForkedProcess
from migrated_databases import prepare

START_SECONDS = 40.0
STOP_SECONDS = 20.0
LISTENS = re.compile(r"Luxx listens on (http://\S+)")
SAMPLES = Path(__file__).parent / "samples"

ENVIRONMENT = {
    "LUXX_LOCAL__ENABLED": "false",
    "LUXX_AUTH__PASSWORD_COST": "10",
    "LUXX_LIMITS__REQUESTS_PER_MINUTE": "0",
    "LUXX_LIMITS__LOGINS_PER_MINUTE": "0",
    "LUXX_LIMITS__CONCURRENT_RUNS_PER_USER": "0",
    "LUXX_TOOLS__MODULES": "controlled_tools",
    "PYTHONPATH": os.pathsep.join(filter(None, [str(SAMPLES), os.environ.get("PYTHONPATH")])),
}
"""The differences from the defaults: no limits that many clients would reach, and the tools of `samples/`."""


class LuxxServer:
    """`with` starts it and ends it. The port is a free one and new at each start.

    `inherited` are descriptors that are left open in it.
    """

    command: Sequence[str] = ("serve", "--port", "0")
    start_seconds = START_SECONDS
    READY_LINE = LISTENS
    """The line that reports the address; the address becomes `url`."""

    def __init__(
        self, data_dir: Path, environment: Mapping[str, str] | None = None, inherited: Sequence[int] = ()
    ) -> None:
        self.data_dir = data_dir
        self._inherited = inherited
        self.url = ""
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("LUXX_")},
            **ENVIRONMENT,
            "LUXX_WORKSPACE__ROOT": str(data_dir / "workspaces"),
            **(environment or {}),
        }
        self._process: ForkedProcess | None = None
        self._reader: threading.Thread | None = None
        self._listens = threading.Event()
        self.lines: list[str] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def is_up(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Returns when it accepts connections; fails with its output if it does not."""
        assert not self.is_up
        self.kill()  # Closes the output of a process that ended by itself.
        self._listens.clear()
        self.data_dir.mkdir(parents=True, exist_ok=True)
        if "LUXX_DATABASE__URL" not in self._environment:
            prepare(self.data_dir)
        self._process = ForkedProcess(
            [*self.command, "--data-dir", str(self.data_dir)],
            cwd=self.data_dir,
            env=self._environment,
            pass_fds=self._inherited,
        )
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()
        if not self._listens.wait(self.start_seconds) or not self.is_up:
            self.kill()
            raise AssertionError("the server did not start:\n" + "\n".join(self.lines[-30:]))

    def kill(self) -> None:
        """SIGKILL: no orderly end."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, as an operator stops it."""
        self._end(signal.SIGTERM)

    def lines_with(self, word: str) -> list[str]:
        return [line for line in self.lines if word in line]

    def _end(self, number: int) -> None:
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(number)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_SECONDS)
            raise AssertionError(f"the server did not end within {STOP_SECONDS} s") from None
        finally:
            if self._reader is not None:
                self._reader.join(STOP_SECONDS)
            process.stdout.close()
            self._process = None

    def _read(self, process: ForkedProcess) -> None:
        for line in process.stdout:
            self.lines.append(line.rstrip("\n"))
            if match := self.READY_LINE.search(line):
                self.url = match.group(1)
                self._listens.set()
        self._listens.set()
