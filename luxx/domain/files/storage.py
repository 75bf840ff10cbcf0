"""A user's workspace on disk: listing, opening, uploading and removing files, confined as for tools.

An upload has no name until it is complete: no partial file is visible, and nothing is left if the client
disconnects or the process dies.
"""

import errno
import fcntl
import hashlib
import heapq
import os
import stat
import threading
import uuid
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress

import msgspec

from luxx.domain.files.names import add_number, safe_name
from luxx.errors import Conflict, InvalidInput, LuxxError, NotFound, ToolFailed, Unavailable
from luxx.tools.files.workspace import Workspace, translate_os_errors

MAX_ENTRIES = 200_000
"""The limit of files and folders; a larger workspace takes too long to measure and accepts no files."""

MAX_DEPTH = 200

_VANISHED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def measure(fd: int) -> int:
    """The sum of the file sizes below an open directory. Raises Conflict if not all can be measured."""
    return _sum(os.dup(fd), [0], 0)


def _sum(fd: int, counted: list[int], depth: int) -> int:
    """Closes `fd`. `counted` has one item, the number of entries so far."""
    total = 0
    folders: list[str] = []
    try:
        with os.scandir(fd) as entries:
            for entry in entries:
                counted[0] += 1
                if counted[0] > MAX_ENTRIES or depth > MAX_DEPTH:
                    raise _unmeasurable()
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.name)
                elif entry.is_file(follow_symlinks=False):
                    with suppress(FileNotFoundError):
                        total += entry.stat(follow_symlinks=False).st_size
        for name in folders:
            total += _sum_subfolder(fd, name, counted, depth)
    finally:
        os.close(fd)
    return total


def _sum_subfolder(fd: int, name: str, counted: list[int], depth: int) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        folder_fd = os.open(name, flags, dir_fd=fd)
    except OSError as error:
        if error.errno in _VANISHED:
            return 0
        # Files in a folder that the server cannot read would not count towards the quota.
        raise _unmeasurable() from error
    return _sum(folder_fd, counted, depth + 1)


def _unmeasurable() -> Conflict:
    return Conflict(
        "the workspace cannot be measured: it has too many files, folders nested too deeply, or folders that "
        "the server cannot read; delete some of them",
        kind="workspace_uncountable",
    )


_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
_MODE = 0o600
_DRAFT_PREFIX = ".luxx-"
_NO_TMPFILE = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOSYS, errno.ENOENT)
"""The errors of open() if the kernel or the file system cannot create a file without a name."""

LATEST_NS = 9_000_000_000 * 10**9
"""In the year 2255: it fits into 64 bits of nanoseconds and into a datetime."""

MAX_NUMBER = 1000
"""How many files of one name a folder may have."""


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The current state of a regular file or folder. `path` is relative to the workspace, not normalized."""

    path: str
    is_folder: bool
    size: int
    modified_ns: int


class _Handle:
    """A descriptor for one thread at a time: after closing, its number may refer to another file."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()

    @contextmanager
    def using(self) -> Generator[int]:
        """The descriptor, which stays open inside the block. Raises Conflict if it is closed."""
        with self._lock:
            if self._fd < 0:
                raise Conflict("the file was closed in the meantime", kind="conflict")
            yield self._fd

    def read_at(self, offset: int, count: int) -> bytes:
        """Up to `count` bytes; none past the end."""
        with self.using() as fd:
            return os.pread(fd, count, offset)

    def close(self) -> None:
        """Waits for the thread that uses it. May be called again."""
        with self._lock:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)

    def __del__(self) -> None:
        # For a task that was cancelled before it received the handle.
        self.close()


class OpenFile(_Handle):
    """A regular file, open for reading, with its sanitized `name` and its `size` at opening."""

    def __init__(self, fd: int, name: str) -> None:
        super().__init__(fd)
        self.name = name
        self.size = os.fstat(fd).st_size


class UploadDraft(_Handle):
    """A file that is being written and has no name yet."""

    def __init__(self, fd: int, hidden_name: str | None) -> None:
        super().__init__(fd)
        self.hidden_name = hidden_name
        self.size = 0
        self._hash = hashlib.sha256()

    def write(self, data: bytes) -> None:
        """Appends; may block. Raises Unavailable if the disk is full."""
        with user_errors(), self.using() as fd, translate_os_errors("the upload"):
            self._hash.update(data)
            self.size += len(data)
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


