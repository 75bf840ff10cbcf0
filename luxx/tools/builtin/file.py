"""The file tools: read, write, list, exists. All paths are relative to the user's workspace.

None is repeatable: a file changes by other hands too, so an answer about it must not come from the cache.
Not here: editing (file_edit), finding (file_glob), searching in files (file_search), how a path is opened
(confine).
"""

import os
from typing import Any

import msgspec

from luxx.errors import ToolFailed
from luxx.tools.builtin.file_page import MAX_LINE_BYTES, LinePage, read_page, split_lines
from luxx.tools.confine import Workspace
from luxx.tools.core import CommandPermission, Risk, ToolContext
from luxx.tools.factory import tool
from luxx.tools.walk import MAX_NAMES, walk

DEFAULT_LINES = 2000
_MAX_LINES = 100_000
MAX_ENTRIES = 1000
MAX_LIST_BYTES = 40 * 1024
PATH = {"type": "string", "minLength": 1, "description": "Path relative to the workspace"}


def workspace_of(context: ToolContext) -> Workspace:
    """The files of the user a tool runs for."""
    if context.workspace is None:
        raise ToolFailed("there is no workspace here, so there are no files")
    return Workspace(context.workspace)


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
    with workspace.opened(path) as fd:
        page = read_page(fd, path, offset=offset, limit=limit, is_cancelled=context.cancelled)
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
    """What a reader should know of a page besides its lines, in sentences."""
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
    data = encoded(content)
    is_new = workspace.write(path, data)
    return {"path": path, "created": is_new, "bytes": len(data), "lines": len(split_lines(content))}


@tool(
    name="file_list",
    description=(
        "List a directory of the workspace, by name. With `recursive` also what lies below; "
        ".git, node_modules and __pycache__ are named but not entered."
    ),
    parameters={
        "path": {**PATH, "default": "."},
        "recursive": {"type": "boolean", "default": False},
    },
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
        found_in = walk(
            fd,
            prefix,
            recursive=bool(arguments.get("recursive", False)),
            on_crowded=lambda directory: notes.append(crowded(shown(directory))),
        )
        for found in found_in:
            entry: dict[str, Any] = {"path": shown(found.path), "type": found.kind}
            if found.kind == "file":
                entry["size"] = found.size
            size += len(msgspec.json.encode(entry)) + 1
            if len(entries) >= MAX_ENTRIES or size > MAX_LIST_BYTES or context.cancelled():
                notes.append("there is more than is shown; list a directory below, or use file_glob")
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


def encoded(text: str) -> bytes:
    """As it stands in a file. Raises ToolFailed for halves of surrogate pairs, which UTF-8 cannot say."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise ToolFailed("the text contains a lone surrogate, which cannot be written as UTF-8") from None


def crowded(directory: str) -> str:
    """What is said of a directory with too many names in it."""
    return f"{directory} has more than {MAX_NAMES:,} names in it; only the first are looked at"


def shown(path: str) -> str:
    """A name that is not UTF-8, in a form JSON can carry."""
    return os.fsencode(path).decode("utf-8", "replace")
