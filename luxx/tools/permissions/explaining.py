"""Explaining the decision about a call that nobody makes, with what its tool decides itself."""

from collections.abc import Callable

import msgspec
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.tools.core import CallPermissions, ToolContext, ToolDefinition
from luxx.tools.permissions.judge import DecidedBy, Judge, PermissionVerdict
from luxx.tools.sources import tool_caller
from luxx.wire.tool import PlacedRule, RuleAction

ASSUMED_TAINT = "a tool"
"""The source of untrusted content in the messages about a hypothetical call."""


class HypotheticalCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that is only explained. `is_tainted`: assume untrusted content in the run."""

    tool: str
    arguments: dict[str, object]
    project_id: str | None = None
    agent_id: int | None = None
    is_tainted: bool = False


class OwnDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool decides itself, whatever the rules allow: it asks a person, or it refuses."""

    action: RuleAction
    because: str


DecideByMemory = Callable[[Session, Caller, HypotheticalCall], OwnDecision | None]
"""What the tool of a call decides because of the memory that it uses; None for other calls."""


async def explained(
    judge: Judge,
    caller: Caller,
    call: HypotheticalCall,
    tool: ToolDefinition,
    rules: tuple[PlacedRule, ...],
    own: OwnDecision | None,
) -> PermissionVerdict:
    """The verdict about the call, and what the tool itself decides after a verdict that lets it run."""
    context = ToolContext(
        caller=tool_caller(caller),
        permissions=CallPermissions(rules=rules, tainted_by=ASSUMED_TAINT if call.is_tainted else None),
    )
    verdict = await judge.verdict_async(tool, call.arguments, context)
    if own is None or verdict.action == RuleAction.DENY:
        return verdict
    return PermissionVerdict(
        action=own.action, decided_by=DecidedBy.MEMORY, rule=None, because=own.because, usual=None
    )
