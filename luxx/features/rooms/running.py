"""Running a room: start, pause, resume and end it, speak, give the floor, see what a seat was sent."""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.context.prompt import History, Prompt, SectionKind, TextSection, context_of
from luxx.domain.conversations.models import MessageRow
from luxx.domain.conversations.views import MessageView, message_view
from luxx.errors import Conflict, NotFound
from luxx.features.rooms.checks import check_choices
from luxx.features.rooms.messages import NewRoomMessage, add_message
from luxx.features.rooms.models import ChatRoomRow, RoomRight
from luxx.features.rooms.orchestration import RoomOrchestration
from luxx.features.rooms.policies import PolicyName
from luxx.features.rooms.queries import (
    count_seats,
    find_room,
    policy_of,
    read_seats,
    status_of,
)
from luxx.features.rooms.replies import check_answered, with_quotations
from luxx.features.rooms.state import SteerInput
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.engine import Store
from luxx.runs.admission import SubjectRunService, newest_run
from luxx.runs.log.events import read_log
from luxx.runs.models import RunRow
from luxx.runs.orchestration.inputs import InputKind, give_input
from luxx.runs.streams.notices import NotifySubject
from luxx.runs.streams.sessions import SubjectHint
from luxx.runs.turn.run_rows import RunHead, RunOwner
from luxx.runs.turn.state import context_after
from luxx.tools.executor import READ_RESULT_TOOL
from luxx.wire.event import CostUpdate, ProcessStep
from luxx.wire.message import ContextRecord, PromptMessage, UserContent
from luxx.wire.orchestration_event import MessageStart
from luxx.wire.run import ENDED, Run, RunKind, RunStatus
from luxx.wire.socket import NotificationKind

_encode = msgspec.json.Encoder().encode


class SentContext(msgspec.Struct, frozen=True, kw_only=True):
    """What the model of a seat was sent for the first call of a turn: later calls of the turn add its own
    steps. `tools` are the names that were offered, `left_out` the messages that did not fit."""

    message_id: str
    seat_id: int
    provider_id: int
    model: str
    tools: list[str]
    left_out: int
    messages: list[PromptMessage]


