"""The tables of tasks, their steps, versions and templates, and the API structs of tasks.

`tasks.run_id` is the newest run of a task; the status of a task follows from it (`queries.py`) and is not
stored. `changes.py` writes the graph. `schedule.py` starts tasks at their `start_at`.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType
from sqlalchemy import ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from luxx.domain.agents.models import ToolNames
from luxx.domain.owned import OwnedRow, SharedRow
from luxx.features.tasks.graph import TaskStepStatus
from luxx.infra.clock import new_id
from luxx.infra.store.tables import Base, UtcDateTime
from luxx.infra.strict_json import IN_NAME, NAME
from luxx.wire.check import Verdict
from luxx.wire.model_settings import ProviderId
from luxx.wire.orchestration_event import PlanEstimate
from luxx.wire.turn import MODEL_LENGTH, Step, Usage, WrittenArtifact

MAX_STEPS = 200
MAX_DEPENDENCIES = 2_000
"""Dependencies in one graph."""

MAX_GRAPH_CHARACTERS = 200_000
"""Characters of all texts of a graph's steps."""

MAX_VERSIONS = 50
"""Earlier graphs that are kept of a task."""

MAX_METADATA_BYTES = 20_000
MAX_PLAN_AGENTS = 20
"""Agents that a planning model reads of."""

MAX_DOCUMENT_CHARACTERS = 500_000
"""Characters of a document in YAML; the parser is slow. JSON is bounded by its fields."""

STEP_ID_LENGTH = 64


class TaskStatus(StrEnum):
    """`block`: the newest run waits for a person or is paused; `terminated`: it was cancelled."""

    PENDING = "pending"
    RUNNING = "running"
    BLOCK = "block"
    TERMINATED = "terminated"
    COMPLETED = "completed"
    FAILED = "failed"


class TaskRow(OwnedRow):
    """`metadata_json` is a JSON object. `run_id`: the newest run. `is_start_due`: the task is still to be
    started at `start_at`."""

    __tablename__ = "tasks"
    __table_args__ = (
        Index("ix_tasks_user_id_id", "user_id", "id"),
        Index("ix_tasks_tenant_id", "tenant_id"),
        Index("ix_tasks_is_start_due_start_at", "is_start_due", "start_at"),
    )

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    name: Mapped[str] = mapped_column(String(200))
    goal: Mapped[str] = mapped_column(Text)
    provider_id: Mapped[int | None] = mapped_column(
        ForeignKey("llm_providers.id", ondelete="SET NULL"), index=True
    )
    agent_id: Mapped[int | None] = mapped_column(ForeignKey("agents.id", ondelete="SET NULL"), index=True)
    project_id: Mapped[str | None] = mapped_column(ForeignKey("projects.id", ondelete="SET NULL"), index=True)
    max_concurrent_steps: Mapped[int] = mapped_column(default=5)
    require_approval: Mapped[bool] = mapped_column(default=False)
    metadata_json: Mapped[str] = mapped_column("metadata", Text, default="{}")
    priority: Mapped[int] = mapped_column(default=3)
    start_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    due_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    snoozed_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    is_start_due: Mapped[bool] = mapped_column(default=False)
    result: Mapped[str | None] = mapped_column(Text)
    run_id: Mapped[str | None] = mapped_column(ForeignKey("runs.id", ondelete="SET NULL"), index=True)
    lost_provider: Mapped[str | None] = mapped_column(String(100))
    lost_agent: Mapped[str | None] = mapped_column(String(100))
    lost_project: Mapped[str | None] = mapped_column(String(200))


class TaskStepRow(Base):
    """`depends_on`, `required_skills`, `required_tools`, `tool_calls` and `usage` are JSON.

    `position` orders the steps of a task, from 0 without gaps. `skipped_because`: the step without whose
    result this one is skipped; empty: a person skipped it. `tainted_by`: the tool that brought untrusted
    content into the result, here or in a step that this one needs.
    """

    __tablename__ = "task_steps"

    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True)
    id: Mapped[str] = mapped_column(String(STEP_ID_LENGTH), primary_key=True)
    position: Mapped[int] = mapped_column()
    name: Mapped[str] = mapped_column(String(200))
    goal: Mapped[str] = mapped_column(Text, default="")
    depends_on: Mapped[str] = mapped_column(Text, default="[]")
    agent_id: Mapped[int | None] = mapped_column(ForeignKey("agents.id", ondelete="SET NULL"), index=True)
    required_skills: Mapped[str | None] = mapped_column(Text)
    required_tools: Mapped[str | None] = mapped_column(Text)
    expected_output: Mapped[str | None] = mapped_column(Text)
    thought_prompt: Mapped[str | None] = mapped_column(Text)
    require_approval: Mapped[bool] = mapped_column(default=False)
    approved_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    status: Mapped[str] = mapped_column(String(20), default=TaskStepStatus.PENDING.value)
    tool_calls: Mapped[str] = mapped_column(Text, default="[]")
    output: Mapped[str | None] = mapped_column(Text)
    error: Mapped[str | None] = mapped_column(Text)
    skipped_because: Mapped[str | None] = mapped_column(String(STEP_ID_LENGTH))
    tainted_by: Mapped[str | None] = mapped_column(String(200))
    attempts: Mapped[int] = mapped_column(default=0)
    provider_id: Mapped[int | None] = mapped_column()
    provider_name: Mapped[str | None] = mapped_column(String(100))
    model: Mapped[str | None] = mapped_column(String(MODEL_LENGTH))
    finish: Mapped[str | None] = mapped_column(String(20))
    usage: Mapped[str] = mapped_column(Text, default="{}")
    cost: Mapped[float | None] = mapped_column()
    duration_ms: Mapped[int | None] = mapped_column()
    started_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    lost_agent: Mapped[str | None] = mapped_column(String(100))


