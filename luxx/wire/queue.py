"""The queue of a conversation: what a person writes while an answer is made."""

from datetime import datetime
from enum import StrEnum

import msgspec


class WhenBusy(StrEnum):
    """What becomes of a message while an answer is made: `queue` sends it after the answer, `steer` lets the
    next model call of the answer see it."""

    QUEUE = "queue"
    STEER = "steer"


class QueuedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that was accepted while an answer is made. `position` counts from 1; `run_id` is the run that
    makes the answer."""

    queue_id: str
    position: int
    mode: WhenBusy
    run_id: str


class QueueItem(msgspec.Struct, frozen=True, kw_only=True):
    """A message that waits. `content` is its text, `attachments` are the names of its files."""

    queue_id: str
    mode: WhenBusy
    content: str
    attachments: list[str]
    created_at: datetime


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """The messages that wait, in order. `paused`: they do not start by themselves, because the run before was
    cancelled or failed, or because the first one could not be sent; then `problem` says why."""

    items: list[QueueItem]
    paused: bool
    problem: str | None
