"""The sandbox of a server: starts every program of a tool, or refuses it, and queues them.

It also installs the Python packages that an operator chooses for programs. Not here: the choice of the
backend (`choosing`), program limits (`plan`), the tools (`tools/builtin`).
"""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from msgspec.structs import replace

from luxx.errors import ToolFailed, Unavailable
from luxx.infra.config.schema import ToolsConfig
from luxx.infra.network.egress import EgressSession
from luxx.infra.network.hosts import Resolve
from luxx.infra.network.proxy import ProxyBounds
from luxx.tools.sandbox.backends import Backend
from luxx.tools.sandbox.choosing import (
    SANDBOX_UID,
    BackendChoice,
    BackendReport,
    choose,
    forbid_unprotected_root,
)
from luxx.tools.sandbox.directories import remove_leftovers
from luxx.tools.sandbox.egress import Egress
from luxx.tools.sandbox.plan import Interpreter, ProgramLimits, ProgramSpec, limits_for
from luxx.tools.sandbox.process import OnOutput, ProgramResult, SandboxProcess
from luxx.tools.sandbox.readers import DocumentReaders
from luxx.tools.sandbox.resident import PrewarmedKey, PrewarmedPool, Resident, ResidentSpec, resident_spec
from luxx.wire.tool import CommandPermission


class ProgramSlots:
    """Limits running programs, `per_workspace` and in `total`; others wait in order.

    The limits of the running programs of one workspace sum up to at most `memory_mb`. A program with a larger
    limit runs alone.
    """

    def __init__(self, per_workspace: int, total: int, memory_mb: int) -> None:
        self._per_workspace = per_workspace
        self._memory_mb = memory_mb
        self._total = asyncio.Semaphore(total)
        self._workspaces: dict[Path | None, _WorkspacePrograms] = {}

    @asynccontextmanager
    async def slot(self, workspace: Path | None, memory_mb: int) -> AsyncGenerator[None]:
        programs = self._workspaces.setdefault(workspace, _WorkspacePrograms())
        programs.count += 1
        try:
            async with programs.next_to_start:
                while not self._fits(programs, memory_mb):
                    programs.has_ended.clear()
                    await programs.has_ended.wait()
                programs.running_mb.append(memory_mb)
            try:
                async with self._total:
                    yield
            finally:
                programs.running_mb.remove(memory_mb)
                programs.has_ended.set()
        finally:
            programs.count -= 1
            if not programs.count:
                del self._workspaces[workspace]

    def _fits(self, programs: "_WorkspacePrograms", memory_mb: int) -> bool:
        running_mb = programs.running_mb
        is_free = len(running_mb) < self._per_workspace and sum(running_mb) + memory_mb <= self._memory_mb
        return is_free or not running_mb


@dataclass(slots=True)
class _WorkspacePrograms:
    """The programs of one workspace: how many run or wait, and the limits of those that run."""

    count: int = 0
    running_mb: list[int] = field(default_factory=list[int])
    next_to_start: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the first program that waits; a lock wakes its waiters in order."""
    has_ended: asyncio.Event = field(default_factory=asyncio.Event)


_TOTAL_FACTOR = 16
"""All users together may run this many times as many programs as one workspace."""

PYTHON_MAIN = Path(__file__).with_name("python_main.py").read_text("utf-8")
"""The code that `run_python` passes to the sandbox's Python."""

logger = structlog.get_logger()


