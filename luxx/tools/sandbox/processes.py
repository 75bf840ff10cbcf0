"""What a tree of processes is, and what each of them uses, read from /proc.

Part of the supervisor: only the standard library, and of it only what loads fast. Not here: the sum over
time, with those that are gone (account).
"""

from __future__ import annotations

import os
import resource
import stat

SIGKILL, SIGSTOP = 9, 19
EACCES, EPERM = 13, 1
_DEAD = (b"Z", b"X", b"")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class ProcessSample:
    """One process at one moment. `used` are seconds of processor and bytes written, with waited children's.
    `files`: how many it has open.

    `is_unreadable`: what it wrote may not be known; `is_hidden`: though it has not ended. A dead one uses no
    memory, but what it has used stays until somebody has waited for it.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        self.exists = bool(fields)
        self.parent = int(fields[1]) if fields else 0
        self.start_ticks = int(fields[19]) if fields else 0
        cpu = sum(int(one) for one in fields[11:15]) / _TICKS_PER_SECOND
        status = _status(pid)
        self.is_alive = fields[:1] not in ([], [b"X"], [b"Z"]) or _threads(status) > 1
        self.tasks = _threads(status) if self.is_alive else 0
        self.files = _open_files(pid) if self.is_alive else 0
        self.memory = sum(_number(status, name) for name in _MEMORY) * 1024
        written, is_unreadable = _written(pid)
        self.is_unreadable = is_unreadable
        self.is_hidden = is_unreadable and b"\nRssAnon:" in status
        self.used = (cpu, float(written))

    @property
    def key(self) -> tuple[int, int]:
        """Numbers are given again; with the time it began, one is never another's."""
        return self.pid, self.start_ticks


_MEMORY = (b"RssAnon", b"RssShmem", b"VmSwap", b"VmPTE")


def tree(root: int) -> list[int]:
    """All processes below `root`, without it; the dead are among them until somebody has waited for them."""
    descendants: list[int] = []
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        for child in children(waiting.pop()):
            if child not in seen:
                seen.add(child)
                descendants.append(child)
                waiting.append(child)
    return descendants


def living(pids: list[int]) -> list[int]:
    return [pid for pid in pids if not _is_dead(pid)]


def children(pid: int) -> list[int]:
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    return [int(one) for task in tasks for one in _read(f"/proc/{pid}/task/{task}/children").split()]


def _is_dead(pid: int) -> bool:
    """A process whose first thread has ended is none while others of its threads go on."""
    state = _read(f"/proc/{pid}/stat").rpartition(b")")[2].strip()[:1]
    return state in _DEAD and _threads(_read(f"/proc/{pid}/status")) < 2


def tasks_of(uid: int) -> int:
    """How many tasks a user has; the kernel's limit counts them all where there is no user namespace."""
    count = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}").st_uid == uid:
                    count += len(os.listdir(f"/proc/{name}/task"))
            except OSError:
                continue
    return count


def _status(pid: int) -> bytes:
    """Of a thread that still has the memory: the first one may have ended before the others."""
    status = _read(f"/proc/{pid}/status")
    if b"\nRssAnon:" in status or _threads(status) < 2:
        return status
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return status
    others = (_read(f"/proc/{pid}/task/{task}/status") for task in tasks)
    return next((one for one in others if b"\nRssAnon:" in one), status)


def _threads(status: bytes) -> int:
    return _number(status, b"Threads")


def _open_files(pid: int) -> int:
    """Before Linux 6.2 the directory does not tell how many are in it."""
    try:
        return os.stat(f"/proc/{pid}/fd").st_size or len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def _written(pid: int) -> tuple[int, bool]:
    """Bytes, and whether this may not be known. What was dropped unwritten is never more than was written."""
    try:
        with open(f"/proc/{pid}/io", "rb", buffering=0) as file:
            io = b"\n" + (file.read(4096) or b"")
    except OSError as error:
        return 0, error.errno in (EACCES, EPERM)
    return max(_number(io, b"write_bytes") - _number(io, b"cancelled_write_bytes"), 0), False


def _number(text: bytes, name: bytes) -> int:
    """What stands behind `name` at the start of a line; what stands elsewhere a program may have chosen."""
    fields = text.partition(b"\n" + name + b":")[2].split(None, 1)
    return int(fields[0]) if fields and fields[0].isdigit() else 0


