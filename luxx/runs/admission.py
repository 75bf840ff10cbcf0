"""Admission of a chat run: the one transaction that stores a new user message and inserts the run.

It also decides whether the run starts at once or waits for a slot (`slots.py`).
"""

from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Select, bindparam, delete, insert, select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.conversations.access import check_idle, own_message, run_active_error, title_after
from luxx.domain.conversations.images import Images, store_images
from luxx.domain.conversations.models import ConversationRow, MessageRow
from luxx.domain.conversations.search_index import index_message, index_title
from luxx.domain.conversations.views import MessageView, message_view
from luxx.domain.usage.reserve import check_daily_limits, limits_of
from luxx.errors import Conflict, ProviderFailed, Unavailable
from luxx.infra.clock import new_id, utc_now
from luxx.infra.config.schema import LimitsConfig
from luxx.infra.store.tables import table_of
from luxx.providers.models import ProviderRow
from luxx.runs.log.events import read_last_error
from luxx.runs.models import RunRow, find_run, is_unended, run_view
from luxx.runs.slots import find_slot, find_waiting_subagent
from luxx.runs.turn.request import ChatRequest
from luxx.runs.turn.run_rows import insert_run, new_run
from luxx.runs.turn.spending import no_budget_left
from luxx.wire.message import UserContent
from luxx.wire.run import ENDED, Run, RunStatus, StopReason

RUNS_AT_ONCE = 20
"""How many runs one transaction deletes; each has a log of hundreds of events."""

_runs = table_of(RunRow)
_conversations = table_of(ConversationRow)
_messages = table_of(MessageRow)
_insert_message = insert(_messages)
_link_run_to_message = (
    _messages.update().where(_messages.c.id == bindparam("b_id")).values(run_id=bindparam("run"))
)
_runs_of_subject = select(_runs.c.id).where(_runs.c.subject_id == bindparam("subject"))
_active_run = _runs_of_subject.where(is_unended).limit(1)
_next_runs = _runs_of_subject.order_by(_runs.c.id).limit(bindparam("limit"))
_delete_runs = delete(_runs).where(_runs.c.id.in_(bindparam("ids", expanding=True)))
_set_active_run = (
    _conversations.update()
    .where(_conversations.c.id == bindparam("b_id"), _conversations.c.run_id.is_(None))
    .values(
        run_id=bindparam("run"),
        selected_leaf_id=bindparam("leaf"),
        updated_at=bindparam("now"),
        title=bindparam("text"),
    )
)
_encode = msgspec.json.Encoder().encode


class NewChat(msgspec.Struct, frozen=True, kw_only=True):
    """A user's message and the request that answers it.

    With `content` the message is new and stored below `parent_id` (None: as the first message). Without, it
    is stored already. `images` are those of the content; `size` is the bytes of both.
    """

    message_id: str
    parent_id: str | None = None
    content: UserContent | None = None
    images: Images = {}
    request: ChatRequest
    size: int = 0


def admit(
    session: Session,
    caller: Caller,
    conversation: ConversationRow,
    chat: NewChat,
    process: str,
    limits: LimitsConfig,
) -> Run:
    """Stores the message, if it is new, and the run, which `process` drives unless it waits for a slot.

    Raises Conflict (the conversation has an active run) or TooMany.
    """
    now = utc_now()
    check_idle(conversation)
    status = find_slot(session.connection(), caller.user_id, limits)
    check_daily_limits(session.connection(), caller.user_id, limits, now)
    message_id, run_id, answer_id = chat.message_id, new_id(), new_id()
    connection = session.connection()
    title = conversation.title
    if chat.content is None:
        # The message names its newest run; each run names its message as `question_id`.
        connection.execute(_link_run_to_message, {"b_id": message_id, "run": run_id})
    else:
        title = title_after(title, chat.content.text)
        message = _message_row(caller, conversation.id, chat, run_id, now)
        connection.execute(_insert_message, message)
        index_message(connection, message)
        if chat.images:
            store_images(connection, message_id, chat.images)
    run = new_run(run_id, conversation.id, status, request=chat.request, message_id=answer_id, created_at=now)
    insert_run(connection, run, chat.request, caller, process, size=chat.size)
    if title != conversation.title:
        index_title(connection, user_id=caller.user_id, conversation_id=conversation.id, title=title)
    updated = connection.execute(
        _set_active_run,
        {"b_id": conversation.id, "run": run_id, "leaf": message_id, "now": now, "text": title},
    )
    if updated.rowcount != 1:
        # On PostgreSQL two transactions may get here; the condition on the row lets one succeed.
        session.refresh(conversation)
        raise run_active_error(conversation.run_id or "")
    return run


def _message_row(
    caller: Caller, conversation_id: str | None, chat: NewChat, run_id: str, now: datetime
) -> dict[str, Any]:
    return {
        "id": chat.message_id, "user_id": caller.user_id, "conversation_id": conversation_id,
        "parent_id": chat.parent_id, "run_id": run_id, "role": "user",
        "content": _encode(chat.content).decode(), "created_at": now,
    }  # fmt: skip


