"""Chooses the backend for this host: runs a test program in each, and reports why one fails."""

import asyncio
import os
import shutil
import sys
import sysconfig
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Generator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

import msgspec

from luxx.errors import ConfigError, ToolFailed
from luxx.infra.children import start_child
from luxx.infra.config.schema import ToolsConfig
from luxx.infra.removal import remove_tree
from luxx.tools.sandbox.backends import (
    LEAST_ABI,
    SYSTEM,
    Backend,
    Bubblewrap,
    Landlock,
    Unprotected,
    find_programs,
    landlock_abi,
)
from luxx.tools.sandbox.plan import Interpreter, ProgramLimits, ProgramSpec, SandboxSettings
from luxx.tools.sandbox.process import SandboxProcess, last_line

_QUERY_SECONDS = 10.0
_QUERY_CODE = (
    "import os, sys; print(os.path.realpath(sys.executable)); "
    "print(sys.base_prefix); print(sys.base_exec_prefix)"
)
_SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
_SHOWN_ANYWAY = "/usr"


async def find_interpreters(configured: str) -> list[Interpreter]:
    """The Pythons to try, in order: the configured one, else the server's own and the system's."""
    if configured:
        queried = await _query(configured)
        return [] if queried is None else [queried]
    interpreters = [own_interpreter()]
    system = shutil.which("python3", path=_SYSTEM_PATH)
    queried = None if system is None else await _query(system)
    if queried is not None and queried.program != interpreters[0].program:
        interpreters.append(queried)
    return interpreters


def own_interpreter() -> Interpreter:
    """The base Python of the server's virtual environment."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    program = os.path.realpath(Path(sys.base_prefix) / "bin" / f"python{version}")
    return _interpreter(program, {sys.base_prefix, sys.base_exec_prefix})


def environments_of(interpreters: list[Interpreter]) -> list[Path]:
    """The package directories of the server and of these Pythons, which programs must not see."""
    directories = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
    for interpreter in interpreters:
        for prefix in interpreter.prefixes:
            directories.update(Path(prefix).glob("lib*/python3*/site-packages"))
    return sorted(directories)


async def _query(program: str) -> Interpreter | None:
    try:
        process = await start_child(
            *(program, "-I", "-S", "-c", _QUERY_CODE), stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, env={}
        )
    except OSError:
        return None
    try:
        async with asyncio.timeout(_QUERY_SECONDS):
            stdout, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return None
    lines = stdout.decode("utf-8", "replace").splitlines()
    return _interpreter(lines[0], set(lines[1:])) if process.returncode == 0 and len(lines) == 3 else None


def _interpreter(program: str, prefixes: set[str]) -> Interpreter:
    own = sorted({os.path.realpath(prefix) for prefix in prefixes})
    needed = [path for path in own if path != _SHOWN_ANYWAY and not path.startswith(f"{_SHOWN_ANYWAY}/")]
    return Interpreter(program=program, prefixes=tuple(needed))


SANDBOX_UID = 65533
"""The user that programs of a root server run as: a number that no account uses and that containers map."""

_WORKSPACE_PROBE = ("sh", "-c", "echo written > probe && cat probe && rm probe")
_PROBE = ProgramLimits(seconds=10, cpu_seconds=10)
OWN_FILES = ("config.yaml", ".env")
"""The server's own files in its working directory."""
_NOT_NEEDED = "not needed: bubblewrap is in force"
_NOT_CONFIGURED = "tools.sandbox selects another one"


class BackendStatus(StrEnum):
    IN_FORCE = "in_force"
    USABLE = "usable"
    UNUSABLE = "unusable"
    NOT_TRIED = "not_tried"


