"""The audit log: the table, writing an entry in the transaction of the audited action, pruning, reading.

An entry contains no secret: it has the names of changed fields, not their values. Entries for refusals are
limited in number, so that repeated refusals cannot fill the disk.
"""

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec
import structlog
from msgspec import UNSET, UnsetType
from sqlalchemy import Index, Integer, Select, String, Text, delete, func, insert, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Mapped, Session, mapped_column

from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import Base, UtcDateTime, table_of


class AuditRow(Base):
    """`tenant_id` is the tenant that the entry concerns, null if unknown; `detail` is JSON."""

    __tablename__ = "audit_log"
    __table_args__ = (
        Index("ix_audit_log_tenant_id_id", "tenant_id", "id"),
        Index("ix_audit_log_user_id_id", "user_id", "id"),
        Index("ix_audit_log_outcome_id", "outcome", "id"),
        Index("ix_audit_log_at", "at"),
    )

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    at: Mapped[datetime] = mapped_column(UtcDateTime)
    tenant_id: Mapped[int | None] = mapped_column(Integer)
    user_id: Mapped[int | None] = mapped_column(Integer)
    username: Mapped[str | None] = mapped_column(String(64))
    action: Mapped[str] = mapped_column(String(40))
    target_type: Mapped[str | None] = mapped_column(String(40))
    target_id: Mapped[str | None] = mapped_column(String(64))
    outcome: Mapped[str] = mapped_column(String(10))
    detail: Mapped[str] = mapped_column(Text, default="{}")
    address: Mapped[str | None] = mapped_column(String(64))
    request_id: Mapped[str | None] = mapped_column(String(36))


MAX_NAMES = 50
"""The limit of a list of names in an entry's detail."""

MAX_TARGET_ID = 64


class Action(StrEnum):
    """`request`: any other request, only if it was refused; `tool_call`: a run's call, only if refused.

    `egress`: a host that a tool's program connected to, or was refused to connect to.
    """

    SIGN_IN = "sign_in"
    SIGN_OUT = "sign_out"
    REFRESH = "refresh"
    REGISTER = "register"
    PASSWORD_CHANGE = "password_change"
    PASSWORD_RESET = "password_reset"
    USER_CREATE = "user_create"
    USER_CHANGE = "user_change"
    USER_DELETE = "user_delete"
    TENANT_CREATE = "tenant_create"
    TENANT_CHANGE = "tenant_change"
    TENANT_DELETE = "tenant_delete"
    PROVIDER_CREATE = "provider_create"
    PROVIDER_CHANGE = "provider_change"
    PROVIDER_DELETE = "provider_delete"
    ALLOWED_HOSTS_CHANGE = "allowed_hosts_change"
    KEY_CREATE = "key_create"
    KEY_REVOKE = "key_revoke"
    AGENT_CREATE = "agent_create"
    AGENT_CHANGE = "agent_change"
    AGENT_DELETE = "agent_delete"
    RULES_CHANGE = "rules_change"
    MCP_SERVER_CREATE = "mcp_server_create"
    MCP_SERVER_CHANGE = "mcp_server_change"
    MCP_SERVER_DELETE = "mcp_server_delete"
    MCP_TOOL_APPROVE = "mcp_tool_approve"
    SHARE_CREATE = "share_create"
    SHARE_REVOKE = "share_revoke"
    SKILL_CREATE = "skill_create"
    SKILL_CHANGE = "skill_change"
    SKILL_DELETE = "skill_delete"
    SKILL_REVIEW = "skill_review"
    TOOL_CALL = "tool_call"
    EGRESS = "egress"
    REQUEST = "request"


class AuditOutcome(StrEnum):
    DONE = "done"
    REFUSED = "refused"


class Actor(msgspec.Struct, frozen=True, kw_only=True):
    """Who acted, and from which address. A name without an id is the command line's or an unknown user's."""

    user_id: int | None = None
    tenant_id: int | None = None
    username: str | None = None
    address: str = ""
    request_id: str = ""


