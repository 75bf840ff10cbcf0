"""Calls of a room by a program: somebody speaks, and what the seats say in one run is the answer.

A call that stores nothing is a run with a copy of the room as it is then: the room, its transcript and its
status do not change. A call that is kept is a message in the room, which then starts.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.errors import Conflict
from luxx.features.rooms.checks import check_choices
from luxx.features.rooms.messages import (
    NewRoomMessage,
    RoomCall,
    RoomRunRequest,
    RoomValues,
    add_message,
    stored_room,
)
from luxx.features.rooms.models import ChatRoomRow, RoomRight
from luxx.features.rooms.policies import PolicyName
from luxx.features.rooms.prompt import TranscriptEntry, taint_by_person
from luxx.features.rooms.queries import count_seats, find_room, policy_of
from luxx.features.rooms.running import owner_id_of, owner_of
from luxx.infra.clock import new_id, utc_now
from luxx.runs.admission import Admission, newest_run
from luxx.runs.streams.watch import FrameEncoder, RunWatch
from luxx.runs.turn.run_rows import RoomCaller
from luxx.wire.message import UserContent
from luxx.wire.run import ENDED, Run, RunKind, RunStatus
from luxx.wire.turn import Step, StepType, step_id

UNNAMED = "Assistant"
"""The author of a given answer, or a part of one, under which no seat's name stands."""

_heading = re.compile(r"\*\*(.{1,100}):\*\*[ \t\r]*+$", re.MULTILINE)
_encode = msgspec.json.Encoder().encode


class GivenText(msgspec.Struct, frozen=True, kw_only=True):
    """A message that a call gives: of the caller, or an earlier answer of the room."""

    text: str
    is_answer: bool = False


@dataclass(frozen=True, slots=True)
class RoomCallService:
    """One per process. Both calls raise NotFound, NotAllowed without the right to steer, Conflict for a room
    that cannot answer, TooMany, or Unavailable if the server stops."""

    admission: Admission

    async def call(
        self,
        caller: Caller,
        room_id: str,
        given: Sequence[GivenText],
        *,
        instructions: str,
        encoder: FrameEncoder,
        warnings: Sequence[str] = (),
    ) -> RunWatch:
        """Lets the room answer the given messages, and stores nothing. `instructions` follow its task."""

        def insert(session: Session) -> Run:
            room, _ = find_room(session, caller, room_id, RoomRight.STEER)
            _check_can_answer(session, room)
            values = stored_room(session, room.id)
            task = "\n\n".join(part for part in (values.task, instructions) if part)
            entries = list(_entries(values, caller.username, given))
            call = RoomCall(room=msgspec.structs.replace(values, task=task), given=entries)
            said = None if given[-1].is_answer else entries[-1].msg_id
            request = RoomRunRequest(said=said, is_unattended=True, call=call, warnings=list(warnings))
            # The run is the owner's, who pays for it.
            called = RoomCaller(room_id=room.id, user_id=caller.user_id)
            text = _encode(request).decode()
            return self.admission.insert(session, owner_of(room), RunKind.ROOM, None, text, called=called)

        size = sum(len(one.text.encode()) for one in given)
        return await self._admit(caller, room_id, insert, size, encoder)

    async def speak(
        self,
        caller: Caller,
        room_id: str,
        text: str,
        *,
        encoder: FrameEncoder,
        warnings: Sequence[str] = (),
    ) -> RunWatch:
        """Stores a message of the caller in the room and starts it. Raises Conflict also if it runs or is
        paused."""

        def insert(session: Session) -> Run:
            room, _ = find_room(session, caller, room_id, RoomRight.STEER, is_locked=True)
            run = newest_run(session, room)
            if run is not None and run.status not in ENDED:
                what = "is paused; resume or end it first"
                if run.status != RunStatus.PAUSED.value:
                    what = "is running; wait until it has ended, or call it without conversation_id"
                raise Conflict(f"this room {what}", kind="run_active", detail={"run_id": run.id})
            _check_can_answer(session, room)
            request = RoomRunRequest(said=new_id(), is_unattended=True, warnings=list(warnings))
            started = self.admission.insert(
                session, owner_of(room), RunKind.ROOM, room.id, _encode(request).decode()
            )
            message = NewRoomMessage(
                id=request.said,
                run_id=started.id,
                content=UserContent(text=text),
                sender_name=caller.username,
            )
            add_message(session.connection(), room.id, room.user_id, message)
            room.run_id, room.current_round, room.updated_at = started.id, 0, utc_now()
            return started

        size = len(text.encode())
        return await self._admit(caller, room_id, insert, size, encoder)

    async def _admit(
        self,
        caller: Caller,
        room_id: str,
        insert: Callable[[Session], Run],
        size: int,
        encoder: FrameEncoder,
    ) -> RunWatch:
        """A watch of the run that `insert` stores, which begins."""
        owner_id = await owner_id_of(self.admission.services.store, caller, room_id, RoomRight.STEER)
        run = await self.admission.admit(caller, insert, size=size, owner_id=owner_id)
        return await self.admission.begin_watched(run, encoder=encoder)


