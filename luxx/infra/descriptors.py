"""Keeping this process's file descriptors from the programs it starts.

Only the standard library, and of it only what loads fast: the supervisors of sandboxed programs use it too.
"""

import ctypes
import os
import sys
from itertools import pairwise

CLOSE_RANGE = 436
"""The number of close_range(2), the same on every architecture."""
CLOSE_RANGE_CLOEXEC = 4
LAST_FD = 0xFFFFFFFF
FIRST_FD = 3
"""0, 1 and 2 are a program's standard streams."""

_syscall = ctypes.CDLL(None, use_errno=True).syscall


def close_all_on_exec() -> None:
    """Mark every open descriptor from 3 on close-on-exec, whoever opened it and however.

    A descriptor may come from the process that started this one, or from a library that opens it without
    `O_CLOEXEC`. Where an event loop starts processes itself, as uvloop does, `close_fds` has no effect.
    """
    if not _close_range(FIRST_FD, LAST_FD, CLOSE_RANGE_CLOEXEC):
        for fd in _open_descriptors():
            try:
                os.set_inheritable(fd, False)
            except OSError:
                # The one that listed the directory.
                continue


def close_all_but(kept: list[int]) -> None:
    """Close every open descriptor from 3 on that is not among `kept`."""
    bounds = [FIRST_FD - 1, *sorted(fd for fd in kept if fd >= FIRST_FD), LAST_FD + 1]
    gaps = [(low + 1, high - 1) for low, high in pairwise(bounds) if low + 1 < high]
    if not all(_close_range(first, last, 0) for first, last in gaps):
        for fd in _open_descriptors():
            if fd not in kept:
                os.closerange(fd, fd + 1)


def _close_range(first: int, last: int, flags: int) -> bool:
    """Whether the kernel did it; before Linux 5.11 and elsewhere it does not."""
    if sys.platform != "linux":
        return False
    return _syscall(CLOSE_RANGE, *(ctypes.c_uint(one) for one in (first, last, flags))) == 0


def _open_descriptors() -> list[int]:
    return [fd for fd in map(int, os.listdir("/dev/fd")) if fd >= FIRST_FD]
