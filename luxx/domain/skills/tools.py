"""The tools activate_skill and skill_read: a model loads a skill's instructions and reads its other files.

The run stores which skills are active and which tools they allow.
"""

from typing import Any

from msgspec.structs import replace

from luxx.domain.skills.registry import SkillRegistry
from luxx.errors import ToolFailed
from luxx.tools.core import ToolContext, ToolDefinition, cache_never
from luxx.tools.factory import tool
from luxx.tools.files.workspace import Workspace
from luxx.tools.permissions.rules import ACTIVATE_TOOL, READ_TOOL
from luxx.wire.tool import SkillHead

MAX_FILE_BYTES = 1024 * 1024
_NAME = {"type": "string", "minLength": 1, "maxLength": 64, "description": "The skill's name"}
_SHOWN = 50


def skill_tools(skill_registry: SkillRegistry) -> list[ToolDefinition]:
    """The definitions of both tools."""
    return [_activate_tool(skill_registry), _read_tool(skill_registry)]


def _activate_tool(skill_registry: SkillRegistry) -> ToolDefinition:
    @tool(
        name=ACTIVATE_TOOL,
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
        context.actions.activate(
            SkillHead(name=skill.name, description=skill.description, allowed_tools=skill.allowed_tools)
        )
        allowed = None if skill.allowed_tools is None else list(skill.allowed_tools)
        return {"skill": skill.name, "instructions": skill.instructions, "allowed_tools": allowed}

    return replace(activate_skill.definition, keeps_lines=True)


def _read_tool(skill_registry: SkillRegistry) -> ToolDefinition:
    @tool(
        name=READ_TOOL,
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
            path = folder.relative(arguments["path"])
            content = folder.read(path, MAX_FILE_BYTES).decode("utf-8")
        except UnicodeDecodeError:
            raise ToolFailed("this file of the skill is not UTF-8 text") from None
        return {"skill": skill.name, "path": path, "content": content}

    return skill_read.definition


def _unknown(skill_registry: SkillRegistry, name: str) -> str:
    shown = ", ".join(list(skill_registry.skills)[:_SHOWN]) or "none"
    return f"there is no skill named {name[:64]!r}; there are: {shown}"
