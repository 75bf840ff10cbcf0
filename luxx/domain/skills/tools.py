"""The tools activate_skill and skill_read: a model loads a skill's instructions and reads its other files.

The run stores which skills are active and which tools they allow. Programs of the sandbox find the files of
skills at the path that `activate_skill` returns.
"""

from collections.abc import Callable
from itertools import islice
from typing import Any

from msgspec.structs import replace

from luxx.domain.skills.allowed_tools import allowed_here
from luxx.domain.skills.registry import FILE, Skill, SkillRegistry
from luxx.errors import ToolFailed
from luxx.tools.core import ToolContext, ToolDefinition, ToolRegistry, cache_never
from luxx.tools.factory import tool
from luxx.tools.files.walk import walk
from luxx.tools.files.workspace import Workspace
from luxx.tools.permissions.rules import ACTIVATE_TOOL, READ_TOOL
from luxx.wire.tool import SkillHead

MAX_FILE_BYTES = 1024 * 1024
_NAME = {"type": "string", "minLength": 1, "maxLength": 64, "description": "The skill's name"}
_SHOWN = 50
_MOST_FILES = 100
"""Names of files of a skill that its activation lists."""

ShownFolder = Callable[[str], str | None]
"""Where programs find the folder of a skill, by the skill's name; None if no program can be started."""


def skill_tools(
    skill_registry: SkillRegistry, registry: ToolRegistry, shown_folder: ShownFolder
) -> list[ToolDefinition]:
    """The definitions of both tools. `registry`: the tools that skills may allow."""
    return [
        _activate_tool(skill_registry, registry, shown_folder),
        _read_tool(skill_registry, shown_folder),
    ]


def _activate_tool(
    skill_registry: SkillRegistry, registry: ToolRegistry, shown_folder: ShownFolder
) -> ToolDefinition:
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
        skill = skill_registry.skills.get(arguments["name"])
        if skill is None:
            raise ToolFailed(_unknown(skill_registry, arguments["name"]))
        folder = shown_folder(skill.name)
        allowed = allowed_here(skill.allowed_tools, _names(registry, context), folder)
        context.actions.activate(
            SkillHead(name=skill.name, description=skill.description, allowed_tools=allowed.entries)
        )
        activated: dict[str, Any] = {
            "skill": skill.name,
            "instructions": skill.instructions,
            "allowed_tools": None if allowed.entries is None else list(allowed.entries),
        }
        if allowed.note is not None:
            activated |= {"unknown_tools": list(allowed.unknown), "note": allowed.note}
        return activated | _files_note(skill, folder)

    return replace(activate_skill.definition, keeps_lines=True)


def _names(registry: ToolRegistry, context: ToolContext) -> list[str]:
    """The tools that exist for the caller, also those above the caller's level."""
    own_tools = context.caller.own_tools
    tools = [tool for tool in registry.list_all() if tool.is_for(context.caller.tenant_id)]
    return [tool.name for tool in (*tools, *(own_tools.list_all() if own_tools is not None else ()))]


def _files_note(skill: Skill, folder: str | None) -> dict[str, Any]:
    """The files of the skill besides its instructions, and how to use them; empty if there are none."""
    with Workspace(skill.folder).open_directory(".") as fd:
        found = (entry.path for entry in walk(fd) if entry.kind == "file" and entry.path != FILE)
        files = list(islice(found, _MOST_FILES))
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


def _read_tool(skill_registry: SkillRegistry, shown_folder: ShownFolder) -> ToolDefinition:
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
    )
    def skill_read(arguments: dict[str, Any]) -> dict[str, Any]:
        skill = skill_registry.skills.get(arguments["name"])
        if skill is None:
            raise ToolFailed(_unknown(skill_registry, arguments["name"]))
        folder = Workspace(skill.folder)
        try:
            shown = shown_folder(skill.name)
            asked = arguments["path"]
            path = folder.relative(asked if shown is None else asked.removeprefix(f"{shown}/"))
            content = folder.read(path, MAX_FILE_BYTES).decode("utf-8")
        except UnicodeDecodeError:
            raise ToolFailed("this file of the skill is not UTF-8 text") from None
        return {"skill": skill.name, "path": path, "content": content}

    return skill_read.definition


def _unknown(skill_registry: SkillRegistry, name: str) -> str:
    shown = ", ".join(list(skill_registry.skills)[:_SHOWN]) or "none"
    return f"there is no skill named {name[:64]!r}; there are: {shown}"
