"""The turns of a room: how one begins, with what it reads, and what it writes when it ends."""

from collections.abc import Callable, Sequence

import msgspec
from msgspec import UNSET
from sqlalchemy import Connection, bindparam, select
from sqlalchemy.orm import Session

from luxx.domain.agents.queries import AgentSettings
from luxx.domain.context.prompt import stored_record
from luxx.domain.usage.ledger import UsageEntry
from luxx.errors import LuxxError
from luxx.features.rooms.messages import NewRoomMessage, RoomValues, add_message, origin_of
from luxx.features.rooms.models import ChatRoomRow, RoomAgentRow
from luxx.features.rooms.policies import Choose
from luxx.features.rooms.prompt import (
    SELECTOR_PROMPT,
    RoomSummary,
    SeatInRoom,
    TranscriptEntry,
    choosing_messages,
    chosen_name,
    past_messages,
    system_prompt,
    taint_of,
)
from luxx.features.rooms.queries import Seat
from luxx.features.rooms.state import FAILURES_TO_MUTE, OpenChoice, OpenMessage
from luxx.infra.clock import new_id
from luxx.infra.store.tables import table_of
from luxx.runs.log.events import LogEntry
from luxx.runs.orchestration.interface import TurnStart
from luxx.runs.turn.asking import close_questions
from luxx.runs.turn.state import ChatRequest, Origin, TurnState
from luxx.runs.turn.turn_log import (
    COMPLETE,
    Closing,
    Ending,
    cost_entries,
    message_origin,
    message_status,
)
from luxx.wire.event import CallPurpose, TurnNote
from luxx.wire.message import AssistantContent, ContextRecord, Quotation
from luxx.wire.orchestration_event import (
    AgentError,
    FloorGiven,
    MessageEnd,
    MessageStart,
    MessageStored,
    RoomMessage,
    Selecting,
)
from luxx.wire.run import RoomCopyTurn, RunStatus
from luxx.wire.turn import StepStatus, TurnRef, steps_text
from luxx.wire.turn_event import Warning

SELECTOR = "selector"
"""The `step_id` of turns in which a model chooses who speaks next begins with it."""

ResolveTurn = Callable[[Session, int, AgentSettings], ChatRequest]
"""The request of a turn for this user with these settings. Raises LuxxError for what cannot be used."""

_encode = msgspec.json.Encoder().encode
_request = msgspec.json.Decoder(ChatRequest)
_seats = table_of(RoomAgentRow)
_rooms = table_of(ChatRoomRow)
_set_round = _rooms.update().where(_rooms.c.id == bindparam("b_id")).values(current_round=bindparam("round"))
_round = select(_rooms.c.current_round).where(_rooms.c.id == bindparam("room_id"))
_mute = _seats.update().where(_seats.c.id == bindparam("b_id")).values(muted=True)


def mute_seat(connection: Connection, *seat_ids: int) -> None:
    """Mutes seats, in the transaction that logs why."""
    for seat_id in seat_ids:
        connection.execute(_mute, {"b_id": seat_id})


def write_round(room_id: str, number: int, connection: Connection) -> None:
    """Stores the round that a room is in."""
    connection.execute(_set_round, {"b_id": room_id, "round": number})


def stored_round(connection: Connection, room_id: str) -> int:
    """The round that a room is in; 0 before the first."""
    return connection.scalar(_round, {"room_id": room_id}) or 0


def begin_message(
    room: RoomValues,
    seat: Seat,
    request: ChatRequest,
    transcript: Sequence[TranscriptEntry],
    summary: RoomSummary,
    number: int,
) -> tuple[TurnStart, LogEntry]:
    """The turn of a seat in round `number`, and the event with which it begins."""
    msg_id = new_id()
    seats = [SeatInRoom(seat_id=one.seat_id, name=one.name, role=one.role) for one in room.seats]
    prompt = system_prompt(request.system_prompt, seat.seat_id, seats)
    request = msgspec.structs.replace(request, system_prompt=prompt)
    event = MessageStart(
        msg_id=msg_id,
        seat_id=seat.seat_id,
        sender_name=seat.name,
        sender_color=seat.color,
        round_number=number,
    )
    start = start_of(TurnRef(msg_id=msg_id), request, room.task, seat.seat_id, transcript, summary)
    return start, (event, TurnNote(request=msgspec.Raw(_encode(request))))


