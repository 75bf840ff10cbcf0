"""The `allowed-tools` of a skill as tools of this server. Pure.

Public skills name the tools of other products: `Read`, `Bash(python:*)`, `mcp__github__*`. Their entries
become entries for the tools of Luxx that do the same, with their pattern. An entry that names no tool is
reported. A skill of which no entry names a tool limits nothing: it was written for another product, and a
run without tools could not follow it.
"""

import re
from collections.abc import Callable, Iterable, Sequence

import msgspec

from luxx.tools.pattern import matches_wildcards
from luxx.tools.permissions.programs import runs_other_programs
from luxx.tools.permissions.rules import ALWAYS_ALLOWED

_ENTRY = re.compile(r"([^(]+)(?:\((.*)\))?", re.DOTALL)
_PREFIX_COMMAND = re.compile(r"(.+?):\*", re.DOTALL)
_DOMAIN = re.compile(r"domain:(.+)")
_MCP = re.compile(r"mcp__([a-z0-9-]+)(?:__(.+))?")

_PATH_TOOLS = {
    "read": ("file_read",),
    "write": ("file_write",),
    "edit": ("file_edit", "file_multi_edit"),
    "multiedit": ("file_multi_edit",),
    "grep": ("file_grep",),
    "glob": ("file_glob",),
    "ls": ("file_list",),
}
_PLAIN_TOOLS = {
    "websearch": ("web_search",),
    "task": ("delegate",),
    "agent": ("delegate",),
    "skill": ("activate_skill",),
    "askuserquestion": ("ask_clarification", "ask_decision"),
}
_COMMAND_TOOLS = frozenset({"bash", "shell"})
_FETCH_TOOLS = ("web_fetch", "batch_fetch")
_ASKING = frozenset({"ask_clarification", "ask_decision"})


class AllowedTools(msgspec.Struct, frozen=True, kw_only=True):
    """`entries` for this server's tools; None: the skill limits nothing. `unknown`: entries, as the skill has
    them, that name no tool of this server."""

    entries: tuple[str, ...] | None
    unknown: tuple[str, ...] = ()

    @property
    def note(self) -> str | None:
        """A sentence on the unknown entries; None if there are none."""
        if not self.unknown:
            return None
        effect = (
            "so the skill limits no tools"
            if self.entries is None
            else "the others limit the tools of this run"
        )
        return f"no tool of this server is meant by {', '.join(self.unknown)}; {effect}"


def allowed_here(
    written: Sequence[str] | None, names: Iterable[str], folder: str | None = None
) -> AllowedTools:
    """The tools that a skill allows. `names`: of the tools of this server. `folder`: where programs find the
    skill's files; a command that names one by its relative path is allowed with the whole path, too."""
    if written is None:
        return AllowedTools(entries=None)
    known = [*names, *ALWAYS_ALLOWED, *_ASKING]
    entries: list[str] = []
    unknown: list[str] = []
    for entry in written:
        here = _translated(entry, lambda name: any(matches_wildcards(name, one) for one in known), folder)
        entries += here
        if not here:
            unknown.append(entry)
    is_unlimited = bool(unknown) and not entries
    return AllowedTools(
        entries=None if is_unlimited else tuple(dict.fromkeys(entries)), unknown=tuple(unknown)
    )


def _translated(entry: str, is_known: Callable[[str], bool], folder: str | None) -> list[str]:
    """The entries for this server's tools that mean the same; none for an unknown tool."""
    match = _ENTRY.fullmatch(entry)
    if match is None:
        return []
    name, pattern = match[1], match[2]
    if is_known(name):
        return [entry]
    return [one for one in _of_other_products(name, pattern, folder) if is_known(one.partition("(")[0])]


def _of_other_products(name: str, pattern: str | None, folder: str | None) -> list[str]:
    plain = name.lower()
    if plain in _COMMAND_TOOLS:
        return [_entry("shell_execute", command) for command in _commands(pattern, folder)]
    if plain in _PATH_TOOLS:
        return [_entry(tool, _path(pattern)) for tool in _PATH_TOOLS[plain]]
    if plain == "webfetch":
        return [_entry(tool, _address(pattern)) for tool in _FETCH_TOOLS]
    if plain in _PLAIN_TOOLS:
        return list(_PLAIN_TOOLS[plain])
    if mcp := _MCP.fullmatch(name):
        # Here the name of the tenant stands before that of the server.
        return [_entry(f"mcp__*_{mcp[1]}__{mcp[2] or '*'}", pattern)]
    return []


def _entry(tool: str, pattern: str | None) -> str:
    return tool if pattern is None else f"{tool}({pattern})"


def _commands(pattern: str | None, folder: str | None) -> list[str | None]:
    """`git commit:*` means every command that begins with these words."""
    text = "" if pattern is None else pattern.strip()
    prefix = _PREFIX_COMMAND.fullmatch(text)
    words = text.split() if prefix is None else [*prefix[1].split(), "*"]
    is_shell = bool(words) and words[0] != "find" and runs_other_programs(tuple(words[:1]))
    if text in ("", "*", ":*") or (is_shell and words[1:] in ([], ["*"])):
        # `bash:*` allows every command: `bash -c` runs it.
        return [None]
    # What `bash file` does is not understood, so no pattern allows it; the file itself can be run.
    commands = [words[1:]] if is_shell else [words]
    if commands[0][0] == "python":
        commands.append(["python3", *words[1:]])
    if folder is not None and any(map(_is_relative, words)):
        commands += [[_whole(word, folder) for word in command] for command in commands]
    return [" ".join(command) for command in commands]


def _is_relative(word: str) -> bool:
    return "/" in word and not word.startswith(("/", "~", "-"))


def _whole(word: str, folder: str) -> str:
    return f"{folder}/{word.removeprefix('./')}" if _is_relative(word) else word


def _path(pattern: str | None) -> str | None:
    """One `*` matches any depth here, and paths are relative to the workspace."""
    if pattern is None:
        return None
    return re.sub(r"\*\*(?:/\*)?", "*", pattern.strip().removeprefix("./")) or None


def _address(pattern: str | None) -> str | None:
    domain = None if pattern is None else _DOMAIN.fullmatch(pattern.strip())
    return pattern if domain is None else f"{domain[1].strip()}/*"
