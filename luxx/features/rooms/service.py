"""Rooms without their run: create, list, change, delete, reset and fork them, read messages and outcomes.

`seats.py` and `members.py` have the services of seats and members, `queries.py` the rights and the status.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec
from msgspec import UNSET
from sqlalchemy import Select, delete, exists, func, or_, select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.conversations.access import DELETE_ROWS, DeleteRuns, assistant_steps
from luxx.domain.conversations.lists import Messages
from luxx.domain.conversations.models import MessageRow
from luxx.domain.conversations.search_index import index_subject
from luxx.domain.conversations.views import message_view
from luxx.domain.knowledge_bases import check_named
from luxx.errors import Conflict
from luxx.features.rooms.checks import check_room_stop, checked_policy
from luxx.features.rooms.members import CancelRun, delete_members, is_unread, mark_read
from luxx.features.rooms.messages import last_of_seat, message_page, messages_before
from luxx.features.rooms.models import (
    ChatRoomRow,
    NewRoom,
    RoomAgentRow,
    RoomChanges,
    RoomDetail,
    RoomOutcome,
    RoomPolicy,
    RoomRight,
    RoomView,
    SeatOutcome,
)
from luxx.features.rooms.policies import PolicyName
from luxx.features.rooms.queries import (
    find_room,
    is_right_enough,
    room_view,
    rooms_of,
    searched_rooms,
    seat_rows,
    seat_views,
    status_of,
)
from luxx.features.rooms.seats import SeatService
from luxx.features.rooms.stops import Stop
from luxx.infra.clock import new_id, utc_now
from luxx.infra.field_errors import FieldErrors
from luxx.infra.store.engine import Store
from luxx.infra.store.search_words import SearchKind
from luxx.runs.admission import newest_run
from luxx.runs.cancel import cancel_calls
from luxx.runs.models import RunRow, run_view
from luxx.wire.run import ENDED, IN_PROGRESS, RunStatus
from luxx.wire.turn import Usage, WrittenArtifact, written_artifacts

SAME_TITLE = 10
"""How many rooms `named` returns at most."""

StopRun = Callable[[Caller, str], Awaitable[None]]
"""Cancels a run and returns when it and its subagents have ended."""


def encode_policy(policy: RoomPolicy) -> str:
    """A policy as the room's row stores it."""
    return msgspec.json.encode(policy).decode()


def encode_stop(stop: Stop | None) -> str | None:
    """A stop as the room's row stores it."""
    return None if stop is None else msgspec.json.encode(stop).decode()


