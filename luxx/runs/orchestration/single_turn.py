"""What orchestrations of a single turn share: beginning it, continuing it after a crash, and keeping its end.

The turn has the key "". Not here: what the run does with the answer.
"""

from collections.abc import Collection, Sequence

from sqlalchemy.orm import Session

from luxx.domain.usage.ledger import UsageEntry
from luxx.runs.orchestration.inputs import RunInput
from luxx.runs.orchestration.interface import (
    Begin,
    Decision,
    InputEffect,
    Opening,
    RunTotals,
    TurnStart,
    Wait,
)
from luxx.runs.turn.context import Heard
from luxx.runs.turn.state import TurnState
from luxx.runs.turn.turn_log import Closing, Ending, cost_entries
from luxx.wire.event import LoggedEvent


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