class TaskVersionRow(Base):
    """The steps of a task before a change of its graph, as JSON of NewTaskStep; `number` counts from 1."""

    __tablename__ = "task_versions"

    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    steps: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class TaskTemplateRow(SharedRow):
    """`document` is a TaskDocument as JSON."""

    __tablename__ = "task_templates"
    __table_args__ = (
        Index("ix_task_templates_user_id", "user_id"),
        Index("ix_task_templates_tenant_id_is_shared", "tenant_id", "is_shared"),
    )

    id: Mapped[str] = mapped_column(String(36), primary_key=True, default=new_id)
    name: Mapped[str] = mapped_column(String(200))
    description: Mapped[str] = mapped_column(Text, default="")
    document: Mapped[str] = mapped_column(Text)


STEP_ID = rf"^[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{STEP_ID_LENGTH - 1}}}$(?!\n)"
IN_STEP_ID = "letters, digits and _ . - without spaces, not beginning with . or -"
VISIBLE = r"[^\s\x00-\x1f\x7f]"
IN_VISIBLE = "text with a visible character"

TaskName = Annotated[str, Meta(min_length=1, max_length=200, pattern=NAME, description=IN_NAME)]
TaskGoal = Annotated[str, Meta(min_length=1, max_length=10_000, pattern=VISIBLE, description=IN_VISIBLE)]
TaskStepId = Annotated[
    str, Meta(min_length=1, max_length=STEP_ID_LENGTH, pattern=STEP_ID, description=IN_STEP_ID)
]
TaskStepIds = Annotated[list[TaskStepId], Meta(max_length=MAX_STEPS)]
TaskStepText = Annotated[str, Meta(max_length=10_000)]
ConcurrentSteps = Annotated[int, Meta(ge=1, le=20)]
ProjectId = Annotated[str, Meta(min_length=1, max_length=64)]
Priority = Annotated[int, Meta(ge=1, le=5)]
"""1 is the most urgent."""

TaskTime = Annotated[datetime, Meta(tz=True)]


