"""Going through a directory and what lies below it, by descriptors only: a link is named, never followed."""

import os
import stat
from collections.abc import Callable, Iterator
from heapq import nsmallest

import msgspec

from luxx.tools.confine import MAX_DEPTH, kind_of

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
    depth: int = 0,
    on_crowded: Callable[[str], None] = lambda directory: None,
) -> Iterator[Found]:
    """What lies in the open directory `fd`, by name; below each directory its own content, if `recursive`.

    `prefix` is put before the paths. What vanishes meanwhile is left out. Of a directory with more than
    10,000 names the first are given, and `on_crowded` is told its path.
    """
    names = _names(fd)
    if len(names) > MAX_NAMES:
        on_crowded(prefix.rstrip("/") or ".")
    for name in names[:MAX_NAMES]:
        try:
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except OSError:
            continue
        path = f"{prefix}{name}"
        kind = kind_of(status.st_mode)
        yield Found(path=path, name=name, kind=kind, size=status.st_size, directory_fd=fd)
        if (
            recursive
            and stat.S_ISDIR(status.st_mode)
            and name not in SKIPPED_DIRECTORIES
            and depth < MAX_DEPTH
        ):
            yield from _below(fd, name, path, depth, on_crowded)


def open_found(found: Found) -> int:
    """A descriptor of a found file; a link that has taken its place is not followed. Raises OSError."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(found.name, flags, dir_fd=found.directory_fd)


def _below(fd: int, name: str, path: str, depth: int, on_crowded: Callable[[str], None]) -> Iterator[Found]:
    try:
        below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
    except OSError:
        return
    try:
        yield from walk(below, f"{path}/", depth=depth + 1, on_crowded=on_crowded)
    finally:
        os.close(below)


def _names(fd: int) -> list[str]:
    try:
        with os.scandir(fd) as entries:
            return nsmallest(MAX_NAMES + 1, (entry.name for entry in entries))
    except OSError:
        return []