def _read(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(65536) or b""
    except OSError:
        return b""


def signal_to(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        return


def reap(main_pid: int | None) -> None:
    """Take leave of dead orphans; the main process keeps its status until it is asked for."""
    for pid in children(os.getpid()):
        if pid != main_pid:
            try:
                os.waitpid(pid, os.WNOHANG)
            except OSError:
                continue


TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes as long to load as all the rest
    from collections.abc import Iterable

    from luxx.tools.sandbox.processes import ProcessSample

PIPE_BYTES = 16 * resource.getpagesize()
"""What a pipe holds at most; the filter keeps it from being enlarged."""
DEFAULT_BUFFER_BYTES = 212_992
"""Bytes of one socket and direction, unless the machine's settings are others and can be read."""
UNCOUNTED_FILES = 256
"""Up to so many open files of all processes together, these are not looked at one by one."""
NAME_BYTES = 2048
"""Of one file in memory, besides its contents: inode, entry and a long name."""
RESERVE_FRACTION = 16
"""Programs leave this part of the machine's memory, where the configuration does not say how much."""
CHECK_INTERVAL = 4
"""The machine is looked at each so many looks at the program."""
PATIENCE = 3
"""So many of these a program that holds nothing outlasts when the machine is short of memory."""


class KernelBuffers:
    """`look` tells what pipes and sockets may hold: each counts as if it were full.

    `network_of` is a process in a network of the program's own, where all sockets can be counted, also those
    that no process has open: unaccepted connections, and closed ones with something left to send.
    """

    def __init__(self, network_of: int | None) -> None:
        self._network_of = network_of
        self._socket_bytes = 0

    def look(self, processes: Iterable[ProcessSample]) -> int:
        """To be called as the user of the processes."""
        with_files = [one for one in processes if one.files]
        pipes, sockets = (
            _buffered(with_files) if sum(one.files for one in with_files) > UNCOUNTED_FILES else (0, 0)
        )
        if self._network_of is not None:
            sockets = max(sockets, _sockets_in(self._network_of))
        if not self._socket_bytes and sockets:
            self._socket_bytes = _buffer("rmem_default") + _buffer("wmem_default")
        return pipes * PIPE_BYTES + sockets * self._socket_bytes


class MachineMemory:
    """Whether the machine is short of memory, and whether a program is among those that have to go."""

    def __init__(self, reserve: int) -> None:
        self._reserve = reserve
        self._short_for = 0
        self._looks = 0

    def must_end(self, share: float) -> bool:
        """`share`: the part of its limit that the program holds. Who holds more goes sooner."""
        self._looks += 1
        if self._looks % CHECK_INTERVAL:
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
        return 0 < available < (self._reserve or _kilobytes(text, b"MemTotal") // RESERVE_FRACTION)


def name_memory_bytes(taken: os.statvfs_result) -> int:
    """Bytes of memory for the names in a file system in memory."""
    return (taken.f_files - taken.f_ffree) * NAME_BYTES


def _buffered(processes: list[ProcessSample]) -> tuple[int, int]:
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
                status = os.stat(f"{folder}/{name}")
            except OSError:
                continue
            if stat.S_ISFIFO(status.st_mode):
                pipes.add(status.st_ino)
            elif stat.S_ISSOCK(status.st_mode):
                sockets.add(status.st_ino)
    return len(pipes), len(sockets)


def _sockets_in(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/net/sockstat", "rb", buffering=0) as file:
            fields = (file.read(4096) or b"").split()
    except OSError:
        return 0
    return int(fields[2]) if fields[:2] == [b"sockets:", b"used"] else 0


def _kilobytes(text: bytes, name: bytes) -> int:
    fields = text.partition(b"\n" + name + b":")[2].split(None, 1)
    return int(fields[0]) * 1024 if fields else 0


def _buffer(name: str) -> int:
    try:
        with open(f"/proc/sys/net/core/{name}", "rb", buffering=0) as file:
            return int(file.read(64) or b"0")
    except OSError:
        # Older kernels do not show it in a container's network.
        return DEFAULT_BUFFER_BYTES
