"""What restricts the calls of a run: content from untrusted sources, and active skills.

A run is tainted once it has content from untrusted sources, which may carry instructions for the model. The
log and the stored messages record it, so a later run of the conversation and a subagent start tainted too.
"""

from collections.abc import Mapping, Sequence

from luxx.runs.log.events import LogEntry
from luxx.runs.turn.state import RunSpec, TurnState
from luxx.tools.core import ToolRegistry
from luxx.tools.history import Executed
from luxx.tools.permissions.rules import allows_name
from luxx.wire.event import SkillActivated, Tainted
from luxx.wire.tool import SkillHead, ToolSpec


def tainted_by(state: TurnState, spec: RunSpec) -> str | None:
    """The tool that first returned untrusted content, in this run or an earlier one; None: not tainted."""
    return state.tainted_by or _earlier_taint(spec)


def inherited_taint(state: TurnState, spec: RunSpec) -> list[LogEntry]:
    """The entry for a taint of earlier messages or of the parent run, if it is not logged yet."""
    earlier = None if state.tainted_by is not None else _earlier_taint(spec)
    return [] if earlier is None else [Tainted(by=earlier)]


def new_taint(state: TurnState, results: Sequence[Executed]) -> list[LogEntry]:
    """The entry for the first untrusted result, if the run was not tainted before."""
    first = next((result for result in results if result.is_untrusted), None)
    return [] if first is None or state.tainted_by is not None else [Tainted(by=first.name)]


def _earlier_taint(spec: RunSpec) -> str | None:
    if spec.tainted_by is not None:
        return spec.tainted_by
    if spec.request.delegated is not None:
        return spec.request.delegated.tainted_by
    untrusted = (step for message in spec.past for step in message.steps if step.is_untrusted is True)
    first = next(untrusted, None)
    return None if first is None else first.name or "an earlier call"


def allowed_specs(tools: Sequence[ToolSpec], registry: ToolRegistry, state: TurnState) -> list[ToolSpec]:
    """The tools that the active skills allow. A call of another tool fails for any arguments."""
    if not state.narrowed:
        return list(tools)

    def is_allowed(name: str) -> bool:
        tool = registry.get(name)
        return allows_name(state.narrowed, name, only_asks=tool is not None and tool.only_asks)

    return [spec for spec in tools if is_allowed(spec.name)]


def skill_entries(
    state: TurnState, activated_by_call: Mapping[str, SkillHead], results: Sequence[Executed]
) -> list[LogEntry]:
    """The entries for the skills that successful calls activated.

    A skill that is already active with the same tools is not logged again.
    """
    skills = [
        activated_by_call[result.call_id]
        for result in results
        if result.result.success and result.call_id in activated_by_call
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
