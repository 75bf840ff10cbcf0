"""The sessions of sockets: conversations, rooms, tasks and artifacts, with their newest runs; the changes of
runs, and those of rooms.

`notices.py` notifies listeners of them, with the words of `notifications.py`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET
from sqlalchemy import BindParameter, ColumnElement, Connection, Row, Table, bindparam, func, or_, select

from luxx.domain.accounts.models import User
from luxx.domain.conversations.access import own_conversations
from luxx.domain.conversations.models import TODOS_MODE, ConversationRow, MessageRow, QueuedMessageRow
from luxx.infra.store.tables import table_of
from luxx.runs.log.endings import NOTICES, RunEndedRow
from luxx.runs.models import ProcessRow, RunRow, SubjectMemberRow
from luxx.wire.message import FollowUps
from luxx.wire.run import ENDED, SIDE_KINDS, MemberRight, RunKind, RunStatus
from luxx.wire.socket import NotificationKind, SessionState, SessionStatus

IDS_PER_QUERY = 100
ERROR_CHARACTERS = 500
UNENDED = [status.value for status in RunStatus if status not in ENDED]
"""Not `is_unended`: a database can look these up in an index."""

NOTABLE = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.WAITING, RunStatus.PAUSED})
"""Statuses that cause a notification; a user who cancels a run needs none."""

_runs, _members, _messages = table_of(RunRow), table_of(SubjectMemberRow), table_of(MessageRow)
_people = table_of(User)
_id_list: BindParameter[list[str]] = bindparam("ids", expanding=True)
_members_of = (
    select(_members.c.subject_id, _members.c.user_id, _members.c.right, _people.c.tenant_id)
    .join(_people, _people.c.id == _members.c.user_id)
    .where(_members.c.subject_id.in_(_id_list))
)
_new_members = (
    select(_members.c.subject_id, _members.c.user_id, _people.c.username.label("owner"))
    .join(_people, _people.c.id == _members.c.owner_id)
    .where(_members.c.user_id.in_(bindparam("users", expanding=True)), _members.c.is_new)
    .order_by(_members.c.created_at, _members.c.subject_id)
)
_newest_ids = (
    select(func.max(_runs.c.id))
    .where(_runs.c.subject_id.in_(_id_list), _runs.c.parent_run_id.is_(None))
    .group_by(_runs.c.subject_id)
)
_newest_runs = select(
    _runs.c.subject_id, _runs.c.id.label("run_id"), _runs.c.status, _runs.c.message_id, _runs.c.stop_reason,
    _runs.c.error, _runs.c.started_at, _runs.c.finished_at, _runs.c.last_seq,
).where(_runs.c.id.in_(_newest_ids.scalar_subquery()))  # fmt: skip
_newest_messages = (
    select(_messages.c.room_id, func.max(_messages.c.id))
    .where(_messages.c.room_id.in_(_id_list))
    .group_by(_messages.c.room_id)
)
_newer = _runs.alias("newer")
_follow_ups = msgspec.json.Decoder(FollowUps)
_sessions = table_of(ConversationRow)
_newest = (
    select(_newer.c.id)
    .where(_newer.c.subject_id == _sessions.c.id, _newer.c.parent_run_id.is_(None))
    .order_by(_newer.c.id.desc())
    .limit(1)
    .scalar_subquery()
)
_of_session = QueuedMessageRow.conversation_id == _sessions.c.id, QueuedMessageRow.mode != TODOS_MODE
_queue_length = select(func.count(QueuedMessageRow.id)).where(*_of_session).scalar_subquery()
_states = (
    select(
        _queue_length.label("queued"), _sessions.c.queue_paused, _sessions.c.follow_ups,
        _sessions.c.id.label("session_id"), _sessions.c.title, _runs.c.id.label("run_id"), _runs.c.status,
        _runs.c.message_id, _runs.c.stop_reason, _runs.c.error, _runs.c.started_at, _runs.c.finished_at,
        _runs.c.last_seq,
    )
    .select_from(_sessions.outerjoin(_runs, _runs.c.id == _newest))
    .where(_sessions.c.id.in_(bindparam("ids", expanding=True)), own_conversations)
)  # fmt: skip
_titles = select(_sessions.c.id, _sessions.c.title).where(
    _sessions.c.id.in_(bindparam("ids", expanding=True)), own_conversations
)
_changes = select(
    _runs.c.id, _runs.c.user_id, _runs.c.subject_id, _runs.c.parent_run_id, _runs.c.kind, _runs.c.status,
    _runs.c.error, _runs.c.last_seq, _sessions.c.title,
).select_from(_runs.outerjoin(_sessions, _runs.c.subject_id == _sessions.c.id))  # fmt: skip
_changes_by_id = _changes.where(_runs.c.id.in_(bindparam("ids", expanding=True)))
_changes_unended = _changes.where(_runs.c.status.in_(UNENDED))
_users: BindParameter[list[int]] = bindparam("users", expanding=True)
_joined = select(_members.c.subject_id).where(_members.c.user_id.in_(_users))
_changes_after = _changes.where(
    or_(_runs.c.user_id.in_(_users), _runs.c.subject_id.in_(_joined)), _runs.c.id > bindparam("after")
)
_endings = table_of(RunEndedRow)
_unnotified = select(_endings.c.run_id, _endings.c.user_id).where(
    _endings.c.reader == NOTICES,
    _endings.c.process != bindparam("process"),
    _endings.c.process.not_in(select(table_of(ProcessRow).c.id)),
    _endings.c.user_id.in_(_users),
    _endings.c.parent_run_id.is_(None),
)


class SubjectTable(msgspec.Struct, frozen=True):
    """A table of rooms, tasks or artifacts, with an id, a user_id and a tenant_id, and its column of titles.

    `shared_by`: the column with the room whose members see the row; its own members, if None. `writings`: the
    rows that say which run (`run_id`) wrote in which row (`artifact_id`).
    """

    kind: RunKind
    table: Table
    title: ColumnElement[str]
    shared_by: ColumnElement[str | None] | None = None
    writings: Table | None = None


class SubjectHint(msgspec.Struct, frozen=True, kw_only=True):
    """A message between processes: a room has a new message, a new member, or other members or rights.

    `user_id` is the author of the message, or the member that was added, changed or removed. `sender` is who
    did it. Without a `kind` nobody is notified; subscribers get the new state.
    """

    session_id: str
    user_id: int
    sender: str = ""
    kind: NotificationKind | None = None

    def is_notable_for(self, user_id: int) -> bool:
        """Whether the user gets a notification."""
        match self.kind:
            case NotificationKind.MESSAGE:
                return user_id != self.user_id
            case NotificationKind.MEMBER:
                return user_id == self.user_id
            case _:
                return False


class SessionSubject(msgspec.Struct, frozen=True, kw_only=True):
    """A room, task or artifact: its title, its owner, and the rights of its members in the tenant."""

    kind: RunKind
    title: str
    owner_id: int
    members: Mapping[int, MemberRight] = {}

    def is_visible_to(self, user_id: int) -> bool:
        """Whether the user may see its runs."""
        return user_id == self.owner_id or user_id in self.members


def read_subjects(
    connection: Connection, tables: Sequence[SubjectTable], ids: Sequence[str]
) -> dict[str, SessionSubject]:
    """Those of the rooms and tasks that exist, by id."""
    found: dict[str, Row[*tuple[Any, ...]]] = {}
    kinds: dict[str, RunKind] = {}
    for one in tables:
        shared_by = (one.table.c.id if one.shared_by is None else one.shared_by).label("shared_by")
        columns = (one.table.c.id, one.title.label("title"), one.table.c.user_id, one.table.c.tenant_id)
        rows = connection.execute(select(*columns, shared_by).where(one.table.c.id.in_(ids))).all()
        found |= {row.id: row for row in rows}
        kinds |= {row.id: one.kind for row in rows}
    members: dict[str, list[tuple[int, int, MemberRight]]] = {}
    shared = {row.shared_by for row in found.values() if row.shared_by is not None}
    for row in connection.execute(_members_of, {"ids": list(shared)}) if shared else ():
        member = row.tenant_id, row.user_id, MemberRight(row.right)
        members.setdefault(row.subject_id, []).append(member)
    return {
        id_: SessionSubject(
            kind=kinds[id_],
            title=row.title,
            owner_id=row.user_id,
            members={
                user_id: right
                for tenant_id, user_id, right in members.get(row.shared_by, ())
                if tenant_id == row.tenant_id and user_id != row.user_id
            },
        )
        for id_, row in found.items()
    }


def read_memberships(
    connection: Connection, tables: Sequence[SubjectTable], user_ids: Sequence[int]
) -> tuple[list[SubjectHint], dict[str, SessionSubject]]:
    """Of which rooms the users became members and have read nothing yet, and these rooms."""
    hints = [
        SubjectHint(
            session_id=row.subject_id, user_id=row.user_id, sender=row.owner, kind=NotificationKind.MEMBER
        )
        for first in range(0, len(user_ids), IDS_PER_QUERY)
        for row in connection.execute(_new_members, {"users": user_ids[first : first + IDS_PER_QUERY]})
    ]
    return hints, read_subjects(connection, tables, [hint.session_id for hint in hints]) if hints else {}


def newest_runs(connection: Connection, ids: Sequence[str]) -> dict[str, Row[*tuple[Any, ...]]]:
    """The newest run of each of the rooms and tasks that has one."""
    return {row.subject_id: row for row in connection.execute(_newest_runs, {"ids": list(ids)})}


class RunChange(msgspec.Struct, frozen=True, kw_only=True):
    """The current status of a run, with its session and user; the others who may see the session are
    `members`, with their rights. `waiting_seq`: the newest event of a run that waits for a person, else 0.
    `artifact_id`: the artifact that a run which has ended made or changed last."""

    run_id: str
    user_id: int
    session_id: str
    title: str
    kind: RunKind
    status: RunStatus
    waiting_seq: int = 0
    is_subagent: bool = False
    error: str | None = None
    members: Mapping[int, MemberRight] = {}
    artifact_id: str | None = None

    @property
    def is_reported(self) -> bool:
        """Whether listeners are notified: of a subagent only that it waits, of a side run only of its end."""
        if self.kind in SIDE_KINDS:
            return self.status in ENDED
        return not self.is_subagent or self.status == RunStatus.WAITING

    def is_notable_for(self, user_id: int) -> bool:
        """Whether the status causes a notification; to members only that a person is needed whom they can
        be."""
        if self.kind in SIDE_KINDS:
            return self.kind == RunKind.TITLE and self.status == RunStatus.COMPLETED
        if user_id == self.user_id:
            return self.status in NOTABLE
        return self.status == RunStatus.WAITING and self.members.get(user_id) == MemberRight.STEER


def read_states(
    connection: Connection, user_id: int, session_ids: Sequence[str], tables: Sequence[SubjectTable] = ()
) -> dict[str, SessionState]:
    """The states of those sessions that the user may see, each with its newest run, by session id."""
    rows = connection.execute(_states, {"ids": list(session_ids), "user_id": user_id})
    states = {row.session_id: _conversation_state(row) for row in rows}
    others = [id_ for id_ in session_ids if id_ not in states]
    subjects = read_subjects(connection, tables, others) if others else {}
    visible = {id_: one for id_, one in subjects.items() if one.is_visible_to(user_id)}
    return states | _subject_states(connection, user_id, visible)


def titles_of(
    connection: Connection, user_id: int, session_ids: Sequence[str], tables: Sequence[SubjectTable]
) -> dict[str, str]:
    """The titles of those conversations, rooms and tasks that the user may see, by id."""
    rows = connection.execute(_titles, {"ids": list(session_ids), "user_id": user_id})
    titles: dict[str, str] = dict(rows.all())
    others = [id_ for id_ in session_ids if id_ not in titles]
    subjects = read_subjects(connection, tables, others) if others else {}
    return titles | {id_: one.title for id_, one in subjects.items() if one.is_visible_to(user_id)}


def _subject_states(
    connection: Connection, user_id: int, subjects: Mapping[str, SessionSubject]
) -> dict[str, SessionState]:
    if not subjects:
        return {}
    runs = newest_runs(connection, list(subjects))
    rooms = [id_ for id_, one in subjects.items() if one.kind == RunKind.ROOM]
    newest = dict(connection.execute(_newest_messages, {"ids": rooms}).all()) if rooms else {}
    states: dict[str, SessionState] = {}
    for id_, subject in subjects.items():
        state = _state(subject.title, runs.get(id_))
        if subject.kind == RunKind.ROOM:
            state = msgspec.structs.replace(
                state,
                message_id=newest.get(id_),
                members=len(subject.members),
                right=subject.members.get(user_id, UNSET),
            )
        states[id_] = state
    return states


def read_changes(
    connection: Connection, run_ids: Sequence[str], tables: Sequence[SubjectTable] = ()
) -> list[RunChange]:
    """The current state of those runs that exist."""
    changes: list[RunChange] = []
    for first in range(0, len(run_ids), IDS_PER_QUERY):
        rows = connection.execute(_changes_by_id, {"ids": list(run_ids[first : first + IDS_PER_QUERY])})
        changes += _run_changes(connection, rows.all(), tables)
    return changes


def read_changes_of(
    connection: Connection, user_ids: Sequence[int], after: str, tables: Sequence[SubjectTable] = ()
) -> list[RunChange]:
    """The runs that the users may see and that have not ended, and those with an id above `after`."""
    # Unended runs are read for all users: they are few, but the list of users may be long.
    unended = _run_changes(connection, connection.execute(_changes_unended).all(), tables)
    wanted_ids = set(user_ids)
    changes = {one.run_id: one for one in unended if wanted_ids & {one.user_id, *one.members}}
    for first in range(0, len(user_ids), IDS_PER_QUERY):
        users = list(user_ids[first : first + IDS_PER_QUERY])
        rows = connection.execute(_changes_after, {"users": users, "after": after}).all()
        changes |= {one.run_id: one for one in _run_changes(connection, rows, tables)}
    return list(changes.values())


def read_unnotified(connection: Connection, process: str, user_ids: Sequence[int]) -> dict[str, int]:
    """The runs of these users that a process ended which is not there any more and may have notified nobody,
    with the user of each."""
    found: dict[str, int] = {}
    for first in range(0, len(user_ids), IDS_PER_QUERY):
        values = {"process": process, "users": list(user_ids[first : first + IDS_PER_QUERY])}
        found |= {row.run_id: row.user_id for row in connection.execute(_unnotified, values)}
    return found


def _state(title: str, row: Row[*tuple[Any, ...]] | None) -> SessionState:
    if row is None or row.run_id is None:
        return SessionState(status=SessionStatus.IDLE, title=title)
    return SessionState(
        status=SessionStatus(row.status),
        title=title,
        run_id=row.run_id,
        message_id=row.message_id,
        waiting_seq=row.last_seq if row.status == RunStatus.WAITING else UNSET,
        stop_reason=row.stop_reason,
        error=_cut(row.error),
        started_at=row.started_at,
        finished_at=row.finished_at,
    )


def _conversation_state(row: Row[*tuple[Any, ...]]) -> SessionState:
    queue = {"queued": row.queued, "queue_paused": row.queue_paused} if row.queued else {}
    proposed = {"follow_ups": _follow_ups.decode(row.follow_ups)} if row.follow_ups else {}
    return msgspec.structs.replace(_state(row.title, row), **queue, **proposed)


def _run_changes(
    connection: Connection, rows: Sequence[Row[*tuple[Any, ...]]], tables: Sequence[SubjectTable]
) -> list[RunChange]:
    """The changes of the runs of conversations, rooms, tasks and artifacts; other runs have no session."""
    others = {row.subject_id for row in rows if row.title is None}
    subjects = read_subjects(connection, tables, list(others)) if others else {}
    ended = [row.id for row in rows if row.status in ENDED]
    written = _written_by(connection, ended, tables) if ended else {}
    changes: list[RunChange] = []
    for row in rows:
        subject = subjects.get(row.subject_id)
        title: str | None = row.title if subject is None else subject.title
        if title is None:
            continue
        changes.append(
            RunChange(
                run_id=row.id,
                user_id=row.user_id,
                session_id=row.subject_id,
                title=title,
                kind=RunKind(row.kind),
                status=RunStatus(row.status),
                waiting_seq=row.last_seq if row.status == RunStatus.WAITING else 0,
                is_subagent=row.parent_run_id is not None,
                error=_cut(row.error),
                members={} if subject is None else _others(subject, row.user_id),
                artifact_id=written.get(row.id),
            )
        )
    return changes


def _others(subject: SessionSubject, user_id: int) -> Mapping[int, MemberRight]:
    """Who may see the session besides the user of its run, who may be a member of it."""
    if user_id == subject.owner_id:
        return subject.members
    members = {subject.owner_id: MemberRight.STEER, **subject.members}
    members.pop(user_id, None)
    return members


def _written_by(
    connection: Connection, run_ids: Sequence[str], tables: Sequence[SubjectTable]
) -> dict[str, str]:
    """The artifact that each of the runs, or a subagent of it, wrote in last."""
    found: dict[str, str] = {}
    for writings in (one.writings for one in tables if one.writings is not None):
        root = func.coalesce(_runs.c.parent_run_id, _runs.c.id)
        of_runs = or_(_runs.c.id.in_(run_ids), _runs.c.parent_run_id.in_(run_ids))
        query = select(root, writings.c.artifact_id).join(_runs, _runs.c.id == writings.c.run_id)
        for run_id, artifact_id in connection.execute(query.where(of_runs).order_by(writings.c.created_at)):
            found[run_id] = artifact_id
    return found


def _cut(text: str | None) -> str | None:
    return text if text is None or len(text) <= ERROR_CHARACTERS else f"{text[:ERROR_CHARACTERS]}…"
