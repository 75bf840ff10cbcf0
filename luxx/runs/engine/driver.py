"""The engine: that a run is driven, by one process at a time, and driven again after a crash.

What has happened is the log's to say; this only knows which drives are on in this process. Who is alive,
who lost a run and who waits for a place is found out in `reaping.py`.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress

import structlog
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from luxx.infra.bus.core import Bus
from luxx.infra.config.schema import LimitsConfig
from luxx.infra.store.engine import Store
from luxx.runs.engine import processes as leases
from luxx.runs.engine.cancel import CancelSignal, RunCancelled
from luxx.runs.engine.failing import give_up
from luxx.runs.engine.heartbeat import Driven, Reaper
from luxx.runs.engine.processes import Process, forget
from luxx.runs.log.events import LostRun
from luxx.wire.run import Run, RunStatus

Drive = Callable[[str, int, CancelSignal], Awaitable[None]]

MAX_LOSSES = 100
"""A run that was lost this often brings its process down, or cannot be read; it is given up."""

GIVEN_UP = f"This run was interrupted {MAX_LOSSES} times and is not taken up again."

CANCEL = "cancel"
"""The bus's topic for the id of a run that a person has ended: who drives it stops at once."""

QUEUE = "queue"
"""The bus's topic that says, without a word, that a run may wait for somebody to drive it."""

logger = structlog.get_logger()


