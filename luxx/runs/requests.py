"""Resolves the request of a chat run: each value from the message, conversation, agent or user."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import msgspec
from sqlalchemy.orm import Session

from luxx.domain.accounts.authentication import caller_of_turn
from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.user_data import SettingsView, read_settings
from luxx.domain.agents.queries import NO_AGENT, AgentSettings, read_agent, with_knowledge
from luxx.domain.conversations.models import ConversationRow
from luxx.domain.files.attachments import MessageAttachments
from luxx.domain.knowledge_bases import KNOWLEDGE_SEARCH, NO_BASES, bases_of
from luxx.domain.routing.matching import RoutingMatch
from luxx.domain.skills.skill import SkillSet
from luxx.domain.usage.reserve import check_price
from luxx.errors import Conflict, InvalidInput, NotFound
from luxx.infra.config.schema import LimitsConfig
from luxx.infra.store.tables import first_given, lost_error, read_once, strictest
from luxx.providers.catalog import ModelCard, ProviderChoice
from luxx.providers.queries import lost_provider_error
from luxx.providers.service import ProviderService
from luxx.runs.options import (
    AnswerOptions,
    NewCall,
    NewCompression,
    NewInvocation,
    NewMessage,
    Regeneration,
)
from luxx.runs.routing import (
    RequestRouter,
    acting_match,
    asked_text,
    routed_values,
    with_demanded,
    with_given_skills,
)
from luxx.runs.turn.rights import by_failures, check_skills, has_tool, lost_names_error, project_of
from luxx.runs.turn.state import ChatRequest, FallbackTarget
from luxx.tools.core import ToolSet
from luxx.tools.permissions.rules import ACTIVATE_TOOL
from luxx.tools.permissions.subjects import MCP_PREFIX
from luxx.tools.sources import ToolSources
from luxx.wire.delegation import DELEGATE_TOOL
from luxx.wire.model_settings import MODEL_SETTINGS, PlanningMode, RoutingMode
from luxx.wire.run import Compression, InConversation, Invocation, WhenAsked

CONVERSATION = "this conversation"
_CHOOSING = frozenset({ACTIVATE_TOOL, DELEGATE_TOOL})
"""The tools with which a model chooses a skill or an agent."""

SETTINGS = (*MODEL_SETTINGS, "sliding_window")

Source = AnswerOptions | ConversationRow | AgentSettings
"""What may choose a provider and a model."""
Defaults = Sequence[ConversationRow | AgentSettings]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RequestResolver:
    """Resolves requests. `when_asked` is the server's default."""

    providers: ProviderService
    tools: ToolSources
    router: RequestRouter
    limits: LimitsConfig
    when_asked: WhenAsked

    def resolve(
        self,
        session: Session,
        caller: Caller,
        options: NewMessage | Regeneration | NewCompression,
        conversation: ConversationRow,
        attached: MessageAttachments,
        message_id: str,
    ) -> ChatRequest:
        """The request for the answer to a message in a conversation; it says how the answer may be planned.
        That of a compression is the same, so that its prompt is.

        Raises NotFound, InvalidInput or Conflict for a provider, model, tool or agent that cannot be used;
        UnlistedModel if the provider's list of models, which may be old, lacks the model.
        """
        _check_project(conversation)
        own = _with_bases(session, _agent_of(session, caller, conversation), conversation)
        settings, project_id = _settings_of(session, caller), conversation.project_id
        routing = first_given(options, conversation, own, settings, names=("routing",))["routing"]
        mode = RoutingMode.OFF if options.skills else routing or RoutingMode.SUGGEST
        text = partial(asked_text, session, options, message_id)
        find = cache(lambda: self.router.find(session, caller, text(), project_id))
        acting = acting_match(find(), own) if mode == RoutingMode.AUTO else None
        request, agent, acting = self._answered(session, caller, options, conversation, attached, own, acting)
        chosen = None if agent is own else agent
        planning = first_given(options, chosen, conversation, own, settings, names=("planning",))["planning"]
        asked = Compression if isinstance(options, NewCompression) else InConversation
        origin = asked(message_id=message_id)
        values = {"planning": planning or PlanningMode.OFF, "project_id": project_id}
        if options.skills:
            known, warnings = self._skills(session, caller, [conversation]), request.warnings
            values |= with_given_skills(known, options, agent, warnings)
        elif acting is not None or (mode != RoutingMode.OFF and _CHOOSING.intersection(request.tools)):
            values |= routed_values(find(), acting, request.tools, agent)
        if isinstance(options, NewMessage) and conversation.record is not False:
            who = {"user": caller.user_id, "tenant": caller.tenant_id}
            if session.connection().execute(self.router.patterns.may_find, who).first() is not None:
                used = self.router.patterns.find(session, caller, text(), request.tools)
                values["routed"] = [*values.get("routed", ()), *used]
        memory = strictest(request.memory, conversation.memory)
        return msgspec.structs.replace(request, origin=origin, memory=memory, **values)

    def _answered(
        self,
        session: Session,
        caller: Caller,
        options: NewMessage | Regeneration | NewCompression,
        conversation: ConversationRow,
        attached: MessageAttachments,
        own: AgentSettings,
        acting: RoutingMatch | None,
    ) -> tuple[ChatRequest, AgentSettings, RoutingMatch | None]:
        """The request, the agent that answers, and what acts by the words of the message. If that is an agent
        that cannot be used, the conversation's own answers, with a warning."""
        if acting is not None and acting.item.kind == "agent":
            try:
                agent = read_agent(session, caller, int(acting.item.id or 0))
                agent = _with_bases(session, agent, conversation)
                defaults = (agent, conversation)
                return self._resolve(session, caller, options, defaults, agent, attached), agent, acting
            except (NotFound, InvalidInput, Conflict) as error:
                problem = (
                    f"The message asks for the agent '{acting.item.name}', which cannot be used: "
                    f"{error.message}."
                )
                options = msgspec.structs.replace(options, warnings=[*options.warnings, problem])
                acting = None
        request = self._resolve(session, caller, options, (conversation, own), own, attached)
        return request, own, acting

    def resolve_invocation(
        self,
        session: Session,
        caller: Caller,
        invocation: NewInvocation,
        attached: MessageAttachments,
        message_id: str,
    ) -> ChatRequest:
        """The request for an agent's answer without a conversation. Raises what `resolve` raises."""
        agent = read_agent(session, caller, invocation.agent_id)
        request = self._resolve(session, caller, invocation, (agent,), agent, attached)
        return msgspec.structs.replace(request, origin=Invocation(message_id=message_id))

    def resolve_call(self, session: Session, caller: Caller, call: NewCall) -> ChatRequest:
        """The request for a call without a conversation; a model alone gets no tools of the server and none
        of the caller's settings. Raises what `resolve` raises."""
        agent = NO_AGENT if call.agent_id is None else read_agent(session, caller, call.agent_id)
        options = call if call.agent_id is not None else msgspec.structs.replace(call, tools=False)
        attached = MessageAttachments(images=call.images)
        request = self._resolve(session, caller, options, (agent,), agent, attached, NO_AGENT)
        system_prompt = "\n\n".join(part for part in (request.system_prompt, call.instructions) if part)
        return msgspec.structs.replace(request, origin=call.given, system_prompt=system_prompt)

    def resolve_turn(
        self,
        session: Session,
        user_id: int,
        agent: AgentSettings,
        *,
        response_schema: dict[str, Any] | None = None,
    ) -> ChatRequest:
        """The request of a turn of this user's room or task. Raises what `resolve` raises."""
        caller = caller_of_turn(session, user_id)
        options = AnswerOptions(response_schema=response_schema)
        return self._resolve(session, caller, options, (agent,), agent, MessageAttachments())

    def _resolve(
        self,
        session: Session,
        caller: Caller,
        options: AnswerOptions,
        defaults: Defaults,
        agent: AgentSettings,
        attached: MessageAttachments,
        last_defaults: AgentSettings | None = None,
    ) -> ChatRequest:
        """The request with these values, as that of a turn of an orchestration.

        `defaults` have the values that the options leave open; the first that has one counts. After them
        count the `last_defaults`; None: the caller's settings.
        """
        settings = _settings_of(session, caller)
        if agent.lost_agent is not None:
            raise lost_error("agent", agent.lost_agent, _chooser(agent))
        provider_id, model, source = _provider_and_model((options, *defaults))
        try:
            selection = self.providers.select_provider(session, caller, provider_id, model, default=settings)
        except NotFound as error:
            if source is None or isinstance(source, AnswerOptions):
                raise
            lost = source.lost_provider
            raise lost_provider_error(session, caller, provider_id, lost, _chooser(source)) from error
        choice = selection.choice
        if selection.row.models_at is not None:
            self.providers.model_lists.check(selection.row, choice.model)
        self._check(choice, attached)
        if agent.skills:
            check_skills(self._skills(session, caller, defaults), agent.skills, _chooser(agent))
        tools = self._tools(session, caller, options.tools, agent, choice.card, defaults)
        sources = (*defaults, settings if last_defaults is None else last_defaults)
        fallbacks = self._fallbacks(session, caller, agent) if options.may_fall_back else []
        order, warnings = [_target(choice), *fallbacks], list[str]()
        if len(order) > 1:
            order, warnings = by_failures(session, order)
        return ChatRequest(
            provider_id=order[0].provider_id, provider_name=order[0].provider_name, model=order[0].model,
            agent_id=agent.id, max_iterations=agent.max_iterations,
            skills=agent.skills, knowledge=agent.knowledge, project_id=agent.in_project,
            fallbacks=order[1:],
            prompted_thinking=agent.prompted_thinking, checks=agent.checks,
            tools=self._demanded(session, caller, options, defaults, tools),
            takes_images=choice.card.may_take_images,
            context_window=choice.card.known_window,
            system_prompt=first_given(*sources, names=("system_prompt",))["system_prompt"] or "",
            response_schema=options.response_schema,
            when_asked=options.when_asked or self.when_asked,
            stop=options.stop, memory=strictest(agent.memory, settings.memory),
            warnings=[*options.warnings, *warnings],
            **first_given(options, *sources, choice, names=SETTINGS),
        )  # fmt: skip

    def _check(self, choice: ProviderChoice, attached: MessageAttachments) -> None:
        """Raises InvalidInput if the model cannot do what the request needs, or has no known price."""
        if attached.images and not choice.card.may_take_images:
            raise InvalidInput(
                f"the model {choice.model} accepts no images; choose another model or omit them",
                kind="images_not_taken",
                field="$.attachments",
            )
        check_price(choice.card, self.limits, choice.model)

    def _fallbacks(self, session: Session, caller: Caller, agent: AgentSettings) -> list[FallbackTarget]:
        """The agent's fallbacks; those that cannot be used now have a `problem`."""
        targets: list[FallbackTarget] = []
        for number, fallback in enumerate(agent.fallbacks, 1):
            provider_id, model = fallback.provider_id, fallback.model
            try:
                selection = self.providers.select_provider(session, caller, provider_id, model)
                choice = selection.choice
                self.providers.model_lists.check(selection.row, choice.model)
                target = _target(choice)
            except (NotFound, InvalidInput) as error:
                named = f"{number} ({model})" if model else f"{number}"
                problem = f"Fallback {named} of {_chooser(agent)} cannot be used: {error.message}."
                target = FallbackTarget(provider_id=provider_id, model=model or "", problem=problem)
            targets.append(target)
        return targets

    def _tools(
        self,
        session: Session,
        caller: Caller,
        wanted_tools: bool | list[str] | None,
        agent: AgentSettings,
        card: ModelCard,
        defaults: Defaults,
    ) -> list[str]:
        """The names of the tools to offer: the wanted ones, else those of the agent that the caller may use,
        and the search of named bases. An unknown model gets tools only if the request or agent names them."""
        names_some = bool(agent.tools or agent.mcp_servers)
        has_tools = card.tools or (card.is_unknown and names_some)
        if not (has_tools if wanted_tools is None else wanted_tools):
            return []
        if agent.tools is not None and not (names_some or agent.knowledge or isinstance(wanted_tools, list)):
            return []
        caller = caller.in_project(project_of(defaults))
        tools = self.tools.for_caller(session, caller)
        late = [] if isinstance(wanted_tools, list) else self._late_tools(session, caller, agent, tools)
        available = [tool.name for tool in tools.available_to(caller.permission_level)]
        if not isinstance(wanted_tools, list):
            chosen = [*(agent.tools or ()), *([KNOWLEDGE_SEARCH] if agent.knowledge else ())]
            own = None if agent.tools is None else chosen
            return [*(each for each in available if has_tool(each, own, agent.mcp_servers)), *late]
        unknown = sorted(set(wanted_tools) - set(available))
        if unknown:
            raise InvalidInput(
                f"no tool named {', '.join(unknown)} at your permission level; GET /tools lists yours",
                kind="tool_unknown",
                field="$.tools",
            )
        return [name for name in available if name in wanted_tools]

    def _demanded(
        self, session: Session, caller: Caller, asked: AnswerOptions, defaults: Defaults, names: list[str]
    ) -> list[str]:
        """Without the tools on demand that nobody named and nothing in the message asks for."""
        named = asked.tools is not None or any(
            isinstance(one, AgentSettings) and one.tools for one in defaults
        )
        if named or not names:
            return names
        text = asked.text if isinstance(asked, NewMessage | NewInvocation) else ""
        known = partial(self._skills, session, caller, defaults)
        subject = next((one.id for one in defaults if isinstance(one, ConversationRow)), None)
        return with_demanded(session, known, self.tools.on_demand, names, text, asked.skills, subject)

    def _skills(self, session: Session, caller: Caller, defaults: Defaults) -> SkillSet:
        return self.router.skills.for_caller(session, caller, project_of(defaults))

    def _late_tools(
        self, session: Session, caller: Caller, agent: AgentSettings, tools: ToolSet
    ) -> list[str]:
        """The tools of MCP servers that the agent names and that are not here yet; a run waits for them.

        Raises Conflict for other tools that the agent names and that exist no more, at any level. Nobody has
        chosen those of a shipped agent.
        """
        if agent.tools is None or agent.is_shipped:
            return []
        missing = [name for name in agent.tools if not tools.lookup(name)]
        if missing:
            # Those of the agent's owner and those of other projects are left out, and are not lost.
            values = {"user_id": agent.owner_id or caller.user_id, "project_id": msgspec.UNSET}
            owner = msgspec.structs.replace(caller, **values)
            tools_of_owner = self.tools.for_caller(session, owner, missing)
            missing = [name for name in missing if not tools_of_owner.lookup(name)]
        late = [name for name in missing if name.startswith(MCP_PREFIX)]
        if len(late) < len(missing):
            gone = [name for name in missing if name not in late]
            raise lost_names_error("tool", gone, _chooser(agent))
        return late if agent.mcp_servers is None else []


