"""Who may read and change an artifact: its owner, and members of its room by their right to the room."""

from sqlalchemy import ColumnElement, Connection, Row, and_, exists, or_, select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.conversations.models import ConversationRow
from luxx.errors import NotAllowed
from luxx.features.artifacts.rows import artifact_not_found, artifacts
from luxx.features.artifacts.views import ArtifactRight
from luxx.features.rooms.models import ChatRoomRow
from luxx.features.tasks.models import TaskRow
from luxx.infra.store.tables import table_of
from luxx.runs.models import SubjectMemberRow, member_right
from luxx.wire.run import MemberRight

_members = table_of(SubjectMemberRow)
_SUBJECTS = {
    "conversation_id": table_of(ConversationRow),
    "room_id": table_of(ChatRoomRow),
    "task_id": table_of(TaskRow),
}
_rights = list(ArtifactRight)
_needed = {
    ArtifactRight.EDIT: "have the right to speak in its room",
    ArtifactRight.OWNER: "own it",
}

ArtifactRecord = Row[tuple[object, ...]]


def visible_to(caller: Caller) -> ColumnElement[bool]:
    """The condition on artifacts that the caller may read."""
    is_member = exists().where(
        _members.c.subject_id == artifacts.c.room_id, _members.c.user_id == caller.user_id
    )
    in_room = and_(artifacts.c.tenant_id == caller.tenant_id, is_member.correlate(artifacts))
    return or_(artifacts.c.user_id == caller.user_id, in_room)


def find_artifact(
    session: Session, caller: Caller, artifact_id: str, right: ArtifactRight = ArtifactRight.READ
) -> ArtifactRecord:
    """The row of an artifact that the caller has this right to. Raises NotFound or NotAllowed."""
    query = select(artifacts).where(artifacts.c.id == artifact_id, visible_to(caller))
    row = session.connection().execute(query).one_or_none()
    if row is None:
        raise artifact_not_found()
    given = right_to(session, caller, row)
    if _rights.index(given) < _rights.index(right):
        raise NotAllowed(f"you may read this artifact; you must {_needed[right]} for this")
    return row


def right_to(session: Session, caller: Caller, row: ArtifactRecord) -> ArtifactRight:
    """The caller's right to an artifact that they may read."""
    if row.user_id == caller.user_id:
        return ArtifactRight.OWNER
    given = None if row.room_id is None else member_right(session, row.room_id, caller.user_id)
    is_speaker = given in (MemberRight.SPEAK, MemberRight.STEER)
    return ArtifactRight.EDIT if is_speaker else ArtifactRight.READ


def existing_subject(connection: Connection, subject: dict[str, str]) -> dict[str, str]:
    """The column of a subject that exists."""
    return {
        name: id_
        for name, id_ in subject.items()
        if connection.scalar(select(_SUBJECTS[name].c.id).where(_SUBJECTS[name].c.id == id_)) is not None
    }