class Durable:
    """One per process. `is_alone` where no other process may serve the database.

    `at_beat` is what else has to be looked at as often as who is alive.
    """

    def __init__(
        self,
        store: Store,
        drive: Drive,
        bus: Bus,
        *,
        process: Process,
        lease_seconds: float,
        limits: LimitsConfig,
        is_alone: bool,
        at_beat: Callable[[], Awaitable[None]],
    ) -> None:
        self._store = store
        self._drive = drive
        self._bus = bus
        self._is_alone = is_alone
        self._driven: dict[str, Driven] = {}
        self._starts: dict[str, asyncio.Event] = {}
        self._hurry = asyncio.Event()
        self.turn: AbstractAsyncContextManager[object] = nullcontext() if is_alone else asyncio.Lock()
        self.process = process.id
        self.is_open = False
        self.reaper = Reaper(
            store, self, process=process, lease_seconds=lease_seconds, limits=limits, is_alone=is_alone
        )
        self.reaper.each_beat(at_beat)

    async def open(self) -> None:
        """Takes up what dead processes left and what is queued, and goes on doing so until `leave`."""
        self.is_open = True
        self._bus.on(CANCEL, self._take_cancel)
        self._bus.on(QUEUE, lambda _process, _nothing: self.reaper.look())
        self._bus.on_up(self.reaper.look)
        await self.reaper.open()

    def leave(self) -> None:
        """Takes nothing more; what is driven here goes on, under its lease, until `drain` or `close`."""
        self.is_open = False

    async def drain(self, seconds: float) -> None:
        """Returns when nothing is driven here, after `seconds`, or once `hurry` is called."""
        await self.reaper.stop_looking()
        hurry = asyncio.create_task(self._hurry.wait())
        until = time.monotonic() + seconds
        while self._driven and not self._hurry.is_set() and (left := until - time.monotonic()) > 0:
            tasks = [driven.task for driven in self._driven.values()]
            await asyncio.wait([hurry, *tasks], timeout=left, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()

    def hurry(self) -> None:
        """Ends `drain`."""
        self._hurry.set()

    async def close(self) -> None:
        """Hands what is still driven here over: it is as its log says, and others are told of it."""
        self.leave()
        tasks = [driven.task for driven in self._driven.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.reaper.close()
        try:
            await self._store.write_rows(self._part)
        except SQLAlchemyError:
            # The lease will be over before long.
            logger.exception("leases_not_released")
        if tasks:
            self._bus.tell(QUEUE, b"")

    async def begin(self, run: Run) -> None:
        """Drives a run that was admitted here just now, or sees to it that it is driven in its turn."""
        if run.status == RunStatus.RUNNING:
            await self.start(run.id, 1)
            return
        self.wake()

    def wake(self) -> None:
        """A run waits for a place: somebody is to look."""
        self.reaper.has_queue = True
        self._bus.tell(QUEUE, b"")
        self.reaper.look()

    async def start(self, run_id: str, fence: int) -> None:
        """Drives a run that this process has taken."""
        known = self._driven.get(run_id)
        if known is not None:
            if known.fence >= fence:
                return
            known.task.cancel()
        signal = CancelSignal()
        task = asyncio.create_task(self._guard(run_id, fence, signal), name=f"drive {run_id}")
        self._driven[run_id] = Driven(task, signal, fence)
        if (awaited := self._starts.pop(run_id, None)) is not None:
            awaited.set()

    async def start_taken(self, taken: list[leases.Taken]) -> None:
        """Drives runs that were taken up, but for one that was taken up too often."""
        for run in taken:
            if run.losses < MAX_LOSSES:
                logger.info("run_taken_up", run_id=run.run_id, fence=run.fence)
                await self.start(run.run_id, run.fence)
                continue
            logger.error("run_given_up", run_id=run.run_id, fence=run.fence)
            await self._store.write_rows(
                lambda connection, run=run: give_up(
                    connection, run.run_id, run.fence, error=GIVEN_UP, kind="given_up"
                )
            )

    async def cancel(self, run_id: str) -> None:
        """Fires the cancel signal of a run that a person has ended, wherever it is driven.

        One that nobody drives is driven to its end here. That is asked of the database in any case: what
        is driven here may be another's since a moment ago, or about to wait for a person.
        """
        self._fire(run_id)
        self._bus.tell(CANCEL, run_id.encode())
        taken = await self._store.write_rows(
            lambda connection: leases.take_one(connection, self.process, run_id, is_alone=self._is_alone)
        )
        await self.start_taken(taken)

    async def wait(self, run_id: str, seconds: float | None) -> None:
        """Returns when this process no longer drives the run, or after `seconds`."""
        driven = self._driven.get(run_id)
        if driven is not None:
            await asyncio.wait([driven.task], timeout=seconds)

    async def wait_for_start(self, run_id: str, seconds: float) -> None:
        """Returns once this process drives the run, or after `seconds`."""
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

    def drives(self) -> dict[str, Driven]:
        """What is driven here just now."""
        return dict(self._driven)

    def lose(self, run_id: str, driven: Driven) -> None:
        """Ends a drive whose run is another process's now, or gone."""
        if self._driven.get(run_id) is driven:
            logger.info("run_lost", run_id=run_id)
            driven.task.cancel()

    def _take_cancel(self, _process: str, run_id: bytes) -> None:
        self._fire(run_id.decode("utf-8", "replace"))

    def _fire(self, run_id: str) -> bool:
        driven = self._driven.get(run_id)
        if driven is not None:
            driven.signal.fire()
        return driven is not None

    def _part(self, connection: Connection) -> None:
        leases.release(connection, self.process)
        forget(connection, self.process)

    async def _guard(self, run_id: str, fence: int, signal: CancelSignal) -> None:
        try:
            await self._drive(run_id, fence, signal)
        except LostRun:
            logger.info("run_lost", run_id=run_id)
        except (Exception, RunCancelled):
            # The log says where it stands; the reaper finds that nobody drives it.
            logger.exception("drive_failed", run_id=run_id)
        finally:
            driven = self._driven.get(run_id)
            if driven is not None and driven.fence == fence:
                del self._driven[run_id]
            self._give_place()

    def _give_place(self) -> None:
        """A run has ended: whoever waits for its place may have it."""
        if not self.reaper.has_queue:
            return
        if self.is_open:
            self.reaper.look()
        if not self.is_open or self.reaper.has_others_queue:
            self._bus.tell(QUEUE, b"")
