"""Admission of a chat run: the one transaction that stores a new user message and inserts the run.

It also decides whether the run starts at once or waits for a slot (`engine/slots.py`).
"""

import time
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Connection, Select, bindparam, delete, func, insert, select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.conversations.access import check_idle, own_message, run_active_error, title_after
from luxx.domain.conversations.images import Images, store_images
from luxx.domain.conversations.models import ConversationRow, MessageRow
from luxx.domain.conversations.search_index import index_message, index_title
from luxx.domain.conversations.views import MessageView, message_view
from luxx.domain.usage.reserve import check_daily_limits, limits_of
from luxx.errors import Conflict, ProviderFailed, TooLarge, Unavailable
from luxx.infra.clock import new_id, utc_now
from luxx.infra.config.schema import LimitsConfig
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import table_of
from luxx.providers.models import ProviderRow
from luxx.runs.engine.slots import find_slot, find_waiting_subagent, first_slots
from luxx.runs.log.events import read_last_error
from luxx.runs.models import RunRow, find_run, is_unended, run_view
from luxx.runs.turn.spending import no_budget_left
from luxx.runs.turn.state import ChatRequest, RunSpec, model_used
from luxx.wire.message import UserContent
from luxx.wire.run import ENDED, Run, RunKind, RunPhase, RunStatus, StopReason

RUNS_AT_ONCE = 20
"""How many runs one transaction deletes; each has a log of hundreds of events."""

_runs = table_of(RunRow)
_conversations = table_of(ConversationRow)
_insert_run = insert(_runs)
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


class RunOwner(msgspec.Struct, frozen=True):
    """The user who owns and pays for a run: in a room or task, that of the room or task."""

    user_id: int
    tenant_id: int


class RoomCaller(msgspec.Struct, frozen=True):
    """Who made a call of which room; both None for other runs."""

    room_id: str | None
    user_id: int | None


NOT_CALLED = RoomCaller(None, None)


class NewChat(msgspec.Struct, frozen=True, kw_only=True):
    """A user's message and the request that answers it; `admit` sets the request's `parent_id`.

    With `content` the message is new and stored below `parent_id` (None: as the first message). Without,
    `parent_id` is the stored message. `images` are those of the content; `size` is the bytes of both.
    """

    parent_id: str | None
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
    status = find_slot(session.connection(), caller.user_id, RunKind.CHAT, limits)
    check_daily_limits(session.connection(), caller.user_id, limits, now)
    message_id, run_id, answer_id = new_id(), new_id(), new_id()
    connection = session.connection()
    title = conversation.title
    if chat.content is None:
        message_id = chat.parent_id or ""
        # The message names its newest run; each run names its message as `question_id`.
        connection.execute(_link_run_to_message, {"b_id": message_id, "run": run_id})
    else:
        title = title_after(title, chat.content.text)
        message = _message_row(caller, conversation.id, chat, message_id, run_id, now)
        connection.execute(_insert_message, message)
        index_message(connection, message)
        store_images(connection, message_id, chat.images)
    request = msgspec.structs.replace(chat.request, parent_id=message_id)
    run = new_run(run_id, conversation.id, status, request=request, message_id=answer_id, created_at=now)
    create_run(connection, run, request, caller, process, size=chat.size)
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
    caller: Caller, conversation_id: str | None, chat: NewChat, message_id: str, run_id: str, now: datetime
) -> dict[str, Any]:
    return {
        "id": message_id, "user_id": caller.user_id, "conversation_id": conversation_id,
        "parent_id": chat.parent_id, "run_id": run_id, "role": "user",
        "content": _encode(chat.content).decode(), "created_at": now,
    }  # fmt: skip


def admit_invocation(
    session: Session, caller: Caller, chat: NewChat, process: str, limits: LimitsConfig
) -> Run:
    """Stores the message and the run of a call of an agent without a conversation. Raises TooMany."""
    now = utc_now()
    connection = session.connection()
    status = find_slot(connection, caller.user_id, RunKind.CHAT, limits)
    check_daily_limits(connection, caller.user_id, limits, now)
    message_id, run_id = new_id(), new_id()
    connection.execute(_insert_message, _message_row(caller, None, chat, message_id, run_id, now))
    store_images(connection, message_id, chat.images)
    request = msgspec.structs.replace(chat.request, parent_id=message_id, is_invocation=True)
    run = new_run(run_id, str(request.agent_id), status, request=request, message_id=new_id(), created_at=now)
    create_run(connection, run, request, caller, process, size=chat.size)
    return run


def admit_call(
    session: Session, caller: Caller, request: ChatRequest, process: str, limits: LimitsConfig
) -> Run:
    """Stores the run of a call that gives its messages, without a message of its own. Raises TooMany.

    The run is its own subject.
    """
    now = utc_now()
    connection = session.connection()
    status = find_slot(connection, caller.user_id, RunKind.CHAT, limits)
    check_daily_limits(connection, caller.user_id, limits, now)
    run_id = new_id()
    run = new_run(run_id, run_id, status, request=request, created_at=now)
    create_run(connection, run, request, caller, process)
    return run


