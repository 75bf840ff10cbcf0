"""What follows where calls repeat earlier ones: they are held back, a person is asked, and the answer is
carried out. `repetition.py` judges; docs/agents/loops.md says it to people.

In a run that nobody watches (`when_asked: deny`) the model gets one notice in a turn; at the next repetition
the turn ends.
"""

import time
from collections.abc import Sequence
from itertools import islice
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from luxx.infra.config.schema import LoopsConfig
from luxx.runs.log.events import LogEntry
from luxx.runs.turn.repetition import MAX_PAIRS, NextCall, call_hash, judge, pair_of, repeated_errors
from luxx.runs.turn.state import TurnState, held_calls
from luxx.tools.core import Approved, NeedsAnswer
from luxx.tools.history import CallStatus, Executed
from luxx.tools.output import approval_note
from luxx.wire.event import ProcessStep, QuestionAnswered
from luxx.wire.run import LOOP_DECISION, LoopChoice, LoopKind, Option, Question, QuestionKind
from luxx.wire.tool import ToolResult
from luxx.wire.turn import Step, StepType
from luxx.wire.turn_event import DoomLoopDetected, DoomLoopIntervened

OPTIONS = {
    LoopChoice.STOP: "End this answer; what it has produced is kept",
    LoopChoice.CONTINUE: "Run it; these calls may be repeated for the rest of this answer",
    LoopChoice.CORRECT: "Run it with other arguments, or say in a note what to do instead",
    LoopChoice.SKIP: "Do not run it; its result says so to the model",
}
NOT_RUN = "This call was not run, because it repeats earlier calls that brought nothing new."
SKIPPED = f"{NOT_RUN} A person skipped it. Do something else, or answer with what is known."
NOTICE = f"{NOT_RUN} Do something else, or answer with what is known. If calls repeat again, the run ends."
FAILED_AGAIN = (
    "This tool has failed {times} times in the same way. Do something else, or say why it cannot be done."
)


class EndedByLoop(Exception):
    """The turn ends, because the model repeats itself. `entries` belong before the end."""

    def __init__(self, entries: Sequence[LogEntry] = ()) -> None:
        super().__init__()
        self.entries = list(entries)


def detect(state: TurnState, calls: Sequence[Step], limits: LoopsConfig) -> DoomLoopDetected | None:
    """The event on those of the calls of a completion that repeat earlier ones; None: none does."""
    new = [
        NextCall(str(call.id_ref), str(call.name), call_hash(str(call.name), str(call.arguments or "")))
        for call in calls
    ]
    found = judge(state.loops.pairs, new, time.time(), limits, state.loops.freed)
    if found is None:
        return None
    return DoomLoopDetected(
        kind=found.kind, tool=found.tool, call_ids=found.call_ids, times=found.times, held=list(found.held)
    )


def question_on(state: TurnState, detected: DoomLoopDetected) -> tuple[Step, NeedsAnswer]:
    """The question to a person about the calls that are held back, with the first of them, which asks."""
    call = held_calls(state)[0]
    choices = [one for one in LoopChoice if one != LoopChoice.SKIP or detected.kind != LoopKind.STALL]
    question = Question(
        kind=QuestionKind.DECISION,
        decision_type=LOOP_DECISION,
        prompt=_prompt(state, detected),
        options=[Option(label=choice.value, description=OPTIONS[choice]) for choice in choices],
        required=True,
        tool=str(call.name),
        arguments=str(call.arguments or "{}"),
    )
    return call, NeedsAnswer(question)


