"""The outcome of executed calls, and their records: in memory, in the metrics and in the audit log; the whole
outputs of calls by hand that were cut."""

from collections.abc import Callable
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec
from msgspec import UNSET
from sqlalchemy import ForeignKey, String, Text, bindparam, delete, func, insert, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from luxx.domain.audit import (
    MAX_TARGET_ID,
    Action,
    Actor,
    AuditEntry,
    Detail,
    Refusals,
    record_in_own_transaction,
)
from luxx.errors import NotFound
from luxx.infra.clock import utc_now
from luxx.infra.network.egress import OTHERS, EgressCaller, EgressSession
from luxx.infra.observe import Metrics
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import Base, UtcDateTime, table_of
from luxx.tools.core import StoredOutput, ToolContext, ToolSet
from luxx.tools.hooks import CallChange
from luxx.tools.permissions.judge import PermissionVerdict
from luxx.wire.tool import ToolCall, ToolResult
from luxx.wire.turn import StepFile


class CallStatus(StrEnum):
    """`denied`: by level, rule or skill; `rejected`: by a user."""

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
    """An executed call. `full_output` is set if the result was cut.

    `problems`: the errors of an invalid call by JSON path. `note`: tells the model what the user decided
    about the call. `is_corrected`: the user edited the arguments. `is_untrusted`: the result has untrusted
    content. `files` are shown with it. `calls`: the number of member calls it made.
    `change` is written with the result.
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
    files: tuple[StepFile, ...] = ()
    calls: int = 0
    change: CallChange | None = None

    @property
    def cached(self) -> bool:
        return self.status == CallStatus.CACHED


class CallRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Times in ISO 8601 UTC. `is_shared`: the tool is not only the caller's, as a composition is."""

    call_id: str
    name: str
    user_id: int
    run_id: str | None
    started_at: str
    ended_at: str
    duration_ms: int
    status: CallStatus
    is_shared: bool = True


def record_of(
    call: ToolCall,
    context: ToolContext,
    tools: ToolSet,
    started_at: str,
    ended_at: str,
    duration_ms: int,
    status: CallStatus,
) -> CallRecord:
    """The record of a call that ended; `tools` exist for its caller."""
    found = tools.lookup(call.name)
    return CallRecord(
        call_id=call.call_id,
        name=call.name[:64],
        user_id=context.caller.user_id,
        run_id=context.caller.run_id,
        started_at=started_at,
        ended_at=ended_at,
        duration_ms=duration_ms,
        status=status,
        is_shared=found is not None and not found[0].is_chain,
    )


MAX_ENTRIES = 10
"""Audit entries per call and outcome. One further entry names all hosts beyond this limit."""


class EgressRecord:
    """Writes the hosts that programs reached, or were refused, to the audit log. One per process."""

    def __init__(self, store: Store, refusals: Refusals) -> None:
        self._store = store
        self._refusals = refusals

    async def record(self, egress_session: EgressSession) -> None:
        """Write the audit entries of one session. Raises nothing: the connections have already happened."""
        caller = egress_session.caller
        actor = Actor(user_id=caller.user_id, tenant_id=caller.tenant_id, username=caller.username or None)
        reached = [(host.host, "", host.connections) for host in egress_session.reached]
        refused = [(refusal.host, refusal.kind, refusal.times) for refusal in egress_session.refused]
        entries = [
            AuditEntry(action=Action.EGRESS, actor=actor, target_type="host", target_id=target, detail=detail)
            for target, _, detail in _audit_rows(caller, reached)
        ]
        await record_in_own_transaction(self._store, entries, failure="egress_not_recorded")
        for target, kind, detail in _audit_rows(caller, refused):
            await self._refusals.record_refusal(
                Action.EGRESS, actor, kind, detail=detail, target=("host", target)
            )


def _audit_rows(caller: EgressCaller, hosts: list[tuple[str, str, int]]) -> list[tuple[str, str, Detail]]:
    """The target, kind and detail of each entry. `hosts`: host, kind and count."""
    rows = [
        (host, kind, _detail(caller, count, [host] if len(host) > MAX_TARGET_ID else None))
        for host, kind, count in hosts[:MAX_ENTRIES]
    ]
    if others := hosts[MAX_ENTRIES:]:
        names = list(dict.fromkeys(host for host, _, _ in others))
        rows.append((OTHERS, OTHERS, _detail(caller, sum(count for _, _, count in others), names)))
    return rows


