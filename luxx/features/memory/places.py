"""Where a run works, as memory sees it: the scopes that it may use there, and the mode that its conversation,
project or room has. The mode of the user and of the agent is in the request of the run.
"""

from typing import Any

import msgspec
from sqlalchemy import BindParameter, Connection, bindparam, exists, select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.models import UserSettings
from luxx.domain.agents.models import AgentRow
from luxx.domain.conversations.models import ConversationRow, ProjectRow
from luxx.features.memory.scopes import Place
from luxx.features.memory.vectors.source import PaidBy
from luxx.features.rooms.models import ChatRoomRow
from luxx.features.tasks.models import TaskRow
from luxx.infra.store.tables import strictest, table_of
from luxx.runs.models import RunRow, SubjectMemberRow
from luxx.tools.permissions.explaining import ASSUMED_TAINT, HypotheticalCall, OwnDecision
from luxx.wire.model_settings import MemoryMode
from luxx.wire.run import RunKind
from luxx.wire.tool import RuleAction

OFF = "memory is off here, so nothing is read or stored; the person may turn it on in the settings"
ASKS = "memory is set to ask here before something is stored"
FORGETS = "what it forgets is gone for good"
USING_TOOLS = frozenset(
    ("memory_search", "memory_create", "memory_forget", "graph_query", "entity_lookup", "episode_retrieval")
)
"""The tools that read or write memory, and nothing where it is off."""

MAX_DEPTH = 10
"""Runs above a subagent's that are looked at; delegation is never as deep."""

_conversations, _projects = table_of(ConversationRow), table_of(ProjectRow)
_rooms, _tasks, _runs = table_of(ChatRoomRow), table_of(TaskRow), table_of(RunRow)
_members = table_of(SubjectMemberRow)
_settings, _agents = table_of(UserSettings), table_of(AgentRow)
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


_of_user = select(_settings.c.memory).where(_settings.c.user_id == bindparam("user"))
_of_project = select(_projects.c.memory).where(_projects.c.id == bindparam("project"))
_of_agent = select(_agents.c.memory).where(_agents.c.id == bindparam("agent"))


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


def decided_by_memory(session: Session, caller: Caller, call: HypotheticalCall) -> OwnDecision | None:
    """What a tool of memory decides itself about a call in a run of the caller, by the modes of the user, and
    of the project and the agent of the call; they were checked."""
    if call.tool not in USING_TOOLS:
        return None
    connection = session.connection()
    mode = strictest(
        connection.scalar(_of_user, {"user": caller.user_id}),
        connection.scalar(_of_project, {"project": call.project_id}) if call.project_id else None,
        connection.scalar(_of_agent, {"agent": call.agent_id}) if call.agent_id else None,
    )
    if mode == MemoryMode.OFF:
        return OwnDecision(action=RuleAction.DENY, because=OFF)
    if call.tool == "memory_forget":
        return OwnDecision(action=RuleAction.ASK, because=FORGETS)
    if call.tool == "memory_create" and call.is_tainted:
        return OwnDecision(action=RuleAction.ASK, because=brought_untrusted(ASSUMED_TAINT))
    if call.tool == "memory_create" and mode == MemoryMode.ASK:
        return OwnDecision(action=RuleAction.ASK, because=ASKS)
    return None


def brought_untrusted(tainted_by: str) -> str:
    """Why a fact is not stored unasked in a run that has read untrusted content."""
    return f"{tainted_by} has brought untrusted content into this run"


def paid_by_run(connection: Connection, run_id: str | None) -> PaidBy:
    """What the vector of a query is entered in the ledger for, where a run searches."""
    root = None if run_id is None else root_of(connection, run_id)
    if root is None:
        return PaidBy()
    return PaidBy(run_id=run_id or "", subject_id=root.subject_id, kind=root.kind)
