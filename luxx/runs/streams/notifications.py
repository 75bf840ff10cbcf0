"""The words of notifications: of runs that ended or wait, and of new messages and members of rooms. Pure."""

from msgspec import UNSET

from luxx.runs.streams.sessions import RunChange, SessionSubject, SubjectHint
from luxx.wire.run import RunKind, RunStatus
from luxx.wire.socket import NotificationData, NotificationKind, SessionStatus

CHAT_TEXTS = {
    RunStatus.COMPLETED: "The answer is ready.",
    RunStatus.FAILED: "The answer failed: {error}",
    RunStatus.WAITING: "A question waits for you.",
    RunStatus.PAUSED: "The run is paused and can be resumed.",
}
SUBJECT_TEXTS = {
    RunStatus.COMPLETED: "The {kind} has ended.",
    RunStatus.FAILED: "The {kind} failed: {error}",
    RunStatus.WAITING: "The {kind} waits for a person.",
    RunStatus.PAUSED: "The {kind} is paused and can be resumed.",
}
"""Of rooms and tasks."""

PAGE_TEXTS = {
    RunStatus.COMPLETED: "The page is written.",
    RunStatus.FAILED: "The page was not written: {error}",
    RunStatus.WAITING: "A question waits for you.",
    RunStatus.PAUSED: "The run is paused and can be resumed.",
}
"""Of artifacts."""

ROOM_TEXTS = {
    NotificationKind.MESSAGE: "{sender} wrote a message.",
    NotificationKind.MEMBER: "{sender} made you a member of the room.",
}
_TEXTS = {RunKind.CHAT: CHAT_TEXTS, RunKind.ARTIFACT: PAGE_TEXTS}


def notification(change: RunChange) -> NotificationData:
    """The notification of a run that ended or waits."""
    if change.kind == RunKind.TITLE:
        return NotificationData(
            kind=NotificationKind.TITLE, title=change.title, message="The conversation has a new title.",
            session_id=change.session_id, run_id=None, status=SessionStatus.IDLE,
        )  # fmt: skip
    text = _TEXTS.get(change.kind, SUBJECT_TEXTS)[change.status]
    artifact_id = change.session_id if change.kind == RunKind.ARTIFACT else change.artifact_id
    return NotificationData(
        title=change.title,
        message=text.format(kind=change.kind.value, error=change.error or "the reason is not known"),
        session_id=change.session_id,
        session_kind=UNSET if change.kind == RunKind.CHAT else change.kind,
        run_id=change.run_id,
        status=SessionStatus(change.status),
        artifact_id=UNSET if artifact_id is None else artifact_id,
    )


def subject_notification(hint: SubjectHint, subject: SessionSubject) -> NotificationData:
    """The notification of a new message or member of a room. The hint has a kind."""
    kind = NotificationKind(hint.kind)
    return NotificationData(
        kind=kind,
        title=subject.title,
        message=ROOM_TEXTS[kind].format(sender=hint.sender),
        session_id=hint.session_id,
        session_kind=subject.kind,
        run_id=None,
        status=SessionStatus.IDLE,
        sender=hint.sender,
    )