def _detail(caller: EgressCaller, count: int, hosts: list[str] | None) -> Detail:
    return Detail(
        name=caller.tool,
        count=count,
        call_id=caller.call_id[:64].replace("\0", "\ufffd"),
        run_id=caller.run_id or UNSET,
        hosts=hosts or UNSET,
    )


_SUCCESSFUL = frozenset({CallStatus.DONE, CallStatus.CACHED})


class CallRecorder:
    """Counts calls in the metrics and writes refusals to the audit log. One per process."""

    def __init__(self, metrics: Metrics, refusals: Refusals) -> None:
        self._metrics = metrics
        self._refusals = refusals

    def record(self, call: CallRecord) -> None:
        """Count a call in the metrics."""
        # A model may call any name, and a user may give any; only the names of shared tools become labels.
        name = call.name if call.is_shared else "unknown"
        self._metrics.tool_called(name, call.duration_ms / 1000, success=call.status in _SUCCESSFUL)

    async def record_refusal(self, context: ToolContext, tool: str, verdict: PermissionVerdict) -> None:
        """Record a refused call of a run or a composition. A refused API request has its own entry."""
        caller = context.caller
        if caller.run_id is None and not caller.is_composition:
            return
        actor = Actor(user_id=caller.user_id, tenant_id=caller.tenant_id, username=caller.username)
        target = None if caller.run_id is None else ("run", caller.run_id)
        detail = Detail(name=tool[:64], permission_level=int(caller.permission_level))
        await self._refusals.record_refusal(
            Action.TOOL_CALL, actor, verdict.decided_by.value, detail=detail, target=target
        )


OUTPUT_MINUTES = 60
MAX_OUTPUTS = 20
"""Stored outputs of one user; a further one replaces the oldest."""


class CallOutputRow(Base):
    """The whole output of a call without a run whose result was cut."""

    __tablename__ = "call_outputs"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    output: Mapped[str] = mapped_column(Text)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)


_outputs = table_of(CallOutputRow)
_of_user = _outputs.c.user_id == bindparam("user")
_delete_expired = delete(_outputs).where(_outputs.c.expires_at <= bindparam("now"))
_kept = select(_outputs.c.id).where(_of_user).order_by(_outputs.c.id.desc()).limit(MAX_OUTPUTS - 1)
_delete_older = delete(_outputs).where(_of_user, _outputs.c.id.not_in(_kept))
_part = select(
    func.substr(_outputs.c.output, bindparam("first"), bindparam("limit")), func.length(_outputs.c.output)
).where(_outputs.c.id == bindparam("ref"), _of_user, _outputs.c.expires_at > bindparam("now"))


class CallOutputs:
    """Stores whole outputs for OUTPUT_MINUTES, for their user. One per process, all on one database."""

    def __init__(self, store: Store, now: Callable[[], datetime] = utc_now) -> None:
        self._store = store
        self._now = now

    async def store_output(self, user_id: int, ref: str, output: str) -> None:
        """Deletes expired outputs, and the oldest of the user beyond MAX_OUTPUTS."""
        now = self._now()
        row = {
            "id": ref,
            "user_id": user_id,
            # PostgreSQL stores no NUL.
            "output": output.replace("\0", "\ufffd"),
            "expires_at": now + timedelta(minutes=OUTPUT_MINUTES),
        }

        def work(session: Session) -> None:
            connection = session.connection()
            connection.execute(_delete_expired, {"now": now})
            connection.execute(_delete_older, {"user": user_id})
            connection.execute(insert(_outputs), row)

        await self._store.write(work)

    async def read_output(self, user_id: int, ref: str, offset: int, limit: int) -> StoredOutput:
        """A part of an output. Raises NotFound for an expired one and for another user's."""
        wanted = {"ref": ref, "user": user_id, "now": self._now(), "first": offset + 1, "limit": limit}
        found = await self._store.read(
            lambda session: session.connection().execute(_part, wanted).one_or_none()
        )
        if found is None:
            raise NotFound(
                f"no output has this ref; the whole output of a call is stored for {OUTPUT_MINUTES} minutes",
                kind="result_not_found",
            )
        return StoredOutput(output=str(found[0]), total=int(found[1]))
