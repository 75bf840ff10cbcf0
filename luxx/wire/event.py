"""Events: the numbered entries of a run's log. Each is a tagged Struct; clients get its JSON.

`run_id` and `timestamp` are set when the event is appended. Deltas are not events: they are frames of the
live stream (`runs/log/channel.py`).
"""

from enum import StrEnum
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from luxx.wire.orchestration_event import (
    AgentError,
    FloorGiven,
    MessageEnd,
    MessageStart,
    MessageStored,
    PlanCreated,
    Planning,
    RoomCompleted,
    RoomPaused,
    RoomStarted,
    RoundEnd,
    RoundStart,
    Selecting,
    Steered,
    StepComplete,
    StepSkipped,
    StepStart,
    TaskComplete,
    TaskPaused,
)
from luxx.wire.run import AnsweredBy, AnswerValue, Option, QuestionKind, Run, RunStatus
from luxx.wire.tool import MemberEnded
from luxx.wire.turn import EventBase, Step, Usage


class RunSnapshot(EventBase, frozen=True, kw_only=True, tag="run"):
    """The first frame of every stream; never in the log."""

    run: Run


class ProcessStep(EventBase, frozen=True, kw_only=True, tag="process_step"):
    """A step began, grew or was closed."""

    step: Step


class CallPurpose(StrEnum):
    """What a model call is for: an `answer` of a chat, of a seat of a room or of a step of a task; the
    `choice` of the next speaker of a room; the `plan` of a task."""

    ANSWER = "answer"
    CHOICE = "choice"
    PLAN = "plan"


class CostUpdate(EventBase, frozen=True, kw_only=True, tag="cost_update"):
    """One completion ended. `usage` and `cost` are the totals of the run so far. `purpose`: what the
    completion was for.

    `reasoning_details`, of calls of `/v1` only: the model's reasoning as its server wants it back.
    """

    usage: Usage
    cost: float | None = None
    purpose: CallPurpose = CallPurpose.ANSWER
    reasoning_details: list[dict[str, Any]] | UnsetType = UNSET


class Retrying(EventBase, frozen=True, kw_only=True, tag="retrying"):
    """A model call failed and is made again after `delay_ms`. `reason` is a sentence.

    `fallback`: the number of the agent's fallback that makes it, from 1, once the provider has failed for
    good.
    """

    attempt: int
    delay_ms: int
    reason: str
    fallback: int | UnsetType = UNSET


class ContextCompressed(EventBase, frozen=True, kw_only=True, tag="context_compressed"):
    """The model is sent less from here on, because all of it does not fit its context window; nothing stored
    changes.

    Left out, from the oldest on, are `messages` messages, which are `turns` turns; of the others, the first
    `results` tool results are shortened. The tokens are those of the prompt, estimated. `window` is the
    model's, None if it is unknown. `overflow`: the provider has refused the prompt before.
    """

    messages: int
    turns: int
    results: int
    tokens_before: int
    tokens_after: int
    window: int | None
    overflow: bool = False


class WarningCode(StrEnum):
    """What a warning says, where a program needs to know it. `stops_not_sent` is in older logs only: now
    every stop is kept."""

    SCHEMA_NOT_MET = "schema_not_met"
    STOPS_NOT_SENT = "stops_not_sent"


class Warning(EventBase, frozen=True, kw_only=True, tag="warning"):
    """Something that the user should know; the run continues. `code` says it to programs; most have none."""

    message: str
    code: WarningCode | UnsetType = UNSET


class QuestionAsked(EventBase, frozen=True, kw_only=True, tag="question_asked"):
    """The run waits for a person. `call_id` is the tool call that asks; other fields as in `Question`."""

    question_id: str
    call_id: str
    kind: QuestionKind
    prompt: str
    options: list[Option]
    multiple: bool
    required: bool
    timeout_seconds: int | None
    tool: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    risk: str | UnsetType = UNSET
    because: str | UnsetType = UNSET
    usual: str | UnsetType = UNSET
    member: str | UnsetType = UNSET
    question_type: str | UnsetType = UNSET
    decision_type: str | UnsetType = UNSET
    context: str | UnsetType = UNSET


