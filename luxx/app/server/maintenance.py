"""What a server does for its database from time to time, as long as it lives. No decision is made here."""

import asyncio
import time

import structlog
from sqlalchemy.exc import SQLAlchemyError

from luxx.domain.audit.entries import delete_old_entries
from luxx.domain.audit.refusals import WINDOW_SECONDS, Refusals
from luxx.domain.transfer.service import TransferService
from luxx.infra.store.clock import deletion_time
from luxx.infra.store.engine import Store
from luxx.runs.log.retention import delete_old_logs

PRUNE_SECONDS = 3600.0
"""How often the audit log and the logs of runs are cut to what is kept; also done at the start."""

SWEEP_SECONDS = 3600.0
"""How often what killed servers left of imports is deleted, where servers share a database."""

logger = structlog.get_logger()


async def maintain_audit_log(store: Store, refusals: Refusals, *, days: int) -> None:
    """Writes the counts of refusals and cuts the audit log."""
    next_prune = 0.0
    while True:
        try:
            if time.monotonic() >= next_prune:
                next_prune = time.monotonic() + PRUNE_SECONDS
                if (now := await store.read(deletion_time)) is not None:
                    await delete_old_entries(store, now, days=days)
            await refusals.flush_if_due()
        except SQLAlchemyError as error:
            logger.warning("audit_not_pruned", error=str(error))
        await asyncio.sleep(WINDOW_SECONDS / 2)


async def delete_old_run_logs(store: Store, *, days: int) -> None:
    """Deletes the logs of runs that ended long ago."""
    while True:
        try:
            if (now := await store.read(deletion_time)) is not None:
                deleted = await delete_old_logs(store, now, days=days)
                if deleted:
                    logger.info("logs_deleted", runs=deleted)
        except SQLAlchemyError as error:
            logger.warning("logs_not_deleted", error=str(error))
        await asyncio.sleep(PRUNE_SECONDS)


async def sweep_transfers(transfer: TransferService) -> None:
    """Deletes what is left of imports."""
    while True:
        await asyncio.sleep(SWEEP_SECONDS)
        try:
            await transfer.sweep()
        except SQLAlchemyError as error:
            logger.warning("transfers_not_swept", error=str(error))
