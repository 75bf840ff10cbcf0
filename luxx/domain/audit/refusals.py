"""Rate-limited audit entries for refusals, so that repeated refusals cannot fill the disk.

Per minute, one user, or one address without a user, gets MAX_PER_ACTOR entries, and all together get
MAX_PER_WINDOW. Further refusals are counted, and the counts are written when the minute is over.
"""

import time
from collections.abc import Callable

import msgspec

from luxx.domain.audit.entries import (
    Action,
    Actor,
    AuditEntry,
    AuditOutcome,
    Detail,
    record_in_own_transaction,
)
from luxx.infra.store.engine import Store

WINDOW_SECONDS = 60.0
MAX_PER_ACTOR = 10
MAX_PER_WINDOW = 60
MAX_ACTOR_SUMMARIES = 20
"""The number of actors with their own count per minute; the others share one."""


class Refusals:
    """One per process. No method raises: a refusal that cannot be recorded must still be answered."""

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._window_start = clock()
        self._written: dict[str, int] = {}
        self._overflow: dict[str, tuple[AuditEntry, int]] = {}
        self._overflow_of_others = 0

    async def note(
        self,
        action: Action,
        actor: Actor,
        kind: str,
        *,
        detail: Detail | None = None,
        target: tuple[str, str] | None = None,
    ) -> None:
        """Records that `actor` was refused; `kind` is the reason."""
        target_type, target_id = target or (None, None)
        entry = AuditEntry(
            action=action,
            actor=actor,
            outcome=AuditOutcome.REFUSED,
            target_type=target_type,
            target_id=target_id,
            detail=msgspec.structs.replace(detail or Detail(), kind=kind),
        )
        due = self._start_window() if self._is_window_over() else []
        if self._has_capacity(entry):
            due.append(entry)
        await self._write(due)

    async def flush_if_due(self) -> None:
        """Writes the counts if the minute is over, without waiting for the next refusal."""
        if self._is_window_over():
            await self.flush()

    async def flush(self) -> None:
        """Writes all counts; called at shutdown."""
        await self._write(self._start_window())

    def _is_window_over(self) -> bool:
        return self._clock() - self._window_start >= WINDOW_SECONDS

    def _has_capacity(self, entry: AuditEntry) -> bool:
        key = f"user {entry.actor.user_id}" if entry.actor.user_id else entry.actor.address
        written = self._written.get(key, 0)
        if written < MAX_PER_ACTOR and sum(self._written.values()) < MAX_PER_WINDOW:
            self._written[key] = written + 1
            return True
        if key in self._overflow or len(self._overflow) < MAX_ACTOR_SUMMARIES:
            first, count = self._overflow.get(key, (entry, 0))
            self._overflow[key] = (first, count + 1)
        else:
            self._overflow_of_others += 1
        return False

    def _start_window(self) -> list[AuditEntry]:
        """Starts a new minute; returns the summary entries of the previous one."""
        summaries = [
            msgspec.structs.replace(
                first,
                target_type=None,
                target_id=None,
                detail=msgspec.structs.replace(first.detail, count=count, hosts=msgspec.UNSET),
            )
            for first, count in self._overflow.values()
        ]
        if self._overflow_of_others:
            summary = Detail(kind="many_actors", count=self._overflow_of_others)
            summaries.append(
                AuditEntry(action=Action.REQUEST, actor=Actor(), outcome=AuditOutcome.REFUSED, detail=summary)
            )
        self._window_start, self._overflow_of_others = self._clock(), 0
        self._written.clear()
        self._overflow.clear()
        return summaries

    async def _write(self, entries: list[AuditEntry]) -> None:
        await record_in_own_transaction(self._store, entries, failure="refusals_not_recorded")
