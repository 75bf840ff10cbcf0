"""The periodic jobs of a server process: deletions of what is old, checks of sign-ins, notifications."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

import structlog
from sqlalchemy.exc import SQLAlchemyError

from luxx.app.core_services import CoreServices
from luxx.domain.audit import REFUSAL_WINDOW_SECONDS, delete_old_entries
from luxx.domain.mcp.owners.rows import delete_old_calls
from luxx.domain.skills.files import delete_unused_files
from luxx.features.chats.temporary import LOOK_SECONDS as TEMPORARY_SECONDS
from luxx.features.chats.temporary import TemporaryChats
from luxx.features.knowledge.indexing import CHUNK_TEXTS, ERASED_TABLES
from luxx.features.memory.erasure import ERASE_SECONDS, Erasure
from luxx.features.memory.vectors.background import LOOK_SECONDS, EmbeddingWork
from luxx.infra.observe import watch_event_loop
from luxx.infra.store.tables import deletion_time
from luxx.runs.log.retention import DISCARD_SECONDS, delete_old_endings, delete_old_logs, discard_old_calls
from luxx.runs.streams.watch import WAKE_SECONDS
from luxx.runs.turn.pins import delete_unused_pins

PRUNE_SECONDS = 3600.0
"""The interval between deletions of old audit entries and run logs. The first one runs at the start."""

SWEEP_SECONDS = 3600.0
"""The interval between deletions of data that killed servers left of imports. PostgreSQL only."""

logger = structlog.get_logger()


def background_jobs(
    services: CoreServices, embedding: EmbeddingWork, temporary: TemporaryChats
) -> list[Coroutine[Any, Any, None]]:
    """The jobs of a process whose parts are open; each runs until it is cancelled."""
    erasure = Erasure(services.store, indexes=[CHUNK_TEXTS.full_text], tables=ERASED_TABLES)
    jobs: list[Coroutine[Any, Any, None]] = [
        _keep_streams_alive(services),
        watch_event_loop(services.metrics),
        _repeat(services.refusals.flush_if_due, REFUSAL_WINDOW_SECONDS / 2, "audit_prune_failed"),
        _repeat(partial(_delete_old_audit_entries, services), PRUNE_SECONDS, "audit_prune_failed"),
        _repeat(partial(_delete_old_run_logs, services), PRUNE_SECONDS, "run_log_cleanup_failed"),
        _repeat(partial(_discard_old_calls, services), DISCARD_SECONDS, "call_cleanup_failed"),
        _repeat(temporary.delete_unused, TEMPORARY_SECONDS, "temporary_chat_cleanup_failed"),
        _repeat(erasure.erase_due, ERASE_SECONDS, "memory_erasure_failed"),
        services.notices.keep_notifying(),
        services.sockets.check_sign_ins(),
        services.streams.check_sign_ins(),
    ]
    if services.config.memory.embedding.model:
        jobs.append(_repeat(embedding.look, LOOK_SECONDS, "embedding_failed"))
    if not services.store.is_sqlite:
        sweep = services.transfer.sweep
        jobs.append(_repeat(sweep, SWEEP_SECONDS, "transfer_cleanup_failed", delay=SWEEP_SECONDS))
    return jobs


async def _keep_streams_alive(services: CoreServices) -> None:
    while True:
        await asyncio.sleep(WAKE_SECONDS)
        services.hub.wake_all()


async def _delete_old_audit_entries(services: CoreServices) -> None:
    if (now := await services.store.read(deletion_time)) is not None:
        await delete_old_entries(services.store, now, days=services.config.runs.retention_days)


async def _delete_old_run_logs(services: CoreServices) -> None:
    if (now := await services.store.read(deletion_time)) is not None:
        deleted = await delete_old_logs(services.store, now, days=services.config.runs.retention_days)
        if deleted:
            logger.info("run_logs_deleted", runs=deleted)


async def _discard_old_calls(services: CoreServices) -> None:
    if (now := await services.store.read(deletion_time)) is not None:
        await discard_old_calls(services.store, now)
        await delete_old_endings(services.store, now)
        await services.store.write_rows(delete_unused_pins)
        await services.store.write_rows(partial(delete_unused_files, now=now))
        await services.store.write_rows(delete_old_calls)
    await services.skill_copies.remove_unused(services.store)
    await services.mcp_sign_ins.delete_old()


async def _repeat(
    job: Callable[[], Awaitable[object]], seconds: float, failure_event: str, *, delay: float = 0.0
) -> None:
    """Runs the job after `delay` and then every `seconds`. Logs a failure of the database and continues."""
    await asyncio.sleep(delay)
    while True:
        try:
            await job()
        except SQLAlchemyError as error:
            logger.warning(failure_event, error=str(error))
        await asyncio.sleep(seconds)
