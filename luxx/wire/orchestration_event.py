"""Events of runs with several turns, and what people do to such a run.

Of rooms: rounds, messages of seats and people, who has the floor. Of tasks: the plan, the steps, the result.
"""

from enum import StrEnum

import msgspec
from msgspec import UNSET, UnsetType

from luxx.wire.message import Quotation
from luxx.wire.turn import EventBase


class RoomStarted(EventBase, frozen=True, kw_only=True, tag="room_started"):
    """A room's run began."""

    room_id: str
    task: str


class RoundStart(EventBase, frozen=True, kw_only=True, tag="round_start"):
    """A round began. A round has as many turns as there are active seats."""

    round: int
    max_rounds: int


class RoundEnd(EventBase, frozen=True, kw_only=True, tag="round_end"):
    """All turns of the round have ended."""

    round: int


class MessageStart(EventBase, frozen=True, kw_only=True, tag="message_start"):
    """A seat has the floor and begins its message `msg_id`, whose text follows as `message_chunk`."""

    seat_id: int
    sender_name: str
    sender_color: str
    round_number: int


class MessageEnd(EventBase, frozen=True, kw_only=True, tag="message_end"):
    """The seat's turn ended. `content` is the whole text; `status` and the others are as those of the stored
    message."""

    content: str
    token_count: int
    status: str
    finish: str | None = None
    provider_id: int | None = None
    provider_name: str | None = None
    model: str | None = None


class RoomMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a room as its event shows it; `seat_id` is null for a person's. `reply_to`, `quoted`: the
    message that a person's message answers; null where that was deleted."""

    id: str
    room_id: str
    seat_id: int | None
    role: str
    content: str
    token_count: int
    status: str
    finish: str | None = None
    provider_id: int | None = None
    provider_name: str | None = None
    model: str | None = None
    sender_name: str
    sender_color: str | None
    round_number: int | None
    reply_to: str | UnsetType = UNSET
    quoted: Quotation | UnsetType | None = UNSET


class MessageStored(EventBase, frozen=True, kw_only=True, tag="message"):
    """A message of a seat or a person is stored; those who speak next read it."""

    message: RoomMessage


class Selecting(EventBase, frozen=True, kw_only=True, tag="selecting"):
    """A model chooses which of these seats speaks next, in the turn `step_id`; `fallback` speaks if it names
    none of them."""

    seat_ids: list[int]
    fallback: int


class FloorGiven(EventBase, frozen=True, kw_only=True, tag="floor_given"):
    """It was chosen who speaks next. `by` is `selector` (a model), `fallback` (the model named no seat that
    can speak) or `person`, named `user`."""

    seat_id: int
    by: str
    user: str | UnsetType = UNSET


class SteerAction(StrEnum):
    PAUSE = "pause"
    SKIP = "skip"
    FINISH = "finish"
    APPROVE = "approve"


class Steered(EventBase, frozen=True, kw_only=True, tag="steered"):
    """A person, named `user`, pauses the run, ends it, cuts or leaves out the turns `turns`, or approves the
    steps `turns` of a task (none named: the task)."""

    action: SteerAction
    user: str
    turns: tuple[str, ...] = ()


class AgentError(EventBase, frozen=True, kw_only=True, tag="agent_error"):
    """A seat's turn failed and is over; its text so far is kept. `code` is the kind of the error."""

    seat_id: int
    sender_name: str
    message: str
    code: str


class RoomPaused(EventBase, frozen=True, kw_only=True, tag="room_paused"):
    """The room paused; the stream closes, and the same run continues after `resume`."""

    round: int


class RoomCompleted(EventBase, frozen=True, kw_only=True, tag="room_completed"):
    """The room's run ended. `stop_reason` is the key of the stop that fired, or the run's stop reason;
    `phrase` the one that was said, where that ended it."""

    stop_reason: str
    rounds: int
    phrase: str | None = None


class Planning(EventBase, frozen=True, kw_only=True, tag="planning"):
    """A model draws a plan, in the turn `step_id`; `attempt` counts from 1. `task_id` is null for a plan that
    is only proposed, and in a chat."""

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


