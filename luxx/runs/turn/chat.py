"""A chat's run: one turn, whose end ends the run. What a drive reads of it, how it goes on, and what its
ending writes.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Protocol

import msgspec
from msgspec import UNSET
from msgspec.structs import replace
from sqlalchemy import Connection, bindparam, insert, null, select
from sqlalchemy.orm import Session

from luxx.domain.context.prompt import context_of, stored_record
from luxx.domain.conversations.access import SET_CONTEXT
from luxx.domain.conversations.models import ConversationRow, MessageRow
from luxx.domain.conversations.search_index import index_message
from luxx.domain.usage.ledger import UsageEntry
from luxx.errors import LuxxError
from luxx.infra.clock import utc_now
from luxx.infra.store.tables import table_of
from luxx.runs.log.failure import FailedRun, RunFailure
from luxx.runs.log.retention import delete_content
from luxx.runs.models import RunRow, is_unended
from luxx.runs.turn.asking import close_questions
from luxx.runs.turn.context import BeginDrive, DriveContext
from luxx.runs.turn.resources import TurnServices, UserAccess, with_fallback
from luxx.runs.turn.run_rows import RunHead, read_chat
from luxx.runs.turn.state import (
    ChatRequest,
    GivenPrompt,
    NextAction,
    Origin,
    RunSpec,
    TurnState,
    decide,
    fold,
    model_used,
)
from luxx.runs.turn.steering import WAITING, pause_queue, settle_queue
from luxx.runs.turn.turn import Turn
from luxx.runs.turn.turn_log import (
    Closing,
    Ending,
    TurnLog,
    ending_events,
    failure_ending,
    initial_state,
    message_origin,
    message_status,
)
from luxx.wire.message import AssistantContent
from luxx.wire.model_settings import PlanningMode
from luxx.wire.run import Compression, Delegated, InConversation, Invocation, RunKind, RunStatus, acting_agent
from luxx.wire.turn import Usage

_insert = insert(table_of(MessageRow))
_conversations = table_of(ConversationRow)
_release_conversation = (
    _conversations.update()
    .where(_conversations.c.id == bindparam("b_id"), _conversations.c.run_id == bindparam("b_run"))
    .values(run_id=null(), selected_leaf_id=bindparam("leaf_id"), updated_at=bindparam("now"))
)
_release_without_answer = (
    _conversations.update()
    .where(_conversations.c.id == bindparam("b_id"), _conversations.c.run_id == bindparam("b_run"))
    .values(run_id=null())
)
_runs = table_of(RunRow)
_lock_conversation = (
    select(_conversations.c.id).where(_conversations.c.id == bindparam("b_id")).with_for_update()
)
_other_compared = (
    select(_runs.c.id)
    .where(
        _runs.c.question_id == _conversations.c.comparing_id,
        _runs.c.parent_run_id.is_(None),
        _runs.c.kind == RunKind.CHAT.value,
        _runs.c.id != bindparam("b_run"),
        is_unended,
    )
    .limit(1)
    .scalar_subquery()
)
_release_compared = (
    _conversations.update()
    .where(_conversations.c.id == bindparam("b_id"), _conversations.c.run_id == bindparam("b_run"))
    .values(run_id=_other_compared, updated_at=bindparam("now"))
)
_encode = msgspec.json.Encoder().encode


class ChatDrive:
    """One drive of a chat's run: its turn goes on until it ends or waits for a person."""

    def __init__(
        self,
        context: DriveContext,
        services: TurnServices,
        spec: RunSpec,
        state: TurnState,
        access: UserAccess | LuxxError,
    ) -> None:
        self.status = RunStatus.RUNNING
        self._access = access
        self._engine = services.engine()
        self._has_next = False
        self._log = TurnLog(context.log, state)
        close = partial(close_chat, spec, on_next=self._on_next)
        self._turn = Turn(
            context, services, spec, self._log, close, signal=context.signal, is_recovered=spec.fence > 1
        )
        # While it was in no process or waited for a slot, nobody could say here that it is steered.
        was_begun_late = spec.fence > 1 or context.head.started_at != context.head.created_at
        context.signal.has_input = context.signal.has_input or was_begun_late

    @property
    def usage(self) -> Usage:
        """That of the whole run."""
        return self._turn.usage or self._log.state.usage

    async def run(self) -> None:
        """Carries out the turn. Raises LostRun, and database errors."""
        await self._turn.run.spending.recover_reservation()
        await self._turn.proceed(self._access)
        if self._turn.status:
            self.status = RunStatus(self._turn.status)
            if self._has_next:
                self._engine.request_maintenance()
        elif decide(self._log.state) == NextAction.WAIT:
            self.status = RunStatus.WAITING

    async def stop(self) -> None:
        """Does nothing: its turn is no task of its own."""

    def _on_next(self) -> None:
        self._has_next = True


