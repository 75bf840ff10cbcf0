"""Prevents child processes from inheriting the file descriptors of this process.

Imports only modules of the standard library that load fast: sandbox supervisors import this module too.
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
"""0, 1 and 2 are the standard streams."""

_syscall = ctypes.CDLL(None, use_errno=True).syscall


def close_all_on_exec() -> None:
    """Marks every open descriptor from 3 on as close-on-exec.

    The parent process or a library may have opened one without `O_CLOEXEC`. `close_fds` has no effect with
    uvloop, which starts processes itself.
    """
    if not _close_range(FIRST_FD, LAST_FD, CLOSE_RANGE_CLOEXEC):
        for fd in _open_descriptors():
            try:
                os.set_inheritable(fd, False)
            except OSError:
                # The descriptor that `os.listdir` used is closed by now.
                continue


def close_all_but(kept: list[int]) -> None:
    """Closes every open descriptor from 3 on that is not in `kept`."""
    bounds = [FIRST_FD - 1, *sorted(fd for fd in kept if fd >= FIRST_FD), LAST_FD + 1]
    gaps = [(low + 1, high - 1) for low, high in pairwise(bounds) if low + 1 < high]
    if not all(_close_range(first, last, 0) for first, last in gaps):
        for fd in _open_descriptors():
            if fd not in kept:
                os.closerange(fd, fd + 1)


def _close_range(first: int, last: int, flags: int) -> bool:
    """Whether the kernel supports it: Linux from 5.11 on."""
    if sys.platform != "linux":
        return False
    return _syscall(CLOSE_RANGE, *(ctypes.c_uint(one) for one in (first, last, flags))) == 0


def _open_descriptors() -> list[int]:
    return [fd for fd in map(int, os.listdir("/dev/fd")) if fd >= FIRST_FD]
