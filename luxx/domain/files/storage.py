"""A workspace as files are put into it, listed, opened and removed by a person; all confined as for tools.

A file on its way in has no name until it is whole: nobody sees half of it, and nothing is left of it
when the sender goes away or the process dies.
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
        # A folder that is closed to the server would else be a place that no quota knows.
        raise _uncountable() from error
    return _sum(folder_fd, counted, depth + 1)


def _uncountable() -> Conflict:
    return Conflict(
        "the workspace has too many files, too deep folders or closed ones to be counted; "
        "delete some of them",
        kind="workspace_uncountable",
    )


_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
_MODE = 0o600
_DRAFT_PREFIX = ".luxx-"
_NO_TMPFILE = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOSYS, errno.ENOENT)
"""What open() says where the kernel or the file system cannot make a file without a name."""

LATEST_NS = 9_000_000_000 * 10**9
"""In the year 2255: 64 bits of nanoseconds hold it, and so does a date."""

MAX_NUMBER = 1000
"""How many files of one name a folder takes before a person is asked for another."""


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A regular file or folder as it is now. `path` is within the workspace, as the system spells it."""

    path: str
    is_folder: bool
    size: int
    modified_ns: int


class _Handle:
    """A descriptor that threads use one at a time: once closed, its number may be another file's."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()

    @contextmanager
    def using(self) -> Generator[int]:
        """The descriptor, which stays open meanwhile. Raises Conflict if it is closed."""
        with self._lock:
            if self._fd < 0:
                raise Conflict("the file was closed meanwhile", kind="conflict")
            yield self._fd

    def close(self) -> None:
        """Waits for who uses it. May be called again."""
        with self._lock:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)

    def __del__(self) -> None:
        # Whoever should have closed it was cancelled before it was handed over.
        self.close()


class OpenFile(_Handle):
    """A regular file, open for reading: its `name` made safe to say, and the `size` it had when opened."""

    def __init__(self, fd: int, name: str) -> None:
        super().__init__(fd)
        self.name = name
        self.size = os.fstat(fd).st_size

    def read_at(self, offset: int, count: int) -> bytes:
        """Up to `count` bytes; none past the end."""
        with self.using() as fd:
            return os.pread(fd, count, offset)


class UploadDraft(_Handle):
    """A file without a name, being written."""

    def __init__(self, fd: int, hidden_name: str | None) -> None:
        super().__init__(fd)
        self.hidden_name = hidden_name
        self.size = 0
        self._hash = hashlib.sha256()

    def write(self, data: bytes) -> None:
        """Appends; may block. Raises Unavailable where the disk is full."""
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
    """One user's workspace. Raises NotFound, InvalidInput, Conflict or Unavailable; never names the host's
    paths."""

    @contextmanager
    def open_root(self) -> Generator[int]:
        """The descriptor of the workspace itself."""
        with user_errors(), self._root_fd() as root:
            yield root

    def used_bytes(self) -> int:
        """How many bytes lie in it. Raises Conflict where they cannot be counted."""
        with self.open_root() as root:
            return measure(root)

    def list_folder(self, path: str, *, offset: int, limit: int) -> tuple[list[FileEntry], int]:
        """Folders, then files, by name, and how many there are. Links and special files are left out."""
        with user_errors():
            name = self.relative(path.strip("/"))
            prefix = "" if name == "." else f"{name}/"
            with self.open_directory(name) as fd:
                total, names = _first_names(fd, offset + limit)
                entries = [_entry(fd, prefix, each) for each in names[offset:]]
        return [entry for entry in entries if entry is not None], total

    def look(self, path: str) -> FileEntry | None:
        """What is at the path now; None if it is no regular file or folder, or nothing."""
        try:
            with user_errors(), self._parent(path) as (fd, prefix, last):
                return _entry(fd, prefix, last)
        except (NotFound, InvalidInput):
            return None

    def open_download(self, path: str) -> OpenFile:
        """A regular file, to be read. Raises NotFound for anything else."""
        with user_errors():
            name = self.relative(path)
            with self._root_fd() as root, translate_os_errors(name):
                fd = self._open_beneath(root, name, _READ)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise NotFound(FILE_NOT_FOUND, kind="file_not_found")
        return OpenFile(fd, safe_name(display_path(name.rpartition("/")[2])))

    def remove(self, path: str) -> None:
        """Removes a file or an empty folder. A link that has taken its place goes, not what it leads to."""
        with user_errors(), self._parent(path) as (fd, prefix, last):
            entry = _entry(fd, prefix, last)
            if entry is None:
                raise NotFound(FILE_NOT_FOUND, kind="file_not_found")
            with translate_os_errors(f"{prefix}{last}"):
                if entry.is_folder:
                    os.rmdir(last, dir_fd=fd)
                else:
                    os.unlink(last, dir_fd=fd)

    @contextmanager
    def _parent(self, path: str) -> Generator[tuple[int, str, str]]:
        """The open folder that holds what is at the path, its path as a prefix, and the last name."""
        parent, _, last = self.relative(path).rpartition("/")
        if last == ".":
            raise ToolFailed("the workspace itself is no file")
        with self.open_directory(parent or ".") as fd:
            yield fd, f"{parent}/" if parent else "", last

    def draft(self) -> UploadDraft:
        """A new file without a name, on the workspace's disk."""
        with self.open_root() as root, user_errors(), translate_os_errors("the upload"):
            return _unnamed_draft(root) or _hidden_draft(root)

    def close(self, draft: UploadDraft) -> None:
        """Lets go of a draft; what was not given a name is gone."""
        draft.close()
        if draft.hidden_name is not None:
            with suppress(OSError, LuxxError), self.open_root() as root:
                os.unlink(draft.hidden_name, dir_fd=root)

    def place(self, draft: UploadDraft, folder: str, name: str) -> FileEntry:
        """Gives a whole draft its name in a folder, which is made if missing.

        Nothing is ever replaced: a name that is taken gets a number. Raises Conflict after a thousand.
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
                    # A path that is too long or too deep could never be opened again.
                    path = self.relative(f"{prefix}{chosen}")
                    with suppress(FileExistsError):
                        _link(fd, draft.hidden_name, root, directory, chosen)
                        os.fsync(directory)
                        return _entry_from_stat(path, os.fstat(fd))
        raise Conflict(f"there are {MAX_NUMBER} files named like {name} already", kind="file_exists")

    def make_folder(self, path: str) -> None:
        """A folder with those above it, where they are missing."""
        with user_errors(), self._created_directory(self.relative(path)):
            pass

    @contextmanager
    def try_lock(self) -> Generator[bool]:
        """Whether no other upload into this workspace is being placed, by any server; held to the end."""
        with self.open_root() as root:
            try:
                fcntl.flock(root, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield False
            else:
                yield True


FILE_NOT_FOUND = "no file with this id"


@contextmanager
def user_errors() -> Generator[None]:
    """What the confinement says to a model, as the error that a person's request deserves."""
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
    """How many files and folders an open folder has, and the first of them."""
    total = 0

    def names() -> Iterator[tuple[bool, str]]:
        nonlocal total
        with os.scandir(fd) as entries:
            for entry in entries:
                is_folder = entry.is_dir(follow_symlinks=False)
                if (is_folder or entry.is_file(follow_symlinks=False)) and not _is_draft(entry.name):
                    total += 1
                    yield not is_folder, entry.name

    first = heapq.nsmallest(count, names())
    return total, [name for _, name in first]


