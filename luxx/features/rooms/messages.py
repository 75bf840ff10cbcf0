"""The messages of a room: written in the transaction of a run, read in pages and as a transcript.

Also the room with its seats as its run reads it; a call that stores nothing has both in the row of its run.

A message belongs to the user who owns the room, whoever wrote it; `sender_name` says who that was.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Connection, Select, bindparam, func, insert, select
from sqlalchemy.orm import Session

from luxx.domain.accounts.models import User
from luxx.domain.conversations.access import assistant_steps
from luxx.domain.conversations.lists import MAX_PAGE_MIB, Messages
from luxx.domain.conversations.models import MessageRow
from luxx.domain.conversations.search_index import index_message
from luxx.domain.conversations.views import MessageView, message_view, user_text_of
from luxx.errors import TooLarge
from luxx.features.rooms.models import ChatRoomRow, RoomPolicy
from luxx.features.rooms.policies import SeatState
from luxx.features.rooms.prompt import TranscriptEntry, taint_by_person
from luxx.features.rooms.queries import Seat, policy_of, read_seats, stop_of
from luxx.features.rooms.replies import quotation, with_quotations
from luxx.features.rooms.state import FAILURES_TO_MUTE
from luxx.features.rooms.stops import Stop
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.tables import table_of
from luxx.runs.turn.run_rows import RunHead
from luxx.wire.message import AssistantContent, ContextRecord, UserContent
from luxx.wire.orchestration_event import RoomMessage
from luxx.wire.turn import Usage, steps_text
from luxx.wire.turn_event import Warning

_MAX_PAGE_BYTES = MAX_PAGE_MIB * 1024 * 1024
_messages = table_of(MessageRow)
_insert = insert(_messages)
_encode = msgspec.json.Encoder().encode


class NewRoomMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message to store: of a seat (`AssistantContent`) or of a person (`UserContent`, no `seat_id`).

    `id` and `created_at` are set if they are left out. `replay` is what adapters want back, per completion.
    `reply_to`: the message of the room that a person's message answers.
    """

    content: UserContent | AssistantContent
    sender_name: str
    sender_color: str | None = None
    seat_id: int | None = None
    round_number: int | None = None
    run_id: str | None = None
    id: str | None = None
    status: str = "complete"
    finish: str | None = None
    provider_id: int | None = None
    provider_name: str | None = None
    model: str | None = None
    token_count: int = 0
    usage: Usage | None = None
    replay: Sequence[object] = ()
    context: ContextRecord | None = None
    created_at: datetime | None = None
    reply_to: str | None = None


def origin_of(message: NewRoomMessage) -> dict[str, Any]:
    """Who produced the message and why it ended, as fields that its row and its event share."""
    return {name: getattr(message, name) for name in ("provider_id", "provider_name", "model", "finish")}


def add_message(connection: Connection, room_id: str, user_id: int, message: NewRoomMessage) -> str:
    """Stores a message of a room and returns its id."""
    message_id = message.id or new_id()
    row = {
        "id": message_id, "user_id": user_id, "room_id": room_id, "seat_id": message.seat_id,
        "reply_to": message.reply_to, "run_id": message.run_id,
        "role": "user" if isinstance(message.content, UserContent) else "assistant",
        "content": _encode(message.content).decode(),
        "replay": _encode(message.replay).decode() if message.replay else None,
        "context": None if message.context is None else _encode(message.context).decode(),
        "token_count": message.token_count,
        "usage": None if message.usage is None else _encode(message.usage).decode(),
        "status": message.status, **origin_of(message),
        "sender_name": message.sender_name, "sender_color": message.sender_color,
        "round_number": message.round_number, "created_at": message.created_at or utc_now(),
    }  # fmt: skip
    connection.execute(_insert, row)
    index_message(connection, row)
    return message_id


