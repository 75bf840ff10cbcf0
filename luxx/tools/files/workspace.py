"""Opens all paths of tools, and only beneath the user's workspace.

It does not check paths before opening them, so there are no race conditions. It opens only regular files and
directories and refuses pipes, devices and sockets without blocking. It does not detect hard links to files
outside, because creating one needs write access to the host. Messages contain no host paths.
"""

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from luxx.errors import ToolFailed
from luxx.tools.files.descriptors import (
    OpenBeneath,
    has_openat2,
    open_beneath_openat2,
    open_beneath_stepwise,
    replace_file,
    replace_file_if_unchanged,
    version_of,
)

# A tool keeps several copies of a file in memory while it works.
MAX_FILE_BYTES = 10 * 1024 * 1024
# The limits of Linux for a path and for one name in it.
_MAX_PATH_BYTES = 4095
_MAX_NAME_BYTES = 255
# Enough for any source tree.
MAX_DEPTH = 64
# How often a change of a locked file tries to lock it.
_LOCK_POLL_SECONDS = 0.005
_FILE_MODE = 0o600
_DIRECTORY_MODE = 0o700
_READ_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
_READ_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY

_ERRNO_MESSAGES = {
    errno.ENOENT: "does not exist",
    errno.ENOTDIR: "is or leads through something that is not a directory",
    errno.EISDIR: "is a directory",
    errno.ELOOP: "is or leads through a link that is not followed",
    errno.EXDEV: "leads out of the workspace",
    errno.EACCES: "may not be opened",
    errno.EPERM: "may not be opened",
    errno.ENXIO: "is not a regular file",
    errno.EAGAIN: "was being changed while it was opened; try again",
    errno.ENAMETOOLONG: "is too long a path",
    errno.ENOSPC: "cannot be written: the disk is full",
    errno.EDQUOT: "cannot be written: the disk quota is used up",
    errno.EROFS: "cannot be written: the workspace is read-only",
    errno.ENOTEMPTY: "is a directory that is not empty",
    errno.EMFILE: "cannot be opened: too many files are open; try again",
}


_DEFAULT_OPEN_BENEATH: OpenBeneath = open_beneath_openat2 if has_openat2() else open_beneath_stepwise


