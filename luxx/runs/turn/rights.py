"""What the user and the calls of a run may do and use while it is in progress: their permissions, rules,
provider and agent, content from untrusted sources, active skills, and commands for the page.

A run is tainted once it has content from untrusted sources, which may carry instructions for the model. The
log and the stored messages record it, so a later run of the conversation and a subagent start tainted too.
"""

from collections.abc import Collection, Container, Mapping, Sequence
from threading import Lock

from msgspec.structs import replace
from sqlalchemy import Connection, bindparam
from sqlalchemy.orm import Session

from luxx.domain.accounts.authentication import (
    USER_QUERY,
    active_user,
    caller_without_sign_in,
    user_as_caller,
)
from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.models import User
from luxx.domain.agents.models import AgentRow
from luxx.domain.agents.queries import AGENTS, AgentSettings, agent_named, checked_enabled, settings_of
from luxx.domain.conversations.models import ConversationRow
from luxx.domain.mcp.offering import server_of
from luxx.errors import Conflict, NotFound, ToolFailed
from luxx.infra.store.tables import first_given, lost_error
from luxx.providers.choosing import failed_models, select_provider_row
from luxx.providers.models import ProviderRow
from luxx.providers.queries import PROVIDERS, lost_provider_error
from luxx.providers.service import ProviderService
from luxx.runs.log.events import LogEntry
from luxx.runs.turn.state import ChatRequest, FallbackTarget, RunSpec, TurnState
from luxx.tools.core import ToolSet
from luxx.tools.history import Executed
from luxx.tools.permissions.service import has_rules, read_effective_rules
from luxx.tools.permissions.subjects import MCP_PREFIX
from luxx.wire.delegation import TASK_CHARACTERS
from luxx.wire.run import (
    ChosenBy,
    Delegated,
    InConversation,
    OrchestratedTurn,
    RunStatus,
    WhenAsked,
    acting_agent,
)
from luxx.wire.tool import ActiveSkill, PlacedRule
from luxx.wire.turn_event import (
    UI_COMMANDS_OF_TURN,
    SkillActivated,
    SubagentAssigned,
    Tainted,
    UiCommand,
    UiCommandKind,
    Warning,
)


def has_tool(name: str, tools: Collection[str] | None, mcp_servers: Collection[str] | None) -> bool:
    """Whether an agent with these lists has a tool of this name; None: all that the user has. Where MCP
    servers are named, their tools are exactly those of MCP servers that it has.
    """
    if mcp_servers is not None and name.startswith(MCP_PREFIX):
        return server_of(name) in mcp_servers
    return tools is None or name in tools


ARTIFACT_TOOLS = frozenset({"create_artifact", "edit_artifact"})


def root_of_cited(spec: RunSpec) -> str | None:
    """The run at the top of the tree, which numbers the pages that this run reads, because it may write a
    report that cites them; None if it may not."""
    request = spec.request
    if isinstance(request.origin, Delegated):
        return request.origin.root_run_id if request.origin.numbers_pages else None
    return None if request.stores_nothing or ARTIFACT_TOOLS.isdisjoint(request.tools) else spec.run_id


def rules_for(
    connection: Connection, caller: Caller, subject_id: str, agent_ids: Sequence[int]
) -> tuple[PlacedRule, ...]:
    """The permission rules for a run of the caller, with those of its conversation if that is its subject;
    see `ChatRequest.rule_agents`."""
    return read_effective_rules(
        connection, caller.tenant_id, caller.user_id, conversation_id=subject_id, agent_ids=agent_ids
    )


_choices_of_user = USER_QUERY.add_columns(
    PROVIDERS.has_visible(
        User.tenant_id, User.id, ProviderRow.id == bindparam("provider_id"), ProviderRow.enabled.is_(True)
    ).label("has_provider"),
    AGENTS.has_visible(User.tenant_id, User.id, AgentRow.id == bindparam("agent_id")).label("has_agent"),
    has_rules(User.tenant_id, User.id).label("has_rules"),
)
"""One statement, because each model call of each run reads it."""


