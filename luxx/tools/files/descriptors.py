"""Opens and replaces files by the descriptor of a directory.

A path is opened beneath the directory: neither links nor concurrent renames can lead out of it. There are two
implementations: the system call openat2, and opening one component after the other without following links.
Only the first follows links that stay inside the directory; the second refuses all links. A file is replaced
atomically: a temporary file in the same directory is renamed.
"""

import ctypes
import errno
import os
import platform
import stat
import uuid
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

_OPENAT2 = 437  # the same on every architecture Linux added it to
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_BENEATH = 0x08
# openat2 fails with EAGAIN if something is renamed while it resolves "..".
_OPEN_ATTEMPTS = 32

OpenBeneath = Callable[[int, str, int], int]


class _OpenHow(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


def open_beneath_openat2(root_fd: int, path: str, flags: int) -> int:
    """A descriptor of `path`, relative to `root_fd`. Raises OSError; EXDEV if the path leads out."""
    how = _OpenHow(flags | os.O_CLOEXEC, 0, _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS)
    encoded = os.fsencode(path)
    number = errno.EAGAIN
    for _ in range(_OPEN_ATTEMPTS):
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


def _find_syscall() -> Callable[..., int]:
    if platform.system() != "Linux":
        return _no_syscall
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    return syscall


def _no_syscall(*arguments: object) -> int:
    ctypes.set_errno(errno.ENOSYS)
    return -1


_syscall = _find_syscall()


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


_EXCHANGE = 2
_NOT_SUPPORTED = frozenset({errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM})
# How often `_restore_newest` retries while other programs keep writing new versions.
_RESTORE_ATTEMPTS = 1000

FileVersion = tuple[int, ...]


def version_of(status: os.stat_result) -> FileVersion:
    """A value that changes with each write of the file."""
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def replace_file(directory: int, name: str, data: bytes, mode: int) -> None:
    """Create or replace the file of this name. Raises OSError."""
    with _temporary_file(directory, data, mode) as temporary_name:
        os.rename(temporary_name, name, src_dir_fd=directory, dst_dir_fd=directory)


def replace_file_if_unchanged(
    directory: int,
    name: str,
    data: bytes,
    mode: int,
    *,
    expected_version: FileVersion,
    precondition: Callable[[], None],
) -> bool:
    """Replace the file if it still has `expected_version`; return whether it was replaced.

    Another version keeps the name or gets it back. Only on file systems that cannot exchange two names, a
    write at the last moment is lost. `precondition` is called after the temporary file is written and may
    raise. Raises OSError.
    """
    with _temporary_file(directory, data, mode) as temporary_name:
        new_version = _version_at(directory, temporary_name)
        precondition()
        if _version_at(directory, name) != expected_version:
            return False
        try:
            _exchange(directory, temporary_name, name)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED:
                raise
            os.rename(temporary_name, name, src_dir_fd=directory, dst_dir_fd=directory)
            return True
        if _version_at(directory, temporary_name) == expected_version:
            return True
        _restore_newest(directory, temporary_name, name, new_version)
        return False


def _restore_newest(directory: int, temporary_name: str, name: str, new_version: FileVersion | None) -> None:
    """Exchange the names back, so that the newest version of other programs has `name`."""
    for _ in range(_RESTORE_ATTEMPTS):
        previous_version = _version_at(directory, temporary_name)
        try:
            _exchange(directory, temporary_name, name)
        except FileNotFoundError:
            return
        if _version_at(directory, temporary_name) == new_version:
            return
        # The exchange took out a still newer version, which must get the name.
        new_version = previous_version


def _version_at(directory: int, name: str) -> FileVersion | None:
    try:
        return version_of(os.stat(name, dir_fd=directory, follow_symlinks=False))
    except FileNotFoundError:
        return None


@contextmanager
def _temporary_file(directory: int, data: bytes, mode: int) -> Generator[str]:
    """The name of a new file with this content, synced to disk. The name is removed at the end."""
    name = f".luxx-{uuid.uuid4().hex}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(name, flags, mode, dir_fd=directory)
    try:
        try:
            if stat.S_IMODE(os.fstat(fd).st_mode) != mode:
                os.fchmod(fd, mode)
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        yield name
    finally:
        with suppress(OSError):
            os.unlink(name, dir_fd=directory)


_renameat2: Callable[..., int] | None = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)


def _exchange(directory: int, first: str, second: str) -> None:
    if _renameat2 is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    directory_fd = ctypes.c_int(directory)
    names = [ctypes.c_char_p(os.fsencode(name)) for name in (first, second)]
    if _renameat2(directory_fd, names[0], directory_fd, names[1], ctypes.c_uint(_EXCHANGE)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