def display_path(path: str) -> str:
    """A name that is not UTF-8, in a form JSON can carry."""
    return os.fsencode(path).decode("utf-8", "replace")


def _is_draft(name: str) -> bool:
    return name.startswith(_DRAFT_PREFIX) and name.endswith(".tmp")


def _entry(fd: int, prefix: str, name: str) -> FileEntry | None:
    try:
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
    except OSError:
        return None  # It vanished meanwhile.
    if not stat.S_ISDIR(status.st_mode) and not stat.S_ISREG(status.st_mode):
        return None
    return _entry_from_stat(f"{prefix}{name}", status)


def _entry_from_stat(path: str, status: os.stat_result) -> FileEntry:
    is_folder = stat.S_ISDIR(status.st_mode)
    # Whoever owns a file may date it before the first computer or after the last.
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
    """Where files without a name cannot be made: one with a name that no listing shows."""
    name = f"{_DRAFT_PREFIX}{uuid.uuid4().hex}.tmp"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return UploadDraft(os.open(name, flags, _MODE, dir_fd=root), name)


def _link(fd: int, hidden_name: str | None, root: int, directory: int, name: str) -> None:
    """Raises FileExistsError where the name is taken; the kernel decides, so nothing is ever replaced."""
    if hidden_name is None:
        os.link(f"/proc/self/fd/{fd}", name, dst_dir_fd=directory, follow_symlinks=True)
    else:
        os.link(hidden_name, name, src_dir_fd=root, dst_dir_fd=directory, follow_symlinks=False)
