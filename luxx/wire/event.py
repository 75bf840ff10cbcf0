"""Events: the numbered facts of a run. Each is a tagged Struct; its JSON is what clients get.

`run_id` and `timestamp` are stamped when the event is appended. Deltas are not events: they are
frames of the live tail (`runs/frames.py`).
"""

from enum import StrEnum

import msgspec
from msgspec import UNSET, UnsetType

from luxx.wire.composition import MemberEnded
from luxx.wire.delta import Usage
from luxx.wire.question import AnsweredBy, AnswerValue, Option, QuestionKind
from luxx.wire.run import Run, RunStatus
from luxx.wire.step import Step


class EventBase(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """`seq` is there where a log is read as JSON; a frame of a stream has it as its `id`."""

    seq: int | UnsetType = UNSET
    run_id: str = ""
    timestamp: str = ""


class RunState(EventBase, frozen=True, kw_only=True, tag="run"):
    """The first frame of every stream; never in the log."""

    run: Run


class ProcessStep(EventBase, frozen=True, kw_only=True, tag="process_step"):
    step: Step
    msg_id: str | UnsetType = UNSET
    step_id: str | UnsetType = UNSET


class CostUpdate(EventBase, frozen=True, kw_only=True, tag="cost_update"):
    """One completion ended. `usage` and `cost` are the run's sums so far."""

    usage: Usage
    cost: float | None = None


class Retrying(EventBase, frozen=True, kw_only=True, tag="retrying"):
    attempt: int
    delay_ms: int
    reason: str


class Warning(EventBase, frozen=True, kw_only=True, tag="warning"):
    message: str


class QuestionAsked(EventBase, frozen=True, kw_only=True, tag="question_asked"):
    """The run waits for a person. `call_id` is the tool call that asks; the rest as in `Question`."""

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
    """A question has its answer. `arguments` are those that a person put in place of the model's; `approves`
    is the hash of the run, the tool and the arguments that are allowed to run."""

    question_id: str
    answer: AnswerValue
    answered_by: AnsweredBy
    note: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    approves: str | UnsetType = UNSET


class Tainted(EventBase, frozen=True, kw_only=True, tag="tainted"):
    """From here on the run holds content that strangers wrote, brought by the tool `by`: what could do harm
    with it asks first, unless a rule allows it."""

    by: str


class MembersEnded(EventBase, frozen=True, kw_only=True, tag="members_ended"):
    """The composition of the call `call_id` waits for a person; these calls it has made before, and does not
    make again when it goes on."""

    call_id: str
    members: list[MemberEnded]


class SkillActivated(EventBase, frozen=True, kw_only=True, tag="skill_activated"):
    """The skill `name` is active for the rest of the run. `allowed_tools`, where it names any, are all that
    may be used from here on, beside what each other active skill allows."""

    name: str
    description: str
    allowed_tools: list[str] | None = None


class SubagentAssigned(EventBase, frozen=True, kw_only=True, tag="subagent_assigned"):
    """The call `call_id` has a run of its own, `subagent_run_id`: it was begun, waits for a person, or has
    ended. `task` may be cut; `tool_calls`, at its end, is how many it made."""

    subagent_run_id: str
    call_id: str
    task: str
    status: RunStatus
    tool_calls: int = 0


class ErrorEvent(EventBase, frozen=True, kw_only=True, tag="error"):
    """`code` is the error's class, as `detail.kind` of an answer."""

    message: str
    code: str
    retryable: bool = False


class DoneStatus(StrEnum):
    COMPLETED = "completed"
    STOPPED = "stopped"
    MAX_ITERATIONS_REACHED = "max_iterations_reached"
    FAILED = "failed"


class Done(EventBase, frozen=True, kw_only=True, tag="done"):
    """A chat ended; the message is stored."""

    message_id: str
    token_count: int
    usage: Usage
    status: DoneStatus


Event = (
    ProcessStep
    | CostUpdate
    | Retrying
    | Warning
    | QuestionAsked
    | QuestionAnswered
    | Tainted
    | MembersEnded
    | SkillActivated
    | SubagentAssigned
    | ErrorEvent
    | Done
)
"""Every event that can be in a log."""


CLOSING_EVENT_TYPES = frozenset({"done", "room_completed", "room_paused", "task_complete"})
"""Types after which a stream closes."""


class CompletionNote(msgspec.Struct, frozen=True, kw_only=True):
    """What a `cost_update` keeps for the fold and not for clients.

    `replay` goes back to the adapter on later turns; `finish` is why the completion ended. `has_tools`:
    whether it was offered any; where it was not, calls that it makes all the same are refused.
    """

    finish: str
    usage: Usage
    cost: float | None = None
    replay: dict[str, object] = {}
    has_tools: bool = True


class LoggedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event as read from the log."""

    seq: int
    event: Event
    note: CompletionNote | None = None
