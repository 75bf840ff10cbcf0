"""The log of a turn for the process that drives its run, with the state that follows from it; the entries of
its steps, with the sentences for calls that are not run and for texts that are missing; and its ending.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import UNSET
from msgspec.structs import replace
from sqlalchemy import Connection

from luxx.domain.context.prompt import context_of
from luxx.domain.usage.ledger import UsageEntry
from luxx.errors import ContentRefused, LimitReached, LuxxError, ProviderError
from luxx.runs.log.events import LogEntry
from luxx.runs.models import CALL_ID_LENGTH
from luxx.runs.turn.state import ChatRequest, RunSpec, TurnState, fold, model_used, open_calls
from luxx.tools.history import CallStatus, Executed
from luxx.wire.event import (
    CallPurpose,
    CostUpdate,
    Done,
    DoneStatus,
    ErrorEvent,
    Event,
    LoggedEvent,
    ProcessStep,
)
from luxx.wire.run import Delegated, InConversation, RunPhase, RunStatus, StopReason
from luxx.wire.tool import ToolCall, ToolResult
from luxx.wire.turn import (
    CUT_SHORT,
    WITHHELD,
    CallOutcome,
    FinishReason,
    Step,
    StepStatus,
    StepType,
    Usage,
    step_id,
)


def initial_state(spec: RunSpec) -> TurnState:
    """The state before the first event; a subagent starts with its parent's tool limits."""
    narrowed = spec.request.origin.narrowed if isinstance(spec.request.origin, Delegated) else ()
    return TurnState(context=context_of(spec.past), narrowed=narrowed)


class LogWriter(Protocol):
    """Where a turn writes: the log of its run, or its part of a log that several turns share.

    `append` and `preview` are those of RunLog. `used_call_ids`: the calls of all turns that share the log;
    None: only this turn writes. `calls_of_other_turns`: how many calls they have made.
    """

    @property
    def used_call_ids(self) -> set[str] | None: ...

    def calls_of_other_turns(self) -> int: ...

    async def append(
        self,
        entries: Sequence[LogEntry],
        *,
        changes: Mapping[str, Any] | None = None,
        extra_write: Callable[[Connection], None] | None = None,
        extra_bytes: int = 0,
    ) -> list[LoggedEvent]: ...

    def preview(self, entries: Sequence[LogEntry]) -> list[LoggedEvent]: ...


class TurnLog:
    """The log and state of a turn, for the process that drives its run. `state` matches the log on disk."""

    def __init__(self, log: LogWriter, state: TurnState) -> None:
        self._log = log
        self.state = state
        self.calls_of_other_turns = log.calls_of_other_turns

    async def append(
        self,
        entries: Sequence[LogEntry],
        *,
        phase: RunPhase | None = None,
        changes: dict[str, Any] | None = None,
        extra_write: Callable[[Connection], None] | None = None,
        extra_bytes: int = 0,
    ) -> None:
        """Writes the entries as `RunLog.append` does, and updates `state`. Raises LostRun."""
        values = {"phase": phase.value, **(changes or {})} if phase is not None else changes
        logged = await self._log.append(
            entries, changes=values, extra_write=extra_write, extra_bytes=extra_bytes
        )
        self.state = fold(logged, self.state)

    def used_call_ids(self) -> set[str]:
        """The ids of the calls that the run has made; the caller adds those that it makes."""
        if self._log.used_call_ids is not None:
            return self._log.used_call_ids
        return {str(step.id_ref) for step in self.state.steps if step.type == StepType.TOOL_CALL}

    def add(self, logged: list[LoggedEvent]) -> None:
        """Adds events of the turn that were logged by other means."""
        self.state = fold(logged, self.state)

    def state_after(self, entries: Sequence[LogEntry]) -> TurnState:
        """The state that appending these entries would give; writes nothing."""
        return fold(self._log.preview(entries), self.state)


_encode = msgspec.json.Encoder().encode

NOTICES = {
    FinishReason.REFUSAL: "The model declined to answer this, and gave no reason.",
    FinishReason.CONTENT_FILTER: "A content filter of the provider withheld the answer, and gave no reason.",
    FinishReason.LENGTH: (
        "The model reached its limit of tokens before it wrote any text. Raise max_tokens, or ask for less."
    ),
    FinishReason.CONTEXT_FULL: (
        "The context window of the model was full before it wrote any text. Send less, or begin a new "
        "conversation."
    ),
    FinishReason.LOOP: "The model repeated itself before it wrote any text, so its answer was ended.",
    FinishReason.STOP: "The model ended its answer without any text.",
    FinishReason.UNKNOWN: "The model ended its answer without any text.",
}
"""The `notice` of a completion without text. Where a message has other text, a regular end needs none."""

REGULAR = frozenset({FinishReason.STOP, FinishReason.UNKNOWN})

INTERRUPTED = ToolResult.fail(
    "The server stopped while this tool was running, so it is not known whether it took effect. "
    "It was not run again."
)

CUT = ToolResult.fail(
    "This call was not run: your answer reached its limit of tokens before the arguments were complete. Make "
    "the call again with shorter arguments, or in several parts."
)

