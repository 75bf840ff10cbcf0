"""The backend for hosts that block user namespaces: Landlock for files, a system call filter for the rest."""

import ctypes
import os
import struct
import sys
from collections.abc import Sequence
from enum import IntFlag
from pathlib import Path

from luxx.tools.sandbox.bubblewrap import ETC, NETWORK_ETC, SYSTEM
from luxx.tools.sandbox.plan import (
    ProgramSpec,
    SandboxSettings,
    SupervisorSpec,
    environment,
    existing_hidden,
    shared_spec,
)
from luxx.tools.sandbox.program_start import LANDLOCK_CREATE, TEMPORARY
from luxx.tools.sandbox.seccomp import assemble, denied_calls

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


class Landlock:
    """Confines programs without namespaces. `abi`: the result of `landlock_abi`."""

    name = "landlock"
    # Its rules have ports but no addresses: access to the proxy's port would open that port of every host.
    supports_proxy = False

    def __init__(self, abi: int, settings: SandboxSettings) -> None:
        self._abi = abi
        self._settings = settings

    @property
    def packages(self) -> str | None:
        return str(self._settings.packages) if self._settings.packages.is_dir() else None

    def shown_code(self, code: Sequence[Path]) -> list[str]:
        return [str(one) for one in code]

    def spec(self, program_spec: ProgramSpec) -> SupervisorSpec:
        settings, handled = self._settings, handled_by(self._abi)
        workspace = "/" if program_spec.workspace is None else str(program_spec.workspace.absolute())
        home = workspace if program_spec.is_resident else TEMPORARY
        own_filter = assemble(
            denied_calls(network=program_spec.network, landlock_abi=self._abi), settings.machine
        )
        return shared_spec(program_spec, settings) | {
            "env": environment(self.packages, program_spec.interpreter, home=home),
            "cwd": workspace,
            "scratch": True,
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
        for one in program_spec.code:
            rules += self._without_hidden(str(one), is_shown=True)
        return rules

    def _without_hidden(self, root: str, *, is_shown: bool = False) -> list[tuple[str, int]]:
        """Rules to read `root` without its hidden paths.

        A rule covers everything beneath its path. So where a directory holds a hidden path, each of its other
        entries gets a rule of its own. `is_shown`: allow `root` even if it is hidden itself.
        """
        hidden = [one for one in existing_hidden(self._settings, root) if one != root or not is_shown]
        if not hidden:
            return [(root, int(_READ))]
        if root in hidden:
            return []
        # Symbolic links are skipped: the target has its own rule, or none.
        inside = [one.path for one in os.scandir(root) if not one.is_symlink()]
        below = [rule for one in sorted(inside) for rule in self._without_hidden(one)]
        return [(root, int(Access.READ_DIR)), *below]

    def _writable(self, program_spec: ProgramSpec, handled: Access) -> list[tuple[str, int]]:
        paths = [(one, int(Access.READ_FILE | Access.WRITE_FILE)) for one in DEVICES]
        if program_spec.workspace is not None:
            paths.append((str(program_spec.workspace.absolute()), int(handled & ~_NEVER)))
        return paths


class Unprotected:
    """No confinement: programs have the rights of the server's user; the limits still apply."""

    name = "none"
    supports_proxy = False

    def __init__(self, settings: SandboxSettings) -> None:
        self._settings = settings

    @property
    def packages(self) -> str | None:
        return str(self._settings.packages) if self._settings.packages.is_dir() else None

    def shown_code(self, code: Sequence[Path]) -> list[str]:
        return [str(one) for one in code]

    def spec(self, program_spec: ProgramSpec) -> SupervisorSpec:
        workspace = "/" if program_spec.workspace is None else str(program_spec.workspace.absolute())
        home = workspace if program_spec.is_resident else TEMPORARY
        return shared_spec(program_spec, self._settings) | {
            "uid": None,
            "env": environment(self.packages, program_spec.interpreter, home=home),
            "cwd": workspace,
            "scratch": True,
        }
