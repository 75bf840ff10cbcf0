"""The audit log of programs that went outside: each host they reached or were refused, by user and call."""

import msgspec
import structlog
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from luxx.audit.entries import Action, Actor, Detail, Entry, record
from luxx.audit.refusals import Refusals
from luxx.network.outing import Outing, Traveller
from luxx.store.engine import Store

MOST_ENTRIES = 10
"""Of one call and each outcome; what is past them is in the log of the server."""

logger = structlog.get_logger()


class EgressRecord:
    """One per process."""

    def __init__(self, store: Store, refusals: Refusals) -> None:
        self._store = store
        self._refusals = refusals

    async def ended(self, outing: Outing) -> None:
        """Writes what came of it. Nothing here fails: what was done is done."""
        who = outing.traveller
        actor = Actor(user_id=who.user_id, tenant_id=who.tenant_id, username=who.username or None)
        entries = [
            Entry(
                action=Action.EGRESS,
                actor=actor,
                target_type="host",
                target_id=one.host,
                detail=_detail(who, one.connections),
            )
            for one in outing.reached[:MOST_ENTRIES]
        ]
        await self._write(entries)
        for one in outing.refused[:MOST_ENTRIES]:
            target = ("host", one.host)
            detail = _detail(who, one.times)
            await self._refusals.note(Action.EGRESS, actor, one.kind, detail=detail, target=target)

    async def _write(self, entries: list[Entry]) -> None:
        if not entries:
            return

        def work(session: Session) -> None:
            for entry in entries:
                record(session, entry)

        try:
            await self._store.write(work)
        except (SQLAlchemyError, RuntimeError) as error:
            logger.warning("egress_not_recorded", count=len(entries), error=str(error))


def _detail(who: Traveller, count: int) -> Detail:
    detail = Detail(name=who.tool, count=count, call_id=who.call_id[:64].replace("\0", "\ufffd"))
    return detail if who.run_id is None else msgspec.structs.replace(detail, run_id=who.run_id)