class WorkspaceFiles(Workspace):
    """One user's workspace. Raises NotFound, InvalidInput, Conflict or Unavailable; messages contain no host
    paths."""

    @contextmanager
    def open_root(self) -> Generator[int]:
        """The descriptor of the workspace folder."""
        with user_errors(), self._root_fd() as root:
            yield root

    def used_bytes(self) -> int:
        """The size of all files. Raises Conflict if they cannot all be measured."""
        with self.open_root() as root:
            return measure(root)

    def list_folder(self, path: str, *, offset: int, limit: int) -> tuple[list[FileEntry], int]:
        """Folders, then files, by name, and their total number. Links and special files are excluded."""
        with user_errors():
            name = self.relative(path.strip("/"))
            prefix = "" if name == "." else f"{name}/"
            with self.open_directory(name) as fd:
                total, names = _first_names(fd, offset + limit)
                entries = [_entry(fd, prefix, name) for name in names[offset:]]
        return [entry for entry in entries if entry is not None], total

    def find_entry(self, path: str) -> FileEntry | None:
        """The current entry at a path; None if there is no regular file or folder."""
        try:
            with user_errors(), self._parent(path) as (fd, prefix, last):
                return _entry(fd, prefix, last)
        except (NotFound, InvalidInput):
            return None

    def open_download(self, path: str) -> OpenFile:
        """Opens a regular file for reading. Raises NotFound for anything else."""
        with user_errors():
            name = self.relative(path)
            with self._root_fd() as root, translate_os_errors(name):
                fd = self._open_beneath(root, name, _READ)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise file_not_found()
        return OpenFile(fd, safe_name(display_path(name.rpartition("/")[2])))

    def remove(self, path: str) -> None:
        """Removes a file or an empty folder. Never follows a link that replaced it."""
        with user_errors(), self._parent(path) as (fd, prefix, last):
            entry = _entry(fd, prefix, last)
            if entry is None:
                raise file_not_found()
            with translate_os_errors(f"{prefix}{last}"):
                if entry.is_folder:
                    os.rmdir(last, dir_fd=fd)
                else:
                    os.unlink(last, dir_fd=fd)

    @contextmanager
    def _parent(self, path: str) -> Generator[tuple[int, str, str]]:
        """The descriptor of the path's parent folder, its path as a prefix, and the last name."""
        parent, _, last = self.relative(path).rpartition("/")
        if last == ".":
            raise ToolFailed("the workspace itself is not a file")
        with self.open_directory(parent or ".") as fd:
            yield fd, f"{parent}/" if parent else "", last

    def create_draft(self) -> UploadDraft:
        """Creates a file without a name on the workspace's disk."""
        with self.open_root() as root, user_errors(), translate_os_errors("the upload"):
            return _unnamed_draft(root) or _hidden_draft(root)

    def close_draft(self, draft: UploadDraft) -> None:
        """Closes a draft; it is deleted unless it was given a name."""
        draft.close()
        if draft.hidden_name is not None:
            with suppress(OSError, LuxxError), self.open_root() as root:
                os.unlink(draft.hidden_name, dir_fd=root)

    def save_draft(self, draft: UploadDraft, folder: str, name: str) -> FileEntry:
        """Gives a complete draft its name in a folder, which is created if missing.

        Never replaces a file: a used name gets a number. Raises Conflict past MAX_NUMBER.
        """
        with user_errors(), self.open_root() as root, draft.using() as fd:
            target = self.relative(folder)
            prefix = "" if target == "." else f"{target}/"
            with (
                self._created_directory(prefix.rstrip("/")) as directory,
                translate_os_errors(f"{prefix}{name}"),
            ):
                os.fsync(fd)
                for number in range(1, MAX_NUMBER + 1):
                    chosen = add_number(name, number)
                    # Rejects a path that is too long or too deep to be opened again.
                    path = self.relative(f"{prefix}{chosen}")
                    with suppress(FileExistsError):
                        _link(fd, draft.hidden_name, root, directory, chosen)
                        os.fsync(directory)
                        return _entry_from_stat(path, os.fstat(fd))
        raise Conflict(f"{MAX_NUMBER} files named {name} already exist; rename it", kind="file_exists")

    def make_folder(self, path: str) -> None:
        """Creates a folder and its missing parents."""
        with user_errors(), self._created_directory(self.relative(path)):
            pass

    @contextmanager
    def try_lock(self) -> Generator[bool]:
        """Whether the workspace was locked for placing an upload, across processes, until the block ends."""
        with self.open_root() as root:
            try:
                fcntl.flock(root, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield False
            else:
                yield True


def file_not_found() -> NotFound:
    """The error for an unknown id, or a file that no longer exists."""
    return NotFound("no file with this id", kind="file_not_found")


@contextmanager
def user_errors() -> Generator[None]:
    """Converts ToolFailed errors of the confinement to the errors of an API request."""
    try:
        yield
    except ToolFailed as error:
        number = error.__cause__.errno if isinstance(error.__cause__, OSError) else None
        message = " ".join(error.message.split())  # a name may have line breaks in it
        match number:
            case errno.ENOENT | errno.ENOTDIR | errno.ELOOP | errno.EXDEV | errno.ENXIO:
                raise NotFound(message, kind="file_not_found") from error
            case errno.ENOTEMPTY:
                raise Conflict(message, kind="folder_not_empty") from error
            case errno.ENOSPC | errno.EDQUOT | errno.EROFS | errno.EMFILE | errno.EIO | errno.EACCES:
                raise Unavailable(message, kind="disk_refused") from error
            case _:
                raise InvalidInput(message, kind="path_refused") from error


def _first_names(fd: int, count: int) -> tuple[int, list[str]]:
    """The number of files and folders in an open folder, and the names of the first `count`."""
    total = 0

    def names() -> Iterator[tuple[bool, str]]:
        nonlocal total
        with os.scandir(fd) as entries:
            for entry in entries:
                is_draft = entry.name.startswith(_DRAFT_PREFIX) and entry.name.endswith(".tmp")
                is_folder = entry.is_dir(follow_symlinks=False)
                if (is_folder or entry.is_file(follow_symlinks=False)) and not is_draft:
                    total += 1
                    yield not is_folder, entry.name

    first = heapq.nsmallest(count, names())
    return total, [name for _, name in first]


def display_path(path: str) -> str:
    """The path with invalid UTF-8 replaced, so that it can be encoded as JSON."""
    return os.fsencode(path).decode("utf-8", "replace")


def _entry(fd: int, prefix: str, name: str) -> FileEntry | None:
    try:
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
    except OSError:
        return None  # It was removed in the meantime.
    if not stat.S_ISDIR(status.st_mode) and not stat.S_ISREG(status.st_mode):
        return None
    return _entry_from_stat(f"{prefix}{name}", status)


def _entry_from_stat(path: str, status: os.stat_result) -> FileEntry:
    is_folder = stat.S_ISDIR(status.st_mode)
    # The owner of a file can set any modification time.
    modified_ns = min(max(status.st_mtime_ns, 0), LATEST_NS)
    size = 0 if is_folder else status.st_size
    return FileEntry(path=path, is_folder=is_folder, size=size, modified_ns=modified_ns)


def _unnamed_draft(root: int) -> UploadDraft | None:
    flag: int = getattr(os, "O_TMPFILE", 0)
    if not flag:
        return None
    try:
        return UploadDraft(os.open(".", flag | os.O_RDWR | os.O_CLOEXEC, _MODE, dir_fd=root), None)
    except OSError as error:
        if error.errno in _NO_TMPFILE:
            return None
        raise


def _hidden_draft(root: int) -> UploadDraft:
    """A draft with a name that listings exclude, if files without a name are not supported."""
    name = f"{_DRAFT_PREFIX}{uuid.uuid4().hex}.tmp"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return UploadDraft(os.open(name, flags, _MODE, dir_fd=root), name)


def _link(fd: int, hidden_name: str | None, root: int, directory: int, name: str) -> None:
    """Raises FileExistsError if the name exists; the kernel checks, so no file is ever replaced."""
    if hidden_name is None:
        os.link(f"/proc/self/fd/{fd}", name, dst_dir_fd=directory, follow_symlinks=True)
    else:
        os.link(hidden_name, name, src_dir_fd=root, dst_dir_fd=directory, follow_symlinks=False)
