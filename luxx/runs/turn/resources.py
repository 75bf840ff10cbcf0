"""What a drive of a run reads before it begins: the request and the log, the provider with its key, the tools
that the user may use, the rules and the workspace; and which provider and model make the calls of a turn.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path

import msgspec
from msgspec.structs import asdict, replace
from sqlalchemy import Connection
from sqlalchemy.orm import Session

from luxx.domain.accounts.authentication import caller_of_turn
from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.user_data import Workspaces
from luxx.domain.agents.queries import listed_agents, routed_agents
from luxx.domain.context.messages import ReadImages
from luxx.domain.context.prompt import SectionKind, TextSection, context_of
from luxx.domain.context.tokens import estimated_usage
from luxx.domain.knowledge_bases import KNOWLEDGE_SEARCH, attached_bases
from luxx.domain.mcp.search import with_search
from luxx.domain.routing.listing import continued
from luxx.domain.routing.matching import RoutedItem
from luxx.domain.skills.layers import SkillLayers
from luxx.domain.skills.registry import listed_skills
from luxx.domain.skills.skill import NO_SKILLS, SkillSet
from luxx.domain.skills.tools import SkillPlaces
from luxx.domain.usage.ledger import UsageEntry
from luxx.errors import Gone, LuxxError, NotFound, ToolFailed
from luxx.providers.adapter import CompletionRequest, Target
from luxx.providers.catalog import ModelCard, ProviderSelection
from luxx.providers.client import ModelClient
from luxx.providers.service import ProviderService
from luxx.runs.cancel import CancelSignal
from luxx.runs.log.replay import ReplayService
from luxx.runs.turn.context import RECALLING, Recall, SubagentEngine
from luxx.runs.turn.pins import Pins, made_for, read_pins
from luxx.runs.turn.rights import (
    check_skills,
    check_tools,
    lost_provider_of_run,
    read_rights,
    rules_for,
)
from luxx.runs.turn.state import ChatRequest, GivenPrompt, RunSpec, TurnState, model_used
from luxx.tools.builtin.run import DELEGATE_TOOL
from luxx.tools.core import CallActions, CallPermissions, StoredOutput, ToolContext, ToolSet
from luxx.tools.executor import READ_RESULT_TOOL, ToolExecutor
from luxx.tools.hooks import StoreImages
from luxx.tools.permissions.rules import ACTIVATE_TOOL, READ_TOOL, allows_name
from luxx.tools.permissions.subjects import MCP_PREFIX
from luxx.tools.sources import ToolSources, tool_caller
from luxx.wire.event import CallPurpose
from luxx.wire.model_settings import MemoryMode
from luxx.wire.run import Delegated
from luxx.wire.tool import CALL_TOOL, SEARCH_TOOL, PlacedRule, ToolSpec
from luxx.wire.turn import Step, StepFile, StepType, Usage

THINKING_PROMPT = files("luxx.runs.turn").joinpath("thinking.md").read_text("utf-8").strip()


class PromptResources(msgspec.Struct, frozen=True, kw_only=True):
    """What the prompts of a turn have besides its messages: tools that are offered, and texts."""

    card: ModelCard
    tools: list[ToolSpec]
    sections: list[TextSection]
    read_files: ReadImages


class RunResources(PromptResources, frozen=True, kw_only=True):
    """The resources of one drive. `make_context` takes the user's permissions at its start; `read_context`
    reads permissions and rules again, so that a demotion applies at once. `known_tools` exist for the user.
    `pins` are stored when the first calls start, unless they are already (`is_pinned`). `recall` may be None.
    """

    target: Target
    pins: Pins
    is_pinned: bool
    known_tools: ToolSet
    make_context: Callable[[], ToolContext]
    read_context: Callable[[Connection], ToolContext | LuxxError]
    store_images: Callable[[Sequence[bytes]], Awaitable[list[StepFile | str]]]
    recall: Recall | None = None
    places: SkillPlaces

    def usage_entry(self, spec: RunSpec, usage: Usage, *, is_estimated: bool = False) -> UsageEntry:
        """The ledger entry of one completion."""
        return UsageEntry(
            user_id=spec.user_id,
            tenant_id=spec.tenant_id,
            run_id=spec.run_id,
            subject_id=spec.subject_id,
            agent_id=spec.request.agent_id,
            provider_id=self.target.provider_id,
            model=spec.request.model,
            kind=spec.kind,
            purpose=spec.purpose.value,
            usage=usage,
            cost=self.card.cost(usage),
            is_estimated=is_estimated,
        )

    def lost_entry(self, spec: RunSpec) -> UsageEntry:
        """The ledger entry of a completion that ended with its process, whose usage and cost are unknown."""
        return replace(self.usage_entry(spec, Usage(), is_estimated=True), cost=None)

    def estimated_entry(
        self,
        spec: RunSpec,
        request: CompletionRequest,
        reported: Usage,
        steps: Sequence[Step],
        *,
        with_hidden: Callable[[Usage], Usage],
        is_silent: bool,
    ) -> UsageEntry:
        """The ledger entry of a completion whose provider did not report its full usage.

        `with_hidden` adds the thinking that the steps may not show. `is_silent`: nothing arrived.
        """
        limit = request.max_tokens
        usage = estimated_usage(reported, request.messages, request.tools, steps, max_tokens=limit)
        is_hidden = self.card.thinking and not any(step.type == StepType.THINKING for step in steps)
        if is_silent or is_hidden:
            usage = with_hidden(usage)
        return self.usage_entry(spec, usage, is_estimated=True)


class UserAccess(msgspec.Struct, frozen=True, kw_only=True):
    """What the user of a run may use at the start of a drive: the provider, tools (None: the run has none),
    skills and their `uses`, the agents to delegate to, and the rules for these; what is attached
    (`knowledge`) and may be remembered (`may_recall`). `pins`: what the turn's prompts began with in an
    earlier drive."""

    caller: Caller
    provider_choice: ProviderSelection
    rules: tuple[PlacedRule, ...]
    tools: ToolSet | None
    skills: SkillSet
    agents: Sequence[RoutedItem] = ()
    uses: Mapping[str, int] = {}
    knowledge: str = ""
    pins: Pins | None = None
    may_recall: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class ResourceFinder:
    """Finds the resources of a run at the start of each drive."""

    providers: ProviderService
    executor: ToolExecutor
    workspaces: Workspaces
    replay: ReplayService
    tools: ToolSources
    skills: SkillLayers
    places: SkillPlaces
    read_images: ReadImages
    store_images: StoreImages
    recall: Recall

    def read(self, session: Session, spec: RunSpec) -> UserAccess:
        """Reads what the user may use, in the transaction that reads the `RunSpec`.

        Raises NotAllowed for a disabled user, Conflict for a lost provider, InvalidInput for a disabled one.
        """
        request, connection = spec.request, session.connection()
        caller = caller_of_turn(session, spec.user_id).in_project(request.project_id)
        try:
            selection = self.providers.select_provider(session, caller, request.provider_id, request.model)
        except NotFound as error:
            raise lost_provider_of_run(request) from error
        pins = read_pins(connection, spec.run_id, spec.turn.key) if request.tools else None
        # A run without tools needs no rules yet; `read_context` reads them before any tool runs.
        rules = rules_for(connection, caller, spec.subject_id, request.rule_agents) if request.tools else ()
        return UserAccess(
            caller=caller,
            provider_choice=selection,
            rules=rules,
            tools=self.tools.for_caller(session, caller, request.tools) if request.tools else None,
            skills=self.skills.for_run(session, caller, request.project_id, pins and pins.begun)
            if request.skills or request.tools or request.given_skills
            else NO_SKILLS,
            agents=routed_agents(session, caller, request.project_id)
            if pins is None and DELEGATE_TOOL in request.tools
            else (),
            uses=self.skills.tenant_layer(session, caller.tenant_id).uses if request.tools else {},
            knowledge=attached_bases(session, caller, request.knowledge) if request.knowledge else "",
            pins=pins,
            may_recall=self._may_recall(connection, spec),
        )

    def _may_recall(self, connection: Connection, spec: RunSpec) -> bool:
        is_on = spec.request.memory != MemoryMode.OFF and spec.purpose == CallPurpose.ANSWER
        if not is_on or not isinstance(spec.request.origin, RECALLING):
            return False
        values = {"user": spec.user_id, "tenant": spec.tenant_id, "subject": spec.subject_id}
        return connection.execute(self.recall.may_find, values).first() is not None

    def for_prompt(self, spec: RunSpec, access: UserAccess, *, delegation_depth: int) -> PromptResources:
        """The resources of a prompt that is only measured: nothing is started or waited for."""
        card = access.provider_choice.choice.card
        pins = access.pins or self._new_pins(spec, access, _offered_names(spec.request, delegation_depth))
        return PromptResources(
            card=card,
            tools=[*pins.tools, *client_tools(spec.request)],
            sections=_sections(spec.request, card, pins),
            read_files=self.read_images,
        )

    async def prepare(
        self, spec: RunSpec, access: UserAccess, signal: CancelSignal, *, delegation_depth: int
    ) -> RunResources:
        """The resources of a drive. `delegation_depth` is the maximum depth of subagents.

        Raises Unavailable if the embedded model cannot be started.
        """
        resolved = await self.providers.resolve_selection(access.provider_choice)
        workspace = await self._workspace(spec)
        await self._await_names(spec, access)
        offered_names = _offered_names(spec.request, delegation_depth)
        in_run = (spec.request.memory, spec.request.knowledge, _skills_of(spec.request, access))

        def make_context(caller: Caller, rules: tuple[PlacedRule, ...], known: ToolSet | None) -> ToolContext:
            return ToolContext(
                caller=tool_caller(caller, spec.run_id, known, *in_run),
                permissions=CallPermissions(workspace=workspace, rules=rules, offered=offered_names),
                actions=CallActions(
                    read_result=partial(self._read_result, caller, spec.run_id),
                    cancelled=lambda: signal.is_fired,
                ),
            )

        def read_context(connection: Connection) -> ToolContext | LuxxError:
            try:
                caller, rules = read_rights(connection, spec.user_id, spec.subject_id, spec.request)
            except LuxxError as error:
                return error
            known = self.tools.for_caller(Session(bind=connection), caller, spec.request.tools)
            return make_context(caller, rules, known)

        pins = access.pins or self._new_pins(spec, access, offered_names)
        return RunResources(
            target=resolved.target,
            card=resolved.choice.card,
            tools=[*pins.tools, *client_tools(spec.request)],
            pins=pins,
            is_pinned=access.pins is not None or not spec.request.tools,
            known_tools=self.executor.registry if access.tools is None else access.tools,
            sections=_sections(spec.request, resolved.choice.card, pins),
            make_context=partial(make_context, access.caller, access.rules, access.tools),
            read_context=read_context,
            read_files=self.read_images,
            store_images=partial(self._store_images, spec),
            recall=self.recall if access.may_recall else None,
            places=self.places,
        )

    def _new_pins(self, spec: RunSpec, access: UserAccess, names: frozenset[str]) -> Pins:
        """The same for all requests of a turn, because the cache of the provider begins with them. So a skill
        that becomes active takes no tools away: calls that it does not allow are refused."""
        level, known = access.caller.permission_level, access.tools
        tools = [] if known is None else known.available_to(level, names)
        origin = spec.request.origin
        narrowed = origin.narrowed if isinstance(origin, Delegated) else ()
        offered = [
            tool.to_spec()
            for tool in sorted(tools, key=lambda tool: tool.name)
            if self.executor.judge.is_offered(tool, access.rules)
            and allows_name(narrowed, tool.name, only_asks=tool.only_asks)
            and (not access.skills.is_empty or tool.name not in (ACTIVATE_TOOL, READ_TOOL))
            and tool.name not in (SEARCH_TOOL, CALL_TOOL)
        ]
        if known is not None and not narrowed and any(tool.name.startswith(MCP_PREFIX) for tool in offered):
            # A subagent that was given some sees these.
            offered = with_search(offered, known, access.provider_choice.choice.card.known_window)
        named = {tool.name for tool in offered}
        shown = access.skills, spec.request.skills, access.uses
        parts = [listed_skills(*shown)] if ACTIVATE_TOOL in named else []
        parts += [listed_agents(access.agents)] if DELEGATE_TOOL in named else []
        text = changes = ""
        if parts:
            window = access.provider_choice.choice.card.known_window
            kept, digest = context_of(spec.past).listed, made_for(spec, offered, window)
            text, changes = continued(tuple(parts), window, kept, digest)
        return Pins(
            tools=offered,
            skills=text,
            changes=changes,
            knowledge=access.knowledge if KNOWLEDGE_SEARCH in named else "",
            begun=access.skills.pins if ACTIVATE_TOOL in named else None,
        )

    async def _await_names(self, spec: RunSpec, access: UserAccess) -> None:
        if access.tools is not None:
            await self.tools.wait_for(spec.request.tools)
            check_tools(access.tools, spec.request.tools)
        if skills := spec.request.skills:
            check_skills(access.skills, skills, "this run")

    async def _workspace(self, spec: RunSpec) -> Path:
        """The user's workspace; a run with tools creates it."""
        if not spec.request.tools:
            return self.workspaces.path_of(spec.user_id)
        # In a thread, and before any transaction: a slow disk must not block database writes.
        return await asyncio.to_thread(self.workspaces.prepare_if_enabled, spec.user_id)

    async def _store_images(self, spec: RunSpec, images: Sequence[bytes]) -> list[StepFile | str]:
        """Stores images that the model generated as files of the user; of one that cannot be, why."""
        if spec.request.stores_nothing:
            return ["a call without a conversation stores no files"] * len(images)
        workspace = await asyncio.to_thread(self.workspaces.prepare_if_enabled, spec.user_id)
        return await self.store_images(spec.user_id, workspace, images)

    async def _read_result(
        self, caller: Caller, run_id: str, ref: str, offset: int, limit: int
    ) -> StoredOutput:
        """A part of a stored output of this run, never of another. Raises ToolFailed if it does not exist."""
        try:
            if "\0" in ref:
                raise NotFound("no call has such an id")
            result = await self.replay.read_result(caller, run_id, ref, offset=offset, limit=limit)
        except (NotFound, Gone) as error:
            raise ToolFailed(
                "no output of this run has this ref; a shortened result names its ref, and a result that was "
                "not shortened is complete"
            ) from error
        return StoredOutput(output=result.output, total=result.total)