def message_page(session: Session, room: ChatRoomRow, *, page: int, page_size: int) -> Messages:
    """One page of a room's messages, newest first. Raises TooLarge if they exceed MAX_PAGE_MIB."""
    start = (page - 1) * page_size
    query = _newest(room.id).offset(start).limit(page_size)
    ids, is_cut = _ids_within_bytes(session, query)
    if is_cut:
        raise TooLarge(
            f"the messages of this page have more than {MAX_PAGE_MIB} MiB; request fewer with page_size, "
            "or with limit and before, which return as many as fit",
            kind="page_too_large",
        )
    total = count_messages(session, room.id)
    return _read(session, ids, total, has_more=start + len(ids) < total)


def messages_before(session: Session, room: ChatRoomRow, *, limit: int, before: str | None) -> Messages:
    """The newest messages, or those before a message's id: `limit`, or as many as fit."""
    # One row more than `limit` shows whether older messages follow.
    query = _newest(room.id).limit(limit + 1)
    if before is not None:
        query = query.where(MessageRow.id < before)
    ids, is_cut = _ids_within_bytes(session, query)
    total = count_messages(session, room.id)
    return _read(session, ids[:limit], total, has_more=is_cut or len(ids) > limit)


def count_messages(session: Session, room_id: str) -> int:
    """How many messages a room has."""
    return session.scalar(select(func.count()).where(MessageRow.room_id == room_id)) or 0


def last_of_seat(session: Session, room_id: str, seat_id: int) -> MessageRow | None:
    """The newest message of a seat."""
    query = select(MessageRow).where(MessageRow.room_id == room_id, MessageRow.seat_id == seat_id)
    return session.scalar(query.order_by(MessageRow.id.desc()).limit(1))


def _newest(room_id: str) -> Select[str, int]:
    sizes = select(MessageRow.id, func.length(MessageRow.content)).where(MessageRow.room_id == room_id)
    return sizes.order_by(MessageRow.id.desc())


def _ids_within_bytes(session: Session, query: Select[str, int]) -> tuple[list[str], bool]:
    """The ids of as many rows as fit (at least one, if there is any), and whether rows were left out."""
    ids: list[str] = []
    size = 0
    for message_id, length in session.execute(query):
        size += length
        if ids and size > _MAX_PAGE_BYTES:
            return ids, True
        ids.append(message_id)
    return ids, False


def _read(session: Session, ids: list[str], total: int, *, has_more: bool) -> Messages:
    rows = session.scalars(select(MessageRow).where(MessageRow.id.in_(ids)).order_by(MessageRow.id.desc()))
    return Messages(items=_views(session, rows), total=total, has_more=has_more)


def _views(session: Session, rows: Iterable[MessageRow]) -> list[MessageView]:
    return with_quotations(session, [message_view(row) for row in rows])


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
    entries = _entries(rows, owner_name)
    # The context of an older message is read without the messages of later runs.
    is_newest = session.scalar(_newest_run, {"room_id": head.subject_id}) == head.id
    earlier = [
        entries[row.id]
        for row in rows
        if row.run_id != head.id and (is_newest or not own_ids or row.id < own_ids[0])
    ]
    return earlier, {id_: entries[id_] for id_ in own_ids}


def _entries(rows: Iterable[MessageRow], owner_name: str) -> dict[str, TranscriptEntry]:
    """The messages of a room, oldest first, by their ids."""
    entries: dict[str, TranscriptEntry] = {}
    for row in rows:
        entries[row.id] = entry_of(row, owner_name, entries.get(row.reply_to or ""))
    return entries


def entry_of(row: MessageRow, owner_name: str, answered: TranscriptEntry | None = None) -> TranscriptEntry:
    """A stored message as the next speakers read it, in a room of the user of this name. `answered`: what a
    reply answers, unless it was deleted."""
    name = row.sender_name or ""
    if row.role == "user":
        return TranscriptEntry(
            msg_id=row.id,
            seat_id=None,
            name=name,
            text=user_text_of(row.content),
            # A reply brings the beginning of what it answers.
            tainted_by=taint_by_person(name, owner_name) or (answered and answered.tainted_by),
            reply_to=row.reply_to,
            quoted=None if answered is None else quotation(answered.name, answered.text),
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
        reply_to=message.reply_to or None,
        quoted=message.quoted or None,
    )
