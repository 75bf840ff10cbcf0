"""Reading the audit log, newest first. Who may see whose entries is decided by who asks here."""

from datetime import datetime

import msgspec
from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from luxx.audit.entries import Action, Detail, Outcome
from luxx.audit.models import AuditRow

_detail = msgspec.json.Decoder(Detail)


class AuditView(msgspec.Struct, frozen=True, kw_only=True):
    """An entry as the API shows it; `user_id` and `username` are who did it."""

    id: str
    at: datetime
    tenant_id: int | None
    user_id: int | None
    username: str | None
    action: Action
    target_type: str | None
    target_id: str | None
    outcome: Outcome
    detail: Detail
    address: str | None
    request_id: str | None


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which entries; None does not filter. `since` is included, `until` is not."""

    tenant_id: int | None = None
    action: Action | None = None
    user_id: int | None = None
    outcome: Outcome | None = None
    since: datetime | None = None
    until: datetime | None = None
    before: str | None = None


def page_of_entries(
    session: Session, wanted: AuditFilter, *, offset: int, limit: int
) -> tuple[list[AuditView], int]:
    """Entries newest first, and how many there are without `before`."""
    query = _query(wanted)
    total = session.scalar(select(func.count()).select_from(query.subquery())) or 0
    if wanted.before is not None:
        query = query.where(AuditRow.id < wanted.before)
    rows = session.scalars(query.order_by(AuditRow.id.desc()).offset(offset).limit(limit))
    return [_view(row) for row in rows], total


def _query(wanted: AuditFilter) -> Select[AuditRow]:
    query: Select[AuditRow] = select(AuditRow)
    if wanted.tenant_id is not None:
        query = query.where(AuditRow.tenant_id == wanted.tenant_id)
    if wanted.action is not None:
        query = query.where(AuditRow.action == wanted.action.value)
    if wanted.user_id is not None:
        query = query.where(AuditRow.user_id == wanted.user_id)
    if wanted.outcome is not None:
        query = query.where(AuditRow.outcome == wanted.outcome.value)
    if wanted.since is not None:
        query = query.where(AuditRow.at >= wanted.since)
    if wanted.until is not None:
        query = query.where(AuditRow.at < wanted.until)
    return query


def _view(row: AuditRow) -> AuditView:
    return AuditView(
        id=row.id,
        at=row.at,
        tenant_id=row.tenant_id,
        user_id=row.user_id,
        username=row.username,
        action=Action(row.action),
        target_type=row.target_type,
        target_id=row.target_id,
        outcome=Outcome(row.outcome),
        detail=_detail.decode(row.detail),
        address=row.address,
        request_id=row.request_id,
    )
