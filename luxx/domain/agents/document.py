"""An agent as a YAML or JSON document, for other servers: providers by name, rules of the agent included.

Also the agents that ship with Luxx: the documents `shipped/*.yaml`, stored with their rules at each start.
"""

from collections.abc import Sequence
from importlib.resources import files
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict
from sqlalchemy import select
from sqlalchemy.orm import Session

from luxx.domain.agents.models import (
    MAX_CHECKS,
    MAX_FALLBACKS,
    TURN_SETTINGS,
    AgentColor,
    AgentFallback,
    AgentModel,
    AgentName,
    AgentPrompt,
    AgentRole,
    AgentRow,
    AgentView,
    Check,
    CheckTarget,
    Criteria,
    Description,
    DisplayName,
    McpServerNames,
    NewAgent,
    PromptedThinking,
    Rounds,
    TurnSettings,
)
from luxx.domain.agents.queries import BeforeLoss, end_default, set_fields
from luxx.domain.routing.matching import TriggerPatterns, TriggerType
from luxx.infra.clock import utc_now
from luxx.infra.documents.yaml_text import parse_yaml
from luxx.infra.store.tables import Lock, first_given, keep_name, lock_until_commit
from luxx.providers.models import ProviderName
from luxx.tools.permissions.service import (
    MAX_RULES,
    PATTERN_LENGTH,
    TOOL_LENGTH,
    Owner,
    read_list,
    replace_list,
)
from luxx.wire.check import CheckBy
from luxx.wire.model_settings import MemoryMode, PlanningMode, RoutingMode, SlidingWindow
from luxx.wire.tool import PermissionRule, PlacedRule, RuleAction

VERSION = 1
MAX_CHARACTERS = 200_000
FOLDER = files("luxx.domain.agents").joinpath("shipped")
_shipped = select(AgentRow).where(AgentRow.shipped_name.is_not(None))