class Sandbox:
    """Starts sandboxed programs. The constructor does no I/O; `open` tries what this host supports.

    No program sees the data directory, the root of the workspaces or the paths in `hidden`, except its own
    workspace. `resolve_for` replaces each user's DNS lookups, `bounds` the default bounds of the proxy.
    Raises ConfigError if programs would run as root without a sandbox.
    """

    def __init__(
        self,
        config: ToolsConfig,
        data_dir: Path,
        workspace_root: Path,
        hidden: Sequence[Path] = (),
        *,
        resolve_for: Callable[[int], Resolve] | None = None,
        bounds: ProxyBounds | None = None,
    ) -> None:
        forbid_unprotected_root(config, os.geteuid())
        self._config = config
        self._hidden = (data_dir, workspace_root, *hidden)
        self._workspaces = workspace_root.absolute()
        self.packages = data_dir.absolute() / FOLDER
        self._choice = BackendChoice(backend=None, interpreter=None, reports=[])
        self._is_open = False
        self._prewarmed = PrewarmedPool(self.start_prewarmed, config.prewarmed)
        self.readers = DocumentReaders(self._active_backend)
        self.egress = Egress(config, self._active_backend, resolve_for=resolve_for, bounds=bounds)
        self._slots = ProgramSlots(
            config.max_workers, config.max_workers * _TOTAL_FACTOR, config.memory_per_user_mb
        )

    @property
    def backend_name(self) -> str:
        """The name of the active backend; `none` if there is none."""
        backend = self._active_backend()
        return "none" if backend is None else backend.name

    @property
    def is_unprotected(self) -> bool:
        """Whether the configuration lets programs run without a sandbox."""
        return self._config.sandbox == "none"

    @property
    def reports(self) -> list[BackendReport]:
        """The status of each backend on this host; empty before `open`."""
        return self._choice.reports

    @property
    def interpreter(self) -> Interpreter | None:
        return self._choice.interpreter

    async def open(self) -> None:
        """Tries the backends, and deletes scratch directories that a killed server left."""
        await asyncio.to_thread(remove_leftovers, tempfile.gettempdir(), {os.geteuid(), SANDBOX_UID})
        self._choice = await choose(self._config, self._hidden, self.packages, self._workspaces)
        self._is_open = True
        await self.egress.open()
        python = None if self.interpreter is None else self.interpreter.program
        logger.info("sandbox", backend=self.backend_name, python=python)

    async def close(self) -> None:
        """Ends the waiting processes, and records the egress sessions that ended."""
        await self._prewarmed.close()
        await self.readers.close()
        await self.egress.close()

    def limits_for(self, tool: str, level: CommandPermission) -> ProgramLimits:
        """The limits of a program that `tool` starts for a caller of `level`."""
        return limits_for(tool, level, self._config.limits)

    async def run_sandboxed(
        self,
        argv: Sequence[str],
        workspace: Path | None,
        limits: ProgramLimits,
        network: bool = False,
        *,
        stdin: bytes = b"",
        on_output: OnOutput | None = None,
        egress_session: EgressSession | None = None,
        skills: tuple[tuple[str, Path], ...] = (),
        filter: bytes | None = None,
    ) -> ProgramResult:
        """Run a program in a sandbox of its own until it ends; cancellation ends the whole process tree.

        `argv[0]` is an absolute path; without `stdin` the program reads /dev/null. `on_output` gets output as
        it arrives. With an `egress_session` the program reaches the listed hosts if `egress` is open.
        `skills`: the name and the real path of each folder of a skill that it may read.
        `filter` replaces the backend's system call filter; only tests of the filter use it.
        Raises ToolFailed if no program may be started, or this one cannot be.
        """
        program_spec = ProgramSpec(
            argv=tuple(argv),
            workspace=None if workspace is None else _absolute(workspace),
            limits=limits,
            network=network,
            has_proxy=self.egress.is_open and egress_session is not None,
            has_stdin=bool(stdin),
            interpreter=self.interpreter,
            skills=skills,
            filter=filter,
        )
        backend = self._backend()
        async with self._slots.slot(program_spec.workspace, limits.memory_mb):
            process = await SandboxProcess.start(backend.spec(program_spec))
            async with self.egress.serve(process, egress_session):
                return await process.run(stdin, limits, on_output)

    async def run_python(
        self,
        code: str,
        workspace: Path,
        limits: ProgramLimits,
        seconds: float,
        egress_session: EgressSession | None = None,
        skills: tuple[tuple[str, Path], ...] = (),
    ) -> ProgramResult:
        """Run Python code for at most `seconds`, in a waiting process if the pool has one for this call.

        Raises ToolFailed like `run_sandboxed`.
        """
        has_proxy = self.egress.is_open and egress_session is not None
        key = PrewarmedKey(workspace=_absolute(workspace), limits=limits, has_proxy=has_proxy, skills=skills)
        wanted = replace(limits, seconds=seconds)
        text = code.encode("utf-8", "replace")
        self._backend()

        async def run(process: SandboxProcess) -> ProgramResult:
            async with self.egress.serve(process, egress_session):
                return await process.run(text, wanted)

        async with self._slots.slot(key.workspace, limits.memory_mb):
            return await self._prewarmed.use(key, run)

    def shown_skill(self, name: str, folder: Path) -> str | None:
        """The path at which programs find the folder of the skill; None if no program can be started."""
        backend = self._choice.backend
        return None if backend is None else backend.shown_skill(name, folder.resolve())

    def _active_backend(self) -> Backend | None:
        return self._choice.backend

    async def start_resident(self, program_spec: ResidentSpec) -> Resident:
        """Start a program that runs until it ends or is closed; it takes no program slot.

        Raises ToolFailed if no program may be started, or this one cannot be.
        """
        spec = resident_spec(program_spec, self._backend(), self.interpreter)
        return Resident(await SandboxProcess.start(spec))

    def _backend(self) -> Backend:
        backend = self._choice.backend
        if not self._is_open:
            raise ToolFailed("programs cannot be started yet: the server is still looking for a sandbox")
        if backend is None:
            reasons = "; ".join(f"{report.name}: {report.reason}" for report in self.reports)
            raise ToolFailed(
                f"programs are not started, because no sandbox is available ({reasons}); "
                "run `luxx doctor` for help"
            )
        return backend

    async def start_prewarmed(self, key: PrewarmedKey) -> SandboxProcess:
        """A process whose Python waits for code. Raises ToolFailed if it cannot be started."""
        interpreter = self.interpreter
        if interpreter is None:
            raise ToolFailed("no Python can run in the sandbox; set tools.python to one that can")
        backend = self._backend()
        program_spec = ProgramSpec(
            argv=(interpreter.program, "-I", "-S", "-c", PYTHON_MAIN, backend.packages or ""),
            workspace=key.workspace,
            limits=key.limits,
            has_proxy=key.has_proxy,
            interpreter=interpreter,
            skills=key.skills,
            waits=True,
        )
        return await SandboxProcess.start(backend.spec(program_spec))


