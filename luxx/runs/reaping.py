"""The beat of a process, and what it looks for: that it counts as alive, that what it drives is still its
own, which runs nobody drives, which wait for a place, and what the database says that is not true.

Looking is done at each beat, when a place is free, and when another process says so; the beat suffices.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec
import structlog
from sqlalchemy.orm import Session

from luxx.config import LimitsConfig
from luxx.runs import leases, mending, places, processes
from luxx.runs.cancel import CancelSignal
from luxx.runs.processes import Process
from luxx.store.engine import Store
from luxx.wire.run import RunKind

BEATS_PER_LEASE = 4
"""How often a lease is renewed within its length: a process may miss three beats and stays alive."""

MOST_BETWEEN_BEATS = 1.0
"""Seconds; a process that died is missed so long after its lease at the latest."""

CALM_BEATS = 3
"""A process that could not beat for longer than its lease lets others beat first: they could not either,
perhaps, and are alive."""

MENDING_SECONDS = 60.0
"""How often conversations are looked through for untruths: all of them are read."""

FRESH = 3
"""Taken up less often than this, a run whose drive failed is taken up again at once, else after a lease."""

logger = structlog.get_logger()


class Driven(msgspec.Struct):
    """A drive that is on in this process."""

    task: asyncio.Task[None]
    signal: CancelSignal
    fence: int


class Driver(Protocol):
    """Who drives runs here (`durable.py`). Once it is not `is_open`, it takes nothing more."""

    is_open: bool

    def drives(self) -> dict[str, Driven]: ...

    def lose(self, run_id: str, driven: Driven) -> None: ...

    async def start_taken(self, taken: list[leases.Taken]) -> None: ...


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What one look at the database found; `kinds` are those that this process takes just now."""

    kinds: frozenset[RunKind]
    lost: list[leases.Taken]
    cancelled: list[str]
    queued: set[RunKind]


