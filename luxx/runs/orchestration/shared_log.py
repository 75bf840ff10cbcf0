"""The log of a run whose turns share it: its transactions, its totals, and the turn on each event."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import msgspec
from msgspec.structs import replace
from sqlalchemy import Connection

from luxx.domain.usage.ledger import add_cost
from luxx.runs.cancel import CancelSignal
from luxx.runs.log.events import LogEntry, LostRun, RunLog
from luxx.wire.event import CompletionNote, CostUpdate, LoggedEvent, ProcessStep, QuestionAsked
from luxx.wire.run import ENDED
from luxx.wire.turn import CHAT_TURN, StepType, TurnRef, Usage, turn_of
from luxx.wire.turn_event import SubagentAssigned

_encode = msgspec.json.Encoder().encode

TURN_COLUMNS = frozenset({"phase"})
"""The columns of the run's row that a turn may change. The others speak of the whole run."""


@dataclass(slots=True, eq=False, repr=False)
class _Append:
    """An append of one turn or of the run; `written` gets its events, or the error."""

    entries: list[LogEntry]
    changes: dict[str, Any]
    extra_write: Callable[[Connection], None] | None
    extra_bytes: int
    written: asyncio.Future[list[LoggedEvent]]


class SharedLog:
    """The log for one drive. `on_logged` gets every event after it is on disk.

    `usage` and `cost` are the totals of the run, `call_ids` the ids of all its tool calls. `has_asked`:
    whether one of its turns has asked a person.
    """

    def __init__(self, log: RunLog, on_logged: Callable[[LoggedEvent], None]) -> None:
        self.usage = Usage()
        self.cost: float | None = None
        self.call_ids: set[str] = set()
        self.has_asked = False
        self._log = log
        self._on_logged = on_logged
        self._waiting: list[_Append] = []
        self._writer: asyncio.Task[None] | None = None
        self._calls: dict[str, int] = {}

    def count(self, logged: LoggedEvent) -> None:
        """Adds an event to the totals; called for the events of earlier drives too."""
        event = logged.event
        match event:
            case CostUpdate():
                self.usage, self.cost = event.usage, event.cost
            case QuestionAsked():
                self.has_asked = True
            case ProcessStep(step=step) if step.type == StepType.TOOL_CALL:
                self.call_ids.add(str(step.id_ref))
            case ProcessStep(step=step) if step.type == StepType.TOOL_RESULT:
                self._add_calls(event, step.calls if isinstance(step.calls, int) else 1)
            case SubagentAssigned() if event.status in ENDED:
                self._add_calls(event, event.tool_calls)
            case _:
                pass

    def _add_calls(self, event: ProcessStep | SubagentAssigned, number: int) -> None:
        turn = turn_of(event).key
        self._calls[turn] = self._calls.get(turn, 0) + number

    def calls_besides(self, turn: TurnRef) -> int:
        """The tool calls of the other turns."""
        return sum(self._calls.values()) - self._calls.get(turn.key, 0)

    async def append(
        self,
        entries: Sequence[LogEntry],
        *,
        turn: TurnRef = CHAT_TURN,
        changes: Mapping[str, Any] | None = None,
        extra_write: Callable[[Connection], None] | None = None,
        extra_bytes: int = 0,
    ) -> list[LoggedEvent]:
        """Logs entries of the run or, with `turn`, of that turn; see `RunLog.append`. Raises LostRun.

        Appends that wait at the same time share a transaction, in their order.
        """
        written: asyncio.Future[list[LoggedEvent]] = asyncio.get_running_loop().create_future()
        marked = [_marked(entry, turn) for entry in entries]
        self._waiting.append(_Append(marked, dict(changes or {}), extra_write, extra_bytes, written))
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_waiting(), name="shared log")
        return await written

    async def _write_waiting(self) -> None:
        """Writes what waits until nothing does; each append gets its own outcome."""
        while self._waiting:
            group = [one for one in self._waiting if not one.written.cancelled()]
            self._waiting = []
            try:
                await self._write_group(group)
            except Exception as error:
                for one in group:
                    _fail(one, error)
        self._writer = None

    async def _write_group(self, group: list[_Append]) -> None:
        if not group:
            return
        try:
            outcomes = await self._write(group)
        except LostRun:
            raise
        except Exception:
            if len(group) == 1:
                raise
            # Nothing was written. The failure of one append must not fail the others.
            for one in group:
                try:
                    await self._write_group([one])
                except LostRun:
                    raise
                except Exception as error:
                    _fail(one, error)
            return
        for one, logged in zip(group, outcomes, strict=True):
            if not one.written.done():
                one.written.set_result(logged)

    async def _write(self, group: Sequence[_Append]) -> list[list[LoggedEvent]]:
        """Writes appends in one transaction; the events of each."""
        values: dict[str, Any] = {}
        entries: list[LogEntry] = []
        usage, cost = self.usage, self.cost
        for one in group:
            values |= one.changes
            for entry in one.entries:
                entry, usage, cost = _with_totals(entry, usage, cost)
                entries.append(entry)
        if usage is not self.usage:
            values |= {"usage": _encode(usage).decode(), "cost": cost}
        writes = [one.extra_write for one in group if one.extra_write is not None]

        def extra_write(connection: Connection) -> None:
            for write in writes:
                write(connection)

        logged = await self._log.append(
            entries,
            changes=values,
            extra_write=extra_write if writes else None,
            extra_bytes=sum(one.extra_bytes for one in group),
        )
        for item in logged:
            self.count(item)
            self._on_logged(item)
        ends = list(accumulate(len(one.entries) for one in group))
        return [logged[end - len(one.entries) : end] for one, end in zip(group, ends, strict=True)]

    async def stop(self) -> None:
        """Ends without writing what still waits. Call it once no turn waits for its append."""
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.gather(self._writer, return_exceptions=True)

    def preview(self, entries: Sequence[LogEntry], turn: TurnRef) -> list[LoggedEvent]:
        """The entries as they would be logged next."""
        return self._log.preview([_marked(entry, turn) for entry in entries])


