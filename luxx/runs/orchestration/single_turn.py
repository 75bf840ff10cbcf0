"""What orchestrations of a single turn share: beginning it, continuing it after a crash, and keeping its end;
for those that store something read from the answer, also the ends of the run.

The turn has the key "".
"""

from collections.abc import Collection, Sequence
from typing import ClassVar

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from luxx.domain.usage.ledger import UsageEntry
from luxx.errors import InvalidInput, LuxxError
from luxx.runs.log.events import LogEntry
from luxx.runs.log.failure import FailedRun, RunFailure
from luxx.runs.orchestration.inputs import RunInput
from luxx.runs.orchestration.interface import (
    Begin,
    Decision,
    End,
    InputEffect,
    Opening,
    RunTotals,
    TurnStart,
    Wait,
    Write,
)
from luxx.runs.turn.context import Heard
from luxx.runs.turn.state import TurnState
from luxx.runs.turn.turn_log import Closing, Ending, cost_entries
from luxx.wire.event import ErrorEvent, Event, LoggedEvent
from luxx.wire.orchestration_event import FollowUpsComplete, PatternComplete, TitleComplete
from luxx.wire.run import RunStatus, StopReason
from luxx.wire.turn import steps_text

CompleteEvent = PatternComplete | TitleComplete | FollowUpsComplete
"""The last event of a run that stores what it read from an answer."""


class SingleTurn:
    """See `Orchestration`, of which a subclass adds `on_stop`."""

    def __init__(self) -> None:
        self._has_begun = False
        self._answer: tuple[TurnState, Ending] | None = None

    def turn(self) -> TurnStart:
        """The turn, the same in each drive."""
        raise NotImplementedError

    def after(self, state: TurnState, ending: Ending) -> Decision:
        """What follows once the turn has ended like this. It changes nothing."""
        raise NotImplementedError

    def apply(self, logged: LoggedEvent) -> None:
        del logged
        self._has_begun = True

    def is_open(self, key: str) -> bool:
        return not key and self._answer is None

    def open_turns(self) -> list[TurnStart]:
        return [self.turn()] if self._has_begun and self._answer is None else []

    def heard(self, key: str) -> Sequence[Heard]:
        del key
        return ()

    def to_cut(self) -> Collection[str]:
        return ()

    @property
    def max_turns(self) -> int | None:
        return 1

    def decide(self, running: Collection[str], waiting: int, totals: RunTotals) -> Decision:
        del waiting, totals
        if running:
            return Wait()
        return Begin() if self._answer is None else self.after(*self._answer)

    def prepare(self, session: Session, begin: Begin, most: int, totals: RunTotals) -> Opening:
        del session, begin, most, totals
        return Opening(turns=[self.turn()])

    def close(self, start: TurnStart, state: TurnState, ending: Ending, cut: UsageEntry | None) -> Closing:
        self._answer = state, ending
        return Closing(events=cost_entries(start.purpose, cut))

    def on_inputs(self, session: Session, inputs: Sequence[RunInput]) -> InputEffect:
        del session, inputs  # No route gives this run any.
        return InputEffect()


class StoringTurn(SingleTurn):
    """A single turn of whose answer something is stored, in the transaction of the events that end the run.
    Of an answer that cannot be used nothing is stored, and nothing is repeated."""

    complete: ClassVar[type[PatternComplete] | type[TitleComplete] | type[FollowUpsComplete]]

    def read(self, answer: str) -> tuple[CompleteEvent, Write]:
        """The last event of a run that succeeded, and what stores the result. Raises InvalidInput."""
        raise NotImplementedError

    def after(self, state: TurnState, ending: Ending) -> Decision:
        if ending.status == RunStatus.CANCELLED:
            return self._cancelled()
        if ending.error is not None:
            return self._failed(ending.error.message, ending.error)
        try:
            event, write = self.read(steps_text(state.steps))
        except InvalidInput as error:
            return self._failed(f"the model's answer cannot be used: {error.message}", error)
        return End(
            entries=[event],
            status=RunStatus.COMPLETED,
            stop_reason=StopReason.FINISHED.value,
            write=write,
        )

    def on_stop(self, error: LuxxError | None) -> End:
        return self._cancelled() if error is None else self._failed(error.message, error)

    def _cancelled(self) -> End:
        entries: list[LogEntry] = [self.complete(status=RunStatus.CANCELLED.value)]
        return End(entries=entries, status=RunStatus.CANCELLED, stop_reason=StopReason.CANCELLED.value)

    def _failed(self, reason: str, error: LuxxError) -> End:
        entries: list[LogEntry] = [
            ErrorEvent(message=reason, code=error.kind),
            self.complete(status=RunStatus.FAILED.value),
        ]
        return End(entries=entries, status=RunStatus.FAILED, stop_reason=StopReason.ERROR.value, error=error)

    @classmethod
    def fail(cls, connection: Connection, run: FailedRun, error: LuxxError) -> RunFailure:
        """Ends a run that cannot be driven."""
        del connection, run
        events: list[Event] = [
            ErrorEvent(message=error.message, code=error.kind),
            cls.complete(status=RunStatus.FAILED.value),
        ]
        return RunFailure(events=events, status=RunStatus.FAILED)
