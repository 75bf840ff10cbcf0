"""The ending of a chat run: its last events, its final row and the stored message.

`fail_run` ends a run that cannot be driven: its log cannot be read, its message cannot be stored, or it
crashed its process too often. Without it, processes would claim such a run again and again.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from sqlalchemy import Connection, bindparam, insert, null, select

from luxx.domain.conversations.models import ConversationRow, MessageRow
from luxx.domain.conversations.search import index_message
from luxx.domain.usage.reserve import charge_orphaned_reserve
from luxx.errors import LimitReached, LuxxError, ProviderError
from luxx.infra.clock import utc_now
from luxx.infra.store.tables import table_of
from luxx.runs.engine.cancel import mark_cancelled
from luxx.runs.log.events import LostRun, event_row, stamped
from luxx.runs.models import RunEventRow, RunRow
from luxx.runs.question_rows import close_questions
from luxx.runs.turn.state import RunSpec, TurnState
from luxx.wire.delta import Usage
from luxx.wire.event import Done, DoneStatus, ErrorEvent, Event
from luxx.wire.message import AssistantContent
from luxx.wire.run import RunStatus, StopReason
from luxx.wire.step import StepStatus

_insert = insert(table_of(MessageRow))
_conversations = table_of(ConversationRow)
_release_conversation = (
    _conversations.update()
    .where(_conversations.c.id == bindparam("b_id"), _conversations.c.run_id == bindparam("b_run"))
    .values(run_id=null(), selected_leaf_id=bindparam("leaf_id"), updated_at=bindparam("now"))
)
_encode = msgspec.json.Encoder().encode
COMPLETE, PARTIAL, FAILED = "complete", "partial", "failed"

INCOMPLETE_REASONS = frozenset({StopReason.TOKENS, StopReason.COST, StopReason.TIME})
"""Stop reasons of a completed run whose answer is incomplete."""


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a run; `error` is the error that ended it, if any."""

    status: RunStatus
    stop_reason: StopReason
    done: DoneStatus
    error: LuxxError | None = None


FINISHED = Ending(status=RunStatus.COMPLETED, stop_reason=StopReason.FINISHED, done=DoneStatus.COMPLETED)
OUT_OF_ITERATIONS = Ending(
    status=RunStatus.COMPLETED, stop_reason=StopReason.MAX_ITERATIONS, done=DoneStatus.MAX_ITERATIONS_REACHED
)
CANCELLED = Ending(status=RunStatus.CANCELLED, stop_reason=StopReason.CANCELLED, done=DoneStatus.STOPPED)


def failure_ending(error: LuxxError) -> Ending:
    """The ending of a run that failed with `error`."""
    return Ending(status=RunStatus.FAILED, stop_reason=StopReason.ERROR, done=DoneStatus.FAILED, error=error)


def ending_for(error: LuxxError) -> Ending:
    """The ending after an error: failed or, after LimitReached, completed with the output so far."""
    if not isinstance(error, LimitReached):
        return failure_ending(error)
    reason = StopReason(error.stop_reason)
    return Ending(status=RunStatus.COMPLETED, stop_reason=reason, done=DoneStatus.STOPPED, error=error)


def ending_events(message_id: str, usage: Usage, ending: Ending) -> list[Event]:
    """The last events: `error` if there was one, then `done`."""
    events: list[Event] = []
    if ending.error is not None:
        retryable = isinstance(ending.error, ProviderError) and ending.error.retryable
        events.append(ErrorEvent(message=ending.error.message, code=ending.error.kind, retryable=retryable))
    events.append(
        Done(message_id=message_id, token_count=usage.completion_tokens, usage=usage, status=ending.done)
    )
    return events


def ending_changes(state: TurnState, ending: Ending) -> dict[str, Any]:
    """The final values of the run's row."""
    return {
        "status": ending.status.value,
        "phase": None,
        "stop_reason": ending.stop_reason.value,
        "error": None if ending.error is None else ending.error.message.replace("\0", "\ufffd"),
        "usage": _encode(state.usage).decode(),
        "cost": state.cost,
        "owner": None,
        "finished_at": utc_now(),
    }


def prepare_message(
    spec: RunSpec, state: TurnState, ending: Ending
) -> tuple[Callable[[Connection], None], int]:
    """A write that stores the answer, selects it as the leaf and releases the conversation; and its bytes.

    A subagent's answer goes to its parent run, so nothing is stored.
    """
    if spec.request.delegated is not None:
        return lambda _connection: None, 0
    has_replay = any(note.replay for note in state.notes)
    row: dict[str, Any] = {
        "id": spec.message_id,
        "user_id": spec.user_id,
        "conversation_id": spec.conversation_id,
        "parent_id": spec.request.parent_id,
        "run_id": spec.run_id,
        "role": "assistant",
        "content": _encode(AssistantContent(steps=list(state.steps))).decode(),
        "replay": _encode([note.replay for note in state.notes]).decode() if has_replay else None,
        "token_count": state.usage.completion_tokens,
        "usage": _encode(state.usage).decode(),
        "status": _message_status(state, ending),
        "created_at": utc_now(),
    }

    def write_message(connection: Connection) -> None:
        connection.execute(_insert, row)
        index_message(connection, row)
        connection.execute(
            _release_conversation,
            {
                "b_id": spec.conversation_id,
                "b_run": spec.run_id,
                "leaf_id": spec.message_id,
                "now": row["created_at"],
            },
        )

    return write_message, len(row["content"]) + len(row["replay"] or "")


def _message_status(state: TurnState, ending: Ending) -> str:
    if ending.status == RunStatus.COMPLETED:
        return PARTIAL if ending.stop_reason in INCOMPLETE_REASONS else COMPLETE
    has_content = any(step.status != StepStatus.INTERRUPTED for step in state.steps)
    return PARTIAL if has_content or ending.status == RunStatus.CANCELLED else FAILED


_runs = table_of(RunRow)
_owned_run = select(_runs.c.last_seq, _runs.c.message_id, _runs.c.usage).where(
    _runs.c.id == bindparam("run_id"), _runs.c.fence == bindparam("fence")
)


def fail_run(connection: Connection, run_id: str, fence: int, *, error: str, kind: str) -> None:
    """Ends the run with the events `error` and `done` and releases its conversation, if it has this fence.

    Raises LostRun if another process claims it meanwhile.
    """
    run = connection.execute(_owned_run, {"run_id": run_id, "fence": fence}).one_or_none()
    if run is None:
        return
    ending = failure_ending(LuxxError(error, kind=kind))
    events = ending_events(run.message_id or "", msgspec.json.decode(run.usage, type=Usage), ending)
    rows = [event_row(seq, stamped(event, run_id)) for seq, event in enumerate(events, run.last_seq + 1)]
    connection.execute(insert(table_of(RunEventRow)), rows)
    ended = connection.execute(
        _runs.update()
        .where(_runs.c.id == run_id, _runs.c.fence == fence)
        .values(
            status=RunStatus.FAILED.value,
            phase=null(),
            stop_reason=StopReason.ERROR.value,
            error=error,
            last_seq=rows[-1]["seq"],
            owner=null(),
            stored_bytes=_runs.c.stored_bytes + sum(len(row["data"]) for row in rows),
            finished_at=utc_now(),
        )
    )
    if ended.rowcount != 1:
        raise LostRun(run_id)
    close_questions(connection, run_id)
    mark_cancelled(connection, RunRow.parent_run_id == run_id)
    connection.execute(_conversations.update().where(_conversations.c.run_id == run_id).values(run_id=null()))
    charge_orphaned_reserve(connection, run_id, _runs)
