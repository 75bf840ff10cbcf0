"""Events: the numbered entries of a run's log. Each is a tagged Struct; clients get its JSON.

`run_id` and `timestamp` are set when the event is appended. Deltas are not events: they are frames of the
live stream (`runs/log/channel.py`).
"""

from enum import StrEnum
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from luxx.wire.artifacts import ArtifactUpdated
from luxx.wire.check import Verdict
from luxx.wire.memory import RecalledFact
from luxx.wire.message import ContextRecord
from luxx.wire.orchestration_event import (
    AgentError,
    CommunitiesUpdated,
    DocumentParsed,
    Embedded,
    EntitiesMerged,
    EpisodeStart,
    EpisodeSynced,
    FactsRetired,
    FloorGiven,
    FollowUpsComplete,
    IndexComplete,
    MemoryComplete,
    MessageEnd,
    MessageStart,
    MessageStored,
    PatternComplete,
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
    TitleComplete,
)
from luxx.wire.run import AnsweredBy, AnswerValue, Option, QuestionKind, Run
from luxx.wire.turn import EventBase, Step, Usage
from luxx.wire.turn_event import (
    ContextCompressed,
    DoomLoopDetected,
    DoomLoopIntervened,
    MembersEnded,
    MemoryRecalled,
    PatternUsed,
    PlanUpdated,
    Retrying,
    SkillActivated,
    SubagentAssigned,
    Tainted,
    UiCommand,
    Warning,
)


class RunSnapshot(EventBase, frozen=True, kw_only=True, tag="run"):
    """The first frame of every stream; never in the log."""

    run: Run


class ProcessStep(EventBase, frozen=True, kw_only=True, tag="process_step"):
    """A step began, grew or was closed."""

    step: Step


class CallPurpose(StrEnum):
    """What a model call is for: an `answer` of a chat, of a seat of a room or of a step of a task; the
    `choice` of the next speaker of a room; the `plan` of a task or of a chat; a `summary` of what no longer
    fits a prompt; a `check` of an answer or of a result; the `extraction` of what is worth remembering; the
    `title` of a conversation; the `follow_ups` that are proposed after an answer."""

    ANSWER = "answer"
    CHOICE = "choice"
    PLAN = "plan"
    SUMMARY = "summary"
    CHECK = "check"
    EXTRACTION = "extraction"
    TITLE = "title"
    FOLLOW_UPS = "follow_ups"


class CostUpdate(EventBase, frozen=True, kw_only=True, tag="cost_update"):
    """One completion ended. `usage` and `cost` are the totals of the run so far. `purpose`: what the
    completion was for.

    `reasoning_details`, of calls of `/v1` only: the model's reasoning as its server wants it back.
    """

    usage: Usage
    cost: float | None = None
    purpose: CallPurpose = CallPurpose.ANSWER
    reasoning_details: list[dict[str, Any]] | UnsetType = UNSET


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
    server: str | UnsetType = UNSET
    authorization_url: str | UnsetType = UNSET
    elicitation_id: str | UnsetType = UNSET
    requested_schema: dict[str, Any] | UnsetType = UNSET
    url: str | UnsetType = UNSET


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
    """A chat run ended; its message is stored. Or the run that writes a page of an artifact anew ended, which
    has no message: `message_id` is empty. Provider and model are those of the message, and so is
    `finish`: why the last model call ended. `stop_reason` is that of the run; older logs have none.
    `open_todos`: how many items of the to-do list are not completed.
    `memories_used`: the remembered facts that the prompt had."""

    message_id: str
    token_count: int
    usage: Usage
    status: DoneStatus
    stop_reason: str | UnsetType = UNSET
    open_todos: int = 0
    memories_used: list[str] = []
    finish: str | None = None
    provider_id: int | None = None
    provider_name: str | None = None
    model: str | None = None


Event = (
    ProcessStep
    | CostUpdate
    | Retrying
    | ContextCompressed
    | MemoryRecalled
    | DoomLoopDetected
    | DoomLoopIntervened
    | Warning
    | Verdict
    | QuestionAsked
    | QuestionAnswered
    | Tainted
    | MembersEnded
    | PatternUsed
    | SkillActivated
    | SubagentAssigned
    | PlanUpdated
    | UiCommand
    | ArtifactUpdated
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
    | EpisodeStart
    | EpisodeSynced
    | EntitiesMerged
    | FactsRetired
    | CommunitiesUpdated
    | MemoryComplete
    | PatternComplete
    | TitleComplete
    | FollowUpsComplete
    | DocumentParsed
    | Embedded
    | IndexComplete
)
"""Every event that can be in a log."""


ENDING_EVENT_TYPES = frozenset(
    {
        "done",
        "room_completed",
        "task_complete",
        "memory_complete",
        "index_complete",
        "pattern_complete",
        "title_complete",
        "follow_ups_complete",
    }
)
"""Types that end a log."""

PAUSE_EVENT_TYPES = frozenset({"room_paused", "task_paused"})

CLOSING_EVENT_TYPES = ENDING_EVENT_TYPES | PAUSE_EVENT_TYPES
"""Types after which a stream closes."""


class CompletionNote(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a `cost_update` that only the fold needs; clients do not get it.

    `replay` is sent back to the provider in later requests; `finish` is why the completion ended.
    `has_tools`: whether it was offered tools; if not, its calls are refused. `estimate`: Luxx's own of the
    tokens of the prompt, 0 if the provider counted none, by this `estimator`. `is_extra`: it was a call
    beside the completions of the turn, which only costs.
    """

    finish: str
    usage: Usage
    cost: float | None = None
    replay: dict[str, object] = {}
    has_tools: bool = True
    estimate: int = 0
    estimator: int = 0
    is_extra: bool = False


class CutNote(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a `context_compressed` that only the fold needs: how prompts are made from then on, without
    the text of the summary, which the event has."""

    record: ContextRecord


class RecallNote(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a `memory_recalled` that only the fold needs: the facts as they were."""

    facts: tuple[RecalledFact, ...]


class TurnNote(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the event that begins a turn which only the fold needs: the turn's request, as JSON, and
    `data` of its feature."""

    request: msgspec.Raw
    data: msgspec.Raw | UnsetType = UNSET


Note = CompletionNote | TurnNote | CutNote | RecallNote
"""What only the fold needs of an event."""

_completion_note = msgspec.json.Decoder(CompletionNote)
_cut_note = msgspec.json.Decoder(CutNote)
_recall_note = msgspec.json.Decoder(RecallNote)
_turn_note = msgspec.json.Decoder(TurnNote)


def decode_note(event: Event, stored: bytes) -> Note:
    """The stored note of an event."""
    match event:
        case CostUpdate():
            return _completion_note.decode(stored)
        case ContextCompressed():
            return _cut_note.decode(stored)
        case MemoryRecalled():
            return _recall_note.decode(stored)
        case _:
            return _turn_note.decode(stored)


class LoggedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event as read from the log."""

    seq: int
    event: Event
    note: Note | None = None
