"""ZIP archives whose manifest has the size and SHA-256 of every member; independent of their content.

They are written and read as streams. A new archive gets its final name when it is complete; a reader verifies
every hash before it trusts an archive.
"""

import contextlib
import hashlib
import os
import secrets
import zipfile
import zlib
from collections.abc import Generator
from pathlib import Path
from typing import IO, Annotated, Protocol, Self, TypeVar

import msgspec
from msgspec import Meta

from luxx.errors import LuxxError

Size = Annotated[int, Meta(ge=0, le=2**62)]


class ArchiveMember(msgspec.Struct, frozen=True, kw_only=True):
    """One file in the archive."""

    name: Annotated[str, Meta(max_length=200)]
    size: Size
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]


MANIFEST = "manifest.json"
MANIFEST_BYTES = 64 * 1024 * 1024
CHUNK = 1024 * 1024
COMPRESSION_LEVEL = 3
"""zlib level: rows shrink to a quarter, and a running server keeps its CPU."""

ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    OSError,
    RuntimeError,
    ValueError,
)
"""Errors that unpacking raises for archives that are cut or damaged."""


class HasMembers(Protocol):
    @property
    def members(self) -> list[ArchiveMember]: ...


M = TypeVar("M", bound=HasMembers)


class HashingWriter:
    """Writes a file, and counts and hashes its bytes."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        self.size += len(data)
        return self._file.write(data)

    def member(self, name: str) -> ArchiveMember:
        """The manifest's entry for it."""
        return ArchiveMember(name=name, size=self.size, sha256=self._hash.hexdigest())


class ArchiveWriter:
    """Writes members into an archive, one after another. Use it with `with`, which discards it on an
    error."""

    def __init__(self, file: IO[bytes]) -> None:
        self._zip = zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=COMPRESSION_LEVEL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            # Otherwise the ZipFile would try to finish itself after the file was closed.
            self._zip.fp = None

    @contextlib.contextmanager
    def open(self, name: str) -> Generator[HashingWriter]:
        """Opens a new member; write it before opening the next one."""
        with self._zip.open(name, "w", force_zip64=True) as file:
            yield HashingWriter(file)

    def put(self, name: str, data: bytes) -> ArchiveMember:
        """Writes a whole member."""
        with self.open(name) as file:
            file.write(data)
        return file.member(name)

    def finish(self, manifest: msgspec.Struct) -> None:
        """Writes the manifest and ends the archive."""
        self.put(MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)))
        self._zip.close()


@contextlib.contextmanager
def new_file(path: Path, *, may_replace: bool = False) -> Generator[IO[bytes]]:
    """A file with mode 0600 that appears when it is complete. Raises LuxxError if it cannot be written, or
    exists already and may not be replaced."""
    partial_path = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")

    def check_not_existing() -> None:
        if not may_replace and path.exists():
            raise LuxxError(f"{path} already exists; choose another name or remove it")

    try:
        check_not_existing()
        descriptor = os.open(partial_path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise LuxxError(f"{path} cannot be written: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        check_not_existing()
        partial_path.rename(path)
        sync_folder(path.parent)
    except OSError as error:
        raise LuxxError(f"{path} could not be written: {error.strerror or error}") from error
    finally:
        partial_path.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Flushes the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class ArchiveReader:
    """An open archive. Raises LuxxError, with the reason, if it is cut, damaged or does not match its
    manifest."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except FileNotFoundError as error:
            raise LuxxError(f"there is no file {path}") from error
        except ZIP_ERRORS as error:
            raise self.damaged(f"it is not a complete ZIP file ({error})") from error

    def damaged(self, what: str) -> LuxxError:
        """The error for a problem with this archive."""
        return LuxxError(f"{self._path} cannot be used: {what}")

    def close(self) -> None:
        self._zip.close()

    def manifest(self, kind: type[M], format_name: str, newest: int) -> M:
        """The manifest, for an archive of this format and a version up to `newest`."""
        try:
            with self._zip.open(MANIFEST) as file:
                manifest_bytes = file.read(MANIFEST_BYTES + 1)
            header = msgspec.json.decode(manifest_bytes, type=_ManifestHeader)
        except KeyError as error:
            raise self.damaged("it has no manifest.json, so it is not a Luxx archive") from error
        except (*ZIP_ERRORS, msgspec.DecodeError, RecursionError) as error:
            raise self.damaged(f"its manifest cannot be read ({error})") from error
        if header.format != format_name:
            raise self.damaged(f"its format is '{header.format[:40]}', but '{format_name}' is required")
        if header.version > newest:
            raise self.damaged(
                f"Luxx {header.luxx[:40]} made it in format version {header.version}, and this version "
                f"of Luxx reads up to {newest}; install a newer Luxx"
            )
        try:
            manifest = msgspec.json.decode(manifest_bytes, type=kind)
        except msgspec.ValidationError as error:
            raise self.damaged(f"its manifest is not valid ({error})") from error
        self._check_names(manifest.members)
        return manifest

    def _check_names(self, members: list[ArchiveMember]) -> None:
        actual_names = [info.filename for info in self._zip.infolist()]
        expected_names = [MANIFEST, *(member.name for member in members)]
        if len(set(actual_names)) < len(actual_names) or sorted(actual_names) != sorted(expected_names):
            raise self.damaged("its files are not those that its manifest names")

    def verify(self, members: list[ArchiveMember]) -> None:
        """Reads every member and checks its size and hash against the manifest."""
        for member in members:
            with self.open(member) as file:
                while file.read(CHUNK):
                    pass

    @contextlib.contextmanager
    def open(self, member: ArchiveMember) -> Generator["VerifyingReader"]:
        """Opens a member; reading its end checks size and hash."""
        try:
            file = self._zip.open(member.name)
        except (*ZIP_ERRORS, KeyError) as error:
            raise self.damaged(f"{member.name} cannot be unpacked ({error})") from error
        with file:
            yield VerifyingReader(file, member, self)

    def read(self, member: ArchiveMember, max_bytes: int) -> bytes:
        """A whole member of at most `max_bytes`."""
        if member.size > max_bytes:
            raise self.damaged(f"{member.name} is too large")
        with self.open(member) as file:
            return b"".join(iter(lambda: file.read(CHUNK), b""))


class _ManifestHeader(msgspec.Struct):
    format: str
    version: int
    luxx: str = "?"


class VerifyingReader:
    """Reads a member. Never returns more bytes than the manifest states."""

    def __init__(self, file: IO[bytes], member: ArchiveMember, archive: ArchiveReader) -> None:
        self._file = file
        self._member = member
        self._archive = archive
        self._hash = hashlib.sha256()
        self._size = 0

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; b"" at the end, where it checks size and hash."""
        try:
            data = self._file.read(size)
        except ZIP_ERRORS as error:
            raise self._archive.damaged(f"{self._member.name} cannot be unpacked ({error})") from error
        self._hash.update(data)
        self._size += len(data)
        is_at_end = not data and size > 0
        expected = (self._member.size, self._member.sha256)
        is_wrong = is_at_end and (self._size, self._hash.hexdigest()) != expected
        if is_wrong or self._size > self._member.size:
            raise self._archive.damaged(f"{self._member.name} does not match the manifest")
        return data