def admit_invocation(
    session: Session, caller: Caller, chat: NewChat, process: str, limits: LimitsConfig
) -> Run:
    """Stores the message and the run of a call of an agent without a conversation. Raises TooMany."""
    now = utc_now()
    connection = session.connection()
    status = find_slot(connection, caller.user_id, limits)
    check_daily_limits(connection, caller.user_id, limits, now)
    request, run_id = chat.request, new_id()
    connection.execute(_insert_message, _message_row(caller, None, chat, run_id, now))
    store_images(connection, chat.message_id, chat.images)
    run = new_run(run_id, str(request.agent_id), status, request=request, message_id=new_id(), created_at=now)
    insert_run(connection, run, request, caller, process, size=chat.size)
    return run


def admit_call(
    session: Session, caller: Caller, request: ChatRequest, process: str, limits: LimitsConfig
) -> Run:
    """Stores the run of a call that gives its messages, without a message of its own. Raises TooMany.

    The run is its own subject.
    """
    now = utc_now()
    connection = session.connection()
    status = find_slot(connection, caller.user_id, limits)
    check_daily_limits(connection, caller.user_id, limits, now)
    run_id = new_id()
    run = new_run(run_id, run_id, status, request=request, created_at=now)
    insert_run(connection, run, request, caller, process)
    return run


def limits_for(session: Session, caller: Caller, provider_id: int, limits: LimitsConfig) -> LimitsConfig:
    """The limits in force for the caller's calls of this provider."""
    if not limits.level1_tokens_per_day:
        return limits
    provider = session.get(ProviderRow, provider_id)
    is_own = provider is None or provider.user_id == caller.user_id
    return limits_of(limits, caller.permission_level, is_own_provider=is_own)


def delete_runs_of(session: Session, messages: Select[str]) -> None:
    """Deletes the runs of deleted messages, because their logs hold the text."""
    runs = select(MessageRow.run_id).where(MessageRow.id.in_(messages), MessageRow.run_id.is_not(None))
    answering = select(RunRow.id).where(RunRow.id.in_(runs)).cte("answering", recursive=True)
    descendants = answering.union_all(
        select(RunRow.id).join(answering, RunRow.parent_run_id == answering.c.id)
    )
    # Subagents first: the query finds them by their parent runs.
    for condition in (
        RunRow.id.in_(select(descendants.c.id)), RunRow.id.in_(runs), RunRow.question_id.in_(messages)
    ):  # fmt: skip
        session.execute(delete(RunRow).where(condition).execution_options(synchronize_session=False))


def delete_runs(session: Session, subject_id: str) -> bool:
    """Deletes up to RUNS_AT_ONCE runs of a subject that is being deleted; True if there may be more.

    Raises Conflict if a run has not ended.
    """
    connection = session.connection()
    if connection.scalar(_active_run, {"subject": subject_id}) is not None:
        raise Conflict("a run was started here a moment ago; try again", kind="run_active")
    ids = list(connection.scalars(_next_runs, {"subject": subject_id, "limit": RUNS_AT_ONCE}))
    if ids:
        connection.execute(_delete_runs, {"ids": ids})
    return len(ids) == RUNS_AT_ONCE


UNFINISHED = "the answer is not finished; follow its run"
IN_PROGRESS = frozenset({RunStatus.QUEUED, RunStatus.RUNNING})


def run_detail(run: Run) -> dict[str, Any]:
    """The ids of the run and its message, for the detail of an error."""
    return {"run_id": run.id, "message_id": run.message_id}


def answer_of(session: Session, caller: Caller, run_id: str) -> MessageView | None:
    """The answer of a run that has ended; None while it is in progress.

    Raises what `RunService.answer` raises. A subagent that waits for a person counts as if the run waited.
    """
    run = run_view(find_run(session, caller, run_id))
    waiting_run_id = run.id if run.status == RunStatus.WAITING else None
    if run.status in IN_PROGRESS:
        waiting_run_id = find_waiting_subagent(session.connection(), run.id)
        if waiting_run_id is None:
            return None
    if waiting_run_id is not None:
        raise Conflict(
            f"the run waits for an answer; see GET /runs/{waiting_run_id}/questions",
            kind="run_waiting",
            detail=run_detail(run),
        )
    if run.status not in ENDED or run.message_id is None:
        raise Unavailable(UNFINISHED, kind="run_active", detail=run_detail(run))
    if run.status == RunStatus.FAILED:
        last_error = read_last_error(session.connection(), run.id)
        kind = last_error.code if last_error is not None else None
        raise ProviderFailed(run.error or "the run failed", kind=kind, detail=run_detail(run))
    message = message_view(own_message(session, caller, run.message_id))
    if run.stop_reason in (StopReason.TOKENS, StopReason.COST) and not message.steps:
        raise no_budget_left(read_last_error(session.connection(), run.id), run_detail(run))
    return message
