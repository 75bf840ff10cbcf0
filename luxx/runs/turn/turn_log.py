"""The log of a turn for the process that drives its run, with the state that follows from it; and the entries
of its steps, with the sentences for calls that are not run and for texts that are missing.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import UNSET
from sqlalchemy import Connection

from luxx.runs.log.events import LogEntry
from luxx.runs.models import CALL_ID_LENGTH
from luxx.runs.turn.state import TurnState, fold, open_calls
from luxx.tools.history import CallStatus, Executed
from luxx.wire.event import LoggedEvent, ProcessStep
from luxx.wire.run import RunPhase
from luxx.wire.tool import ToolCall, ToolResult
from luxx.wire.turn import CUT_SHORT, CallOutcome, FinishReason, Step, StepStatus, StepType, step_id


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