def _check_can_answer(session: Session, room: ChatRoomRow) -> None:
    if count_seats(session, room.id) == 0:
        raise Conflict("this room has no seats; add one first", kind="no_seats")
    check_choices(session, room)
    if policy_of(room).name == PolicyName.MANUAL:
        raise Conflict(
            "a person chooses who speaks in this room, so it cannot answer a call; give it a policy other "
            "than manual",
            kind="policy_waits",
        )


def _entries(room: RoomValues, username: str, given: Sequence[GivenText]) -> Iterator[TranscriptEntry]:
    seats = {seat.name: seat.seat_id for seat in room.seats}
    # A caller can have changed the answers too.
    tainted_by = taint_by_person(username, room.owner_name)
    for one in given:
        if not one.is_answer:
            yield TranscriptEntry(
                msg_id=new_id(), seat_id=None, name=username, text=one.text, tainted_by=tainted_by
            )
            continue
        for name, text in split_answer(one.text, list(seats)):
            step = Step(id=step_id(0), index=0, type=StepType.TEXT, content=text)
            yield TranscriptEntry(
                msg_id=new_id(),
                seat_id=seats.get(name),
                name=name,
                text=text,
                steps=(step,),
                tainted_by=tainted_by,
            )


# The text of an answer


def heading(name: str) -> str:
    """What stands before the text of a seat in an answer."""
    return f"**{heading_name(name)}:**\n\n"


def heading_name(name: str) -> str:
    """A name as it stands in a heading, without what would end its bold type."""
    return name.replace("*", "")


_forged = re.compile(r"^(?=\*\*[^*\n]{1,100}:\*\*[ \t\r]*+$)", re.MULTILINE)
_may_be_heading = re.compile(r"\*?|\*\*[^*\n]{0,101}(?:\*(?:\*[ \t\r]*+)?)?")
MAX_HELD = 200
"""How long a last line may be that is held back: a longer one is a heading already, with blanks behind it."""


class SpokenText:
    """The text of a seat as it grows: a line of it that looks like a heading gets a backslash."""

    def __init__(self) -> None:
        self._text = ""
        self._is_in_line = False
        """Whether the line that `_text` continues has been taken in part."""

    def add(self, text: str) -> None:
        self._text += text

    def __bool__(self) -> bool:
        return bool(self._text)

    def take(self, *, is_ended: bool) -> str:
        """What can be written: all but a last line that may become a heading."""
        text, rest = self._text, ""
        last = text.rpartition("\n")[2]
        starts_line = len(last) < len(text) or not self._is_in_line
        may_grow = not is_ended and starts_line and 0 < len(last) <= MAX_HELD
        if may_grow and _may_be_heading.fullmatch(last):
            text, rest = text[: len(text) - len(last)], last
        self._text = rest
        if not text:
            return ""
        begun = 0 if not self._is_in_line else text.find("\n") + 1 or len(text)
        self._is_in_line = not text.endswith("\n")
        return text[:begun] + _forged.sub(r"\\", text[begun:])


def _headings(text: str) -> Iterator[re.Match[str]]:
    """The lines that are a heading. With `^` a pattern is tried at each character, in one call."""
    line = 0
    while True:
        if found := _heading.match(text, line):
            yield found
        line = text.find("\n**", line) + 1
        if line == 0:
            return


def split_answer(text: str, names: Sequence[str]) -> list[tuple[str, str]]:
    """The parts of an answer, each with the name in its heading; what no seat's name heads is UNNAMED's."""
    written = {heading_name(name): name for name in names}
    parts: list[tuple[str, str]] = []
    name, begin = UNNAMED, 0
    for found in _headings(text):
        if found[1] in written:
            parts.append((name, text[begin : found.start()].strip()))
            name, begin = written[found[1]], found.end()
    parts.append((name, text[begin:].strip()))
    return [(name, part) for name, part in parts if part]