NOT_RUN = ToolResult.fail(
    "This call was not run: the run has reached its limit of tool calls. Answer with what is known."
)

LAST_ITERATION = (
    "This run has reached its limit of model calls; the next model call asks for the final answer. "
    "Send another message to continue, or ask an administrator to raise the limit."
)


def refused_calls(state: TurnState, excess: Sequence[Step]) -> dict[int, ToolResult]:
    """The results of the open calls that are not run, by index: those in `excess` of a limit, and those whose
    arguments did not arrive whole because the completion was cut."""
    refused = {call.index: NOT_RUN for call in excess}
    if state.notes and state.notes[-1].finish in CUT_SHORT:
        refused |= {call.index: CUT for call in open_calls(state) if not _has_whole_arguments(call)}
    return refused


def refused_entries(state: TurnState, refused: Mapping[int, ToolResult]) -> list[LogEntry]:
    """The entries of calls that are not run, with their results."""
    entries: list[LogEntry] = []
    for index, at in enumerate(refused, len(state.steps)):
        call = state.steps[at]
        entries += [status_entry(call, StepStatus.ERROR), result_entry(call, index, refused[at])]
    return entries


def _has_whole_arguments(call: Step) -> bool:
    try:
        return isinstance(msgspec.json.decode(str(call.arguments)), dict)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False


def full_output_row(run_id: str, call_id: str, output: str) -> dict[str, str]:
    """The row of the full output of a shortened result; NUL is replaced and the id cut for PostgreSQL."""
    return {"run_id": run_id, "call_id": call_id[:CALL_ID_LENGTH], "output": output.replace("\0", "\ufffd")}


def closed_entries(steps: list[Step]) -> list[LogEntry]:
    """The entries that log closed steps."""
    return [ProcessStep(step=step) for step in steps]


def status_entry(step: Step, status: StepStatus, duration_ms: int | None = None) -> ProcessStep:
    """The entry that gives a logged step another status."""
    duration = UNSET if duration_ms is None else duration_ms
    return ProcessStep(step=msgspec.structs.replace(step, status=status, duration_ms=duration))


def call_of(step: Step) -> ToolCall:
    """The tool call of a step."""
    return ToolCall(call_id=str(step.id_ref), name=str(step.name), arguments=str(step.arguments or "{}"))


def interrupted_entries(state: TurnState, lost: Sequence[Step]) -> list[LogEntry]:
    """The entries of calls that ran when a process died, with their results."""
    entries: list[LogEntry] = []
    for index, call in enumerate(lost, len(state.steps)):
        entries += [status_entry(call, StepStatus.INTERRUPTED), result_entry(call, index, INTERRUPTED)]
    return entries


def executed_entries(state: TurnState, results: Sequence[tuple[Step, Executed]]) -> list[LogEntry]:
    """The entries of executed calls, with their results."""
    entries: list[LogEntry] = []
    for index, (call, executed) in enumerate(results, len(state.steps)):
        status = StepStatus.DONE if executed.result.success else StepStatus.ERROR
        entries += [status_entry(call, status, executed.duration_ms), executed_entry(call, index, executed)]
    return entries


def executed_entry(call: Step, index: int, executed: Executed) -> ProcessStep:
    """The entry of the result of an executed or refused call."""
    entry = result_entry(call, index, executed.result, executed.duration_ms)
    outcome = CallOutcome.CORRECTED if executed.is_corrected else UNSET
    if executed.status in (CallStatus.DENIED, CallStatus.REJECTED):
        outcome = CallOutcome(executed.status.value)
    step = msgspec.structs.replace(
        entry.step,
        outcome=outcome,
        note=UNSET if executed.note is None else executed.note,
        is_untrusted=True if executed.is_untrusted else UNSET,
        files=list(executed.files) or UNSET,
        calls=executed.calls or UNSET,
    )
    return ProcessStep(step=step)


def result_entry(call: Step, index: int, result: ToolResult, duration_ms: int | None = None) -> ProcessStep:
    """The entry of a call's result, as the step of this index."""
    return ProcessStep(
        step=Step(
            id=step_id(index),
            index=index,
            type=StepType.TOOL_RESULT,
            content=_encode(result).decode(),
            name=call.name,
            id_ref=call.id_ref,
            success=result.success,
            status=StepStatus.DONE if result.success else StepStatus.ERROR,
            duration_ms=UNSET if duration_ms is None else duration_ms,
        )
    )


COMPLETE, PARTIAL, FAILED = "complete", "partial", "failed"

