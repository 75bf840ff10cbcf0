"""The members of rooms: users of the owner's tenant who may watch, speak in or steer a room."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.models import User
from luxx.domain.accounts.users import check_member_name, find_new_member
from luxx.errors import Conflict, InvalidInput, NotFound
from luxx.features.rooms.models import MAX_MEMBERS, ChatRoomRow, MemberView, NewMember, RoomRight
from luxx.features.rooms.queries import find_room
from luxx.infra.clock import utc_now
from luxx.infra.store.engine import Store
from luxx.runs.cancel import cancel_calls
from luxx.runs.models import SubjectMemberRow, includes
from luxx.runs.streams.notices import NotifySubject
from luxx.runs.streams.sessions import SubjectHint
from luxx.wire.run import MemberRight
from luxx.wire.socket import NotificationKind

MembershipEnded = Callable[[int, str], None]
"""Ends what the user of this id has open of this subject, a room or a call: streams and subscriptions."""


CancelRun = Callable[[str], Awaitable[None]]
"""Ends a run that is marked as cancelled, in whichever process drives it."""


@dataclass(frozen=True, slots=True)
class MemberService:
    """One per process."""

    store: Store
    on_ended: Sequence[MembershipEnded]
    cancel_run: CancelRun
    notify: NotifySubject

    async def list_page(
        self, caller: Caller, room_id: str, *, page: int, page_size: int
    ) -> tuple[list[MemberView], int]:
        """The members of a room in the order in which they were added, and their number."""

        def work(session: Session) -> tuple[list[MemberView], int]:
            room, _ = find_room(session, caller, room_id)
            query = (
                select(SubjectMemberRow, User.username)
                .join(User, User.id == SubjectMemberRow.user_id)
                .where(SubjectMemberRow.subject_id == room.id)
                .order_by(SubjectMemberRow.created_at, SubjectMemberRow.user_id)
            )
            rows = session.execute(query.limit(page_size).offset((page - 1) * page_size))
            return [_member_view(row, username) for row, username in rows], _count(session, room)

        return await self.store.read(work)

    async def add(self, caller: Caller, room_id: str, new: NewMember) -> MemberView:
        """Adds a user of the owner's tenant.

        Raises NotFound, NotAllowed, InvalidInput, or Conflict if the user is a member already or the room
        has MAX_MEMBERS.
        """
        check_member_name(new.user_id, new.username)

        def work(session: Session) -> MemberView:
            room, _ = find_room(session, caller, room_id, RoomRight.OWNER, is_locked=True)
            user = find_new_member(session, room.tenant_id, new.user_id, new.username)
            if user.id == room.user_id:
                raise InvalidInput("you own this room and have every right", kind="own_room")
            if session.get(SubjectMemberRow, (room.id, user.id)) is not None:
                raise Conflict(
                    f"'{user.username}' is a member already; change the right with PUT", kind="member_exists"
                )
            if _count(session, room) >= MAX_MEMBERS:
                raise Conflict(
                    f"a room has at most {MAX_MEMBERS} members; remove one first", kind="too_many_members"
                )
            row = SubjectMemberRow(
                subject_id=room.id, user_id=user.id, owner_id=room.user_id, right=new.right.value,
                created_at=utc_now(), is_new=True,
            )  # fmt: skip
            session.add(row)
            session.flush()
            return _member_view(row, user.username)

        added = await self.store.write(work)
        self.notify(
            SubjectHint(
                session_id=room_id,
                user_id=added.user_id,
                sender=caller.username,
                kind=NotificationKind.MEMBER,
            )
        )
        return added

    async def change(self, caller: Caller, room_id: str, user_id: int, right: MemberRight) -> MemberView:
        """Sets the right of a member; without that to steer, their calls of the room end. Raises NotFound or
        NotAllowed."""

        def work(session: Session) -> tuple[MemberView, list[str]]:
            room, _ = find_room(session, caller, room_id, RoomRight.OWNER, is_locked=True)
            row = _find_member(session, room, user_id)
            row.right = right.value
            session.flush()
            calls = [] if includes(right, MemberRight.STEER) else cancel_calls(session, room.id, user_id)
            return _member_view(row, session.get_one(User, user_id).username), calls

        view, calls = await self.store.write(work)
        await self._end(calls)
        self.notify(SubjectHint(session_id=room_id, user_id=user_id))
        return view

    async def remove(self, caller: Caller, room_id: str, user_id: int) -> None:
        """Removes a member, who loses access at once and whose calls of the room end; members may remove
        themselves.

        Raises NotFound or NotAllowed.
        """
        right = RoomRight.WATCH if user_id == caller.user_id else RoomRight.OWNER

        def work(session: Session) -> list[str]:
            room, _ = find_room(session, caller, room_id, right, is_locked=True)
            session.delete(_find_member(session, room, user_id))
            return cancel_calls(session, room.id, user_id)

        calls = await self.store.write(work)
        for subject_id in (room_id, *calls):
            for end in self.on_ended:
                end(user_id, subject_id)
        await self._end(calls)

    async def _end(self, calls: Sequence[str]) -> None:
        for run_id in calls:
            await self.cancel_run(run_id)


def is_unread(session: Session, room: ChatRoomRow, caller: Caller) -> bool:
    """Whether the caller is a member who has not read the messages of the room yet."""
    row = None if room.user_id == caller.user_id else session.get(SubjectMemberRow, (room.id, caller.user_id))
    return row is not None and row.is_new


def mark_read(session: Session, room_id: str, user_id: int) -> None:
    """The member has read the messages of the room, so new sockets need no notification of it."""
    session.execute(
        update(SubjectMemberRow)
        .where(SubjectMemberRow.subject_id == room_id, SubjectMemberRow.user_id == user_id)
        .values(is_new=False)
        .execution_options(synchronize_session=False)
    )


def delete_members(session: Session, room_id: str) -> None:
    """Deletes all memberships of a room that is being deleted."""
    session.execute(
        delete(SubjectMemberRow)
        .where(SubjectMemberRow.subject_id == room_id)
        .execution_options(synchronize_session=False)
    )


def _count(session: Session, room: ChatRoomRow) -> int:
    return session.scalar(select(func.count()).where(SubjectMemberRow.subject_id == room.id)) or 0


def _find_member(session: Session, room: ChatRoomRow, user_id: int) -> SubjectMemberRow:
    row = session.get(SubjectMemberRow, (room.id, user_id)) if 0 < user_id < 2**31 else None
    if row is None:
        raise NotFound("this room has no member with this id", kind="member_not_found")
    return row


def _member_view(row: SubjectMemberRow, username: str) -> MemberView:
    return MemberView(
        user_id=row.user_id, username=username, right=MemberRight(row.right), created_at=row.created_at
    )
