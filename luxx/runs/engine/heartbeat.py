"""The heartbeat of a process: renews its lease, checks its drives, and claims lost and queued runs.

A scan for runs follows each heartbeat; a free slot or a message of another process requests one earlier. A
repair clears conversations that name an ended run as active.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Protocol

import msgspec
import structlog
from sqlalchemy import Connection, bindparam, null, select

from luxx.domain.conversations.models import ConversationRow
from luxx.domain.usage.reserve import has_limits
from luxx.infra.config.schema import Config
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import table_of
from luxx.runs.cancel import CancelSignal, mark_cancelled
from luxx.runs.engine import processes, queue
from luxx.runs.engine.processes import ClaimedRun, OwnedRun, ProcessInfo
from luxx.runs.models import RunRow, is_call, is_unended
from luxx.wire.run import RunKind

HEARTBEATS_PER_LEASE = 4
"""Renewals per lease: a process that misses three heartbeats keeps its lease."""

MAX_HEARTBEAT_SECONDS = 1.0
"""Longest interval between heartbeats; other processes notice an expired lease within this time."""

GRACE_HEARTBEATS = 3
"""A process that missed heartbeats for about a lease waits this many before it claims lost runs: the others
may have missed theirs for the same reason and be alive."""

LATE_HEARTBEATS = 2
"""A process is late this many heartbeats before the end of its lease; others' leases may end earlier."""

REPAIR_SECONDS = 60.0
"""Interval of the repair, which reads all conversations with an active run."""

SCAN_TIMEOUT_SECONDS = 5.0
"""How long a stopping process waits for a scan in progress."""

RETRY_AT_ONCE_BELOW = 3
"""With a lower fence, a run whose drive failed is claimed again at once, else after a lease."""

logger = structlog.get_logger()


class ActiveDrive(msgspec.Struct):
    """A drive in this process."""

    task: asyncio.Task[None]
    signal: CancelSignal
    fence: int


class DriveControl(Protocol):
    """The part of the run driver (`driver.py`) that the heartbeat uses. Not `is_open`: claim no more runs."""

    is_open: bool
    admission_lock: AbstractAsyncContextManager[object]

    def drives(self) -> dict[str, ActiveDrive]: ...

    def abandon(self, run_id: str, driven: ActiveDrive) -> None: ...

    async def start_claimed(self, claimed: list[ClaimedRun]) -> None: ...


class ScanResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a scan. `kinds`: the kinds of runs that this process claims."""

    kinds: frozenset[RunKind]
    lost: list[ClaimedRun]
    cancelled: list[str]
    queued: set[RunKind]


class Heartbeat:
    """One per process. `has_queue`: the last scan found queued runs; `has_others_queue`: also of kinds that
    this process leaves to others."""

    def __init__(self, config: Config, store: Store, driver: DriveControl, process: ProcessInfo) -> None:
        self._store = store
        self._driver = driver
        self._process = process
        self._limits = config.limits
        self._lease_seconds = config.runs.lease_seconds
        self._is_alone = store.is_sqlite
        self._interval = self._lease_seconds / HEARTBEATS_PER_LEASE
        if not self._is_alone:
            self._interval = min(self._interval, MAX_HEARTBEAT_SECONDS)
        self._scan_requested = asyncio.Event()
        self._orphaned_runs: dict[ClaimedRun, float] = {}
        self._last_heartbeat = self._grace_until = 0.0
        self._next_repair = 0.0
        self._heartbeat_work: list[Callable[[], Awaitable[None]]] = []
        self._maintenance_requested = asyncio.Event()
        self._is_scanning = True
        self._heartbeat_task: asyncio.Task[None] | None = None
        self._scan_task: asyncio.Task[None] | None = None
        self._maintenance_task: asyncio.Task[None] | None = None
        self._is_sending = asyncio.Lock()
        self.has_queue = False
        self.has_others_queue = False

    def on_each_heartbeat(self, work: Callable[[], Awaitable[None]], *, seconds: float = 0.0) -> None:
        """Calls `work` at the start and after each heartbeat, at most once in so many seconds; heartbeats do
        not wait for it."""
        due = 0.0

        async def work_if_due() -> None:
            nonlocal due
            if (now := time.monotonic()) >= due:
                due = now + seconds
                await work()

        self._heartbeat_work.append(work_if_due)

    async def open(self) -> None:
        """Registers the process and runs a repair and a scan; then starts the loops."""
        lease = None if self._is_alone else self._lease_seconds
        await self._store.write_urgent_rows(
            lambda connection: processes.register(connection, self._process, lease)
        )
        if self._is_alone:
            # The clients of these calls were connected to a process that is gone.
            await self._store.write_rows(lambda connection: mark_cancelled(connection, is_call))
        self._last_heartbeat = time.monotonic()
        await self._repair_if_due()
        await self._scan()
        self._maintenance_requested.set()
        self._heartbeat_task = asyncio.create_task(self._heartbeat_loop())
        self._scan_task = asyncio.create_task(self._scan_loop())
        self._maintenance_task = asyncio.create_task(self._maintenance_loop())

    async def stop_scanning(self) -> None:
        """Ends the scans; the runs of a scan in progress are still driven. The heartbeat continues."""
        self._is_scanning = False
        self._scan_requested.set()
        if self._scan_task is not None:
            # A cancelled scan may have claimed runs that this process then would not drive.
            await asyncio.wait([self._scan_task], timeout=SCAN_TIMEOUT_SECONDS)
        await _cancel_task(self._scan_task)

    async def close(self) -> None:
        """Ends the scans and the heartbeat. Unless the caller unregisters the process, its lease expires."""
        await self.stop_scanning()
        await _cancel_task(self._maintenance_task)
        # A cancelled heartbeat is written all the same: after the process was unregistered it would register
        # it again.
        with suppress(TimeoutError):
            async with asyncio.timeout(SCAN_TIMEOUT_SECONDS), self._is_sending:
                await _cancel_task(self._heartbeat_task)
        await _cancel_task(self._heartbeat_task)

    def request_scan(self) -> None:
        """Requests a scan soon; one scan serves all earlier requests."""
        self._scan_requested.set()

    def request_maintenance(self) -> None:
        """Does soon what follows each heartbeat."""
        self._maintenance_requested.set()

    async def _heartbeat_loop(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            try:
                async with self._is_sending:
                    await self._send_heartbeat()
            except Exception:
                # Continue after any error: without heartbeats this process would lose its runs.
                logger.exception("heartbeat_failed")

    async def _scan_loop(self) -> None:
        while self._is_scanning:
            await self._scan_requested.wait()
            self._scan_requested.clear()
            try:
                await self._scan()
            except Exception:
                # The next heartbeat scans again.
                logger.exception("queue_scan_failed")

    async def _maintenance_loop(self) -> None:
        while True:
            await self._maintenance_requested.wait()
            self._maintenance_requested.clear()
            for work in (*self._heartbeat_work, self._see_calls, self._repair_if_due):
                try:
                    if self._driver.is_open:
                        await work()
                except Exception:
                    # The next heartbeat tries again.
                    logger.exception("maintenance_failed")

    @property
    def may_claim_lost(self) -> bool:
        """Whether this process may take over what belonged to a lost one. After a database outage all leases
        are expired until the other processes renew theirs."""
        return self._is_alone or (not self._is_late() and time.monotonic() >= self._grace_until)

    def _is_late(self) -> bool:
        """Whether this process missed heartbeats for about a lease; the others may have missed theirs too."""
        return (
            time.monotonic() - self._last_heartbeat > self._lease_seconds - LATE_HEARTBEATS * self._interval
        )

    async def _send_heartbeat(self) -> None:
        is_late = self._is_late()
        if not self._is_alone:
            was_alive = await self._store.write_urgent_rows(
                lambda connection: self._renew(connection, is_late=is_late)
            )
            if not was_alive:
                logger.warning("process_lease_was_expired", process=self._process.id)
        now = self._last_heartbeat = time.monotonic()
        if is_late:
            self._grace_until = now + GRACE_HEARTBEATS * self._interval
        await self._check_own()
        self.request_scan()
        self._maintenance_requested.set()

    def _renew(self, connection: Connection, *, is_late: bool) -> bool:
        was_alive = processes.renew(connection, self._process, self._lease_seconds)
        if not is_late:
            processes.delete_expired(connection)
        return was_alive

    async def _check_own(self) -> None:
        """Cancels the cancelled runs, abandons those of other processes, claims own runs without a drive."""
        own_drives = self._driver.drives()

        def read(connection: Connection) -> tuple[list[OwnedRun], set[str]]:
            owned = processes.owned_by(connection, self._process.id)
            missed = own_drives.keys() - {run.run_id for run in owned}
            return owned, processes.lost_to_others(connection, self._process.id, missed)

        run_read = self._store.read_rows if self._is_alone else self._store.write_urgent_rows
        owned, lost_to_others = await run_read(read)
        for run_id in lost_to_others:
            self._driver.abandon(run_id, own_drives[run_id])
        for run in owned:
            if run.is_cancelled and run.run_id in own_drives:
                own_drives[run.run_id].signal.fire()
        driven = self._driver.drives()
        await self._claim_orphaned([run for run in owned if run.run_id not in driven])

    async def _claim_orphaned(self, orphaned: list[OwnedRun]) -> None:
        """Claims own runs again whose drive failed. A newly admitted run has no drive yet, so it gets half a
        heartbeat of time."""
        now = time.monotonic()
        runs = [ClaimedRun(run.run_id, run.fence) for run in orphaned]
        self._orphaned_runs = {run: self._orphaned_runs.get(run, now) for run in runs}
        due = [
            run
            for run, since in self._orphaned_runs.items()
            if now - since >= (self._interval / 2 if run.fence < RETRY_AT_ONCE_BELOW else self._lease_seconds)
        ]
        if due and self._driver.is_open:
            claimed = await self._store.write_rows(
                lambda connection: processes.claim(connection, self._process.id, due)
            )
            await self._driver.start_claimed(claimed)

    async def _scan(self) -> None:
        if not self._driver.is_open:
            return
        scan = await self._store.read_rows(self._read_scan)
        self.has_queue = bool(scan.queued)
        self.has_others_queue = bool(scan.queued - scan.kinds)
        if scan.lost or scan.cancelled:
            claimed = await self._store.write_rows(lambda connection: self._claim_undriven(connection, scan))
            await self._driver.start_claimed(claimed)
        if scan.queued & scan.kinds:
            async with self._driver.admission_lock:
                claimed = await self._store.write_rows(
                    lambda connection: queue.claim_queued(
                        connection, self._process.id, scan.kinds, self._limits
                    )
                )
            await self._driver.start_claimed(claimed)

    def _read_scan(self, connection: Connection) -> ScanResult:
        own_id = self._process.id
        are_workers_up = not self._is_alone and processes.has_workers(connection)
        kinds = queue.kinds_of(self._process.kind, are_workers_up=are_workers_up)
        return ScanResult(
            kinds=kinds,
            lost=processes.find_lost(connection, own_id, kinds, is_alone=self._is_alone)
            if self.may_claim_lost
            else [],
            cancelled=processes.find_cancelled(connection),
            queued=queue.queued_kinds(connection),
        )

    def _claim_undriven(self, connection: Connection, scan: ScanResult) -> list[ClaimedRun]:
        """Claims lost runs, which have their slot, and cancelled ones, which need none."""
        own_id = self._process.id
        claimed = processes.claim(connection, own_id, scan.lost)
        for run_id in scan.cancelled:
            claimed += processes.claim_undriven(connection, own_id, run_id)
        return claimed

    async def _see_calls(self) -> None:
        """Notes that the model calls of this process go on; what a lost one cost is estimated from that."""
        if self._driver.drives() and has_limits(self._limits):
            await self._store.write_rows(lambda connection: processes.see_calls(connection, self._process))

    async def _repair_if_due(self) -> None:
        """Clears the active run of conversations if it has ended or was deleted."""
        if time.monotonic() < self._next_repair:
            return
        self._next_repair = time.monotonic() + REPAIR_SECONDS
        stale = await self._store.read_rows(lambda connection: connection.execute(_stale).all())
        if stale:
            logger.warning("stale_active_runs_cleared", conversations=[row.id for row in stale])
            values = [{"b_id": row.id, "b_run": row.run_id} for row in stale]
            await self._store.write_rows(lambda connection: connection.execute(_clear_active_run, values))


async def _cancel_task(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


_runs = table_of(RunRow)
_conversations = table_of(ConversationRow)
_active = select(_runs.c.id).where(_runs.c.id == _conversations.c.run_id, is_unended)
_stale = select(_conversations.c.id, _conversations.c.run_id).where(
    _conversations.c.run_id.is_not(None), ~_active.exists()
)
_clear_active_run = (
    _conversations.update()
    .where(_conversations.c.id == bindparam("b_id"), _conversations.c.run_id == bindparam("b_run"))
    .values(run_id=null())
)
"""Only if the conversation still names the same run."""
