"""The rows of runs: new ones, what a drive reads of one, how a subagent ended, and how many bytes those of a
user hold.

Nothing else inserts runs.
"""

import time
from datetime import datetime

import msgspec
from msgspec.structs import replace
from sqlalchemy import Connection, Select, bindparam, func, insert, select

from luxx.domain.accounts.caller import Caller
from luxx.domain.context.messages import PastMessage, read_path
from luxx.domain.conversations.models import MessageRow, QueuedMessageRow
from luxx.errors import TooLarge
from luxx.infra.clock import utc_now
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import table_of
from luxx.runs.log.events import read_log
from luxx.runs.models import RunRow
from luxx.runs.slots import first_slots
from luxx.runs.turn.state import (
    ChatRequest,
    GivenPrompt,
    Origin,
    RunSpec,
    TurnState,
    count_calls,
    fold,
    model_used,
)
from luxx.wire.delegation import SubagentEnd
from luxx.wire.message import UserContent
from luxx.wire.model_settings import PlanningMode
from luxx.wire.run import (
    Compression,
    Delegated,
    InConversation,
    Invocation,
    OrchestratedTurn,
    RoomCopyTurn,
    Run,
    RunKind,
    RunPhase,
    RunStatus,
)
from luxx.wire.turn import StepType, steps_text

_runs, _messages, _queued = table_of(RunRow), table_of(MessageRow), table_of(QueuedMessageRow)
_insert_run = insert(_runs)
_encode = msgspec.json.Encoder().encode


class RunOwner(msgspec.Struct, frozen=True):
    """The user who owns and pays for a run: in a room or task, that of the room or task."""

    user_id: int
    tenant_id: int


class RoomCaller(msgspec.Struct, frozen=True):
    """Who made a call of which room; of a run that writes a page of an artifact of a room, the owner of the
    artifact and the room. Both None for other runs."""

    room_id: str | None
    user_id: int | None


NOT_CALLED = RoomCaller(None, None)


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


def insert_run(
    connection: Connection,
    run: Run,
    request: ChatRequest | str,
    owner: Caller | RunSpec | RunOwner,
    process: str,
    *,
    size: int = 0,
    called: RoomCaller = NOT_CALLED,
) -> None:
    """Inserts the row of a new run, which `process` drives if it starts at once.

    `request` is a chat's, or that of a room or task as JSON. `owner` is the caller, the run that delegates
    or the owner of the room or task. `size` is the bytes of the run's message.
    """
    is_chat = isinstance(request, ChatRequest)
    stored = _encode(request).decode() if is_chat else request
    starts_now = run.status == RunStatus.RUNNING
    row = {
        "id": run.id, "user_id": owner.user_id, "tenant_id": owner.tenant_id, "kind": run.kind.value,
        "subject_id": run.subject_id, "parent_run_id": run.parent_run_id, "message_id": run.message_id,
        "agent_id": request.agent_id if is_chat else None,
        "question_id": answered_message(request) if is_chat else None,
        "called_room_id": called.room_id,
        "called_by": None if called.user_id == owner.user_id else called.user_id,
        "status": run.status.value, "phase": None if run.phase is None else run.phase.value,
        "provider_id": run.provider_id, "provider_name": run.provider_name, "model": run.model,
        "is_planned": is_chat and request.planning != PlanningMode.OFF,
        "slots": first_slots(run.parent_run_id),
        "request": stored, "owner": process if starts_now else None, "fence": 1 if starts_now else 0,
        "stored_bytes": size + len(stored), "created_at": run.created_at, "started_at": run.started_at,
    }  # fmt: skip
    connection.execute(_insert_run, row)


class RunHead(msgspec.Struct, frozen=True, kw_only=True):
    """The row of a run at the start of a drive. `request` is the JSON that the feature stored; `message_id`
    the message that a chat's run writes."""

    id: str
    kind: RunKind
    subject_id: str
    message_id: str | None = None
    user_id: int
    tenant_id: int
    fence: int
    is_cancelled: bool
    driven_seconds: float
    request: str
    last_seq: int
    created_at: datetime
    started_at: datetime | None


_head = select(*(_runs.c[name] for name in RunHead.__struct_fields__)).where(
    _runs.c.id == bindparam("run_id"), _runs.c.fence == bindparam("fence")
)


def read_head(connection: Connection, run_id: str, fence: int) -> RunHead | None:
    """The head of a run; None if it was deleted or claimed with another fence."""
    row = connection.execute(_head, {"run_id": run_id, "fence": fence}).one_or_none()
    return None if row is None else msgspec.convert(row, RunHead, from_attributes=True)


def read_chat(connection: Connection, head: RunHead) -> RunSpec | None:
    """The specification of a chat's run, with its log; None if its messages were removed when it ended."""
    request = decode_request(head.request)
    past = _past_messages(connection, request)
    if past is None:
        return None
    return RunSpec(
        run_id=head.id,
        user_id=head.user_id,
        tenant_id=head.tenant_id,
        subject_id=head.subject_id,
        message_id=head.message_id,
        fence=head.fence,
        request=request,
        past=past,
        events=read_log(connection, head.id) if head.last_seq else [],
    )


