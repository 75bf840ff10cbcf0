"""The log of a turn for the process that drives its run, with the state that follows from it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from sqlalchemy import Connection

from luxx.runs.log.events import LogEntry
from luxx.runs.turn.state import TurnState, fold
from luxx.wire.event import LoggedEvent
from luxx.wire.run import RunPhase
from luxx.wire.turn import StepType


class LogWriter(Protocol):
    """Where a turn writes: the log of its run, or its part of a log that several turns share.

    `append` and `preview` are those of RunLog. `used_call_ids`: the calls of all turns that share the log;
    None: only this turn writes. `calls_of_other_turns`: how many calls they have made.
    """

    @property
    def used_call_ids(self) -> set[str] | None: ...

    def calls_of_other_turns(self) -> int: ...

    async def append(
        self,
        entries: Sequence[LogEntry],
        *,
        changes: Mapping[str, Any] | None = None,
        extra_write: Callable[[Connection], None] | None = None,
        extra_bytes: int = 0,
    ) -> list[LoggedEvent]: ...

    def preview(self, entries: Sequence[LogEntry]) -> list[LoggedEvent]: ...


class TurnLog:
    """The log and state of a turn, for the process that drives its run. `state` matches the log on disk."""

    def __init__(self, log: LogWriter, state: TurnState) -> None:
        self._log = log
        self.state = state
        self.calls_of_other_turns = log.calls_of_other_turns

    async def append(
        self,
        entries: Sequence[LogEntry],
        *,
        phase: RunPhase | None = None,
        changes: dict[str, Any] | None = None,
        extra_write: Callable[[Connection], None] | None = None,
        extra_bytes: int = 0,
    ) -> None:
        """Writes the entries as `RunLog.append` does, and updates `state`. Raises LostRun."""
        values = {"phase": phase.value, **(changes or {})} if phase is not None else changes
        logged = await self._log.append(
            entries, changes=values, extra_write=extra_write, extra_bytes=extra_bytes
        )
        self.state = fold(logged, self.state)

    def used_call_ids(self) -> set[str]:
        """The ids of the calls that the run has made; the caller adds those that it makes."""
        if self._log.used_call_ids is not None:
            return self._log.used_call_ids
        return {str(step.id_ref) for step in self.state.steps if step.type == StepType.TOOL_CALL}

    def add(self, logged: list[LoggedEvent]) -> None:
        """Adds events of the turn that were logged by other means."""
        self.state = fold(logged, self.state)

    def state_after(self, entries: Sequence[LogEntry]) -> TurnState:
        """The state that appending these entries would give; writes nothing."""
        return fold(self._log.preview(entries), self.state)