class LoadPlanned(Protocol):
    """Reads what a drive needs of a chat's run whose answer may be made by steps of a plan."""

    def __call__(self, session: Session, head: RunHead, spec: RunSpec) -> BeginDrive: ...


def load_chat(
    services: TurnServices, load_planned: LoadPlanned, session: Session, head: RunHead
) -> BeginDrive | None:
    """Reads what a drive needs of a chat's run; None if its messages were removed when it ended."""
    spec = read_chat(session.connection(), head)
    if spec is None:
        return None
    if spec.request.planning != PlanningMode.OFF:
        return load_planned(session, head, spec)
    state = fold(spec.events, initial_state(spec))
    spec = with_fallback(spec, state)
    return partial(
        ChatDrive, services=services, spec=spec, state=state, access=services.read_access(session, spec)
    )


def close_chat(
    spec: RunSpec,
    state: TurnState,
    ending: Ending,
    _cut: UsageEntry | None,
    *,
    on_next: Callable[[], None] = lambda: None,
) -> Closing:
    """The Closing of a chat's turn, which ends the run. `on_next` is called if a queued message is to be sent
    then, which the rows say too.

    It stores the answer, selects it as the leaf and releases the conversation. A subagent's answer goes to
    its parent run, so it stores nothing. A call with given messages stores none either, and removes what it
    was given; its log stays until the answer is sent, or not at all if it is cancelled. A compression changes
    what the next prompt begins with.
    """
    origin = spec.request.origin
    message_id = origin.message_id if isinstance(origin, Compression) else spec.message_id
    producer = message_origin(spec.request, state, ending)
    if isinstance(origin, Compression):
        save, size = _prepare_record(spec, state, origin.message_id)
    else:
        save, size = _prepare_message(spec, state, ending, producer)
    changes = ending_changes(spec, state, ending)
    emptied = _without_content(spec.request)
    if emptied is not None:
        changes["request"] = _encode(emptied).decode()
        size = len(changes["request"]) - len(_encode(spec.request))

    def write(connection: Connection) -> None:
        if save is not None:
            save(connection)
        if isinstance(origin, InConversation | Compression):
            # The conversation is locked now: nobody adds to its queue meanwhile.
            waiting = connection.execute(WAITING, {"conversation": spec.subject_id}).all()
            if waiting and settle_queue(connection, spec, waiting, ending):
                on_next()
        if state.questions:
            close_questions(connection, spec.run_id)
        if emptied is not None and ending.status == RunStatus.CANCELLED:
            delete_content(connection, spec.run_id)

    todos = 0 if state.context.todos is None else len(state.context.todos.open)
    done = producer | {"memories_used": used_of(state)}
    return Closing(
        events=[*ending_events(message_id or "", state.usage, ending, done, todos)],
        changes=changes,
        write=write,
        size=size,
    )


def used_of(state: TurnState) -> list[str]:
    """The ids of the remembered facts that a turn was given."""
    return [fact.id for fact in state.recalled or ()]


def _without_content(request: ChatRequest) -> ChatRequest | None:
    """The request without what the client of a call gave; None: no call, it stays as it is."""
    match request.origin:
        case GivenPrompt():
            origin: Origin = GivenPrompt(past=[])
        case Delegated(is_of_given=True):
            origin = request.origin
        case _:
            return None
    return replace(request, origin=origin, system_prompt="", response_schema=None, stop=[], warnings=[])


