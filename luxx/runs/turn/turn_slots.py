"""The slots of the turns that work at once in one drive, and of the subagents that a turn waits for."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from sqlalchemy import Connection

from luxx.runs.context import RunServices
from luxx.runs.engine.slots import return_slots, take_slots

SLOT_POLL_SECONDS = 1.0
"""How often a run that has fewer slots than it could use asks for more."""


class TurnSlots:
    """The slots of one run; the first is there from the start.

    `is_short`: the last `take` got fewer than it asked for. `on_return` is called when slots became free.
    """

    def __init__(
        self, services: RunServices, run_id: str, fence: int, user_id: int, on_return: Callable[[], None]
    ) -> None:
        self._services = services
        self._run_id = run_id
        self._fence = fence
        self._user_id = user_id
        self._on_return = on_return
        self._lock = asyncio.Lock()
        self._held = 1
        self.is_short = False

    async def take(self, wanted: int) -> int:
        """Takes slots so that `wanted` turns can work at once; returns how many can, at least 1."""
        async with self._lock:
            more = wanted - self._held
            if more > 0:
                limits = self._services.config.limits

                def write(connection: Connection) -> int:
                    return take_slots(connection, self._run_id, self._fence, self._user_id, more, limits)

                self._held += await self._services.store.write_rows(write)
            self.is_short = self._held < wanted
            return min(wanted, self._held)

    async def keep(self, working: int) -> None:
        """Returns the slots beyond those of `working` turns."""
        async with self._lock:
            excess = self._held - max(1, working)
            if excess <= 0:
                return
            await self._services.store.write_rows(
                lambda connection: return_slots(connection, self._run_id, self._fence, excess)
            )
            self._held -= excess
        self._on_return()


class SubagentSlots:
    """Which subagents of a turn work, by the ids of their calls. One of them uses the slot of the turn."""

    def __init__(self, slots: TurnSlots) -> None:
        self._slots = slots
        self._working: set[str] = set()
        self._returned = asyncio.Condition()

    async def begin(self, call_id: str, *, must_have_slot: bool) -> None:
        """Counts a subagent that begins to work or goes on; `must_have_slot` waits for a slot for it."""
        async with self._returned:
            while await self._slots.take(len(self._working) + 1) <= len(self._working) and must_have_slot:
                with suppress(TimeoutError):
                    async with asyncio.timeout(SLOT_POLL_SECONDS):
                        await self._returned.wait()
            self._working.add(call_id)

    async def end(self, call_id: str) -> None:
        """Counts a subagent that has ended or waits for a person."""
        async with self._returned:
            self._working.discard(call_id)
            await self._slots.keep(len(self._working))
            self._returned.notify()
