"""The tools file_read, file_write, file_list and file_exists. Paths are relative to the user's workspace.

None is repeatable, so that no result comes from the cache: other programs may change a file at any time.
`file_edit` edits, `file_search` finds and searches, `files.workspace` opens paths.
"""

import codecs
import os
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from luxx.errors import ToolFailed
from luxx.tools.core import CommandPermission, Risk, ToolContext
from luxx.tools.factory import tool
from luxx.tools.files.walk import MAX_NAMES, walk
from luxx.tools.files.workspace import Workspace, translate_os_errors

MAX_FILE_BYTES = 1 << 30
"""Limit for file_read, because it scans the whole file."""

MAX_LINE_BYTES = 1 << 20
"""file_read cuts longer lines."""

_MAX_CONTENT_BYTES = 40 * 1024
"""Limit for the lines of a page, below the limit of the executor, which cuts in the middle of a line."""

_PIECE_BYTES = 1 << 20
_SCAN_BYTES = 1 << 14
_HEAD_BYTES = 8192
_WIDE_BOMS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


class LinePage(msgspec.Struct, frozen=True, kw_only=True):
    """`lines` with line ends. `is_cut`: the only line is cut. `is_utf8`: all bytes of the page are UTF-8."""

    lines: list[str]
    total: int
    is_cut: bool
    is_utf8: bool


def require_text(head: bytes, name: str, size: int) -> None:
    """Raises ToolFailed if the first bytes of a file show that it is not UTF-8 text."""
    for bom, encoding in _WIDE_BOMS.items():
        if head.startswith(bom):
            raise ToolFailed(f"{name} is {encoding} text; the file tools take UTF-8 only")
    if b"\0" in head[:_HEAD_BYTES]:
        raise ToolFailed(f"{name} is a binary file of {size:,} bytes, not text")


def read_page(fd: int, name: str, *, offset: int, limit: int, is_cancelled: Callable[[], bool]) -> LinePage:
    """At most `limit` whole lines from line `offset` on, counted from 0; at least one.

    Raises ToolFailed for binary or too large files and for an offset past the end.
    """
    size = os.fstat(fd).st_size
    if size > MAX_FILE_BYTES:
        raise ToolFailed(f"{name} has {size:,} bytes; files of up to {MAX_FILE_BYTES:,} bytes are read")
    start = scanned = ends = 0
    last = b"\n"
    with translate_os_errors(name):
        for piece in _pieces(fd, is_cancelled):
            if not scanned:
                require_text(piece, name, size)
            count = piece.count(b"\n")
            if ends < offset <= ends + count:
                start = scanned + _offset_after_lines(piece, offset - ends)
            ends += count
            scanned += len(piece)
            last = piece[-1:]
        data = os.pread(fd, min(scanned - start, MAX_LINE_BYTES + 1), start)
    total = ends + (last != b"\n")
    if offset and offset >= total:
        raise ToolFailed(f"{name} has {total} lines; there is none at offset {offset}")
    is_cut = len(data) > MAX_LINE_BYTES and b"\n" not in data[:MAX_LINE_BYTES]
    page_bytes = data[:MAX_LINE_BYTES] if is_cut else _whole_lines(data, limit, start + len(data) < scanned)
    if offset == 0:
        page_bytes = page_bytes.removeprefix(codecs.BOM_UTF8)
    text, is_utf8 = _decoded(page_bytes, is_cut=is_cut)
    lines = _within_budget(split_lines(text))
    if any("\0" in line for line in lines):
        raise ToolFailed(f"{name} is a binary file of {size:,} bytes, not text")
    return LinePage(lines=lines, total=total, is_cut=is_cut, is_utf8=is_utf8)


def split_lines(text: str) -> list[str]:
    """The lines with their ends; only `\\n` ends a line."""
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def _pieces(fd: int, is_cancelled: Callable[[], bool]) -> Iterator[bytes]:
    remaining = MAX_FILE_BYTES
    while remaining > 0 and (piece := os.read(fd, _PIECE_BYTES)):
        if is_cancelled():
            raise ToolFailed("reading was cancelled")
        remaining -= len(piece)
        yield piece


def _offset_after_lines(piece: bytes, count: int) -> int:
    """The offset after `count` line ends. The piece must contain that many."""
    position = 0
    for start in range(0, len(piece), _SCAN_BYTES):
        ends = piece.count(b"\n", start, start + _SCAN_BYTES)
        if ends >= count:
            position = start
            break
        count -= ends
    for _ in range(count):
        position = piece.index(b"\n", position) + 1
    return position


def _whole_lines(data: bytes, limit: int, has_more: bool) -> bytes:
    """At most `limit` lines; without the last one if the file goes on in it."""
    if data.count(b"\n") >= limit:
        return data[: _offset_after_lines(data, limit)]
    return data[: data.rfind(b"\n") + 1] if has_more else data


def _decoded(data: bytes, *, is_cut: bool) -> tuple[str, bool]:
    """The text, and whether all of it is UTF-8. Invalid bytes become U+FFFD; a cut character is dropped."""
    decoder = codecs.getincrementaldecoder("utf-8")
    try:
        return decoder("strict").decode(data, final=not is_cut), True
    except UnicodeDecodeError:
        return decoder("replace").decode(data, final=not is_cut), False


def _within_budget(lines: list[str]) -> list[str]:
    """The first lines that fit into `_MAX_CONTENT_BYTES`; at least one."""
    size = 0
    for count, line in enumerate(lines):
        size += len(msgspec.json.encode(line)) - 2
        if size > _MAX_CONTENT_BYTES and count:
            return lines[:count]
    return lines


DEFAULT_LINES = 2000
_MAX_LINES = 100_000
_MAX_LINE = 500
MAX_ENTRIES = 1000
MAX_LIST_BYTES = 40 * 1024
MAX_PATH = 4096
"""The limit of Linux for a path."""