@dataclass(frozen=True, slots=True)
class RoomService:
    """One per process."""

    store: Store
    seats: SeatService
    stop_run: StopRun
    delete_runs: DeleteRuns
    cancel_run: CancelRun

    async def list_page(self, caller: Caller, *, page: int, page_size: int) -> tuple[list[RoomView], int]:
        """The rooms that the caller owns or is a member of, newest first, and their number."""

        def work(session: Session) -> tuple[list[RoomView], int]:
            mine = rooms_of(caller)
            total = session.scalar(select(func.count()).select_from(mine.subquery())) or 0
            return _newest(session, caller, mine, limit=page_size, offset=(page - 1) * page_size), total

        return await self.store.read(work)

    async def named(self, caller: Caller, name: str) -> list[RoomView]:
        """The rooms of the caller with this title, newest first, at most SAME_TITLE; or that of this id."""

        def work(session: Session) -> list[RoomView]:
            query = rooms_of(caller).where(or_(ChatRoomRow.title == name, ChatRoomRow.id == name))
            views = _newest(session, caller, query, limit=SAME_TITLE)
            return [view for view in views if view.id == name] or views

        return await self.store.read(work)

    async def answering(self, caller: Caller, *, limit: int) -> list[RoomView]:
        """The newest rooms that the caller may steer and that can answer without a person: with seats, and a
        policy that chooses who speaks."""

        def work(session: Session) -> list[RoomView]:
            has_seats = exists().where(RoomAgentRow.room_id == ChatRoomRow.id)
            return [
                view
                for view in _newest(session, caller, rooms_of(caller).where(has_seats), limit=limit)
                if view.policy.name != PolicyName.MANUAL and is_right_enough(view.right, RoomRight.STEER)
            ]

        return await self.store.read(work)

    async def get(self, caller: Caller, room_id: str) -> RoomDetail:
        """Raises NotFound."""

        def work(session: Session) -> RoomDetail:
            room, right = find_room(session, caller, room_id)
            return detail_of(session, room, right)

        return await self.store.read(work)

    async def create(self, caller: Caller, new: NewRoom) -> RoomDetail:
        """Creates a room with its seats, or nothing.

        Raises InvalidInput, NotFound for providers and agents that the caller may not use, or Conflict.
        """

        def work(session: Session) -> RoomDetail:
            errors = FieldErrors()
            paths = [f"$.agents[{index}]" for index in range(len(new.agents))]
            room = self.add(session, caller, new, errors, seat_paths=paths)
            errors.raise_if_any()
            return detail_of(session, room, RoomRight.OWNER)

        return await self.store.write(work)

    def add(
        self, session: Session, caller: Caller, new: NewRoom, errors: FieldErrors, *, seat_paths: list[str]
    ) -> ChatRoomRow:
        """`create`, in a transaction of the caller, who must then raise the problems. Its stop may name no
        seat, because the seats do not exist yet."""
        now = utc_now()
        policy = checked_policy(session, caller, new.policy, errors)
        check_room_stop(new.stop, (), errors)
        room = ChatRoomRow(
            id=new_id(), user_id=caller.user_id, tenant_id=caller.tenant_id, title=new.title.strip(),
            task=_checked_task(new.task, errors), max_rounds=new.max_rounds, policy=encode_policy(policy),
            stop=encode_stop(new.stop), memory=new.memory, current_round=0,
            knowledge=check_named(session, caller, new.knowledge), created_at=now, updated_at=now,
        )  # fmt: skip
        session.add(room)
        session.flush()
        index_room(session, room)
        self.seats.add_all(session, caller, room, new.agents, errors, paths=seat_paths)
        return room

    async def update(self, caller: Caller, room_id: str, changes: RoomChanges) -> RoomDetail:
        """Sets the given fields; a running room reads them before its next turn. For the owner.

        Raises NotFound, NotAllowed or InvalidInput.
        """

        def work(session: Session) -> RoomDetail:
            room, right = find_room(session, caller, room_id, RoomRight.OWNER, is_locked=True)
            errors = FieldErrors()
            if isinstance(changes.title, str):
                room.title = changes.title.strip()
            if isinstance(changes.task, str):
                room.task = _checked_task(changes.task, errors)
            if isinstance(changes.max_rounds, int):
                room.max_rounds = changes.max_rounds
            if isinstance(changes.policy, PolicyName | RoomPolicy):
                room.policy = encode_policy(checked_policy(session, caller, changes.policy, errors))
            if changes.stop is not UNSET:
                seat_ids = [seat.id for seat, _ in seat_rows(session, room)]
                check_room_stop(changes.stop, seat_ids, errors)
                room.stop = encode_stop(changes.stop)
            if changes.memory is not UNSET:
                room.memory = changes.memory
            if changes.knowledge is not UNSET:
                room.knowledge = check_named(session, caller, changes.knowledge)
            errors.raise_if_any()
            room.updated_at = utc_now()
            session.flush()
            if changes.title is not UNSET or changes.task is not UNSET:
                index_room(session, room)
            return detail_of(session, room, right)

        return await self.store.write(work)

    async def delete(self, caller: Caller, room_id: str) -> None:
        """Stops the run and the calls of a room and deletes the room with everything in it. For the owner.

        Raises NotFound, NotAllowed, or Conflict if the run does not end in time.
        """
        await self._stop_run(caller, room_id, RoomRight.OWNER)
        await self._clear(caller, room_id, RoomRight.OWNER)

        def work(session: Session) -> list[str]:
            room, _ = find_room(session, caller, room_id, RoomRight.OWNER, is_locked=True)
            # A run may have been started since.
            self.delete_runs(session, room.id)
            delete_members(session, room.id)
            calls = cancel_calls(session, room.id)
            session.delete(room)
            return calls

        for run_id in await self.store.write(work):
            await self.cancel_run(run_id)

    async def reset(self, caller: Caller, room_id: str) -> RoomDetail:
        """Deletes the messages and runs of a room, which is then idle; its seats stay.

        Raises NotFound, NotAllowed, or Conflict while the room is running.
        """

        def check_not_running(session: Session) -> None:
            room, _ = find_room(session, caller, room_id, RoomRight.STEER)
            run = newest_run(session, room)
            if run is not None and run.status in IN_PROGRESS:
                raise Conflict(
                    "this room is running; stop it first", kind="room_running", detail={"run_id": run.id}
                )

        await self.store.read(check_not_running)
        await self._stop_run(caller, room_id, RoomRight.STEER)
        await self._clear(caller, room_id, RoomRight.STEER)

        def work(session: Session) -> RoomDetail:
            room, right = find_room(session, caller, room_id, RoomRight.STEER, is_locked=True)
            self.delete_runs(session, room.id)
            room.run_id, room.current_round, room.updated_at = None, 0, utc_now()
            session.flush()
            return detail_of(session, room, right)

        return await self.store.write(work)

    async def _stop_run(self, caller: Caller, room_id: str, right: RoomRight) -> None:
        """Ends the newest run of a room, which may be running or paused, if it has not ended."""

        def work(session: Session) -> str | None:
            room, _ = find_room(session, caller, room_id, right)
            run = newest_run(session, room)
            return None if run is None or RunStatus(run.status) in ENDED else run.id

        run_id = await self.store.read(work)
        if run_id is not None:
            await self.stop_run(caller, run_id)

    async def _clear(self, caller: Caller, room_id: str, right: RoomRight) -> None:
        """Deletes the messages and runs of a room in small transactions. Raises Conflict if it runs."""

        def work(session: Session) -> bool:
            room, _ = find_room(session, caller, room_id, right, is_locked=True)
            more_runs = self.delete_runs(session, room.id)
            oldest = select(MessageRow.id).where(MessageRow.room_id == room.id).limit(DELETE_ROWS)
            ids = session.scalars(oldest).all()
            session.execute(
                delete(MessageRow).where(MessageRow.id.in_(ids)).execution_options(synchronize_session=False)
            )
            return more_runs or len(ids) == DELETE_ROWS

        while await self.store.write(work):
            pass

    async def messages(
        self, caller: Caller, room_id: str, *, page: int, page_size: int, before: str | None, by_cursor: bool
    ) -> Messages:
        """Messages of a room, newest first: a page or, with `by_cursor`, those before one.

        Raises NotFound, or TooLarge for a page.
        """

        def work(session: Session) -> tuple[Messages, bool]:
            room, _ = find_room(session, caller, room_id)
            is_first = is_unread(session, room, caller)
            if by_cursor:
                return messages_before(session, room, limit=page_size, before=before), is_first
            return message_page(session, room, page=page, page_size=page_size), is_first

        found, is_first = await self.store.read(work)
        if is_first:
            await self.store.write(lambda session: mark_read(session, room_id, caller.user_id))
        return found

    async def outcome(self, caller: Caller, room_id: str) -> RoomOutcome:
        """How the newest run ended, and the last message of each seat. Raises NotFound."""

        def work(session: Session) -> RoomOutcome:
            room, _ = find_room(session, caller, room_id)
            return _outcome(session, room)

        return await self.store.read(work)


