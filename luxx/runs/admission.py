"""Admission of a chat run: the one transaction that stores a new message of the user and makes the run.

Limits are counted inside it, one admission at a time, so two requests cannot both take the last place.
"""

from datetime import datetime

import msgspec
from sqlalchemy import Select, bindparam, delete, func, insert, select, text
from sqlalchemy.orm import Session

from luxx.accounts.caller import Caller
from luxx.clock import new_id, utc_now
from luxx.config import LimitsConfig
from luxx.conversations.access import busy, check_idle
from luxx.conversations.images import Images, store_images
from luxx.conversations.models import ConversationRow, MessageRow
from luxx.conversations.search_index import index_message, index_title
from luxx.conversations.titles import title_after
from luxx.errors import Conflict, TooMany
from luxx.runs.brief import ChatRequest
from luxx.runs.models import RunRow
from luxx.store.tables import table_of
from luxx.usage.reserve import check_day
from luxx.wire.message import UserContent
from luxx.wire.run import ENDED, Run, RunKind, RunPhase, RunStatus

ACTIVE = (RunStatus.QUEUED.value, RunStatus.RUNNING.value)
ADMISSION_LOCK = 7_402_118
"""The PostgreSQL advisory lock that admissions take in turn."""

RUNS_AT_ONCE = 20
"""Deleted in one transaction; each has a log of hundreds of events."""

RETRY_SECONDS = 5
"""When to try again after a full house: some run will have ended."""

