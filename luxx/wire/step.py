"""A step: one ordered item of an assistant message, alike in database, events and API."""

from enum import StrEnum

import msgspec
from msgspec import UNSET, UnsetType

from luxx.wire.image import StepImage


class StepType(StrEnum):
    THINKING = "thinking"
    TEXT = "text"
    TOOL_CALL = "tool_call"
    TOOL_RESULT = "tool_result"


class StepStatus(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    ERROR = "error"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"


class CallOutcome(StrEnum):
    """`denied`: by level or rule; `rejected`: by a person; `corrected`: made as a person changed it."""

    DENIED = "denied"
    REJECTED = "rejected"
    CORRECTED = "corrected"


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """`content` of a tool_result is the result as JSON text `{"success", "data", "error"}`.

    `arguments` is the JSON text the model wrote, `id_ref` the call's id on both its steps. Of a tool_result,
    `outcome` says what people or rules made of the call, `note` is what the model is told of that, and
    `is_untrusted` that strangers wrote what the result says, and `images` are to be shown with it; of a
    composition's, `calls` is how many calls it made.
    """

    id: str
    index: int
    type: StepType
    content: str = ""
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    id_ref: str | UnsetType = UNSET
    success: bool | UnsetType = UNSET
    status: StepStatus = StepStatus.DONE
    duration_ms: int | UnsetType = UNSET
    level: str | UnsetType = UNSET
    outcome: CallOutcome | UnsetType = UNSET
    note: str | UnsetType = UNSET
    is_untrusted: bool | UnsetType = UNSET
    images: list[StepImage] | UnsetType = UNSET
    calls: int | UnsetType = UNSET


def step_id(index: int) -> str:
    """The id of the step at `index`."""
    return f"step-{index}"


def steps_text(steps: list[Step]) -> str:
    """What a reader sees as the message: all text steps, in order of index.

    Text that a crash cut is left out: its completion was made again and says it anew.
    """
    return "".join(
        step.content for step in steps if step.type == StepType.TEXT and step.status != StepStatus.INTERRUPTED
    )
