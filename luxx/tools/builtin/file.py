"""The file tools: read, write, list, exists. All paths are relative to the user's workspace.

None is repeatable: a file changes by other hands too, so an answer about it must not come from the cache.
Not here: searching in files (file_search), how a path is opened (confine).
"""

import os
from typing import Any

import msgspec

from luxx.errors import ToolFailed
from luxx.tools.confine import Workspace
from luxx.tools.core import CommandPermission, Risk, ToolContext
from luxx.tools.factory import tool
from luxx.tools.walk import walk

DEFAULT_LINES = 2000
_MAX_LINES = 100_000
# Whole lines are given up to here, so that an answer of many lines is not cut in the middle of one.
_MAX_CONTENT_BYTES = 40 * 1024
_MAX_ENTRIES = 1000
_MAX_LIST_BYTES = 40 * 1024
_PATH = {"type": "string", "minLength": 1, "description": "Path relative to the workspace"}


def workspace_of(context: ToolContext) -> Workspace:
    """The files of the user a tool runs for."""
    if context.workspace is None:
        raise ToolFailed("there is no workspace here, so there are no files")
    return Workspace(context.workspace)


def read_text(workspace: Workspace, path: str) -> str:
    """A text file as UTF-8; bytes that are not become U+FFFD. Raises ToolFailed for a binary file."""
    data = workspace.read(path)
    if b"\0" in data[:8192]:
        raise ToolFailed(f"{workspace.relative(path)} is a binary file of {len(data):,} bytes, not text")
    return data.decode("utf-8", "replace")


@tool(
    name="file_read",
    description=(
        "Read a text file of the workspace. Gives at most `limit` whole lines from line `offset` on "
        "(counted from 0); `next_offset` in the answer says where to read on."
    ),
    parameters={
        "path": _PATH,
        "offset": {"type": "integer", "minimum": 0, "default": 0, "description": "Lines to skip"},
        "limit": {"type": "integer", "minimum": 1, "maximum": _MAX_LINES, "default": DEFAULT_LINES},
    },
    required_params=["path"],
    category="file",
)
def file_read(arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
    workspace = workspace_of(context)
    path = workspace.relative(arguments["path"])
    lines = _lines(read_text(workspace, path))
    offset = int(arguments.get("offset", 0))
    if offset and offset >= len(lines):
        raise ToolFailed(f"{path} has {len(lines)} lines; there is none at offset {offset}")
    chosen = _within_budget(lines[offset : offset + int(arguments.get("limit", DEFAULT_LINES))])
    end = offset + len(chosen)
    answer: dict[str, Any] = {
        "path": path,
        "content": "".join(chosen),
        "offset": offset,
        "lines": len(chosen),
        "total_lines": len(lines),
        "truncated": end < len(lines),
    }
    if end < len(lines):
        answer["next_offset"] = end
    return answer


@tool(
    name="file_write",
    description=(
        "Write a text file of the workspace, replacing what is there; missing directories are made. "
        "The file changes as a whole or not at all."
    ),
    parameters={"path": _PATH, "content": {"type": "string", "description": "The whole new content"}},
    required_params=["path", "content"],
    category="file",
    required_permission=CommandPermission.WRITE,
    risk=Risk.MEDIUM,
)
def file_write(arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
    workspace = workspace_of(context)
    path = workspace.relative(arguments["path"])
    content: str = arguments["content"]
    data = content.encode("utf-8")
    is_new = workspace.write(path, data)
    return {"path": path, "created": is_new, "bytes": len(data), "lines": len(_lines(content))}


@tool(
    name="file_list",
    description=(
        "List a directory of the workspace, by name. With `recursive` also what lies below; "
        ".git, node_modules and __pycache__ are named but not entered."
    ),
    parameters={
        "path": {**_PATH, "default": "."},
        "recursive": {"type": "boolean", "default": False},
    },
    category="file",
)
def file_list(arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
    workspace = workspace_of(context)
    path = workspace.relative(arguments.get("path", "."))
    prefix = "" if path == "." else f"{path}/"
    entries: list[dict[str, Any]] = []
    size = 0
    is_truncated = False
    with workspace.open_directory(path) as fd:
        for found in walk(fd, prefix, recursive=bool(arguments.get("recursive", False))):
            entry: dict[str, Any] = {"path": _shown(found.path), "type": found.kind}
            if found.kind == "file":
                entry["size"] = found.size
            size += len(msgspec.json.encode(entry)) + 1
            if len(entries) >= _MAX_ENTRIES or size > _MAX_LIST_BYTES or context.cancelled():
                is_truncated = True
                break
            entries.append(entry)
    return {"path": path, "entries": entries, "count": len(entries), "truncated": is_truncated}


@tool(
    name="file_exists",
    description="Whether there is a file or directory at a path of the workspace, and which of the two.",
    parameters={"path": _PATH},
    required_params=["path"],
    category="file",
)
def file_exists(arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
    workspace = workspace_of(context)
    path = workspace.relative(arguments["path"])
    kind = workspace.kind(path)
    return {"path": path, "exists": kind is not None, "type": kind}


def _lines(text: str) -> list[str]:
    """The lines with their ends; only a newline ends a line, as in an editor."""
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def _within_budget(lines: list[str]) -> list[str]:
    """As many lines from the first on as fit the budget; always one."""
    size = 0
    for count, line in enumerate(lines):
        size += len(msgspec.json.encode(line)) - 2
        if size > _MAX_CONTENT_BYTES and count:
            return lines[:count]
    return lines


def _shown(path: str) -> str:
    """A name that is not UTF-8, in a form JSON can carry."""
    return os.fsencode(path).decode("utf-8", "replace")
