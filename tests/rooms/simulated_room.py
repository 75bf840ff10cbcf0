"""A room whose turns end at once, as an example says. `RoomOrchestration` decides, on a database."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from sqlalchemy import Engine, delete, update
from sqlalchemy.orm import Session

from luxx.errors import LuxxError, ProviderFailed
from luxx.features.rooms.models import ChatRoomRow, RoomAgentRow
from luxx.features.rooms.orchestration import RoomOrchestration
from luxx.features.rooms.policies import PolicyName
from luxx.features.rooms.queries import read_seats
from luxx.features.rooms.state import SteerInput
from luxx.features.rooms.stops import HARD_MESSAGES, HARD_ROUNDS, Stop
from luxx.infra.clock import new_id, utc_now
from luxx.runs.log.events import LogEntry
from luxx.runs.orchestration.inputs import InputKind, RunInput
from luxx.runs.orchestration.interface import Append, Begin, End, RunTotals, TurnStart, Wait
from luxx.runs.turn.run_rows import RunHead
from luxx.runs.turn.state import ChatRequest, TurnState
from luxx.runs.turn.turn_log import CANCELLED, FINISHED, Closing, failure_ending
from luxx.wire.event import LoggedEvent
from luxx.wire.orchestration_event import MessageStart
from luxx.wire.run import RunKind, RunStatus
from luxx.wire.turn import Step, StepType, Usage

REQUEST = ChatRequest(provider_id=1, model="m")
TOKENS_OF_A_TURN = 10
FAILURE = ProviderFailed("the model is not available")
PERSON = "ann"
MAX_DECISIONS = 4 * HARD_MESSAGES + 10 * HARD_ROUNDS
"""Twice what a room of the hard default needs: each turn is two decisions, each round two more."""


class Act(msgspec.Struct, frozen=True):
    """What a person does after a decision: `at` counts seats, from 0, of all that there ever were."""

    kind: str
    at: int = 0
    text: str = ""


@dataclass
class SimulatedRoom:
    """One run of a room; `outcomes` of its turns and `acts` of people are used up, then all is quiet."""

    session: Session
    policy: PolicyName
    stop: Stop
    seats: list[bool]
    outcomes: Iterator[str]
    acts: Iterator[Act]
    logged: list[LoggedEvent] = field(default_factory=list[LoggedEvent])
    tokens: int = 0
    seat_ids: list[int] = field(default_factory=list[int])
    spoken: list[int] = field(default_factory=list[int])

    def __post_init__(self) -> None:
        self.room_id, now = new_id(), utc_now()
        self.session.add(
            ChatRoomRow(
                id=self.room_id, user_id=1, tenant_id=1, title="t", task="t", max_rounds=100, current_round=0,
                policy=msgspec.json.encode({"name": self.policy}).decode(),
                stop=msgspec.json.encode(self.stop).decode(), created_at=now, updated_at=now,
            )
        )  # fmt: skip
        self.session.flush()
        for muted in self.seats:
            self._add_seat(muted=muted)
        head = RunHead(
            id=new_id(), kind=RunKind.ROOM, subject_id=self.room_id, user_id=1, tenant_id=1, fence=1,
            is_cancelled=False, driven_seconds=0.0, request="{}", last_seq=0, created_at=utc_now(),
            started_at=None,
        )  # fmt: skip
        self.orchestration = RoomOrchestration(self.session, head, self._resolve)

    def run(self) -> str:
        """How it ended: the stop reason, `nobody left` or `waiting`."""
        for _ in range(MAX_DECISIONS):
            totals = RunTotals(usage=Usage(prompt_tokens=self.tokens), cost=None, seconds=0.0)
            decision = self.orchestration.decide((), 0, totals)
            act = next(self.acts, None) if isinstance(decision, Begin | Wait) else None
            match decision:
                case Begin():
                    self._begin(decision, act, totals)
                case Append():
                    self._log(decision.entries)
                    if decision.write is not None:
                        decision.write(self.session.connection())
                case Wait():
                    if act is None:
                        return "waiting"
                    self._act(act)
                case End(status=RunStatus.PAUSED):
                    self._log(decision.entries)
                    if decision.error is not None:
                        return "nobody left"
                case End():
                    self._log(decision.entries)
                    assert decision.stop_reason is not None
                    return decision.stop_reason
        raise AssertionError("the room did not end")

    def _begin(self, decision: Begin, act: Act | None, totals: RunTotals) -> None:
        """`act` happens after the decision: before the turns begin or, for an odd `at`, before they end."""
        if act is not None and act.at % 2 == 0:
            self._act(act)
        can_speak = {seat_id for seat_id, muted in self.seats_now() if not muted}
        opening = self.orchestration.prepare(self.session, decision, decision.turns, totals)
        for entry in opening.entries:
            event = entry[0] if isinstance(entry, tuple) else entry
            if isinstance(event, MessageStart):
                assert event.seat_id in can_speak
                self.spoken.append(event.seat_id)
        self._log(opening.entries)
        if opening.write is not None:
            opening.write(self.session.connection())
        if act is not None and act.at % 2 == 1 and opening.turns:
            self._act(act)
        for start in opening.turns:
            closing = self._end_turn(start)
            self._log(closing.events)
            closing.write(self.session.connection())
        self.session.expire_all()

    def _end_turn(self, start: TurnStart) -> Closing:
        outcome = next(self.outcomes, "says")
        self.tokens += TOKENS_OF_A_TURN
        steps = (Step(id="step-0", index=0, type=StepType.TEXT, content=outcome),)
        match outcome:
            case "fails":
                return self.orchestration.close(start, TurnState(), failure_ending(FAILURE), None)
            case "is cut":
                return self.orchestration.close(start, TurnState(steps=steps), CANCELLED, None)
            case "is skipped":
                return self.orchestration.close(start, TurnState(), CANCELLED, None)
            case _:
                return self.orchestration.close(start, TurnState(steps=steps), FINISHED, None)

    def _resolve(self, *_: Any) -> ChatRequest:
        if next(self.outcomes, "says") == "cannot begin":
            raise LuxxError("this provider is switched off", kind="provider_disabled")
        return REQUEST

    def _act(self, act: Act) -> None:
        seat_id = self.seat_ids[act.at % len(self.seat_ids)]
        row = update(RoomAgentRow).where(RoomAgentRow.id == seat_id)
        match act.kind:
            case "mute" | "unmute":
                self.session.execute(row.values(muted=act.kind == "mute"))
            case "add":
                self._add_seat(muted=False)
            case "remove":
                self.session.execute(delete(RoomAgentRow).where(RoomAgentRow.id == seat_id))
            case "floor":
                self._give(InputKind.FLOOR, SteerInput(user=PERSON, seat_id=seat_id))
            case _:
                self._give(InputKind(act.kind), SteerInput(user=PERSON))
        self.session.expire_all()

    def _give(self, kind: InputKind, data: SteerInput) -> None:
        given_input = RunInput(id=1, kind=kind, data=msgspec.json.encode(data).decode())
        self._log(self.orchestration.on_inputs(self.session, [given_input]).entries)

    def _add_seat(self, *, muted: bool) -> None:
        number = len(self.seat_ids)
        row = RoomAgentRow(
            room_id=self.room_id, name=f"seat{number}", color="#000000", turn_order=number, muted=muted,
            name_key=f"seat{number}", created_at=utc_now(),
        )  # fmt: skip
        self.session.add(row)
        self.session.flush()
        self.seat_ids.append(row.id)

    def seats_now(self) -> list[tuple[int, bool]]:
        room = self.session.get_one(ChatRoomRow, self.room_id)
        return [(seat.seat_id, seat.is_muted) for seat in read_seats(self.session, room)]

    def _log(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            event, note = entry if isinstance(entry, tuple) else (entry, None)
            logged = LoggedEvent(seq=len(self.logged) + 1, event=event, note=note)
            self.logged.append(logged)
            self.orchestration.apply(logged)


@contextmanager
def simulated(engine: Engine, **more: Any) -> Iterator[SimulatedRoom]:
    """A room that leaves nothing behind."""
    with Session(engine) as session:
        yield SimulatedRoom(session, **{"outcomes": iter(()), "acts": iter(())} | more)
        session.rollback()
