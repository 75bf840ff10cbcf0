"""The table and the API structs of agents. `service.py` has the rules about who sees and changes one."""

from datetime import datetime
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType
from sqlalchemy import ForeignKey, Index, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from luxx.domain.knowledge_bases import KnowledgeIds
from luxx.domain.owned import SharedRow
from luxx.domain.routing.matching import Trigger, TriggerPatterns, TriggerType
from luxx.infra.store.tables import (
    KnowledgeColumn,
    MemoryColumn,
    ModelSettingsColumns,
    RequestColumns,
    SlidingWindowColumn,
)
from luxx.infra.strict_json import IN_LINE, IN_NAME, LINE, NAME
from luxx.wire.check import CheckBy
from luxx.wire.model_settings import (
    MemoryMode,
    ModelSettings,
    ModelSettingsChange,
    PlanningMode,
    ProviderId,
    RoutingMode,
    SlidingWindow,
)
from luxx.wire.tool import PermissionRule

MAX_TOOLS = 200
MAX_FALLBACKS = 5
MAX_CHECKS = 10


AgentName = Annotated[str, Meta(min_length=1, max_length=100, pattern=NAME, description=IN_NAME)]
AgentRole = Annotated[str, Meta(max_length=500, pattern=LINE, description=IN_LINE)]
DisplayName = Annotated[str, Meta(max_length=100, pattern=LINE, description=IN_LINE)]
Description = Annotated[str, Meta(max_length=1_024, description="what the agent is for, and when to use it")]
AgentModel = Annotated[str, Meta(min_length=1, max_length=200, pattern=NAME, description=IN_NAME)]
AgentPrompt = Annotated[str, Meta(max_length=100_000)]
AgentColor = Annotated[
    str, Meta(pattern=r"^#[0-9A-Fa-f]{6}$(?!\n)", description="# and six hexadecimal digits, like #0f8a6d")
]
ToolName = Annotated[str, Meta(min_length=1, max_length=200, pattern=LINE, description=IN_LINE)]
ToolNames = Annotated[list[ToolName], Meta(max_length=MAX_TOOLS)]
SkillNames = Annotated[list[ToolName], Meta(max_length=MAX_TOOLS)]
ProjectId = Annotated[str, Meta(min_length=1, max_length=36)]
MaxIterations = Annotated[int, Meta(ge=1, le=100)]
PromptedThinking = Annotated[
    bool,
    Meta(description="whether a model that does not think by itself is asked to think in a `<think>` block"),
]


class TurnSettings(ModelSettings, frozen=True, kw_only=True):
    """The settings of the turns of an agent or a seat. `tools` and `skills` null: all that the user may use;
    an empty list: none. `max_iterations`: model calls with tools; null: as configured.
    """

    model: AgentModel | None = None
    tools: ToolNames | None = None
    skills: SkillNames | None = None
    max_iterations: MaxIterations | None = None


class TurnSettingsChange(ModelSettingsChange, frozen=True, kw_only=True):
    """Settings to change: UNSET leaves a value as it is, None clears it."""

    provider_id: ProviderId | UnsetType | None = UNSET
    model: AgentModel | UnsetType | None = UNSET
    tools: ToolNames | UnsetType | None = UNSET
    skills: SkillNames | UnsetType | None = UNSET
    max_iterations: MaxIterations | UnsetType | None = UNSET


class TurnColumns(ModelSettingsColumns):
    """The columns of a row with the settings of turns; `tools` and `skills` are JSON.

    `lost_provider`: the name of a provider that was chosen and is gone (`infra/store/tables.py`).
    """

    provider_id: Mapped[int | None] = mapped_column(
        ForeignKey("llm_providers.id", ondelete="SET NULL"), index=True
    )
    model: Mapped[str | None] = mapped_column(String(200))
    tools: Mapped[str | None] = mapped_column(Text)
    skills: Mapped[str | None] = mapped_column(Text)
    max_iterations: Mapped[int | None] = mapped_column()
    lost_provider: Mapped[str | None] = mapped_column(String(100))


TURN_SETTINGS = TurnSettings.__struct_fields__


class AgentRow(TurnColumns, MemoryColumn, KnowledgeColumn, RequestColumns, SlidingWindowColumn, SharedRow):
    """A shipped agent has a `shipped_name`, no owner and no tenant; everybody may use it, nobody change it.

    `fallbacks`, `checks`, `trigger_patterns` and `mcp_servers` are JSON. Ids are never reused, so that the id
    of a deleted agent cannot refer to another one.
    """

    __tablename__ = "agents"
    __table_args__ = (
        Index("ix_agents_user_id", "user_id"),
        Index("ix_agents_tenant_id_is_shared", "tenant_id", "is_shared"),
        Index(
            "uq_agents_shipped_name",
            "shipped_name",
            unique=True,
            sqlite_where=text("shipped_name IS NOT NULL"),
            postgresql_where=text("shipped_name IS NOT NULL"),
        ),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    # No owner and no tenant: the agent comes with Luxx.
    user_id: Mapped[int | None] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))  # pyright: ignore[reportIncompatibleVariableOverride]
    tenant_id: Mapped[int | None] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"))  # pyright: ignore[reportIncompatibleVariableOverride]
    shipped_name: Mapped[str | None] = mapped_column(String(40))
    name: Mapped[str] = mapped_column(String(100))
    role: Mapped[str] = mapped_column(String(500), default="")
    system_prompt: Mapped[str] = mapped_column(Text, default="")
    color: Mapped[str] = mapped_column(String(7))
    fallbacks: Mapped[str] = mapped_column(Text, default="[]")
    prompted_thinking: Mapped[bool] = mapped_column(default=False)
    checks: Mapped[str] = mapped_column(Text, default="[]")
    display_name: Mapped[str] = mapped_column(String(100), default="")
    description: Mapped[str] = mapped_column(Text, default="")
    trigger_type: Mapped[str] = mapped_column(String(10), default="hybrid")
    trigger_patterns: Mapped[str] = mapped_column(Text, default="[]")
    enabled: Mapped[bool] = mapped_column(default=True)
    project_id: Mapped[str | None] = mapped_column(ForeignKey("projects.id", ondelete="SET NULL"), index=True)
    mcp_servers: Mapped[str | None] = mapped_column(Text)


