"""Taint: whether a run holds content that strangers wrote, which may carry instructions for its model. Pure.

It is a fact of the log, so it outlives processes; and of stored messages, so that a later run of the same
conversation has it from its beginning, and so has a subagent of a tainted run.
"""

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection

from luxx.domain.accounts.caller import Caller
from luxx.runs.log.events import Entry
from luxx.runs.turn.spec import ChatBrief
from luxx.runs.turn.state import ChatState
from luxx.tools.core import ToolRegistry
from luxx.tools.history import Executed
from luxx.tools.permissions.narrowing import leaves_name
from luxx.tools.permissions.service import read_binding
from luxx.wire.event import SkillActivated, Tainted
from luxx.wire.rule import PlacedRule, SkillHead
from luxx.wire.tool import ToolSpec


def tainted_by(state: ChatState, brief: ChatBrief) -> str | None:
    """The tool that brought the first of it, in this run or in one that it goes on from."""
    return state.tainted_by or _before(brief)


def inherited(state: ChatState, brief: ChatBrief) -> list[Entry]:
    """What a run has to log that goes on from tainted messages, or run, and has not said so."""
    before = None if state.tainted_by is not None else _before(brief)
    return [] if before is None else [Tainted(by=before)]


def brought(state: ChatState, results: Sequence[Executed]) -> list[Entry]:
    """What is to be logged with these results."""
    first = next((one for one in results if one.is_untrusted), None)
    return [] if first is None or state.tainted_by is not None else [Tainted(by=first.name)]


def _before(brief: ChatBrief) -> str | None:
    if brief.request.delegated is not None:
        return brief.request.delegated.tainted_by
    untrusted = (step for message in brief.past for step in message.steps if step.is_untrusted is True)
    first = next(untrusted, None)
    return None if first is None else first.name or "an earlier call"


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


def rules_for(connection: Connection, caller: Caller, conversation_id: str) -> tuple[PlacedRule, ...]:
    """The permission rules that bind a run of the caller's in this conversation."""
    return read_binding(connection, caller.tenant_id, caller.user_id, conversation_id=conversation_id)
