"""Packs a user's files into a tar file and unpacks them. Regular files and folders only: no links, no
devices.

A file is copied completely before it is packed; one that changes meanwhile is copied again. A file that
cannot be read is left out and reported; a failed write fails the whole operation.
"""

import os
import re
import stat
import tarfile
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol, Self, cast

import msgspec

from luxx.errors import LuxxError

CHUNK = 1024 * 1024
IN_MEMORY = 8 * 1024 * 1024
MAX_COPY_ATTEMPTS = 5
MAX_DEPTH = 64
"""Maximum folder depth; the file tools allow the same."""

MAX_HEADER = 64 * 1024
"""Maximum bytes of a header for one file: its name and its times."""

TIME = re.compile(r"(\d{1,12})(?:\.(\d{0,18}))?", re.ASCII)
"""Seconds since 1970."""

LATEST_NS = 2**63 - 1
"""In the year 2262. Some file systems store later times, which others could not restore."""

EXTENDED = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Writable(Protocol):
    def write(self, data: bytes, /) -> int: ...


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class PackResult(msgspec.Struct, frozen=True, kw_only=True):
    """The number of packed files, and sentences about those left out."""

    files: int
    left_out: list[str]


class _Unreadable(Exception):
    """Something in the workspace cannot be read, for the reason `why`; `is_gone`: it was deleted
    meanwhile."""

    def __init__(self, why: str, *, is_gone: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.is_gone = is_gone


@contextmanager
def _reading() -> Generator[None]:
    """Marks OSErrors of reading the workspace; all other OSErrors concern the output, which must be
    complete."""
    try:
        yield
    except OSError as error:
        raise _Unreadable(
            f"cannot be read: {error.strerror}", is_gone=isinstance(error, FileNotFoundError)
        ) from error


class _Header(tarfile.TarInfo):
    """Refuses headers that would fill the memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        header = super().frombuf(buf, encoding, errors)
        if header.type in EXTENDED and not 0 <= header.size <= MAX_HEADER:
            raise tarfile.ReadError("it contains a file name that is too long")
        return header


# Out


def pack(root: Path, out: Writable, spool: Path) -> PackResult:
    """Packs the folder into a tar file; large files are copied to `spool` first. A missing folder counts as
    empty.

    Raises LuxxError if the folder cannot be read, OSError if `out` or `spool` cannot be written.
    """
    packer = _Packer(out, spool)
    try:
        descriptor = os.open(root, _FOLDER)
    except FileNotFoundError:
        return packer.finish()
    except OSError as error:
        raise LuxxError(f"the workspace {root} cannot be read: {error.strerror}") from error
    try:
        packer.folder(descriptor, "")
    except BaseException as error:
        packer.out.detach()
        if isinstance(error, _Unreadable):
            raise LuxxError(f"the workspace {root} {error.why}") from error
        raise
    finally:
        os.close(descriptor)
    return packer.finish()


class _DetachableOutput:
    """The output of a tar file that can be detached after an error: TarFile would write its end to a closed
    file."""

    def __init__(self, out: Writable) -> None:
        self.write: Callable[[bytes], int] = out.write

    def detach(self) -> None:
        self.write = len


class _Packer:
    def __init__(self, out: Writable, spool: Path) -> None:
        self.out = _DetachableOutput(out)
        # `finish` closes it; without `finish` the file is discarded.
        self._tar = tarfile.open(  # noqa: SIM115
            fileobj=cast("IO[bytes]", self.out),
            mode="w|",
            format=tarfile.PAX_FORMAT,
            errors="surrogateescape",
        )
        self._spool = str(spool)
        self._files = 0
        self._left_out: list[str] = []

    def finish(self) -> PackResult:
        self._tar.close()
        return PackResult(files=self._files, left_out=self._left_out)

    def folder(self, descriptor: int, prefix: str) -> None:
        """Packs the entries of an open folder, by name."""
        with _reading():
            names = sorted(os.listdir(descriptor))
        for name in names:
            path = prefix + name
            try:
                with _reading():
                    mode = os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode
                if stat.S_ISDIR(mode):
                    self._sub_folder(descriptor, name, path)
                elif stat.S_ISREG(mode):
                    self._file(descriptor, name, path)
                else:
                    self._leave_out(path, "is not a regular file")
            except _Unreadable as error:
                if not error.is_gone:  # A deleted file is not reported.
                    self._leave_out(path, error.why)

    def _sub_folder(self, descriptor: int, name: str, path: str) -> None:
        if path.count("/") >= MAX_DEPTH:
            self._leave_out(path, f"is more than {MAX_DEPTH} folders deep")
            return
        with _reading():
            child_fd = os.open(name, _FOLDER, dir_fd=descriptor)
        try:
            info = _tar_info(path, os.fstat(child_fd))
            info.type = tarfile.DIRTYPE
            self._add(info, None)
            self.folder(child_fd, f"{path}/")
        finally:
            os.close(child_fd)

    def _file(self, descriptor: int, name: str, path: str) -> None:
        for attempt in range(1, MAX_COPY_ATTEMPTS + 1):
            with _reading():
                file = os.open(name, _FILE, dir_fd=descriptor)
            with (
                os.fdopen(file, "rb") as source,
                tempfile.SpooledTemporaryFile(IN_MEMORY, dir=self._spool) as copy,
            ):
                before = os.fstat(source.fileno())
                if not stat.S_ISREG(before.st_mode):
                    raise _Unreadable("is no longer a regular file", is_gone=True)
                size = _copy_bytes(source, cast("IO[bytes]", copy), before.st_size)
                is_unchanged = size == before.st_size and _state(os.fstat(source.fileno())) == _state(before)
                if not is_unchanged and attempt < MAX_COPY_ATTEMPTS:
                    continue
                if not is_unchanged:
                    self._left_out.append(
                        f"{_printable(path)} changed while it was copied; the copy may be inconsistent"
                    )
                info = _tar_info(path, before)
                info.size = size
                copy.seek(0)
                self._add(info, cast("IO[bytes]", copy))
                self._files += 1
                return

    def _add(self, info: tarfile.TarInfo, file: IO[bytes] | None) -> None:
        self._tar.addfile(info, file)
        _members_of(self._tar).clear()

    def _leave_out(self, path: str, why: str) -> None:
        self._left_out.append(f"{_printable(path)} {why}")


def _copy_bytes(source: IO[bytes], copy: IO[bytes], max_bytes: int) -> int:
    """Copies at most `max_bytes`, so that a growing file ends too; returns the number of bytes."""
    bytes_left = max_bytes
    while bytes_left:
        with _reading():
            data = source.read(min(CHUNK, bytes_left))
        if not data:
            break
        copy.write(data)
        bytes_left -= len(data)
    return max_bytes - bytes_left


def _state(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _tar_info(path: str, status: os.stat_result) -> tarfile.TarInfo:
    info = _Header(path)
    info.mode = 0o700 if stat.S_ISDIR(status.st_mode) else 0o600 | (status.st_mode & stat.S_IXUSR)
    seconds, rest = divmod(min(max(0, status.st_mtime_ns), LATEST_NS), 10**9)
    info.mtime = seconds
    # To the nanosecond: a stored file hash is valid only for the exact time.
    info.pax_headers = {"mtime": f"{seconds}.{rest:09d}"}
    return info


def _members_of(tar: tarfile.TarFile) -> list[Any]:
    """The TarFile's list of its members, which would not fit in memory for a million files."""
    return cast("list[Any]", vars(tar)["members"])


def _printable(path: str) -> str:
    return os.fsencode(path).decode("utf-8", "replace")


# In


def unpack(file: Readable, folder: Path) -> int:
    """Unpacks a tar file into an empty folder that no other process writes to; returns the number of files.
    Raises LuxxError for a path outside the folder and for anything but files and folders."""
    files = 0
    try:
        for entry in entries(file):
            path = folder / entry.path
            if entry.data is None:
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
                continue
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write(path, entry, entry.data)
            files += 1
    except OSError as error:
        raise LuxxError(f"a file cannot be written below {folder}: {error.strerror}") from error
    return files


class TarEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A file, or without `data` a folder. Read `data` before the next entry."""

    path: Path
    mode: int
    modified_ns: int
    data: Readable | None


class _Content:
    """The content of one file of a tar file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        try:
            return self._file.read(size)
        except tarfile.TarError as error:
            raise _unpackable(error) from error


def _unpackable(error: Exception) -> LuxxError:
    return LuxxError(f"the files of a user cannot be unpacked: {error}")


def entries(file: Readable) -> Iterator[TarEntry]:
    """The entries of a tar file in order, with paths inside the target folder. Raises LuxxError."""
    try:
        with tarfile.open(
            fileobj=cast("IO[bytes]", file), mode="r|", tarinfo=_Header, errors="surrogateescape"
        ) as tar:
            while (info := tar.next()) is not None:
                if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE) or info.issparse():
                    raise LuxxError(
                        f"the archive holds {info.name[:200]!r}, which is neither a file nor a folder"
                    )
                content = None if info.isdir() else tar.extractfile(info)
                yield TarEntry(
                    path=_safe_path(info.name),
                    mode=0o600 | (info.mode & stat.S_IXUSR),
                    modified_ns=_modified(info),
                    data=None if content is None else _Content(content),
                )
                _members_of(tar).clear()
    except (tarfile.TarError, UnicodeError, ValueError, RecursionError) as error:
        raise _unpackable(error) from error
    # Read to the very end, so that the reader checks the hash.
    while file.read(CHUNK):
        pass


def _safe_path(name: str) -> Path:
    parts = name.rstrip("/").split("/")
    is_unsafe = any(part in ("", ".", "..") or "\0" in part or len(os.fsencode(part)) > 255 for part in parts)
    if is_unsafe or len(parts) > MAX_DEPTH + 1:
        raise LuxxError(
            f"the archive holds a file named {name[:200]!r}, which points outside the target folder"
        )
    return Path(*parts)


def _write(path: Path, entry: TarEntry, data: Readable) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, entry.mode)
    with os.fdopen(descriptor, "wb") as out:
        while piece := data.read(CHUNK):
            out.write(piece)
        out.flush()
        os.utime(out.fileno(), ns=(entry.modified_ns, entry.modified_ns))


def _modified(info: tarfile.TarInfo) -> int:
    time_text = str(info.pax_headers.get("mtime", info.mtime))
    match = TIME.fullmatch(time_text)
    if match is None:
        raise ValueError(f"a file in it has the invalid time {time_text[:40]!r}")
    return min(int(match[1]) * 10**9 + int(f"{match[2] or '':0<9}"[:9]), LATEST_NS)