def read_rights(
    connection: Connection, user_id: int, subject_id: str, request: ChatRequest
) -> tuple[Caller, tuple[PlacedRule, ...]]:
    """The user of a run in progress and the rules for it, as the database has them now.

    Raises NotAllowed if the user is disabled, Conflict if the provider or the agent was taken away from the
    user, or InvalidInput if the provider was disabled.
    """
    values = {"user_id": user_id, "provider_id": request.provider_id, "agent_id": request.agent_id}
    row = active_user(connection, _choices_of_user, values)
    caller = caller_without_sign_in(row).in_project(request.project_id)
    if not row.has_provider:
        try:
            select_provider_row(Session(bind=connection), caller, request.provider_id, None)
        except NotFound as error:
            raise lost_provider_of_run(request) from error
    if request.agent_id is not None and not row.has_agent:
        raise Conflict(
            "the agent of this run was deleted or is no longer shared with you, so its permission rules are "
            "gone too; choose another agent, then send the message again",
            kind="agent_not_found",
        )
    if not row.has_rules and not request.rule_agents:
        return caller, ()
    return caller, rules_for(connection, caller, subject_id, request.rule_agents)


def project_of(defaults: Sequence[ConversationRow | AgentSettings]) -> str | None:
    """The project of a run with the values of these: that of its conversation or task."""
    places = (one.project_id if isinstance(one, ConversationRow) else one.in_project for one in defaults)
    return next((place for place in places if place is not None), None)


def lost_names_error(what: str, names: Sequence[str], chosen_by: str) -> Conflict:
    """The error for tools or skills that were chosen and that are not to be had any more."""
    return Conflict(
        f"{chosen_by} names {what}s that are not available any more: {', '.join(names[:10])}; change its "
        f"{what}s, or choose another",
        kind=f"{what}_unknown",
        detail={"lost": {f"{what}s": list(names[:10])}},
    )


def check_tools(tools: ToolSet, names: Sequence[str]) -> None:
    """Raises Conflict if a run was to have tools that exist no more, at any level."""
    gone = [name for name in names if not tools.lookup(name)]
    if gone:
        raise lost_names_error("tool", gone, "this run")


def check_skills(skills: Container[str], names: Sequence[str] | None, chosen_by: str) -> None:
    """Raises Conflict for a skill that was chosen and that exists no more."""
    gone = [name for name in names or () if name not in skills]
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
    if isinstance(spec.request.origin, Delegated):
        return spec.request.origin.tainted_by
    untrusted = (step for message in spec.past for step in message.steps if step.is_untrusted is True)
    first = next(untrusted, None)
    return None if first is None else first.name or "an earlier call"