class Complexity(StrEnum):
    """How much work a plan is: up to two steps, three to five, or more."""

    SIMPLE = "simple"
    MODERATE = "moderate"
    COMPLEX = "complex"


class ThinkingLevel(StrEnum):
    """What a thinking step of a planned answer is about: the whole of the work, or the step at hand."""

    WORK = "work"
    TASK = "task"


class PlanCreated(EventBase, frozen=True, kw_only=True, tag="plan_created"):
    """The plan is valid. `task_id` is null for a plan that is only proposed, and in a chat, where the plan
    has a `complexity`."""

    task_id: str | None
    complexity: Complexity | UnsetType = UNSET
    steps: list[PlannedStepInfo]
    estimate: PlanEstimate | UnsetType = UNSET


class StepStart(EventBase, frozen=True, kw_only=True, tag="step_start"):
    """A step of a task or of a plan in a chat, or the final result of a task, is carried out. `attempt`
    counts from 1."""

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


class EpisodeStart(EventBase, frozen=True, kw_only=True, tag="episode_start"):
    """A model reads the messages of an episode, for what is worth remembering. `attempt` counts from 1."""

    episode_id: str
    messages: int
    attempt: int = 1


class EpisodeSynced(EventBase, frozen=True, kw_only=True, tag="episode_synced"):
    """The work on an episode ended. `facts` and `entities` are how many it says; `reason` is why it was
    `skipped` or `failed`."""

    episode_id: str
    facts: int = 0
    entities: int = 0
    status: str = "synced"
    reason: str | None = None


class FactsRetired(EventBase, frozen=True, kw_only=True, tag="facts_retired"):
    """Facts that are no longer so, because an episode says something else; each can be restored."""

    episode_id: str
    facts: list[str]


class EntitiesMerged(EventBase, frozen=True, kw_only=True, tag="entities_merged"):
    """An entity was merged into another, because an episode says that both are the same; it can be undone."""

    episode_id: str
    entity_id: str
    into: str


class CommunitiesUpdated(EventBase, frozen=True, kw_only=True, tag="communities_updated"):
    """The groups of entities that facts connect closely were made anew."""

    communities: int


class MemoryComplete(EventBase, frozen=True, kw_only=True, tag="memory_complete"):
    """The run ended; `episodes`, `facts` and `entities` are how many it has brought."""

    status: str
    episodes: int = 0
    facts: int = 0
    entities: int = 0


class PatternComplete(EventBase, frozen=True, kw_only=True, tag="pattern_complete"):
    """The run that makes a pattern ended. `name`: of the pattern, if it is one."""

    status: str
    name: str | None = None


class TitleComplete(EventBase, frozen=True, kw_only=True, tag="title_complete"):
    """The run that names a conversation ended. `title`: what the model wrote, if it can be used."""

    status: str
    title: str | None = None


class FollowUpsComplete(EventBase, frozen=True, kw_only=True, tag="follow_ups_complete"):
    """The run that proposes next messages ended. `follow_ups`: what the model wrote, if it can be used."""

    status: str
    follow_ups: list[str] = []


class DocumentParsed(EventBase, frozen=True, kw_only=True, tag="document_parsed"):
    """The work on a document of a knowledge base ended: it has so many pages or slides, and chunks that a
    search finds. `status` is `synced`, or `failed` for the `reason`."""

    document_id: str
    pages: int = 0
    chunks: int = 0
    status: str = "synced"
    reason: str | None = None


class Embedded(EventBase, frozen=True, kw_only=True, tag="embedded"):
    """So many of the passages of the base are found by meaning now."""

    done: int
    total: int


class IndexComplete(EventBase, frozen=True, kw_only=True, tag="index_complete"):
    """The run ended; `documents` are how many it has indexed, with so many `chunks` in all, and `failed`
    those that could not be read."""

    status: str
    documents: int = 0
    chunks: int = 0
    failed: int = 0
