"""Links: making, listing and revoking them, and reading what one shows.

Whether a link still shows something is decided at each read: its owner must be active and may still read the
subject, and the tenant must allow links for anybody. The routes count reads by the reader's network.
"""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

import msgspec
from sqlalchemy import ColumnElement, and_, func, select
from sqlalchemy.orm import Session, undefer

from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.models import Tenant, User
from luxx.domain.audit import Action, AuditEntry, Detail, record
from luxx.domain.conversations.access import own_conversation, read_path_ids, user_content
from luxx.domain.conversations.images import AttachedBytes, read_attachment
from luxx.domain.conversations.models import ConversationRow, MessageRow
from luxx.domain.conversations.views import message_view
from luxx.errors import Conflict, InvalidInput, NotAllowed, NotFound, TooLarge
from luxx.features.rooms.models import ChatRoomRow, RoomRight
from luxx.features.rooms.queries import find_room
from luxx.features.rooms.replies import with_quotations
from luxx.features.shares.content import SharedStep, SharedTask, SharedView, is_image, shared_message
from luxx.features.shares.models import (
    MAX_SHARES,
    MAX_SNAPSHOT_BYTES,
    MAX_SNAPSHOT_MESSAGES,
    MAX_STORED_BYTES,
    NewShare,
    NewShareView,
    ShareAudience,
    ShareKind,
    ShareRow,
    ShareView,
)
from luxx.features.tasks.graph import TaskStepStatus
from luxx.features.tasks.models import TaskRow
from luxx.features.tasks.queries import own_task, step_rows
from luxx.infra.clock import new_id, utc_now
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import Lock, lock_until_commit, read_page
from luxx.runs.models import SubjectMemberRow, includes
from luxx.wire.run import MemberRight

TOKEN_BYTES = 32
PAGE_PATH = "/ui/s/"
LAST_YEAR = 2200
SHOWN_ROLES = ("user", "assistant")

MAX_READ_BYTES = 8 * 1024 * 1024
"""Stored bytes of the messages that one read decodes; one message is always read."""

_ids = msgspec.json.Decoder(list[str])
_task = msgspec.json.Decoder(SharedTask)
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class ShareService:
    """One per process."""

    store: Store

    async def create(self, caller: Caller, new: NewShare) -> NewShareView:
        """Makes a link to a conversation or task of the caller, or to a room that they may steer.

        Raises NotFound, InvalidInput, NotAllowed (the tenant does not allow links for anybody, or the right
        to the room is too small), TooLarge or Conflict past the limits.
        """
        now = utc_now()
        if new.ends_at is not None and not (new.ends_at > now and new.ends_at.year < LAST_YEAR):
            raise InvalidInput(f"must be a time to come, before the year {LAST_YEAR}", field="$.ends_at")
        token = secrets.token_urlsafe(TOKEN_BYTES)

        def work(session: Session) -> NewShareView:
            lock_until_commit(session.connection(), Lock.USER_NAMES, caller.user_id)
            title, subject = _subject(session, caller, new.kind, new.subject_id)
            if new.audience is ShareAudience.ANYBODY and not _allows_anybody(session, caller.tenant_id):
                raise NotAllowed(
                    "your tenant allows links for its own people only; an administrator can change this",
                    kind="public_links_off",
                )
            row = ShareRow(
                id=new_id(), user_id=caller.user_id, tenant_id=caller.tenant_id, token_hash=_hash_of(token),
                audience=new.audience.value, title=title, created_at=now, ends_at=new.ends_at,
                is_live=new.is_live,
                snapshot=None if new.is_live else _snapshot(session, subject),
                **{f"{new.kind.value}_id": subject.id},
            )  # fmt: skip
            _check_limits(session, caller, row)
            session.add(row)
            session.flush()
            _record(session, caller, Action.SHARE_CREATE, row)
            view = _view(row)
            path = f"{PAGE_PATH}{token}"
            return NewShareView(**msgspec.structs.asdict(view), token=token, path=path)

        return await self.store.write(work)

    async def list_page(
        self, caller: Caller, *, subject_id: str | None, page: int, page_size: int
    ) -> tuple[list[ShareView], int]:
        """The caller's links, newest first, or those to one subject, and their number."""
        query = select(ShareRow).where(ShareRow.user_id == caller.user_id)
        if subject_id is not None:
            query = query.where(_is_subject(subject_id))

        def work(session: Session) -> tuple[list[ShareView], int]:
            newest = query.order_by(ShareRow.id.desc())
            rows, total = read_page(session, newest, page=page, page_size=page_size)
            return [_view(row) for row in rows], total

        return await self.store.read(work)

    async def revoke(self, caller: Caller, share_id: str) -> None:
        """Ends a link of the caller for good. Raises NotFound."""

        def work(session: Session) -> None:
            row = session.get(ShareRow, share_id)
            if row is None or row.user_id != caller.user_id:
                raise NotFound("no link with this id", kind="share_not_found")
            _record(session, caller, Action.SHARE_REVOKE, row)
            session.delete(row)

        await self.store.write(work)

    async def show(self, token: str, reader: Caller | None, *, after: int, limit: int) -> SharedView:
        """What a link shows to a reader; None is anybody. Raises NotFound for every link that is not theirs
        to open, whatever the reason."""

        def work(session: Session) -> SharedView:
            row, subject = _opened(session, token, reader)
            if isinstance(subject, TaskRow):
                task = _task_now(session, subject) if row.is_live else _task.decode(row.snapshot or "")
                return _shown(row, subject, task=task)
            ids = _message_ids(session, row, subject)
            messages = _read(session, ids[after : after + limit])
            views = [message_view(messages[message_id]) for message_id in ids[after : after + len(messages)]]
            shown = [
                shared_message(number, view)
                for number, view in enumerate(with_quotations(session, views), after + 1)
            ]
            return msgspec.structs.replace(_shown(row, subject), messages=shown, total=len(ids))

        return await self.store.read(work)

    async def image(self, token: str, reader: Caller | None, number: int, index: int) -> AttachedBytes:
        """An image of a message that a link shows. Raises NotFound as `show` does, and without such an
        image."""

        def work(session: Session) -> AttachedBytes:
            row, subject = _opened(session, token, reader)
            ids = [] if isinstance(subject, TaskRow) else _message_ids(session, row, subject)
            message = session.get(MessageRow, ids[number - 1]) if 0 < number <= len(ids) else None
            if message is not None and message.role == "user":
                files = user_content(message.content).attachments
                if index < len(files) and is_image(files[index]):
                    found = read_attachment(session.connection(), message.id, files[index])
                    if found is not None:
                        return found
            raise _no_link()

        return await self.store.read(work)


