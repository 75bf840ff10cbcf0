"""Program limits, the spec a backend gets, the spec it makes for the supervisor, and the environment."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from luxx.infra.config.schema import ToolLimits
from luxx.tools.sandbox.program_start import PORT, TEMPORARY
from luxx.wire.tool import CommandPermission

MIB = 1024 * 1024


class ProgramLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one program together with all its children. `seconds` is wall time, `processes` counts tasks.

    `memory_mb` bounds what all processes hold together and what each may allocate. `open_files` is for each
    process. `file_mb` is the largest file, `disk_mb` bounds all writes, `output_kb` the printed output that
    is kept.
    """

    seconds: float = 60
    cpu_seconds: float = 60
    memory_mb: int = 512
    processes: int = 64
    open_files: int = 1024
    file_mb: int = 100
    disk_mb: int = 500
    output_kb: int = 1024


BY_LEVEL = {
    CommandPermission.ADMIN: ProgramLimits(
        seconds=600, cpu_seconds=600, memory_mb=2048, processes=256, file_mb=1000, disk_mb=5000
    )
}
"""Other levels have the defaults of ProgramLimits."""


def limits_for(
    tool: str,
    level: CommandPermission,
    configured: Iterable[ToolLimits],
    built_in: ProgramLimits | None = None,
) -> ProgramLimits:
    """The `built_in` limits (None: those of the level), overridden in order by each entry that fits `tool`
    and `level`."""
    limits = BY_LEVEL.get(level, ProgramLimits()) if built_in is None else built_in
    for entry in configured:
        if entry.tool in ("*", tool) and entry.level in (None, level):
            values = {name: getattr(entry, name) for name in ProgramLimits.__struct_fields__}
            set_values = {name: value for name, value in values.items() if value is not None}
            limits = msgspec.structs.replace(limits, **set_values)
    return limits


SupervisorSpec = dict[str, Any]
"""The message that starts a supervisor, made of values that `marshal` can carry."""


_PROXY = f"http://127.0.0.1:{PORT}"
PROXY_ENVIRONMENT = {
    **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), _PROXY),
    **dict.fromkeys(("NO_PROXY", "no_proxy"), "localhost,127.0.0.1,::1"),
}
"""The variables by which programs find the proxy."""


class Interpreter(msgspec.Struct, frozen=True, kw_only=True):
    """A Python for programs; `prefixes` are the directories it needs outside of /usr."""

    program: str
    prefixes: tuple[str, ...] = ()


class ProgramSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A program to start. `waits`: time and processor limits count from the server's start message on.

    `has_proxy`: it reaches the network through the proxy, if the backend supports one. `has_stdin`: the
    server writes its standard input, which is /dev/null otherwise. `is_resident`: it has a standard input,
    and HOME is its workspace, because the operator who configured it decides what is in there.
    `code`: directories of the server's own code that it may read although they are hidden; hidden paths
    beneath them stay hidden. `skills`: the folders of skills that it may read in the same way, with their
    names. `filter` replaces the backend's own; None keeps that.
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
    skills: tuple[tuple[str, Path], ...] = ()
    filter: bytes | None = None


class SandboxSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that all sandboxed programs of a server share.

    `uid` is the user to run as; None: the server's own. `hidden` are real paths of files and directories that
    programs never see, also beneath a visible directory. `packages` is a directory of Python packages and may
    be missing. `memory_reserve_mb`: memory of the machine that programs leave free; 0 means a sixteenth.
    """

    machine: str
    uid: int | None
    hidden: tuple[Path, ...] = ()
    packages: Path
    memory_reserve_mb: int = 0


def shared_spec(program_spec: ProgramSpec, settings: SandboxSettings) -> SupervisorSpec:
    """The part of the supervisor's message that is the same for every backend."""
    limits = program_spec.limits
    return {
        "argv": list(program_spec.argv),
        "uid": settings.uid,
        "workspace": None if program_spec.workspace is None else str(program_spec.workspace),
        "waits": program_spec.waits,
        "has_stdin": program_spec.has_stdin or program_spec.waits or program_spec.is_resident,
        "has_proxy": False,
        "fd_channel": None,
        "bubblewrap": None,
        "landlock": None,
        "scratch": False,
        "filter": b"",
        "limits": {
            "wall": limits.seconds,
            "cpu": int(limits.cpu_seconds),
            "memory": limits.memory_mb * MIB,
            "processes": limits.processes,
            "files": limits.open_files,
            "file": limits.file_mb * MIB,
            "disk": limits.disk_mb * MIB,
            "reserve": settings.memory_reserve_mb * MIB,
        },
    }


def environment(
    packages: str | None, interpreter: Interpreter | None, *, home: str = TEMPORARY, has_proxy: bool = False
) -> dict[str, str]:
    """All environment variables of a sandboxed program.

    HOME is not the workspace: most programs execute or obey files in HOME, and the workspace may hold files
    from untrusted sources.
    """
    path = ["/usr/local/bin", "/usr/bin", "/bin"]
    if interpreter is not None:
        folder = str(Path(interpreter.program).parent)
        path += [folder] if folder not in path else []
    variables = {
        # Git fails if it may not read the system's configuration.
        "GIT_CONFIG_NOSYSTEM": "1",
        "HOME": home,
        "LANG": "C.UTF-8",
        "LOGNAME": "sandbox",
        "MPLBACKEND": "agg",
        "MPLCONFIGDIR": TEMPORARY,
        "OMP_NUM_THREADS": "4",
        "OPENBLAS_NUM_THREADS": "4",
        "PATH": ":".join(path),
        "PYTHONDONTWRITEBYTECODE": "1",
        # Bash with a socket as stdin runs ~/.bashrc unless SHLVL shows a parent shell.
        "SHLVL": "1",
        "TERM": "dumb",
        "TMPDIR": TEMPORARY,
        "USER": "sandbox",
    }
    variables |= {"PYTHONPATH": packages} if packages else {}
    return variables | (PROXY_ENVIRONMENT if has_proxy else {})
