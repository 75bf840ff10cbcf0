"""The process tree and what it uses, read from /proc, and the memory state of the machine.

Part of the supervisor: imports only fast modules of the standard library.
"""

from __future__ import annotations

import ctypes
import os
import resource
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes as long to load as all the rest
    from collections.abc import Iterable

SIGKILL, SIGSTOP = 9, 19
EACCES, EPERM = 13, 1
PIPE_BYTES = 16 * resource.getpagesize()
"""The capacity of a pipe; the system call filter denies enlarging it."""
DEFAULT_BUFFER_BYTES = 212_992
"""Buffer bytes of one socket and direction, used if the machine's setting cannot be read."""
UNCOUNTED_FILES = 256
"""If all processes together have at most this many open files, pipes and sockets are not counted."""
NAME_BYTES = 2048
"""Memory for one file of a tmpfs besides its contents: inode, directory entry and a long name."""
RESERVE_FRACTION = 16
"""Programs leave this fraction of the machine's memory free if the configuration sets no reserve."""
CHECK_INTERVAL = 4
"""The machine's memory is read once per this many updates."""
PATIENCE = 3
"""How many of these checks a program that holds no memory survives while the machine is short of memory."""
_DEAD = (b"Z", b"X", b"")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_from_kernel = ctypes.CDLL(None)

Key = tuple[int, int]
"""The pid with the start time: the kernel reuses pids, but never both."""


class ProcessSample:
    """One process at one moment. `used`: processor seconds and written bytes, with those of reaped children.
    `files`: the number of its open files.

    `is_unreadable`: reading its written bytes is denied; `is_hidden`: denied although it still runs. A dead
    process uses no memory, but keeps its `used` until its parent reaps it.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        self.exists = bool(fields)
        self.parent = int(fields[1]) if fields else 0
        self.start_ticks = int(fields[19]) if fields else 0
        cpu = sum(int(ticks) for ticks in fields[11:15]) / _TICKS_PER_SECOND
        status = _status(pid)
        self.is_alive = fields[:1] not in ([], [b"X"], [b"Z"]) or _threads(status) > 1
        self.tasks = _threads(status) if self.is_alive else 0
        self.files = _open_files(pid) if self.is_alive else 0
        self.memory = sum(_number(status, name) for name in _MEMORY) * 1024
        written, self.is_unreadable = _written(pid)
        self.is_hidden = self.is_unreadable and b"\nRssAnon:" in status
        self.used = (cpu, float(written))

    @property
    def key(self) -> Key:
        return self.pid, self.start_ticks


_MEMORY = (b"RssAnon", b"RssShmem", b"VmSwap", b"VmPTE")


def tree(root: int) -> list[int]:
    """The pids of all descendants of `root`, dead ones that were not reaped included."""
    descendants: list[int] = []
    visited: set[int] = set()
    pending = [root]
    while pending:
        for child in children(pending.pop()):
            if child not in visited:
                visited.add(child)
                descendants.append(child)
                pending.append(child)
    return descendants


def living(pids: list[int]) -> list[int]:
    return [pid for pid in pids if not _is_dead(pid)]


def children(pid: int) -> list[int]:
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    return [int(child) for task in tasks for child in _read(f"/proc/{pid}/task/{task}/children").split()]


def _is_dead(pid: int) -> bool:
    """Whether the process has ended. Its first thread may be dead while other threads still run."""
    state = _read(f"/proc/{pid}/stat").rpartition(b")")[2].strip()[:1]
    return state in _DEAD and _threads(_read(f"/proc/{pid}/status")) < 2


def tasks_of(uid: int) -> int:
    """How many tasks a user has. Outside of a user namespace the kernel's limit counts all of them."""
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
    """/proc/…/status of a thread that still has the memory: the first thread may have ended earlier."""
    status = _read(f"/proc/{pid}/status")
    if b"\nRssAnon:" in status or _threads(status) < 2:
        return status
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return status
    others = (_read(f"/proc/{pid}/task/{task}/status") for task in tasks)
    return next((candidate for candidate in others if b"\nRssAnon:" in candidate), status)


