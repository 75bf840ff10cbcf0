"""Replaces a file atomically: writes a temporary file in the same directory and renames it.

`workspace` opens the directory.
"""

import ctypes
import errno
import os
import stat
import uuid
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

_EXCHANGE = 2
_NOT_SUPPORTED = frozenset({errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM})
# How often `_restore_newest` retries while other programs keep writing new versions.
_ATTEMPTS = 1000

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
    for _ in range(_ATTEMPTS):
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


def _find_exchange() -> Callable[..., int] | None:
    return getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)


_renameat2 = _find_exchange()


def _exchange(directory: int, one: str, other: str) -> None:
    if _renameat2 is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    directory_fd = ctypes.c_int(directory)
    names = [ctypes.c_char_p(os.fsencode(name)) for name in (one, other)]
    if _renameat2(directory_fd, names[0], directory_fd, names[1], ctypes.c_uint(_EXCHANGE)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