class Detail(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Additional facts; unset fields do not apply.

    `fields` are the changed ones; `kind` is the reason of a refusal; `count` is the number of refusals or
    repetitions that the entry stands for. `call_id` and `run_id` identify the tool call. `hosts` are the full
    names, if the target's id is too short for one or stands for several.
    """

    name: str | UnsetType = UNSET
    fields: list[str] | UnsetType = UNSET
    permission_level: int | UnsetType = UNSET
    level_before: int | UnsetType = UNSET
    is_active: bool | UnsetType = UNSET
    tenant_before: int | UnsetType = UNSET
    added: list[str] | UnsetType = UNSET
    removed: list[str] | UnsetType = UNSET
    kind: str | UnsetType = UNSET
    method: str | UnsetType = UNSET
    route: str | UnsetType = UNSET
    count: int | UnsetType = UNSET
    call_id: str | UnsetType = UNSET
    run_id: str | UnsetType = UNSET
    hosts: list[str] | UnsetType = UNSET


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """`tenant_id`: the tenant that the entry concerns, if it is not the actor's."""

    action: Action
    actor: Actor
    outcome: AuditOutcome = AuditOutcome.DONE
    target_type: str | None = None
    target_id: str | None = None
    tenant_id: int | None = None
    detail: Detail = Detail()


_insert = insert(table_of(AuditRow))
_encode = msgspec.json.Encoder().encode


def record(session: Session, entry: AuditEntry, now: datetime | None = None) -> None:
    """Writes an entry in the session's transaction, so that both entry and action are stored or neither."""
    actor = entry.actor
    session.connection().execute(
        _insert,
        {
            "id": new_id(),
            "at": now or utc_now(),
            "tenant_id": actor.tenant_id if entry.tenant_id is None else entry.tenant_id,
            "user_id": actor.user_id,
            "username": _cut(actor.username, 64),
            "action": entry.action.value,
            "target_type": _cut(entry.target_type, 40),
            "target_id": _cut(entry.target_id, MAX_TARGET_ID),
            "outcome": entry.outcome.value,
            "detail": _encode(entry.detail).decode(),
            "address": _cut(actor.address, 64),
            "request_id": _cut(actor.request_id, 36),
        },
    )


def _cut(text: str | None, length: int) -> str | None:
    return text[:length] if text else None


logger = structlog.get_logger()


async def record_in_own_transaction(store: Store, entries: list[AuditEntry], *, failure: str) -> None:
    """Writes all entries or none, after their actions. Raises nothing: a failure is logged as `failure`."""
    if not entries:
        return

    def work(session: Session) -> None:
        for entry in entries:
            record(session, entry)

    try:
        await store.write(work)
    except (SQLAlchemyError, RuntimeError) as error:
        logger.warning(failure, count=len(entries), error=str(error))


MAX_ENTRIES = {AuditOutcome.DONE: 1_000_000, AuditOutcome.REFUSED: 100_000}
"""The limit of entries per outcome; an entry takes about 300 bytes with its indexes."""

DELETE_BATCH_SIZE = 2_000
"""Entries deleted in one transaction; other writers wait for it."""


async def delete_old_entries(
    store: Store, now: datetime, *, days: int, max_entries: dict[AuditOutcome, int] | None = None
) -> int:
    """Deletes entries older than `days`, and the oldest past `max_entries`; returns their number."""
    deleted = await _delete_all(store, select(AuditRow.id).where(AuditRow.at < now - timedelta(days=days)))
    for outcome, count in (max_entries or MAX_ENTRIES).items():
        entries = select(AuditRow.id).where(AuditRow.outcome == outcome.value)
        newest = entries.order_by(AuditRow.id.desc()).offset(count - 1).limit(1)
        last_kept = await store.read(lambda session, query=newest: session.scalar(query))
        if last_kept is not None:
            deleted += await _delete_all(store, entries.where(AuditRow.id < last_kept))
    return deleted


async def _delete_all(store: Store, to_delete: Select[str]) -> int:
    def work(session: Session) -> int:
        ids = session.scalars(to_delete.limit(DELETE_BATCH_SIZE)).all()
        if ids:
            session.execute(
                delete(AuditRow).where(AuditRow.id.in_(ids)).execution_options(synchronize_session=False)
            )
        return len(ids)

    total = 0
    while count := await store.write(work):
        total += count
    return total


_detail = msgspec.json.Decoder(Detail)


class AuditView(msgspec.Struct, frozen=True, kw_only=True):
    """An entry as the API returns it; `user_id` and `username` are the actor's."""

    id: str
    at: datetime
    tenant_id: int | None
    user_id: int | None
    username: str | None
    action: Action
    target_type: str | None
    target_id: str | None
    outcome: AuditOutcome
    detail: Detail
    address: str | None
    request_id: str | None


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Filters of entries; None does not filter. `since` is inclusive, `until` exclusive."""

    tenant_id: int | None = None
    action: Action | None = None
    user_id: int | None = None
    outcome: AuditOutcome | None = None
    since: datetime | None = None
    until: datetime | None = None
    before: str | None = None


def list_entries(
    session: Session, filters: AuditFilter, *, offset: int, limit: int
) -> tuple[list[AuditView], int]:
    """Entries, newest first, and their total number, which ignores `before`."""
    query: Select[AuditRow] = select(AuditRow)
    for name in ("tenant_id", "action", "user_id", "outcome"):
        value = getattr(filters, name)
        if value is not None:
            query = query.where(getattr(AuditRow, name) == value)
    if filters.since is not None:
        query = query.where(AuditRow.at >= filters.since)
    if filters.until is not None:
        query = query.where(AuditRow.at < filters.until)
    total = session.scalar(select(func.count()).select_from(query.subquery())) or 0
    if filters.before is not None:
        query = query.where(AuditRow.id < filters.before)
    rows = session.scalars(query.order_by(AuditRow.id.desc()).offset(offset).limit(limit))
    return [_view(row) for row in rows], total


def _view(row: AuditRow) -> AuditView:
    fields = {name: getattr(row, name) for name in AuditView.__struct_fields__}
    return msgspec.convert(fields | {"detail": _detail.decode(row.detail)}, AuditView)


# Refusals

REFUSAL_WINDOW_SECONDS = 60.0
MAX_PER_ACTOR = 10
MAX_PER_WINDOW = 60
MAX_ACTOR_SUMMARIES = 20
"""The number of actors with their own count per minute; the others share one."""


class Refusals:
    """One per process. No method raises: a refusal that cannot be recorded must still be answered."""

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._window_start = clock()
        self._written: dict[str, int] = {}
        self._overflow: dict[str, tuple[AuditEntry, int]] = {}
        self._overflow_of_others = 0

    async def record_refusal(
        self,
        action: Action,
        actor: Actor,
        kind: str,
        *,
        detail: Detail | None = None,
        target: tuple[str, str] | None = None,
    ) -> None:
        """Records that `actor` was refused; `kind` is the reason."""
        target_type, target_id = target or (None, None)
        entry = AuditEntry(
            action=action,
            actor=actor,
            outcome=AuditOutcome.REFUSED,
            target_type=target_type,
            target_id=target_id,
            detail=msgspec.structs.replace(detail or Detail(), kind=kind),
        )
        due = self._start_window() if self._is_window_over() else []
        if self._has_capacity(entry):
            due.append(entry)
        await self._write(due)

    async def flush_if_due(self) -> None:
        """Writes the counts if the minute is over, without waiting for the next refusal."""
        if self._is_window_over():
            await self.flush()

    async def flush(self) -> None:
        """Writes all counts; called at shutdown."""
        await self._write(self._start_window())

    def _is_window_over(self) -> bool:
        return self._clock() - self._window_start >= REFUSAL_WINDOW_SECONDS

    def _has_capacity(self, entry: AuditEntry) -> bool:
        key = f"user {entry.actor.user_id}" if entry.actor.user_id else entry.actor.address
        written = self._written.get(key, 0)
        if written < MAX_PER_ACTOR and sum(self._written.values()) < MAX_PER_WINDOW:
            self._written[key] = written + 1
            return True
        if key in self._overflow or len(self._overflow) < MAX_ACTOR_SUMMARIES:
            first, count = self._overflow.get(key, (entry, 0))
            self._overflow[key] = (first, count + 1)
        else:
            self._overflow_of_others += 1
        return False

    def _start_window(self) -> list[AuditEntry]:
        """Starts a new minute; returns the summary entries of the previous one."""
        summaries = [
            msgspec.structs.replace(
                first,
                target_type=None,
                target_id=None,
                detail=msgspec.structs.replace(first.detail, count=count, hosts=msgspec.UNSET),
            )
            for first, count in self._overflow.values()
        ]
        if self._overflow_of_others:
            summary = Detail(kind="many_actors", count=self._overflow_of_others)
            summaries.append(
                AuditEntry(action=Action.REQUEST, actor=Actor(), outcome=AuditOutcome.REFUSED, detail=summary)
            )
        self._window_start, self._overflow_of_others = self._clock(), 0
        self._written.clear()
        self._overflow.clear()
        return summaries

    async def _write(self, entries: list[AuditEntry]) -> None:
        await record_in_own_transaction(self._store, entries, failure="refusals_not_recorded")