_runs = table_of(RunRow)
_conversations = table_of(ConversationRow)
_one_at_a_time = text("SELECT pg_advisory_xact_lock(:lock)")
_insert_run = insert(_runs)
_messages = table_of(MessageRow)
_insert_message = insert(_messages)
_ask_again = _messages.update().where(_messages.c.id == bindparam("b_id")).values(run_id=bindparam("run"))
_active = (
    select(_runs.c.user_id, func.count().label("runs"))
    .where(_runs.c.status.in_(ACTIVE))
    .group_by(_runs.c.user_id)
)
_of_subject = select(_runs.c.id).where(_runs.c.subject_id == bindparam("subject"))
_one_active = _of_subject.where(_runs.c.status.not_in([status.value for status in ENDED])).limit(1)
_some_runs = _of_subject.order_by(_runs.c.id).limit(bindparam("most"))
_delete_runs = delete(_runs).where(_runs.c.id.in_(bindparam("ids", expanding=True)))
_begin = (
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


class Driver(msgspec.Struct, frozen=True, kw_only=True):
    """The process that will drive a new run, and until when it holds it (Unix seconds)."""

    owner: str
    lease_until: float


class NewChat(msgspec.Struct, frozen=True, kw_only=True):
    """A user's message and how it is to be answered; `parent_id` of the request is filled in here.

    With `content` it is a new one, to be stored below `parent_id` (None: as a first message); without, it
    is the stored one of this id. `images` are those that the content names.
    """

    parent_id: str | None
    content: UserContent | None = None
    images: Images = {}
    request: ChatRequest


def admit(
    session: Session,
    caller: Caller,
    conversation: ConversationRow,
    chat: NewChat,
    driver: Driver,
    limits: LimitsConfig,
) -> Run:
    """Stores the message, if it is new, and the run. Raises Conflict (one runs already) or TooMany."""
    now = utc_now()
    check_idle(conversation)
    check_limits(session, caller, limits, now)
    message_id, run_id, answer_id = new_id(), new_id(), new_id()
    connection = session.connection()
    title = conversation.title
    if chat.content is None:
        message_id = chat.parent_id or ""
        # The newest run that answers it; the earlier ones know their question.
        connection.execute(_ask_again, {"b_id": message_id, "run": run_id})
    else:
        title = title_after(title, chat.content.text)
        message = {
            "id": message_id, "user_id": caller.user_id, "conversation_id": conversation.id,
            "parent_id": chat.parent_id, "run_id": run_id, "role": "user",
            "content": _encode(chat.content).decode(), "created_at": now,
        }  # fmt: skip
        connection.execute(_insert_message, message)
        index_message(connection, message)
        store_images(connection, message_id, chat.images)
    request = msgspec.structs.replace(chat.request, parent_id=message_id)
    run = Run(
        id=run_id, kind=RunKind.CHAT, subject_id=conversation.id, status=RunStatus.RUNNING,
        phase=RunPhase.THINKING, message_id=answer_id, created_at=now, started_at=now,
    )  # fmt: skip
    connection.execute(_insert_run, _run_row(run, caller, request, driver))
    if title != conversation.title:
        index_title(connection, user_id=caller.user_id, conversation_id=conversation.id, title=title)
    begun = connection.execute(
        _begin, {"b_id": conversation.id, "run": run_id, "leaf": message_id, "now": now, "text": title}
    )
    if begun.rowcount != 1:
        # On PostgreSQL two messages may come this far together; the row lets one of them have it.
        session.refresh(conversation)
        raise busy(conversation.run_id or "")
    return run


def check_limits(session: Session, caller: Caller, limits: LimitsConfig, now: datetime) -> None:
    """Raises TooMany where the user or the server has no place for one more run, or the day is spent."""
    connection = session.connection()
    if connection.dialect.name == "postgresql":
        # One admission at a time among all servers; on SQLite one thread writes anyway.
        connection.execute(_one_at_a_time, {"lock": ADMISSION_LOCK})
    active = connection.execute(_active)
    counts = {row.user_id: row.runs for row in active}
    if limits.concurrent_runs_per_user and counts.get(caller.user_id, 0) >= limits.concurrent_runs_per_user:
        raise TooMany(
            f"you have {counts[caller.user_id]} runs in progress, as many as this server allows; "
            "wait for one or cancel one",
            retry_after=RETRY_SECONDS,
            kind="too_many_runs",
        )
    if limits.concurrent_runs and sum(counts.values()) >= limits.concurrent_runs:
        raise TooMany(
            "the server is busy with as many runs as it allows; try again in a moment",
            retry_after=RETRY_SECONDS,
            kind="server_busy",
        )
    check_day(session, caller.user_id, limits, now)


def forget_runs_of(session: Session, messages: Select[str]) -> None:
    """Deletes the runs that answered or wrote messages that are being deleted: their logs hold the text."""
    runs = select(MessageRow.run_id).where(MessageRow.id.in_(messages), MessageRow.run_id.is_not(None))
    for which in (RunRow.id.in_(runs), RunRow.question_id.in_(messages)):
        session.execute(delete(RunRow).where(which).execution_options(synchronize_session=False))


def forget_runs(session: Session, subject_id: str) -> bool:
    """Deletes some runs of a subject that is being deleted; True where there may be more.

    Raises Conflict if one has not ended.
    """
    connection = session.connection()
    if connection.scalar(_one_active, {"subject": subject_id}) is not None:
        raise Conflict("something was started here a moment ago; try again", kind="run_active")
    ids = list(connection.scalars(_some_runs, {"subject": subject_id, "most": RUNS_AT_ONCE}))
    if ids:
        connection.execute(_delete_runs, {"ids": ids})
    return len(ids) == RUNS_AT_ONCE


def _run_row(run: Run, caller: Caller, request: ChatRequest, driver: Driver) -> dict[str, object]:
    return {
        "id": run.id, "user_id": caller.user_id, "tenant_id": caller.tenant_id, "kind": run.kind.value,
        "subject_id": run.subject_id, "message_id": run.message_id, "question_id": request.parent_id,
        "status": run.status.value,
        "phase": RunPhase.THINKING.value, "request": _encode(request).decode(), "owner": driver.owner,
        "fence": 1, "lease_until": driver.lease_until, "created_at": run.created_at,
        "started_at": run.started_at,
    }  # fmt: skip