def _target(choice: ProviderChoice) -> FallbackTarget:
    return FallbackTarget(provider_id=choice.provider_id, provider_name=choice.name, model=choice.model)


def _settings_of(session: Session, caller: Caller) -> SettingsView:
    return read_once(session, ("settings", caller.user_id), lambda: read_settings(session, caller))


def _agent_of(session: Session, caller: Caller, conversation: ConversationRow) -> AgentSettings:
    """The agent of the conversation, or NO_AGENT. Raises Conflict if the caller can use it no more."""
    if conversation.agent_id is None:
        if conversation.lost_agent is not None:
            raise lost_error("agent", conversation.lost_agent, CONVERSATION)
        return NO_AGENT
    try:
        return read_agent(session, caller, conversation.agent_id)
    except NotFound as error:
        raise lost_error("agent", conversation.lost_agent, CONVERSATION) from error


def _with_bases(session: Session, agent: AgentSettings, conversation: ConversationRow) -> AgentSettings:
    """The agent with the knowledge bases that the conversation or its project has."""
    if conversation.knowledge == NO_BASES and conversation.project_id is None:
        return agent
    return with_knowledge(agent, bases_of(session, conversation.knowledge, conversation.project_id))


def _check_project(conversation: ConversationRow) -> None:
    """Raises Conflict if permission rules applied here that were deleted with their project."""
    if conversation.project_id is None and conversation.lost_project is not None:
        raise Conflict(
            f"the project '{conversation.lost_project}', whose permission rules applied to this "
            "conversation, was deleted; move it to another project (project_id), or to none (null)",
            kind="project_not_found",
            detail={"lost": {"project": conversation.lost_project}},
        )


def _chooser(source: ConversationRow | AgentSettings) -> str:
    """What chose a provider, for a sentence."""
    if isinstance(source, ConversationRow):
        return CONVERSATION
    return source.chosen_by or f"the agent '{source.name}'"


def _provider_and_model(sources: Sequence[Source]) -> tuple[int | None, str | None, Source | None]:
    """Each from the first source that names it, and the source of the provider. Raises Conflict if the first
    that named a provider has lost it.

    A model does not apply to a provider that an earlier source names, unless its source names the same one.
    """
    provider_id: int | None = None
    model: str | None = None
    chooser: Source | None = None
    for source in sources:
        if provider_id is None or source.provider_id == provider_id:
            model = model or source.model
        if provider_id is not None:
            continue
        if source.provider_id is not None:
            provider_id, chooser = source.provider_id, source
        elif not isinstance(source, AnswerOptions) and source.lost_provider is not None:
            raise lost_error("provider", source.lost_provider, _chooser(source))
    return provider_id, model, chooser
