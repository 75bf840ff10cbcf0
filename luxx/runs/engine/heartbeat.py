"""The beat of a process, and what it looks for: that it counts as alive, that what it drives is still its
own, which runs nobody drives, which wait for a place, and what the database says that is not true.

Looking is done at each beat, when a place is free, and when another process says so; the beat suffices.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec
import structlog
from sqlalchemy import Connection, bindparam, null, select

from luxx.domain.conversations.models import ConversationRow
from luxx.infra.config.schema import LimitsConfig
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import table_of
from luxx.runs.engine import processes
from luxx.runs.engine import processes as leases
from luxx.runs.engine import slots as places
from luxx.runs.engine.cancel import CancelSignal
from luxx.runs.engine.processes import ProcessInfo
from luxx.runs.models import RunRow
from luxx.wire.run import ENDED, RunKind

HEARTBEATS_PER_LEASE = 4
"""How often a lease is renewed within its length: a process may miss three beats and stays alive."""

MAX_HEARTBEAT_SECONDS = 1.0
"""Seconds; a process that died is missed so long after its lease at the latest."""

GRACE_HEARTBEATS = 3
"""A process that could not beat for about a lease lets others beat first: they could not either, perhaps, and
are alive."""

LATE_HEARTBEATS = 2
"""So many beats before the end of its own lease others' may be over: they beat a little earlier."""

REPAIR_SECONDS = 60.0
"""How often conversations are looked through for untruths: all that name a run are read."""

SCAN_TIMEOUT_SECONDS = 5.0
"""How long a look that is under way may take when the process is to stop."""

RETRY_AT_ONCE_BELOW = 3
"""Taken up less often than this, a run whose drive failed is taken up again at once, else after a lease."""

logger = structlog.get_logger()


class ActiveDrive(msgspec.Struct):
    """A drive that is on in this process."""

    task: asyncio.Task[None]
    signal: CancelSignal
    fence: int


class DriveControl(Protocol):
    """Who drives runs here (`durable.py`). Once it is not `is_open`, it takes nothing more."""

    is_open: bool
    admission_lock: AbstractAsyncContextManager[object]

    def drives(self) -> dict[str, ActiveDrive]: ...

    def abandon(self, run_id: str, driven: ActiveDrive) -> None: ...

    async def start_claimed(self, claimed: list[leases.ClaimedRun]) -> None: ...


class ScanResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one look at the database found; `kinds` are those that this process takes just now."""

    kinds: frozenset[RunKind]
    lost: list[leases.ClaimedRun]
    cancelled: list[str]
    queued: set[RunKind]


class Heartbeat:
    """One per process. `has_queue`: runs wait for a place, as far as is known here; `has_others_queue`: of
    kinds that this process leaves to others."""

    def __init__(
        self,
        store: Store,
        driver: DriveControl,
        *,
        process: ProcessInfo,
        lease_seconds: float,
        limits: LimitsConfig,
        is_alone: bool,
    ) -> None:
        self._store = store
        self._driver = driver
        self._process = process
        self._lease_seconds = lease_seconds
        self._limits = limits
        self._is_alone = is_alone
        self._interval = lease_seconds / HEARTBEATS_PER_LEASE
        if not is_alone:
            self._interval = min(self._interval, MAX_HEARTBEAT_SECONDS)
        self._scan_requested = asyncio.Event()
        self._orphaned_runs: dict[leases.ClaimedRun, float] = {}
        self._last_heartbeat = self._grace_until = 0.0
        self._next_repair = 0.0
        self._heartbeat_work: list[Callable[[], Awaitable[None]]] = []
        self._maintenance_requested = asyncio.Event()
        self._is_scanning = True
        self._heartbeat_task: asyncio.Task[None] | None = None
        self._scan_task: asyncio.Task[None] | None = None
        self._maintenance_task: asyncio.Task[None] | None = None
        self.has_queue = False
        self.has_others_queue = False

    def on_each_heartbeat(self, work: Callable[[], Awaitable[None]]) -> None:
        """Has `work` done at the start and after each beat: what is due at a time of the day, for example.

        Beats do not wait for it.
        """
        self._heartbeat_work.append(work)

    async def open(self) -> None:
        """Makes the process known, takes up what there is, then goes on beating and looking."""
        lease = None if self._is_alone else self._lease_seconds
        await self._store.first(lambda connection: processes.register(connection, self._process, lease))
        self._last_heartbeat = time.monotonic()
        await self._repair()
        await self._scan()
        self._maintenance_requested.set()
        self._heartbeat_task = asyncio.create_task(self._heartbeat_loop())
        self._scan_task = asyncio.create_task(self._scan_loop())
        self._maintenance_task = asyncio.create_task(self._maintenance_loop())

    async def stop_scanning(self) -> None:
        """Takes nothing more up, once what a look has found is driven; the beat goes on."""
        self._is_scanning = False
        self._scan_requested.set()
        if self._scan_task is not None:
            # Cut off, it may have taken runs that nobody would drive.
            await asyncio.wait([self._scan_task], timeout=SCAN_TIMEOUT_SECONDS)
        await _cancel_task(self._scan_task)

    async def close(self) -> None:
        """Ends the beat too; the process counts as dead once its lease is over, if it does not say so."""
        await self.stop_scanning()
        await _cancel_task(self._maintenance_task)
        await _cancel_task(self._heartbeat_task)

    def request_scan(self) -> None:
        """Looks soon, once for all who ask until then."""
        self._scan_requested.set()

    async def _heartbeat_loop(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            try:
                await self._send_heartbeat()
            except Exception:
                # Whatever it was, the next beat may succeed; without beats every run here would be lost.
                logger.exception("beat_failed")

    async def _scan_loop(self) -> None:
        while self._is_scanning:
            await self._scan_requested.wait()
            self._scan_requested.clear()
            try:
                await self._scan()
            except Exception:
                # The next beat looks again.
                logger.exception("look_failed")

    async def _maintenance_loop(self) -> None:
        while True:
            await self._maintenance_requested.wait()
            self._maintenance_requested.clear()
            for work in (*self._heartbeat_work, self._repair_if_due):
                try:
                    if self._driver.is_open:
                        await work()
                except Exception:
                    # After the next beat it is tried again.
                    logger.exception("tending_failed")

    def _is_late(self) -> bool:
        """Whether others may count as dead that only could not beat, as this process could not."""
        return (
            time.monotonic() - self._last_heartbeat > self._lease_seconds - LATE_HEARTBEATS * self._interval
        )

    async def _send_heartbeat(self) -> None:
        is_late = self._is_late()
        if not self._is_alone:
            was_alive = await self._store.first(lambda connection: self._renew(connection, is_late=is_late))
            if not was_alive:
                logger.warning("process_was_declared_dead", process=self._process.id)
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
        """Ends what a person ended and what is no longer ours; finds what is ours and not driven."""
        own_drives = self._driver.drives()

        def read(connection: Connection) -> tuple[list[leases.OwnedRun], set[str]]:
            owned = leases.owned_by(connection, self._process.id)
            missed = own_drives.keys() - {run.run_id for run in owned}
            return owned, leases.lost_to_others(connection, self._process.id, missed)

        run_read = self._store.read_rows if self._is_alone else self._store.first
        owned, lost_to_others = await run_read(read)
        for run_id in lost_to_others:
            self._driver.abandon(run_id, own_drives[run_id])
        for run in owned:
            if run.is_cancelled and run.run_id in own_drives:
                own_drives[run.run_id].signal.fire()
        driven = self._driver.drives()
        await self._claim_orphaned(
            [leases.ClaimedRun(run.run_id, run.fence) for run in owned if run.run_id not in driven]
        )

    async def _claim_orphaned(self, orphaned_runs: list[leases.ClaimedRun]) -> None:
        """Takes up what the database calls driven here and is not: its drive failed. One that was admitted
        a moment ago is about to be driven, so it is given a beat."""
        now = time.monotonic()
        self._orphaned_runs = {run: self._orphaned_runs.get(run, now) for run in orphaned_runs}
        due = [
            run
            for run, since in self._orphaned_runs.items()
            if now - since >= (self._interval / 2 if run.fence < RETRY_AT_ONCE_BELOW else self._lease_seconds)
        ]
        if due and self._driver.is_open:
            claimed = await self._store.write_rows(
                lambda connection: leases.claim(connection, self._process.id, due)
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
                    lambda connection: self._claim_queued(connection, scan)
                )
            await self._driver.start_claimed(claimed)

    def _read_scan(self, connection: Connection) -> ScanResult:
        own_id = self._process.id
        are_workers_up = not self._is_alone and processes.has_workers(connection)
        kinds = places.kinds_of(self._process.kind, are_workers_up=are_workers_up)
        # When the database is back, whoever looks before anybody has beaten would find all of them dead.
        may_claim_lost = self._is_alone or (not self._is_late() and time.monotonic() >= self._grace_until)
        return ScanResult(
            kinds=kinds,
            lost=leases.find_lost(connection, own_id, kinds, is_alone=self._is_alone)
            if may_claim_lost
            else [],
            cancelled=leases.find_cancelled(connection),
            queued=places.queued_kinds(connection),
        )

    def _claim_undriven(self, connection: Connection, scan: ScanResult) -> list[leases.ClaimedRun]:
        """What nobody drives and has a place, or needs none."""
        own_id = self._process.id
        claimed = leases.claim(connection, own_id, scan.lost)
        for run_id in scan.cancelled:
            claimed += leases.claim_undriven(connection, own_id, run_id)
        return claimed

    def _claim_queued(self, connection: Connection, scan: ScanResult) -> list[leases.ClaimedRun]:
        return places.claim_queued(connection, self._process.id, scan.kinds, self._limits)

    async def _repair_if_due(self) -> None:
        if time.monotonic() >= self._next_repair:
            await self._repair()

    async def _repair(self) -> None:
        self._next_repair = time.monotonic() + REPAIR_SECONDS
        stale = await self._store.read_rows(find_stale)
        if stale:
            logger.warning("conversations_freed", conversations=[conversation for conversation, _ in stale])
            await self._store.write_rows(lambda connection: clear_stale(connection, stale))


async def _cancel_task(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


_runs = table_of(RunRow)
_conversations = table_of(ConversationRow)
_active = select(_runs.c.id).where(
    _runs.c.id == _conversations.c.run_id, _runs.c.status.not_in([status.value for status in ENDED])
)
_stale = select(_conversations.c.id, _conversations.c.run_id).where(
    _conversations.c.run_id.is_not(None), ~_active.exists()
)
_clear_active_run = (
    _conversations.update()
    .where(_conversations.c.id == bindparam("b_id"), _conversations.c.run_id == bindparam("b_run"))
    .values(run_id=null())
)


def find_stale(connection: Connection) -> list[tuple[str, str]]:
    """Conversations and the runs that they wrongly name."""
    return [(row.id, row.run_id) for row in connection.execute(_stale)]


def clear_stale(connection: Connection, stale: list[tuple[str, str]]) -> None:
    """Frees conversations that still name the same run; one that has ended never runs again."""
    for conversation_id, run_id in stale:
        connection.execute(_clear_active_run, {"b_id": conversation_id, "b_run": run_id})
