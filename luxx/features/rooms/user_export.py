"""The rooms of a user with their messages in an export of all their data, and their import elsewhere.

An import of a single file is stricter: `document.py` refuses what this one leaves out with a note.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.backup.user_export import FeatureExport, ImportedIds
from luxx.domain.conversations.access import assistant_steps, user_content
from luxx.domain.conversations.models import MessageRow
from luxx.domain.transfer.draft import ORIGIN_DETAILS
from luxx.errors import AmbiguousName, InvalidInput, LuxxError, NotFound
from luxx.features.rooms.checks import check_room_stop
from luxx.features.rooms.document import SEAT_FIELDS, RoomDocument, SeatDocument, document_of, stop_with_ids
from luxx.features.rooms.messages import NewRoomMessage, add_message
from luxx.features.rooms.models import ChatRoomRow, NewSeat, RoomAgentRow, RoomPolicy
from luxx.features.rooms.policies import PolicyName
from luxx.features.rooms.queries import seat_rows
from luxx.features.rooms.seats import seat_row
from luxx.features.rooms.service import encode_policy, encode_stop, index_room
from luxx.infra.clock import new_id
from luxx.infra.field_errors import FieldErrors
from luxx.infra.store.tables import first_given
from luxx.providers.queries import provider_named
from luxx.wire.message import AssistantContent, UserContent, with_files
from luxx.wire.turn import MODEL_LENGTH, Step, Usage

MAX_MESSAGES_MIB = 100
"""The most stored messages of rooms in an export; its reader keeps them in memory."""

DELETED = -1
"""The position of a message that was deleted."""

Int32 = Annotated[int, Meta(ge=0, le=2**31 - 1)]

_replay = msgspec.json.Decoder(list[dict[str, Any]])
_usage = msgspec.json.Decoder(Usage)


class ExportedRoomMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A person's message has `text`, that of a seat has `steps`. `seat`: its position in the file, if it
    still exists. `replay`: what the provider needs again when the room goes on. `reply_to`: the position of
    the message that it answers; DELETED if that was deleted."""

    role: Literal["user", "assistant"]
    text: str = ""
    steps: list[Step] = []
    replay: list[dict[str, Any]] = []
    seat: Int32 | None = None
    sender_name: Annotated[str, Meta(max_length=200)] | None = None
    sender_color: Annotated[str, Meta(max_length=20)] | None = None
    round_number: Int32 | None = None
    token_count: Int32 = 0
    usage: Usage | None = None
    status: Literal["complete", "partial", "failed"] = "complete"
    finish: Annotated[str, Meta(max_length=20)] | None = None
    provider_name: Annotated[str, Meta(max_length=100)] | None = None
    model: Annotated[str, Meta(max_length=MODEL_LENGTH)] | None = None
    reply_to: Annotated[int, Meta(ge=DELETED, le=2**31 - 1)] | None = None
    created_at: datetime


class ExportedRoom(msgspec.Struct, frozen=True, kw_only=True):
    """`left_out`: the number of messages that did not fit into the export."""

    document: RoomDocument
    messages: list[ExportedRoomMessage] = []
    left_out: Int32 = 0
    created_at: datetime
    updated_at: datetime


def read_rooms(session: Session, caller: Caller, _project_ids: Sequence[str]) -> list[ExportedRoom]:
    """The rooms that the user owns, oldest first, with their messages; runs and members stay behind."""
    rooms = session.scalars(
        select(ChatRoomRow).where(ChatRoomRow.user_id == caller.user_id).order_by(ChatRoomRow.id)
    ).all()
    left = MAX_MESSAGES_MIB * 1024 * 1024
    exported: list[ExportedRoom] = []
    for room in rooms:
        in_room = MessageRow.room_id == room.id
        size = func.coalesce(func.sum(func.length(MessageRow.content)), 0)
        size, count = session.execute(select(size, func.count()).where(in_room)).one()
        fits = size <= left
        left -= size if fits else 0
        exported.append(
            ExportedRoom(
                document=document_of(session, caller, room),
                messages=list(_messages(session, room)) if fits else [],
                left_out=0 if fits else count,
                created_at=room.created_at,
                updated_at=room.updated_at,
            )
        )
    return exported


def _messages(session: Session, room: ChatRoomRow) -> Iterator[ExportedRoomMessage]:
    positions = {row.id: position for position, (row, _) in enumerate(seat_rows(session, room))}
    query = select(MessageRow).where(MessageRow.room_id == room.id).order_by(MessageRow.id)
    exported: dict[str, int] = {}
    for row in session.scalars(query.execution_options(yield_per=50)):
        reply_to = None if row.reply_to is None else exported.get(row.reply_to, DELETED)
        exported[row.id] = len(exported)
        is_person = row.role == "user"
        yield ExportedRoomMessage(
            role="user" if is_person else "assistant",
            text=user_content(row.content).text if is_person else "",
            steps=[] if is_person else assistant_steps(row.content),
            replay=_replay.decode(row.replay) if row.replay else [],
            seat=None if row.seat_id is None else positions.get(row.seat_id),
            sender_name=row.sender_name,
            sender_color=row.sender_color,
            round_number=row.round_number,
            token_count=row.token_count,
            usage=_usage.decode(row.usage) if row.usage else None,
            status="failed"
            if row.status == "failed"
            else "partial"
            if row.status == "partial"
            else "complete",
            **first_given(row, names=ORIGIN_DETAILS),
            reply_to=reply_to,
            created_at=row.created_at,
        )


