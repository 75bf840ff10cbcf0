"""The ending of a chat run: its last events, its final row and the stored message.

`fail_run` ends or pauses a run of any kind that cannot be driven: its log cannot be read, its message cannot
be stored, or it crashed its process too often. Without it, processes would claim such a run again and again.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace
from sqlalchemy import Connection, bindparam, insert, null, select

from luxx.domain.conversations.models import ConversationRow, MessageRow
from luxx.domain.conversations.search_index import index_message
from luxx.domain.usage.ledger import UsageEntry
from luxx.domain.usage.reserve import charge_orphaned_reserve
from luxx.errors import ContentRefused, LimitReached, LuxxError, ProviderError
from luxx.infra.clock import utc_now
from luxx.infra.store.engine import Store
from luxx.infra.store.tables import table_of
from luxx.runs.cancel import mark_cancelled
from luxx.runs.log.events import LogEntry, LostRun, event_row, record_ending, stamped
from luxx.runs.log.retention import delete_content, discard_call
from luxx.runs.models import RunEventRow, RunRow
from luxx.runs.turn.asking import close_questions
from luxx.runs.turn.request import ChatRequest, GivenPrompt, Origin
from luxx.runs.turn.state import RunSpec, TurnState, model_used
from luxx.wire.event import CallPurpose, CostUpdate, Done, DoneStatus, ErrorEvent, Event
from luxx.wire.message import AssistantContent
from luxx.wire.run import ENDED, Delegated, InConversation, Invocation, RunKind, RunStatus, StopReason
from luxx.wire.turn import CUT_SHORT, WITHHELD, FinishReason, StepStatus, StepType, Usage

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
    """The outcome of a run; `error` is the error that ended it, if any. `is_partial`: the answer is not what
    was demanded, although the model ended it."""

    status: RunStatus
    stop_reason: StopReason
    done: DoneStatus
    error: LuxxError | None = None
    is_partial: bool = False


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


def ending_events(
    message_id: str, usage: Usage, ending: Ending, origin: Mapping[str, Any] | None = None
) -> list[Event]:
    """The last events: `error` if there was one, then `done`, with the `origin` of the message."""
    events: list[Event] = []
    if ending.error is not None:
        retryable = isinstance(ending.error, ProviderError) and ending.error.retryable
        events.append(ErrorEvent(message=ending.error.message, code=ending.error.kind, retryable=retryable))
    done = Done(message_id=message_id, token_count=usage.completion_tokens, usage=usage, status=ending.done)
    events.append(msgspec.structs.replace(done, **(origin or {})))
    return events


FINISHES = {str(reason): reason.value for reason in (*CUT_SHORT, *WITHHELD)} | {"refused": "refusal"}
"""The `finish` of a message for the reasons that differ from a regular end; `refused` is in older logs."""


def finish_of(state: TurnState, ending: Ending) -> str | None:
    """Why the last model call of a turn ended; null if it was cut by a person or a limit of the run."""
    if isinstance(ending.error, ContentRefused):
        return "content_filter"
    if ending.status == RunStatus.FAILED:
        return "error"
    if ending.error is not None or ending.status == RunStatus.CANCELLED or not state.notes:
        return None
    finish = state.notes[-1].finish
    # For a reason that is not known, a warning of the run has the provider's own word.
    return None if finish == FinishReason.UNKNOWN else FINISHES.get(finish, "stop")


def finished(state: TurnState) -> Ending:
    """The ending of a turn whose last completion asks for nothing more; the stop reason says if it was cut
    or refused."""
    finish = FINISHES.get(state.notes[-1].finish) if state.notes else None
    return FINISHED if finish is None else replace(FINISHED, stop_reason=StopReason(finish))


def is_judged(state: TurnState, ending: Ending) -> bool:
    """Whether the text of a finished turn has to follow the demanded schema: not beside calls that the client
    makes, and not where it was refused."""
    last = state.steps[-1] if state.steps else None
    has_calls = last is not None and last.type == StepType.TOOL_CALL and last.is_hosted is not True
    return not has_calls and ending.stop_reason not in (StopReason.REFUSAL, StopReason.CONTENT_FILTER)


def message_origin(request: ChatRequest, state: TurnState, ending: Ending) -> dict[str, Any]:
    """Who produced a message and why it ended: fields of the message and of the event that ends its turn."""
    return {**msgspec.structs.asdict(model_used(request, state)), "finish": finish_of(state, ending)}


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


class Closing(msgspec.Struct, frozen=True, kw_only=True):
    """What the ending of a turn writes: events, values of the run's row, and other rows of `size` bytes."""

    events: list[LogEntry]
    changes: dict[str, Any]
    write: Callable[[Connection], None]
    size: int


def cost_entries(purpose: CallPurpose, cut: UsageEntry | None) -> list[LogEntry]:
    """The entry that counts a completion of this purpose that was cut, if one was."""
    return [] if cut is None else [CostUpdate(usage=cut.usage, cost=cut.cost, purpose=purpose)]


Close = Callable[[TurnState, Ending, UsageEntry | None], Closing]
"""Makes the Closing of a turn. The usage is that of a completion that was cut; the log does not have it."""


