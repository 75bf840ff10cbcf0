"""How long the audit log is kept: by age, and by number, so that it cannot fill the disk.

Refusals are counted apart: no number of them pushes out what was done.
"""

from datetime import datetime, timedelta

from sqlalchemy import Select, delete, select
from sqlalchemy.orm import Session

from luxx.audit.entries import Outcome
from luxx.audit.models import AuditRow
from luxx.store.engine import Store

MOST = {Outcome.DONE: 1_000_000, Outcome.REFUSED: 100_000}
"""Most entries of each outcome; about 300 bytes each with their indexes."""

AT_ONCE = 2_000
"""Entries deleted in one transaction: other writers wait for it."""


async def prune(store: Store, now: datetime, *, days: int, most: dict[Outcome, int] | None = None) -> int:
    """Deletes entries older than `days` and the oldest past the most; how many that were."""
    pruned = await _delete_all(store, select(AuditRow.id).where(AuditRow.at < now - timedelta(days=days)))
    for outcome, count in (most or MOST).items():
        last = await store.read(lambda session, o=outcome, c=count: _last_kept(session, o, c))
        if last is not None:
            older = select(AuditRow.id).where(AuditRow.outcome == outcome.value, AuditRow.id < last)
            pruned += await _delete_all(store, older)
    return pruned


def _last_kept(session: Session, outcome: Outcome, count: int) -> str | None:
    mine = select(AuditRow.id).where(AuditRow.outcome == outcome.value)
    return session.scalar(mine.order_by(AuditRow.id.desc()).offset(count - 1).limit(1))


async def _delete_all(store: Store, doomed: Select[str]) -> int:
    def work(session: Session) -> int:
        ids = session.scalars(doomed.limit(AT_ONCE)).all()
        if ids:
            session.execute(
                delete(AuditRow).where(AuditRow.id.in_(ids)).execution_options(synchronize_session=False)
            )
        return len(ids)

    total = 0
    while count := await store.write(work):
        total += count
    return total
