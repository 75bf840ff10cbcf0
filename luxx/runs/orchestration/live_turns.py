"""The turns of a run that have begun and not ended, in one drive."""

import asyncio
from dataclasses import dataclass

from luxx.runs.cancel import CancelSignal
from luxx.runs.log.channel import Channel
from luxx.runs.orchestration.interface import TurnStart
from luxx.runs.turn.state import open_questions
from luxx.runs.turn.turn_log import TurnLog


@dataclass(slots=True, eq=False, repr=False)
class LiveTurn:
    """A turn that has begun and not ended. `task` is None while it waits for a person.

    `worked`: the seconds of its earlier tasks; `since`: when the present one began, on the monotonic clock.
    """

    start: TurnStart
    log: TurnLog
    signal: CancelSignal
    is_recovered: bool
    task: asyncio.Task[None] | None = None
    is_over: bool = False
    worked: float = 0.0
    since: float = 0.0


class LiveTurns:
    """The live turns by their keys, in the order in which they began."""

    def __init__(self) -> None:
        self._turns: dict[str, LiveTurn] = {}

    def __len__(self) -> int:
        return len(self._turns)

    def keys(self) -> list[str]:
        return list(self._turns)

    def add(self, turn: LiveTurn) -> None:
        self._turns[turn.start.turn.key] = turn

    def get(self, key: str) -> LiveTurn | None:
        return self._turns.get(key)

    def tasks(self) -> list[asyncio.Task[None]]:
        """The tasks of the turns that do not wait for a person."""
        return [turn.task for turn in self._turns.values() if turn.task is not None]

    def ready(self) -> list[LiveTurn]:
        """The turns without a task that can continue: an earlier drive began them, or their questions are
        answered."""
        idle = [turn for turn in self._turns.values() if turn.task is None]
        return [turn for turn in idle if not open_questions(turn.log.state)]

    def with_question(self, question_id: str) -> LiveTurn | None:
        """The turn that asked this question, if it is still live."""
        for turn in self._turns.values():
            if any(one.question.question_id == question_id for one in turn.log.state.questions):
                return turn
        return None

    def collect_ended(self, channel: Channel) -> None:
        """Takes note of the turns that have ended or begun to wait. Raises the error of a turn's task."""
        for key, turn in list(self._turns.items()):
            if turn.task is None or not turn.task.done():
                continue
            task, turn.task = turn.task, None
            task.result()
            if turn.is_over:
                channel.end_turn(turn.start.turn)
                del self._turns[key]
