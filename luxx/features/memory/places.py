"""Where a run works, as memory sees it: the scopes that it may use there, and the mode that its conversation,
project or room has. The mode of the user and of the agent is in the request of the run.
"""

from typing import Any

import msgspec
from sqlalchemy import BindParameter, Connection, bindparam, exists, select

from luxx.domain.conversations.models import ConversationRow, ProjectRow
from luxx.features.memory.scopes import Place
from luxx.features.rooms.models import ChatRoomRow
from luxx.features.tasks.models import TaskRow
from luxx.infra.store.tables import strictest, table_of
from luxx.runs.models import RunRow, SubjectMemberRow
from luxx.wire.model_settings import MemoryMode
from luxx.wire.run import RunKind

MAX_DEPTH = 10
"""Runs above a subagent's that are looked at; delegation is never as deep."""

_conversations, _projects = table_of(ConversationRow), table_of(ProjectRow)
_rooms, _tasks, _runs = table_of(ChatRoomRow), table_of(TaskRow), table_of(RunRow)
_members = table_of(SubjectMemberRow)
_subject: BindParameter[str] = bindparam("subject")
_of_chat = (
    select(_conversations.c.project_id, _conversations.c.memory, _projects.c.memory.label("of_project"))
    .select_from(_conversations.outerjoin(_projects, _projects.c.id == _conversations.c.project_id))
    .where(_conversations.c.id == _subject)
)
_of_room = select(_rooms.c.memory).where(_rooms.c.id == _subject)
_of_task = (
    select(
        _tasks.c.project_id,
        _projects.c.memory.label("of_project"),
        exists().where(_members.c.subject_id == _tasks.c.id).label("is_shared"),
    )
    .select_from(_tasks.outerjoin(_projects, _projects.c.id == _tasks.c.project_id))
    .where(_tasks.c.id == _subject)
)
_of_run = select(
    _runs.c.id, _runs.c.kind, _runs.c.subject_id, _runs.c.parent_run_id, _runs.c.request, _runs.c.user_id
).where(_runs.c.id == bindparam("run"))


class RunPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A place with its mode of memory."""

    place: Place
    memory: MemoryMode = MemoryMode.ON


def place_of(connection: Connection, kind: RunKind, subject_id: str) -> RunPlace:
    """The place of a run that is no subagent's."""
    values = {"subject": subject_id}
    if kind == RunKind.ROOM:
        room = connection.execute(_of_room, values).one_or_none()
        if room is None:  # A call of a room, which anybody with a right to it makes.
            return RunPlace(place=Place(is_shared=True))
        return RunPlace(place=Place(room_id=subject_id), memory=strictest(room.memory))
    if kind == RunKind.TASK:
        task = connection.execute(_of_task, values).one_or_none()
        if task is None:
            return RunPlace(place=Place())
        place = Place(project_id=task.project_id, is_shared=task.is_shared)
        return RunPlace(place=place, memory=strictest(task.of_project))
    chat = connection.execute(_of_chat, values).one_or_none()
    if chat is None:  # An agent that was called without a conversation.
        return RunPlace(place=Place())
    memory = strictest(chat.memory, chat.of_project)
    return RunPlace(place=Place(project_id=chat.project_id), memory=memory)


def root_of(connection: Connection, run_id: str) -> Any:
    """The row of the run that a subagent works for, or of the run itself; None if it was deleted."""
    row = connection.execute(_of_run, {"run": run_id}).one_or_none()
    for _ in range(MAX_DEPTH):
        if row is None or row.parent_run_id is None:
            break
        row = connection.execute(_of_run, {"run": row.parent_run_id}).one_or_none()
    return row
