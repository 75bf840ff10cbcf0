"""The engine: that a run is driven, by one process at a time, and driven again after a crash.

What has happened is the log's to say; this only knows which drives are on in this process and which
leases keep others away.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

import msgspec
import structlog

from luxx.runs import leases
from luxx.runs.admission import Driver
from luxx.runs.cancel import CancelSignal, RunCancelled
from luxx.runs.events import LostRun
from luxx.runs.giving_up import give_up
from luxx.store.engine import Store

Drive = Callable[[str, int, CancelSignal], Awaitable[None]]

BEATS_PER_LEASE = 4
"""How often a lease is renewed within its length: a process may miss three beats and keep its runs."""

MAX_DRIVES = 100
"""A run that was taken up this often brings its process down, or cannot be read; it is given up."""

GIVEN_UP = f"This run was interrupted {MAX_DRIVES} times and is not taken up again."

logger = structlog.get_logger()


class Driven(msgspec.Struct):
    """A drive that is on in this process."""

    task: asyncio.Task[None]
    signal: CancelSignal
    fence: int


class Durable:
    """One per process. `slot` names it; `is_alone` where no other process may serve the database.

    `at_beat` is what else has to be looked at as often as leases are.
    """

    def __init__(
        self,
        store: Store,
        drive: Drive,
        *,
        slot: str,
        lease_seconds: float,
        is_alone: bool,
        at_beat: Callable[[], Awaitable[None]],
    ) -> None:
        self._at_beat = at_beat
        self._store = store
        self._drive = drive
        self._slot = slot
        self._lease_seconds = lease_seconds
        self._is_alone = is_alone
        self._driven: dict[str, Driven] = {}
        self._beat: asyncio.Task[None] | None = None
        self.is_open = False

    async def open(self) -> None:
        """Takes up what a dead process left, then keeps leases alive until `close`."""
        self.is_open = True
        await self._take_lost()
        await self._at_beat()
        self._beat = asyncio.create_task(self._keep_beating())

    async def close(self, grace_seconds: float) -> None:
        """Lets drives end for a while; the rest is left as it is in the log, for the next process."""
        self.is_open = False
        if self._beat is not None:
            self._beat.cancel()
        tasks = [driven.task for driven in self._driven.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=grace_seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._store.write(lambda session: leases.release(session, self._slot))

    def driver(self) -> Driver:
        """The lease that a run made now starts with."""
        return Driver(owner=self._slot, lease_until=time.time() + self._lease_seconds)

    async def start(self, run_id: str, fence: int) -> None:
        """Drives a run that this process has taken."""
        known = self._driven.get(run_id)
        if known is not None and known.fence >= fence:
            return
        signal = CancelSignal()
        task = asyncio.create_task(self._guard(run_id, fence, signal), name=f"drive {run_id}")
        self._driven[run_id] = Driven(task, signal, fence)

    def cancel(self, run_id: str) -> bool:
        """Fires the run's cancel signal; False if this process does not drive it."""
        driven = self._driven.get(run_id)
        if driven is None:
            return False
        driven.signal.fire()
        return True

    async def adopt(self, run_id: str) -> None:
        """Takes up a run that nobody drives; leaves one alone that another process does."""
        now = time.time()
        until = now + self._lease_seconds
        taken = await self._store.write(
            lambda session: leases.take_one(session, self._slot, run_id, now=now, until=until)
        )
        await self._start_taken(taken)

    async def wait(self, run_id: str, seconds: float | None) -> None:
        """Returns when this process no longer drives the run, or after `seconds`."""
        driven = self._driven.get(run_id)
        if driven is not None:
            await asyncio.wait([driven.task], timeout=seconds)

    async def _guard(self, run_id: str, fence: int, signal: CancelSignal) -> None:
        try:
            await self._drive(run_id, fence, signal)
        except LostRun:
            logger.info("run_lost", run_id=run_id)
        except (Exception, RunCancelled):
            # The log says where it stands; once the lease is over somebody takes it up.
            logger.exception("drive_failed", run_id=run_id)
        finally:
            driven = self._driven.get(run_id)
            if driven is not None and driven.fence == fence:
                del self._driven[run_id]

    async def _keep_beating(self) -> None:
        while True:
            await asyncio.sleep(self._lease_seconds / BEATS_PER_LEASE)
            try:
                await self._renew()
                await self._take_lost()
                await self._at_beat()
            except Exception:
                # Whatever it was, the next beat may succeed; without beats every run here would be lost.
                logger.exception("beat_failed")

    async def _renew(self) -> None:
        mine, until = list(self._driven), time.time() + self._lease_seconds
        if not mine:
            return
        await self._store.write(lambda session: leases.renew(session, self._slot, mine, until))
        for run_id in await self._store.read(lambda session: leases.cancelled(session, mine)):
            self.cancel(run_id)

    async def _take_lost(self) -> None:
        now, driven = time.time(), list(self._driven)
        until = now + self._lease_seconds
        taken = await self._store.write(
            lambda session: leases.take_lost(
                session, self._slot, now=now, until=until, driven=driven, is_alone=self._is_alone
            )
        )
        await self._start_taken(taken)

    async def _start_taken(self, taken: list[leases.Taken]) -> None:
        for run in taken:
            if run.fence <= MAX_DRIVES:
                logger.info("run_taken_up", run_id=run.run_id, fence=run.fence)
                await self.start(run.run_id, run.fence)
                continue
            logger.error("run_given_up", run_id=run.run_id, fence=run.fence)
            await self._store.write(
                lambda session, run=run: give_up(
                    session, run.run_id, run.fence, error=GIVEN_UP, kind="given_up"
                )
            )
