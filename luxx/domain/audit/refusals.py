"""Refusals in the audit log, bounded: whoever is refused again and again must not fill the disk.

In each minute one user, or one address that has no user, gets PER_ACTOR entries and all together get
ALTOGETHER. What is over that is counted, and the count is written when the minute is over.
"""

import time
from collections.abc import Callable

import msgspec

from luxx.domain.audit.entries import Action, Actor, Detail, Entry, Outcome, write_afterwards
from luxx.infra.store.engine import Store

WINDOW_SECONDS = 60.0
PER_ACTOR = 10
ALTOGETHER = 60
SUMMED_UP = 20
"""Most actors who get a count of their own at the end of a minute; the others get one together."""


class Refusals:
    """One per process. Nothing here fails: a refusal that cannot be recorded is still a refusal."""

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._began = clock()
        self._written: dict[str, int] = {}
        self._over: dict[str, tuple[Entry, int]] = {}
        self._over_together = 0

    async def note(
        self,
        action: Action,
        actor: Actor,
        kind: str,
        *,
        detail: Detail | None = None,
        target: tuple[str, str] | None = None,
    ) -> None:
        """Records that `actor` was refused, for the reason `kind`."""
        target_type, target_id = target or (None, None)
        entry = Entry(
            action=action,
            actor=actor,
            outcome=Outcome.REFUSED,
            target_type=target_type,
            target_id=target_id,
            detail=msgspec.structs.replace(detail or Detail(), kind=kind),
        )
        due = self._turn_over() if self._is_over() else []
        if self._has_place(entry):
            due.append(entry)
        await self._write(due)

    async def flush_if_due(self) -> None:
        """Writes the counts of a minute that is over, though nobody was refused since."""
        if self._is_over():
            await self.flush()

    async def flush(self) -> None:
        """Writes all counts; at a stop."""
        await self._write(self._turn_over())

    def _is_over(self) -> bool:
        return self._clock() - self._began >= WINDOW_SECONDS

    def _has_place(self, entry: Entry) -> bool:
        key = f"user {entry.actor.user_id}" if entry.actor.user_id else entry.actor.address
        written = self._written.get(key, 0)
        if written < PER_ACTOR and sum(self._written.values()) < ALTOGETHER:
            self._written[key] = written + 1
            return True
        if key in self._over or len(self._over) < SUMMED_UP:
            first, count = self._over.get(key, (entry, 0))
            self._over[key] = (first, count + 1)
        else:
            self._over_together += 1
        return False

    def _turn_over(self) -> list[Entry]:
        """Begins a new minute; what is to be said of the old one."""
        sums = [
            msgspec.structs.replace(
                first,
                target_type=None,
                target_id=None,
                detail=msgspec.structs.replace(first.detail, count=count, hosts=msgspec.UNSET),
            )
            for first, count in self._over.values()
        ]
        if self._over_together:
            told = Detail(kind="many_actors", count=self._over_together)
            sums.append(Entry(action=Action.REQUEST, actor=Actor(), outcome=Outcome.REFUSED, detail=told))
        self._began, self._over_together = self._clock(), 0
        self._written.clear()
        self._over.clear()
        return sums

    async def _write(self, entries: list[Entry]) -> None:
        await write_afterwards(self._store, entries, failure="refusals_not_recorded")
