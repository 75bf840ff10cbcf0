"""Walks a directory tree by descriptors only; it reports links but never follows them."""

import os
from collections.abc import Callable, Iterator
from heapq import nsmallest

import msgspec

from luxx.tools.files.workspace import MAX_DEPTH, kind_of

# Directories made by programs; the walk reports but does not enter them.
SKIPPED_DIRECTORIES = frozenset({".git", "node_modules", "__pycache__"})
# Limit for one directory, to bound the memory.
MAX_NAMES = 10_000


class WalkEntry(msgspec.Struct, frozen=True, kw_only=True):
    """`directory_fd` is the open directory that contains `name`; it is valid until the next entry."""

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
    on_truncated: Callable[[str], None] = lambda directory: None,
) -> Iterator[WalkEntry]:
    """The entries of the open directory `fd`, sorted by name; if `recursive`, also those of subdirectories.

    `prefix` is put before the paths. Entries that vanish during the walk are skipped. A directory with more
    than 10,000 names yields the first ones, and `on_truncated` gets its path. The walk keeps only one more
    descriptor open, at any depth.
    """
    levels = [_Level(fd, prefix, on_truncated)]
    current_fd = fd
    try:
        while levels:
            entry = levels[-1].next(current_fd)
            if entry is None:
                levels.pop()
                if current_fd != fd:
                    current_fd = _leave_directory(current_fd, fd, levels)
                continue
            yield entry
            is_entered = recursive and entry.kind == "directory" and entry.name not in SKIPPED_DIRECTORIES
            if is_entered and len(levels) <= MAX_DEPTH:
                child_fd = _open_directory(current_fd, entry.name)
                if child_fd is not None:
                    previous_fd, current_fd = current_fd, child_fd
                    if previous_fd != fd:
                        os.close(previous_fd)
                    levels.append(_Level(current_fd, f"{entry.path}/", on_truncated))
    finally:
        if current_fd != fd:
            os.close(current_fd)


def open_entry(entry: WalkEntry) -> int:
    """A descriptor of the file; does not follow a link that has replaced it. Raises OSError."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(entry.name, flags, dir_fd=entry.directory_fd)


class _Level:
    """A directory on the current path: its status and its remaining names."""

    def __init__(self, fd: int, prefix: str, on_truncated: Callable[[str], None]) -> None:
        self.status = os.fstat(fd)
        self._prefix = prefix
        names = _sorted_names(fd)
        if len(names) > MAX_NAMES:
            on_truncated(prefix.rstrip("/") or ".")
        self._sorted_names = iter(names[:MAX_NAMES])

    def next(self, fd: int) -> WalkEntry | None:
        for name in self._sorted_names:
            try:
                status = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except OSError:
                continue
            kind, path = kind_of(status.st_mode), f"{self._prefix}{name}"
            return WalkEntry(path=path, name=name, kind=kind, size=status.st_size, directory_fd=fd)
        return None


def _leave_directory(current_fd: int, top: int, levels: list[_Level]) -> int:
    """Close `current_fd` and return its parent. If the directory was moved, so that the parent is another
    one, the walk skips the remaining levels and continues at the top."""
    parent_fd = _open_directory(current_fd, "..") if len(levels) > 1 else None
    is_same = parent_fd is not None and os.path.samestat(os.fstat(parent_fd), levels[-1].status)
    os.close(current_fd)
    if parent_fd is not None and is_same:
        return parent_fd
    if parent_fd is not None:
        os.close(parent_fd)
    del levels[1:]
    return top


def _open_directory(fd: int, name: str) -> int | None:
    try:
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
    except OSError:
        return None


def _sorted_names(fd: int) -> list[str]:
    try:
        with os.scandir(fd) as entries:
            return nsmallest(MAX_NAMES + 1, (entry.name for entry in entries))
    except OSError:
        return []
