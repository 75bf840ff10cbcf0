"""How much a workspace holds: every regular file below it, whoever wrote it. Links are not followed."""

import errno
import os
from contextlib import suppress

from luxx.errors import Conflict

MAX_ENTRIES = 200_000
"""More files and folders are not counted, and nothing is added to them: counting takes its time."""

MAX_DEPTH = 200


_VANISHED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def measure(fd: int) -> int:
    """The bytes of all files below an open directory, each counted as long as it is.

    Raises Conflict where not all of it can be counted: then nobody knows what it holds.
    """
    counted = [0]
    return _sum(os.dup(fd), counted, 0)


def _sum(fd: int, counted: list[int], depth: int) -> int:
    """Takes over `fd`. `counted` holds how many entries were seen so far."""
    total = 0
    folders: list[str] = []
    try:
        with os.scandir(fd) as entries:
            for entry in entries:
                counted[0] += 1
                if counted[0] > MAX_ENTRIES or depth > MAX_DEPTH:
                    raise _uncountable()
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.name)
                elif entry.is_file(follow_symlinks=False):
                    with suppress(FileNotFoundError):
                        total += entry.stat(follow_symlinks=False).st_size
        for name in folders:
            total += _below(fd, name, counted, depth)
    finally:
        os.close(fd)
    return total


def _below(fd: int, name: str, counted: list[int], depth: int) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        below = os.open(name, flags, dir_fd=fd)
    except OSError as error:
        if error.errno in _VANISHED:
            return 0
        # A folder that is closed to the server would else be a place that no quota knows.
        raise _uncountable() from error
    return _sum(below, counted, depth + 1)


def _uncountable() -> Conflict:
    return Conflict(
        "the workspace has too many files, too deep folders or closed ones to be counted; "
        "delete some of them",
        kind="workspace_uncountable",
    )