@dataclass(frozen=True, slots=True, repr=False)
class TurnServices:
    """The services of one process that only turns use. `engine` is called late: it needs the loop itself."""

    client: ModelClient
    resources: ResourceFinder
    engine: Callable[[], SubagentEngine]

    def read_access(self, session: Session, spec: RunSpec) -> UserAccess | LuxxError:
        """What the user of a turn may use now, or the error with which the turn ends."""
        try:
            return self.resources.read(session, spec)
        except LuxxError as error:
            return error


def _sections(request: ChatRequest, card: ModelCard, pins: Pins) -> list[TextSection]:
    """The texts of the prompt besides its messages."""
    sections = [TextSection(kind=SectionKind.SYSTEM, owner="runs", text=request.system_prompt)]
    if asks_to_think(request, card):
        sections.append(TextSection(kind=SectionKind.SYSTEM, owner="runs", text=THINKING_PROMPT))
    if pins.knowledge:
        owner = "domain.knowledge_bases"
        sections.append(TextSection(kind=SectionKind.SYSTEM, owner=owner, text=pins.knowledge))
    if pins.skills:
        sections.append(TextSection(kind=SectionKind.SKILLS, owner="domain.skills", text=pins.skills))
    if pins.changes:
        sections.append(TextSection(kind=SectionKind.TAIL, owner="domain.skills", text=pins.changes))
    return sections