def _prepare_message(
    spec: RunSpec, state: TurnState, ending: Ending, producer: Mapping[str, Any]
) -> tuple[Callable[[Connection], None] | None, int]:
    """A write that stores the answer in its conversation, and its bytes; None: the run stores no message."""
    origin, routed = spec.request.origin, spec.request.routed
    if not isinstance(origin, InConversation | Invocation):
        return None, 0
    in_conversation = isinstance(origin, InConversation)
    plan_run_id = spec.run_id if spec.has_plan else UNSET
    verdicts = list(state.verdicts) or UNSET
    content = AssistantContent(
        steps=list(state.steps),
        plan_run_id=plan_run_id,
        verdicts=verdicts,
        memories_used=used_of(state) or UNSET,
    )
    has_replay = any(note.replay for note in state.notes)
    row: dict[str, Any] = {
        "id": spec.message_id,
        "user_id": spec.user_id,
        "conversation_id": spec.subject_id if in_conversation else None,
        "parent_id": origin.message_id,
        "run_id": spec.run_id,
        "role": "assistant",
        "content": _encode(content).decode(),
        "replay": _encode([note.replay for note in state.notes]).decode() if has_replay else None,
        "context": _encode(stored_record(state.context, spec.past)).decode(),
        "token_count": state.usage.completion_tokens,
        "usage": _encode(state.usage).decode(),
        "status": message_status(state, ending),
        "sender_name": acting_agent(routed) if routed else None,
        **producer,
        "created_at": utc_now(),
    }

    def write_message(connection: Connection) -> None:
        connection.execute(_insert, row)
        if in_conversation:
            index_message(connection, row)
            _select_answer(connection, spec, row["created_at"])

    return write_message, len(row["content"]) + len(row["replay"] or "")


def _select_answer(connection: Connection, spec: RunSpec, now: datetime) -> None:
    """Selects the answer as the leaf and releases the conversation; one that is compared is not selected."""
    origin = spec.request.origin
    if isinstance(origin, InConversation) and origin.is_compared:
        release_compared(connection, spec.subject_id, spec.run_id)
        return
    values = {"b_id": spec.subject_id, "b_run": spec.run_id, "leaf_id": spec.message_id}
    connection.execute(_release_conversation, values | {"now": now})


def release_compared(connection: Connection, conversation_id: str, run_id: str) -> bool:
    """Ends a run of a conversation and selects nothing: the active run is then the other one of a comparison,
    if that has not ended. False if the run was not the active one."""
    # Both may end at once: the second one waits here, and then sees the end of the first.
    connection.execute(_lock_conversation, {"b_id": conversation_id})
    values = {"b_id": conversation_id, "b_run": run_id, "now": utc_now()}
    return connection.execute(_release_compared, values).rowcount == 1


def _prepare_record(
    spec: RunSpec, state: TurnState, answer_id: str
) -> tuple[Callable[[Connection], None], int]:
    """A write that keeps with the newest answer what the next prompt leaves out, and its bytes."""
    stored = ""
    if state.context != context_of(spec.past):
        own, todos = spec.past[-1].context, state.context.todos
        if todos is None or todos.is_earlier:
            todos = None if own is None else own.todos
        stored = _encode(replace(stored_record(state.context, spec.past[:-1]), todos=todos)).decode()

    def write_record(connection: Connection) -> None:
        if stored:
            connection.execute(SET_CONTEXT, {"b_id": answer_id, "b_context": stored})
        connection.execute(_release_without_answer, {"b_id": spec.subject_id, "b_run": spec.run_id})

    return write_record, len(stored)


def ending_changes(spec: RunSpec, state: TurnState, ending: Ending) -> dict[str, Any]:
    """The final values of the run's row."""
    return {
        **msgspec.structs.asdict(model_used(spec.request, state)),
        "status": ending.status.value,
        "phase": None,
        "stop_reason": ending.stop_reason.value,
        "error": None if ending.error is None else ending.error.message.replace("\0", "\ufffd"),
        "usage": _encode(state.usage).decode(),
        "cost": state.cost,
        "owner": None,
        "finished_at": utc_now(),
    }


def fail_chat(connection: Connection, run: FailedRun, error: LuxxError) -> RunFailure:
    """Releases the conversation of a chat's run that cannot be driven, and pauses its queue."""
    close_questions(connection, run.id)
    if release_compared(connection, run.subject_id, run.id):
        pause_queue(connection, run.subject_id)
    events = ending_events(run.message_id or "", run.usage, failure_ending(error))
    return RunFailure(events=events, status=RunStatus.FAILED)
