"""Parses an uploaded file (JSON, or a ZIP with JSON) into the values that it lists, one at a time.

The input is untrusted: depth, size and unpacked size are bounded, and a value past a bound is skipped without
being built. `child.py` interprets the values.
"""

import lzma
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from decimal import Decimal
from typing import IO, Any, cast

import ijson
import msgspec

from luxx.domain.transfer.draft import title_of

MAX_DEPTH = 100
"""Exports are some ten levels deep."""

MAX_WEIGHT = 256 * 1024 * 1024
"""Approximate bytes of memory that one conversation may take while it is read."""

MAX_RATIO = 200
"""Maximum ratio of unpacked to packed size of an archive; chats have about ten."""

SMALL_ARCHIVE_BYTES = 10_000_000
"""Bytes that an archive may unpack to whatever its ratio."""

NOT_A_ZIP = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, NotImplementedError, OSError,
    RuntimeError, ValueError,
)  # fmt: skip
"""Errors of the unpackers for broken archives: bzip2 raises OSError, a name that is not UTF-8 ValueError."""

CHUNK = 256 * 1024
"""Bytes per read. The parser restarts a string with each chunk: small chunks make a base64 image slow."""
ZIP_SIGNATURES = (b"PK\x03\x04", b"PK\x05\x06")
BOM = b"\xef\xbb\xbf"
CONVERSATION_FILES = re.compile(r"(?:.*/)?conversations(?:[-_]\d+)?\.json", re.IGNORECASE)
"""The names of the conversation files of ChatGPT and Claude; large exports have several."""

OPENS = frozenset({"start_map", "start_array"})
CLOSES = frozenset({"end_map", "end_array"})

Events = Iterator[tuple[str, Any]]


class Unreadable(Exception):
    """The file as a whole cannot be read; `is_too_large` if it exceeds a limit."""

    def __init__(self, reason: str, *, is_too_large: bool = False) -> None:
        super().__init__(reason)
        self.is_too_large = is_too_large


class ImportElement(msgspec.Struct, frozen=True, kw_only=True):
    """One value of the file. `problem` says why it was not built; `nuls` counts replaced NUL characters."""

    value: Any = None
    title: str = ""
    problem: str = ""
    nuls: int = 0


def read_file(file: IO[bytes], limit: int) -> Iterator[ImportElement]:
    """The values of a file that unpacks to at most `limit` bytes. Raises Unreadable."""
    head = file.read(4)
    file.seek(0)
    if head not in ZIP_SIGNATURES:
        yield from _elements(_Source(file, _UnpackBudget(limit)))
        return
    try:
        with zipfile.ZipFile(file) as archive:
            yield from _members(archive, limit)
    except NOT_A_ZIP as error:
        raise Unreadable(f"the ZIP file cannot be unpacked: {error}") from error


def _members(archive: zipfile.ZipFile, limit: int) -> Iterator[ImportElement]:
    files = [info for info in archive.infolist() if not info.is_dir()]
    selected = [info for info in files if CONVERSATION_FILES.fullmatch(info.filename)]
    selected = selected or [info for info in files if info.filename.lower().endswith(".json")]
    if not selected:
        raise Unreadable("the ZIP file contains no conversations.json")
    packed = sum(info.compress_size for info in selected)
    budget = _UnpackBudget(min(limit, max(SMALL_ARCHIVE_BYTES, packed * MAX_RATIO)))
    budget.check(sum(info.file_size for info in selected))
    for info in sorted(selected, key=lambda info: info.filename):
        with archive.open(info) as member:
            yield from _elements(_Source(member, budget))


class _UnpackBudget:
    """How many bytes may still be unpacked."""

    def __init__(self, limit: int) -> None:
        self._bytes_left = limit

    def check(self, size: int) -> None:
        if size > self._bytes_left:
            raise Unreadable("the file is larger when unpacked than the server allows", is_too_large=True)

    def take(self, size: int) -> None:
        self.check(size)
        self._bytes_left -= size


class _Source:
    """A file for the parser: counts its bytes and drops a byte order mark."""

    def __init__(self, file: IO[bytes], budget: _UnpackBudget) -> None:
        self._file = file
        self._budget = budget
        self._is_first = True

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self._budget.take(len(data))
        if self._is_first and data:
            self._is_first = False
            return data.removeprefix(BOM) or self.read(size)
        return data


