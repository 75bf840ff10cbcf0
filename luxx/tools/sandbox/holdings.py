"""How much room the files of a jail take on disk, counted a piece at a time.

What processes wrote is counted as they live; here is seen what those left that were too quick to be seen.
Part of the supervisor: only the standard library, and of it only what loads fast.
"""

import os
import stat

TYPE_CHECKING = False
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


def _sizes(path: str) -> "Iterator[int]":
    try:
        fd = os.open(path, _DIRECTORY)
    except OSError:
        return
    yield from _below(fd, MAX_DEPTH)


def _below(fd: int, depth: int) -> "Iterator[int]":
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
