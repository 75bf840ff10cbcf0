"""What is asked of a backend, what it asks of the supervisor, and a program's environment in a jail."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from luxx.infra.config.schema import ToolLimits
from luxx.tools.sandbox.entering import PORT, TEMPORARY
from luxx.wire.tool import CommandPermission

MIB = 1024 * 1024


class ProgramLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Of one program with all its children: seconds of time and of processor, tasks, and MiB.

    `memory_mb` is what all of them hold and what each may ask for, `file_mb` the largest file, `disk_mb` what
    they write in all, `output_kb` what is kept of what they print.
    """

    seconds: float = 60
    cpu_seconds: float = 60
    memory_mb: int = 512
    processes: int = 64
    file_mb: int = 100
    disk_mb: int = 500
    output_kb: int = 1024


BY_LEVEL = {
    CommandPermission.ADMIN: ProgramLimits(
        seconds=600, cpu_seconds=600, memory_mb=2048, processes=256, file_mb=1000, disk_mb=5000
    )
}
"""Other levels have the defaults of Limits."""


def limits_for(tool: str, level: CommandPermission, configured: Iterable[ToolLimits]) -> ProgramLimits:
    """Built in for the level, then what each fitting entry sets, in order."""
    limits = BY_LEVEL.get(level, ProgramLimits())
    for entry in configured:
        if entry.tool in ("*", tool) and entry.level in (None, level):
            given = {name: getattr(entry, name) for name in ProgramLimits.__struct_fields__}
            limits = msgspec.structs.replace(
                limits, **{name: value for name, value in given.items() if value is not None}
            )
    return limits


SupervisorSpec = dict[str, Any]
"""What the supervisor is told, in values that `marshal` can carry."""


_PROXY = f"http://127.0.0.1:{PORT}"
PROXY_ENVIRONMENT = {
    **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), _PROXY),
    **dict.fromkeys(("NO_PROXY", "no_proxy"), "localhost,127.0.0.1,::1"),
}
"""The variables by which programs find the way out."""


class Interpreter(msgspec.Struct, frozen=True, kw_only=True):
    """A Python for jails; `prefixes` are the directories it needs, as far as they are its own."""

    program: str
    prefixes: tuple[str, ...] = ()


class ProgramSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A program to be started. `waits`: its limits count only from when it is told to go.

    `has_door`: it has a way out, by the proxy, where the backend can give it one. `has_stdin`: its standard
    input is the server's, and otherwise /dev/null. `is_resident`: it has that too, and its HOME is its
    workspace, because whoever configured it decides what is in there.
    `code`: directories of the server's own code that it may read even where they are hidden; what is hidden
    beneath them stays so. `filter` replaces the backend's own; None leaves that.
    """

    argv: tuple[str, ...]
    workspace: Path | None
    limits: ProgramLimits
    network: bool = False
    has_proxy: bool = False
    waits: bool = False
    has_stdin: bool = False
    is_resident: bool = False
    interpreter: Interpreter | None = None
    code: tuple[Path, ...] = ()
    filter: bytes | None = None


class SandboxSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is the same for all jails of a server.

    `uid` whom to become, None: who the server is. `hidden`, real paths of directories and files, is not to
    be seen even where it lies beneath something that is. `packages`, where it exists, holds what Python
    finds beside its standard library. `memory_reserve_mb`: what programs leave of the machine's memory; 0 is
    a sixteenth of it.
    """

    machine: str
    uid: int | None
    hidden: tuple[Path, ...] = ()
    packages: Path
    memory_reserve_mb: int = 0


class Backend(Protocol):
    """A way to hold a program in."""

    @property
    def name(self) -> str: ...

    @property
    def supports_proxy(self) -> bool:
        """Whether its jails have a network of their own, so that the proxy is the only way out."""
        ...

    @property
    def packages(self) -> str | None:
        """Where a program inside finds the packages for Python."""
        ...

    def shown_code(self, code: Sequence[Path]) -> list[str]:
        """Where a program inside finds the directories that its order has as `code`."""
        ...

    def spec(self, program_spec: ProgramSpec) -> SupervisorSpec:
        """Raises ToolFailed where it cannot be done at all."""
        ...


def shared_spec(program_spec: ProgramSpec, settings: SandboxSettings) -> SupervisorSpec:
    """What every backend asks of the supervisor alike."""
    limits = program_spec.limits
    return {
        "argv": list(program_spec.argv),
        "uid": settings.uid,
        "workspace": None if program_spec.workspace is None else str(program_spec.workspace),
        "waits": program_spec.waits,
        "has_stdin": program_spec.has_stdin or program_spec.waits or program_spec.is_resident,
        "has_door": False,
        "letterbox": None,
        "bubblewrap": None,
        "landlock": None,
        "scratch": False,
        "filter": b"",
        "limits": {
            "wall": limits.seconds,
            "cpu": int(limits.cpu_seconds),
            "memory": limits.memory_mb * MIB,
            "processes": limits.processes,
            "file": limits.file_mb * MIB,
            "disk": limits.disk_mb * MIB,
            "reserve": settings.memory_reserve_mb * MIB,
        },
    }


def environment(
    packages: str | None, interpreter: Interpreter | None, *, home: str = TEMPORARY, has_proxy: bool = False
) -> dict[str, str]:
    """All variables a program in a jail has.

    HOME is not the workspace: most programs run or obey what they find there, and the workspace may hold
    what strangers wrote.
    """
    path = ["/usr/local/bin", "/usr/bin", "/bin"]
    if interpreter is not None:
        folder = str(Path(interpreter.program).parent)
        path += [folder] if folder not in path else []
    found = {
        # Git gives up where it may not read the configuration of the system.
        "GIT_CONFIG_NOSYSTEM": "1",
        "HOME": home,
        "LANG": "C.UTF-8",
        "LOGNAME": "jail",
        "MPLBACKEND": "agg",
        "MPLCONFIGDIR": TEMPORARY,
        "OMP_NUM_THREADS": "4",
        "OPENBLAS_NUM_THREADS": "4",
        "PATH": ":".join(path),
        "PYTHONDONTWRITEBYTECODE": "1",
        # Bash on a socket runs ~/.bashrc unless another shell is above it.
        "SHLVL": "1",
        "TERM": "dumb",
        "TMPDIR": TEMPORARY,
        "USER": "jail",
    }
    return found | ({"PYTHONPATH": packages} if packages else {}) | (PROXY_ENVIRONMENT if has_proxy else {})


def existing_hidden(settings: SandboxSettings, below: str) -> list[str]:
    """What is hidden, lies beneath `below` and exists."""
    return sorted({str(one) for one in settings.hidden if one.is_relative_to(below) and one.exists()})
