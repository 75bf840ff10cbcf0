"""What the user of a run may do and use while it is in progress: their permissions, rules, provider and
agent.
"""

from collections.abc import Sequence

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from luxx.domain.accounts.authentication import user_as_caller
from luxx.domain.accounts.caller import Caller
from luxx.domain.agents.queries import visible_agent
from luxx.domain.skills.registry import SkillRegistry
from luxx.errors import Conflict, NotFound
from luxx.infra.store.tables import read_once
from luxx.providers.choosing import select_provider_row
from luxx.runs.turn.state import ChatRequest
from luxx.tools.core import OwnTools, ToolRegistry
from luxx.tools.permissions.service import read_effective_rules
from luxx.wire.tool import PlacedRule

MCP_PREFIX = "mcp__"
"""How the names of the tools of MCP servers begin; they come and go with their server."""


def caller_of_turn(session: Session, user_id: int) -> Caller:
    """The user of turns that begin in one transaction. Raises NotAllowed."""
    return read_once(session, ("caller", user_id), lambda: user_as_caller(session.connection(), user_id))


def rules_for(
    connection: Connection, caller: Caller, conversation_id: str, agent_ids: Sequence[int]
) -> tuple[PlacedRule, ...]:
    """The permission rules for a run of the caller in this conversation; see `ChatRequest.rule_agents`."""
    return read_effective_rules(
        connection, caller.tenant_id, caller.user_id, conversation_id=conversation_id, agent_ids=agent_ids
    )


def check_choices(connection: Connection, caller: Caller, request: ChatRequest) -> None:
    """Raises Conflict if the provider or the agent of a run in progress was taken away from the user, or
    InvalidInput if the provider was disabled."""
    session = Session(bind=connection)
    try:
        select_provider_row(session, caller, request.provider_id, None)
    except NotFound as error:
        raise lost_provider_of_run(request) from error
    try:
        if request.agent_id is not None:
            visible_agent(session, caller, request.agent_id)
    except NotFound as error:
        raise Conflict(
            "the agent of this run was deleted or is no longer shared with you, so its permission rules are "
            "gone too; choose another agent, then send the message again",
            kind="agent_not_found",
        ) from error


def lost_names_error(what: str, names: Sequence[str], chosen_by: str) -> Conflict:
    """The error for tools or skills that were chosen and that are not to be had any more."""
    return Conflict(
        f"{chosen_by} names {what}s that are not available any more: {', '.join(names[:10])}; change its "
        f"{what}s, or choose another",
        kind=f"{what}_unknown",
        detail={"lost": {f"{what}s": list(names[:10])}},
    )


def check_tools(registry: ToolRegistry, caller: Caller, own: OwnTools | None, names: Sequence[str]) -> None:
    """Raises Conflict if a run was to have tools that exist no more, at any level."""
    gone = [
        name
        for name in names
        if not (registry.lookup_for(name, caller.tenant_id) or (own is not None and own.lookup(name)))
    ]
    if gone:
        raise lost_names_error("tool", gone, "this run")


def check_skills(registry: SkillRegistry, names: Sequence[str] | None, chosen_by: str) -> None:
    """Raises Conflict for a skill that was chosen and that exists no more."""
    gone = [name for name in names or () if name not in registry.skills]
    if gone:
        raise lost_names_error("skill", gone, chosen_by)


def lost_provider_of_run(request: ChatRequest) -> Conflict:
    """The error for the provider of a run that the user can use no more."""
    named = f"the provider '{request.provider_name}'" if request.provider_name else "the provider"
    return Conflict(
        f"{named} of this run was deleted or is no longer shared with you; choose another provider, then "
        "send the message again",
        kind="provider_not_found",
        detail={"lost": {"provider": request.provider_name}},
    )
