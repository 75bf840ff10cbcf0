"""Going through a directory and what lies below it, by descriptors only: a link is named, never followed."""

import os
from collections.abc import Callable, Iterator
from heapq import nsmallest

import msgspec

from luxx.tools.files.workspace import MAX_DEPTH, kind_of

# Directories of tools, not of people's work; they are named but not entered.
SKIPPED_DIRECTORIES = frozenset({".git", "node_modules", "__pycache__"})
# Of one directory; more would only fill memory.
MAX_NAMES = 10_000


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """`directory_fd` is the open directory that holds `name`; it is good until the next one is asked for."""

    path: str
    name: str
    kind: str
    size: int
    directory_fd: int


def walk(
    fd: int,
    prefix: str = "",
    *,
    recursive: bool = True,
    on_crowded: Callable[[str], None] = lambda directory: None,
) -> Iterator[Found]:
    """What lies in the open directory `fd`, by name; below each directory its own content, if `recursive`.

    `prefix` is put before the paths. What vanishes meanwhile is left out. Of a directory with more than
    10,000 names the first are given, and `on_crowded` is told its path. One descriptor more is open at a
    time, however deep it goes.
    """
    levels = [_Level(fd, prefix, on_crowded)]
    here = fd
    try:
        while levels:
            found = levels[-1].next(here)
            if found is None:
                levels.pop()
                if here != fd:
                    here = _left(here, fd, levels)
                continue
            yield found
            if recursive and found.kind == "directory" and _is_entered(found.name, len(levels)):
                below = _opened(here, found.name)
                if below is not None:
                    before, here = here, below
                    if before != fd:
                        os.close(before)
                    levels.append(_Level(here, f"{found.path}/", on_crowded))
    finally:
        if here != fd:
            os.close(here)


def open_found(found: Found) -> int:
    """A descriptor of a found file; a link that has taken its place is not followed. Raises OSError."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(found.name, flags, dir_fd=found.directory_fd)


class _Level:
    """A directory on the way down: which one it is, and the names in it that are still to come."""

    def __init__(self, fd: int, prefix: str, on_crowded: Callable[[str], None]) -> None:
        self.status = os.fstat(fd)
        self._prefix = prefix
        names = _names(fd)
        if len(names) > MAX_NAMES:
            on_crowded(prefix.rstrip("/") or ".")
        self._names = iter(names[:MAX_NAMES])

    def next(self, fd: int) -> Found | None:
        for name in self._names:
            try:
                status = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except OSError:
                continue
            kind, path = kind_of(status.st_mode), f"{self._prefix}{name}"
            return Found(path=path, name=name, kind=kind, size=status.st_size, directory_fd=fd)
        return None


def _is_entered(name: str, depth: int) -> bool:
    return name not in SKIPPED_DIRECTORIES and depth <= MAX_DEPTH


def _left(here: int, top: int, levels: list[_Level]) -> int:
    """The directory above `here`, which is closed. Where that is not the one it was entered from, because
    somebody has moved it, the rest of those between is left out and the walk goes on at the top."""
    above = _opened(here, "..") if len(levels) > 1 else None
    is_same = above is not None and os.path.samestat(os.fstat(above), levels[-1].status)
    os.close(here)
    if above is not None and is_same:
        return above
    if above is not None:
        os.close(above)
    del levels[1:]
    return top


def _opened(fd: int, name: str) -> int | None:
    try:
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
    except OSError:
        return None


def _names(fd: int) -> list[str]:
    try:
        with os.scandir(fd) as entries:
            return nsmallest(MAX_NAMES + 1, (entry.name for entry in entries))
    except OSError:
        return []
