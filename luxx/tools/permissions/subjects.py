"""What of a call a rule looks at: one argument of it, read as a command, a path, an address or plain text.

A subject is a set of parts, and each has to be allowed. What cannot be read for sure says why.
"""

import os
import posixpath
import re
import shlex
from enum import StrEnum
from functools import lru_cache
from pathlib import PurePath, PurePosixPath
from typing import Any, cast

import msgspec

from luxx.errors import InvalidInput
from luxx.infra.network.hosts import canonical_host
from luxx.infra.network.urls import parse_url
from luxx.tools.core import ToolDefinition
from luxx.tools.permissions.command_line import read_command
from luxx.tools.permissions.options import Words
from luxx.tools.permissions.programs import forms, usual_words

NOT_PLAIN = "it is not an address that all would read alike"

_PLAIN_URL = re.compile(r"[!#$%&'()*+,./0-9:;=?@A-Z\[\]_a-z~-]+")
_ESCAPED = re.compile(r"%([0-9A-Fa-f]{2})")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_FOLDED = re.compile(r"(?<!:)//|(?:^|/)\.\.?(?:[/;]|$)|%2F|%5C|%25")
"""What servers fold, each in its own way: dots and empty segments, and signs that are hidden."""


class PlainAddress(msgspec.Struct, frozen=True, kw_only=True):
    """`place` is the host, with its port unless that is the usual one; `target` the path with its query."""

    scheme: str
    place: str
    target: str

    @property
    def text(self) -> str:
        return f"{self.scheme}://{self.place}{self.target}"


def plain_address(given: str) -> PlainAddress | str:
    """The address, or why it is not surely known which one is meant."""
    if not _PLAIN_URL.fullmatch(given):
        return NOT_PLAIN
    try:
        url = parse_url(given)
    except InvalidInput:
        return NOT_PLAIN
    target = unescaped(url.target)
    if _BAD_ESCAPE.search(target) or _FOLDED.search(target.partition("?")[0]):
        return NOT_PLAIN
    scheme, _, rest = url.text.partition("://")
    return PlainAddress(scheme=scheme, place=rest.partition("/")[0], target=target)


def unescaped(target: str) -> str:
    """Without escapes that nobody needs; the others in capital letters."""
    return _ESCAPED.sub(lambda found: _character(found[1]), target)


@lru_cache(maxsize=4096)
def plain_place(pattern: str) -> str:
    """The host of a pattern in the spelling of hosts; one with wildcards only in small letters."""
    host, separator, port = pattern.rpartition(":")
    if not separator or not port.isdecimal():
        host, port = pattern, ""
    try:
        name = canonical_host(host)
    except InvalidInput:
        return pattern.lower()
    name = f"[{name}]" if ":" in name else name
    return f"{name}:{port}" if port else name


def _character(code: str) -> str:
    char = chr(int(code, 16))
    return char if char in _UNRESERVED else f"%{code.upper()}"


MCP_PREFIX = "mcp__"

_BY_NAME = ("command", "path", "url", "urls")
"""Arguments by whose name it is known how to read them; looked for in this order."""

MOST_PARTS = 40
"""Of one call; each costs as much as there are rules."""

_LIST = "urls"
"""The argument that is several of a kind; any other list is text."""


