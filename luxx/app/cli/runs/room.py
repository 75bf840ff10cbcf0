"""What the terminal shows of a room's run: who says what, in the order in which they began. Pure."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from luxx.app.cli.menu import Choice, choice_question
from luxx.app.cli.runs.transcript import FollowedSubject, RunFrame, RunTranscript
from luxx.app.cli.screen import FINISH_NOTES, GrowingText, Piece, PieceKind, note
from luxx.features.rooms.policies import PolicyName
from luxx.wire.run import RunStatus, StopReason


class ShownSeat(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a seat that the terminal needs."""

    id: int
    name: str
    role: str = ""
    muted: bool = False


class ShownPolicy(msgspec.Struct, frozen=True, kw_only=True):
    name: str


class ShownRoom(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a room that the terminal needs; lists have no seats."""

    id: str
    title: str
    status: str
    right: str = ""
    policy: ShownPolicy
    run_id: str | None = None
    agents: list[ShownSeat] = []


class ShownMessage(GrowingText):
    """A message that is being shown, or waits until those before it have ended."""

    def __init__(self, name: str, color: str) -> None:
        super().__init__()
        self.name = name
        self.color = color
        self.is_partial = self.is_failed = False
        self.finish = ""
        self.answers = ""
        self.has_ended = False

    def pieces(self) -> list[Piece]:
        """What the screen lacks of the message; its name first."""
        is_first = not self.is_begun
        rest = self.rest(is_whole=self.has_ended)
        if is_first and rest:
            rest = [Piece(PieceKind.NAME, f"{self.name}: ", self.color), *rest]
            rest = [note(f"{self.name} replies to {self.answers}"), *rest] if self.answers else rest
        if self.has_ended:
            if not self.is_begun:
                return [] if self.is_failed else [note(f"{self.name} says nothing")]
            rest += [Piece(PieceKind.TEXT, "\n" if self.text.endswith("\n") else "\n\n")]
            rest += [note(f"{self.name} was cut")] if self.is_partial else []
            if self.finish in FINISH_NOTES:
                rest += [note(f"{self.name}'s message {FINISH_NOTES[self.finish]}")]
        return rest


class RoomTranscript(RunTranscript):
    """The transcript of a room's run. Only one message grows on the screen at a time."""

    def __init__(self, room: ShownRoom, *, is_verbose: bool = False) -> None:
        self._path = f"/chat-rooms/{room.id}"
        subject = FollowedSubject(
            what="room",
            id=room.id,
            again=f"luxx room run --resume {room.id}",
            stop_path=f"{self._path}/stop",
        )
        super().__init__(subject, is_verbose=is_verbose)
        self._policy = room.policy.name
        self._seats: dict[int, ShownSeat] = {seat.id: seat for seat in room.agents}
        self._open: dict[str, ShownMessage] = {}
        self._names: dict[str, str] = {}
        """The names of those who wrote or write, by message."""
        self._round, self._max_rounds = 0, 0
        self._turns = 0
        self._waits_for_floor = False

    def receive_event(self, frame: RunFrame) -> list[Piece]:
        match frame.type:
            case "run":
                for message in self._open.values():
                    message.text = "" if not message.has_ended else message.text
                return []
            case "round_start":
                self._round, self._max_rounds = frame.round, frame.max_rounds
                self._waits_for_floor = True
                return [note(f"── round {frame.round} of {frame.max_rounds} ──")]
            case "message_start":
                self._turns += 1
                self._waits_for_floor = False
                self._names[frame.msg_id] = frame.sender_name
                self._open[frame.msg_id] = ShownMessage(frame.sender_name, frame.sender_color)
                return []
            case "message_chunk" if (message := self._open.get(frame.msg_id)) is not None:
                message.text = frame.content if frame.is_snapshot else message.text + frame.content
                return self._grown()
            case "message_end":
                return self._end(frame)
            case "message":
                return self._stored(frame)
            case _:
                return self._rest(frame)

    def _rest(self, frame: RunFrame) -> list[Piece]:
        match frame.type:
            case "round_end":
                self._waits_for_floor = False
            case "agent_error":
                return [*self._fail(frame), note(f"{frame.sender_name} failed: {frame.message}")]
            case "floor_given":
                self._waits_for_floor = False
                who = frame.user if frame.by == "person" else f"the {frame.by}"
                return [note(f"{who} gives the floor to {self._seat_name(frame.seat_id)}")]
            case "steered":
                done = {"pause": "pauses the room", "finish": "ends the room", "skip": "cuts the turn"}
                return [note(f"{frame.user} {done.get(frame.action, frame.action)}")]
            case "room_completed":
                ended_badly = self.error or frame.stop_reason in (StopReason.CANCELLED, StopReason.ERROR)
                said = f": {frame.phrase}" if frame.phrase else ""
                reason = f"completed ({frame.stop_reason}{said})"
                if ended_badly:
                    reason = f"ended: {self.error or frame.stop_reason}"
                where = f"in round {self._round}" if self._round else "before the first round"
                return [note(f"{reason} {where}, {self.totals()}")]
            case "room_paused" if self.error:
                return [note(self.error)]
            case "room_started":
                self.error = ""
            case _:
                pass
        return []

    def _close(self, frame: RunFrame) -> None:
        super()._close(frame)
        if frame.type == "room_completed":
            is_bad = self.error or frame.stop_reason in (StopReason.CANCELLED, StopReason.ERROR)
            self.status = (RunStatus.FAILED if is_bad else RunStatus.COMPLETED).value
        if frame.type == "room_paused" and self.status and self.error:
            self.status = RunStatus.FAILED.value
        if frame.type == "room_paused" and not self.status:
            self.error = ""

    def _end(self, frame: RunFrame) -> list[Piece]:
        message = self._open.get(frame.msg_id)
        if message is None:
            return []
        self._waits_for_floor = True
        self.end_turn(frame.msg_id)
        message.text, message.has_ended = frame.content, True
        message.is_partial, message.finish = frame.status == "partial", frame.finish or ""
        return self._grown()

    def _fail(self, frame: RunFrame) -> list[Piece]:
        """The end of a turn that failed; the event of its message follows, or none if it has no text."""
        message = self._open.get(frame.msg_id)
        self._waits_for_floor = True
        if message is None or message.has_ended or message.text:
            return []
        self.end_turn(frame.msg_id)
        message.has_ended = message.is_failed = True
        return self._grown()

    def _stored(self, frame: RunFrame) -> list[Piece]:
        """A message of a person; those of seats were shown while they grew."""
        stored = frame.message
        if isinstance(stored, str) or stored.seat_id is not None:
            return []
        message = self._open[stored.id] = ShownMessage(stored.sender_name, stored.sender_color or "")
        message.text, message.has_ended = stored.content, True
        if stored.quoted is None:
            message.answers = "a message that was deleted"
        elif stored.quoted is not UNSET:
            message.answers = f"{stored.quoted.sender_name}: “{stored.quoted.text}”"
        return self._grown()

    def _grown(self) -> list[Piece]:
        """What can be shown now: the first open message as far as it is, then those that ended behind it."""
        pieces: list[Piece] = []
        while self._open:
            msg_id, message = next(iter(self._open.items()))
            pieces += message.pieces()
            if not message.has_ended:
                break
            del self._open[msg_id]
        return pieces

    def turn_name(self, frame: RunFrame) -> str:
        return self._names.get(frame.msg_id, "the room")

    def choices(self) -> list[Choice]:
        is_waiting = self._waits_for_floor and not self._open and not self.status and self.is_caught_up
        if self._policy != PolicyName.MANUAL or not is_waiting:
            return []
        seats = [seat for seat in self._seats.values() if not seat.muted]
        options = [(seat.name, seat.role) for seat in seats]
        question = choice_question(
            f"floor-{self._turns}", "Who speaks next?", [*options, ("end", "end the room")]
        )
        requests: Sequence[tuple[str, object]] = [
            (f"{self._path}/floor", {"seat_id": seat.id}) for seat in seats
        ]
        return [
            Choice(question=question, requests=[*requests, (f"{self._path}/finish", None)], is_settled=True)
        ]

    def progress(self) -> str:
        writing = ", ".join(message.name for message in self._open.values() if not message.has_ended)
        parts = [
            f"round {self._round} of {self._max_rounds}" if self._round else "",
            f"{writing} {'write' if ',' in writing else 'writes'}" if writing else "",
            self.totals(),
        ]
        return " · ".join(part for part in parts if part)

    def request_of(self, line: str) -> tuple[str, object] | None:
        """`/skip` cuts the turns in progress, `/end` ends the room; anything else is said in it."""
        match line.strip():
            case "":
                return None
            case "/skip":
                return f"{self._path}/skip", None
            case "/end":
                return f"{self._path}/finish", None
            case text:
                return f"{self._path}/messages", {"content": text}

    def _seat_name(self, seat_id: int | None) -> str:
        seat = self._seats.get(seat_id or 0)
        return seat.name if seat is not None else f"seat {seat_id}"
