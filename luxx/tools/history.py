"""What became of a call: how its caller gets it, and the record of the last thousand. Memory only."""

from collections import deque
from enum import StrEnum

import msgspec

from luxx.tools.core import ToolContext
from luxx.wire.image import StepImage
from luxx.wire.tool import ToolCall, ToolResult

_MAX_RECORDS = 1000


class CallStatus(StrEnum):
    """`denied`: by level or rule; `rejected`: by a person."""

    DONE = "done"
    CACHED = "cached"
    FAILED = "failed"
    TIMEOUT = "timeout"
    INVALID = "invalid"
    DENIED = "denied"
    REJECTED = "rejected"
    UNKNOWN = "unknown"
    CANCELLED = "cancelled"


class Executed(msgspec.Struct, frozen=True, kw_only=True):
    """A call carried out. `full_output` is set where the result was cut.

    `problems`: of an invalid call, what is wrong by JSON path. `note`: what the model is told of a person's
    part in it. `is_corrected`: it was made as that person changed it. `is_untrusted`: strangers wrote what
    it says. `images` are shown with it; `calls` of others it has made.
    """

    call_id: str
    name: str
    result: ToolResult
    duration_ms: int
    status: CallStatus
    full_output: str | None = None
    problems: dict[str, str] = {}
    note: str | None = None
    is_corrected: bool = False
    is_untrusted: bool = False
    images: tuple[StepImage, ...] = ()
    calls: int = 0

    @property
    def cached(self) -> bool:
        return self.status == CallStatus.CACHED


class CallRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Times in ISO 8601 UTC."""

    call_id: str
    name: str
    user_id: int
    run_id: str | None
    started_at: str
    ended_at: str
    duration_ms: int
    status: CallStatus


def record_of(
    call: ToolCall, context: ToolContext, started_at: str, ended_at: str, duration_ms: int, status: CallStatus
) -> CallRecord:
    """The record of a call that ended."""
    return CallRecord(
        call_id=call.call_id,
        name=call.name[:64],
        user_id=context.user_id,
        run_id=context.run_id,
        started_at=started_at,
        ended_at=ended_at,
        duration_ms=duration_ms,
        status=status,
    )


class CallHistory:
    """The last thousand calls."""

    def __init__(self) -> None:
        self._records: deque[CallRecord] = deque(maxlen=_MAX_RECORDS)

    def add(self, record: CallRecord) -> None:
        self._records.append(record)

    def latest(self, user_id: int | None, limit: int) -> list[CallRecord]:
        """The latest first."""
        mine = [item for item in reversed(self._records) if user_id is None or item.user_id == user_id]
        return mine[: max(limit, 0)]