class SubjectKind(StrEnum):
    COMMAND = "command"
    PATH = "path"
    URL = "url"
    TEXT = "text"


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is to be allowed: `text` as people read it, `words` of a command.

    `forms`: what a command may mean besides, for rules that bind; each is its words, joined. `is_target`: it
    is what a path leads to, and not what was written.
    """

    text: str
    words: Words = ()
    forms: tuple[str, ...] = ()
    is_target: bool = False


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """`given`: the argument as it was written. `problem`: why it is not surely known what it means.

    `usual` is the pattern that a person who says "always" most likely means.
    """

    kind: SubjectKind
    given: str
    parts: tuple[Part, ...]
    problem: str | None = None
    usual: str = "*"


def subject_name(tool: ToolDefinition) -> str | None:
    """The argument that rules look at: the tool's own choice, one known by name, the first required, or the
    first there is."""
    properties = cast("dict[str, Any]", tool.parameters.get("properties", {}))
    if tool.subject:
        return tool.subject
    for name in (*_BY_NAME, *cast("list[str]", tool.parameters.get("required", []))):
        if name in properties:
            return name
    return next(iter(properties), None)


def subject_of(tool: ToolDefinition, arguments: dict[str, Any], workspace: PurePath | None = None) -> Subject:
    """What rules about this tool look at in these arguments. `workspace`: where whole paths may lead."""
    name = subject_name(tool)
    if name is None:
        return Subject(kind=SubjectKind.TEXT, given="", parts=(Part(text=""),))
    value = arguments.get(name, _default(tool, name))
    values = cast("list[Any]", value) if isinstance(value, list) and name == _LIST else [cast(Any, value)]
    given = list(dict.fromkeys(_text(one) for one in values))
    is_own = not tool.name.startswith(MCP_PREFIX)
    read = [_read(name, one, workspace, is_own=is_own) for one in given[:MOST_PARTS]]
    if len(read) == 1:
        return read[0]
    problems = [one.problem for one in read if one.problem is not None]
    problems += [f"it has more than {MOST_PARTS} parts"] if len(given) > MOST_PARTS else []
    usual = {one.usual for one in read}
    return Subject(
        kind=_kind(name),
        given=_text(value),
        parts=tuple(part for one in read for part in one.parts),
        problem=problems[0] if problems else None,
        usual=usual.pop() if len(usual) == 1 else f"={_text(value)}",
    )


def _default(tool: ToolDefinition, name: str) -> Any:
    """What an argument that is left out stands for."""
    told = cast("dict[str, Any]", tool.parameters.get("properties", {})).get(name)
    value = cast("dict[str, Any]", told).get("default") if isinstance(told, dict) else None
    return value if value is not None else "." if name == "path" else ""


def _read(name: str, given: str, workspace: PurePath | None, *, is_own: bool) -> Subject:
    match _kind(name):
        case SubjectKind.COMMAND:
            return _command(given)
        case SubjectKind.PATH if is_own:
            return _path(_within(given, workspace), given)
        case SubjectKind.PATH:
            return _foreign_path(given)
        case SubjectKind.URL:
            return _url(given)
        case SubjectKind.TEXT:
            return Subject(kind=SubjectKind.TEXT, given=given, parts=(Part(text=given),))


def _kind(name: str) -> SubjectKind:
    known = {"command": SubjectKind.COMMAND, "path": SubjectKind.PATH}
    return SubjectKind.URL if name in ("url", "urls") else known.get(name, SubjectKind.TEXT)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value, order="sorted").decode()


def _command(given: str) -> Subject:
    line = read_command(given)
    parts = tuple(Part(text=shlex.join(words), words=words, forms=forms(words)) for words in line.commands)
    return Subject(
        kind=SubjectKind.COMMAND,
        given=given,
        parts=parts or (Part(text=given, forms=("",)),),
        problem=line.problem,
        usual=_usual_command(given, line.commands) if line.problem is None else f"={given}",
    )


def _usual_command(given: str, commands: tuple[Words, ...]) -> str:
    """`git status --short` stands for all of `git status`; of anything less known, only itself."""
    usual = usual_words(commands[0]) if len(commands) == 1 else None
    return f"={given}" if usual is None else " ".join((*usual, "*"))


def _within(given: str, workspace: PurePath | None) -> str:
    """A whole path that leads into the workspace, as a path within it, just as tools read it."""
    path = PurePosixPath(given)
    if workspace is None or not path.is_absolute():
        return given
    root = PurePosixPath(os.path.abspath(workspace))
    return str(path.relative_to(root)) if path.is_relative_to(root) else given


def _path(path: str, given: str) -> Subject:
    """Within the workspace, without `.` and `..`."""
    path = posixpath.normpath(path or ".")
    is_inside = not path.startswith(("/", "../")) and path != ".."
    folder = posixpath.dirname(path)
    is_plain = is_inside and folder and not _is_wild(folder) and not folder.startswith("=")
    return Subject(
        kind=SubjectKind.PATH,
        given=given,
        parts=(Part(text=path),),
        problem=None if is_inside else "it is not a path within the workspace",
        usual=f"{folder}/*" if is_plain else f"={given}",
    )


def _foreign_path(given: str) -> Subject:
    """A path that a server of others reads: from where is not known, so `..` may lead anywhere."""
    path = posixpath.normpath(given or ".")
    problem = "it leads above where it begins" if ".." in path.split("/") else None
    return Subject(
        kind=SubjectKind.PATH, given=given, parts=(Part(text=path),), problem=problem, usual=f"={given}"
    )


def _url(given: str) -> Subject:
    """As it is fetched: with scheme and host in one spelling, and no port where it is the usual one."""
    address = plain_address(given)
    if isinstance(address, PlainAddress):
        usual = f"{address.scheme}://{address.place}/*"
        return Subject(kind=SubjectKind.URL, given=given, parts=(Part(text=address.text),), usual=usual)
    return Subject(
        kind=SubjectKind.URL, given=given, parts=(Part(text=given),), problem=address, usual=f"={given}"
    )


def _is_wild(text: str) -> bool:
    return "*" in text or "?" in text