McpServerNames = Annotated[
    list[Annotated[str, Meta(min_length=1, max_length=20, pattern=LINE, description=IN_LINE)]],
    Meta(max_length=100),
]


class AgentFallback(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A provider that a run uses when the one before it fails for good; `model` null: its default model."""

    provider_id: ProviderId
    model: AgentModel | None = None


Fallbacks = Annotated[list[AgentFallback], Meta(max_length=MAX_FALLBACKS)]
CheckTarget = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=200,
        pattern=LINE,
        description=f"'answer', or the name of a tool, in which * stands for any characters; {IN_LINE}",
    ),
]
Criteria = Annotated[
    str,
    Meta(
        max_length=4_000,
        description="what a model judges by; of a check by facts, the files in backticks have to exist",
    ),
]
Rounds = Annotated[
    int, Meta(ge=1, le=2, description="how often the evidence goes back to the model in a turn, at most")
]


class Check(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What judges the answers of an agent, or the results of its tools. `provider_id` and `model`: of the
    judge; null: those of the run."""

    on: CheckTarget
    by: CheckBy = CheckBy.FACTS
    criteria: Criteria = ""
    provider_id: ProviderId | None = None
    model: AgentModel | None = None
    rounds: Rounds = 1


Checks = Annotated[list[Check], Meta(max_length=MAX_CHECKS)]


class NewAgent(TurnSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`provider_id` null: the default provider of whoever uses the agent."""

    name: AgentName
    role: AgentRole = ""
    provider_id: ProviderId | None = None
    system_prompt: AgentPrompt = ""
    color: AgentColor | None = None
    fallbacks: Fallbacks = []
    prompted_thinking: PromptedThinking = False
    planning: PlanningMode | None = None
    routing: RoutingMode | None = None
    checks: Checks = []
    sliding_window: SlidingWindow | None = None
    memory: MemoryMode | None = None
    knowledge: KnowledgeIds = []
    mcp_servers: McpServerNames | None = None
    display_name: DisplayName = ""
    description: Description = ""
    trigger_type: TriggerType = TriggerType.HYBRID
    trigger_patterns: TriggerPatterns = []
    enabled: bool = True
    project_id: ProjectId | None = None
    is_shared: bool = False


class AgentChanges(TurnSettingsChange, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Omitted fields do not change; null clears a field that may be null."""

    name: AgentName | UnsetType = UNSET
    role: AgentRole | UnsetType = UNSET
    system_prompt: AgentPrompt | UnsetType = UNSET
    color: AgentColor | UnsetType = UNSET
    fallbacks: Fallbacks | UnsetType = UNSET
    prompted_thinking: PromptedThinking | UnsetType = UNSET
    planning: PlanningMode | UnsetType | None = UNSET
    routing: RoutingMode | UnsetType | None = UNSET
    checks: Checks | UnsetType = UNSET
    sliding_window: SlidingWindow | UnsetType | None = UNSET
    memory: MemoryMode | UnsetType | None = UNSET
    knowledge: KnowledgeIds | UnsetType = UNSET
    mcp_servers: McpServerNames | UnsetType | None = UNSET
    display_name: DisplayName | UnsetType = UNSET
    description: Description | UnsetType = UNSET
    trigger_type: TriggerType | UnsetType = UNSET
    trigger_patterns: TriggerPatterns | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET
    project_id: ProjectId | UnsetType | None = UNSET
    is_shared: bool | UnsetType = UNSET


class EnableAgent(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether an agent may be used."""

    enabled: bool


class AgentView(TurnSettings, frozen=True, kw_only=True):
    """An agent as the API shows it. `is_shipped`: it comes with Luxx and has no owner. `lost_provider`: the
    name of its provider that was deleted or is no longer shared; the agent answers after another is chosen.
    `enabled`: false: it does not answer, and no model is offered it.
    """

    id: int
    user_id: int | None
    name: str
    role: str
    provider_id: int | None
    system_prompt: str
    color: str
    fallbacks: list[AgentFallback]
    prompted_thinking: PromptedThinking
    planning: PlanningMode | None = None
    routing: RoutingMode | None = None
    checks: list[Check]
    sliding_window: SlidingWindow | None = None
    memory: MemoryMode | None = None
    knowledge: list[str] = []
    mcp_servers: list[str] | None = None
    display_name: str = ""
    description: str = ""
    trigger_type: TriggerType = TriggerType.HYBRID
    trigger_patterns: list[Trigger] = []
    enabled: bool = True
    project_id: str | None = None
    lost_provider: str | None
    is_shared: bool
    is_shipped: bool
    is_own: bool
    created_at: datetime
    updated_at: datetime


class ImportedAgent(AgentView, frozen=True, kw_only=True):
    """A new agent, with the permission rules that its document brought."""

    rules: list[PermissionRule]
