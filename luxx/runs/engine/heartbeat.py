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
from luxx.runs.engine.processes import Process
from luxx.runs.models import RunRow
from luxx.wire.run import ENDED, RunKind

BEATS_PER_LEASE = 4
"""How often a lease is renewed within its length: a process may miss three beats and stays alive."""

MOST_BETWEEN_BEATS = 1.0
"""Seconds; a process that died is missed so long after its lease at the latest."""

CALM_BEATS = 3
"""A process that could not beat for about a lease lets others beat first: they could not either, perhaps, and
are alive."""

LATE_BEATS = 2
"""So many beats before the end of its own lease others' may be over: they beat a little earlier."""

MENDING_SECONDS = 60.0
"""How often conversations are looked through for untruths: all that name a run are read."""

LOOK_SECONDS = 5.0
"""How long a look that is under way may take when the process is to stop."""

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
    turn: AbstractAsyncContextManager[object]

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
        self._has_to_tend = asyncio.Event()
        self._is_looking = True
        self._beating: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._tending: asyncio.Task[None] | None = None
        self.has_queue = False
        self.has_others_queue = False

    def each_beat(self, work: Callable[[], Awaitable[None]]) -> None:
        """Has `work` done at the start and after each beat: what is due at a time of the day, for example.

        Beats do not wait for it.
        """
        self._also.append(work)

    async def open(self) -> None:
        """Makes the process known, takes up what there is, then goes on beating and looking."""
        lease = None if self._is_alone else self._lease_seconds
        await self._store.first(lambda connection: processes.register(connection, self._process, lease))
        self._last_beat = time.monotonic()
        await self._mend()
        await self._look()
        self._has_to_tend.set()
        self._beating = asyncio.create_task(self._keep_beating())
        self._looking = asyncio.create_task(self._keep_looking())
        self._tending = asyncio.create_task(self._keep_tending())

    async def stop_looking(self) -> None:
        """Takes nothing more up, once what a look has found is driven; the beat goes on."""
        self._is_looking = False
        self._has_to_look.set()
        if self._looking is not None:
            # Cut off, it may have taken runs that nobody would drive.
            await asyncio.wait([self._looking], timeout=LOOK_SECONDS)
        await _end(self._looking)

    async def close(self) -> None:
        """Ends the beat too; the process counts as dead once its lease is over, if it does not say so."""
        await self.stop_looking()
        await _end(self._tending)
        await _end(self._beating)

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
        while self._is_looking:
            await self._has_to_look.wait()
            self._has_to_look.clear()
            try:
                await self._look()
            except Exception:
                # The next beat looks again.
                logger.exception("look_failed")

    async def _keep_tending(self) -> None:
        while True:
            await self._has_to_tend.wait()
            self._has_to_tend.clear()
            for work in (*self._also, self._mend_in_time):
                try:
                    if self._driver.is_open:
                        await work()
                except Exception:
                    # After the next beat it is tried again.
                    logger.exception("tending_failed")

    def _is_late(self) -> bool:
        """Whether others may count as dead that only could not beat, as this process could not."""
        return time.monotonic() - self._last_beat > self._lease_seconds - LATE_BEATS * self._between

    async def _beat(self) -> None:
        is_late = self._is_late()
        if not self._is_alone:
            was_alive = await self._store.first(lambda connection: self._renew(connection, is_late=is_late))
            if not was_alive:
                logger.warning("process_was_declared_dead", process=self._process.id)
        now = self._last_beat = time.monotonic()
        if is_late:
            self._calm_until = now + CALM_BEATS * self._between
        await self._check_own()
        self.look()
        self._has_to_tend.set()

    def _renew(self, connection: Connection, *, is_late: bool) -> bool:
        was_alive = processes.renew(connection, self._process, self._lease_seconds)
        if not is_late:
            processes.sweep(connection)
        return was_alive

    async def _check_own(self) -> None:
        """Ends what a person ended and what is no longer ours; finds what is ours and not driven."""
        mine = self._driver.drives()

        def read(connection: Connection) -> tuple[list[leases.Owned], set[str]]:
            owned = leases.owned_by(connection, self._process.id)
            missed = mine.keys() - {run.run_id for run in owned}
            return owned, leases.taken_from(connection, self._process.id, missed)

        ask = self._store.read_rows if self._is_alone else self._store.first
        owned, taken_from = await ask(read)
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
            taken = await self._store.write_rows(
                lambda connection: leases.take(connection, self._process.id, due)
            )
            await self._driver.start_taken(taken)

    async def _look(self) -> None:
        if not self._driver.is_open:
            return
        seen = await self._store.read_rows(self._see)
        self.has_queue = bool(seen.queued)
        self.has_others_queue = bool(seen.queued - seen.kinds)
        if seen.lost or seen.cancelled:
            taken = await self._store.write_rows(lambda connection: self._take(connection, seen))
            await self._driver.start_taken(taken)
        if seen.queued & seen.kinds:
            async with self._driver.turn:
                taken = await self._store.write_rows(lambda connection: self._take_queued(connection, seen))
            await self._driver.start_taken(taken)

    def _see(self, connection: Connection) -> Seen:
        me = self._process.id
        are_workers_up = not self._is_alone and processes.has_workers(connection)
        kinds = places.kinds_of(self._process.kind, are_workers_up=are_workers_up)
        # When the database is back, whoever looks before anybody has beaten would find all of them dead.
        is_calm = self._is_alone or (not self._is_late() and time.monotonic() >= self._calm_until)
        return Seen(
            kinds=kinds,
            lost=leases.find_lost(connection, me, kinds, is_alone=self._is_alone) if is_calm else [],
            cancelled=leases.find_cancelled(connection),
            queued=places.queued_kinds(connection),
        )

    def _take(self, connection: Connection, seen: Seen) -> list[leases.Taken]:
        """What nobody drives and has a place, or needs none."""
        me = self._process.id
        taken = leases.take(connection, me, seen.lost)
        for run_id in seen.cancelled:
            taken += leases.begin(connection, me, run_id)
        return taken

    def _take_queued(self, connection: Connection, seen: Seen) -> list[leases.Taken]:
        return places.take_queued(connection, self._process.id, seen.kinds, self._limits)

    async def _mend_in_time(self) -> None:
        if time.monotonic() >= self._next_mending:
            await self._mend()

    async def _mend(self) -> None:
        self._next_mending = time.monotonic() + MENDING_SECONDS
        untrue = await self._store.read_rows(find_untrue)
        if untrue:
            logger.warning("conversations_freed", conversations=[conversation for conversation, _ in untrue])
            await self._store.write_rows(lambda connection: free(connection, untrue))


async def _end(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


_runs = table_of(RunRow)
_conversations = table_of(ConversationRow)
_active = select(_runs.c.id).where(
    _runs.c.id == _conversations.c.run_id, _runs.c.status.not_in([status.value for status in ENDED])
)
_untrue = select(_conversations.c.id, _conversations.c.run_id).where(
    _conversations.c.run_id.is_not(None), ~_active.exists()
)
_free = (
    _conversations.update()
    .where(_conversations.c.id == bindparam("b_id"), _conversations.c.run_id == bindparam("b_run"))
    .values(run_id=null())
)


def find_untrue(connection: Connection) -> list[tuple[str, str]]:
    """Conversations and the runs that they wrongly name."""
    return [(row.id, row.run_id) for row in connection.execute(_untrue)]


def free(connection: Connection, untrue: list[tuple[str, str]]) -> None:
    """Frees conversations that still name the same run; one that has ended never runs again."""
    for conversation_id, run_id in untrue:
        connection.execute(_free, {"b_id": conversation_id, "b_run": run_id})