def _newest(
    session: Session, caller: Caller, mine: Select[ChatRoomRow, str], *, limit: int, offset: int = 0
) -> list[RoomView]:
    """The newest rooms of a query of `rooms_of`."""
    with_runs = mine.add_columns(RunRow).outerjoin(RunRow, RunRow.id == ChatRoomRow.run_id)
    rows = session.execute(with_runs.order_by(ChatRoomRow.id.desc()).limit(limit).offset(offset))
    return [
        room_view(room, run, RoomRight.OWNER if room.user_id == caller.user_id else RoomRight(right))
        for room, right, run in rows
    ]


def detail_of(session: Session, room: ChatRoomRow, right: RoomRight) -> RoomDetail:
    """A room with its seats, as the API shows it."""
    view = room_view(room, newest_run(session, room), right)
    fields = {name: getattr(view, name) for name in RoomView.__struct_fields__}
    return RoomDetail(**fields, agents=seat_views(session, room, right))


def index_room(session: Session, room: ChatRoomRow) -> None:
    """Lets the search find a room by its title and task as they are now. Flush changes first."""
    index_subject(session.connection(), SearchKind.ROOM, searched_rooms, room.id)


def _checked_task(task: str, errors: FieldErrors) -> str:
    if not task.strip():
        errors.add("$.task", "a task needs at least one visible character")
    return task.strip()


def _outcome(session: Session, room: ChatRoomRow) -> RoomOutcome:
    row = newest_run(session, room)
    run = None if row is None else run_view(row)
    seats: list[SeatOutcome] = []
    for seat, _ in seat_rows(session, room):
        message = last_of_seat(session, room.id, seat.id)
        seats.append(
            SeatOutcome(
                seat_id=seat.id,
                name=seat.name,
                color=seat.color,
                message=None if message is None else message_view(message),
            )
        )
    of_run = (MessageRow.room_id == room.id, MessageRow.run_id == room.run_id)
    return RoomOutcome(
        room_id=room.id,
        run_id=None if run is None else run.id,
        status=status_of(row),
        stop_reason=None if run is None else run.stop_reason,
        error=None if run is None else run.error,
        rounds=room.current_round,
        messages=0 if run is None else session.scalar(select(func.count()).where(*of_run)) or 0,
        usage=Usage() if run is None else run.usage,
        cost=None if run is None else run.cost,
        started_at=None if run is None else run.started_at,
        finished_at=None if run is None else run.finished_at,
        agents=seats,
        artifacts=[] if run is None else _written_by(session, room.id, run.id),
    )


def _written_by(session: Session, room_id: str, run_id: str) -> list[WrittenArtifact]:
    """The artifacts that the messages of a run wrote, each in its last version."""
    of_run = MessageRow.room_id == room_id, MessageRow.run_id == run_id
    contents = select(MessageRow.content).where(*of_run, MessageRow.content.contains('"artifact_id"'))
    steps = (assistant_steps(one) for one in session.scalars(contents.order_by(MessageRow.id)))
    return list({one.artifact_id: one for each in steps for one in written_artifacts(each)}.values())
