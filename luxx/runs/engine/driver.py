"""Drives runs: each run in one process at a time, and again after a crash.

The driver only knows the drives of this process; the log has the state of each run. `heartbeat.py` finds lost
and queued runs.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass

import structlog
from sqlalchemy import Connection, select
from sqlalchemy.exc import SQLAlchemyError

from luxx.errors import LuxxError, Unavailable
from luxx.infra.bus.core import Bus, Topic
from luxx.infra.config.schema import Config
from luxx.infra.store.engine import Store
from luxx.runs.cancel import CancelSignal, RunCancelled, cancel_runs_of, is_caused_by
from luxx.runs.engine import processes
from luxx.runs.engine.heartbeat import ActiveDrive, Heartbeat
from luxx.runs.engine.processes import ClaimedRun, ProcessInfo
from luxx.runs.log.events import LostRun
from luxx.runs.models import RunRow, is_unended
from luxx.runs.turn.context import FailRun
from luxx.wire.run import Run, RunStatus

Drive = Callable[[str, int, CancelSignal], Awaitable[None]]

MAX_LOSSES = 100
"""A run that was lost this often crashes its process or cannot be read; it fails."""

INTERRUPTED_TOO_OFTEN = LuxxError(
    f"This run was interrupted {MAX_LOSSES} times; it is not started again by itself.", kind="given_up"
)

STOPPING = "this server is stopping; send the request again in a moment"
STOPPING_SECONDS = 1
"""The Retry-After value: with several servers another one is available already."""

MAX_STOP_SECONDS = 5.0
"""How long `stop_all_of` waits; another process ends its runs at the latest at its next heartbeat."""

POLL_SECONDS = 0.25

logger = structlog.get_logger()


class RunDriver:
    """Drives runs; one per process. `on_heartbeat` is called after each heartbeat."""

    def __init__(
        self,
        config: Config,
        store: Store,
        bus: Bus,
        process: ProcessInfo,
        drive: Drive,
        fail_run: FailRun,
        on_heartbeat: Callable[[], Awaitable[None]],
    ) -> None:
        self._store = store
        self._drive = drive
        self._fail_run = fail_run
        self._bus = bus
        # Only PostgreSQL can serve several processes.
        self._is_alone = store.is_sqlite
        self._driven: dict[str, ActiveDrive] = {}
        self._starts: dict[str, asyncio.Event] = {}
        self._drain_ended = asyncio.Event()
        self.admission_lock: AbstractAsyncContextManager[object] = (
            nullcontext() if self._is_alone else asyncio.Lock()
        )
        """Held while slots are counted: one transaction at a time per process, if processes share a database.
        So a frozen process waits once for the database lock, and not once per message."""
        self.process = process.id
        """The owner of the runs that it drives."""
        self.is_open = False
        """Whether it admits and claims runs."""
        self.heartbeat = Heartbeat(config, store, self, process)
        self.heartbeat.on_each_heartbeat(on_heartbeat)

    async def open(self) -> None:
        """Claims the runs of dead processes and queued runs, from now on until `stop_admitting`."""
        self.is_open = True
        self._bus.subscribe(
            Topic.CANCEL, lambda _process, run_id: self._fire(run_id.decode("utf-8", "replace"))
        )
        self._bus.subscribe(
            Topic.INPUT, lambda _process, run_id: self._on_input(run_id.decode("utf-8", "replace"))
        )
        self._bus.subscribe(Topic.QUEUE, lambda _process, _nothing: self.heartbeat.request_scan())
        self._bus.on_reconnect(self.heartbeat.request_scan)
        await self.heartbeat.open()

    def check_open(self) -> None:
        """Raises Unavailable if the server stops, so that no run begins."""
        if not self.is_open:
            raise Unavailable(STOPPING, kind="stopping", retry_after=STOPPING_SECONDS)

    def stop_admitting(self) -> None:
        """Claims no more runs; the drives of this process continue until `drain` or `close`."""
        self.is_open = False

    async def drain(self, seconds: float) -> None:
        """Waits until no run is driven here, for `seconds`, or until `end_drain` is called."""
        await self.heartbeat.stop_scanning()
        end_drain = asyncio.create_task(self._drain_ended.wait())
        until = time.monotonic() + seconds
        while self._driven and not self._drain_ended.is_set() and (left := until - time.monotonic()) > 0:
            tasks = [driven.task for driven in self._driven.values()]
            await asyncio.wait([end_drain, *tasks], timeout=left, return_when=asyncio.FIRST_COMPLETED)
        end_drain.cancel()

    def end_drain(self) -> None:
        """Ends `drain`."""
        self._drain_ended.set()

    async def close(self) -> None:
        """Cancels the remaining drives and releases their runs, so that other processes continue them."""
        self.stop_admitting()
        tasks = [driven.task for driven in self._driven.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.heartbeat.close()
        try:
            await self._store.write_rows(self._unregister)
        except SQLAlchemyError:
            # The lease expires soon.
            logger.exception("leases_not_released")
        if tasks:
            self._bus.publish(Topic.QUEUE, b"")

    async def begin(self, run: Run) -> None:
        """Drives a newly admitted run or, if it is queued, requests a scan of the queue."""
        if run.status == RunStatus.RUNNING:
            await self.start(run.id, 1)
            return
        self.wake()

    def wake(self) -> None:
        """Requests a scan of the queue in all processes."""
        self.heartbeat.has_queue = True
        self._bus.publish(Topic.QUEUE, b"")
        self.heartbeat.request_scan()

    async def start(self, run_id: str, fence: int) -> None:
        """Drives a run that this process has claimed."""
        active = self._driven.get(run_id)
        if active is not None:
            if active.fence >= fence:
                return
            active.task.cancel()
        signal = CancelSignal()
        task = asyncio.create_task(self._run_drive(run_id, fence, signal), name=f"drive {run_id}")
        self._driven[run_id] = ActiveDrive(task, signal, fence)
        if (start_event := self._starts.pop(run_id, None)) is not None:
            start_event.set()

    async def start_claimed(self, claimed: list[ClaimedRun]) -> None:
        """Drives claimed runs; one that was lost MAX_LOSSES times fails."""
        for run in claimed:
            if run.losses < MAX_LOSSES:
                logger.info("run_claimed", run_id=run.run_id, fence=run.fence)
                await self.start(run.run_id, run.fence)
                continue
            logger.error("run_failed_permanently", run_id=run.run_id, fence=run.fence)
            await self._fail_run(run.run_id, run.fence, INTERRUPTED_TOO_OFTEN)

    async def cancel(self, run_id: str) -> None:
        """Fires the cancel signal of a cancelled run, in whichever process drives it.

        A run that no process drives is claimed and ended here. The claim is always tried: another process may
        have claimed a run that this one drives, or the run may have begun to wait for a person.
        """
        self._fire(run_id)
        self._bus.publish(Topic.CANCEL, run_id.encode())
        claimed = await self._store.write_rows(
            lambda connection: processes.claim_one(connection, self.process, run_id, is_alone=self._is_alone)
        )
        await self.start_claimed(claimed)

    def deliver(self, run_id: str) -> None:
        """Notifies the process that drives the run of a new input; one that waited is in the queue now."""
        if run_id in self._driven:
            self._on_input(run_id)
        else:
            self._bus.publish(Topic.INPUT, run_id.encode())
        # Also if it is driven here: its drive may have set it to waiting and be about to end.
        self.wake()

    async def wait(self, run_id: str, seconds: float | None) -> None:
        """Waits until this process no longer drives the run, or for `seconds`."""
        driven = self._driven.get(run_id)
        if driven is not None:
            await asyncio.wait([driven.task], timeout=seconds)

    async def wait_for_start(self, run_id: str, seconds: float) -> None:
        """Waits until this process drives the run, or for `seconds`. One waiter per run at a time."""
        if run_id in self._driven:
            return
        started = self._starts[run_id] = asyncio.Event()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await started.wait()
        finally:
            if self._starts.get(run_id) is started:
                del self._starts[run_id]

    def drives(self) -> dict[str, ActiveDrive]:
        """The current drives of this process, by run id."""
        return dict(self._driven)

    def abandon(self, run_id: str, driven: ActiveDrive) -> None:
        """Ends a drive whose run was deleted or claimed by another process."""
        if self._driven.get(run_id) is driven:
            logger.info("run_lost", run_id=run_id)
            driven.task.cancel()

    def _fire(self, run_id: str) -> None:
        driven = self._driven.get(run_id)
        if driven is not None:
            driven.signal.fire()

    def _on_input(self, run_id: str) -> None:
        driven = self._driven.get(run_id)
        if driven is not None and driven.signal.on_input is not None:
            driven.signal.on_input()

    def _unregister(self, connection: Connection) -> None:
        processes.release(connection, self.process)
        processes.unregister(connection, self.process)

    async def _run_drive(self, run_id: str, fence: int, signal: CancelSignal) -> None:
        try:
            await self._drive(run_id, fence, signal)
        except LostRun:
            logger.info("run_lost", run_id=run_id)
        except (Exception, RunCancelled):
            # The log has the state of the run; the heartbeat finds that no process drives it.
            logger.exception("drive_failed", run_id=run_id)
        finally:
            driven = self._driven.get(run_id)
            if driven is not None and driven.fence == fence:
                del self._driven[run_id]
            self.release_slot()

    def release_slot(self) -> None:
        """Requests a scan of the queue, because a slot is free."""
        if not self.heartbeat.has_queue:
            return
        if self.is_open:
            self.heartbeat.request_scan()
        if not self.is_open or self.heartbeat.has_others_queue:
            self._bus.publish(Topic.QUEUE, b"")


@dataclass(frozen=True, slots=True)
class RunStopper:
    """Cancels runs. `engine` is None in a process that drives no runs; then other processes end them."""

    store: Store
    engine: RunDriver | None

    async def stop_all_of(self, user_id: int) -> None:
        """Cancels the user's runs; returns when they have ended, or after MAX_STOP_SECONDS."""
        await self.store.write(lambda session: cancel_runs_of(session, user_id))
        until = time.monotonic() + MAX_STOP_SECONDS
        unended = select(RunRow.id).where(is_caused_by(user_id), is_unended)
        running = await self.store.read(lambda session: session.scalars(unended).all())
        for run_id in running:
            if self.engine is not None:
                await self.engine.cancel(run_id)
        while running and time.monotonic() < until:
            await asyncio.sleep(POLL_SECONDS)
            running = await self.store.read(lambda session: session.scalars(unended).all())
