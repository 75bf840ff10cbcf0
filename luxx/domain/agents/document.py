"""An agent as a YAML or JSON document, for other servers: providers by name, rules of the agent included."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict

from luxx.domain.agents.models import (
    MAX_FALLBACKS,
    TURN_SETTINGS,
    AgentColor,
    AgentFallback,
    AgentModel,
    AgentName,
    AgentPrompt,
    AgentRole,
    AgentView,
    NewAgent,
    TurnSettings,
)
from luxx.infra.documents.yaml_text import parse_yaml
from luxx.providers.models import ProviderName
from luxx.tools.permissions.service import MAX_RULES, PATTERN_LENGTH, TOOL_LENGTH
from luxx.wire.model_settings import first_given
from luxx.wire.tool import PermissionRule, RuleAction

VERSION = 1
MAX_CHARACTERS = 200_000


class FallbackDocument(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    provider: ProviderName
    model: AgentModel | None = None


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
    rules: Annotated[list[RuleDocument], Meta(max_length=MAX_RULES)] = []
    system_prompt: AgentPrompt = ""

    def new_agent(
        self, provider_id: int | None = None, fallbacks: list[AgentFallback] | None = None
    ) -> NewAgent:
        """The agent to create, with the ids of this server's providers."""
        own = {"version", "provider", "fallbacks", "rules"}
        values = {name: value for name, value in asdict(self).items() if name not in own}
        return NewAgent(provider_id=provider_id, fallbacks=fallbacks or [], **values)


def decode_document(text: str) -> AgentDocument:
    """A document that is known to be valid, as YAML or JSON. The API checks those of users itself."""
    return msgspec.convert(parse_yaml(text, max_characters=MAX_CHARACTERS), AgentDocument)


def document_of(
    agent: AgentView, provider: str | None, fallbacks: list[FallbackDocument], rules: Sequence[PermissionRule]
) -> AgentDocument:
    """The document of an agent. `provider`: the name of its provider."""
    return AgentDocument(
        version=VERSION,
        name=agent.name,
        role=agent.role,
        provider=provider,
        color=agent.color,
        fallbacks=fallbacks,
        rules=[RuleDocument(tool=rule.tool, pattern=rule.pattern, action=rule.action) for rule in rules],
        system_prompt=agent.system_prompt,
        **first_given(agent, names=TURN_SETTINGS),
    )
