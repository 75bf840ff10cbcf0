"""The tools file_grep and file_glob, which search a workspace in linear time and within limits."""

import os
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import msgspec

from luxx.errors import ToolFailed
from luxx.tools.builtin.file import (
    MAX_ENTRIES,
    MAX_LIST_BYTES,
    PATH,
    printable_path,
    shorten_line,
    too_many_names_note,
    workspace_of,
)
from luxx.tools.core import ToolContext
from luxx.tools.factory import tool
from luxx.tools.files.walk import open_entry, walk
from luxx.tools.files.workspace import MAX_FILE_BYTES, Workspace, read_regular
from luxx.tools.pattern import (
    MAX_PATTERN_LENGTH,
    CompiledPattern,
    compile_glob,
    compile_regex,
    max_searchable_length,
)

_MAX_MATCHES = 200
_MAX_FILES = 20_000
_MAX_SEARCHED_BYTES = 200 * 1024 * 1024
_MAX_ANSWER_BYTES = 40 * 1024
_MAX_SKIPPED_REPORTED = 10
_MAX_CONTEXT = 10
# Characters that are searched between two checks for cancellation; less with a slow pattern.
_PIECE = 64 * 1024
_PIECES_PER_MAX_LENGTH = 5


class _Search:
    """The state of one file_grep call: matches, counters, and why it ended early."""

    def __init__(self, arguments: dict[str, Any], is_cancelled: Callable[[], bool]) -> None:
        text: str = arguments["pattern"]
        self._pattern = compile_regex(text, ignore_case=bool(arguments.get("ignore_case", False)))
        # Without anchors, a pattern that does not match in a piece matches in none of its lines.
        self._can_search_whole_piece = not any(anchor in text for anchor in ("^", "$", "\\A", "\\z"))
        self._needs_end = "$" in text or "\\z" in text
        self._max_length = max_searchable_length(self._pattern)
        self._piece = min(_PIECE, self._max_length // _PIECES_PER_MAX_LENGTH)
        self._context_lines = int(arguments.get("context_lines", 0))
        self._is_cancelled = is_cancelled
        self._answer_bytes = 0
        self.matches: list[dict[str, Any]] = []
        self.files = 0
        self.bytes = 0
        self.passed_over: list[dict[str, str]] = []
        self.skipped = 0
        self.ended_by = ""

    def is_over(self) -> bool:
        """Whether the search has ended: it reached a limit, or it was cancelled."""
        if not self.ended_by and self._is_cancelled():
            self.ended_by = "the search was cancelled"
        return bool(self.ended_by)

    def search_file(self, path: str, data: bytes) -> None:
        """Search one file; skip a binary one."""
        self.files += 1
        self.bytes += len(data)
        if b"\0" in data[:8192]:
            self.skip_file(path, "it is binary")
            return
        text = data.decode("utf-8", "replace")
        number = 1
        for start, end in _pieces(text, self._piece):
            if self.is_over():
                return
            if end - start > self._max_length:
                self._search_long_line(path, number, text, start, end)
            elif not self._can_search_whole_piece or self._pattern.search(text[start:end]):
                self._search_piece(path, number, text, start, end)
            number += text.count("\n", start, end) + 1

    def _search_piece(self, path: str, number: int, text: str, start: int, end: int) -> None:
        for at, (first, last) in enumerate(_lines(text, start, end), number):
            if self._pattern.search(text[first:last].removesuffix("\r")):
                self._add(path, at, text, first, last)
                if self.ended_by:
                    return

    def _search_long_line(self, path: str, number: int, text: str, start: int, end: int) -> None:
        """Search the beginning of a line that is too long for the pattern, unless it has an end anchor."""
        max_length = 0 if self._needs_end else self._max_length
        if max_length and self._pattern.search(text[start : start + max_length]):
            self._add(path, number, text, start, end)
            return
        size = f"line {number:,} has {end - start:,} characters, too many for this pattern"
        self._report_skipped(path, f"{size}; its first {max_length:,} were searched" if max_length else size)

    def skip_file(self, path: str, because: str) -> None:
        """Count a file that cannot be searched; the answer has the reasons for the first few."""
        self.skipped += 1
        self._report_skipped(path, because)

    def _report_skipped(self, path: str, because: str) -> None:
        if len(self.passed_over) < _MAX_SKIPPED_REPORTED:
            self.passed_over.append({"path": path, "because": because})

    def skip_crowded_directory(self, directory: str) -> None:
        self.skip_file(printable_path(directory), too_many_names_note("it"))

    def _add(self, path: str, number: int, text: str, start: int, end: int) -> None:
        match: dict[str, Any] = {"path": path, "line_number": number, "line": _shown(text[start:end])}
        if self._context_lines:
            before = _lines_back(text, start, self._context_lines)
            after = islice(_lines(text, end + 1), self._context_lines)
            match |= {
                "before": [_shown(text[first:last]) for first, last in before],
                "after": [_shown(text[first:last]) for first, last in after],
            }
        self._answer_bytes += len(msgspec.json.encode(match)) + 1
        if len(self.matches) >= _MAX_MATCHES or self._answer_bytes > _MAX_ANSWER_BYTES:
            self.ended_by = "there are more matches; narrow the pattern, the path or file_pattern"
            return
        self.matches.append(match)

    def answer(self) -> dict[str, Any]:
        answer: dict[str, Any] = {
            "matches": self.matches,
            "count": len(self.matches),
            "files_searched": self.files,
            "files_skipped": self.skipped,
            "truncated": bool(self.ended_by),
        }
        if self.passed_over:
            answer["passed_over"] = self.passed_over
        if self.ended_by:
            answer["note"] = self.ended_by
        return answer


@tool(
    name="file_grep",
    description=(
        "Search the text files of the workspace line by line with a regular expression (RE2 syntax: no "
        "look-around, no back-references). Binary files, files over 10 MB and the directories .git, "
        "node_modules and __pycache__ are passed over; links are not followed. Matches have their line's "
        "number counted from 1: file_read with an offset one less begins there."
    ),
    parameters={
        "pattern": {"type": "string", "minLength": 1, "maxLength": MAX_PATTERN_LENGTH},
        "path": PATH | {"default": ".", "description": "Where: directory or file"},
        "file_pattern": {
            "type": "string",
            "maxLength": 200,
            "description": "Only files like this: *.py, *.{ts,vue}, src/**/*.md",
        },
        "ignore_case": {"type": "boolean", "default": False},
        "context_lines": {"type": "integer", "minimum": 0, "maximum": _MAX_CONTEXT, "default": 0},
    },
    required_params=["pattern"],
    category="file",
)
def file_grep(arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
    workspace = workspace_of(context)
    path = workspace.relative(arguments.get("path", "."))
    glob = arguments.get("file_pattern")
    search = _Search(arguments, context.actions.cancelled)
    kind = workspace.kind(path)
    if kind == "other":
        raise ToolFailed(f"{path} is neither a file nor a directory")
    if kind == "file":
        search.search_file(path, workspace.read(path))
        return search.answer()
    for name, data in _read_files(workspace, path, glob, search):
        if search.files >= _MAX_FILES or search.bytes >= _MAX_SEARCHED_BYTES:
            search.ended_by = "too many files for one search; narrow the path or file_pattern"
        else:
            search.search_file(name, data)
    return search.answer()


def _read_files(
    workspace: Workspace, path: str, glob: str | None, search: _Search
) -> Iterator[tuple[str, bytes]]:
    """The path and content of each file to search."""
    name_pattern = compile_glob(glob) if glob else None
    prefix = "" if path == "." else f"{path}/"
    with workspace.open_directory(path) as directory:
        for entry in walk(directory, prefix, on_truncated=search.skip_crowded_directory):
            if search.is_over():
                return
            subject = entry.path if glob and "/" in glob else entry.name
            if entry.kind != "file" or (name_pattern and not name_pattern.fullmatch(printable_path(subject))):
                continue
            name = printable_path(entry.path)
            try:
                fd = open_entry(entry)
            except OSError as error:
                search.skip_file(name, os.strerror(error.errno or 0))
                continue
            try:
                yield name, read_regular(fd, name, MAX_FILE_BYTES)
            except ToolFailed as error:
                search.skip_file(name, error.message)
            finally:
                os.close(fd)


def _pieces(text: str, size: int) -> Iterator[tuple[int, int]]:
    """Start and end of pieces of whole lines of at most `size` characters; a longer line is one piece."""
    start = 0
    while start <= len(text):
        end = len(text)
        if start + size < end:
            end = text.rfind("\n", start, start + size + 1)
            end = text.find("\n", start + size) if end == -1 else end
            end = len(text) if end == -1 else end
        yield start, end
        start = end + 1


def _lines(text: str, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, int]]:
    """Start and end of each line, lazily, because a list of ten million takes too much memory."""
    stop = len(text) if stop is None else stop
    while start <= stop:
        end = text.find("\n", start, stop)
        end = stop if end == -1 else end
        yield start, end
        start = end + 1


def _lines_back(text: str, start: int, count: int) -> list[tuple[int, int]]:
    """Start and end of up to `count` lines before the one that begins at `start`, in order."""
    spans: list[tuple[int, int]] = []
    while start > 0 and len(spans) < count:
        end = start - 1
        start = text.rfind("\n", 0, end) + 1
        spans.append((start, end))
    return spans[::-1]


def _shown(line: str) -> str:
    return shorten_line(line.removesuffix("\r"))


_MAX_VISITED = 200_000
_MAX_GLOB = 200


class _Glob:
    """The state of one file_glob call: the files, and notes for the answer."""

    def __init__(self, pattern: CompiledPattern, base: str) -> None:
        self._pattern = pattern
        self._prefix = "" if base == "." else f"{base}/"
        self._size = 0
        self.files: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.is_truncated = False

    def search(self, fd: int, context: ToolContext, *, recursive: bool) -> None:
        def on_truncated(directory: str) -> None:
            self._end(too_many_names_note(printable_path(self._prefix + directory)))

        walk_entries = walk(fd, recursive=recursive, on_truncated=on_truncated)
        for count, walk_entry in enumerate(walk_entries):
            if count >= _MAX_VISITED or context.actions.cancelled():
                self._end(f"the search ended after {count:,} files and directories; narrow the path")
                break
            if walk_entry.kind != "file" or not self._pattern.fullmatch(printable_path(walk_entry.path)):
                continue
            path = printable_path(self._prefix + walk_entry.path)
            entry: dict[str, Any] = {"path": path, "size": walk_entry.size}
            self._size += len(msgspec.json.encode(entry)) + 1
            if len(self.files) >= MAX_ENTRIES or self._size > MAX_LIST_BYTES:
                self._end("there are more files; narrow the pattern or the path")
                break
            self.files.append(entry)

    def _end(self, note: str) -> None:
        self.is_truncated = True
        self.notes.append(note)


@tool(
    name="file_glob",
    description=(
        "Find files of the workspace by a pattern over their path: * and ? within a name, ** over "
        "directories, [a-z], [!a-z], {a,b}. *.py is what lies directly in `path`, **/*.py also what lies "
        "below. .git, node_modules and __pycache__ are passed over unless named, links are not followed."
    ),
    parameters={
        "pattern": {
            "type": "string",
            "minLength": 1,
            "maxLength": _MAX_GLOB,
            "description": "Like src/**/*.py",
        },
        "path": PATH | {"default": ".", "description": "The directory to look in"},
    },
    required_params=["pattern"],
    category="file",
)
def file_glob(arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
    workspace = workspace_of(context)
    path = workspace.relative(arguments.get("path", "."))
    pattern: str = arguments["pattern"]
    fixed_parts, rest = _split(pattern)
    base = workspace.relative("/".join([path, *fixed_parts]))
    glob = _Glob(compile_glob(rest), base)
    kind = workspace.kind(base)
    if kind != "directory" and base == path:
        raise ToolFailed(f"{path} does not exist" if kind is None else f"{path} is not a directory")
    if kind == "directory":
        with workspace.open_directory(base) as fd:
            glob.search(fd, context, recursive="/" in rest or "**" in rest)
    answer: dict[str, Any] = {
        "pattern": pattern,
        "path": path,
        "files": glob.files,
        "count": len(glob.files),
        "truncated": glob.is_truncated,
    }
    if not glob.files and not glob.is_truncated and "**" not in pattern:
        glob.notes.append(f"nothing matches; **/{rest} looks in the directories below as well")
    if glob.notes:
        answer["note"] = "; ".join(glob.notes)
    return answer


def _split(pattern: str) -> tuple[list[str], str]:
    """The leading directories without wildcards, and the pattern below them."""
    if "\0" in pattern:
        raise ToolFailed("a pattern cannot contain a NUL character")
    if pattern.startswith("/"):
        raise ToolFailed("a pattern is relative to `path`; leave out the / it begins with")
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ToolFailed("a pattern cannot have .. in it; `path` says where to look")
    fixed_parts: list[str] = []
    while len(parts) > 1 and not set(parts[0]) & set("*?[{"):
        fixed_parts.append(parts.pop(0))
    return fixed_parts, "/".join(parts) or "*"
