"""Skills in a run: which are active, what they leave of its tools, and what the model is told of them. Pure.

That a skill is active is a fact of the log, with the tools it allowed then: a restart and a later change of
its folder leave it as it was.
"""

from collections.abc import Mapping, Sequence

from luxx.runs.events import Entry
from luxx.runs.state import ChatState
from luxx.tools.core import ToolRegistry
from luxx.tools.history import Executed
from luxx.tools.narrowing import leaves_name
from luxx.wire.event import SkillActivated
from luxx.wire.skill import SkillHead
from luxx.wire.tool import ToolSpec


def still_offered(tools: Sequence[ToolSpec], registry: ToolRegistry, state: ChatState) -> list[ToolSpec]:
    """Those of the tools that the active skills leave; no arguments can make a call of another pass."""
    if not state.narrowed:
        return list(tools)
    return [spec for spec in tools if _is_left(spec.name, registry, state)]


def activated(state: ChatState, wanted: Mapping[str, SkillHead], results: Sequence[Executed]) -> list[Entry]:
    """What is to be logged with these results: the skills of those calls that succeeded, by the call's id.

    A skill that is active with just these tools is not said again.
    """
    found = [wanted[one.call_id] for one in results if one.result.success and one.call_id in wanted]
    known = list(state.skills)
    entries: list[Entry] = []
    for skill in found:
        if skill not in known:
            known.append(skill)
            allowed = None if skill.allowed_tools is None else list(skill.allowed_tools)
            entries.append(
                SkillActivated(name=skill.name, description=skill.description, allowed_tools=allowed)
            )
    return entries


def _is_left(name: str, registry: ToolRegistry, state: ChatState) -> bool:
    tool = registry.get(name)
    return leaves_name(state.narrowed, name, only_asks=tool is not None and tool.only_asks)


def with_skills(system_prompt: str, skills: str) -> str:
    """The system prompt with what is said of the skills."""
    return "\n\n".join(part for part in (system_prompt, skills) if part)
