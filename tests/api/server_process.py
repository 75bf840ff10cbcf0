"""A real `luxx` process with its own data directory: started, killed, started again. All tests that need a
server start this one; `chaos/cluster.py` starts several of them behind a round robin.
"""

import os
import re
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from types import TracebackType
from typing import Self

from forked_luxx import ForkedProcess
from migrated_databases import prepare

LISTENS = re.compile(r"Luxx listens on (http://\S+)")
START_SECONDS = 60.0
STOP_SECONDS = 20.0
SHOWN_LINES = 60
ADMIN_PASSWORD = "an-operators-password-1"
INHERITED = (
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
BINARIES = Path(sys.executable).parent


def luxx_command(*arguments: str) -> list[str]:
    """The command line of the installed `luxx`."""
    return [str(BINARIES / "luxx"), *arguments]


def environment(folder: Path, **settings: str) -> dict[str, str]:
    """The environment of a test's server: the path of programs and little else."""
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    path = os.pathsep.join([str(BINARIES), os.environ.get("PATH", os.defpath)])
    own = {"PATH": path, "HOME": str(folder), "LUXX_WORKSPACE__ROOT": str(folder / "workspaces")}
    return {**inherited, **own, **SETTINGS, **settings}


def model_settings(url: str) -> dict[str, str]:
    """The settings that make an OpenAI-compatible server, which has the model `scripted`, the one of all."""
    return {
        "LUXX_LLM__PROVIDER": "openai_compatible",
        "LUXX_LLM__API_URL": f"{url}/v1",
        "LUXX_LLM__MODEL": "scripted",
    }


class ServerProcess:
    """`with ServerProcess(folder) as server:` starts and ends it; meanwhile a test may kill and start it.

    `settings` are further environment variables, `inherited` descriptors that are left open in it. The port
    is a free one and new at each start. With `is_prepared` its database is a copy of a migrated one that has
    the administrator, so the server spends no second on migrations.
    """

    command: Sequence[str] = ("serve", "--port", "0")
    ready_line = LISTENS
    """The line that reports the address; the address becomes `url`."""
    start_seconds = START_SECONDS

    def __init__(
        self,
        folder: Path,
        *,
        data_dir: Path | None = None,
        inherited: Sequence[int] = (),
        is_prepared: bool = True,
        **settings: str,
    ) -> None:
        self.folder = folder
        self.data_dir = data_dir or folder / "data"
        self.environ = environment(folder, **settings)
        self.url = ""
        self.lines: list[str] = []
        """What it has printed so far, on both streams."""
        self._inherited = inherited
        self._is_prepared = is_prepared
        self._listens = threading.Event()
        self._printed = threading.Condition()
        self._process: ForkedProcess | Popen[str] | None = None
        self._reader: threading.Thread | None = None

    @property
    def output(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)

    @property
    def process(self) -> ForkedProcess | Popen[str]:
        assert self._process is not None
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_up(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start_process(self, arguments: Sequence[str]) -> ForkedProcess | Popen[str]:
        return ForkedProcess(arguments, cwd=self.folder, env=self.environ, pass_fds=self._inherited)

    def launch(self) -> None:
        """Starts the process and does not wait."""
        assert not self.is_up
        self._listens.clear()
        self.url = ""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._is_prepared and "LUXX_DATABASE__URL" not in self.environ:
            prepare(self.data_dir, self.environ["LUXX_ADMIN_PASSWORD"])
        self._process = self.start_process([*self.command, "--data-dir", str(self.data_dir)])
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()

    def start(self) -> None:
        """Returns when the process accepts connections."""
        self.launch()
        self.await_start()

    def await_start(self) -> None:
        """Returns when a launched process accepts connections; fails with its output if it does not."""
        # Its output ends a moment before it is known to have ended.
        if not self._listens.wait(self.start_seconds) or not (self.url and self.is_up):
            self.kill()
            raise AssertionError("the server did not start:\n" + "\n".join(self.lines[-SHOWN_LINES:]))

    def await_line(self, pattern: re.Pattern[str]) -> re.Match[str]:
        """The first match in the output; waits for it."""
        with self._printed:
            match = self._printed.wait_for(lambda: pattern.search(self.output), START_SECONDS)
        assert match, self.output
        return match

    def lines_with(self, word: str) -> list[str]:
        return [line for line in self.lines if word in line]

    def stop(self) -> int:
        """Asks the process to end, as an operator does, and returns its status."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """SIGKILL: no orderly end."""
        if self._process is not None:
            self._process.kill()
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
        if self.is_up:
            try:
                self.stop()
            except TimeoutExpired:
                self.kill()
                raise

    def _read(self, process: ForkedProcess | Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as output:
            for line in output:
                with self._printed:
                    self.lines.append(line.rstrip("\n"))
                    self._printed.notify_all()
                if match := self.ready_line.search(line):
                    self.url = match[1]
                    self._listens.set()
        self._listens.set()


class WorkerProcess(ServerProcess):
    """A `luxx worker`, which drives runs and serves no API; `health` is the address of its probes."""

    command = ("worker", "--health-port", "0")
    ready_line = re.compile(r"Luxx worker runs as process (\S+)")
    HEALTH = re.compile(r"health on (http://\S+)")

    @property
    def health(self) -> str:
        return self.await_line(self.HEALTH)[1]
