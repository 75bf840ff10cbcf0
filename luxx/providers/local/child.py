"""A model's server in a child process: started on demand, restarted after a crash, ended with this process.

`server.py` is the child; `model.py` and `embedder.py` say which model it serves. A ChildServer belongs to one
event loop, preferably the main thread's: on Linux the child is killed when the thread that started it ends.
"""

import asyncio
import os
import re
import secrets
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, assert_never

import httpx
import msgspec
import structlog

from luxx.errors import Unavailable
from luxx.infra.children import start_child

SERVER_SCRIPT = Path(__file__).with_name("server.py")

LOAD_SECONDS = 300.0  # Time to load the model file, also from a slow disk.
HEALTH_SECONDS = 60.0  # Time until `/health` returns 200 after that.
HEALTH_PAUSE_SECONDS = 0.05
MAX_RESTARTS = 5
FIRST_DELAY_SECONDS = 0.5  # The delay before the first restart; it doubles with each.
MAX_DELAY_SECONDS = 8.0
STABLE_SECONDS = 60.0
"""After a child ran this long, the restart count is reset."""
RETRY_SECONDS = 10.0
"""For this long after a failed start, requests get the same error and do not start it again."""

_PASSED_ENV_VARS = ("PATH", "HOME", "LANG", "TMPDIR", "TEMP", "SYSTEMROOT", "PYTHONPATH")
_LIBRARY_PATHS = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
_LOG_ERROR = re.compile(r"^[0-9.]+ E +(.*)$", re.MULTILINE)

log = structlog.stdlib.get_logger(__name__)


class LocalState(StrEnum):
    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"


class LocalAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The current address of a child; port and key change at every start."""

    base_url: str
    api_key: str

    def __repr__(self) -> str:
        return f"LocalAddress({self.base_url})"


class _ServerExited(Exception):
    """The child did not start, or (`was_ready`) it exited later."""

    def __init__(self, reason: str, *, was_ready: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.was_ready = was_ready


class _StartupReport(msgspec.Struct):
    """The line that the child writes to stdout."""

    address: str = ""
    error: str = ""


class ChildServer:
    """Starts the child, supervises it and ends it. `reason`: why it is not running, after a failure.

    `internal_keys` has the key by the `host:port` at which requests need it, while the child listens. Without
    a request for `idle_seconds`, the child ends until the next one.
    """

    subject: str
    """What sentences call the model."""

    log_file: str
    note: str | None = None
    """What the log says when it is ready."""

    def __init__(
        self,
        data_dir: Path,
        threads: int,
        internal_keys: dict[str, str] | None = None,
        *,
        idle_seconds: float | None = None,
    ) -> None:
        self._internal_keys = {} if internal_keys is None else internal_keys
        self._data_dir = data_dir.absolute()
        self._threads = max(1, threads)
        self._idle_seconds = idle_seconds
        self.state = LocalState.STOPPED
        self.reason = ""
        self._failed_at = self._used_at = 0.0
        self._address: LocalAddress | None = None
        self.pid: int | None = None  # Of the child; None without one.
        self._start_finished = asyncio.Event()
        self._supervisor: asyncio.Task[None] | None = None
        self._is_closed = False

    def unavailable_reason(self) -> str | None:
        """Why it cannot be started, as a sentence; None if it can."""
        raise NotImplementedError

    def model_file(self) -> Path | None:
        """The file with the model; None without one."""
        raise NotImplementedError

    def name_of(self, path: Path) -> str:
        """The name of the model in a file."""
        raise NotImplementedError

    def settings(self) -> dict[str, Any]:
        """What `server.py` is given besides the file, the key and the threads."""
        raise NotImplementedError

    @property
    def base_url(self) -> str | None:
        """None while it is not listening."""
        return self._address.base_url if self._address else None

    @property
    def log_path(self) -> Path:
        return self._data_dir / "logs" / self.log_file

    def start(self) -> None:
        """Starts the child in the background. Does nothing if it is running or starting, or after `stop`."""
        if self._is_closed or (self._supervisor is not None and not self._supervisor.done()):
            return
        self._start_finished.clear()
        self.state, self.reason = LocalState.STARTING, ""
        self._supervisor = asyncio.create_task(self._supervise(), name=self.log_file)

    async def stop(self) -> None:
        """Ends the child for good; `start` does nothing afterwards."""
        self._is_closed = True
        if self._supervisor is not None:
            self._supervisor.cancel()
            with suppress(asyncio.CancelledError):
                await self._supervisor
        self.state = LocalState.STOPPED
        self._start_finished.set()

    async def ensure_ready(self, timeout: float) -> LocalAddress:
        """The address, once the child is ready. Raises Unavailable with the reason."""
        self._used_at = time.monotonic()
        failed_recently = time.monotonic() - self._failed_at < RETRY_SECONDS
        if self.state is LocalState.STOPPED or (self.state is LocalState.FAILED and not failed_recently):
            self.start()
        try:
            async with asyncio.timeout(timeout):
                await self._start_finished.wait()
        except TimeoutError as error:
            raise Unavailable(f"{self.subject} was not ready in {timeout:.0f} s; try again") from error
        match self.state:
            case LocalState.READY if self._address is not None:
                return self._address
            case LocalState.STARTING | LocalState.READY:
                raise Unavailable(f"{self.subject} is being restarted; try again")
            case LocalState.STOPPED:
                raise Unavailable(f"{self.subject} is being shut down")
            case LocalState.FAILED:
                raise Unavailable(self.reason, kind="local_model_failed")
            case _:
                assert_never(self.state)

    async def _supervise(self) -> None:
        restarts = 0
        while True:
            started = time.monotonic()
            try:
                await self._run_child()
            except _ServerExited as exited:
                if time.monotonic() - started > STABLE_SECONDS:
                    restarts = 0
                if not exited.was_ready or restarts >= MAX_RESTARTS:
                    self._fail(exited.reason)
                    return
                delay = min(MAX_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2**restarts)
                restarts += 1
                self.state, self.reason = LocalState.STARTING, exited.reason
                log.warning("local_model_restarting", reason=exited.reason, delay_seconds=delay)
                await asyncio.sleep(delay)
            else:
                self.state = LocalState.STARTING
                if self._idle_left():  # A request came while the child ended.
                    continue
                self.state = LocalState.STOPPED
                return

    def _fail(self, reason: str) -> None:
        self.state, self.reason, self._failed_at = LocalState.FAILED, reason, time.monotonic()
        self._start_finished.set()
        log.warning("local_model_failed", reason=reason)

    def _idle_left(self) -> float | None:
        """The seconds for which the child is kept without another request, at least 0; None: always."""
        if self._idle_seconds is None:
            return None
        return max(0.0, self._used_at + self._idle_seconds - time.monotonic())

    async def _run_child(self) -> None:
        """Runs the child until it is idle. Raises _ServerExited if it exits before."""
        unavailable_reason = self.unavailable_reason()
        path = self.model_file()
        if unavailable_reason or path is None:
            raise _ServerExited(unavailable_reason or f"{self.subject}'s file no longer exists")
        api_key = secrets.token_urlsafe(24)
        try:
            child = await self._spawn(path, api_key)
        except OSError as error:
            raise _ServerExited(f"{self.subject}'s process cannot be started: {error}") from error
        self.pid, host_port = child.pid, ""
        try:
            url = await self._wait_until_listening(child, path)
            host_port = httpx.URL(url).netloc.decode()
            self._internal_keys[host_port] = api_key
            self._address = LocalAddress(base_url=f"{url}/v1", api_key=api_key)
            self.state, self.reason = LocalState.READY, ""
            self._used_at = time.monotonic()
            self._start_finished.set()
            log.info(
                "local_model_ready",
                model=self.name_of(path),
                base_url=self._address.base_url,
                **({"note": self.note} if self.note else {}),
            )
            await self._wait_until_idle(child)
        finally:
            self._start_finished.clear()
            self._address, self.pid = None, None
            self._internal_keys.pop(host_port, None)
            if child.returncode is None:
                child.kill()
            await child.wait()

    async def _wait_until_idle(self, child: asyncio.subprocess.Process) -> None:
        while (left := self._idle_left()) is None or left:
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    code = await child.wait()
                    raise _ServerExited(
                        f"{self.subject}'s process exited (code {code}); see {self.log_path}", was_ready=True
                    )
        log.info("local_model_idle", subject=self.subject)

    async def _spawn(self, path: Path, api_key: str) -> asyncio.subprocess.Process:
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        output = os.open(self.log_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            child = await start_child(
                sys.executable,
                "-P",  # Without it, modules of this folder would shadow the library's imports.
                str(SERVER_SCRIPT),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=output,
                env=_environment(os.environ, self._threads),
                start_new_session=True,  # Ctrl-C must reach only the parent, which then ends the child.
            )
        finally:
            os.close(output)
        settings = {
            "parent": os.getpid(),
            "model": str(path),
            "api_key": api_key,
            "threads": self._threads,
            **self.settings(),
        }
        assert child.stdin is not None
        child.stdin.write(msgspec.json.encode(settings) + b"\n")
        return child

    async def _wait_until_listening(self, child: asyncio.subprocess.Process, path: Path) -> str:
        """The child's address, once it has reported it and `/health` returns 200 (503 while loading)."""
        assert child.stdout is not None
        try:
            async with asyncio.timeout(LOAD_SECONDS):
                line = await child.stdout.readline()
        except TimeoutError as error:
            raise _ServerExited(
                f"{self.subject} {path.name} was not loaded in {LOAD_SECONDS:.0f} s"
            ) from error
        try:
            report = msgspec.json.decode(line, type=_StartupReport)
        except msgspec.DecodeError:
            report = _StartupReport(error="its process exited without reporting an error")
        if not report.address:
            raise _ServerExited(
                f"{self.subject} {path.name} cannot be run: "
                f"{_first_error(self.log_path) or report.error}; see {self.log_path}"
            )
        await self._wait_until_healthy(report.address)
        return report.address

    async def _wait_until_healthy(self, url: str) -> None:
        with suppress(TimeoutError):
            async with (
                asyncio.timeout(HEALTH_SECONDS),
                httpx.AsyncClient(trust_env=False, timeout=5) as client,
            ):
                while True:
                    with suppress(httpx.HTTPError):
                        if (await client.get(f"{url}/health")).status_code == 200:
                            return
                    await asyncio.sleep(HEALTH_PAUSE_SECONDS)
        raise _ServerExited(f"{self.subject} loaded but was not healthy in {HEALTH_SECONDS:.0f} s")


def _environment(environ: Mapping[str, str], threads: int) -> dict[str, str]:
    """The child's environment: no secrets, and OpenMP threads that do not spin while waiting."""
    passed = {name: value for name, value in environ.items() if name in (*_PASSED_ENV_VARS, *_LIBRARY_PATHS)}
    return passed | {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": str(threads)}


def _first_error(path: Path) -> str:
    """The first error in the child's log, because later lines only repeat that loading failed."""
    with suppress(OSError):
        match = _LOG_ERROR.search(path.read_text(encoding="utf-8", errors="replace")[:65_536])
        return match.group(1)[:300] if match else ""
    return ""