class Reaper:
    """One per process. `has_queue`: runs wait for a place, as far as is known here; `has_others_queue`: of
    kinds that this process leaves to others."""

    def __init__(
        self,
        store: Store,
        driver: Driver,
        *,
        process: Process,
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
        self._between = lease_seconds / BEATS_PER_LEASE
        if not is_alone:
            self._between = min(self._between, MOST_BETWEEN_BEATS)
        self._has_to_look = asyncio.Event()
        self._strays: dict[leases.Taken, float] = {}
        self._last_beat = self._calm_until = 0.0
        self._next_mending = 0.0
        self._also: list[Callable[[], Awaitable[None]]] = []
        self._beating: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self.has_queue = False
        self.has_others_queue = False

    def each_beat(self, work: Callable[[], Awaitable[None]]) -> None:
        """Has `work` done at the start and at each beat: what is due at a time of the day, for example."""
        self._also.append(work)

    async def open(self) -> None:
        """Makes the process known, takes up what there is, then goes on beating and looking."""
        lease = None if self._is_alone else self._lease_seconds
        await self._store.write(
            lambda session: processes.register(session.connection(), self._process, lease)
        )
        self._last_beat = time.monotonic()
        await self._mend()
        await self._look()
        for work in self._also:
            await work()
        self._beating = asyncio.create_task(self._keep_beating())
        self._looking = asyncio.create_task(self._keep_looking())

    async def stop_looking(self) -> None:
        """Takes nothing more up; the beat goes on."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def close(self) -> None:
        """Ends the beat too; the process counts as dead once its lease is over, if it does not say so."""
        await self.stop_looking()
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)

    def look(self) -> None:
        """Looks soon, once for all who ask until then."""
        self._has_to_look.set()

    async def _keep_beating(self) -> None:
        while True:
            await asyncio.sleep(self._between)
            try:
                await self._beat()
            except Exception:
                # Whatever it was, the next beat may succeed; without beats every run here would be lost.
                logger.exception("beat_failed")

    async def _keep_looking(self) -> None:
        while True:
            await self._has_to_look.wait()
            self._has_to_look.clear()
            try:
                await self._look()
            except Exception:
                # The next beat looks again.
                logger.exception("look_failed")

    async def _beat(self) -> None:
        is_late = time.monotonic() - self._last_beat > self._lease_seconds
        if not self._is_alone:
            was_alive = await self._store.write(lambda session: self._renew(session, is_late=is_late))
            if not was_alive:
                logger.warning("process_was_declared_dead", process=self._process.id)
        now = self._last_beat = time.monotonic()
        if is_late:
            self._calm_until = now + CALM_BEATS * self._between
        await self._check_own()
        self.look()
        for work in self._also:
            await work()
        if now >= self._next_mending:
            await self._mend()

    def _renew(self, session: Session, *, is_late: bool) -> bool:
        connection = session.connection()
        was_alive = processes.renew(connection, self._process, self._lease_seconds)
        if not is_late:
            processes.sweep(connection)
        return was_alive

    async def _check_own(self) -> None:
        """Ends what a person ended and what is no longer ours; finds what is ours and not driven."""
        mine = self._driver.drives()

        def read(session: Session) -> tuple[list[leases.Owned], set[str]]:
            connection = session.connection()
            owned = leases.owned_by(connection, self._process.id)
            missed = mine.keys() - {run.run_id for run in owned}
            return owned, leases.taken_from(connection, self._process.id, missed)

        owned, taken_from = await self._store.read(read)
        for run_id in taken_from:
            self._driver.lose(run_id, mine[run_id])
        for run in owned:
            if run.is_cancelled and run.run_id in mine:
                mine[run.run_id].signal.fire()
        driven = self._driver.drives()
        await self._take_strays(
            [leases.Taken(run.run_id, run.fence) for run in owned if run.run_id not in driven]
        )

    async def _take_strays(self, strays: list[leases.Taken]) -> None:
        """Takes up what the database calls driven here and is not: its drive failed. One that was admitted
        a moment ago is about to be driven, so it is given a beat."""
        now = time.monotonic()
        self._strays = {run: self._strays.get(run, now) for run in strays}
        due = [
            run
            for run, since in self._strays.items()
            if now - since >= (self._between / 2 if run.fence < FRESH else self._lease_seconds)
        ]
        if due and self._driver.is_open:
            taken = await self._store.write(
                lambda session: leases.take(session.connection(), self._process.id, due)
            )
            await self._driver.start_taken(taken)

    async def _look(self) -> None:
        if not self._driver.is_open:
            return
        seen = await self._store.read(self._see)
        self.has_queue = bool(seen.queued)
        self.has_others_queue = bool(seen.queued - seen.kinds)
        if seen.lost or seen.cancelled or seen.queued & seen.kinds:
            taken = await self._store.write(lambda session: self._take(session, seen))
            await self._driver.start_taken(taken)

    def _see(self, session: Session) -> Seen:
        connection, me = session.connection(), self._process.id
        are_workers_up = not self._is_alone and processes.has_workers(connection)
        kinds = places.kinds_of(self._process.kind, are_workers_up=are_workers_up)
        is_calm = time.monotonic() >= self._calm_until
        return Seen(
            kinds=kinds,
            lost=leases.find_lost(connection, me, kinds, is_alone=self._is_alone) if is_calm else [],
            cancelled=leases.find_cancelled(connection),
            queued=places.queued_kinds(connection),
        )

    def _take(self, session: Session, seen: Seen) -> list[leases.Taken]:
        connection, me = session.connection(), self._process.id
        taken = leases.take(connection, me, seen.lost)
        for run_id in seen.cancelled:
            taken += leases.begin(connection, me, run_id)
        if seen.queued & seen.kinds:
            taken += places.take_queued(connection, me, seen.kinds, self._limits)
        return taken

    async def _mend(self) -> None:
        self._next_mending = time.monotonic() + MENDING_SECONDS
        untrue = await self._store.read(mending.find_untrue)
        if untrue:
            logger.warning("conversations_freed", conversations=[conversation for conversation, _ in untrue])
            await self._store.write(lambda session: mending.free(session, untrue))