def new_run(
    run_id: str,
    subject_id: str,
    status: RunStatus = RunStatus.RUNNING,
    *,
    kind: RunKind = RunKind.CHAT,
    request: ChatRequest | None = None,
    message_id: str | None = None,
    parent_run_id: str | None = None,
    created_at: datetime | None = None,
) -> Run:
    """A run that starts at once or, with the status `queued`, waits for a slot; `request` is a chat's."""
    now = created_at or utc_now()
    starts_now = status == RunStatus.RUNNING
    return Run(
        id=run_id, kind=kind, subject_id=subject_id, status=status,
        phase=RunPhase.THINKING if starts_now else None, parent_run_id=parent_run_id, message_id=message_id,
        created_at=now, started_at=now if starts_now else None,
        **({} if request is None else msgspec.structs.asdict(model_used(request))),
    )  # fmt: skip


def create_run(
    connection: Connection,
    run: Run,
    request: ChatRequest,
    owner: Caller | RunSpec,
    process: str,
    *,
    size: int = 0,
) -> None:
    """Inserts the row of a new run of a chat, which `process` drives if it starts at once.

    `owner` is the caller, or the run that delegates. `size` is the bytes of the run's message.
    """
    row = _run_row(run, _encode(request).decode(), owner, process, size)
    row |= {"agent_id": request.agent_id, "question_id": request.parent_id}
    connection.execute(_insert_run, row)


def insert_run(
    connection: Connection, run: Run, request: str, owner: RunOwner, process: str, called: RoomCaller
) -> None:
    """Inserts the row of a new run of a room or task, with the JSON `request` of its feature.

    Nothing but this and `create_run` inserts runs.
    """
    row = _run_row(run, request, owner, process, 0)
    called_by = None if called.user_id == owner.user_id else called.user_id
    row |= {"called_room_id": called.room_id, "called_by": called_by}
    connection.execute(_insert_run, row | {"agent_id": None, "question_id": None})


def _run_row(
    run: Run, request: str, owner: "Caller | RunSpec | RunOwner", process: str, size: int
) -> dict[str, Any]:
    starts_now = run.status == RunStatus.RUNNING
    return {
        "id": run.id, "user_id": owner.user_id, "tenant_id": owner.tenant_id, "kind": run.kind.value,
        "subject_id": run.subject_id, "parent_run_id": run.parent_run_id, "message_id": run.message_id,
        "status": run.status.value, "phase": None if run.phase is None else run.phase.value,
        "provider_id": run.provider_id, "provider_name": run.provider_name, "model": run.model,
        "slots": first_slots(run.parent_run_id),
        "request": request, "owner": process if starts_now else None, "fence": 1 if starts_now else 0,
        "stored_bytes": size + len(request), "created_at": run.created_at, "started_at": run.started_at,
    }  # fmt: skip


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


MIB = 1024 * 1024

RECOUNT_SECONDS = 600.0
"""How long a user's cached total is used; other processes and deletions change the real one."""

_of_runs = select(func.coalesce(func.sum(_runs.c.stored_bytes), 0)).where(
    _runs.c.user_id == bindparam("user_id")
)
# No run counts what people write in rooms. A room's messages belong to its owner.
_said_in_rooms = select(func.coalesce(func.sum(func.length(_messages.c.content)), 0)).where(
    _messages.c.user_id == bindparam("user_id"), _messages.c.room_id.is_not(None), _messages.c.role == "user"
)
_of_user = select(_of_runs.scalar_subquery() + _said_in_rooms.scalar_subquery())


class StorageUse:
    """The stored bytes of users, cached in this process; it recounts before it refuses anything.

    With several processes a user can exceed the limit by what the others store within RECOUNT_SECONDS.
    """

    def __init__(self, store: Store, limit_mb: float) -> None:
        self._store = store
        self._limit_mb = limit_mb
        self._cached_sizes: dict[int, tuple[int, float]] = {}

    async def check(self, user_id: int, size: int, *, is_own: bool = True) -> None:
        """Raises TooLarge if `size` more bytes exceed the user's limit; a limit of 0 means none.

        Without `is_own` somebody else writes in a room of this user, and does not learn what is stored.
        """
        if not self._limit_mb:
            return
        limit = self._limit_mb * MIB
        used, counted_at = self._cached_sizes.get(user_id, (0, -RECOUNT_SECONDS))
        now = time.monotonic()
        if now - counted_at >= RECOUNT_SECONDS or used + size > limit:
            used = await self._store.read_rows(
                lambda connection: int(connection.scalar(_of_user, {"user_id": user_id}) or 0)
            )
            self._cached_sizes[user_id] = (used, now)
        if used + size > limit and not is_own:
            raise TooLarge(
                "the owner of this room has no storage left for it (limits.storage_mb_per_user); they can "
                "delete conversations and rooms that they no longer need",
                kind="quota_exceeded",
            )
        if used + size > limit:
            raise TooLarge(
                f"your messages and the logs of your runs would use {(used + size) / MIB:.1f} MiB; the limit "
                f"is {self._limit_mb:g} MiB (limits.storage_mb_per_user); delete conversations and rooms "
                "that you no longer need",
                kind="quota_exceeded",
            )

    def add(self, user_id: int, size: int) -> None:
        """Counts `size` more stored bytes."""
        if user_id in self._cached_sizes:
            used, counted_at = self._cached_sizes[user_id]
            self._cached_sizes[user_id] = (used + size, counted_at)