class QuestionAnswered(EventBase, frozen=True, kw_only=True, tag="question_answered"):
    """A question was answered. `arguments`: a person's replacement for the model's arguments. `approves`: the
    hash of the run, tool and arguments that may run. `user`: who answered, if it is not the run's user."""

    question_id: str
    answer: AnswerValue
    answered_by: AnsweredBy
    note: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    approves: str | UnsetType = UNSET
    user: str | UnsetType = UNSET


class Tainted(EventBase, frozen=True, kw_only=True, tag="tainted"):
    """The tool `by` returned untrusted content, or the person `@name`, who is not the run's user, wrote what
    the turn reads. From now on tools that could do harm with it ask first, unless a rule allows them."""

    by: str


PERSON = "@"
"""Begins the `by` of a taint by words of a person; no tool has such a name."""


class MembersEnded(EventBase, frozen=True, kw_only=True, tag="members_ended"):
    """The composition of the call `call_id` waits for a person. These members have finished; it does not
    repeat them when it continues."""

    call_id: str
    members: list[MemberEnded]


class SkillActivated(EventBase, frozen=True, kw_only=True, tag="skill_activated"):
    """The skill `name` is active for the rest of the run. With `allowed_tools` the run may only use these
    tools; each active skill must allow a call."""

    name: str
    description: str
    allowed_tools: list[str] | None = None


class SubagentAssigned(EventBase, frozen=True, kw_only=True, tag="subagent_assigned"):
    """The subagent of the call `call_id` in the run `subagent_run_id` started, waits for a person, or ended.
    `task` may be shortened; `tool_calls` is set at its end."""

    subagent_run_id: str
    call_id: str
    task: str
    status: RunStatus
    tool_calls: int = 0


class ErrorEvent(EventBase, frozen=True, kw_only=True, tag="error"):
    """An error that ended the run. `code` is its kind, as `detail.kind` of an error response."""

    message: str
    code: str
    retryable: bool = False


class DoneStatus(StrEnum):
    COMPLETED = "completed"
    STOPPED = "stopped"
    MAX_ITERATIONS_REACHED = "max_iterations_reached"
    FAILED = "failed"


class Done(EventBase, frozen=True, kw_only=True, tag="done"):
    """A chat run ended; its message is stored. Provider and model are those of the message, and so is
    `finish`: why the last model call ended."""

    message_id: str
    token_count: int
    usage: Usage
    status: DoneStatus
    finish: str | None = None
    provider_id: int | None = None
    provider_name: str | None = None
    model: str | None = None


Event = (
    ProcessStep
    | CostUpdate
    | Retrying
    | ContextCompressed
    | Warning
    | QuestionAsked
    | QuestionAnswered
    | Tainted
    | MembersEnded
    | SkillActivated
    | SubagentAssigned
    | ErrorEvent
    | Done
    | RoomStarted
    | RoundStart
    | RoundEnd
    | MessageStart
    | MessageEnd
    | MessageStored
    | Selecting
    | FloorGiven
    | Steered
    | AgentError
    | RoomPaused
    | RoomCompleted
    | Planning
    | PlanCreated
    | StepStart
    | StepComplete
    | StepSkipped
    | TaskPaused
    | TaskComplete
)
"""Every event that can be in a log."""


ENDING_EVENT_TYPES = frozenset({"done", "room_completed", "task_complete"})
"""Types that end a log."""

PAUSE_EVENT_TYPES = frozenset({"room_paused", "task_paused"})

CLOSING_EVENT_TYPES = ENDING_EVENT_TYPES | PAUSE_EVENT_TYPES
"""Types after which a stream closes."""


class CompletionNote(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a `cost_update` that only the fold needs; clients do not get it.

    `replay` is sent back to the provider in later requests; `finish` is why the completion ended.
    `has_tools`: whether it was offered tools; if not, its calls are refused. `estimate`: Luxx's own of the
    tokens of the prompt, 0 if the provider counted none.
    """

    finish: str
    usage: Usage
    cost: float | None = None
    replay: dict[str, object] = {}
    has_tools: bool = True
    estimate: int = 0


class TurnNote(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the event that begins a turn which only the fold needs: the turn's request, as JSON, and
    `data` of its feature."""

    request: msgspec.Raw
    data: msgspec.Raw | UnsetType = UNSET


class LoggedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event as read from the log."""

    seq: int
    event: Event
    note: CompletionNote | TurnNote | None = None