class Workspace:
    """The files beneath `root`. Every method raises ToolFailed with a message for the model.

    A change of a file waits up to `lock_timeout_seconds` for other changes of it.
    """

    def __init__(
        self,
        root: Path,
        open_beneath: OpenBeneath = _DEFAULT_OPEN_BENEATH,
        *,
        lock_timeout_seconds: float = 5.0,
    ) -> None:
        self._lock_timeout_seconds = lock_timeout_seconds
        self._root = PurePosixPath(os.path.abspath(root))
        self._open_beneath = open_beneath

    def relative(self, path: str) -> str:
        """`path` relative to the workspace, without `.` and `..`; the workspace is `.`. Opens nothing."""
        if "\0" in path:
            raise ToolFailed("a path cannot contain a NUL character")
        try:
            size = len(os.fsencode(path))
        except UnicodeEncodeError:
            raise ToolFailed("the path contains characters that no file name can have") from None
        if size > _MAX_PATH_BYTES:
            raise ToolFailed(f"the path is longer than {_MAX_PATH_BYTES} bytes")
        pure_path = PurePosixPath(path)
        if pure_path.is_absolute():
            if not pure_path.is_relative_to(self._root):
                raise ToolFailed(f"{path[:200]} is outside the workspace; use a path relative to it")
            pure_path = pure_path.relative_to(self._root)
        parts: list[str] = []
        for part in pure_path.parts:
            if part != "..":
                parts.append(part)
            elif parts:
                parts.pop()
            else:
                raise ToolFailed(f"{path[:200]} leads out of the workspace")
        if any(len(os.fsencode(part)) > _MAX_NAME_BYTES for part in parts):
            raise ToolFailed(f"a name in the path is longer than {_MAX_NAME_BYTES} bytes")
        if len(parts) > MAX_DEPTH:
            raise ToolFailed(f"the path is more than {MAX_DEPTH} directories deep")
        return "/".join(parts) or "."

    @contextmanager
    def open_directory(self, path: str) -> Generator[int]:
        """The descriptor of a directory, closed at the end."""
        name = self.relative(path)
        with self._root_fd() as root, translate_os_errors(name):
            fd = self._open_beneath(root, name, _READ_DIRECTORY)
        try:
            yield fd
        finally:
            os.close(fd)

    def kind(self, path: str) -> str | None:
        """`file`, `directory` or `other`; None if nothing exists there."""
        name = self.relative(path)
        with self._root_fd() as root:
            try:
                fd = self._open_beneath(root, name, _READ_FILE)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ENOTDIR):
                    return None
                if error.errno in (errno.ENXIO, errno.EACCES, errno.EPERM):
                    return "other"
                raise ToolFailed(_error_message(name, error)) from error
        try:
            return kind_of(os.fstat(fd).st_mode)
        finally:
            os.close(fd)

    def read(self, path: str, limit: int = MAX_FILE_BYTES) -> bytes:
        """The content of a regular file of at most `limit` bytes."""
        with self.open_file(path) as fd:
            return read_regular(fd, self.relative(path), limit)

    @contextmanager
    def open_file(self, path: str) -> Generator[int]:
        """A read descriptor of a regular file, closed at the end."""
        name = self.relative(path)
        with self._root_fd() as root, translate_os_errors(name):
            fd = self._open_beneath(root, name, _READ_FILE)
        try:
            _require_regular(fd, name)
            yield fd
        finally:
            os.close(fd)

    def change(
        self,
        path: str,
        work: Callable[[bytes], bytes],
        limit: int = MAX_FILE_BYTES,
        *,
        precondition: Callable[[], None] = lambda: None,
    ) -> None:
        """Replace the content of a file atomically by `work(content)`; keep the file mode.

        A file lock serializes changes, also between processes. `precondition` is called right before the
        file is replaced. Errors of `work` and `precondition` pass through. Raises ToolFailed, also if another
        program wrote the file in the meantime; that content is kept.
        """
        name = self.relative(path)
        if name == ".":
            raise ToolFailed(". is a directory")
        parent, _, last = name.rpartition("/")
        deadline = time.monotonic() + self._lock_timeout_seconds
        with (
            self.open_directory(parent or ".") as directory,
            _locked_file(directory, last, name, deadline) as fd,
        ):
            before = os.fstat(fd)
            data = work(read_regular(fd, name, limit))
            if len(data) > limit:
                raise ToolFailed(f"{len(data):,} bytes are too many: a file may have {limit:,}")
            mode, expected_version = stat.S_IMODE(before.st_mode) & 0o777, version_of(before)
            with translate_os_errors(name):
                is_changed = replace_file_if_unchanged(
                    directory, last, data, mode, expected_version=expected_version, precondition=precondition
                )
            if not is_changed:
                raise ToolFailed(f"{name} was written by another program in the meantime; read it again")

    def write(self, path: str, data: bytes, limit: int = MAX_FILE_BYTES) -> bool:
        """Write a file atomically and create missing directories; return whether the file is new.

        An existing file is replaced, not overwritten, so other hard links to it keep the old content. The
        owner's execute permission is kept.
        """
        if len(data) > limit:
            raise ToolFailed(f"{len(data):,} bytes are too many: a file may have {limit:,}")
        name = self.relative(path)
        if name == ".":
            raise ToolFailed(". is a directory")
        parent, _, last = name.rpartition("/")
        with self._created_directory(parent) as directory, translate_os_errors(name):
            old_mode = _replaceable_mode(directory, last, name)
            replace_file(directory, last, data, _FILE_MODE | ((old_mode or 0) & stat.S_IXUSR))
        return old_mode is None

    @contextmanager
    def _root_fd(self) -> Generator[int]:
        try:
            fd = os.open(self._root, _READ_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise ToolFailed("the workspace does not exist or cannot be opened") from error
        try:
            yield fd
        finally:
            os.close(fd)

    @contextmanager
    def _created_directory(self, path: str) -> Generator[int]:
        """The descriptor of a directory; creates it and its parents if missing."""
        parts = path.split("/") if path else []
        with self._root_fd() as root:
            current_fd = os.dup(root)
            try:
                for depth, part in enumerate(parts, 1):
                    prefix = "/".join(parts[:depth])
                    with translate_os_errors(prefix):
                        child_fd = self._enter(root, current_fd, prefix, part)
                    os.close(current_fd)
                    current_fd = child_fd
                yield current_fd
            finally:
                os.close(current_fd)

    def _enter(self, root: int, current_fd: int, prefix: str, name: str) -> int:
        with suppress(FileNotFoundError):
            return self._open_beneath(root, prefix, _READ_DIRECTORY)
        with suppress(FileExistsError):
            os.mkdir(name, _DIRECTORY_MODE, dir_fd=current_fd)
        return self._open_beneath(root, prefix, _READ_DIRECTORY)


@contextmanager
def translate_os_errors(name: str) -> Generator[None]:
    """Translate an OSError to a ToolFailed about `name`, without the host's path."""
    try:
        yield
    except OSError as error:
        raise ToolFailed(_error_message(name, error)) from error


def kind_of(mode: int) -> str:
    """`file`, `directory`, `link` or `other`."""
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "link" if stat.S_ISLNK(mode) else "other"


def read_regular(fd: int, name: str, limit: int) -> bytes:
    """The content of an open file. Raises ToolFailed if it is not regular or over `limit` bytes."""
    size = _require_regular(fd, name)
    if size > limit:
        raise ToolFailed(f"{name} has {size:,} bytes; more than {limit:,} bytes are not read at once")
    pieces: list[bytes] = []
    remaining = limit + 1
    with translate_os_errors(name):
        while remaining > 0 and (piece := os.read(fd, min(remaining, 1 << 20))):
            pieces.append(piece)
            remaining -= len(piece)
    if remaining <= 0:
        raise ToolFailed(f"{name} has more than {limit:,} bytes, which is the limit")
    return b"".join(pieces)


def _require_regular(fd: int, name: str) -> int:
    """The size of an open file. Raises ToolFailed if it is not a regular file."""
    status = os.fstat(fd)
    if stat.S_ISDIR(status.st_mode):
        raise ToolFailed(f"{name} is a directory")
    if not stat.S_ISREG(status.st_mode):
        raise ToolFailed(f"{name} is not a regular file")
    return status.st_size


@contextmanager
def _locked_file(directory: int, last: str, name: str, deadline: float) -> Generator[int]:
    """The descriptor of a locked file; reopens the file after waiting, because it may have been replaced."""
    while True:
        with translate_os_errors(name):
            fd = os.open(last, _READ_FILE | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        try:
            _require_regular(fd, name)
            if _try_lock(fd) and _is_current_file(fd, directory, last):
                yield fd
                return
        finally:
            os.close(fd)
        if time.monotonic() >= deadline:
            raise ToolFailed(f"{name} is being changed by something else; try again later")
        time.sleep(_LOCK_POLL_SECONDS)


def _try_lock(fd: int) -> bool:
    """Lock the file; False if another change holds the lock. True on file systems without locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _is_current_file(fd: int, directory: int, last: str) -> bool:
    """Whether the name still refers to the open file."""
    try:
        now = os.stat(last, dir_fd=directory, follow_symlinks=False)
    except OSError:
        return False
    return os.path.samestat(os.fstat(fd), now)


def _error_message(name: str, error: OSError) -> str:
    message = _ERRNO_MESSAGES.get(error.errno or 0) or f"cannot be used: {os.strerror(error.errno or 0)}"
    return f"{name} {message}"


def _replaceable_mode(directory: int, last: str, name: str) -> int | None:
    """The mode of the existing file, or None. For clear error messages only; safety does not depend on it."""
    try:
        mode = os.stat(last, dir_fd=directory, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISREG(mode):
        return mode
    raise ToolFailed(f"{name} is a {'directory' if stat.S_ISDIR(mode) else 'link or special file'}")
