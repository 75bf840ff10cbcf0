"""A chat's log and the state folded from it, kept in step: what is appended is folded in."""

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection

from luxx.runs.events import Entry, RunLog
from luxx.runs.state import ChatState, fold
from luxx.wire.run import RunPhase


class ChatLog:
    """For the one process that drives the run. `state` is always that of the log on disk."""

    def __init__(self, log: RunLog, state: ChatState) -> None:
        self._log = log
        self.state = state
        self.run_id = log.run_id

    async def append(
        self,
        entries: Sequence[Entry],
        *,
        phase: RunPhase | None = None,
        changes: dict[str, Any] | None = None,
        also: Callable[[Connection], None] | None = None,
        also_bytes: int = 0,
    ) -> None:
        """Writes in one transaction, publishes, folds; see `RunLog.append`. Raises LostRun."""
        values = {"phase": phase.value, **(changes or {})} if phase is not None else changes
        logged = await self._log.append(entries, changes=values, also=also, also_bytes=also_bytes)
        self.state = fold(logged, self.state)

    def after(self, entries: Sequence[Entry]) -> ChatState:
        """The state as it would be once these were appended; for deciding before writing."""
        return fold(self._log.preview(entries), self.state)
