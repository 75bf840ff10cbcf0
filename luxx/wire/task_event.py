"""Events of tasks: the plan, the steps and the result."""

from enum import StrEnum

import msgspec
from msgspec import UNSET, UnsetType

from luxx.wire.turn import EventBase


class Planning(EventBase, frozen=True, kw_only=True, tag="planning"):
    """A model draws a plan, in the turn `step_id`; `attempt` counts from 1. `task_id` is null for a plan that
    is only proposed."""

    task_id: str | None
    attempt: int


class PlannedStepInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A step as the event of its plan shows it."""

    id: str
    name: str
    goal: str
    depends_on: list[str]
    agent_id: int | UnsetType = UNSET
    required_tools: list[str] | UnsetType = UNSET
    expected_output: str | UnsetType = UNSET


class EstimateKind(StrEnum):
    """`measured`: means of the user's earlier steps. `assumed`: fixed figures; there are too few steps."""

    MEASURED = "measured"
    ASSUMED = "assumed"


class PlanEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan may cost. `turns`: its steps and, if it has several, the final result.

    `cost` in US dollars is null if the price of a model is unknown, `seconds` if too few steps were measured.
    """

    turns: int
    prompt_tokens: int
    completion_tokens: int
    cost: float | None
    seconds: float | None
    basis: EstimateKind
    measured_steps: int


class PlanCreated(EventBase, frozen=True, kw_only=True, tag="plan_created"):
    """The plan is valid. `task_id` is null for a plan that is only proposed."""

    task_id: str | None
    steps: list[PlannedStepInfo]
    estimate: PlanEstimate | UnsetType = UNSET


class StepStart(EventBase, frozen=True, kw_only=True, tag="step_start"):
    """A step of the task, or its final result, is carried out. `attempt` counts from 1."""

    name: str
    attempt: int


class StepComplete(EventBase, frozen=True, kw_only=True, tag="step_complete"):
    """A step is `completed`, `failed`, or `pending` again because it was cut. `error` is set if it failed.
    Provider and model are those that carried it out; `finish` is why its last model call ended."""

    status: str
    duration_ms: int
    error: str | UnsetType = UNSET
    finish: str | None = None
    provider_id: int | None = None
    provider_name: str | None = None
    model: str | None = None


class StepSkipped(EventBase, frozen=True, kw_only=True, tag="step_skipped"):
    """A step is not carried out, because of the failed step `because`, or of a person (empty)."""

    because: str


class TaskPaused(EventBase, frozen=True, kw_only=True, tag="task_paused"):
    """The task paused; the stream closes, and the same run continues after `resume`."""


class TaskComplete(EventBase, frozen=True, kw_only=True, tag="task_complete"):
    """The task's run ended with this status of the task. `result` is its final result, if there is one."""

    status: str
    result: str | None = None
