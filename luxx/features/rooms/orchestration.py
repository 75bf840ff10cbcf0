"""The orchestration of a room's run: which seat speaks next (`runs/orchestration/interface.py`).

`state.py` has what the log says, `policies.py` and `stops.py` what follows from it, `turns.py` how a turn
begins and ends. This module connects them.
"""

from collections.abc import Collection, Sequence
from functools import partial

import msgspec
from sqlalchemy import Connection
from sqlalchemy.orm import Session

from luxx.domain.agents.queries import AgentSettings
from luxx.domain.usage.ledger import UsageEntry
from luxx.errors import Conflict, LimitReached, LuxxError
from luxx.features.rooms.checks import selector_settings
from luxx.features.rooms.inputs import input_entries, spoken_event
from luxx.features.rooms.messages import entry_of_event, read_messages, read_request, read_room
from luxx.features.rooms.policies import (
    Choose,
    EndRound,
    Finished,
    NobodyLeft,
    PolicyName,
    Speak,
    WaitForPerson,
    next_turn,
    reply,
)
from luxx.features.rooms.prompt import NO_SUMMARY, RoomSummary, TranscriptEntry, words_of
from luxx.features.rooms.state import FAILURES_TO_MUTE, RoomState
from luxx.features.rooms.stops import AFTER_A_REPLY, SpokenMessage, find_phrases, fired_phrase, fired_stop
from luxx.features.rooms.turns import (
    ResolveTurn,
    begin_choice,
    begin_message,
    close_choice,
    close_message,
    continue_choice,
    continue_message,
    mute_seat,
    muted_text,
    stored_round,
    write_round,
)
from luxx.runs.log.events import LogEntry
from luxx.runs.log.failure import FailedRun, RunFailure
from luxx.runs.log.retention import delete_content
from luxx.runs.orchestration.inputs import RunInput
from luxx.runs.orchestration.interface import (
    Append,
    Begin,
    Decision,
    End,
    InputEffect,
    Opening,
    RunTotals,
    TurnStart,
    Wait,
)
from luxx.runs.turn.context import Heard
from luxx.runs.turn.run_rows import RunHead
from luxx.runs.turn.state import ChatRequest, TurnState, context_after
from luxx.runs.turn.turn_log import Closing, Ending
from luxx.wire.event import CutNote, ErrorEvent, LoggedEvent
from luxx.wire.message import ContextRecord
from luxx.wire.orchestration_event import (
    AgentError,
    FloorGiven,
    MessageStart,
    MessageStored,
    RoomCompleted,
    RoomPaused,
    RoomStarted,
    RoundEnd,
    RoundStart,
)
from luxx.wire.run import OrchestratedTurn, RoomCopyTurn, RunStatus, StopReason, WhenAsked
from luxx.wire.turn_event import ContextCompressed, Warning

NO_SEAT_LEFT = LuxxError(
    "No seat of this room can speak: it has none, or all are muted. Add or unmute a seat, then resume.",
    kind="no_seat_left",
)


def fail_room(connection: Connection, run: FailedRun, error: LuxxError) -> RunFailure:
    """Pauses the run of a room that cannot be driven; its turns in progress continue after `resume`, and may
    need the answers to their questions. A call ends."""
    number = stored_round(connection, run.subject_id)
    event = ErrorEvent(message=error.message, code=error.kind)
    if run.subject_id == run.id:
        completed = RoomCompleted(stop_reason=StopReason.ERROR.value, rounds=0)
        return RunFailure(events=[event, completed], status=RunStatus.FAILED)
    return RunFailure(events=[event, RoomPaused(round=number)], status=RunStatus.PAUSED)