Subject = ConversationRow | ChatRoomRow | TaskRow


def _subject(session: Session, caller: Caller, kind: ShareKind, subject_id: str) -> tuple[str, Subject]:
    """The title and the row of what the caller may share. Raises NotFound or NotAllowed."""
    match kind:
        case ShareKind.CONVERSATION:
            conversation = own_conversation(session, caller, subject_id)
            if conversation.temporary_minutes is not None:
                raise Conflict(
                    "a temporary chat is deleted, and its links with it; keep the chat first",
                    kind="is_temporary",
                )
            return conversation.title, conversation
        case ShareKind.ROOM:
            room, _ = find_room(session, caller, subject_id, RoomRight.STEER)
            return room.title, room
        case ShareKind.TASK:
            task = own_task(session, caller, subject_id)
            if task.result is None:
                raise Conflict("this task has no result yet; share it when it has one", kind="no_result")
            return task.name, task
        case _:
            assert_never(kind)


def _check_limits(session: Session, caller: Caller, row: ShareRow) -> None:
    own = select(func.count(), func.coalesce(func.sum(func.length(ShareRow.snapshot)), 0))
    count, stored = session.execute(own.where(ShareRow.user_id == caller.user_id)).one()
    if count >= MAX_SHARES:
        raise Conflict(
            f"you have {MAX_SHARES} links, which is the limit; revoke one that you no longer use",
            kind="shares_full",
        )
    if stored + len(row.snapshot or "") > MAX_STORED_BYTES:
        raise Conflict(
            "your snapshots take up the space that they may; revoke some, or share this live",
            kind="shares_full",
        )


def _snapshot(session: Session, subject: Subject) -> str:
    if isinstance(subject, TaskRow):
        copy = _encode(_task_now(session, subject))
        if len(copy) > MAX_SNAPSHOT_BYTES:
            raise TooLarge(
                f"the result has more than {MAX_SNAPSHOT_BYTES // 1_000_000} MB; share it live",
                kind="share_too_large",
            )
        return copy.decode()
    ids = _ids_now(session, subject)
    if len(ids) > MAX_SNAPSHOT_MESSAGES:
        raise TooLarge(
            f"it has more than {MAX_SNAPSHOT_MESSAGES:,} messages; share it live", kind="share_too_large"
        )
    return _encode(ids).decode()


def _opened(session: Session, token: str, reader: Caller | None) -> tuple[ShareRow, Subject]:
    """The row of a link that this reader may open now, and its subject. Raises NotFound."""
    # `undefer`: one query, and not another for the snapshot.
    by_hash = select(ShareRow).where(ShareRow.token_hash == _hash_of(token))
    row = session.scalar(by_hash.options(undefer(ShareRow.snapshot)))
    if row is None or (row.ends_at is not None and row.ends_at <= utc_now()):
        raise _no_link()
    is_of_tenant = reader is not None and reader.tenant_id == row.tenant_id
    if not is_of_tenant and row.audience != ShareAudience.ANYBODY:
        raise _no_link()
    if row.audience == ShareAudience.ANYBODY and not _allows_anybody(session, row.tenant_id):
        raise _no_link()
    owner = session.get(User, row.user_id)
    subject = _subject_of(session, row)
    if owner is None or not owner.is_active or owner.tenant_id != row.tenant_id or subject is None:
        raise _no_link()
    return row, subject