def _past_messages(connection: Connection, request: ChatRequest) -> list[PastMessage] | None:
    """The messages before the run; None if they were removed when it ended."""
    match request.origin:
        case Delegated(task=task):
            return [PastMessage(user=UserContent(text=task))]
        case GivenPrompt(past=past):
            return past
        case InConversation() | Invocation() | Compression():
            message_id = request.origin.message_id
            return read_path(connection, message_id, with_images=request.takes_images)
        case OrchestratedTurn() | RoomCopyTurn():
            return None


def answered_message(request: ChatRequest) -> str | None:
    """The stored message of the user that the run answers, itself or as a part of another run; of one that
    only leaves something out, the answer that keeps it."""
    match request.origin:
        case InConversation() | Invocation() | Compression():
            return request.origin.message_id
        case Delegated(message_id=message_id):
            return message_id
        case _:
            return None


class _OldOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that said what a run was asked before requests had an `origin`."""

    parent_id: str = ""
    is_invocation: bool = False
    delegated: Delegated | None = None
    given: GivenPrompt | None = None


_request, _old_origin = msgspec.json.Decoder(ChatRequest), msgspec.json.Decoder(_OldOrigin)


def decode_request(stored: str) -> ChatRequest:
    """The request in the row of a chat's run, which an older version may have stored."""
    request = _request.decode(stored)
    # No run of a chat is a turn of an orchestration: its request has no `origin`.
    is_old = isinstance(request.origin, OrchestratedTurn)
    return replace(request, origin=_origin_of(_old_origin.decode(stored))) if is_old else request


def _origin_of(old: _OldOrigin) -> Origin:
    if old.delegated is not None:
        is_of_given = old.given is not None
        return replace(old.delegated, message_id=old.parent_id or None, is_of_given=is_of_given)
    if old.given is not None:
        return old.given
    if not old.parent_id:
        return OrchestratedTurn()  # It was removed when the run ended.
    answered = Invocation if old.is_invocation else InConversation
    return answered(message_id=old.parent_id)


MIB = 1024 * 1024

RECOUNT_SECONDS = 600.0
"""How long a user's cached total is used; other processes and deletions change the real one."""

_select_end = select(_runs.c.status, _runs.c.stop_reason, _runs.c.error).where(
    _runs.c.id == bindparam("run_id")
)
_children = select(_runs.c.id).where(_runs.c.parent_run_id == bindparam("root")).cte(recursive=True)
_descendants = _children.union_all(
    select(_runs.c.id).join(_children, _runs.c.parent_run_id == _children.c.id)
)
_count_descendants = select(func.count()).select_from(_descendants)


def status_of(connection: Connection, run_id: str) -> RunStatus | None:
    """The status of the run; None if it was deleted."""
    row = connection.execute(_select_end, {"run_id": run_id}).one_or_none()
    return None if row is None else RunStatus(row.status)


def read_end(connection: Connection, run_id: str) -> SubagentEnd | None:
    """The end of a run, from its row and its log; None if it was deleted."""
    row = connection.execute(_select_end, {"run_id": run_id}).one_or_none()
    if row is None:
        return None
    state = fold(read_log(connection, run_id))
    return SubagentEnd(
        run_id=run_id,
        status=row.status,
        stop_reason=row.stop_reason,
        answer=_answer(state),
        error=row.error,
        tool_calls=count_calls(state),
        is_tainted=state.tainted_by is not None,
    )


def count_descendants(connection: Connection, root_run_id: str) -> int:
    """How many subagents the run has had, at all depths."""
    return int(connection.scalar(_count_descendants, {"root": root_run_id}) or 0)


def _answer(state: TurnState) -> str:
    """The text after the last tool call or, if that is empty, all text."""
    last = max((step.index for step in state.steps if step.type == StepType.TOOL_RESULT), default=-1)
    return steps_text(state.steps[last + 1 :]).strip() or steps_text(state.steps).strip()


_of_runs = select(func.coalesce(func.sum(_runs.c.stored_bytes), 0)).where(
    _runs.c.user_id == bindparam("user_id")
)
# No run counts what people write in rooms. A room's messages belong to its owner.
_said_in_rooms = select(func.coalesce(func.sum(func.length(_messages.c.content)), 0)).where(
    _messages.c.user_id == bindparam("user_id"), _messages.c.room_id.is_not(None), _messages.c.role == "user"
)
_in_queues = select(func.coalesce(func.sum(_queued.c.stored_bytes), 0)).where(
    _queued.c.user_id == bindparam("user_id")
)
_of_user = (_of_runs, _said_in_rooms, _in_queues)


def stored_bytes(*others: Select[int]) -> Select[int]:
    """The bytes that the user `:user_id` stores: the logs of runs, what is written in rooms and queues, and
    `others`, which features store."""
    first, *rest = (one.scalar_subquery() for one in (*_of_user, *others))
    return select(sum(rest, start=first))


class StorageUse:
    """The stored bytes of users, cached in this process; it recounts before it refuses anything.

    With several processes a user can exceed the limit by what the others store within RECOUNT_SECONDS.
    """

    def __init__(self, store: Store, limit_mb: float, *others: Select[int]) -> None:
        """`others`: the bytes that features store for the user `:user_id`."""
        self._store = store
        self._limit_mb = limit_mb
        self._of_user = stored_bytes(*others)
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
                lambda connection: int(connection.scalar(self._of_user, {"user_id": user_id}) or 0)
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