class RoomOrchestration:
    """One room's run in one drive. See `Orchestration`."""

    def __init__(self, session: Session, head: RunHead, resolve: ResolveTurn) -> None:
        self._head = head
        self._resolve = resolve
        self._request = read_request(head)
        self._call = self._request.call
        self._origin = OrchestratedTurn() if self._call is None else RoomCopyTurn()
        self._room = read_room(session, head, self._call, failures={})
        self._limit: LimitReached | None = None
        self._lost: Conflict | None = None  # Why the policy can use its model no more.
        self._is_fresh = True
        """Whether the room was read after the last turn ended: people may have changed it meanwhile."""
        self._earlier, self._entries = read_messages(session, head, self._call, self._room.owner_name)
        """The messages before this run; and stored ones of this run by their ids."""
        before = [SpokenMessage(seat_id=one.seat_id, text=one.text) for one in self._earlier[-1:]]
        self._state = RoomState(*before)
        self._transcript: list[TranscriptEntry] = []
        """The messages of this run, in the order of its log."""
        self._summary = NO_SUMMARY
        """The newest one that a seat's turn made, which all seats begin with."""
        for entry in self._earlier:
            if entry.context is not None and entry.context.until and entry.context.summary:
                self._summary = RoomSummary(text=entry.context.summary, until=entry.context.until)
        self._begun_with: dict[str, RoomSummary] = {}
        """The summary that each turn in progress began with."""
        self._choice_context = ContextRecord()
        """How the prompt of the last choice of a model was made."""

    def apply(self, logged: LoggedEvent) -> None:
        self._state.apply(logged)
        match logged.event, logged.note:
            case MessageStart(msg_id=str() as msg_id), _:
                self._begun_with[msg_id] = self._summary
            case ContextCompressed(summary=str() as text), CutNote(record=record) if record.until:
                self._summary = RoomSummary(text=text, until=record.until)
            case _:
                pass
        choice = self._state.choice
        if choice is not None and logged.event.step_id == choice.step_id:
            self._choice_context = context_after(self._choice_context, logged)
        if isinstance(logged.event, MessageStored):
            message = logged.event.message
            entry = self._entries.pop(message.id, None)
            if entry is None:
                # The message was deleted since.
                entry = entry_of_event(message, self._room.owner_name)
            self._transcript.append(entry)

    def is_open(self, key: str) -> bool:
        choice = self._state.choice
        return key in self._state.open or (choice is not None and choice.step_id == key)

    def open_turns(self) -> list[TurnStart]:
        state = self._state
        turns = [
            continue_message(
                self._room,
                msg_id,
                message,
                self._read_by(message.reads),
                self._begun_with[msg_id],
                self._origin,
            )
            for msg_id, message in state.open.items()
        ]
        if state.choice is not None:
            transcript = self._read_by(state.choice.reads)
            turns.append(continue_choice(self._room, state.choice, transcript, self._choice_context))
        return turns

    def _read_by(self, reads: int) -> list[TranscriptEntry]:
        """What a turn reads that began after this number of messages of the run."""
        return [*self._earlier, *self._transcript[:reads]]

    def summarised(self, msg_id: str) -> int:
        """How many messages the summary stands for that this turn, in progress, began with."""
        summary = self._begun_with[msg_id]
        transcript = self._read_by(self._state.open[msg_id].reads)
        return len(transcript) - len(summary.rest(transcript)) if summary.until else 0

    def heard(self, key: str) -> Sequence[Heard]:
        message = self._state.open.get(key)
        since = [] if message is None else self._transcript[message.reads :]
        return [
            Heard(msg_id=one.msg_id, text=words_of(one), tainted_by=one.tainted_by)
            for one in since
            if one.seat_id is None and one.text.strip()
        ]

    def to_cut(self) -> Collection[str]:
        state = self._state
        if not (state.is_pausing or state.is_finishing):
            return list(state.skipped)
        return [*state.open, *([] if state.choice is None else [state.choice.step_id])]

    @property
    def max_turns(self) -> int | None:
        return None

    def decide(self, running: Collection[str], waiting: int, totals: RunTotals) -> Decision:
        state = self._state
        if running:
            return Wait()
        if state.is_pausing:
            return End(entries=[RoomPaused(round=state.round)], status=RunStatus.PAUSED)
        if self._limit is not None:
            return self._completed(self._limit.stop_reason, self._limit)
        if self._lost is not None:
            return self._stopped_by(self._lost)
        if not state.is_started:
            started = RoomStarted(room_id=self._room.room_id, task=self._room.task)
            said = self._entries.get(self._request.said or "")
            spoken = [] if said is None else [spoken_event(self._room, said)]
            return Append(entries=[started, *self._request.begin, *spoken])
        # `prepare` reads the room and its text, in a thread.
        following = self._follow(state, totals, has_text=False) if self._is_fresh else Begin()
        if isinstance(following, Wait | End):
            return following
        return Begin(len(self._room.seats) if self._room.policy.name == PolicyName.PARALLEL else 1)

    def _follow(
        self, state: RoomState, totals: RunTotals, *, has_text: bool = True
    ) -> Speak | Choose | RoundStart | RoundEnd | Wait | End:
        """What follows after this state in the room as it was read; without the text, anybody may speak."""
        stop, reached = self._room.stop, state.totals(totals)
        fired = fired_stop(stop, reached)
        if fired is not None:
            phrase = fired_phrase(stop, reached) if fired == "phrase" else None
            return self._before_end(state, fired, has_text, phrase)
        return self._next_turn(state, has_text) if state.is_round_open else self._start_round(state, has_text)

    def _before_end(
        self, state: RoomState, reason: str, has_text: bool, phrase: str | None = None
    ) -> Speak | Choose | End:
        """The end for this reason, unless a person spoke last and can still be answered."""
        if state.unheard is not None and reason in (*AFTER_A_REPLY, StopReason.FINISHED.value):
            floor = state.floor(self._room.seat_states, has_text=False)
            following = reply(self._room.policy.name, floor, state.unheard if has_text else "")
            if isinstance(following, Speak | Choose):
                return following
        return self._completed(reason, phrase=phrase)

    def _start_round(self, state: RoomState, has_text: bool) -> Speak | Choose | RoundStart | End:
        room = self._room
        if room.policy.name == PolicyName.SEQUENTIAL and state.ended_rounds:
            return self._before_end(state, StopReason.FINISHED.value, has_text)
        if not any(not seat.is_muted for seat in room.seats):
            return self._stopped_by(NO_SEAT_LEFT)
        return RoundStart(round=state.round + 1, max_rounds=room.max_rounds)

    def _next_turn(self, state: RoomState, has_text: bool) -> Speak | Choose | RoundEnd | Wait | End:
        floor = state.floor(self._room.seat_states, has_text=has_text)
        following = next_turn(self._room.policy.name, floor)
        match following:
            case Speak() | Choose():
                return following
            case EndRound():
                return RoundEnd(round=state.round)
            case WaitForPerson():
                return Wait()
            case Finished():
                return self._before_end(state, StopReason.FINISHED.value, has_text)
            case NobodyLeft():
                return self._stopped_by(NO_SEAT_LEFT)

    def _stopped_by(self, error: LuxxError) -> End:
        if self._call is not None:
            end = self._completed(StopReason.ERROR.value, error)
            return msgspec.structs.replace(end, status=RunStatus.FAILED)
        event = ErrorEvent(message=error.message, code=error.kind)
        paused = RoomPaused(round=self._state.round)
        return End(entries=[event, paused], status=RunStatus.PAUSED, error=error)

    def _completed(self, reason: str, error: LuxxError | None = None, phrase: str | None = None) -> End:
        entries: list[LogEntry] = []
        if error is not None:
            entries.append(ErrorEvent(message=error.message, code=error.kind))
        entries.append(RoomCompleted(stop_reason=reason, rounds=self._state.ended_rounds, phrase=phrase))
        return End(entries=entries, status=RunStatus.COMPLETED, stop_reason=reason, error=error)

    def on_stop(self, error: LuxxError | None) -> End:
        if isinstance(error, LimitReached):
            return self._completed(error.stop_reason, error)
        end = self._completed(StopReason.CANCELLED.value)
        write = None if self._call is None else partial(delete_content, call=self._head.id)
        return msgspec.structs.replace(end, status=RunStatus.CANCELLED, write=write)

    def prepare(self, session: Session, begin: Begin, most: int, totals: RunTotals) -> Opening:
        """The end of a round and the start of the next are logged together with the turns that follow."""
        del begin
        self._read(session)
        rounds: list[RoundStart | RoundEnd] = []
        state = self._state
        while isinstance(following := self._follow(state, totals), RoundStart | RoundEnd):
            rounds.append(following)
            state = self._state.after_rounds(rounds)
        opening = Opening()
        if isinstance(following, Choose):
            opening = self._prepare_choice(session, following)
        elif isinstance(following, Speak):
            opening = self._prepare_messages(session, following.seat_ids[:most], state.round)
        writes = [opening.write] if opening.write is not None else []
        if state.round != self._state.round and self._call is None:
            writes.append(partial(write_round, self._room.room_id, state.round))

        def write(connection: Connection) -> None:
            for each in writes:
                each(connection)

        return Opening(turns=opening.turns, entries=[*rounds, *opening.entries], write=write)

    def _prepare_messages(self, session: Session, seat_ids: Sequence[int], number: int) -> Opening:
        """The turns of seats in round `number`."""
        transcript = [*self._earlier, *self._transcript]
        turns: list[TurnStart] = []
        entries: list[LogEntry] = []
        muted: list[int] = []
        for seat_id in seat_ids:
            seat = self._room.seat(seat_id)
            if seat is None or seat.is_muted:
                continue  # Since the decision.
            try:
                request = self._resolved(session, seat.settings)
            except LuxxError as error:
                entries.append(
                    AgentError(seat_id=seat_id, sender_name=seat.name, message=error.message, code=error.kind)
                )
                if self._state.failures.get(seat_id, 0) + 1 >= FAILURES_TO_MUTE:
                    entries.append(Warning(message=muted_text(seat.name)))
                    muted.append(seat_id)
                continue
            start, entry = begin_message(self._room, seat, request, transcript, self._summary, number)
            turns.append(start)
            entries.append(entry)
        for seat_id in muted:
            self._room = self._room.with_muted(seat_id)
        if not muted or self._call is not None:
            return Opening(turns=turns, entries=entries)
        return Opening(turns=turns, entries=entries, write=lambda connection: mute_seat(connection, *muted))

    def _resolved(self, session: Session, settings: AgentSettings) -> ChatRequest:
        request = self._resolve(session, self._head.user_id, settings)
        when_asked = WhenAsked.DENY if self._request.is_unattended else request.when_asked
        return msgspec.structs.replace(request, origin=self._origin, when_asked=when_asked)

    def _prepare_choice(self, session: Session, choose: Choose) -> Opening:
        transcript = [*self._earlier, *self._transcript]
        try:
            request = self._resolved(session, selector_settings(self._room.policy))
        except Conflict as error:
            self._lost = error
            return Opening()
        except LuxxError as error:
            text = f"The model that chooses who speaks next cannot be used: {error.message}"
            floor = FloorGiven(seat_id=choose.fallback, by="fallback")
            return Opening(entries=[Warning(message=text), floor])
        start, entry = begin_choice(self._room, choose, request, transcript, self._choice_context)
        return Opening(turns=[start], entries=[entry])

    def close(self, start: TurnStart, state: TurnState, ending: Ending, cut: UsageEntry | None) -> Closing:
        if isinstance(ending.error, LimitReached):
            self._limit = ending.error
        self._is_fresh = False
        message = self._state.open.get(start.turn.msg_id)
        if message is None:
            assert self._state.choice is not None, "a turn of this room is a message or a choice"
            return close_choice(self._room, self._state.choice.choose, start, state, ending, cut)
        failures = self._state.failures.get(message.seat_id, 0)
        closing, entry = close_message(
            self._room, message, start, self._head.id, state, ending, failures=failures, cut=cut
        )
        if entry is not None:
            self._entries[entry.msg_id] = entry
        if ending.status == RunStatus.FAILED and failures + 1 >= FAILURES_TO_MUTE:
            self._room = self._room.with_muted(message.seat_id)
        return closing

    def on_inputs(self, session: Session, inputs: Sequence[RunInput]) -> InputEffect:
        entries = input_entries(session, inputs, self._room, self._entries, tuple(self._state.open))
        self._read(session)
        return InputEffect(entries=entries)

    def _read(self, session: Session) -> None:
        self._room = read_room(session, self._head, self._call, self._state.failures)
        # Here in a thread: a stop that was changed is looked for in all messages.
        find_phrases(self._room.stop, tuple(self._state.messages))
        self._is_fresh = True
