"""Totals over time: what a process tree has used, with ended processes, and how much its directories grew.

Part of the supervisor: imports only fast modules of the standard library.
"""

from __future__ import annotations

import ctypes
import os
import stat

from luxx.tools.sandbox.processes import KernelBuffers, ProcessSample

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes as long to load as all the rest
    from collections.abc import Iterable, Iterator

Key = tuple[int, int]

ENTRIES_AT_ONCE = 500
PAUSED_UPDATES = 20
"""After a full count, this many updates do not count."""
MIN_ENTRY_BYTES = 4096
"""The minimum that each entry counts: names and links take disk space, too, which `st_blocks` omits."""
MAX_DEPTH = 64

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_from_kernel = ctypes.CDLL(None)


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
        before = {one.pid: one for one in self._last.values()}
        for one in gone:
            by_ancestor.setdefault(_nearest_living_ancestor(one, before, current), []).append(one)
        for ancestor, dead in by_ancestor.items():
            for kind in (0, 1):
                gained = 0.0
                if ancestor is not None:
                    gained = max(current[ancestor].used[kind] - self._last[ancestor].used[kind], 0.0)
                self._gone_usage[kind] += max(sum(one.used[kind] for one in dead) - gained, 0.0)

    def _total(self, kind: int) -> float:
        return self._gone_usage[kind] + sum(one.used[kind] for one in self._last.values())


def _nearest_living_ancestor(
    dead: ProcessSample, before: dict[int, ProcessSample], current: dict[Key, ProcessSample]
) -> Key | None:
    """The nearest ancestor that still lives; None if it is outside of the tree."""
    one, steps = before.get(dead.parent), 0
    while one is not None and one.key not in current and steps < len(before):
        one, steps = before.get(one.parent), steps + 1
    return None if one is None or one.key not in current else one.key


class DiskUsage:
    """`grown`: by how many bytes the directories `paths` have grown since the first full count."""

    def __init__(self, paths: list[str]) -> None:
        self.grown = 0
        self._paths = paths
        self._first: int | None = None
        self._sum = 0
        self._counting: Iterator[int] | None = None
        self._pause = 0

    def update(self) -> None:
        """Continue the count by up to ENTRIES_AT_ONCE entries."""
        if self._pause:
            self._pause -= 1
            return
        if self._counting is None:
            self._sum = 0
            self._counting = (size for path in self._paths for size in _sizes(path))
        for _ in range(ENTRIES_AT_ONCE):
            size = next(self._counting, None)
            if size is None:
                self._finish_count()
                return
            self._sum += size
            if self._first is not None:
                self.grown = max(self.grown, self._sum - self._first)

    def _finish_count(self) -> None:
        self._counting = None
        self._pause = PAUSED_UPDATES
        if self._first is None:
            self._first = self._sum
        self.grown = self._sum - self._first


def _sizes(path: str) -> Iterator[int]:
    try:
        fd = os.open(path, _DIRECTORY)
    except OSError:
        return
    yield from _below(fd, MAX_DEPTH)


def _below(fd: int, depth: int) -> Iterator[int]:
    try:
        with os.scandir(fd) as entries:
            for entry in entries:
                try:
                    status = os.stat(entry.name, dir_fd=fd, follow_symlinks=False)
                    is_directory = stat.S_ISDIR(status.st_mode)
                    below = os.open(entry.name, _DIRECTORY, dir_fd=fd) if is_directory and depth else None
                except OSError:
                    continue
                yield max(status.st_blocks * 512, MIN_ENTRY_BYTES)
                if below is not None:
                    yield from _below(below, depth - 1)
    except OSError:
        return
    finally:
        os.close(fd)
