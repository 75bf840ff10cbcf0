"""A real `luxx serve` process with its own data directory; tests can read its output and wait for lines of
it.
"""

import os
import re
import signal
import sys
import threading
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from types import TracebackType
from typing import Self

from forked_luxx import ForkedProcess
from migrated_databases import prepare

LISTENS = re.compile(r"Luxx listens on (http://\S+)")
START_SECONDS = 60.0
STOP_SECONDS = 20.0
ADMIN_PASSWORD = "an-operators-password-1"
INHERITED = (
    "PATH",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "SYSTEMROOT",
    "LD_LIBRARY_PATH",
    "COVERAGE_PROCESS_START",
    "PYTHONPATH",
)
SETTINGS = {
    "LUXX_LIMITS__REQUESTS_PER_MINUTE": "0",
    "LUXX_LIMITS__LOGINS_PER_MINUTE": "0",
    "LUXX_LOCAL__ENABLED": "false",
    "LUXX_AUTH__PASSWORD_COST": "10",
    "LUXX_ADMIN_PASSWORD": ADMIN_PASSWORD,
}


def luxx_command(*arguments: str) -> list[str]:
    """The command line of the installed `luxx`."""
    return [str(Path(sys.executable).with_name("luxx")), *arguments]


def environment(folder: Path, **settings: str) -> dict[str, str]:
    """The environment of a test's server: the path of programs and little else."""
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    own = {"HOME": str(folder), "LUXX_WORKSPACE__ROOT": str(folder / "workspaces")}
    return {**inherited, **own, **SETTINGS, **settings}


class ServerProcess:
    """`with ServerProcess(folder) as server:`; `settings` are further environment variables."""

    def __init__(self, folder: Path, *, data_dir: Path | None = None, **settings: str) -> None:
        self.folder = folder
        self.data_dir = data_dir or folder / "data"
        self.url = ""
        self._settings = settings
        self._lines: list[str] = []
        self._listens = threading.Event()
        self._printed = threading.Condition()
        self._process: ForkedProcess | Popen[str] | None = None
        self._reader: threading.Thread | None = None

    @property
    def output(self) -> str:
        """What the process has printed so far, on both streams."""
        return "".join(self._lines)

    @property
    def process(self) -> ForkedProcess | Popen[str]:
        assert self._process is not None
        return self._process

    def start_process(self, arguments: list[str], env: dict[str, str]) -> ForkedProcess | Popen[str]:
        return ForkedProcess(arguments, cwd=self.folder, env=env)

    def launch(self) -> None:
        """Starts the process and does not wait."""
        if "LUXX_DATABASE__URL" not in self._settings:
            prepare(self.data_dir)
        arguments = ["serve", "--port", "0", "--data-dir", str(self.data_dir)]
        self._process = self.start_process(arguments, environment(self.folder, **self._settings))
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def start(self) -> None:
        """Returns when the process accepts connections."""
        self.launch()
        self.await_start()

    def await_start(self) -> None:
        """Returns when a launched process accepts connections."""
        self._listens.wait(START_SECONDS)
        assert self.url, f"the server did not start:\n{self.output}"

    def await_line(self, pattern: re.Pattern[str]) -> re.Match[str]:
        """The first match in the output; waits for it."""
        with self._printed:
            match = self._printed.wait_for(lambda: pattern.search(self.output), START_SECONDS)
        assert match, self.output
        return match

    def stop(self) -> int:
        """Asks the process to end and returns its status."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        self.process.kill()
        self.wait()

    def wait(self, seconds: float = STOP_SECONDS) -> int:
        """Waits until the process has ended and its output is read. Returns its status."""
        status = self.process.wait(seconds)
        assert self._reader is not None
        self._reader.join(seconds)
        return status

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            try:
                self.stop()
            except TimeoutExpired:
                self.kill()
                raise

    def _read(self) -> None:
        with self.process.stdout as output:
            for line in output:
                with self._printed:
                    self._lines.append(line)
                    self._printed.notify_all()
                match = LISTENS.search(line)
                if match:
                    self.url = match[1]
                    self._listens.set()
        self._listens.set()
