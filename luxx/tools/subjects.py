"""What of a call a rule looks at: one argument of it, read as a command, a path, an address or plain text.

A subject is a set of parts, and each has to be allowed. What cannot be read for sure says why.
"""

import posixpath
import re
import shlex
from enum import StrEnum
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec

from luxx.tools.command_line import Words, read_command
from luxx.tools.core import ToolDefinition

_BY_NAME = ("command", "path", "url", "urls")
"""Arguments by whose name it is known how to read them; looked for in this order."""

_PLAIN_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_SUBCOMMAND = re.compile(r"[a-z][a-z0-9-]*")
_PLAIN_URL = re.compile(r"[!#$%&'()*+,./0-9:;=?@A-Z\[\]_a-z~-]+")
_DEFAULT_PORTS = {"http": 80, "https": 443}


class SubjectKind(StrEnum):
    COMMAND = "command"
    PATH = "path"
    URL = "url"
    TEXT = "text"


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is to be allowed: `text` as people read it, `words` of a command."""

    text: str
    words: Words = ()


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


def subject_of(tool: ToolDefinition, arguments: dict[str, Any]) -> Subject:
    """What rules about this tool look at in these arguments."""
    name = subject_name(tool)
    if name is None:
        return Subject(kind=SubjectKind.TEXT, given="", parts=(Part(text=""),))
    value = arguments.get(name, _default(tool, name))
    values = cast("list[Any]", value) if isinstance(value, list) else [value]
    read = [_read(name, _text(one)) for one in values]
    if len(read) == 1:
        return read[0]
    problems = [one.problem for one in read if one.problem is not None]
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


def _read(name: str, given: str) -> Subject:
    match _kind(name):
        case SubjectKind.COMMAND:
            return _command(given)
        case SubjectKind.PATH:
            return _path(given)
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
    parts = tuple(Part(text=shlex.join(words), words=words) for words in line.commands)
    return Subject(
        kind=SubjectKind.COMMAND,
        given=given,
        parts=parts or (Part(text=given),),
        problem=line.problem,
        usual=_usual_command(given, line.commands) if line.problem is None else f"={given}",
    )


def _usual_command(given: str, commands: tuple[Words, ...]) -> str:
    """`git status --short` stands for all of `git status`; of anything less plain, only itself."""
    if len(commands) == 1 and len(commands[0]) > 1:
        name, second = commands[0][:2]
        if _PLAIN_WORD.fullmatch(name) and _SUBCOMMAND.fullmatch(second):
            return f"{name} {second} *"
    return f"={given}"


def _path(given: str) -> Subject:
    """Within the workspace, without `.` and `..`."""
    path = posixpath.normpath(given or ".")
    is_inside = not path.startswith(("/", "../")) and path != ".."
    folder = posixpath.dirname(path)
    return Subject(
        kind=SubjectKind.PATH,
        given=given,
        parts=(Part(text=path),),
        problem=None if is_inside else "it is not a path within the workspace",
        usual=f"{folder}/*" if folder and is_inside and not _is_wild(folder) else f"={given}",
    )


def _url(given: str) -> Subject:
    """With scheme and host in small letters, and no port where it is the usual one."""
    problem = "it is not an address that all would read alike"
    whole = Subject(
        kind=SubjectKind.URL, given=given, parts=(Part(text=given),), problem=problem, usual=f"={given}"
    )
    try:
        split = urlsplit(given)
        host, port = split.hostname, split.port
    except ValueError:
        return whole
    if split.scheme not in _DEFAULT_PORTS or not host or not _PLAIN_URL.fullmatch(given):
        return whole
    if split.username is not None or split.password is not None or "%" in host or _is_wild(host):
        return whole
    host = host.rstrip(".")
    where = f"[{host}]" if ":" in host else host
    if port is not None and port != _DEFAULT_PORTS[split.scheme]:
        where += f":{port}"
    rest = split._replace(scheme="", netloc="").geturl()
    text = f"{split.scheme}://{where}{rest if rest.startswith('/') else f'/{rest}'}"
    return msgspec.structs.replace(
        whole, parts=(Part(text=text),), problem=None, usual=f"{split.scheme}://{where}/*"
    )


def _is_wild(text: str) -> bool:
    return "*" in text or "?" in text