def _prompt(state: TurnState, detected: DoomLoopDetected) -> str:
    earlier = detected.times - 1
    match detected.kind:
        case LoopKind.CALL:
            said = (
                f"{detected.tool} was called {earlier} times with the same arguments and gave the same result"
            )
        case LoopKind.CYCLE:
            repeated = [one for one in detected.call_ids if one not in detected.held]
            block = set(repeated[: len(repeated) // earlier])
            names = [
                str(step.name)
                for step in state.steps
                if step.type == StepType.TOOL_CALL and step.id_ref in block
            ]
            said = f"The calls {', '.join(names)} were made {earlier} times with the same results"
        case _:
            said = f"The last {detected.times} calls brought nothing new"
    return f"{said}. How is the run to go on?"


def answer_on(state: TurnState) -> QuestionAnswered | None:
    """The answer of a person about the calls that are held back."""
    detected = state.loops.detected
    asked = () if detected is None else detected.held
    for record in reversed(state.questions):
        if record.question.decision_type == LOOP_DECISION and record.question.call_id in asked:
            return record.answer
    return None


def intervention(detected: DoomLoopDetected, answer: QuestionAnswered) -> DoomLoopIntervened:
    """The event of an answer: words of a person's own are a note to the model."""
    said, note = str(answer.answer), answer.note
    if said not in list(LoopChoice):
        note = said if note is UNSET else f"{said}\n{note}"
        said = LoopChoice.CORRECT.value
    return DoomLoopIntervened(choice=LoopChoice(said), call_ids=list(detected.held), note=note)


def results_of(
    held: Sequence[Step], choice: DoomLoopIntervened | None, *, runs_first: bool = False
) -> list[tuple[Step, Executed]]:
    """The results of the calls that are not run: after a person's choice, or because nobody can be asked.

    `runs_first`: the first of them is run, with the arguments that a person gave.
    """
    note = None if choice is None or choice.note is UNSET else str(choice.note)
    if choice is None:
        said, status = NOTICE, CallStatus.FAILED
    elif choice.choice == LoopChoice.CORRECT:
        said = f"{NOT_RUN} A person says: {note}" if note else NOT_RUN
        status = CallStatus.REJECTED
    else:
        said, status = f"{SKIPPED} They say: {note}" if note else SKIPPED, CallStatus.REJECTED
    return [
        (
            call,
            Executed(
                call_id=str(call.id_ref),
                name=str(call.name),
                result=ToolResult.fail(said),
                duration_ms=0,
                status=status,
            ),
        )
        for call in held[1 if runs_first else 0 :]
    ]


def corrected(state: TurnState, call: Step) -> Step:
    """The call with the arguments that a person gave for it, if its question was answered with some."""
    answer = _correction(state, call)
    return call if answer is None else replace(call, arguments=answer.arguments)


def with_correction(state: TurnState, call: Step, executed: Executed) -> Executed:
    """The result of a call that was run with a person's arguments, with a note to the model that says so."""
    answer = _correction(state, call)
    if answer is None:
        return executed
    arguments: dict[str, Any] = msgspec.json.decode(str(answer.arguments))
    note = answer.note if isinstance(answer.note, str) else None
    by_person = approval_note(Approved(arguments=arguments, is_edited=True, note=note))
    notes = [one for one in (by_person, executed.note) if one]
    return replace(executed, is_corrected=True, note="\n".join(notes))


def _correction(state: TurnState, call: Step) -> QuestionAnswered | None:
    detected = state.loops.detected
    if detected is None or call.id_ref not in detected.held[:1]:
        return None
    answer = answer_on(state)
    is_given = answer is not None and answer.arguments is not UNSET
    return answer if is_given else None


def with_failure_notes(state: TurnState, entries: Sequence[LogEntry]) -> list[LogEntry]:
    """The entries of results, with a note on those that are the same failure again and again."""
    results = (
        (at, entry.step)
        for at, entry in enumerate(entries)
        if isinstance(entry, ProcessStep) and entry.step.type == StepType.TOOL_RESULT
    )
    failed = dict(islice(((at, step) for at, step in results if step.success is not True), MAX_PAIRS))
    if not failed:
        return list(entries)
    calls = {step.id_ref: step for step in state.steps if step.type == StepType.TOOL_CALL}
    new = [pair_of(calls[step.id_ref], step, 0.0, state.iterations) for step in failed.values()]
    found = repeated_errors(state.loops.pairs, new)
    noted: list[LogEntry] = []
    for at, entry in enumerate(entries):
        step = failed.get(at)
        repetition = found.get(str(step.id_ref)) if step is not None else None
        if step is None or repetition is None:
            noted.append(entry)
            continue
        notes = [str(step.note)] if isinstance(step.note, str) else []
        note = "\n".join([*notes, FAILED_AGAIN.format(times=repetition.times)])
        noted.append(ProcessStep(step=replace(step, note=note)))
        kind, ids = repetition.kind, repetition.call_ids
        noted.append(DoomLoopDetected(kind=kind, tool=repetition.tool, call_ids=ids, times=repetition.times))
    return noted
