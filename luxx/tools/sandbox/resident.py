"""Sandbox processes that start before a call or live beyond one.

A prewarmed process is for one program: after a call, a process for the same key starts and waits for the
next one. No user's code has run in it. The pool is small, and idle processes end. A resident program runs
long, and its starter talks to it through pipes. It has no time limit; all other limits apply, and count over
its whole life.
"""

import asyncio
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
import structlog
from msgspec.structs import replace

from luxx.errors import ToolFailed
from luxx.tools.sandbox.backends import Backend
from luxx.tools.sandbox.plan import Interpreter, ProgramLimits, ProgramSpec, SupervisorSpec, environment
from luxx.tools.sandbox.process import ProgramNotStarted, ProgramResult, SandboxProcess, program_result

IDLE_SECONDS = 60.0
CLOSE_SECONDS = 15.0

logger = structlog.get_logger()


class PrewarmedKey(msgspec.Struct, frozen=True, kw_only=True):
    """A waiting process serves only calls with the same workspace, limits, proxy and skills."""

    workspace: Path
    limits: ProgramLimits
    has_proxy: bool = False
    skills: tuple[tuple[str, Path], ...] = ()


K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class PrewarmedPool(Generic[K]):
    """At most `most` processes wait, each at most `idle_seconds`; a new one evicts the oldest.

    A waiting process serves only calls with the key it was started for.
    """

    def __init__(
        self, start: Callable[[K], Awaitable[SandboxProcess]], most: int, idle_seconds: float = IDLE_SECONDS
    ) -> None:
        self._start = start
        self._most = most
        self._idle_seconds = idle_seconds
        self._waiting: OrderedDict[K, tuple[SandboxProcess, asyncio.TimerHandle]] = OrderedDict()
        self._tasks: dict[K, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, key: K) -> SandboxProcess | None:
        """Remove and return the process that waits for this key, or None; the caller closes it."""
        entry = self._waiting.pop(key, None)
        if entry is None:
            return None
        process, timer = entry
        timer.cancel()
        if process.is_alive:
            return process
        self._end(process)
        return None

    async def use(self, key: K, work: Callable[[SandboxProcess], Awaitable[T]]) -> T:
        """The result of `work` with a waiting process, or with a new one if none waits or it has just ended.

        Afterwards a process for the next call starts, unless none could be started for this one.
        """
        process = self.take(key) or await self._start(key)
        try:
            try:
                return await work(process)
            except ProgramNotStarted:
                return await work(await self._start(key))
        finally:
            self.refill(key)

    def refill(self, key: K) -> None:
        """Start a process for the next call in the background, unless one waits already."""
        if not self._is_closed and self._most and key not in self._waiting and key not in self._tasks:
            task = asyncio.create_task(self._make(key))
            self._tasks[key] = task
            task.add_done_callback(lambda _: self._tasks.pop(key, None))

    async def close(self) -> None:
        """End all waiting processes."""
        self._is_closed = True
        making = list(self._tasks.values())
        for task in making:
            task.cancel()
        if making:
            # A task that hangs runs no user's code; it must not delay the server's shutdown.
            await asyncio.wait(making, timeout=CLOSE_SECONDS)
        for key in list(self._waiting):
            self._drop(key)
        await asyncio.gather(*self._ending, return_exceptions=True)

    async def _make(self, key: K) -> None:
        while len(self._waiting) >= self._most:
            self._drop(next(iter(self._waiting)))
        try:
            process = await self._start(key)
        except (ToolFailed, OSError) as error:
            logger.warning("sandbox_process_not_prewarmed", error=str(error))
            return
        timer = asyncio.get_running_loop().call_later(self._idle_seconds, self._drop, key)
        self._waiting[key] = (process, timer)
        while len(self._waiting) > self._most:
            self._drop(next(iter(self._waiting)))

    def _drop(self, key: K) -> None:
        entry = self._waiting.pop(key, None)
        if entry is not None:
            process, timer = entry
            timer.cancel()
            self._end(process)

    def _end(self, process: SandboxProcess) -> None:
        task = asyncio.create_task(process.close())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


NO_TIME_LIMIT = math.inf
TICK_MS = 100
"""How often LimitWatch measures a program that may run for days; the default rate takes 2 % of a CPU."""
_CHUNK_BYTES = 65_536
_DRAIN_SECONDS = 1.0
KEPT_STDERR_BYTES = 8_192
"""The last bytes of stderr that are kept."""


class ResidentSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A long-running program. `argv[0]` is a path or a name; `reads`: directories it may read besides the
    system's. `variables` are added to its environment and never appear in the arguments of a process.
    """

    argv: tuple[str, ...]
    workspace: Path
    limits: ProgramLimits
    reads: tuple[Path, ...] = ()
    variables: Mapping[str, str] = {}


def resident_spec(
    program_spec: ResidentSpec, backend: Backend, interpreter: Interpreter | None
) -> SupervisorSpec:
    """The message for the supervisor. Raises ToolFailed if the program is not found."""
    own: tuple[str, ...] = () if interpreter is None else interpreter.prefixes
    shown = Interpreter(
        program="/usr/bin/env" if interpreter is None else interpreter.program,
        prefixes=(*own, *(str(path) for path in program_spec.reads)),
    )
    plain = ProgramSpec(
        argv=(_program(program_spec.argv[0], interpreter), *program_spec.argv[1:]),
        workspace=program_spec.workspace,
        limits=replace(program_spec.limits, seconds=NO_TIME_LIMIT),
        interpreter=shown,
        is_resident=True,
    )
    spec: SupervisorSpec = {**backend.spec(plain), "tick_ms": TICK_MS}
    if spec["bubblewrap"] is None:
        own_variables: dict[str, str] = spec["env"]
        return spec | {"env": own_variables | dict(program_spec.variables)}
    return spec | {"private": dict(program_spec.variables)}


def _program(name: str, interpreter: Interpreter | None) -> str:
    """The path of the program; `python` and `python3` mean the sandbox's Python."""
    if "/" in name:
        return name
    if name in ("python", "python3") and interpreter is not None:
        return interpreter.program
    for folder in environment(None, interpreter)["PATH"].split(":"):
        path = Path(folder) / name
        if path.is_file():
            return str(path)
    raise ToolFailed(f"there is no program named {name!r} in the directories that the sandbox searches")


class Resident:
    """Only one task may call `read` and one `write`; any task may call `ended` and `close`."""

    def __init__(self, process: SandboxProcess) -> None:
        self._process = process
        self._stderr_tail = b""
        self._listening = asyncio.create_task(self._listen())
        self._end = asyncio.create_task(self._wait_for_end())

    @property
    def pid(self) -> int:
        """The pid of the keeper, which ends after all other processes of the sandbox."""
        return self._process.pid

    @property
    def stderr_tail(self) -> bytes:
        """The last part of what the program has printed on stderr."""
        return self._stderr_tail

    async def read(self) -> bytes:
        """The next output; empty once the program has closed stdout."""
        return await self._process.stdout.read(_CHUNK_BYTES)

    async def write(self, data: bytes) -> None:
        """Returns once the pipe can take more. Raises OSError if the program has closed stdin."""
        if self._process.stdin.is_closing():
            raise BrokenPipeError
        self._process.stdin.write(data)
        await self._process.stdin.drain()

    async def ended(self) -> ProgramResult:
        """Waits until the program and all it started have ended. Raises ToolFailed if it never started."""
        return await asyncio.shield(self._end)

    async def close(self) -> None:
        """End the program with everything it started. No task may be in `read`."""
        self._process.stdin.close()
        # asyncio counts the process as alive while a pipe holds unread data.
        draining = asyncio.create_task(self._drain())
        await self._process.close()
        await asyncio.wait({draining}, timeout=_DRAIN_SECONDS)
        tasks = (self._listening, self._end, draining)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(self) -> None:
        with suppress(OSError):
            while piece := await self._process.stderr.read(_CHUNK_BYTES):
                self._stderr_tail = (self._stderr_tail + piece)[-KEPT_STDERR_BYTES:]

    async def _drain(self) -> None:
        with suppress(OSError):
            while await self._process.stdout.read(_CHUNK_BYTES):
                pass

    async def _wait_for_end(self) -> ProgramResult:
        ended_message = await self._process.wait_for_end()
        # Bounded: another process may keep stderr open.
        await asyncio.wait({self._listening}, timeout=1.0)
        return program_result(ended_message, {"stdout": [], "stderr": [self._stderr_tail]})