def _elements(source: _Source) -> Iterator[ImportElement]:
    """The items of a list, or of the list `conversations` of an object; any other value by itself."""
    try:
        events = cast("Events", ijson.basic_parse(source, buf_size=CHUNK))
        kind, value = next(events)
        if kind == "start_array":
            yield from _items(events)
        elif kind == "start_map":
            yield from _members_of(events)
        else:
            yield ImportElement(value=value)
        for _ in events:
            pass
    except UnicodeDecodeError as error:
        raise Unreadable("a text in it contains an invalid character (half of a surrogate pair)") from error
    except (ijson.JSONError, ValueError, ArithmeticError, SystemError, StopIteration) as error:
        # SystemError: raised by the parser for a number with thousands of digits.
        reason = str(error).strip().partition("\n")[0]
        raise Unreadable(f"it is not complete, valid JSON: {reason[:200]}") from error


def _items(events: Events) -> Iterator[ImportElement]:
    for kind, value in events:
        if kind == "end_array":
            return
        yield _Builder().build(events, kind, value)


def _members_of(events: Events) -> Iterator[ImportElement]:
    """An object that is a conversation itself, or has a list of them."""
    builder = _Builder()
    builder.open("start_map")
    for kind, key in events:
        if kind == "end_map":
            yield builder.element()
            return
        builder.add_key(key)
        kind, value = next(events)
        if key == "conversations" and kind == "start_array":
            yield from _items(events)
            _skip_object(events)
            return
        builder.build(events, kind, value)


def _skip_object(events: Events) -> None:
    """Skips the rest of the open object."""
    depth = 1
    for kind, _ in events:
        depth += (kind in OPENS) - (kind in CLOSES)
        if not depth:
            return


class _Builder:
    """Builds a value from events. Past a bound it drops what it has and only counts the brackets."""

    def __init__(self) -> None:
        self._root: Any = None
        self._open: list[Any] = []
        self._keys: list[str] = []
        self._depth = 0
        self._weight = 0
        self._nuls = 0
        self._title = ""
        self._problem = ""

    def build(self, events: Events, kind: str, value: Any) -> ImportElement:
        """Builds the value that begins with this event inside the open container."""
        depth = self._depth
        while True:
            if kind in OPENS:
                self.open(kind)
            elif kind in CLOSES:
                self._close()
            elif kind == "map_key":
                self.add_key(value)
            else:
                self._put(self._plain(value))
            if self._depth == depth:
                return self.element()
            kind, value = next(events)

    def element(self) -> ImportElement:
        """The value so far."""
        return ImportElement(
            value=None if self._problem else self._root,
            title=self._title,
            problem=self._problem,
            nuls=self._nuls,
        )

    def open(self, kind: str) -> None:
        self._depth += 1
        if self._problem:
            return
        if self._depth > MAX_DEPTH:
            self._reject("it is nested too deeply")
            return
        container: Any = {} if kind == "start_map" else []
        self._put(container)
        self._open.append(container)
        self._keys.append("")

    def add_key(self, key: str) -> None:
        if self._problem:
            return
        self._keys[-1] = self._text(key)

    def _close(self) -> None:
        self._depth -= 1
        if not self._problem:
            self._open.pop()
            self._keys.pop()

    def _put(self, value: Any) -> None:
        if self._problem:
            return
        self._weight += 64
        if self._weight > MAX_WEIGHT:
            self._reject("it is too large")
        elif not self._open:
            self._root = value
        elif isinstance(self._open[-1], dict):
            self._open[-1][self._keys[-1]] = value
            if self._depth == 1 and self._keys[-1] in ("title", "name"):
                self._title = title_of(value)
        else:
            self._open[-1].append(value)

    def _reject(self, problem: str) -> None:
        self._problem = problem
        self._root = None
        self._open.clear()
        self._keys.clear()

    def _plain(self, value: Any) -> Any:
        """A value that every encoder accepts: no NUL, no integer above 64 bits, only finite numbers."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Decimal) or (type(value) is int and not -(2**63) <= value < 2**63):
            try:
                number = float(value)
            except OverflowError:
                return None
            return number if abs(number) != float("inf") else None
        return value

    def _text(self, text: str) -> str:
        self._weight += len(text) + 64
        if "\0" not in text:
            return text
        self._nuls += text.count("\0")
        return text.replace("\0", "\ufffd")
