"""Real `luxx serve` and `luxx worker` processes on one PostgreSQL: started, killed, stopped, frozen."""

import re
import signal
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from api.server_process import environment
from forked_luxx import ForkedProcess

READY = re.compile(r"Luxx listens on (http://\S+)|Luxx worker runs as process (\S+)")
HEALTH = re.compile(r"health on (http://\S+)")
START_SECONDS = 60.0
STOP_SECONDS = 20.0
LEASE_SECONDS = 2.0
SECRET = "a secret that all processes of one database share"


class LuxxProcess:
    """`with LuxxProcess(folder, "serve", settings) as server:`; `arguments` follow the command."""

    def __init__(self, folder: Path, command: str, settings: dict[str, str], *arguments: str) -> None:
        self.url = self.health = ""
        self.lines: list[str] = []
        self._ready = threading.Event()
        folder.mkdir(parents=True, exist_ok=True)
        self.process = ForkedProcess(
            [command, "--data-dir", str(folder / "data"), *arguments],
            cwd=folder,
            env=environment(folder.parent, **settings),
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        self._ready.wait(START_SECONDS)
        assert any(READY.search(line) for line in self.lines), "it did not start:\n" + "".join(self.lines)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.ended()

    def kill(self) -> None:
        self.process.kill()
        self.ended()

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def ended(self, seconds: float = STOP_SECONDS) -> int:
        """Waits until the process has ended and its output is read. Returns its status."""
        status = self.process.wait(seconds)
        self._reader.join(seconds)
        return status

    def has_logged(self, word: str) -> bool:
        return any(word in line for line in self.lines)

    def _read(self) -> None:
        with self.process.stdout as output:
            for line in output:
                self.lines.append(line)
                if match := HEALTH.search(line):
                    self.health = match[1]
                if match := READY.search(line):
                    self.url = match[1] or ""
                    self._ready.set()
        self._ready.set()


def settings_for(database_url: str, model_url: str, **more: str) -> dict[str, str]:
    """The environment of all processes of one database."""
    return {
        "LUXX_DATABASE__URL": database_url,
        "LUXX_APP__SECRET_KEY": SECRET,
        "LUXX_RUNS__LEASE_SECONDS": str(LEASE_SECONDS),
        "LUXX_PROVIDERS__ALLOW_PRIVATE": model_url.removeprefix("http://"),
        **more,
    }
