"""What the run of a room reads: the room with its seats, and the messages before. A call that stores nothing
has both in the row of its run.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from luxx.domain.accounts.models import User
from luxx.domain.conversations.access import assistant_steps
from luxx.domain.conversations.models import MessageRow
from luxx.domain.conversations.views import user_text_of
from luxx.features.rooms.models import ChatRoomRow, RoomPolicy
from luxx.features.rooms.policies import SeatState
from luxx.features.rooms.prompt import TranscriptEntry, taint_by_person
from luxx.features.rooms.queries import Seat, policy_of, read_seats, stop_of
from luxx.features.rooms.state import FAILURES_TO_MUTE
from luxx.features.rooms.stops import Stop
from luxx.infra.store.tables import table_of
from luxx.runs.orchestration.interface import RunHead
from luxx.wire.event import Warning
from luxx.wire.message import ContextRecord
from luxx.wire.room_event import RoomMessage
from luxx.wire.turn import steps_text

_replay = msgspec.json.Decoder(list[dict[str, Any]])
_context = msgspec.json.Decoder(ContextRecord)
_rooms, _people = table_of(ChatRoomRow), table_of(User)
_room = (
    select(*_rooms.c, _people.c.username.label("owner_name"))
    .select_from(_rooms.join(_people, _people.c.id == _rooms.c.user_id))
    .where(_rooms.c.id == bindparam("room_id"))
)
_newest_run = select(_rooms.c.run_id).where(_rooms.c.id == bindparam("room_id"))


class RoomValues(msgspec.Struct, frozen=True, kw_only=True):
    """A room with its seats in turn order, as they are now."""

    room_id: str
    user_id: int
    owner_name: str = ""
    task: str
    max_rounds: int
    policy: RoomPolicy
    stop: Stop
    seats: tuple[Seat, ...]

    @property
    def seat_states(self) -> list[SeatState]:
        """The seats as the policies see them."""
        return [SeatState(seat_id=one.seat_id, name=one.name, is_muted=one.is_muted) for one in self.seats]

    def seat(self, seat_id: int) -> Seat | None:
        """The seat of this id, unless it was removed."""
        return next((one for one in self.seats if one.seat_id == seat_id), None)

    def with_muted(self, seat_id: int) -> "RoomValues":
        """The room with this seat muted."""
        seats = [
            msgspec.structs.replace(one, is_muted=True) if one.seat_id == seat_id else one
            for one in self.seats
        ]
        return msgspec.structs.replace(self, seats=tuple(seats))


class RoomCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that stores nothing: the room as it was when the call began, and the messages that it gave."""

    room: RoomValues
    given: list[TranscriptEntry]


class RoomRunRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the row of a room's run stores. `said`: the message with which a call begins. `is_unattended`:
    what would have to ask a person is denied. `warnings`: what the run begins with."""

    said: str | None = None
    is_unattended: bool = False
    call: RoomCall | None = None
    warnings: list[str] = []

    @property
    def begin(self) -> list[Warning]:
        """The events with which the run begins."""
        return [Warning(message=text) for text in self.warnings]


_request = msgspec.json.Decoder(RoomRunRequest)


def read_request(head: RunHead) -> RoomRunRequest:
    """What the row of a room's run stores."""
    return _request.decode(head.request)


def read_room(
    session: Session, head: RunHead, call: RoomCall | None, failures: Mapping[int, int]
) -> RoomValues:
    """The room of a run as it is now; in a call as it was at its start, without the seats that failed too
    often."""
    if call is None:
        return stored_room(session, head.subject_id)
    room = call.room
    for seat_id, count in failures.items():
        if count >= FAILURES_TO_MUTE:
            room = room.with_muted(seat_id)
    return room


def stored_room(session: Session, room_id: str) -> RoomValues:
    """The room as it is now."""
    room = session.connection().execute(_room, {"room_id": room_id}).one()
    return RoomValues(
        room_id=room.id,
        user_id=room.user_id,
        owner_name=room.owner_name,
        task=room.task,
        max_rounds=room.max_rounds,
        policy=policy_of(room),
        stop=stop_of(room) or Stop(rounds=room.max_rounds),
        seats=tuple(read_seats(session, room)),
    )


def read_messages(
    session: Session, head: RunHead, call: RoomCall | None, owner_name: str
) -> tuple[list[TranscriptEntry], dict[str, TranscriptEntry]]:
    """The messages before this run, and those of this run by their ids."""
    if call is not None:
        own = {entry.msg_id: entry for entry in call.given if entry.msg_id == read_request(head).said}
        return [entry for entry in call.given if entry.msg_id not in own], own
    rows = session.scalars(
        select(MessageRow).where(MessageRow.room_id == head.subject_id).order_by(MessageRow.id)
    ).all()
    own_ids = [row.id for row in rows if row.run_id == head.id]
    # The context of an older message is read without the messages of later runs.
    is_newest = session.scalar(_newest_run, {"room_id": head.subject_id}) == head.id
    earlier = [
        entry_of(row, owner_name)
        for row in rows
        if row.run_id != head.id and (is_newest or not own_ids or row.id < own_ids[0])
    ]
    return earlier, {row.id: entry_of(row, owner_name) for row in rows if row.run_id == head.id}


def entry_of(row: MessageRow, owner_name: str) -> TranscriptEntry:
    """A stored message as the next speakers read it, in a room of the user of this name."""
    name = row.sender_name or ""
    if row.role == "user":
        return TranscriptEntry(
            msg_id=row.id,
            seat_id=None,
            name=name,
            text=user_text_of(row.content),
            tainted_by=taint_by_person(name, owner_name),
        )
    steps = assistant_steps(row.content)
    return TranscriptEntry(
        msg_id=row.id,
        seat_id=row.seat_id,
        name=name,
        text=steps_text(steps),
        steps=tuple(steps),
        replay=tuple(_replay.decode(row.replay)) if row.replay else (),
        context=_context.decode(row.context) if row.context else None,
        tainted_by=next((one.name or "an earlier call" for one in steps if one.is_untrusted is True), None),
    )


def entry_of_event(message: RoomMessage, owner_name: str) -> TranscriptEntry:
    """The same of a message that was deleted since: what the log of its run has."""
    by = taint_by_person(message.sender_name, owner_name) if message.seat_id is None else None
    return TranscriptEntry(
        msg_id=message.id,
        seat_id=message.seat_id,
        name=message.sender_name,
        text=message.content,
        tainted_by=by,
    )