def _threads(status: bytes) -> int:
    return _number(status, b"Threads")


def _open_files(pid: int) -> int:
    """From Linux 6.2 on, the directory's size is the number of open files; before, it is 0."""
    try:
        return os.stat(f"/proc/{pid}/fd").st_size or len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def _written(pid: int) -> tuple[int, bool]:
    """Written bytes, and whether reading them is denied. Cancelled writes are subtracted."""
    try:
        with open(f"/proc/{pid}/io", "rb", buffering=0) as file:
            io = b"\n" + (file.read(4096) or b"")
    except OSError as error:
        return 0, error.errno in (EACCES, EPERM)
    return max(_number(io, b"write_bytes") - _number(io, b"cancelled_write_bytes"), 0), False


def _number(text: bytes, name: bytes) -> int:
    """The number after `name:` at the start of a line. Other positions may hold text that a program chose."""
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
    """Reap dead children except `main_pid`, whose exit status the caller reads."""
    for pid in children(os.getpid()):
        if pid != main_pid:
            try:
                os.waitpid(pid, os.WNOHANG)
            except OSError:
                continue


class KernelBuffers:
    """Measures kernel memory of pipes and sockets; each counts as if its buffers were full.

    `network_of` is the pid of a process in the sandbox's own network, or None. There all sockets are counted,
    also those that no process has open: unaccepted connections, and closed ones with unsent data.
    """

    def __init__(self, network_of: int | None) -> None:
        self._network_of = network_of
        self._socket_bytes = 0

    def measure(self, processes: Iterable[ProcessSample]) -> int:
        """Bytes that the buffers may hold. The caller must have the file system uid of the processes."""
        with_files = [process for process in processes if process.files]
        are_counted = sum(process.files for process in with_files) > UNCOUNTED_FILES
        pipes, sockets = _buffered(with_files) if are_counted else (0, 0)
        if self._network_of is not None:
            sockets = max(sockets, _sockets_in(self._network_of))
        if not self._socket_bytes and sockets:
            self._socket_bytes = _buffer("rmem_default") + _buffer("wmem_default")
        return pipes * PIPE_BYTES + sockets * self._socket_bytes


