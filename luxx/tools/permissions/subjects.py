"""The subject of a call, which rules match: one argument, read as a command, a path, a URL or plain text.

A subject has one or more parts, and rules must allow each. An ambiguous subject has a `problem`. For rules
about paths, `resolve_links` reads the symbolic links of the workspace, like the file tools do.
"""

import os
import posixpath
import re
import shlex
import stat
from enum import StrEnum
from functools import lru_cache
from pathlib import PurePath, PurePosixPath
from typing import Any, cast

import msgspec

from luxx.errors import InvalidInput
from luxx.infra.network.hosts import canonical_host
from luxx.infra.network.urls import WebUrl, parse_url
from luxx.tools.core import ToolDefinition
from luxx.tools.permissions.command_line import read_command
from luxx.tools.permissions.programs import CommandWords, always_pattern_words, variants

AMBIGUOUS_URL = "different programs may read this URL differently"

_URL_CHARACTERS = re.compile(r"[!#$%&'()*+,./0-9:;=?@A-Z\[\]_a-z~-]+")
_ESCAPED = re.compile(r"%([0-9A-Fa-f]{2})")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_AMBIGUOUS_PATH = re.compile(r"(?<!:)//|(?:^|/)\.\.?(?:[/;]|$)|%2F|%5C|%25")
"""What servers normalize differently: dot segments, empty segments, and escaped `/`, `\\` and `%`."""


def canonical_url(raw_url: str) -> WebUrl | str:
    """The canonical URL, or the reason why the URL is ambiguous."""
    if not _URL_CHARACTERS.fullmatch(raw_url):
        return AMBIGUOUS_URL
    try:
        url = parse_url(raw_url)
    except InvalidInput:
        return AMBIGUOUS_URL
    target = decode_unreserved(url.target)
    if _BAD_ESCAPE.search(target) or _AMBIGUOUS_PATH.search(target.partition("?")[0]):
        return AMBIGUOUS_URL
    return msgspec.structs.replace(url, target=target)


def decode_unreserved(target: str) -> str:
    """The target with unreserved characters unescaped and all other escapes in upper case."""

    def decoded(escape: re.Match[str]) -> str:
        char = chr(int(escape[1], 16))
        return char if char in _UNRESERVED else escape[0].upper()

    return _ESCAPED.sub(decoded, target)


@lru_cache(maxsize=4096)
def canonical_host_pattern(pattern: str) -> str:
    """The canonical form of a host pattern; one with wildcards is only converted to lower case."""
    host, separator, port = pattern.rpartition(":")
    if not separator or not port.isdecimal():
        host, port = pattern, ""
    try:
        name = canonical_host(host)
    except InvalidInput:
        return pattern.lower()
    name = f"[{name}]" if ":" in name else name
    return f"{name}:{port}" if port else name


MCP_PREFIX = "mcp__"
"""How the names of the tools of MCP servers begin; they come and go with their server."""

MAX_PARTS = 40
"""Limit for one call, because each part is matched with all rules."""


class SubjectKind(StrEnum):
    COMMAND = "command"
    PATH = "path"
    URL = "url"
    TEXT = "text"


_KINDS = {
    "command": SubjectKind.COMMAND,
    "path": SubjectKind.PATH,
    "url": SubjectKind.URL,
    "urls": SubjectKind.URL,
}
"""Argument names that determine the kind of the subject, in order of preference; others are text."""


class SubjectPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part that rules must allow: `text` for display, `words` of a command.

    `variants`: other spellings of a command, for ask and deny rules; each is made by `join_words`.
    `is_target`: the text is the resolved target of a path.
    """

    text: str
    words: CommandWords = ()
    variants: tuple[str, ...] = ()
    is_target: bool = False


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """`raw`: the argument as written. `problem`: why it is ambiguous. `usual`: the pattern that "always"
    creates."""

    kind: SubjectKind
    raw: str
    parts: tuple[SubjectPart, ...]
    problem: str | None = None
    usual: str = "*"


def subject_name(tool: ToolDefinition) -> str | None:
    """The argument that rules match: the tool's `subject`, one of `_KINDS`, the first required, or
    the first of all."""
    properties = cast("dict[str, Any]", tool.parameters.get("properties", {}))
    if tool.subject:
        return tool.subject
    for name in (*_KINDS, *cast("list[str]", tool.parameters.get("required", []))):
        if name in properties:
            return name
    return next(iter(properties), None)


def subject_of(tool: ToolDefinition, arguments: dict[str, Any], workspace: PurePath | None = None) -> Subject:
    """The subject of a call. `workspace`: the directory to which absolute paths are made relative."""
    name = subject_name(tool)
    if name is None:
        return _subject(SubjectKind.TEXT, "", "", usual="*")
    value = arguments.get(name, _default(tool, name))
    # Any other list is plain text.
    values = cast("list[Any]", value) if isinstance(value, list) and name == "urls" else [cast(Any, value)]
    raw = list(dict.fromkeys(_text(value) for value in values))
    is_server_tool = not tool.name.startswith(MCP_PREFIX)
    subjects = [_read(name, value, workspace, is_server_tool=is_server_tool) for value in raw[:MAX_PARTS]]
    if len(subjects) == 1:
        return subjects[0]
    problems = [subject.problem for subject in subjects if subject.problem is not None]
    problems += [f"it has more than {MAX_PARTS} parts"] if len(raw) > MAX_PARTS else []
    # What is not understood is allowed only as it was written.
    usual = {subject.usual for subject in subjects}
    return Subject(
        kind=_KINDS.get(name, SubjectKind.TEXT),
        raw=_text(value),
        parts=tuple(part for subject in subjects for part in subject.parts),
        problem=problems[0] if problems else None,
        usual=usual.pop() if len(usual) == 1 and not problems else f"={_text(value)}",
    )


def _default(tool: ToolDefinition, name: str) -> Any:
    """The default value of an omitted argument."""
    property_schema: Any = tool.parameters.get("properties", {}).get(name)
    is_schema = isinstance(property_schema, dict)
    value = cast("dict[str, Any]", property_schema).get("default") if is_schema else None
    return value if value is not None else "." if name == "path" else ""


def _subject(
    kind: SubjectKind, raw: str, text: str, *, problem: str | None = None, usual: str | None = None
) -> Subject:
    """A subject with one part. By default "always" covers only what was written."""
    return Subject(
        kind=kind,
        raw=raw,
        parts=(SubjectPart(text=text),),
        problem=problem,
        usual=f"={raw}" if usual is None else usual,
    )


def _read(name: str, raw: str, workspace: PurePath | None, *, is_server_tool: bool) -> Subject:
    match _KINDS.get(name, SubjectKind.TEXT):
        case SubjectKind.COMMAND:
            return _command(raw)
        case SubjectKind.PATH if is_server_tool:
            return _path(_relative_to_workspace(raw, workspace), raw)
        case SubjectKind.PATH:
            return _mcp_path(raw)
        case SubjectKind.URL:
            return _url(raw)
        case SubjectKind.TEXT:
            return _subject(SubjectKind.TEXT, raw, raw, usual="*")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value, order="sorted").decode()


def _command(raw: str) -> Subject:
    line = read_command(raw)
    commands = line.commands
    parts = tuple(SubjectPart(text=shlex.join(one), words=one, variants=variants(one)) for one in commands)
    # `git status *` for a read-only `git status --short`; for other commands the exact command.
    usual = always_pattern_words(commands[0]) if len(commands) == 1 and line.problem is None else None
    return Subject(
        kind=SubjectKind.COMMAND,
        raw=raw,
        parts=parts or (SubjectPart(text=raw, variants=("",)),),
        problem=line.problem,
        usual=f"={raw}" if usual is None else " ".join((*usual, "*")),
    )


def _relative_to_workspace(raw: str, workspace: PurePath | None) -> str:
    """An absolute path in the workspace as a relative path, like the file tools read it."""
    path = PurePosixPath(raw)
    if workspace is None or not path.is_absolute():
        return raw
    root = PurePosixPath(os.path.abspath(workspace))
    return str(path.relative_to(root)) if path.is_relative_to(root) else raw


def _path(path: str, raw: str) -> Subject:
    """The subject of a workspace path, normalized."""
    path = posixpath.normpath(path or ".")
    is_inside = not path.startswith(("/", "../")) and path != ".."
    folder = posixpath.dirname(path)
    is_plain = is_inside and folder and not is_wild(folder) and not folder.startswith("=")
    problem = None if is_inside else "it is not a path within the workspace"
    return _subject(SubjectKind.PATH, raw, path, problem=problem, usual=f"{folder}/*" if is_plain else None)


def _mcp_path(raw: str) -> Subject:
    """The subject of a path for an MCP server. Its start directory is unknown, so `..` may lead anywhere."""
    path = posixpath.normpath(raw or ".")
    problem = "the path leads above its start directory" if ".." in path.split("/") else None
    return _subject(SubjectKind.PATH, raw, path, problem=problem)


def _url(raw: str) -> Subject:
    """The subject of a URL in its canonical form."""
    address = canonical_url(raw)
    if isinstance(address, str):
        return _subject(SubjectKind.URL, raw, raw, problem=address)
    return _subject(SubjectKind.URL, raw, address.text, usual=f"{address.scheme}://{address.authority}/*")


def is_wild(text: str) -> bool:
    """Whether the text has wildcards."""
    return "*" in text or "?" in text


MAX_LINKS = 40
"""The limit of Linux."""

MAX_LOOKUPS = 400
"""File system lookups per path, including its links."""

_HAS_HARD_LINKS = "the file has several hard links, and the other paths are not known"
_LEAVES_WORKSPACE = "it leads out of the workspace"
_UNRESOLVABLE = "the path cannot be resolved"


class _UnresolvablePath(Exception):
    """The path cannot be resolved; the message says why."""


def resolve_links(subject: Subject, workspace: PurePath) -> Subject:
    """The subject with the resolved path as a further part, if it differs from the path."""
    if subject.problem is not None or len(subject.parts) != 1:
        return subject
    raw = subject.parts[0].text
    try:
        resolved_path, has_hard_links = _walk(os.path.abspath(workspace), raw)
    except _UnresolvablePath as error:
        return msgspec.structs.replace(subject, problem=str(error), usual=f"={subject.raw}")
    if resolved_path != raw:
        parts = (*subject.parts, SubjectPart(text=resolved_path, is_target=True))
        subject = msgspec.structs.replace(subject, parts=parts, usual=f"={subject.raw}")
    if has_hard_links:
        return msgspec.structs.replace(subject, problem=_HAS_HARD_LINKS, usual=f"={subject.raw}")
    return subject


def _walk(root: str, path: str) -> tuple[str, bool]:
    """The path without links, and whether its file has several hard links. Raises _UnresolvablePath."""
    pending, resolved = path.split("/")[::-1], list[str]()
    links = lookups = 0
    has_hard_links = False
    while pending:
        name = pending.pop()
        lookups += 1
        if lookups > MAX_LOOKUPS or links > MAX_LINKS:
            raise _UnresolvablePath(_UNRESOLVABLE)
        if name in ("", "."):
            continue
        if name == "..":
            if not resolved:
                raise _UnresolvablePath(_LEAVES_WORKSPACE)
            resolved.pop()
            continue
        full_path = os.path.join(root, *resolved, name)
        status = _status(full_path)
        if status is not None and stat.S_ISLNK(status.st_mode):
            links += 1
            pending += _target(full_path).split("/")[::-1]
            continue
        resolved.append(name)
        has_hard_links = status is not None and stat.S_ISREG(status.st_mode) and status.st_nlink > 1
    return os.fsencode("/".join(resolved) or ".").decode("utf-8", "replace"), has_hard_links


def _status(full_path: str) -> os.stat_result | None:
    """None if nothing exists there. Raises _UnresolvablePath."""
    try:
        return os.lstat(full_path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise _UnresolvablePath(_UNRESOLVABLE) from error


def _target(full_path: str) -> str:
    try:
        target = os.readlink(full_path)
    except OSError as error:
        raise _UnresolvablePath(_UNRESOLVABLE) from error
    if target.startswith("/"):
        raise _UnresolvablePath(_LEAVES_WORKSPACE)
    return target