class BackendReport(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a backend on this host. `reason`: why it is not in force; empty if it is.

    `output` is the last line that the failing program printed, for the operator.
    """

    name: str
    standing: BackendStatus
    reason: str = ""
    output: str = ""


class BackendChoice(msgspec.Struct, frozen=True, kw_only=True):
    """`backend` None: no sandbox works, so none is started. `interpreter` None: no Python works there."""

    backend: Backend | None
    interpreter: Interpreter | None
    reports: list[BackendReport]


def forbid_unprotected_root(config: ToolsConfig, uid: int) -> None:
    """Raises ConfigError if programs would run as root without a sandbox."""
    if config.sandbox == "none" and uid == 0:
        raise ConfigError(
            "tools.sandbox: none gives programs all rights of Luxx, so it is refused when Luxx runs as "
            "root; use auto, or run Luxx as an ordinary user"
        )


async def choose(
    config: ToolsConfig, hidden: tuple[Path, ...], packages: Path, workspaces: Path
) -> BackendChoice:
    """Tries the backends that the configuration allows. `workspaces` is the root of the workspaces; the tests
    write there. `hidden` are paths that programs must not see.
    """
    interpreters = await find_interpreters(config.python)
    settings = SandboxSettings(
        machine=os.uname().machine,
        uid=SANDBOX_UID if os.geteuid() == 0 else None,
        hidden=(*_with_resolved([*hidden, *_own_files(interpreters)]), *environments_of(interpreters)),
        packages=packages,
        memory_reserve_mb=config.memory_reserve_mb,
    )
    wanted = [name for name in ("bubblewrap", "landlock") if config.sandbox in ("auto", name)]
    tries = await asyncio.gather(*(_try_backend(name, settings, workspaces) for name in wanted))
    tried = dict(zip(wanted, tries, strict=True))
    unprotected = Unprotected(settings) if config.sandbox == "none" else None
    backend: Backend | None = next((one for one, _ in tried.values() if one is not None), unprotected)
    return BackendChoice(
        backend=backend,
        interpreter=await _choose_interpreter(backend, interpreters),
        reports=[_report(name, tried, backend) for name in ("bubblewrap", "landlock")],
    )


def _with_resolved(paths: list[Path]) -> list[Path]:
    """The absolute paths, and the paths that links among them resolve to."""
    return sorted({each for path in paths for each in (path.absolute(), path.resolve())})


def _own_files(interpreters: list[Interpreter]) -> list[Path]:
    """The server's own files, and its working directory if it holds one and programs need nothing in it."""
    here = Path.cwd()
    own = [here / name for name in OWN_FILES]
    needed = [*SYSTEM, sys.base_prefix]
    needed += [path for found in interpreters for path in (found.program, *found.prefixes)]
    if any(path.exists() for path in own) and not any(Path(path).is_relative_to(here) for path in needed):
        own.append(here)
    return own


def _report(
    name: str, tried: dict[str, tuple[Backend | None, str]], backend: Backend | None
) -> BackendReport:
    if name not in tried:
        return BackendReport(name=name, standing=BackendStatus.NOT_TRIED, reason=_NOT_CONFIGURED)
    tried_backend, reason = tried[name]
    if tried_backend is None:
        reason, _, output = reason.partition(": ")
        return BackendReport(name=name, standing=BackendStatus.UNUSABLE, reason=reason, output=output)
    if tried_backend is backend:
        return BackendReport(name=name, standing=BackendStatus.IN_FORCE)
    return BackendReport(name=name, standing=BackendStatus.USABLE, reason=_NOT_NEEDED)


async def _try_backend(name: str, settings: SandboxSettings, workspaces: Path) -> tuple[Backend | None, str]:
    """The backend and an empty text, or None and why it cannot be used."""
    if sys.platform != "linux":
        return None, "it needs Linux"
    candidates: list[Backend] = []
    if name == "bubblewrap":
        candidates += [Bubblewrap(program, settings) for program in find_programs()]
        reason = "bwrap is not installed"
    else:
        abi = landlock_abi()
        candidates += [Landlock(abi, settings)] if abi >= LEAST_ABI else []
        reason = "this kernel has no Landlock, or it is turned off"
        if abi:
            reason = f"it needs version {LEAST_ABI} of Landlock, of Linux 6.2; this kernel has version {abi}"
    for backend in candidates:
        with _probe_workspace(workspaces) as workspace:
            argv = ("true",) if workspace is None else _WORKSPACE_PROBE
            problem = await _probe_problem(backend, argv, None, workspace)
        if problem is None:
            return backend, ""
        reason = problem
    return None, reason


@contextmanager
def _probe_workspace(root: Path) -> Generator[Path | None]:
    """A temporary workspace beside the real ones; None if it cannot be created, which other code reports."""
    parent = next((path for path in (root, *root.parents) if path.is_dir()), root)
    try:
        made = Path(tempfile.mkdtemp(prefix=".luxx-probe-", dir=parent))
    except OSError:
        yield None
        return
    try:
        yield made
    finally:
        remove_tree(str(made))


async def _probe_problem(
    backend: Backend, argv: tuple[str, ...], interpreter: Interpreter | None, workspace: Path | None = None
) -> str | None:
    program = shutil.which(argv[0], path="/usr/bin:/bin") or argv[0]
    program_spec = ProgramSpec(
        argv=(program, *argv[1:]), workspace=workspace, limits=_PROBE, interpreter=interpreter
    )
    try:
        process = await SandboxProcess.start(backend.spec(program_spec))
        result = await process.run(b"", _PROBE)
    except ToolFailed as error:
        return error.message
    except OSError as error:
        return f"the supervisor cannot be started: {error.strerror}"
    if result.exit_code == 0:
        return None
    output = last_line(result.stderr)
    return f"{argv[0]} ended with exit code {result.exit_code}" + (f": {output}" if output else "")


async def _choose_interpreter(backend: Backend | None, interpreters: list[Interpreter]) -> Interpreter | None:
    for interpreter in interpreters:
        argv = (interpreter.program, "-I", "-S", "-c", "")
        if backend is not None and await _probe_problem(backend, argv, interpreter) is None:
            return interpreter
    return None