class FallbackDocument(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    provider: ProviderName
    model: AgentModel | None = None


class CheckDocument(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A check; `provider` is the name of the judge's, left out for that of the run."""

    on: CheckTarget
    by: CheckBy = CheckBy.FACTS
    criteria: Criteria = ""
    provider: ProviderName | None = None
    model: AgentModel | None = None
    rounds: Rounds = 1

    def check(self, provider_id: int | None) -> Check:
        """The check, with the id of the provider on this server."""
        values = {name: value for name, value in asdict(self).items() if name != "provider"}
        return Check(provider_id=provider_id, **values)


def check_document(check: Check, provider: str | None) -> CheckDocument:
    """The document of a check. `provider`: the name of the judge's; None: that of the run, or it is gone."""
    is_lost = provider is None and check.provider_id is not None
    return CheckDocument(
        on=check.on,
        by=check.by,
        criteria=check.criteria,
        provider=provider,
        model=None if is_lost else check.model,
        rounds=check.rounds,
    )


class RuleDocument(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A permission rule for calls in turns of the agent; see docs/agents/permissions.md."""

    tool: Annotated[str, Meta(min_length=1, max_length=TOOL_LENGTH)]
    pattern: Annotated[str, Meta(min_length=1, max_length=PATTERN_LENGTH)] = "*"
    action: RuleAction

    def permission_rule(self) -> PermissionRule:
        return PermissionRule(tool=self.tool, pattern=self.pattern, action=self.action)


class AgentDocument(TurnSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """`tools` and `skills` left out: all that the user may use. `provider` left out: the user's default."""

    version: Annotated[int, Meta(ge=VERSION, le=VERSION)]
    name: AgentName
    role: AgentRole = ""
    provider: ProviderName | None = None
    color: AgentColor | None = None
    fallbacks: Annotated[list[FallbackDocument], Meta(max_length=MAX_FALLBACKS)] = []
    planning: PlanningMode | None = None
    routing: RoutingMode | None = None
    checks: Annotated[list[CheckDocument], Meta(max_length=MAX_CHECKS)] = []
    sliding_window: SlidingWindow | None = None
    memory: MemoryMode | None = None
    mcp_servers: McpServerNames | None = None
    rules: Annotated[list[RuleDocument], Meta(max_length=MAX_RULES)] = []
    display_name: DisplayName = ""
    description: Description = ""
    trigger_type: TriggerType = TriggerType.HYBRID
    trigger_patterns: TriggerPatterns = []
    prompted_thinking: PromptedThinking = False
    system_prompt: AgentPrompt = ""

    def new_agent(
        self,
        provider_id: int | None = None,
        fallbacks: list[AgentFallback] | None = None,
        checks: list[Check] | None = None,
    ) -> NewAgent:
        """The agent to create, with the ids of this server's providers."""
        own = {"version", "provider", "fallbacks", "checks", "rules"}
        values = {name: value for name, value in asdict(self).items() if name not in own}
        return NewAgent(provider_id=provider_id, fallbacks=fallbacks or [], checks=checks or [], **values)


def decode_document(text: str) -> AgentDocument:
    """A document that is known to be valid, as YAML or JSON. The API checks those of users itself."""
    return msgspec.convert(parse_yaml(text, max_characters=MAX_CHARACTERS), AgentDocument)


def document_of(
    agent: AgentView,
    provider: str | None,
    fallbacks: list[FallbackDocument],
    checks: list[CheckDocument],
    rules: Sequence[PermissionRule],
) -> AgentDocument:
    """The document of an agent. `provider`: the name of its provider."""
    return AgentDocument(
        version=VERSION,
        name=agent.name,
        role=agent.role,
        provider=provider,
        color=agent.color,
        fallbacks=fallbacks,
        planning=agent.planning,
        routing=agent.routing,
        checks=checks,
        sliding_window=agent.sliding_window,
        memory=agent.memory,
        mcp_servers=agent.mcp_servers,
        display_name=agent.display_name,
        description=agent.description,
        trigger_type=agent.trigger_type,
        trigger_patterns=agent.trigger_patterns,
        rules=[RuleDocument(tool=rule.tool, pattern=rule.pattern, action=rule.action) for rule in rules],
        prompted_thinking=agent.prompted_thinking,
        system_prompt=agent.system_prompt,
        **first_given(agent, names=TURN_SETTINGS),
    )


def shipped_documents() -> dict[str, AgentDocument]:
    """The documents by the names of their files, in alphabetical order."""
    found = sorted(FOLDER.iterdir(), key=lambda file: file.name)
    return {file.name.removesuffix(".yaml"): decode_document(file.read_text("utf-8")) for file in found}


def store_shipped_agents(session: Session, before_loss: BeforeLoss) -> None:
    """Adds or updates the shipped agents, and deletes those that no longer ship."""
    lock_until_commit(session.connection(), Lock.SHIPPED_AGENTS)
    documents = shipped_documents()
    rows = {str(row.shipped_name): row for row in session.scalars(_shipped)}
    for name in rows.keys() - documents.keys():
        before_loss(session, rows[name], True)
        keep_name(session.connection(), AgentRow, rows[name].id, rows[name].name)
        end_default(session, rows[name])
        session.delete(rows[name])
    now = utc_now()
    for name, document in documents.items():
        row = rows.get(name)
        if row is None:
            row = AgentRow(shipped_name=name, color="", created_at=now, updated_at=now)
            session.add(row)
        set_fields(row, document.new_agent())
        if session.is_modified(row):
            row.updated_at = now
    session.flush()
    stored = {row.shipped_name: row for row in session.scalars(_shipped)}
    for name, document in documents.items():
        owner = Owner(tenant_id=None, agent_id=stored[name].id)
        rules = [rule.permission_rule() for rule in document.rules]
        if [_own(rule) for rule in read_list(session.connection(), owner)] != rules:
            replace_list(session.connection(), owner, rules)


def _own(rule: PlacedRule) -> PermissionRule:
    """The rule without its place."""
    return PermissionRule(tool=rule.tool, pattern=rule.pattern, action=rule.action)
