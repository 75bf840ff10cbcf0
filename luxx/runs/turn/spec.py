"""A chat run's brief: all that a drive needs to know, read in one transaction."""

from typing import Any

import msgspec
from sqlalchemy import Connection, bindparam, select

from luxx.domain.context.prompt import PastMessage
from luxx.domain.conversations.stored import read_path
from luxx.infra.store.tables import table_of
from luxx.runs.log.events import read_log
from luxx.runs.models import RunRow
from luxx.runs.turn.state import ChatState
from luxx.wire.delegation import Delegated
from luxx.wire.event import LoggedEvent
from luxx.wire.message import UserContent
from luxx.wire.question import WhenAsked


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked, with every default settled when it was: later changes do not alter a run.

    `tools` names the tools offered to the model. `parent_id` is the user's message that is answered.
    `response_schema` is the JSON schema that the answer's text must fit.
    `takes_images`: whether the model is shown the conversation's images. `when_asked`: what becomes of it
    where it has to ask a person. `delegated`: it is a subagent's, whose task stands in place of the messages.
    """

    parent_id: str
    provider_id: int
    model: str
    tools: list[str] = []
    takes_images: bool = False
    thinking_enabled: bool = False
    temperature: float | None = None
    max_tokens: int | None = None
    system_prompt: str = ""
    response_schema: dict[str, Any] | None = None
    when_asked: WhenAsked = WhenAsked.WAIT
    delegated: Delegated | None = None


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A run to drive. `events` is its log so far: empty when it has just begun. A subagent writes no message,
    so its `message_id` is empty."""

    run_id: str
    user_id: int
    tenant_id: int
    conversation_id: str
    message_id: str
    fence: int
    is_cancelled: bool
    driven_seconds: float = 0.0
    request: ChatRequest
    past: list[PastMessage]
    events: list[LoggedEvent]


_runs = table_of(RunRow)
_run = select(
    _runs.c.user_id,
    _runs.c.tenant_id,
    _runs.c.subject_id,
    _runs.c.message_id,
    _runs.c.is_cancelled,
    _runs.c.driven_seconds,
    _runs.c.request,
    _runs.c.last_seq,
).where(_runs.c.id == bindparam("run_id"), _runs.c.fence == bindparam("fence"))
_request = msgspec.json.Decoder(ChatRequest)


def read_spec(connection: Connection, run_id: str, fence: int) -> RunSpec | None:
    """The brief, or None if the run was deleted or taken by another process since."""
    run = connection.execute(_run, {"run_id": run_id, "fence": fence}).one_or_none()
    if run is None:
        return None
    request = _request.decode(run.request)
    if run.message_id is None and request.delegated is None:
        return None
    return RunSpec(
        run_id=run_id,
        user_id=run.user_id,
        tenant_id=run.tenant_id,
        conversation_id=run.subject_id,
        message_id=run.message_id or "",
        fence=fence,
        is_cancelled=run.is_cancelled,
        driven_seconds=run.driven_seconds,
        request=request,
        past=_past(connection, request),
        events=read_log(connection, run_id) if run.last_seq else [],
    )


def initial_state(spec: RunSpec) -> ChatState:
    """The state before the first event: that of a subagent is as narrow as its parent's."""
    delegated = spec.request.delegated
    return ChatState() if delegated is None else ChatState(narrowed=delegated.narrowed)


def _past(connection: Connection, request: ChatRequest) -> list[PastMessage]:
    if request.delegated is not None:
        return [PastMessage(user=UserContent(text=request.delegated.task))]
    return read_path(connection, request.parent_id, with_images=request.takes_images)