class TurnPart:
    """The part of a shared log that belongs to one turn: the `LogWriter` of its TurnLog."""

    def __init__(self, log: SharedLog, turn: TurnRef, signal: CancelSignal) -> None:
        self._log = log
        self._turn = turn
        self._signal = signal

    @property
    def used_call_ids(self) -> set[str]:
        return self._log.call_ids

    def calls_of_other_turns(self) -> int:
        return self._log.calls_besides(self._turn)

    async def append(
        self,
        entries: Sequence[LogEntry],
        *,
        changes: Mapping[str, Any] | None = None,
        extra_write: Callable[[Connection], None] | None = None,
        extra_bytes: int = 0,
    ) -> list[LoggedEvent]:
        """Logs entries of the turn; of `changes` only what a turn may change. Raises LostRun."""
        allowed = {name: value for name, value in (changes or {}).items() if name in TURN_COLUMNS}
        return await self._signal.shield(
            self._log.append(
                entries, turn=self._turn, changes=allowed, extra_write=extra_write, extra_bytes=extra_bytes
            )
        )

    def preview(self, entries: Sequence[LogEntry]) -> list[LoggedEvent]:
        return self._log.preview(entries, self._turn)


def _marked(entry: LogEntry, turn: TurnRef) -> LogEntry:
    """The entry with the id of its turn, unless it names another: the end of a turn may begin the next."""
    event, note = entry if isinstance(entry, tuple) else (entry, None)
    if not turn.key or turn_of(event).key:
        return entry
    ids = {"msg_id": turn.msg_id} if turn.msg_id else {"step_id": turn.step_id}
    marked = replace(event, **ids)
    return marked if note is None else (marked, note)


def _with_totals(entry: LogEntry, usage: Usage, cost: float | None) -> tuple[LogEntry, Usage, float | None]:
    """A `cost_update` of a completion with the totals of the run, and these totals.

    Its note has the completion's own usage and cost; without one, the event has them.
    """
    event, note = entry if isinstance(entry, tuple) else (entry, None)
    if not isinstance(event, CostUpdate):
        return entry, usage, cost
    added = note if isinstance(note, CompletionNote) else event
    totals = replace(event, usage=usage + added.usage, cost=add_cost(cost, added.cost))
    return (totals if note is None else (totals, note)), totals.usage, totals.cost


def _fail(append: _Append, error: Exception) -> None:
    if not append.written.done():
        append.written.set_exception(error)
