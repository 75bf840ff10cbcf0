"""A chat run's job: all that a drive needs to know, read in one transaction."""

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from luxx.context.prompt import PastMessage
from luxx.conversations.stored import read_path
from luxx.runs.events import read_log
from luxx.runs.models import RunRow
from luxx.wire.event import LoggedEvent


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked, with every default settled when it was: later changes do not alter a run.

    `tools` names the tools offered to the model. `parent_id` is the user's message that is answered.
    """

    parent_id: str
    provider_id: int
    model: str
    tools: list[str] = []
    thinking_enabled: bool = False
    temperature: float | None = None
    max_tokens: int | None = None
    system_prompt: str = ""


class ChatJob(msgspec.Struct, frozen=True, kw_only=True):
    """A run to drive. `events` is its log so far: empty when it has just begun."""

    run_id: str
    user_id: int
    tenant_id: int
    conversation_id: str
    message_id: str
    fence: int
    is_cancelled: bool
    request: ChatRequest
    past: list[PastMessage]
    events: list[LoggedEvent]


def read_job(session: Session, run_id: str, fence: int) -> ChatJob | None:
    """The job, or None if the run was deleted or taken by another process since."""
    run = session.execute(
        select(
            RunRow.user_id, RunRow.tenant_id, RunRow.subject_id, RunRow.message_id, RunRow.is_cancelled,
            RunRow.request, RunRow.last_seq,
        ).where(RunRow.id == run_id, RunRow.fence == fence)
    ).one_or_none()  # fmt: skip
    if run is None or run.message_id is None:
        return None
    request = msgspec.json.decode(run.request, type=ChatRequest)
    return ChatJob(
        run_id=run_id,
        user_id=run.user_id,
        tenant_id=run.tenant_id,
        conversation_id=run.subject_id,
        message_id=run.message_id,
        fence=fence,
        is_cancelled=run.is_cancelled,
        request=request,
        past=read_path(session, request.parent_id),
        events=read_log(session, run_id) if run.last_seq else [],
    )
