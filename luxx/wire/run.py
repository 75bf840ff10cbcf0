"""A run as the API returns it, and its states."""

from datetime import datetime
from enum import StrEnum

import msgspec

from luxx.wire.delta import Usage


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


class RunPhase(StrEnum):
    """The phase of a running run: `thinking` during a model call, `acting` while all its tools run,
    `observing` once one has finished and others still run, `retrying` before a repeated model call."""

    THINKING = "thinking"
    ACTING = "acting"
    OBSERVING = "observing"
    WAITING = "waiting"
    RETRYING = "retrying"


class StopReason(StrEnum):
    FINISHED = "finished"
    CANCELLED = "cancelled"
    MAX_ITERATIONS = "max_iterations"
    TOKENS = "tokens"
    COST = "cost"
    TIME = "time"
    ERROR = "error"


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run. `last_seq` is the newest event in the log; `cost` in US dollars is null without a price."""

    id: str
    kind: RunKind
    subject_id: str
    status: RunStatus
    phase: RunPhase | None = None
    parent_run_id: str | None = None
    message_id: str | None = None
    stop_reason: str | None = None
    error: str | None = None
    usage: Usage = Usage()
    cost: float | None = None
    last_seq: int = 0
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
