"""What became of a call: how its caller gets it, and the record of the last thousand. Memory only."""

from collections import deque
from enum import StrEnum

import msgspec
from msgspec import UNSET

from luxx.domain.audit.entries import (
    MAX_TARGET_ID,
    Action,
    Actor,
    AuditEntry,
    Detail,
    record_in_own_transaction,
)
from luxx.domain.audit.refusals import Refusals
from luxx.infra.network.egress import OTHERS, EgressCaller, EgressSession
from luxx.infra.observe import Metrics
from luxx.infra.store.engine import Store
from luxx.tools.core import ToolContext, ToolRegistry
from luxx.tools.permissions.judge import PermissionVerdict
from luxx.wire.step import StepImage
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
        records = [item for item in reversed(self._records) if user_id is None or item.user_id == user_id]
        return records[: max(limit, 0)]


MAX_ENTRIES = 10
"""Of one call and each outcome; one more is for what is past them, with the names of all."""


class EgressRecord:
    """One per process."""

    def __init__(self, store: Store, refusals: Refusals) -> None:
        self._store = store
        self._refusals = refusals

    async def record(self, egress_session: EgressSession) -> None:
        """Writes what came of it. Nothing here fails: what was done is done."""
        egress_client = egress_session.caller
        actor = Actor(
            user_id=egress_client.user_id,
            tenant_id=egress_client.tenant_id,
            username=egress_client.username or None,
        )
        reached = [(one.host, "", one.connections) for one in egress_session.reached]
        refused = [(one.host, one.kind, one.times) for one in egress_session.refused]
        entries = [
            AuditEntry(action=Action.EGRESS, actor=actor, target_type="host", target_id=target, detail=detail)
            for target, _, detail in _audit_rows(egress_client, reached)
        ]
        await record_in_own_transaction(self._store, entries, failure="egress_not_recorded")
        for target, kind, detail in _audit_rows(egress_client, refused):
            await self._refusals.note(Action.EGRESS, actor, kind, detail=detail, target=("host", target))


def _audit_rows(
    egress_client: EgressCaller, hosts: list[tuple[str, str, int]]
) -> list[tuple[str, str, Detail]]:
    """The target, kind and detail of each entry about hosts, which are given with their kinds and counts."""
    rows = [
        (host, kind, _detail(egress_client, count, [host] if len(host) > MAX_TARGET_ID else None))
        for host, kind, count in hosts[:MAX_ENTRIES]
    ]
    if others := hosts[MAX_ENTRIES:]:
        names = list(dict.fromkeys(host for host, _, _ in others))
        rows.append((OTHERS, OTHERS, _detail(egress_client, sum(count for _, _, count in others), names)))
    return rows


def _detail(egress_client: EgressCaller, count: int, hosts: list[str] | None) -> Detail:
    return Detail(
        name=egress_client.tool,
        count=count,
        call_id=egress_client.call_id[:64].replace("\0", "\ufffd"),
        run_id=egress_client.run_id or UNSET,
        hosts=hosts or UNSET,
    )


_ANSWERED = frozenset({CallStatus.DONE, CallStatus.CACHED})


class CallRecorder:
    """One per process."""

    def __init__(self, registry: ToolRegistry, metrics: Metrics, refusals: Refusals) -> None:
        self._registry = registry
        self._metrics = metrics
        self._refusals = refusals

    def record(self, call: CallRecord) -> None:
        """Counts a call."""
        # A model may ask for a tool of any name; only known ones become labels.
        name = call.name if self._registry.get(call.name) is not None else "unknown"
        self._metrics.tool_called(name, call.duration_ms / 1000, success=call.status in _ANSWERED)

    async def record_refusal(self, context: ToolContext, tool: str, verdict: PermissionVerdict) -> None:
        """Records a call that a run or a composition was not allowed; a request has its own entry."""
        if context.run_id is None and not context.chain_context.is_member:
            return
        actor = Actor(user_id=context.user_id, tenant_id=context.tenant_id, username=context.username)
        target = None if context.run_id is None else ("run", context.run_id)
        detail = Detail(name=tool[:64], permission_level=int(context.user_permission_level))
        await self._refusals.note(
            Action.TOOL_CALL, actor, verdict.decided_by.value, detail=detail, target=target
        )
