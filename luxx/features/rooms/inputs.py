"""What people give to a room's run while it works, as the entries of its log."""

from collections.abc import Sequence

import msgspec
from sqlalchemy.orm import Session

from luxx.domain.conversations.models import MessageRow
from luxx.features.rooms.messages import NewRoomMessage, RoomValues, entry_of
from luxx.features.rooms.prompt import TranscriptEntry
from luxx.features.rooms.state import SteerInput
from luxx.features.rooms.turns import stored_event
from luxx.runs.log.events import LogEntry
from luxx.runs.orchestration.inputs import InputKind, RunInput
from luxx.wire.message import UserContent
from luxx.wire.orchestration_event import FloorGiven, MessageStored, SteerAction, Steered

_steer_input = msgspec.json.Decoder(SteerInput)


def input_entries(
    session: Session,
    inputs: Sequence[RunInput],
    room: RoomValues,
    stored: dict[str, TranscriptEntry],
    open_turns: tuple[str, ...],
) -> list[LogEntry]:
    """The entries of these inputs. What a person said is added to `stored`, the messages that are stored and
    not yet logged; a skip cuts the `open_turns`."""
    entries: list[LogEntry] = []
    for given in inputs:
        data = _steer_input.decode(given.data)
        match given.kind:
            case InputKind.MESSAGE:
                # None: it was deleted since.
                if (row := session.get(MessageRow, str(data.message_id))) is not None:
                    entry = stored[row.id] = _entry(session, row, room.owner_name)
                    entries.append(spoken_event(room, entry, color=row.sender_color, number=row.round_number))
            case InputKind.PAUSE:
                entries.append(Steered(action=SteerAction.PAUSE, user=data.user))
            case InputKind.FINISH:
                entries.append(Steered(action=SteerAction.FINISH, user=data.user))
            case InputKind.SKIP:
                entries.append(Steered(action=SteerAction.SKIP, user=data.user, turns=open_turns))
            case InputKind.FLOOR if data.seat_id is not None:
                entries.append(FloorGiven(seat_id=data.seat_id, by="person", user=data.user))
            case _:
                pass
    return entries


def spoken_event(
    room: RoomValues, entry: TranscriptEntry, *, color: str | None = None, number: int | None = None
) -> MessageStored:
    """The event of a person's message."""
    message = NewRoomMessage(
        id=entry.msg_id, content=UserContent(text=entry.text), sender_name=entry.name,
        sender_color=color, round_number=number, reply_to=entry.reply_to,
    )  # fmt: skip
    return stored_event(room.room_id, message, entry.text, entry.quoted)


def _entry(session: Session, row: MessageRow, owner_name: str) -> TranscriptEntry:
    answered = None if row.reply_to is None else session.get(MessageRow, row.reply_to)
    if answered is None or answered.room_id != row.room_id:
        return entry_of(row, owner_name)
    return entry_of(row, owner_name, entry_of(answered, owner_name))
