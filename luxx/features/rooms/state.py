"""The state of a room's run, folded from its log: who spoke, what was said, what people asked for. Pure."""

from collections.abc import Sequence
from copy import copy

from msgspec import Struct

from luxx.features.rooms.policies import Choose, Floor, SeatState
from luxx.features.rooms.stops import SpokenMessage, Totals
from luxx.runs.orchestration.interface import RunTotals
from luxx.runs.turn.turn_log import PARTIAL
from luxx.wire.event import LoggedEvent, TurnNote
from luxx.wire.orchestration_event import (
    AgentError,
    FloorGiven,
    MessageEnd,
    MessageStart,
    MessageStored,
    RoomPaused,
    RoomStarted,
    RoundEnd,
    RoundStart,
    Selecting,
    SteerAction,
    Steered,
)

FAILURES_TO_MUTE = 2
"""A seat whose turns fail this often in a row is muted."""


class SteerInput(Struct, frozen=True, kw_only=True):
    """The data of an input of a person named `user`: `seat_id` gets the floor, `message_id` was said."""

    user: str
    seat_id: int | None = None
    message_id: str | None = None


class OpenMessage(Struct, frozen=True, kw_only=True):
    """A turn in progress: its seat, its request as JSON, and how many messages of the run it reads."""

    seat_id: int
    name: str
    color: str
    round_number: int
    note: TurnNote
    reads: int


class OpenChoice(Struct, frozen=True, kw_only=True):
    """A turn in progress in which a model chooses who speaks next; fields as in OpenMessage."""

    step_id: str
    choose: Choose
    note: TurnNote
    reads: int


class RoomState:
    """`messages` are those of this run, in the order in which they were stored; with their ids.

    `before` is the newest message before the run.
    """

    def __init__(self, before: SpokenMessage | None = None) -> None:
        self.is_started = False
        self.round = 0
        self.is_round_open = False
        self.is_pausing = False
        self.is_finishing = False
        self.messages: list[SpokenMessage] = []
        self.message_ids: list[str] = []
        self.open: dict[str, OpenMessage] = {}
        self.choice: OpenChoice | None = None
        self.skipped: set[str] = set()
        self.failures: dict[int, int] = {}
        self._before = before
        self.unheard: str | None = None
        """What a person said last, while no turn has begun since."""
        self._spoken: list[int] = []
        self._interrupted: tuple[int, ...] = ()
        self._chosen: int | None = None

    def apply(self, logged: LoggedEvent) -> None:
        """Adds one event of the log."""
        event = logged.event
        match event:
            case RoomStarted():
                self.is_started = True
            case RoundStart():
                self.round, self.is_round_open = event.round, True
                self._spoken, self._interrupted = [], ()
            case RoundEnd():
                self.is_round_open = False
            case MessageStart() if isinstance(logged.note, TurnNote):
                self._start_message(event, logged.note)
            case MessageStored(message=message):
                self.messages.append(SpokenMessage(seat_id=message.seat_id, text=message.content))
                self.message_ids.append(message.id)
                self.unheard = message.content if message.seat_id is None else self.unheard
            case AgentError(seat_id=seat_id):
                self.failures[seat_id] = self.failures.get(seat_id, 0) + 1
                self._end_turn(str(event.msg_id), seat_id)
            case MessageEnd():
                self._end_message(event)
            case Selecting() if isinstance(logged.note, TurnNote):
                self.choice = OpenChoice(
                    step_id=str(event.step_id),
                    choose=Choose(tuple(event.seat_ids), event.fallback),
                    note=logged.note,
                    reads=len(self.messages),
                )
            case FloorGiven(seat_id=seat_id):
                self._chosen, self.choice = seat_id, None
            case Steered():
                self._steer(event)
            case RoomPaused():
                # A choice that the pause cut is made again.
                self.is_pausing, self.choice = False, None
            case _:
                pass

    def after_rounds(self, events: Sequence[RoundStart | RoundEnd]) -> "RoomState":
        """The state after these events, which are not logged yet."""
        state = copy(self)
        for event in events:
            state.apply(LoggedEvent(seq=0, event=event))
        return state

    def _start_message(self, event: MessageStart, note: TurnNote) -> None:
        self._chosen, self.unheard = None, None
        self._interrupted = tuple(seat_id for seat_id in self._interrupted if seat_id != event.seat_id)
        self.open[str(event.msg_id)] = OpenMessage(
            seat_id=event.seat_id,
            name=event.sender_name,
            color=event.sender_color,
            round_number=event.round_number,
            note=note,
            reads=len(self.messages),
        )

    def _end_message(self, event: MessageEnd) -> None:
        msg_id = str(event.msg_id)
        # A failed turn has ended with its `agent_error` before.
        if (message := self.open.get(msg_id)) is None:
            return
        self.failures.pop(message.seat_id, None)
        if (
            self.is_pausing
            and event.finish is None
            and event.status == PARTIAL
            and msg_id not in self.skipped
        ):
            # The seat speaks again when the room goes on.
            self.open.pop(msg_id)
            self._interrupted = (*self._interrupted, message.seat_id)
        else:
            self._end_turn(msg_id, message.seat_id)

    def _end_turn(self, msg_id: str, seat_id: int) -> None:
        self.open.pop(msg_id, None)
        self.skipped.discard(msg_id)
        self._spoken.append(seat_id)

    def _steer(self, event: Steered) -> None:
        match event.action:
            case SteerAction.PAUSE:
                self.is_pausing = True
            case SteerAction.FINISH:
                self.is_finishing = True
            case SteerAction.SKIP:
                self.skipped.update(event.turns)
            case SteerAction.APPROVE:
                pass  # Only tasks are approved.

    @property
    def ended_rounds(self) -> int:
        """How many rounds are complete."""
        return self.round - 1 if self.is_round_open else self.round

    def floor(self, seats: Sequence[SeatState], *, has_text: bool = True) -> Floor:
        """What the policies see; `has_text`: also the text of the newest message."""
        last = self.messages[-1] if self.messages else self._before
        return Floor(
            seats=tuple(seats),
            spoken=tuple(self._spoken),
            last_speaker=None if last is None else last.seat_id,
            last_text=last.text if last is not None and has_text else "",
            chosen=self._chosen,
            ended_rounds=self.ended_rounds,
            interrupted=self._interrupted,
        )

    def totals(self, run: RunTotals) -> Totals:
        """What the stops see."""
        return Totals(
            rounds=self.ended_rounds,
            messages=tuple(message for message in self.messages if message.seat_id is not None),
            tokens=run.usage.prompt_tokens + run.usage.completion_tokens,
            cost=run.cost or 0.0,
            seconds=run.seconds,
            is_ended_by_person=self.is_finishing,
        )