def asks_to_think(request: ChatRequest, card: ModelCard) -> bool:
    """Whether the model is asked to think in its text: its agent says so, and it does not think by itself."""
    return request.prompted_thinking and not card.thinking and request.thinking_enabled is not False


def client_tools(request: ChatRequest) -> list[ToolSpec]:
    """The tools that the client of a call gave, and whose calls it makes itself."""
    return request.origin.tools if isinstance(request.origin, GivenPrompt) else []


def _skills_of(request: ChatRequest, access: UserAccess) -> SkillSet:
    """The skills that calls of the run may use."""
    return access.skills if request.skills is None else access.skills.only(request.skills)


def _offered_names(request: ChatRequest, delegation_depth: int) -> frozenset[str]:
    """The requested tools and, if there are any, the tool that reads the rest of a shortened result."""
    depth = request.origin.depth if isinstance(request.origin, Delegated) else 0
    names = [name for name in request.tools if depth < delegation_depth or name != DELEGATE_TOOL]
    if any(name.startswith(MCP_PREFIX) for name in names):
        names += [SEARCH_TOOL, CALL_TOOL]
    return frozenset((*names, READ_RESULT_TOOL) if names else ())


def has_checks(spec: RunSpec) -> bool:
    """Whether checks judge the turn: one that answers, not one that only plans or chooses."""
    return bool(spec.request.checks) and spec.purpose == CallPurpose.ANSWER


def with_fallback(spec: RunSpec, state: TurnState) -> RunSpec:
    """The specification with the provider and model that make the next call."""
    if not state.fallback:
        return spec
    return replace(spec, request=replace(spec.request, **asdict(model_used(spec.request, state))))