@dataclass(frozen=True, slots=True)
class RoomRunService(SubjectRunService[ChatRoomRow]):
    """One per process."""

    noun = "room"
    loader: Callable[[Session, RunHead], RoomOrchestration]
    notify: NotifySubject

    async def _admit(self, caller: Caller, room_id: str) -> Run:
        """Raises NotFound, NotAllowed, TooMany, TooLarge (the owner's storage is full), or Conflict if it
        runs, is paused or has no seats."""

        def insert(session: Session) -> Run:
            room, _ = find_room(session, caller, room_id, RoomRight.STEER, is_locked=True)
            self._check_ended(session, room)
            if count_seats(session, room.id) == 0:
                raise Conflict("this room has no seats; add one first", kind="no_seats")
            check_choices(session, room)
            started = self.admission.insert(session, owner_of(room), RunKind.ROOM, room.id, "{}")
            room.run_id, room.current_round, room.updated_at = started.id, 0, utc_now()
            return started

        owner_id = await owner_id_of(self.admission.services.store, caller, room_id, RoomRight.STEER)
        return await self.admission.admit(caller, insert, owner_id=owner_id)

    def _find(self, session: Session, caller: Caller, room_id: str, *, is_steered: bool) -> ChatRoomRow:
        return find_room(session, caller, room_id, RoomRight.STEER if is_steered else RoomRight.WATCH)[0]

    def _not_running(self, run: RunRow | None) -> Conflict:
        return Conflict(f"this room does not run: it is {status_of(run).value}", kind="room_not_running")

    async def pause(self, caller: Caller, room_id: str) -> Run:
        """Cuts the turns in progress, whose text is kept, and pauses the room.

        Raises Conflict if it does not run.
        """
        run_id = await self._give(caller, room_id, InputKind.PAUSE, SteerInput(user=caller.username))
        return await self.runs.settled(caller, run_id)

    async def finish(self, caller: Caller, room_id: str) -> Run:
        """Cuts the turns in progress and ends the room's run. Raises Conflict if it does not run."""
        run_id = await self._give(caller, room_id, InputKind.FINISH, SteerInput(user=caller.username))
        return await self.runs.settled(caller, run_id)

    async def skip(self, caller: Caller, room_id: str) -> Run:
        """Ends the turns in progress; the room goes on. Raises Conflict if it does not run."""
        run_id = await self._give(caller, room_id, InputKind.SKIP, SteerInput(user=caller.username))
        return await self.runs.settled(caller, run_id, 0)

    async def give_floor(self, caller: Caller, room_id: str, seat_id: int) -> Run:
        """Lets a seat speak next. Raises NotFound for the seat, Conflict for a room that does not run, whose
        policy chooses by itself, or where the seat is muted."""

        def check(session: Session, room: ChatRoomRow) -> None:
            seats = {seat.seat_id: seat for seat in read_seats(session, room)}
            if seat_id not in seats:
                raise NotFound("this room has no seat with this id", kind="seat_not_found")
            name = policy_of(room).name
            if name != PolicyName.MANUAL:
                raise Conflict(
                    f"the policy {name} of this room chooses who speaks; only manual lets a person choose",
                    kind="policy_chooses",
                )
            if seats[seat_id].is_muted:
                raise Conflict("this seat is muted; unmute it first", kind="seat_muted")

        run_id = await self._give(
            caller, room_id, InputKind.FLOOR, SteerInput(user=caller.username, seat_id=seat_id), check
        )
        return await self.runs.settled(caller, run_id, 0)

    async def resume(self, caller: Caller, room_id: str) -> Run:
        """Continues a paused room with the seats whose turns were cut, then with the next seat of its round.
        Raises Conflict if it is not paused, or TooLarge if the owner's storage is full."""
        return await self.admission.resume(caller, await self._resumable_run_id(caller, room_id))

    async def speak(
        self, caller: Caller, room_id: str, text: str, reply_to: str | None = None
    ) -> MessageView:
        """Stores a message of the caller; those who speak next read it. Also in a room that does not run.

        `reply_to`: the message that it answers. Raises NotFound if the room does not have it.
        """

        def work(session: Session) -> tuple[MessageView, str | None]:
            room, _ = find_room(session, caller, room_id, RoomRight.SPEAK)
            check_answered(session, room.id, reply_to)
            run = newest_run(session, room)
            is_active = run is not None and run.status not in ENDED
            message_id = add_message(
                session.connection(),
                room.id,
                room.user_id,
                NewRoomMessage(
                    id=new_id(),
                    run_id=None if run is None or not is_active else run.id,
                    content=UserContent(text=text),
                    sender_name=caller.username,
                    round_number=room.current_round or None,
                    reply_to=reply_to,
                ),
            )
            [view] = with_quotations(session, [message_view(session.get_one(MessageRow, message_id))])
            if run is None or not is_active:
                return view, None
            data = SteerInput(user=caller.username, message_id=message_id)
            give_input(session.connection(), run.id, InputKind.MESSAGE, _encode(data).decode())
            return view, run.id

        size = len(text.encode())
        services = self.admission.services
        owner_id = await owner_id_of(services.store, caller, room_id, RoomRight.SPEAK)
        await services.storage.check(owner_id, size, is_own=owner_id == caller.user_id)
        view, run_id = await services.store.write(work)
        services.storage.add(owner_id, size)
        if run_id is not None:
            self.admission.engine.deliver(run_id)
        else:
            # The stream of a run has the message; without one, nothing else says that it is there.
            kind = NotificationKind.MESSAGE
            self.notify(
                SubjectHint(session_id=room_id, user_id=caller.user_id, sender=caller.username, kind=kind)
            )
        return view

    async def context(self, caller: Caller, room_id: str, message_id: str) -> SentContext:
        """What the model was sent for a message of a seat, without lists of what it may choose. Raises
        NotFound, also for a person's message."""

        def work(session: Session) -> SentContext:
            room, _ = find_room(session, caller, room_id, RoomRight.OWNER)
            row = session.get(MessageRow, message_id)
            run = None if row is None or row.run_id is None else session.get(RunRow, row.run_id)
            if row is None or row.room_id != room.id or run is None or row.seat_id is None:
                raise NotFound("no seat of this room wrote a message with this id", kind="message_not_found")
            return self._context(session, run, row)

        return await self.admission.services.store.read(work)

    def _context(self, session: Session, run: RunRow, row: MessageRow) -> SentContext:
        orchestration = self.loader(session, head_of(run))
        start, context, summarised = None, ContextRecord(), 0
        for logged in read_log(session.connection(), run.id):
            if start is None:
                orchestration.apply(logged)
                if isinstance(logged.event, MessageStart) and logged.event.msg_id == row.id:
                    start = next(one for one in orchestration.open_turns() if one.turn.msg_id == row.id)
                    context = context_of(start.past)
                    summarised = orchestration.summarised(row.id)
            elif logged.event.msg_id == row.id:
                if isinstance(logged.event, ProcessStep | CostUpdate):
                    break
                context = context_after(context, logged)
        if start is None:
            raise NotFound("the log of this message was deleted", kind="message_not_found")
        request = start.request
        system = TextSection(kind=SectionKind.SYSTEM, owner="features.rooms", text=request.system_prompt)
        config = self.admission.services.config.context
        read_tool = READ_RESULT_TOOL if request.tools else ""
        history = History(
            start.past,
            has_task=True,
            protected=config.protected_tools,
            read_tool=read_tool,
            model=request.model,
        )
        prompt = Prompt([system], history)
        return SentContext(
            message_id=row.id,
            seat_id=row.seat_id or 0,
            provider_id=request.provider_id,
            model=request.model,
            tools=request.tools,
            left_out=context.messages + summarised,
            messages=prompt.messages(context),
        )

    async def _resumable_run_id(self, caller: Caller, room_id: str) -> str:
        """The newest run of a room that the caller may steer, to resume it. Raises Conflict if there is
        none, or if the room cannot go on."""

        def work(session: Session) -> str:
            room, _ = find_room(session, caller, room_id, RoomRight.STEER)
            run = newest_run(session, room)
            if run is None:
                raise Conflict("this room has not been started", kind="room_not_running")
            if run.status == RunStatus.PAUSED.value:
                check_choices(session, room)
            return run.id

        return await self.admission.services.store.read(work)


async def owner_id_of(store: Store, caller: Caller, room_id: str, right: RoomRight) -> int:
    """The owner of a room, to whom its messages and runs belong. Raises what `find_room` raises."""
    return await store.read(lambda session: find_room(session, caller, room_id, right)[0].user_id)


def owner_of(room: ChatRoomRow) -> RunOwner:
    """Who owns and pays for the runs of a room."""
    return RunOwner(room.user_id, room.tenant_id)


def head_of(run: RunRow) -> RunHead:
    """The head of a run, to fold its log without driving it."""
    return msgspec.convert(run, RunHead, from_attributes=True)
