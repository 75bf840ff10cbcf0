"""The tools activate_skill and skill_read, and what the `allowed-tools` of a skill mean on this server.

The run stores which skills are active and which tools they allow. Programs of the sandbox find the files of
skills at the path that `activate_skill` returns. Public skills name the tools of other products: `Read`,
`Bash(python:*)`, `mcp__github__*`. Their entries become entries for the tools of Luxx that do the same. A
skill of which no entry names a tool limits nothing: a run without tools could not follow it.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from luxx.domain.routing.uses import count_use
from luxx.domain.skills.document import FILE, MAX_FILE_BYTES, OTHER_FILE, read_document
from luxx.domain.skills.files import SkillCopies
from luxx.domain.skills.skill import Skill, SkillSet
from luxx.domain.skills.upload import MAX_BYTES, MAX_FILES
from luxx.errors import ToolFailed
from luxx.infra.store.engine import Store
from luxx.tools.core import ToolContext, ToolDefinition, ToolRegistry, cache_never
from luxx.tools.factory import tool
from luxx.tools.files.walk import walk
from luxx.tools.files.workspace import Workspace
from luxx.tools.pattern import join_words, matches_words
from luxx.tools.permissions.programs import runs_other_programs
from luxx.tools.permissions.rules import ACTIVATE_TOOL, ALWAYS_ALLOWED, READ_TOOL
from luxx.tools.permissions.subjects import is_wild
from luxx.wire.run import ChosenBy
from luxx.wire.tool import ActiveSkill, skill_key

_NAME = {"type": "string", "minLength": 1, "maxLength": 64, "description": "The skill's name"}
_SHOWN = 50
ShownFolder = Callable[[str, Path], str | None]
"""Where programs find the folder of a skill, by its name and path; None if no program can be started."""

SkillFolders = tuple[tuple[str, Path], ...]


class SkillPlaces:
    """Where programs and tools find the folders of skills. `shown`: the path of a folder inside the sandbox;
    None if no program can be started."""

    def __init__(self, store: Store, copies: SkillCopies, shown: ShownFolder) -> None:
        self._store = store
        self._copies = copies
        self._shown = shown

    async def folder_of(self, skill: Skill) -> Workspace:
        """The folder of the skill. Raises ToolFailed if its files are gone."""
        await self._copies.make(self._store, [skill])
        if not await asyncio.to_thread(skill.folder.is_dir):
            raise ToolFailed(f"the files of the skill {skill.name} are not there any more")
        return Workspace(skill.folder)

    async def for_program(self, context: ToolContext) -> SkillFolders:
        """The name and the real path of the folder of each skill that a program of this call may read."""
        skills = skills_in(context)
        await self._copies.make(self._store, skills.values())
        return await asyncio.to_thread(_real_folders, skills)

    async def count_use(self, skill: Skill, tenant_id: int | None) -> None:
        """Counts that the tenant has used the skill."""
        key = skill_key(skill.name)
        if tenant_id is None:
            return
        await self._store.write_rows(lambda connection: count_use(connection, tenant_id, "skill", key))

    def shown(self, skill: Skill) -> str | None:
        """The path at which programs find the folder of the skill."""
        return self._shown(skill.name, skill.folder)


def _real_folders(skills: SkillSet) -> SkillFolders:
    return tuple((skill.name, skill.folder.resolve()) for skill in skills.values() if skill.folder.is_dir())


def skills_in(context: ToolContext) -> SkillSet:
    """The skills that a call may use."""
    skills = context.caller.skills
    return skills if isinstance(skills, SkillSet) else SkillSet()


def skill_tools(places: SkillPlaces) -> list[ToolDefinition]:
    """The definitions of both tools."""
    return [_activate_tool(places), _read_tool(places)]


def _activate_tool(places: SkillPlaces) -> ToolDefinition:
    @tool(
        name=ACTIVATE_TOOL,
        is_self_contained=True,
        description=(
            "Load the instructions of a skill, by its name, and do as they say. If the skill allows certain "
            "tools, only these can be used for the rest of this run; of several skills, each must allow it."
        ),
        parameters={"name": _NAME},
        required_params=["name"],
        category="skills",
        # Repeatable after a crash and never cached: the call's effect on the run matters, not its result.
        repeatable=True,
        keeps=cache_never,
    )
    async def activate_skill(arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
        skill = _find(skills_in(context), arguments["name"])
        if skill.is_for_people and context.caller.run_id is not None:
            raise ToolFailed(f"only people activate the skill {skill.name}: they name it with their message")
        loaded = await load_skill(places, context, skill.name)
        context.actions.activate(loaded.skill)
        context.metadata.is_untrusted = not loaded.is_reviewed
        return loaded.content

    return replace(activate_skill.definition, keeps_lines=True)


class LoadedSkill(msgspec.Struct, frozen=True, kw_only=True):
    """A skill that is about to become active, and what the model gets of it: its instructions, the tools that
    can be used, its files."""

    skill: ActiveSkill
    is_reviewed: bool
    content: dict[str, Any]

    def text(self, by: ChosenBy) -> str:
        """What the model gets, as the text of a message. A skill that the router chose limits no tools."""
        left_out, name = {"skill", "instructions"}, self.skill.name
        head = f"the person has activated the skill {name}. Do as its instructions say."
        if by == ChosenBy.ROUTER:
            left_out |= {"allowed_tools", "unknown_tools", "note"}
            head = f"by its words, the message asks for the skill {name}. If it fits, do as it says."
        others = {name: value for name, value in self.content.items() if name not in left_out}
        lines = [
            f"(From Luxx: {head})",
            "",
            self.content["instructions"].strip(),
        ]
        if any(value is not None for value in others.values()):
            lines += ["", msgspec.json.encode(others).decode()]
        return "\n".join(lines)


async def load_skill(places: SkillPlaces, context: ToolContext, name: str) -> LoadedSkill:
    """The skill of this name that the call may use. Raises ToolFailed."""
    skill = _find(skills_in(context), name)
    files = await places.folder_of(skill)
    instructions = skill.instructions or await asyncio.to_thread(_instructions, files)
    folder = places.shown(skill)
    # Of all tools that exist for the caller, also those above the caller's level.
    names = [tool.name for tool in context.tools_or(ToolRegistry()).list_all()]
    allowed = allowed_here(skill.allowed_tools, names, folder)
    content: dict[str, Any] = {
        "skill": skill.name,
        "instructions": instructions,
        "allowed_tools": None if allowed.entries is None else list(allowed.entries),
    }
    if allowed.note is not None:
        content |= {"unknown_tools": list(allowed.unknown), "note": allowed.note}
    content |= await asyncio.to_thread(_files_note, files, folder)
    active = ActiveSkill(
        name=skill.name,
        description=skill.description,
        allowed_tools=allowed.entries,
        scope=skill.scope.value,
        digest=skill.digest,
    )
    await places.count_use(skill, context.caller.tenant_id)
    return LoadedSkill(skill=active, is_reviewed=skill.is_reviewed, content=content)


def _instructions(folder: Workspace) -> str:
    return read_document(folder.read(FILE, MAX_FILE_BYTES)).instructions


def _files_note(skill_files: Workspace, folder: str | None) -> dict[str, Any]:
    """The files of the skill besides its instructions, and how to use them; empty if there are none."""
    with skill_files.open_directory(".") as fd:
        found = (
            entry.path for entry in walk(fd) if entry.kind == "file" and entry.path not in (FILE, OTHER_FILE)
        )
        files = list(islice(found, MAX_FILES))
    if not files:
        return {}
    how = "Read text files with skill_read."
    if folder is not None:
        how = (
            f"Paths in the instructions are relative to {folder}, which programs can read and not change. "
            f"With shell_execute, name the whole path, as in: python3 {folder}/{files[0]}. {how} "
            "Write results into the workspace."
        )
    return {"folder": folder, "files": files, "how_to_use_files": how}


def _read_tool(places: SkillPlaces) -> ToolDefinition:
    @tool(
        name=READ_TOOL,
        is_self_contained=True,
        description="Read a text file that a skill's instructions name, by its path in the skill's folder.",
        parameters={
            "name": _NAME,
            "path": {"type": "string", "minLength": 1, "description": "Path relative to the skill's folder"},
        },
        required_params=["name", "path"],
        category="skills",
        subject="name",
        # Another run may have the skill with other files.
        keeps=cache_never,
    )
    async def skill_read(arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
        skill = _find(skills_in(context), arguments["name"])
        folder = await places.folder_of(skill)
        shown, asked = places.shown(skill), arguments["path"]
        path = folder.relative(asked if shown is None else asked.removeprefix(f"{shown}/"))
        try:
            content = (await asyncio.to_thread(folder.read, path, MAX_BYTES)).decode("utf-8")
        except UnicodeDecodeError:
            raise ToolFailed("this file of the skill is not UTF-8 text") from None
        context.metadata.is_untrusted = not skill.is_reviewed
        return {"skill": skill.name, "path": path, "content": content}

    return skill_read.definition


def _find(skills: SkillSet, name: str) -> Skill:
    skill = skills.get(name)
    if skill is None:
        shown = ", ".join(list(skills)[:_SHOWN]) or "none"
        raise ToolFailed(f"there is no skill named {name[:64]!r}; there are: {shown}")
    return skill


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
    known = {*names, *ALWAYS_ALLOWED, *_ASKING}
    joined = join_words(tuple(known))

    def is_known(name: str) -> bool:
        """One match for all names, because a list of skills has thousands of entries."""
        return name in known or (is_wild(name) and matches_words(("*", name, "*"), joined))

    entries: list[str] = []
    unknown: list[str] = []
    for entry in written:
        here = _translated(entry, is_known, folder)
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
