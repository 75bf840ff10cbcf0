"""Random logs of chat runs: any text and calls of a model, tools with every outcome, questions and
crashes.
"""

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from luxx.runs.turn.state import (
    NextAction,
    TurnState,
    decide,
    fold,
    open_calls,
    open_questions,
    unfinished_steps,
)
from luxx.wire.event import (
    CompletionNote,
    CostUpdate,
    Done,
    DoneStatus,
    Event,
    LoggedEvent,
    ProcessStep,
    QuestionAnswered,
    QuestionAsked,
)
from luxx.wire.run import AnsweredBy, QuestionKind
from luxx.wire.turn import Step, StepStatus, StepType, Usage, step_id
from luxx.wire.turn_event import Retrying, Warning

LogEntry = Event | tuple[Event, CompletionNote]
Batch = list[LoggedEvent]
"""The events that one transaction wrote: after a crash the log has all of them or none."""

WORDS = st.text(alphabet="abc äß🙂\n", min_size=1, max_size=6)
MAX_ITERATIONS = 4


class Log:
    """A log as the driver writes it, transaction by transaction."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.state = TurnState()

    def append(self, entries: Sequence[LogEntry]) -> None:
        batch = [logged_event(self.state.seq + at, entry) for at, entry in enumerate(entries, 1)]
        self.batches.append(batch)
        self.state = fold(batch, self.state)

    @property
    def events(self) -> list[LoggedEvent]:
        return [event for batch in self.batches for event in batch]


def logged_event(seq: int, entry: LogEntry) -> LoggedEvent:
    if isinstance(entry, tuple):
        return LoggedEvent(seq=seq, event=entry[0], note=entry[1])
    return LoggedEvent(seq=seq, event=entry)


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """A log up to the end of its run, or up to a crash that has not been recovered."""
    log = Log()
    for _ in range(draw(st.integers(1, 25))):
        match decide(log.state):
            case NextAction.NOTHING:
                return log
            case NextAction.REPAIR:
                log.append(
                    [with_status(step, StepStatus.INTERRUPTED) for step in unfinished_steps(log.state)]
                )
            case NextAction.CALL_MODEL:
                call_model(draw, log)
            case NextAction.RUN_TOOLS:
                run_tools(draw, log)
            case NextAction.WAIT:
                answer_some(draw, log)
            case NextAction.FINISH:
                done_event = Done(
                    message_id="m", token_count=0, usage=log.state.usage, status=DoneStatus.COMPLETED
                )
                log.append([done_event])
    return log


def call_model(draw: st.DrawFn, log: Log) -> None:
    """Logs a model call, which may be retried, and may be interrupted before its end is logged."""
    if draw(st.booleans()):
        log.append(
            [draw(st.sampled_from([Warning(message="w"), Retrying(attempt=1, delay_ms=5, reason="r")]))]
        )
    first = len(log.state.steps)
    steps: list[Step] = []
    types = draw(st.lists(st.sampled_from([StepType.THINKING, StepType.TEXT]), max_size=3))
    for type_ in types:
        at = first + len(steps)
        steps.append(Step(id=step_id(at), index=at, type=type_, content=draw(WORDS)))
    for _ in range(draw(st.integers(0, 3)) if log.state.iterations < MAX_ITERATIONS else 0):
        steps.append(draw_call(draw, first + len(steps), first))
    early = draw(st.integers(0, len(types)))
    for step in steps[:early]:
        log.append([ProcessStep(step=step)])
    if draw(st.integers(0, 3)) == 0:
        return  # The process died here.
    usage = Usage(prompt_tokens=1, completion_tokens=draw(st.integers(0, 9)))
    note = CompletionNote(finish="stop", usage=usage, replay=draw(replays()))
    end = (CostUpdate(usage=log.state.usage + usage), note)
    entries: list[LogEntry] = [*(ProcessStep(step=step) for step in steps[early:]), end]
    after = fold([logged_event(0, entry) for entry in entries], log.state)
    if open_calls(after) and draw(st.booleans()):
        entries += [with_status(call, StepStatus.RUNNING) for call in open_calls(after)]
    log.append(entries)


def draw_call(draw: st.DrawFn, at: int, first: int) -> Step:
    """The id is unique in its completion; some models number their calls anew in every completion."""
    call_id = f"call_{at - first}" if draw(st.booleans()) else f"call_{at}_of_all"
    return Step(
        id=step_id(at),
        index=at,
        type=StepType.TOOL_CALL,
        name=draw(st.sampled_from(["file_read", "web_fetch"])),
        arguments=draw(st.sampled_from(["{}", '{"path": "a"}', "{broken"])),
        id_ref=call_id,
        status=StepStatus.PENDING,
    )


def run_tools(draw: st.DrawFn, log: Log) -> None:
    """Logs results of some open calls, in any order."""
    calls = open_calls(log.state)
    if any(call.status == StepStatus.PENDING for call in calls):
        log.append([with_status(call, StepStatus.RUNNING) for call in calls])
        if draw(st.integers(0, 4)) == 0:
            return  # The process died here.
    if draw(st.integers(0, 3)) == 0:
        ask(draw, log)
        return
    calls = draw(st.permutations(open_calls(log.state)))[: draw(st.integers(1, len(calls)))]
    entries: list[LogEntry] = []
    for at, call in enumerate(calls, len(log.state.steps)):
        status = draw(st.sampled_from([StepStatus.DONE, StepStatus.ERROR, StepStatus.INTERRUPTED]))
        is_good = status == StepStatus.DONE
        result = Step(
            id=step_id(at),
            index=at,
            type=StepType.TOOL_RESULT,
            content=f"result of {call.id}",
            name=call.name,
            id_ref=call.id_ref,
            success=is_good,
            status=StepStatus.DONE if is_good else StepStatus.ERROR,
        )
        entries += [with_status(call, status), ProcessStep(step=result)]
    log.append(entries)


def ask(draw: st.DrawFn, log: Log) -> None:
    """Logs a question for some open calls."""
    entries: list[LogEntry] = []
    for call in open_calls(log.state)[: draw(st.integers(1, 3))]:
        entries += [
            with_status(call, StepStatus.PENDING),
            make_question(f"q{len(log.state.questions)}-{call.index}", call),
        ]
    log.append(entries)


def make_question(question_id: str, call: Step) -> QuestionAsked:
    return QuestionAsked(
        question_id=question_id,
        call_id=str(call.id_ref),
        kind=QuestionKind.CLARIFICATION,
        prompt="which?",
        options=[],
        multiple=False,
        required=False,
        timeout_seconds=60,
    )


def answer_some(draw: st.DrawFn, log: Log) -> None:
    """Logs the answers of some questions, each in a transaction of its own."""
    for question in open_questions(log.state)[: draw(st.integers(1, 3))]:
        log.append([make_answer(question)])


def make_answer(question: QuestionAsked) -> QuestionAnswered:
    return QuestionAnswered(question_id=question.question_id, answer="this", answered_by=AnsweredBy.PERSON)


def with_status(step: Step, status: StepStatus) -> ProcessStep:
    return ProcessStep(step=replace(step, status=status, duration_ms=UNSET))


def replays() -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.just("signature"), st.text(max_size=3), max_size=1)
