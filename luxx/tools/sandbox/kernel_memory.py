"""Memory that the kernel holds for programs and that belongs to none of their processes, read from /proc.

Part of the supervisor: only the standard library, and of it only what loads fast.
"""

from __future__ import annotations

import os
import resource
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes as long to load as all the rest
    from collections.abc import Iterable

    from luxx.tools.sandbox.processes import Process

PIPE_BYTES = 16 * resource.getpagesize()
"""What a pipe holds at most; the filter keeps it from being enlarged."""
USUAL_BUFFER = 212_992
"""Bytes of one socket and direction, unless the machine's settings are others and can be read."""
FEW_FILES = 256
"""Up to so many open files of all processes together, these are not looked at one by one."""
NAME_BYTES = 2048
"""Of one file in memory, besides its contents: inode, entry and a long name."""
FLOOR_PART = 16
"""Programs leave this part of the machine's memory, where the configuration does not say how much."""
LOOKS_APART = 4
"""The machine is looked at each so many looks at the program."""
PATIENCE = 3
"""So many of these a program that holds nothing outlasts when the machine is short of memory."""


class Buffers:
    """`look` tells what pipes and sockets may hold: each counts as if it were full.

    `network_of` is a process in a network of the program's own, where all sockets can be counted, also those
    that no process has open: unaccepted connections, and closed ones with something left to send.
    """

    def __init__(self, network_of: int | None) -> None:
        self._network_of = network_of
        self._socket_bytes = 0

    def look(self, processes: Iterable[Process]) -> int:
        """To be called as the user of the processes."""
        of_each = [one for one in processes if one.files]
        pipes, sockets = _buffered(of_each) if sum(one.files for one in of_each) > FEW_FILES else (0, 0)
        if self._network_of is not None:
            sockets = max(sockets, _sockets_in(self._network_of))
        if not self._socket_bytes and sockets:
            self._socket_bytes = _buffer("rmem_default") + _buffer("wmem_default")
        return pipes * PIPE_BYTES + sockets * self._socket_bytes


class Machine:
    """Whether the machine is short of memory, and whether a program is among those that have to go."""

    def __init__(self, reserve: int) -> None:
        self._reserve = reserve
        self._short_for = 0
        self._looks = 0

    def ends(self, share: float) -> bool:
        """`share`: the part of its limit that the program holds. Who holds more goes sooner."""
        self._looks += 1
        if self._looks % LOOKS_APART:
            return False
        if not self._is_short():
            self._short_for = 0
            return False
        self._short_for += 1
        return self._short_for > PATIENCE * (1 - share)

    def _is_short(self) -> bool:
        with open("/proc/meminfo", "rb", buffering=0) as file:
            text = b"\n" + (file.read(4096) or b"")
        available = _kilobytes(text, b"MemAvailable")
        return 0 < available < (self._reserve or _kilobytes(text, b"MemTotal") // FLOOR_PART)


def held_by_names(taken: os.statvfs_result) -> int:
    """Bytes of memory for the names in a file system in memory."""
    return (taken.f_files - taken.f_ffree) * NAME_BYTES


def _buffered(processes: list[Process]) -> tuple[int, int]:
    """How many pipes and sockets they have open, each counted once."""
    pipes: set[int] = set()
    sockets: set[int] = set()
    for one in processes:
        folder = f"/proc/{one.pid}/fd"
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            try:
                found = os.stat(f"{folder}/{name}")
            except OSError:
                continue
            if stat.S_ISFIFO(found.st_mode):
                pipes.add(found.st_ino)
            elif stat.S_ISSOCK(found.st_mode):
                sockets.add(found.st_ino)
    return len(pipes), len(sockets)


def _sockets_in(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/net/sockstat", "rb", buffering=0) as file:
            words = (file.read(4096) or b"").split()
    except OSError:
        return 0
    return int(words[2]) if words[:2] == [b"sockets:", b"used"] else 0


def _kilobytes(text: bytes, name: bytes) -> int:
    words = text.partition(b"\n" + name + b":")[2].split(None, 1)
    return int(words[0]) * 1024 if words else 0


def _buffer(name: str) -> int:
    try:
        with open(f"/proc/sys/net/core/{name}", "rb", buffering=0) as file:
            return int(file.read(64) or b"0")
    except OSError:
        # Older kernels do not show it in a container's network.
        return USUAL_BUFFER
