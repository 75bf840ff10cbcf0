"""file_glob: the files of a workspace whose path is like a pattern, with their sizes."""

from typing import Any

import msgspec

from luxx.errors import ToolFailed
from luxx.tools.builtin.file import MAX_ENTRIES, MAX_LIST_BYTES, crowded, shown, workspace_of
from luxx.tools.confine import Workspace
from luxx.tools.core import ToolContext
from luxx.tools.factory import tool
from luxx.tools.pattern import Pattern, compile_glob
from luxx.tools.walk import walk

_MAX_LOOKED_AT = 200_000
_MAX_GLOB = 200


class _Glob:
    """One search as it goes on: what was found, and what the answer has to say of it."""

    def __init__(self, pattern: Pattern, base: str) -> None:
        self._pattern = pattern
        self._prefix = "" if base == "." else f"{base}/"
        self._size = 0
        self.files: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.is_truncated = False

    def search(self, fd: int, context: ToolContext, *, recursive: bool) -> None:
        found_in = walk(fd, recursive=recursive, on_crowded=self._crowded)
        for count, found in enumerate(found_in):
            if count >= _MAX_LOOKED_AT or context.cancelled():
                self._end(f"the search ended after {count:,} files and directories; narrow the path")
                break
            if found.kind != "file" or not self._pattern.fullmatch(shown(found.path)):
                continue
            entry: dict[str, Any] = {"path": shown(self._prefix + found.path), "size": found.size}
            self._size += len(msgspec.json.encode(entry)) + 1
            if len(self.files) >= MAX_ENTRIES or self._size > MAX_LIST_BYTES:
                self._end("there are more files than are shown; narrow the pattern or the path")
                break
            self.files.append(entry)

    def _crowded(self, directory: str) -> None:
        self._end(crowded(shown(self._prefix + directory)))

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
        "path": {"type": "string", "minLength": 1, "default": ".", "description": "The directory to look in"},
    },
    required_params=["pattern"],
    category="file",
)
def file_glob(arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
    workspace = workspace_of(context)
    path = workspace.relative(arguments.get("path", "."))
    pattern: str = arguments["pattern"]
    named, rest = _split(pattern)
    glob = _Glob(compile_glob(rest), base := _base(workspace, path, named))
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
    """The directories that a pattern names as they are, and the pattern below them."""
    if "\0" in pattern:
        raise ToolFailed("a pattern cannot contain a NUL character")
    if pattern.startswith("/"):
        raise ToolFailed("a pattern is relative to `path`; leave out the / it begins with")
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ToolFailed("a pattern cannot have .. in it; `path` says where to look")
    named: list[str] = []
    while len(parts) > 1 and not set(parts[0]) & set("*?[{"):
        named.append(parts.pop(0))
    return named, "/".join(parts) or "*"


def _base(workspace: Workspace, path: str, named: list[str]) -> str:
    return workspace.relative("/".join([path, *named]))
