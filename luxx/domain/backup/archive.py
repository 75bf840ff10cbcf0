"""ZIP files whose manifest has the size and the SHA-256 of every member. What is in them is not known here.

They are written and read as streams. A file is made under another name and gets its own when it is whole;
nothing of a file is believed before all of it was hashed.
"""

import contextlib
import hashlib
import os
import secrets
import zipfile
import zlib
from collections.abc import Generator
from pathlib import Path
from typing import IO, Protocol, Self, TypeVar

import msgspec

from luxx.domain.backup.manifest import ArchiveMember
from luxx.errors import LuxxError

MANIFEST = "manifest.json"
MANIFEST_BYTES = 64 * 1024 * 1024
CHUNK = 1024 * 1024
COMPRESSION_LEVEL = 3
"""Of compression: rows shrink to a quarter, and a server that is serving keeps its processor."""

ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    OSError,
    RuntimeError,
    ValueError,
)
"""What unpacking says of archives that are cut or damaged."""


class HasMembers(Protocol):
    @property
    def members(self) -> list[ArchiveMember]: ...


M = TypeVar("M", bound=HasMembers)


class HashingWriter:
    """A file being written, counted and hashed."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        self.size += len(data)
        return self._file.write(data)

    def member(self, name: str) -> ArchiveMember:
        """What the manifest says of it."""
        return ArchiveMember(name=name, size=self.size, sha256=self._hash.hexdigest())


class ArchiveWriter:
    """Puts members into an archive, one after another. A `with` ends it where that fails."""

    def __init__(self, file: IO[bytes]) -> None:
        self._zip = zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=COMPRESSION_LEVEL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            # Else it would try to end itself when the file is long closed.
            self._zip.fp = None

    @contextlib.contextmanager
    def open(self, name: str) -> Generator[HashingWriter]:
        """A new member, to be written before the next one begins."""
        with self._zip.open(name, "w", force_zip64=True) as file:
            yield HashingWriter(file)

    def put(self, name: str, data: bytes) -> ArchiveMember:
        """A whole member."""
        with self.open(name) as file:
            file.write(data)
        return file.member(name)

    def finish(self, manifest: msgspec.Struct) -> None:
        """The manifest, and the end."""
        self.put(MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)))
        self._zip.close()


@contextlib.contextmanager
def new_file(path: Path) -> Generator[IO[bytes]]:
    """A file for its owner alone that is there when it is whole. Raises LuxxError where one is already."""
    partial_path = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        _check_not_existing(path)
        descriptor = os.open(partial_path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise LuxxError(f"{path} cannot be written: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _check_not_existing(path)
        partial_path.rename(path)
        sync_folder(path.parent)
    except OSError as error:
        raise LuxxError(f"{path} could not be written: {error.strerror or error}") from error
    finally:
        partial_path.unlink(missing_ok=True)


def _check_not_existing(path: Path) -> None:
    if path.exists():
        raise LuxxError(f"{path} is there already; give another name or remove it")


def sync_folder(folder: Path) -> None:
    """Puts the names in a folder on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class ArchiveReader:
    """An open archive. Raises LuxxError, with what is wrong, for one that is cut, damaged or lies."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except FileNotFoundError as error:
            raise LuxxError(f"there is no file {path}") from error
        except ZIP_ERRORS as error:
            raise self.damaged(f"it is no whole ZIP file ({error})") from error

    def damaged(self, what: str) -> LuxxError:
        """The error that this archive deserves."""
        return LuxxError(f"{self._path} cannot be used: {what}")

    def close(self) -> None:
        self._zip.close()

    def manifest(self, kind: type[M], format_name: str, newest: int) -> M:
        """The manifest of an archive of this format; of a version not past `newest`."""
        try:
            with self._zip.open(MANIFEST) as file:
                told = file.read(MANIFEST_BYTES + 1)
            header = msgspec.json.decode(told, type=_ManifestHeader)
        except KeyError as error:
            raise self.damaged("it has no manifest.json, so it is no archive of Luxx") from error
        except (*ZIP_ERRORS, msgspec.DecodeError, RecursionError) as error:
            raise self.damaged(f"its manifest cannot be read ({error})") from error
        if header.format != format_name:
            raise self.damaged(f"it is a '{header.format[:40]}', and a '{format_name}' is needed")
        if header.version > newest:
            raise self.damaged(
                f"Luxx {header.luxx[:40]} made it in version {header.version} of the format, and this version "
                f"reads up to {newest}; install a newer Luxx"
            )
        try:
            manifest = msgspec.json.decode(told, type=kind)
        except msgspec.ValidationError as error:
            raise self.damaged(f"its manifest is not as it should be ({error})") from error
        self._check_names(manifest.members)
        return manifest

    def _check_names(self, members: list[ArchiveMember]) -> None:
        actual_names = [info.filename for info in self._zip.infolist()]
        told = [MANIFEST, *(member.name for member in members)]
        if len(set(actual_names)) < len(actual_names) or sorted(actual_names) != sorted(told):
            raise self.damaged("it holds other files than its manifest names")

    def verify(self, members: list[ArchiveMember]) -> None:
        """Reads everything once: every member has the size and the hash that the manifest names."""
        for member in members:
            with self.open(member) as file:
                while file.read(CHUNK):
                    pass

    @contextlib.contextmanager
    def open(self, member: ArchiveMember) -> Generator["VerifyingReader"]:
        """A member to be read; at its end it is seen whether it was the right one."""
        try:
            file = self._zip.open(member.name)
        except (*ZIP_ERRORS, KeyError) as error:
            raise self.damaged(f"{member.name} cannot be unpacked ({error})") from error
        with file:
            yield VerifyingReader(file, member, self)

    def read(self, member: ArchiveMember, max_bytes: int) -> bytes:
        """A whole member of at most so many bytes."""
        if member.size > max_bytes:
            raise self.damaged(f"{member.name} is too large")
        with self.open(member) as file:
            return b"".join(iter(lambda: file.read(CHUNK), b""))


class _ManifestHeader(msgspec.Struct):
    format: str
    version: int
    luxx: str = "?"


class VerifyingReader:
    """A member being read. Never gives more bytes than the manifest says."""

    def __init__(self, file: IO[bytes], member: ArchiveMember, archive: ArchiveReader) -> None:
        self._file = file
        self._member = member
        self._archive = archive
        self._hash = hashlib.sha256()
        self._size = 0

    def read(self, size: int) -> bytes:
        """Up to so many bytes; none at the end, where size and hash are compared."""
        try:
            data = self._file.read(size)
        except ZIP_ERRORS as error:
            raise self._archive.damaged(f"{self._member.name} cannot be unpacked ({error})") from error
        self._hash.update(data)
        self._size += len(data)
        is_at_end = not data and size > 0
        if self._size > self._member.size or (is_at_end and not self._matches_manifest()):
            raise self._archive.damaged(f"{self._member.name} is not what the manifest says")
        return data

    def _matches_manifest(self) -> bool:
        return self._size == self._member.size and self._hash.hexdigest() == self._member.sha256
