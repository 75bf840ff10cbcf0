"""What restricts the calls of a run: taint, active skills and permission rules.

A run is tainted once it has content from untrusted sources, which may carry instructions for the model. The
log and the stored messages record it, so a later run of the conversation and a subagent start tainted too.
"""

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection

from luxx.domain.accounts.caller import Caller
from luxx.runs.log.events import LogEntry
from luxx.runs.turn.spec import RunSpec
from luxx.runs.turn.state import ChatState
from luxx.tools.core import ToolRegistry
from luxx.tools.history import Executed
from luxx.tools.permissions.narrowing import allows_name
from luxx.tools.permissions.service import read_effective_rules
from luxx.wire.event import SkillActivated, Tainted
from luxx.wire.rule import PlacedRule, SkillHead
from luxx.wire.tool import ToolSpec


def tainted_by(state: ChatState, spec: RunSpec) -> str | None:
    """The tool that first returned untrusted content, in this run or an earlier one; None: not tainted."""
    return state.tainted_by or _earlier_taint(spec)


def inherited_taint(state: ChatState, spec: RunSpec) -> list[LogEntry]:
    """The entry for a taint of earlier messages or of the parent run, if it is not logged yet."""
    earlier = None if state.tainted_by is not None else _earlier_taint(spec)
    return [] if earlier is None else [Tainted(by=earlier)]


def new_taint(state: ChatState, results: Sequence[Executed]) -> list[LogEntry]:
    """The entry for the first untrusted result, if the run was not tainted before."""
    first = next((one for one in results if one.is_untrusted), None)
    return [] if first is None or state.tainted_by is not None else [Tainted(by=first.name)]


def _earlier_taint(spec: RunSpec) -> str | None:
    if spec.request.delegated is not None:
        return spec.request.delegated.tainted_by
    untrusted = (step for message in spec.past for step in message.steps if step.is_untrusted is True)
    first = next(untrusted, None)
    return None if first is None else first.name or "an earlier call"


def allowed_specs(tools: Sequence[ToolSpec], registry: ToolRegistry, state: ChatState) -> list[ToolSpec]:
    """The tools that the active skills allow. A call of another tool fails for any arguments."""
    if not state.narrowed:
        return list(tools)
    return [spec for spec in tools if _is_allowed(spec.name, registry, state)]


def skill_entries(
    state: ChatState, activated_by_call: Mapping[str, SkillHead], results: Sequence[Executed]
) -> list[LogEntry]:
    """The entries for the skills that successful calls activated.

    A skill that is already active with the same tools is not logged again.
    """
    skills = [
        activated_by_call[one.call_id]
        for one in results
        if one.result.success and one.call_id in activated_by_call
    ]
    active_skills = list(state.skills)
    entries: list[LogEntry] = []
    for skill in skills:
        if skill not in active_skills:
            active_skills.append(skill)
            allowed = None if skill.allowed_tools is None else list(skill.allowed_tools)
            entries.append(
                SkillActivated(name=skill.name, description=skill.description, allowed_tools=allowed)
            )
    return entries


def _is_allowed(name: str, registry: ToolRegistry, state: ChatState) -> bool:
    tool = registry.get(name)
    return allows_name(state.narrowed, name, only_asks=tool is not None and tool.only_asks)


def with_skills(system_prompt: str, skills: str) -> str:
    """The system prompt followed by the text on skills."""
    return "\n\n".join(part for part in (system_prompt, skills) if part)


def rules_for(connection: Connection, caller: Caller, conversation_id: str) -> tuple[PlacedRule, ...]:
    """The permission rules for a run of the caller in this conversation."""
    return read_effective_rules(connection, caller.tenant_id, caller.user_id, conversation_id=conversation_id)