def _absolute(workspace: Path) -> Path:
    return Path(os.path.abspath(workspace))


FOLDER = "packages"
"""In the data directory."""

_LIST = "luxx-packages.txt"


def install_packages(packages: Sequence[str], program: str, folder: Path) -> None:
    """Replace `folder` by one with exactly these packages, for the Python `program`.

    Only wheels are installed, so that no code of a package runs here. Raises Unavailable with pip's last
    line; then `folder` is unchanged.
    """
    fresh, old = folder.with_name(f"{folder.name}.new"), folder.with_name(f"{folder.name}.old")
    for directory in (fresh, old):
        shutil.rmtree(directory, ignore_errors=True)
    fresh.mkdir(parents=True)
    fresh.chmod(0o755)
    if packages:
        _run_pip(packages, program, fresh)
    (fresh / _LIST).write_text("".join(f"{package}\n" for package in sorted(packages)), "utf-8")
    if folder.exists():
        os.rename(folder, old)
    os.rename(fresh, folder)
    shutil.rmtree(old, ignore_errors=True)


def installed_packages(folder: Path) -> list[str]:
    """The packages of the last `install_packages`."""
    try:
        return (folder / _LIST).read_text("utf-8").splitlines()
    except OSError:
        return []


def _run_pip(packages: Sequence[str], program: str, target: Path) -> None:
    options = ("--target", str(target), "--only-binary", ":all:", "--no-input", "--disable-pip-version-check")
    command = [sys.executable, "-m", "pip", "--python", program, "install", *options, "--", *packages]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, umask=0o022
    )
    if done.returncode:
        error_lines = [line for line in done.stderr.splitlines() if line.strip()][-1:]
        raise Unavailable(f"the packages were not installed: {''.join(error_lines)}")