def continue_message(
    room: RoomValues,
    msg_id: str,
    message: OpenMessage,
    transcript: Sequence[TranscriptEntry],
    summary: RoomSummary,
    origin: Origin,
) -> TurnStart:
    """The turn of this origin that an earlier drive began, with what it read then."""
    request = msgspec.structs.replace(_request.decode(message.note.request), origin=origin)
    return start_of(TurnRef(msg_id=msg_id), request, room.task, message.seat_id, transcript, summary)


def start_of(
    turn: TurnRef,
    request: ChatRequest,
    task: str,
    seat_id: int,
    transcript: Sequence[TranscriptEntry],
    summary: RoomSummary,
) -> TurnStart:
    """A seat's turn after these messages, of which the summary stands for the older ones."""
    return TurnStart(
        turn=turn,
        request=request,
        past=past_messages(task, seat_id, transcript, summary),
        tainted_by=taint_of(transcript),
    )


def begin_choice(
    room: RoomValues,
    choose: Choose,
    request: ChatRequest,
    transcript: Sequence[TranscriptEntry],
    context: ContextRecord,
) -> tuple[TurnStart, LogEntry]:
    """The turn in which a model chooses who speaks next, and the event with which it begins.

    `context`: how the prompt of the choice before was made.
    """
    request = msgspec.structs.replace(request, system_prompt=SELECTOR_PROMPT, tools=[])
    step_id = f"{SELECTOR}-{new_id()}"
    event = Selecting(step_id=step_id, seat_ids=list(choose.seat_ids), fallback=choose.fallback)
    start = choice_start(room, step_id, choose, request, transcript, context)
    return start, (event, TurnNote(request=msgspec.Raw(_encode(request))))


def continue_choice(
    room: RoomValues, choice: OpenChoice, transcript: Sequence[TranscriptEntry], context: ContextRecord
) -> TurnStart:
    """The turn of a choice that an earlier drive began."""
    request = _request.decode(choice.note.request)
    return choice_start(room, choice.step_id, choice.choose, request, transcript, context)


def choice_start(
    room: RoomValues,
    step_id: str,
    choose: Choose,
    request: ChatRequest,
    transcript: Sequence[TranscriptEntry],
    context: ContextRecord,
) -> TurnStart:
    """The turn of a choice after these messages."""
    names = [one.name for one in room.seats if one.seat_id in choose.seat_ids]
    past = choosing_messages(room.task, names, room.policy.prompt, transcript, context)
    turn = TurnRef(step_id=step_id)
    return TurnStart(turn=turn, request=request, past=past, purpose=CallPurpose.CHOICE)


def close_choice(
    room: RoomValues,
    choose: Choose,
    start: TurnStart,
    state: TurnState,
    ending: Ending,
    cut: UsageEntry | None,
) -> Closing:
    """What the end of a choice writes: who has the floor, whatever the model did.

    Nobody has it after a choice that was cut, by a pause or an end: it is made again after a resume.
    """
    names = {one.name: one.seat_id for one in room.seats if one.seat_id in choose.seat_ids}
    others = [one.name for one in room.seats if one.name not in names]
    events = cost_entries(start.purpose, cut)
    text = steps_text(state.steps)
    name = chosen_name(text, list(names), others) if ending.error is None else None
    if ending.status == RunStatus.CANCELLED:
        pass
    elif name is not None:
        events.append(FloorGiven(seat_id=names[name], by=SELECTOR))
    else:
        why = "named no seat that can speak" if ending.error is None else f"failed: {ending.error.message}"
        text = f"The model that chooses who speaks next {why}. The next seat in order speaks."
        events += [Warning(message=text), FloorGiven(seat_id=choose.fallback, by="fallback")]
    return Closing(events=events)