class NewTaskStep(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A step of a graph. Without an `id` the server gives one: `s` and a number.

    `goal` left out: the name. `agent_id` null: the agent of the task.
    """

    id: TaskStepId | None = None
    name: TaskName
    goal: TaskStepText = ""
    depends_on: TaskStepIds = []
    agent_id: ProviderId | None = None
    required_skills: ToolNames | None = None
    required_tools: ToolNames | None = None
    expected_output: TaskStepText | None = None
    thought_prompt: TaskStepText | None = None
    require_approval: bool = False


class TaskStepChanges(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Omitted fields do not change; null clears a field that may be null."""

    name: TaskName | UnsetType = UNSET
    goal: TaskStepText | UnsetType = UNSET
    depends_on: TaskStepIds | UnsetType = UNSET
    agent_id: ProviderId | UnsetType | None = UNSET
    required_skills: ToolNames | UnsetType | None = UNSET
    required_tools: ToolNames | UnsetType | None = UNSET
    expected_output: TaskStepText | UnsetType | None = UNSET
    thought_prompt: TaskStepText | UnsetType | None = UNSET
    require_approval: bool | UnsetType = UNSET


NewTaskSteps = Annotated[list[NewTaskStep], Meta(max_length=MAX_STEPS)]


class NewTask(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`agent_id` and `provider_id` null: the defaults of the user. Without steps, a task is only a goal."""

    name: TaskName
    goal: TaskGoal
    provider_id: ProviderId | None = None
    agent_id: ProviderId | None = None
    project_id: ProjectId | None = None
    max_concurrent_steps: ConcurrentSteps = 5
    require_approval: bool = False
    metadata: dict[str, Any] = {}
    priority: Priority = 3
    start_at: TaskTime | None = None
    due_at: TaskTime | None = None
    snoozed_until: TaskTime | None = None
    steps: NewTaskSteps = []


class NewPlan(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A goal to plan for, without a task. `agent_id` and `provider_id`: who plans; null: your defaults.

    `tools` and `agents` are those that steps may use; null: all that you may use.
    """

    goal: TaskGoal
    constraints: TaskStepText | None = None
    tools: ToolNames | None = None
    agents: Annotated[list[ProviderId], Meta(max_length=MAX_PLAN_AGENTS)] | None = None
    agent_id: ProviderId | None = None
    provider_id: ProviderId | None = None


class PlanView(Struct, frozen=True, kw_only=True):
    """A proposed plan: steps for `POST /tasks`, what carrying them out may cost, and what planning cost."""

    run_id: str
    steps: list[NewTaskStep]
    estimate: PlanEstimate
    usage: Usage
    cost: float | None


class TaskChanges(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Omitted fields do not change; null clears a field that may be null. `metadata` is replaced whole."""

    name: TaskName | UnsetType = UNSET
    goal: TaskGoal | UnsetType = UNSET
    provider_id: ProviderId | UnsetType | None = UNSET
    agent_id: ProviderId | UnsetType | None = UNSET
    project_id: ProjectId | UnsetType | None = UNSET
    max_concurrent_steps: ConcurrentSteps | UnsetType = UNSET
    require_approval: bool | UnsetType = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    start_at: TaskTime | UnsetType | None = UNSET
    due_at: TaskTime | UnsetType | None = UNSET
    snoozed_until: TaskTime | UnsetType | None = UNSET


class TaskStepView(Struct, frozen=True, kw_only=True):
    """A step as the API shows it, with what the newest execution of it produced.

    `lost_agent`: the name of its agent that was deleted or is no longer shared; choose another, or null.
    """

    id: str
    name: str
    goal: str
    depends_on: list[str]
    agent_id: int | None
    lost_agent: str | None
    required_skills: list[str] | None
    required_tools: list[str] | None
    expected_output: str | None
    thought_prompt: str | None
    require_approval: bool
    approved_at: datetime | None
    status: TaskStepStatus
    tool_calls: list[Any]
    output: str | None
    artifacts: list[WrittenArtifact]
    error: str | None
    skipped_because: str | None
    attempts: int
    provider_id: int | None
    provider_name: str | None
    model: str | None
    finish: str | None
    usage: Usage
    cost: float | None
    duration_ms: int | None
    started_at: datetime | None
    finished_at: datetime | None


class TaskStepTranscript(Struct, frozen=True, kw_only=True):
    """One attempt of a step: what its model was given (`system_prompt`, `input`, `tools`), and its steps.

    `status` is `pending` if the attempt was cut. Times are in UTC.
    """

    run_id: str
    step_id: str
    attempt: int
    status: str
    provider_id: int
    provider_name: str | None
    model: str
    tools: list[str]
    system_prompt: str
    input: str
    steps: list[Step]
    verdicts: list[Verdict] = []
    usage: Usage
    cost: float | None
    error: str | None
    started_at: datetime
    finished_at: datetime | None


class TaskSummary(Struct, frozen=True, kw_only=True):
    """A task in a list. `step_counts`: the number of its steps by status, without the zeros."""

    id: str
    name: str
    goal: str
    status: TaskStatus
    provider_id: int | None
    agent_id: int | None
    project_id: str | None
    max_concurrent_steps: int
    require_approval: bool
    priority: int
    start_at: datetime | None
    due_at: datetime | None
    snoozed_until: datetime | None
    run_id: str | None
    step_counts: dict[str, int]
    created_at: datetime
    updated_at: datetime


class TaskView(Struct, frozen=True, kw_only=True):
    """A task with its steps, in their order.

    `lost_provider`, `lost_agent` and `lost_project` (one with permission rules): the name of one that was
    chosen and then deleted, or that is no longer shared. The task goes on after another is chosen, or null.
    """

    id: str
    name: str
    goal: str
    status: TaskStatus
    provider_id: int | None
    agent_id: int | None
    project_id: str | None
    lost_provider: str | None
    lost_agent: str | None
    lost_project: str | None
    max_concurrent_steps: int
    require_approval: bool
    metadata: dict[str, Any]
    priority: int
    start_at: datetime | None
    due_at: datetime | None
    snoozed_until: datetime | None
    steps: list[TaskStepView]
    result: str | None
    run_id: str | None
    created_at: datetime
    updated_at: datetime


class TaskVersionSummary(Struct, frozen=True, kw_only=True):
    number: int
    step_count: int
    created_at: datetime


class TaskVersion(Struct, frozen=True, kw_only=True):
    """The steps of a task before a change. `PUT /tasks/{id}/graph` takes them to restore the graph."""

    number: int
    steps: list[NewTaskStep]
    created_at: datetime