def add_rooms(session: Session, caller: Caller, _ids: ImportedIds, value: Any) -> list[str]:
    """Adds rooms with their seats and messages. Returns notes about what was left out.

    Providers that the user does not have are left out. Unknown tools and skills stay: a run offers only those
    that exist. Raises LuxxError for what no server has exported.
    """
    try:
        exported = msgspec.convert(
            msgspec.json.decode(with_files(msgspec.json.encode(value))), list[ExportedRoom]
        )
    except msgspec.ValidationError as error:
        raise LuxxError(f"the rooms in it cannot be read ({error})") from error
    notes: dict[str, None] = {}
    for one in exported:
        room = _add_room(session, caller, one, notes)
        seats = _add_seats(session, caller, room, one.document, notes)
        _set_stop(session, room, one.document, seats)
        ids: list[str] = []
        for message in one.messages:
            ids.append(_add_message(session, room, seats, message, ids))
        if one.left_out:
            notes[f"the room {room.title}: {one.left_out} messages did not fit into the export"] = None
    session.flush()
    return list(notes)


def _add_room(
    session: Session, caller: Caller, exported: ExportedRoom, notes: dict[str, None]
) -> ChatRoomRow:
    document = exported.document
    policy = RoomPolicy(name=PolicyName.ROUND_ROBIN)
    if isinstance(document.policy, PolicyName):
        policy = RoomPolicy(name=document.policy)
    else:
        given = document.policy
        is_selector = given.name == PolicyName.SELECTOR
        provider_id = _provider_id(session, caller, document, given.provider, notes) if is_selector else None
        policy = RoomPolicy(
            name=given.name,
            provider_id=provider_id,
            # A model of a missing provider is a name that only that one knows.
            model=given.model if is_selector and (provider_id or given.provider is None) else None,
            prompt=given.prompt if is_selector else None,
        )
    room = ChatRoomRow(
        id=new_id(), user_id=caller.user_id, tenant_id=caller.tenant_id, title=document.title.strip(),
        task=document.task, max_rounds=document.max_rounds, policy=encode_policy(policy), stop=None,
        memory=document.memory,
        current_round=0, created_at=exported.created_at, updated_at=exported.updated_at,
    )  # fmt: skip
    session.add(room)
    session.flush()
    index_room(session, room)
    return room


def _add_seats(
    session: Session, caller: Caller, room: ChatRoomRow, document: RoomDocument, notes: dict[str, None]
) -> list[RoomAgentRow]:
    rows: list[RoomAgentRow] = []
    for position, seat in enumerate(document.agents):
        row = seat_row(room, _new_seat(session, caller, document, seat, notes))
        row.turn_order = position
        if row.provider_id is None:
            row.lost_provider = seat.provider
        if not row.name or row.name_key in {other.name_key for other in rows}:
            raise LuxxError(
                f"the room {document.title} in it is not valid: each seat needs a name of its own"
            )
        rows.append(row)
    session.add_all(rows)
    session.flush()
    return rows


def _new_seat(
    session: Session, caller: Caller, document: RoomDocument, seat: SeatDocument, notes: dict[str, None]
) -> NewSeat:
    fields = {name: getattr(seat, name) for name in SEAT_FIELDS}
    provider_id = _provider_id(session, caller, document, seat.provider, notes)
    if seat.provider is not None and provider_id is None:
        fields["model"] = None  # A name that only the missing provider knows.
    return NewSeat(**fields, provider_id=provider_id)


def _provider_id(
    session: Session, caller: Caller, document: RoomDocument, name: str | None, notes: dict[str, None]
) -> int | None:
    if name is None:
        return None
    try:
        return provider_named(session, caller, name, "$.provider").id
    except (NotFound, AmbiguousName):
        notes[f"the room {document.title} lost its provider {name}, which does not exist here"] = None
        return None


def _set_stop(session: Session, room: ChatRoomRow, document: RoomDocument, seats: list[RoomAgentRow]) -> None:
    if document.stop is None:
        return
    stop = stop_with_ids(document.stop, {seat.name_key: seat.id for seat in seats})
    errors = FieldErrors()
    check_room_stop(stop, [seat.id for seat in seats], errors)
    try:
        errors.raise_if_any()
    except InvalidInput as error:
        raise LuxxError(f"the room {document.title} in it is not valid: {error.message}") from error
    room.stop = encode_stop(stop)
    session.flush()


def _add_message(
    session: Session,
    room: ChatRoomRow,
    seats: list[RoomAgentRow],
    message: ExportedRoomMessage,
    before: Sequence[str],
) -> str:
    """Adds a message and returns its id. `before`: the ids of those before it in the file."""
    is_person = message.role == "user"
    reply_to = None
    if message.reply_to is not None:
        if message.reply_to >= len(before):
            raise LuxxError(
                f"the room {room.title} in it is not valid: a message answers one that is not before it"
            )
        reply_to = new_id() if message.reply_to == DELETED else before[message.reply_to]
    has_seat = message.seat is not None and message.seat < len(seats)
    return add_message(
        session.connection(),
        room.id,
        room.user_id,
        NewRoomMessage(
            content=UserContent(text=message.text) if is_person else AssistantContent(steps=message.steps),
            sender_name=message.sender_name or "",
            sender_color=message.sender_color,
            seat_id=seats[message.seat].id if has_seat and message.seat is not None else None,
            round_number=message.round_number,
            status=message.status,
            token_count=message.token_count,
            usage=message.usage,
            replay=message.replay,
            **first_given(message, names=ORIGIN_DETAILS),
            reply_to=reply_to,
            created_at=message.created_at,
        ),
    )


_rooms = msgspec.json.Decoder(list[ExportedRoom])

ROOM_EXPORT = FeatureExport(name="rooms", read=read_rooms, add=add_rooms)
