"""Periodic jobs of a server: delete old audit entries, old run logs and the remains of imports."""

import asyncio
import time

import structlog
from sqlalchemy.exc import SQLAlchemyError

from luxx.domain.audit import WINDOW_SECONDS, Refusals, delete_old_entries
from luxx.domain.transfer.service import TransferService
from luxx.infra.store.clock import deletion_time
from luxx.infra.store.engine import Store
from luxx.runs.log.retention import delete_old_logs

PRUNE_SECONDS = 3600.0
"""The interval between deletions of old audit entries and run logs. The first one runs at the start."""

SWEEP_SECONDS = 3600.0
"""The interval between deletions of data that killed servers left of imports. PostgreSQL only."""

logger = structlog.get_logger()


async def maintain_audit_log(store: Store, refusals: Refusals, *, days: int) -> None:
    """Writes the counts of refusals and deletes old audit entries."""
    next_prune = 0.0
    while True:
        try:
            if time.monotonic() >= next_prune:
                next_prune = time.monotonic() + PRUNE_SECONDS
                if (now := await store.read(deletion_time)) is not None:
                    await delete_old_entries(store, now, days=days)
            await refusals.flush_if_due()
        except SQLAlchemyError as error:
            logger.warning("audit_prune_failed", error=str(error))
        await asyncio.sleep(WINDOW_SECONDS / 2)


async def delete_old_run_logs(store: Store, *, days: int) -> None:
    """Deletes the logs of runs that ended long ago."""
    while True:
        try:
            if (now := await store.read(deletion_time)) is not None:
                deleted = await delete_old_logs(store, now, days=days)
                if deleted:
                    logger.info("run_logs_deleted", runs=deleted)
        except SQLAlchemyError as error:
            logger.warning("run_log_cleanup_failed", error=str(error))
        await asyncio.sleep(PRUNE_SECONDS)


async def sweep_transfers(transfer: TransferService) -> None:
    """Deletes the remains of imports."""
    while True:
        await asyncio.sleep(SWEEP_SECONDS)
        try:
            await transfer.sweep()
        except SQLAlchemyError as error:
            logger.warning("transfer_cleanup_failed", error=str(error))