INCOMPLETE_REASONS = frozenset({StopReason.TOKENS, StopReason.COST, StopReason.TIME, StopReason.DOOM_LOOP})
"""Stop reasons of a completed run whose answer is incomplete."""


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a run; `error` is the error that ended it, if any. `is_partial`: the answer is not what
    was demanded, although the model ended it. `takes_steers`: the turn goes on instead if a person steers
    it. `takes_todos`: a change of the to-do list that a person made meanwhile is logged before it."""

    status: RunStatus
    stop_reason: StopReason
    done: DoneStatus
    error: LuxxError | None = None
    is_partial: bool = False
    takes_steers: bool = False
    takes_todos: bool = False


FINISHED = Ending(status=RunStatus.COMPLETED, stop_reason=StopReason.FINISHED, done=DoneStatus.COMPLETED)
OUT_OF_ITERATIONS = Ending(
    status=RunStatus.COMPLETED, stop_reason=StopReason.MAX_ITERATIONS, done=DoneStatus.MAX_ITERATIONS_REACHED
)
DOOM_LOOP = Ending(status=RunStatus.COMPLETED, stop_reason=StopReason.DOOM_LOOP, done=DoneStatus.STOPPED)
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
    message_id: str, usage: Usage, ending: Ending, origin: Mapping[str, Any] | None = None, todos: int = 0
) -> list[Event]:
    """The last events: `error` if there was one, then `done`, with the `origin` of the message and so many
    open `todos`."""
    events: list[Event] = []
    if ending.error is not None:
        retryable = isinstance(ending.error, ProviderError) and ending.error.retryable
        events.append(ErrorEvent(message=ending.error.message, code=ending.error.kind, retryable=retryable))
    done = Done(
        message_id=message_id,
        token_count=usage.completion_tokens,
        usage=usage,
        status=ending.done,
        stop_reason=ending.stop_reason.value,
        open_todos=todos,
    )
    events.append(msgspec.structs.replace(done, **(origin or {})))
    return events


FINISHES = {str(reason): reason.value for reason in (*CUT_SHORT, *WITHHELD)} | {"refused": "refusal"}
"""The `finish` of a message for the reasons that differ from a regular end; `refused` is in older logs."""


def finish_of(state: TurnState, ending: Ending) -> str | None:
    """Why the last model call of a turn ended; null if it was cut by a person or a limit of the run."""
    if isinstance(ending.error, ContentRefused):
        return "content_filter"
    if ending.stop_reason == StopReason.DOOM_LOOP:
        return FinishReason.LOOP.value
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
    if state.notes and state.notes[-1].finish == FinishReason.LOOP:
        return DOOM_LOOP
    finish = FINISHES.get(state.notes[-1].finish) if state.notes else None
    return FINISHED if finish is None else replace(FINISHED, stop_reason=StopReason(finish))


_NOT_JUDGED = (StopReason.REFUSAL, StopReason.CONTENT_FILTER, StopReason.DOOM_LOOP)


def is_judged(state: TurnState, ending: Ending) -> bool:
    """Whether the text of a finished turn has to follow the demanded schema: not beside calls that the client
    makes, and not where it was refused or cut as endless."""
    last = state.steps[-1] if state.steps else None
    has_calls = last is not None and last.type == StepType.TOOL_CALL and last.is_hosted is not True
    return not has_calls and ending.stop_reason not in _NOT_JUDGED


def may_be_steered(spec: RunSpec, state: TurnState) -> bool:
    """Whether a message of a person may follow now: in the turn that answers in a conversation, and not while
    a completion pauses."""
    return isinstance(spec.request.origin, InConversation) and not spec.turn.key and not is_paused(state)


def is_paused(state: TurnState) -> bool:
    """Whether the last completion paused: nothing may stand between it and the one that continues it."""
    return bool(state.notes) and state.notes[-1].finish == FinishReason.PAUSED


def may_call(state: TurnState, most: int) -> bool:
    """Whether the limit of model calls allows another one: one more where a person steered after the last."""
    is_steered = bool(state.steps) and state.steps[-1].type == StepType.USER
    return state.iterations <= most + is_steered


def message_origin(request: ChatRequest, state: TurnState, ending: Ending) -> dict[str, Any]:
    """Who produced a message and why it ended: fields of the message and of the event that ends its turn."""
    return {**msgspec.structs.asdict(model_used(request, state)), "finish": finish_of(state, ending)}


class Closing(msgspec.Struct, frozen=True, kw_only=True):
    """What the ending of a turn writes: events, values of the run's row, and other rows of `size` bytes."""

    events: list[LogEntry]
    changes: dict[str, Any] = {}
    write: Callable[[Connection], None] = lambda _connection: None
    size: int = 0


def cost_entries(purpose: CallPurpose, cut: UsageEntry | None) -> list[LogEntry]:
    """The entry that counts a completion of this purpose that was cut, if one was."""
    return [] if cut is None else [CostUpdate(usage=cut.usage, cost=cut.cost, purpose=purpose)]


Close = Callable[[TurnState, Ending, UsageEntry | None], Closing]
"""Makes the Closing of a turn. The usage is that of a completion that was cut; the log does not have it."""


def message_status(state: TurnState, ending: Ending) -> str:
    """The status of the message that a turn with this ending wrote."""
    if ending.status == RunStatus.COMPLETED:
        is_partial = ending.is_partial or ending.stop_reason in INCOMPLETE_REASONS
        return PARTIAL if is_partial else COMPLETE
    has_content = any(step.status != StepStatus.INTERRUPTED for step in state.steps)
    return PARTIAL if has_content or ending.status == RunStatus.CANCELLED else FAILED