PATH = {
    "type": "string",
    "minLength": 1,
    "maxLength": MAX_PATH,
    "description": "Path relative to the workspace",
}


def workspace_of(context: ToolContext) -> Workspace:
    """The workspace of the user for whom the tool runs."""
    if context.permissions.workspace is None:
        raise ToolFailed("this call has no workspace, so it has no files")
    return Workspace(context.permissions.workspace)


@tool(
    name="file_read",
    description=(
        "Read a text file of the workspace. Gives at most `limit` whole lines from line `offset` on "
        "(counted from 0); `next_offset` in the answer says where to read on."
    ),
    parameters={
        "path": PATH,
        "offset": {"type": "integer", "minimum": 0, "default": 0, "description": "Lines to skip"},
        "limit": {"type": "integer", "minimum": 1, "maximum": _MAX_LINES, "default": DEFAULT_LINES},
    },
    required_params=["path"],
    category="file",
)
def file_read(arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
    workspace = workspace_of(context)
    path = workspace.relative(arguments["path"])
    offset, limit = int(arguments.get("offset", 0)), int(arguments.get("limit", DEFAULT_LINES))
    with workspace.open_file(path) as fd:
        page = read_page(fd, path, offset=offset, limit=limit, is_cancelled=context.actions.cancelled)
    end = offset + len(page.lines)
    answer: dict[str, Any] = {
        "path": path,
        "content": "".join(page.lines),
        "offset": offset,
        "lines": len(page.lines),
        "total_lines": page.total,
        "truncated": end < page.total,
    }
    if end < page.total:
        answer["next_offset"] = end
    if notes := _notes(page, offset, end):
        answer["note"] = " ".join(notes)
    return answer


def _notes(page: LinePage, offset: int, end: int) -> list[str]:
    """Sentences for the model about a page: a cut line, invalid bytes, further lines."""
    notes: list[str] = []
    if page.is_cut:
        notes.append(f"Line {offset} has more than {MAX_LINE_BYTES:,} bytes; the rest of it is left out.")
    if not page.is_utf8:
        notes.append("Some bytes are not UTF-8; each is shown as U+FFFD.")
    if end < page.total:
        notes.append(f"The file has {page.total - end:,} more lines; read on with offset {end}.")
    return notes


@tool(
    name="file_write",
    description=(
        "Write a text file of the workspace, replacing what is there; missing directories are made. "
        "The file changes as a whole or not at all."
    ),
    parameters={"path": PATH, "content": {"type": "string", "description": "The whole new content"}},
    required_params=["path", "content"],
    category="file",
    required_permission=CommandPermission.WRITE,
    risk=Risk.MEDIUM,
)
def file_write(arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
    workspace = workspace_of(context)
    path = workspace.relative(arguments["path"])
    content: str = arguments["content"]
    data = encode_text(content)
    is_new = workspace.write(path, data)
    return {"path": path, "created": is_new, "bytes": len(data), "lines": len(split_lines(content))}


@tool(
    name="file_list",
    description=(
        "List a directory of the workspace, by name. With `recursive` also what lies below; "
        ".git, node_modules and __pycache__ are named but not entered."
    ),
    parameters={"path": {**PATH, "default": "."}, "recursive": {"type": "boolean", "default": False}},
    category="file",
)
def file_list(arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
    workspace = workspace_of(context)
    path = workspace.relative(arguments.get("path", "."))
    prefix = "" if path == "." else f"{path}/"
    entries: list[dict[str, Any]] = []
    notes: list[str] = []
    size = 0
    with workspace.open_directory(path) as fd:
        walk_entries = walk(
            fd,
            prefix,
            recursive=bool(arguments.get("recursive", False)),
            on_truncated=lambda directory: notes.append(too_many_names_note(printable_path(directory))),
        )
        for walk_entry in walk_entries:
            entry: dict[str, Any] = {"path": printable_path(walk_entry.path), "type": walk_entry.kind}
            if walk_entry.kind == "file":
                entry["size"] = walk_entry.size
            size += len(msgspec.json.encode(entry)) + 1
            if len(entries) >= MAX_ENTRIES or size > MAX_LIST_BYTES or context.actions.cancelled():
                notes.append("there are more entries; list a subdirectory, or use file_glob")
                break
            entries.append(entry)
    answer = {"path": path, "entries": entries, "count": len(entries), "truncated": bool(notes)}
    return {**answer, "note": "; ".join(notes)} if notes else answer


@tool(
    name="file_exists",
    description="Whether there is a file or directory at a path of the workspace, and which of the two.",
    parameters={"path": PATH},
    required_params=["path"],
    category="file",
)
def file_exists(arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
    workspace = workspace_of(context)
    path = workspace.relative(arguments["path"])
    kind = workspace.kind(path)
    return {"path": path, "exists": kind is not None, "type": kind}


def encode_text(text: str) -> bytes:
    """The text as UTF-8. Raises ToolFailed for lone surrogates, which UTF-8 cannot encode."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise ToolFailed("the text contains a lone surrogate, which cannot be written as UTF-8") from None


def shorten_line(line: str) -> str:
    """The line, or its beginning and how many characters it has more."""
    return line if len(line) <= _MAX_LINE else f"{line[:_MAX_LINE]}… [{len(line) - _MAX_LINE:,} more]"


def too_many_names_note(directory: str) -> str:
    """The note about a directory with too many names."""
    return f"{directory} has more than {MAX_NAMES:,} names; only the first are used"


def printable_path(path: str) -> str:
    """The path with bytes that are not UTF-8 replaced, so that JSON can encode it."""
    return os.fsencode(path).decode("utf-8", "replace")
