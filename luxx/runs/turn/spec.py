"""The specification of a chat run: everything that a drive needs, read in one transaction."""

from typing import Any

import msgspec
from sqlalchemy import Connection, bindparam, select

from luxx.domain.conversations.prompt import PastMessage, read_path
from luxx.infra.store.tables import table_of
from luxx.runs.log.events import read_log
from luxx.runs.models import RunRow
from luxx.runs.turn.state import ChatState
from luxx.wire.delegation import Delegated
from luxx.wire.event import LoggedEvent
from luxx.wire.message import UserContent
from luxx.wire.question import WhenAsked


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The request of a run, with every default resolved at admission: later changes do not alter a run.

    `parent_id` is the user's message to answer. `tools` are the names offered to the model. `takes_images`:
    whether the model gets the conversation's images. `response_schema`: a JSON schema for the answer's text.
    `when_asked`: whether the run waits when it must ask a person. `delegated`: set for a subagent; its task
    replaces the messages.
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
    """A run to drive. `events` is its log so far. A subagent writes no message: `message_id` is empty."""

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
    """The specification, or None if the run was deleted or claimed by another process."""
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
    """The state before the first event; a subagent starts with its parent's tool limits."""
    delegated = spec.request.delegated
    return ChatState() if delegated is None else ChatState(narrowed=delegated.narrowed)


def _past(connection: Connection, request: ChatRequest) -> list[PastMessage]:
    if request.delegated is not None:
        return [PastMessage(user=UserContent(text=request.delegated.task))]
    return read_path(connection, request.parent_id, with_images=request.takes_images)