def _subject_of(session: Session, row: ShareRow) -> Subject | None:
    """The subject of a link, if the link's owner may still share it."""
    if row.conversation_id is not None:
        conversation = session.get(ConversationRow, row.conversation_id)
        if conversation is None or conversation.import_id is not None:
            return None
        return conversation if conversation.user_id == row.user_id else None
    if row.task_id is not None:
        task = session.get(TaskRow, row.task_id)
        return task if task is not None and task.user_id == row.user_id else None
    room = session.get(ChatRoomRow, row.room_id)
    if room is None or room.tenant_id != row.tenant_id:
        return None
    if room.user_id == row.user_id:
        return room
    member = session.get(SubjectMemberRow, (room.id, row.user_id))
    may_share = member is not None and includes(MemberRight(member.right), MemberRight.STEER)
    return room if may_share else None


def _shown(row: ShareRow, subject: Subject, *, task: SharedTask | None = None) -> SharedView:
    is_live = row.is_live
    title = subject.name if isinstance(subject, TaskRow) else subject.title
    return SharedView(
        kind=_kind_of(row),
        title=title if is_live else row.title,
        is_live=is_live,
        created_at=row.created_at,
        messages=[],
        total=0,
        task=task,
    )


def _message_ids(session: Session, row: ShareRow, subject: ConversationRow | ChatRoomRow) -> list[str]:
    """The ids of the messages that a link shows, oldest first, without those that were deleted."""
    if row.is_live:
        return _ids_now(session, subject)
    is_of_room = isinstance(subject, ChatRoomRow)
    parent = MessageRow.room_id if is_of_room else MessageRow.conversation_id
    # Only the columns of an index: the rows of a long conversation take a hundred times as many pages.
    left = set(session.connection().scalars(select(MessageRow.id).where(parent == subject.id)))
    return [message_id for message_id in _ids.decode(row.snapshot or "[]") if message_id in left]


def _ids_now(session: Session, subject: ConversationRow | ChatRoomRow) -> list[str]:
    """The ids of the messages of a room or of a conversation's selected branch, oldest first."""
    if isinstance(subject, ChatRoomRow):
        is_shown = and_(MessageRow.room_id == subject.id, MessageRow.role.in_(SHOWN_ROLES))
        query = select(MessageRow.id).where(is_shown).order_by(MessageRow.id)
        return list(session.connection().scalars(query))
    if subject.selected_leaf_id is None:
        return []
    return read_path_ids(session.connection(), subject.selected_leaf_id)


def _read(session: Session, ids: Sequence[str]) -> dict[str, MessageRow]:
    """The first of these messages, in this order, as many as MAX_READ_BYTES allow."""
    measured = select(MessageRow.id, func.length(MessageRow.content)).where(MessageRow.id.in_(ids))
    sizes = dict(session.execute(measured).tuples().all())
    fitting: list[str] = []
    size = 0
    for message_id in ids:
        size += sizes.get(message_id, 0)
        if message_id not in sizes or (fitting and size > MAX_READ_BYTES):
            break
        fitting.append(message_id)
    rows = session.scalars(select(MessageRow).where(MessageRow.id.in_(fitting)))
    return {row.id: row for row in rows}


def _task_now(session: Session, task: TaskRow) -> SharedTask:
    steps = [
        SharedStep(name=step.name, status=TaskStepStatus(step.status), output=step.output)
        for step in step_rows(session, task.id)
    ]
    return SharedTask(goal=task.goal, result=task.result, steps=steps)


def _allows_anybody(session: Session, tenant_id: int) -> bool:
    return bool(session.scalar(select(Tenant.public_links).where(Tenant.id == tenant_id)))


def _kind_of(row: ShareRow) -> ShareKind:
    if row.conversation_id is not None:
        return ShareKind.CONVERSATION
    return ShareKind.ROOM if row.room_id is not None else ShareKind.TASK


def _is_subject(subject_id: str) -> ColumnElement[bool]:
    is_conversation = ShareRow.conversation_id == subject_id
    return is_conversation | (ShareRow.room_id == subject_id) | (ShareRow.task_id == subject_id)


def _view(row: ShareRow) -> ShareView:
    return ShareView(
        id=row.id,
        kind=_kind_of(row),
        subject_id=row.conversation_id or row.room_id or row.task_id or "",
        title=row.title,
        audience=ShareAudience(row.audience),
        is_live=row.is_live,
        ends_at=row.ends_at,
        created_at=row.created_at,
    )


def _record(session: Session, caller: Caller, action: Action, row: ShareRow) -> None:
    """The subject is the target; the detail names the audience."""
    view = _view(row)
    record(
        session,
        AuditEntry(
            action=action,
            actor=caller.actor,
            target_type=view.kind.value,
            target_id=view.subject_id,
            detail=Detail(kind=view.audience.value),
        ),
    )


def _hash_of(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def _no_link() -> NotFound:
    return NotFound("this link does not exist, or has ended", kind="link_not_found")