def close_message(
    room: RoomValues,
    message: OpenMessage,
    start: TurnStart,
    run_id: str,
    state: TurnState,
    ending: Ending,
    *,
    failures: int,
    cut: UsageEntry | None,
) -> tuple[Closing, TranscriptEntry | None]:
    """What the end of a seat's turn writes, and its message for the transcript, if there is one.

    `failures`: how many turns of the seat before this one failed in a row. `cut`: the usage of a completion
    that was cut; the totals of the run count it. In a copy of the room only the log has the message.
    """
    is_stored = not isinstance(start.request.origin, RoomCopyTurn)
    has_failed = ending.status == RunStatus.FAILED and ending.error is not None
    is_muted = has_failed and failures + 1 >= FAILURES_TO_MUTE
    events = cost_entries(start.purpose, cut)
    if ending.error is not None and has_failed:
        events += _failure(message, ending.error, start.turn.msg_id, is_muted=is_muted)
    text, stored = steps_text(state.steps), _message_to_store(message, start, run_id, state, ending)
    if stored is not None or not has_failed:
        events.append(
            MessageEnd(
                msg_id=start.turn.msg_id,
                content=text,
                token_count=state.usage.completion_tokens,
                status=message_status(state, ending),
                **message_origin(start.request, state, ending),
            )
        )
    if stored is not None:
        events.append(stored_event(room.room_id, stored, text))
    questions = [one.question.question_id for one in state.questions if one.answer is None]

    def write(connection: Connection) -> None:
        if stored is not None and is_stored:
            add_message(connection, room.room_id, room.user_id, stored)
        if is_muted and is_stored:
            mute_seat(connection, message.seat_id)
        if questions:
            close_questions(connection, run_id, questions)

    size = sum(len(step.content) for step in state.steps) if stored is not None and is_stored else 0
    closing = Closing(events=events, write=write, size=size)
    return closing, None if stored is None else _entry_after(message, start, state, text)


def _message_to_store(
    message: OpenMessage, start: TurnStart, run_id: str, state: TurnState, ending: Ending
) -> NewRoomMessage | None:
    """The message that the turn wrote; None if it was cut or failed before it wrote anything."""
    status = message_status(state, ending)
    if status != COMPLETE and not any(step.status != StepStatus.INTERRUPTED for step in state.steps):
        return None
    return NewRoomMessage(
        id=start.turn.msg_id,
        run_id=run_id,
        seat_id=message.seat_id,
        sender_name=message.name,
        sender_color=message.color,
        round_number=message.round_number,
        content=AssistantContent(
            steps=list(state.steps),
            verdicts=list(state.verdicts) or UNSET,
            memories_used=[fact.id for fact in state.recalled or ()] or UNSET,
        ),
        replay=[note.replay for note in state.notes] if any(note.replay for note in state.notes) else (),
        context=msgspec.structs.replace(stored_record(state.context, start.past), todos=None),
        status=status,
        token_count=state.usage.completion_tokens,
        usage=state.usage,
        **message_origin(start.request, state, ending),
    )


def _entry_after(message: OpenMessage, start: TurnStart, state: TurnState, text: str) -> TranscriptEntry:
    return TranscriptEntry(
        msg_id=start.turn.msg_id,
        seat_id=message.seat_id,
        name=message.name,
        text=text,
        steps=state.steps,
        replay=tuple(dict(note.replay) for note in state.notes),
        context=msgspec.structs.replace(state.context, todos=None),
        tainted_by=state.tainted_by or start.tainted_by,
    )


def _failure(message: OpenMessage, error: LuxxError, msg_id: str, *, is_muted: bool) -> list[LogEntry]:
    events: list[LogEntry] = [
        AgentError(
            msg_id=msg_id,
            seat_id=message.seat_id,
            sender_name=message.name,
            message=error.message,
            code=error.kind,
        )
    ]
    if is_muted:
        events.append(Warning(message=muted_text(message.name)))
    return events


def muted_text(name: str) -> str:
    """The notice that a seat was muted."""
    return (
        f"{name} failed {FAILURES_TO_MUTE} times in a row and is muted now. Unmute it to let it speak again."
    )


def stored_event(
    room_id: str, message: NewRoomMessage, text: str, quoted: Quotation | None = None
) -> MessageStored:
    """The event of a stored message of a seat or a person; `quoted`: what a reply answers."""
    return MessageStored(
        message=RoomMessage(
            id=message.id or "",
            room_id=room_id,
            seat_id=message.seat_id,
            role="user" if message.seat_id is None else "assistant",
            content=text,
            token_count=message.token_count,
            status=message.status,
            **origin_of(message),
            sender_name=message.sender_name,
            sender_color=message.sender_color,
            round_number=message.round_number,
            reply_to=message.reply_to or UNSET,
            quoted=UNSET if message.reply_to is None else quoted,
        )
    )