def close_chat(spec: RunSpec, state: TurnState, ending: Ending, _cut: UsageEntry | None) -> Closing:
    """The Closing of a chat's turn, which ends the run.

    It stores the answer, selects it as the leaf and releases the conversation. A subagent's answer goes to
    its parent run, so it stores nothing. A call with given messages stores none either, and removes what it
    was given; its log stays until the answer is sent, or not at all if it is cancelled.
    """
    producer = message_origin(spec.request, state, ending)
    save, size = _prepare_message(spec, state, ending, producer)
    changes = ending_changes(spec, state, ending)
    emptied = _without_content(spec.request)
    if emptied is not None:
        changes["request"] = _encode(emptied).decode()
        size = len(changes["request"]) - len(_encode(spec.request))

    def write(connection: Connection) -> None:
        if save is not None:
            save(connection)
        if state.questions:
            close_questions(connection, spec.run_id)
        if emptied is not None and ending.status == RunStatus.CANCELLED:
            delete_content(connection, spec.run_id)

    return Closing(
        events=[*ending_events(spec.message_id or "", state.usage, ending, producer)],
        changes=changes,
        write=write,
        size=size,
    )


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
    origin = spec.request.origin
    if not isinstance(origin, InConversation | Invocation):
        return None, 0
    in_conversation = isinstance(origin, InConversation)
    has_replay = any(note.replay for note in state.notes)
    row: dict[str, Any] = {
        "id": spec.message_id,
        "user_id": spec.user_id,
        "conversation_id": spec.subject_id if in_conversation else None,
        "parent_id": origin.message_id,
        "run_id": spec.run_id,
        "role": "assistant",
        "content": _encode(AssistantContent(steps=list(state.steps))).decode(),
        "replay": _encode([note.replay for note in state.notes]).decode() if has_replay else None,
        "context": _encode(state.context).decode(),
        "token_count": state.usage.completion_tokens,
        "usage": _encode(state.usage).decode(),
        "status": message_status(state, ending),
        **producer,
        "created_at": utc_now(),
    }

    def write_message(connection: Connection) -> None:
        connection.execute(_insert, row)
        if not in_conversation:
            return
        index_message(connection, row)
        connection.execute(
            _release_conversation,
            {
                "b_id": spec.subject_id,
                "b_run": spec.run_id,
                "leaf_id": spec.message_id,
                "now": row["created_at"],
            },
        )

    return write_message, len(row["content"]) + len(row["replay"] or "")


def message_status(state: TurnState, ending: Ending) -> str:
    """The status of the message that a turn with this ending wrote."""
    if ending.status == RunStatus.COMPLETED:
        is_partial = ending.is_partial or ending.stop_reason in INCOMPLETE_REASONS
        return PARTIAL if is_partial else COMPLETE
    has_content = any(step.status != StepStatus.INTERRUPTED for step in state.steps)
    return PARTIAL if has_content or ending.status == RunStatus.CANCELLED else FAILED


# Runs that cannot be driven


class FailedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that cannot be driven, as its row has it."""

    id: str
    subject_id: str
    message_id: str | None
    last_seq: int
    usage: Usage


class RunFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The last events of a run that cannot be driven; paused, if it may be resumed."""

    events: list[Event]
    status: RunStatus


FailureWriter = Callable[[Connection, FailedRun, LuxxError], RunFailure]
"""Writes what the failure of a run of one kind changes in other rows; it closes questions that nobody needs
to answer any more."""


def fail_chat(connection: Connection, run: FailedRun, error: LuxxError) -> RunFailure:
    """Releases the conversation of a chat's run that cannot be driven."""
    close_questions(connection, run.id)
    connection.execute(_conversations.update().where(_conversations.c.run_id == run.id).values(run_id=null()))
    events = ending_events(run.message_id or "", run.usage, failure_ending(error))
    return RunFailure(events=events, status=RunStatus.FAILED)


_runs = table_of(RunRow)
_owned_run = select(
    _runs.c.kind, _runs.c.subject_id, _runs.c.last_seq, _runs.c.message_id, _runs.c.usage
).where(_runs.c.id == bindparam("run_id"), _runs.c.fence == bindparam("fence"))


async def fail_run(
    store: Store, writers: Mapping[RunKind, FailureWriter], run_id: str, fence: int, error: LuxxError
) -> RunStatus | None:
    """Ends or pauses a run that cannot be driven, if it has this fence; its status then.

    Raises LostRun if another process claims it meanwhile.
    """
    return await store.write_rows(lambda connection: _fail_run(connection, writers, run_id, fence, error))


def _fail_run(
    connection: Connection,
    writers: Mapping[RunKind, FailureWriter],
    run_id: str,
    fence: int,
    error: LuxxError,
) -> RunStatus | None:
    row = connection.execute(_owned_run, {"run_id": run_id, "fence": fence}).one_or_none()
    if row is None:
        return None
    run = FailedRun(
        id=run_id,
        subject_id=row.subject_id,
        message_id=row.message_id,
        last_seq=row.last_seq,
        usage=msgspec.json.decode(row.usage, type=Usage),
    )
    failure = writers[RunKind(row.kind)](connection, run, error)
    rows = [
        event_row(seq, stamped(event, run_id)) for seq, event in enumerate(failure.events, run.last_seq + 1)
    ]
    connection.execute(insert(table_of(RunEventRow)), rows)
    has_ended = failure.status in ENDED
    if has_ended:
        record_ending(connection, run_id, fence, failure.status.value)
    ended = connection.execute(
        _runs.update()
        .where(_runs.c.id == run_id, _runs.c.fence == fence)
        .values(
            status=failure.status.value,
            phase=null(),
            stop_reason=StopReason.ERROR.value if has_ended else null(),
            error=error.message,
            last_seq=rows[-1]["seq"],
            owner=null(),
            stored_bytes=_runs.c.stored_bytes + sum(len(row["data"]) for row in rows),
            finished_at=utc_now() if has_ended else null(),
        )
    )
    if ended.rowcount != 1:
        raise LostRun(run_id)
    mark_cancelled(connection, RunRow.parent_run_id == run_id)
    charge_orphaned_reserve(connection, run_id, _runs)
    if has_ended:
        discard_call(connection, run_id)
    return failure.status
