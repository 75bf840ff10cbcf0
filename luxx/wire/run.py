"""A run as the API returns it, its states, and the delegation to a subagent's run."""

from datetime import datetime
from enum import StrEnum

import msgspec

from luxx.wire.tool import Narrowing
from luxx.wire.turn import Usage


class RunKind(StrEnum):
    CHAT = "chat"
    ROOM = "room"
    TASK = "task"


class RunStatus(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDED = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED})
"""Final statuses."""

IN_PROGRESS = frozenset({RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.WAITING})
"""The statuses of a run with which its room or task runs; the graph of a task does not change meanwhile."""


class RunPhase(StrEnum):
    """The phase of a running run: `thinking` during a model call, `acting` while all its tools run,
    `observing` once one has finished and others still run, `retrying` before a repeated model call."""

    THINKING = "thinking"
    ACTING = "acting"
    OBSERVING = "observing"
    WAITING = "waiting"
    RETRYING = "retrying"


class MemberRight(StrEnum):
    """A member's right to a room or task of another user. Each includes the ones before it."""

    WATCH = "watch"
    SPEAK = "speak"
    STEER = "steer"


class StopReason(StrEnum):
    """Why a run ended. `length`, `content_filter`, `refusal` and `context_full` say why its last completion
    ended before the answer was complete, `steps_failed` that a task carried out what it could."""

    FINISHED = "finished"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"
    REFUSAL = "refusal"
    CONTEXT_FULL = "context_full"
    CANCELLED = "cancelled"
    MAX_ITERATIONS = "max_iterations"
    TOKENS = "tokens"
    COST = "cost"
    TIME = "time"
    STEPS_FAILED = "steps_failed"
    ERROR = "error"


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run. `last_seq` is the newest event in the log; `cost` in US dollars is null without a price.

    Provider and model are those that answer; null in a room or task, whose messages and steps name theirs.
    """

    id: str
    kind: RunKind
    subject_id: str
    status: RunStatus
    phase: RunPhase | None = None
    parent_run_id: str | None = None
    message_id: str | None = None
    stop_reason: str | None = None
    error: str | None = None
    provider_id: int | None = None
    provider_name: str | None = None
    model: str | None = None
    usage: Usage = Usage()
    cost: float | None = None
    last_seq: int = 0
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None


class TitledRun(Run, frozen=True, kw_only=True):
    """A run with the title of its chat, room or task; null if the caller cannot see one."""

    title: str | None = None


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a `delegate` call; None means the value of the agent or of the delegating run.

    `agent`: the name of the agent whose template the subagent gets.
    """

    task: str
    agent: str | None = None
    system_prompt: str | None = None
    tools: tuple[str, ...] | None = None
    model: str | None = None


class InConversation(msgspec.Struct, frozen=True, kw_only=True, tag="conversation"):
    """The origin of a run that answers the user's message `message_id` of a conversation."""

    message_id: str


class Invocation(msgspec.Struct, frozen=True, kw_only=True, tag="invocation"):
    """The origin of a run that answers the stored message `message_id` of nobody's conversation: an agent was
    called, whose id is the run's subject."""

    message_id: str


class OrchestratedTurn(msgspec.Struct, frozen=True, kw_only=True, tag="orchestrated"):
    """The origin of a turn of a room or of a task, whose orchestration gives the messages."""


class RoomCopyTurn(msgspec.Struct, frozen=True, kw_only=True, tag="room_copy"):
    """The origin of a turn of a call that got a copy of a room: what it writes stays in the log."""


class Delegated(msgspec.Struct, frozen=True, kw_only=True, tag="delegated"):
    """The origin of a subagent's run and what it inherits. `root_run_id`: the first run of the chain, whose
    limits all its subagents share. `most_calls`: its limit of tool calls; None: no limit. `agent_ids`: the
    agents of the runs above, whose rules restrict this run too. `message_id`: the user's message that the
    first run answers, if it is one of a conversation or an invocation. `is_of_given`: the first run got its
    messages from its client and stores nothing, so this one stores no files."""

    message_id: str | None = None
    is_of_given: bool = False
    call_id: str
    task: str
    depth: int
    root_run_id: str
    most_calls: int | None = None
    tainted_by: str | None = None
    narrowed: tuple[Narrowing, ...] = ()
    agent_ids: tuple[int, ...] = ()


class SubagentEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a subagent: its answer, or why there is none. `tool_calls` includes those of its own
    subagents; `is_tainted`: the run has untrusted content."""

    run_id: str
    status: str
    stop_reason: str | None
    answer: str
    error: str | None
    tool_calls: int
    is_tainted: bool