class MachineMemory:
    """Decides whether a program must end because less than `reserve` bytes (0: the default) are available."""

    def __init__(self, reserve: int) -> None:
        self._reserve = reserve
        self._short_for = 0
        self._updates = 0

    def must_end(self, share: float) -> bool:
        """`share`: the part of its memory limit that the program holds. A larger share ends sooner."""
        self._updates += 1
        if self._updates % CHECK_INTERVAL:
            return False
        if not self._is_short():
            self._short_for = 0
            return False
        self._short_for += 1
        return self._short_for > PATIENCE * (1 - share)

    def _is_short(self) -> bool:
        with open("/proc/meminfo", "rb", buffering=0) as file:
            text = b"\n" + (file.read(4096) or b"")
        available = _number(text, b"MemAvailable") * 1024
        return 0 < available < (self._reserve or _number(text, b"MemTotal") * 1024 // RESERVE_FRACTION)


def name_memory_bytes(taken: os.statvfs_result) -> int:
    """Bytes of memory for the names of all files in a tmpfs."""
    return (taken.f_files - taken.f_ffree) * NAME_BYTES


def _buffered(processes: list[ProcessSample]) -> tuple[int, int]:
    """How many different pipes and sockets the processes have open."""
    pipes: set[int] = set()
    sockets: set[int] = set()
    for process in processes:
        folder = f"/proc/{process.pid}/fd"
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
    fields = _read(f"/proc/{pid}/net/sockstat").split()
    return int(fields[2]) if fields[:2] == [b"sockets:", b"used"] else 0


def _buffer(name: str) -> int:
    # Older kernels hide the setting in a network namespace.
    return int(_read(f"/proc/sys/net/core/{name}") or DEFAULT_BUFFER_BYTES)


class TreeUsage:
    """Memory, tasks, processor time and written bytes of a process tree.

    `uid`: read /proc as this user (None: as the own one), because root without capabilities may not read it.
    `trusted` are pids of Luxx's own processes, whose written bytes may be unreadable.

    The kernel adds the usage of an ended process to its parent only if the parent waits for it. So an ended
    process counts with its last measured usage, minus what its nearest living ancestor has gained since.
    """

    def __init__(self, trusted: set[int], uid: int | None, buffers: KernelBuffers) -> None:
        self.memory = 0
        self.tasks = 0
        self.is_hiding = False
        """Whether a process was unreadable in two updates in a row; in one it may just start or end."""
        self._trusted = trusted
        self._uid = uid
        self._buffers = buffers
        self._hidden: set[Key] = set()
        self._last: dict[Key, ProcessSample] = {}
        self._gone_usage = [0.0, 0.0]
        self._start = (0.0, 0.0)

    @property
    def cpu(self) -> float:
        return self._total(0) - self._start[0]

    @property
    def written(self) -> float:
        return self._total(1) - self._start[1]

    def begin(self) -> None:
        """Count only what is used from now on."""
        self._start = (self._total(0), self._total(1))

    def update(self, pids: list[int]) -> None:
        """Measure the tree that consists of `pids`."""
        processes, buffered = self._read_processes(pids)
        current = {one.key: one for one in processes if one.exists}
        for key, one in current.items():
            if one.is_unreadable and key in self._last:
                one.used = (one.used[0], self._last[key].used[1])
        gone = [one for key, one in self._last.items() if key not in current]
        self._keep_usage_of_gone(gone, current)
        hidden = {key for key, one in current.items() if one.is_hidden and one.pid not in self._trusted}
        self.is_hiding = self.is_hiding or bool(hidden & self._hidden)
        self._hidden = hidden
        self.memory = sum(one.memory for one in current.values()) + buffered
        self.tasks = sum(one.tasks for one in current.values())
        self._last = current

    def _read_processes(self, pids: Iterable[int]) -> tuple[list[ProcessSample], int]:
        """The processes, and the bytes that their pipes and sockets may hold."""
        if self._uid is None:
            current = [ProcessSample(pid) for pid in pids]
            return current, self._buffers.measure(current)
        # The file system uid only: unlike the effective one, it lets that user send this process no signals.
        _from_kernel.setfsgid(self._uid)
        _from_kernel.setfsuid(self._uid)
        try:
            current = [ProcessSample(pid) for pid in pids]
            return current, self._buffers.measure(current)
        finally:
            _from_kernel.setfsuid(0)
            _from_kernel.setfsgid(0)

    def _keep_usage_of_gone(self, gone: list[ProcessSample], current: dict[Key, ProcessSample]) -> None:
        by_ancestor: dict[Key | None, list[ProcessSample]] = {}
        before = {process.pid: process for process in self._last.values()}
        for process in gone:
            by_ancestor.setdefault(_nearest_living_ancestor(process, before, current), []).append(process)
        for ancestor, dead in by_ancestor.items():
            for kind in (0, 1):
                gained = 0.0
                if ancestor is not None:
                    gained = max(current[ancestor].used[kind] - self._last[ancestor].used[kind], 0.0)
                self._gone_usage[kind] += max(sum(process.used[kind] for process in dead) - gained, 0.0)

    def _total(self, kind: int) -> float:
        return self._gone_usage[kind] + sum(process.used[kind] for process in self._last.values())


def _nearest_living_ancestor(
    dead: ProcessSample, before: dict[int, ProcessSample], current: dict[Key, ProcessSample]
) -> Key | None:
    """The nearest ancestor that still lives; None if it is outside of the tree."""
    one, steps = before.get(dead.parent), 0
    while one is not None and one.key not in current and steps < len(before):
        one, steps = before.get(one.parent), steps + 1
    return None if one is None or one.key not in current else one.key
