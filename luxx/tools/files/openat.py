"""Opens a path beneath a directory; neither links nor concurrent renames can lead out of the directory.

There are two implementations: the system call openat2, and opening one component after the other without
following links. Only the first follows links that stay inside the directory; the second refuses all links.
"""

import ctypes
import errno
import os
import platform
from collections.abc import Callable

_OPENAT2 = 437  # the same on every architecture Linux added it to
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_BENEATH = 0x08
# openat2 fails with EAGAIN if something is renamed while it resolves "..".
_ATTEMPTS = 32

OpenBeneath = Callable[[int, str, int], int]


class _OpenHow(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


def open_beneath_openat2(root_fd: int, path: str, flags: int) -> int:
    """A descriptor of `path`, relative to `root_fd`. Raises OSError; EXDEV if the path leads out."""
    how = _OpenHow(flags | os.O_CLOEXEC, 0, _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS)
    encoded = os.fsencode(path)
    number = errno.EAGAIN
    for _ in range(_ATTEMPTS):
        fd = _syscall(
            ctypes.c_long(_OPENAT2),
            ctypes.c_int(root_fd),
            ctypes.c_char_p(encoded),
            ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        )
        if fd >= 0:
            return int(fd)
        number = ctypes.get_errno()
        if number not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(number, os.strerror(number))


def open_beneath_stepwise(root_fd: int, path: str, flags: int) -> int:
    """The same without openat2: no component may be a link. Raises OSError."""
    *parents, last = path.split("/")
    current_fd = os.dup(root_fd)
    try:
        for name in parents:
            child_fd = os.open(
                name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=current_fd
            )
            os.close(current_fd)
            current_fd = child_fd
        return os.open(last, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=current_fd)
    finally:
        os.close(current_fd)


def _find_syscall() -> Callable[..., int] | None:
    if platform.system() != "Linux":
        return None
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    return syscall


_libc_syscall = _find_syscall()


def _syscall(*arguments: object) -> int:
    if _libc_syscall is None:
        ctypes.set_errno(errno.ENOSYS)
        return -1
    return _libc_syscall(*arguments)


def has_openat2() -> bool:
    """Whether the kernel has openat2 and no seccomp filter blocks it."""
    try:
        fd = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.close(open_beneath_openat2(fd, ".", os.O_RDONLY | os.O_DIRECTORY))
        finally:
            os.close(fd)
    except OSError:
        return False
    return True
