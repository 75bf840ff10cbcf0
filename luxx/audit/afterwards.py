"""Entries about what is done already, written in a transaction of their own.

Those that belong to the transaction of their act are written by `entries.record`.
"""

import structlog
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from luxx.audit.entries import Entry, record
from luxx.store.engine import Store

logger = structlog.get_logger()


async def write_afterwards(store: Store, entries: list[Entry], *, failure: str) -> None:
    """All or none. Raises nothing: what was done is done; that it is not recorded is logged as `failure`."""
    if not entries:
        return

    def work(session: Session) -> None:
        for entry in entries:
            record(session, entry)

    try:
        await store.write(work)
    except (SQLAlchemyError, RuntimeError) as error:
        logger.warning(failure, count=len(entries), error=str(error))