def skill_entries(
    state: TurnState, activated_by_call: Mapping[str, ActiveSkill], results: Sequence[Executed]
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
            entries.append(activation_entry(skill, ChosenBy.MODEL))
    return entries


def activation_entry(skill: ActiveSkill, by: ChosenBy, score: float | None = None) -> SkillActivated:
    """The entry with which the skill becomes active. The router may be wrong, so a skill that it loads limits
    no tools."""
    is_limited = skill.allowed_tools is not None and by != ChosenBy.ROUTER
    allowed = list(skill.allowed_tools or ()) if is_limited else None
    return SkillActivated(
        name=skill.name,
        description=skill.description,
        allowed_tools=allowed,
        scope=skill.scope,
        digest=skill.digest,
        by=by,
        score=score,
    )


def agent_request(
    providers: ProviderService, session: Session, user_id: int, name: str, request: ChatRequest
) -> tuple[str, ChatRequest]:
    """The stored name of the user's agent, and the request of a run with the values that it has.

    Its tools are those that both have. Raises NotFound, InvalidInput or Conflict if it may not be used.
    """
    caller = user_as_caller(session.connection(), user_id)
    agent = checked_enabled(settings_of(agent_named(session, caller, name)))
    chosen_by = f"the agent '{agent.name}'"
    if agent.lost_provider is not None:
        raise lost_error("provider", agent.lost_provider, chosen_by)
    model = agent.model or (request.model if agent.provider_id is None else None)
    provider_id = agent.provider_id or request.provider_id
    try:
        selection = providers.select_provider(session, caller, provider_id, model)
    except NotFound as error:
        if agent.provider_id is None:
            raise
        raise lost_provider_error(session, caller, agent.provider_id, None, chosen_by) from error
    choice = selection.choice
    providers.model_lists.check(selection.row, choice.model)
    return agent.name, replace(
        request,
        agent_id=agent.id,
        provider_id=choice.provider_id, provider_name=choice.name, model=choice.model,
        max_iterations=agent.max_iterations,
        prompted_thinking=agent.prompted_thinking,
        checks=agent.checks,
        skills=agent.skills,
        tools=[each for each in request.tools if has_tool(each, agent.tools, agent.mcp_servers)],
        system_prompt=agent.system_prompt or "",
        knowledge=[*request.knowledge, *agent.knowledge],
        **first_given(agent, choice),
    )  # fmt: skip


def first_entries(spec: RunSpec) -> list[LogEntry]:
    """What the log of a run begins with: warnings, and the agent that answers by the words of the message."""
    entries: list[LogEntry] = [Warning(message=text) for text in spec.request.warnings]
    agent = acting_agent(spec.request.routed)
    if agent is not None and isinstance(spec.request.origin, InConversation):
        message = spec.past[-1].user if spec.past else None
        assigned = SubagentAssigned(
            subagent_run_id=spec.run_id, call_id="", status=RunStatus.RUNNING, by=ChosenBy.ROUTER,
            task="" if message is None else message.text[:TASK_CHARACTERS],
            agent_id=spec.request.agent_id, agent_name=agent, score=spec.request.routed[0].score,
        )  # fmt: skip
        entries.append(assigned)
    return entries


def by_failures(session: Session, targets: list[FallbackTarget]) -> tuple[list[FallbackTarget], list[str]]:
    """The targets in the order in which they are asked, and a warning where that is not the one of the agent:
    those before the first that has not failed a moment ago come last."""
    failed = failed_models(session, {target.provider_id for target in targets})
    usable = (
        index
        for index, target in enumerate(targets)
        if not target.problem and (target.provider_id, target.model) not in failed
    )
    first = next(usable, 0)
    if not first:
        return targets, []
    warning = (
        f"The provider '{targets[0].provider_name}' failed less than a minute ago; {targets[first].model} of "
        f"the provider '{targets[first].provider_name}' answers in its place."
    )
    return [*targets[first:], *targets[:first]], [warning]


class UiCommands:
    """The commands for the page that are not logged yet, by call id. Tools add them from threads, too."""

    def __init__(self, spec: RunSpec) -> None:
        request = spec.request
        has_page = isinstance(request.origin, InConversation | OrchestratedTurn)
        self._is_followed = has_page and request.when_asked == WhenAsked.WAIT
        self._by_call: dict[str, list[UiCommand]] = {}
        self._lock = Lock()

    def add(self, call_id: str, state: TurnState, tainted_by: str | None, command: UiCommand) -> None:
        """Keeps a command until the result of its call is logged; a list that is to be loaded again anyway is
        named once. Raises ToolFailed with the reason for the model if the page may not get it."""
        if not self._is_followed:
            raise ToolFailed("nothing was shown: no person follows this run on a page")
        if tainted_by is not None and command.command != UiCommandKind.REFRESH:
            raise ToolFailed(
                f"nothing was shown: this run has read content that is not trusted ({tainted_by}), so it may "
                "only refresh lists. Say it in the answer."
            )
        with self._lock:
            kept = [one for commands in self._by_call.values() for one in commands]
            if command in kept and command.command == UiCommandKind.REFRESH:
                return
            if state.ui_commands + len(kept) >= UI_COMMANDS_OF_TURN:
                raise ToolFailed(
                    f"nothing was shown: a turn may give the page {UI_COMMANDS_OF_TURN} commands, and it has"
                )
            self._by_call.setdefault(call_id, []).append(command)

    def entries(self, results: Sequence[Executed]) -> list[LogEntry]:
        """The entries of the commands of these calls, which follow their results."""
        with self._lock:
            return [command for one in results for command in self._by_call.pop(one.call_id, ())]
