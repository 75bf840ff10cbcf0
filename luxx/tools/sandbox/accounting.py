"""What a tree of processes has used from the start on, the gone with the living.

Part of the supervisor: only the standard library, and of it only what loads fast.
"""

from __future__ import annotations

import ctypes
import os
import stat

from luxx.tools.sandbox.processes import Buffers, Process

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes as long to load as all the rest
    from collections.abc import Iterable

Key = tuple[int, int]

_from_kernel = ctypes.CDLL(None)


class Account:
    """Looked at again and again, as `uid` where that is not who we are: without a capability root may not.

    `trusted` are processes of our own, which may hide what they write.

    What a process used goes to its parent only where that one waits for it, and else nowhere. So what is gone
    keeps what it was last seen with, less what its nearest living ancestor has got since.
    """

    def __init__(self, trusted: set[int], uid: int | None, buffers: Buffers) -> None:
        self.memory = 0
        self.tasks = 0
        self.is_hiding = False
        """Whether a process could not be looked into twice in a row; once may be while it begins or ends."""
        self._trusted = trusted
        self._uid = uid
        self._buffers = buffers
        self._hidden: set[Key] = set()
        self._last: dict[Key, Process] = {}
        self._lost = [0.0, 0.0]
        self._start = (0.0, 0.0)

    @property
    def cpu(self) -> float:
        return self._total(0) - self._start[0]

    @property
    def written(self) -> float:
        return self._total(1) - self._start[1]

    def begin(self) -> None:
        """What was used until now does not count."""
        self._start = (self._total(0), self._total(1))

    def look(self, pids: list[int]) -> None:
        processes, buffered = self._look(pids)
        found = {one.key: one for one in processes if one.exists}
        for key, one in found.items():
            if one.is_unreadable and key in self._last:
                one.used = (one.used[0], self._last[key].used[1])
        gone = [one for key, one in self._last.items() if key not in found]
        self._lose(gone, found)
        hidden = {key for key, one in found.items() if one.is_hidden and one.pid not in self._trusted}
        self.is_hiding = self.is_hiding or bool(hidden & self._hidden)
        self._hidden = hidden
        self.memory = sum(one.memory for one in found.values()) + buffered
        self.tasks = sum(one.tasks for one in found.values())
        self._last = found

    def _look(self, pids: Iterable[int]) -> tuple[list[Process], int]:
        """The processes, and the bytes that their pipes and sockets may hold."""
        if self._uid is None:
            found = [Process(pid) for pid in pids]
            return found, self._buffers.look(found)
        # Only for /proc: signals to us are not allowed by this.
        _from_kernel.setfsgid(self._uid)
        _from_kernel.setfsuid(self._uid)
        try:
            found = [Process(pid) for pid in pids]
            return found, self._buffers.look(found)
        finally:
            _from_kernel.setfsuid(0)
            _from_kernel.setfsgid(0)

    def _lose(self, gone: list[Process], found: dict[Key, Process]) -> None:
        heirs: dict[Key | None, list[Process]] = {}
        before = {one.pid: one for one in self._last.values()}
        for one in gone:
            heirs.setdefault(_heir(one, before, found), []).append(one)
        for heir, dead in heirs.items():
            for kind in (0, 1):
                got = 0.0 if heir is None else found[heir].used[kind] - self._last[heir].used[kind]
                self._lost[kind] += max(sum(one.used[kind] for one in dead) - max(got, 0.0), 0.0)

    def _total(self, kind: int) -> float:
        return self._lost[kind] + sum(one.used[kind] for one in self._last.values())


def _heir(dead: Process, before: dict[int, Process], found: dict[Key, Process]) -> Key | None:
    """The nearest process above it that still lives; None where that is none of the tree."""
    one, steps = before.get(dead.parent), 0
    while one is not None and one.key not in found and steps < len(before):
        one, steps = before.get(one.parent), steps + 1
    return None if one is None or one.key not in found else one.key


if TYPE_CHECKING:  # typing takes as long to load as all the rest
    from collections.abc import Iterator

ENTRIES_AT_ONCE = 500
PAUSE_LOOKS = 20
"""Looks without counting after each full count."""
LEAST_BYTES = 4096
"""What each entry counts at least: names and links take room, too, of which nothing else tells."""
MAX_DEPTH = 64

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Holdings:
    """`grown`: by how much the directories hold more than when they were first counted."""

    def __init__(self, paths: list[str]) -> None:
        self.grown = 0
        self._paths = paths
        self._first: int | None = None
        self._sum = 0
        self._counting: Iterator[int] | None = None
        self._pause = 0

    def look(self) -> None:
        """Count on for a little."""
        if self._pause:
            self._pause -= 1
            return
        if self._counting is None:
            self._sum = 0
            self._counting = (size for path in self._paths for size in _sizes(path))
        for _ in range(ENTRIES_AT_ONCE):
            size = next(self._counting, None)
            if size is None:
                self._counted()
                return
            self._sum += size
            if self._first is not None:
                self.grown = max(self.grown, self._sum - self._first)

    def _counted(self) -> None:
        self._counting = None
        self._pause = PAUSE_LOOKS
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
                    found = os.stat(entry.name, dir_fd=fd, follow_symlinks=False)
                    is_directory = stat.S_ISDIR(found.st_mode)
                    below = os.open(entry.name, _DIRECTORY, dir_fd=fd) if is_directory and depth else None
                except OSError:
                    continue
                yield max(found.st_blocks * 512, LEAST_BYTES)
                if below is not None:
                    yield from _below(below, depth - 1)
    except OSError:
        return
    finally:
        os.close(fd)
