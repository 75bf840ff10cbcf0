"""Drives runs: each run in one process at a time, and again after a crash. `RunLoop` begins each drive as the
run's kind says (`turn/chat.py`, `orchestration/drive.py`).

The driver only knows the drives of this process; the log has the state of each run. `heartbeat.py` finds lost
and queued runs.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from functools import partial

import structlog
from sqlalchemy import Connection
from sqlalchemy.exc import InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.orm import Session

from luxx.errors import LuxxError, Unavailable
from luxx.infra.bus.core import Bus, Topic
from luxx.infra.config.schema import Config
from luxx.infra.store.engine import Store
from luxx.runs.cancel import CancelSignal, RunCancelled, WallTime
from luxx.runs.engine import processes
from luxx.runs.engine.heartbeat import ActiveDrive, Heartbeat
from luxx.runs.engine.processes import ClaimedRun, ProcessInfo
from luxx.runs.engine.queue import first_status
from luxx.runs.log.events import LostRun, RunLog
from luxx.runs.slots import find_slot
from luxx.runs.turn.context import BeginDrive, Drive, DriveContext, FailRun, LoadDrive, RunServices
from luxx.runs.turn.run_rows import RunHead, read_head
from luxx.runs.turn.turn import INTERNAL_ERROR
from luxx.wire.run import ENDED, Run, RunKind, RunStatus

StartDrive = Callable[[str, int, CancelSignal], Awaitable[None]]

MAX_LOSSES = 100
"""A run that was lost this often crashes its process or cannot be read; it fails."""

INTERRUPTED_TOO_OFTEN = LuxxError(
    f"This run was interrupted {MAX_LOSSES} times; it is not started again by itself.", kind="given_up"
)

STOPPING = "this server is stopping; send the request again in a moment"
STOPPING_SECONDS = 1
"""The Retry-After value: with several servers another one is available already."""

OnQuestionAsked = Callable[[int], Awaitable[None]]
"""Called with the user's id when a run begins to wait: a new rule may already allow what the run asks for."""

logger = structlog.get_logger()


class RunDriver:
    """Drives runs; one per process. `on_heartbeat` is called after each heartbeat."""

    def __init__(
        self,
        config: Config,
        store: Store,
        bus: Bus,
        process: ProcessInfo,
        drive: StartDrive,
        fail_run: FailRun,
        on_heartbeat: Callable[[], Awaitable[None]],
    ) -> None:
        self._store = store
        self._limits = config.limits
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

    def first_status(self, connection: Connection, user_id: int, kind: RunKind) -> RunStatus:
        """The status with which a run begins or goes on: RUNNING here, or QUEUED. Raises TooMany."""
        if self._is_alone:
            return find_slot(connection, user_id, self._limits)
        return first_status(connection, user_id, kind, self._limits)

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

    def request_maintenance(self) -> None:
        """Does soon what follows each heartbeat: for example, a queued message may be due."""
        self.heartbeat.request_maintenance()

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
        if driven is not None:
            driven.signal.give_input()

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


class RunLoop:
    """The drives of runs of all kinds: reads the run, begins its drive and counts how it ends."""

    def __init__(
        self, services: RunServices, loaders: Mapping[RunKind, LoadDrive], on_question: OnQuestionAsked
    ) -> None:
        self._services = services
        self._loaders = loaders
        self._on_question = on_question

    async def drive(self, run_id: str, fence: int, signal: CancelSignal) -> None:
        """Continues the run from the end of its log until it ends, pauses or waits for a person.

        Returns at once if this process no longer owns the run. Raises LostRun if another process claims it.
        """
        loaded = await self._services.store.read(lambda session: self._load(session, run_id, fence))
        if loaded is None:
            return
        head, begin = loaded
        if head.is_cancelled:
            signal.fire()
        if await self._drive(head, begin, signal) == RunStatus.WAITING:
            await self._on_question(head.user_id)

    async def _drive(self, head: RunHead, begin: BeginDrive, signal: CancelSignal) -> RunStatus:
        """Carries out a drive; the status of the run then."""
        services, run_id = self._services, head.id
        # Others than its user may follow a room or a task, in any process.
        notify = partial(services.notify, run_id, head.user_id if head.kind == RunKind.CHAT else None)
        notify()  # It may have been queued or lost before, so its phase has changed.
        with (
            services.hub.driven(run_id, head.last_seq, head.fence) as channel,
            services.metrics.run(head.kind) as record_end,
        ):
            log = RunLog(
                services.store, channel, signal, run_id=run_id, fence=head.fence, seq=head.last_seq,
                on_status=notify,
            )  # fmt: skip
            async with self._wall_time(head, signal) as wall_time:
                drive = begin(DriveContext(services, head, log, channel, signal, wall_time))
                await self._run_or_fail(head, drive, notify)
                if drive.status not in ENDED:
                    await wall_time.save()
                services.storage.add(head.user_id, log.stored_total)
            if drive.status in ENDED:
                record_end(drive.status.value, drive.usage)
        return drive.status

    def _load(self, session: Session, run_id: str, fence: int) -> tuple[RunHead, BeginDrive] | None:
        head = read_head(session.connection(), run_id, fence)
        if head is None:
            return None
        if head.kind not in self._loaders:
            raise Unavailable(f"this server cannot drive a run of the kind {head.kind}", kind="kind_unknown")
        begin = self._loaders[head.kind](session, head)
        return None if begin is None else (head, begin)

    def _wall_time(self, head: RunHead, signal: CancelSignal) -> WallTime:
        return WallTime(
            self._services.store,
            signal,
            run_id=head.id,
            fence=head.fence,
            limit=self._services.config.limits.seconds_per_run,
            earlier_seconds=head.driven_seconds,
            is_recorded=head.kind != RunKind.CHAT,  # Rooms and tasks have limits of time of their own.
        )

    async def _run_or_fail(self, head: RunHead, drive: Drive, notify: Callable[[], None]) -> None:
        """Runs the drive; if its ending cannot be stored, writes only the row and the last events."""
        try:
            await drive.run()
        except (LostRun, OperationalError, InterfaceError):
            # Another process owns the run, or the database is unavailable: the run continues later.
            raise
        except Exception:
            logger.exception("run_failed", run_id=head.id)
            await drive.stop()
            status = await self._services.fail_run(head.id, head.fence, INTERNAL_ERROR)
            drive.status = status or drive.status
            notify()
        finally:
            await drive.stop()
