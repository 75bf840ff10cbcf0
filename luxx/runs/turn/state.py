"""The state of a chat run, folded from its log. Pure: it decides what comes next, and does nothing.

Fold the same log and you get the same state, wherever it was cut and folded on; that is what makes
a run survive its process.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any

import msgspec
from msgspec.structs import replace
from sqlalchemy import Connection

from luxx.runs.log.events import LogEntry, RunLog
from luxx.wire.delta import FinishReason, Usage
from luxx.wire.event import (
    CompletionNote,
    CostUpdate,
    Done,
    LoggedEvent,
    MembersEnded,
    ProcessStep,
    QuestionAnswered,
    QuestionAsked,
    SkillActivated,
    SubagentAssigned,
    Tainted,
)
from luxx.wire.rule import Narrowing, SkillHead
from luxx.wire.run import RunPhase
from luxx.wire.step import Step, StepStatus, StepType

OPEN_CALL = frozenset({StepStatus.PENDING, StepStatus.RUNNING})


class QuestionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A question of the run, and its answer once there is one."""

    question: QuestionAsked
    answer: QuestionAnswered | None = None


class ChatState(msgspec.Struct, frozen=True, kw_only=True):
    """`steps[i]` is the step of index i, as last logged; `iterations` counts completions that ended.

    Steps before position `settled` belong to ended completions and their tools; the rest were logged
    by a completion whose end is not in the log. `is_answered` says that the last completion asked for
    no tool and did not pause, so there is nothing more to ask the model. `tainted_by` is the tool that first
    brought untrusted content. `skills` are active, `narrowed` is what they leave of the tools.
    `subagents` is the last that was said of each.
    """

    steps: tuple[Step, ...] = ()
    finished_count: int = 0
    iterations: int = 0
    is_answered: bool = False
    usage: Usage = Usage()
    cost: float | None = None
    notes: tuple[CompletionNote, ...] = ()
    asked: tuple[QuestionRecord, ...] = ()
    tainted_by: str | None = None
    members_ended: tuple[MembersEnded, ...] = ()
    skills: tuple[SkillHead, ...] = ()
    narrowed: tuple[Narrowing, ...] = ()
    subagents: tuple[SubagentAssigned, ...] = ()
    is_done: bool = False
    seq: int = 0


class NextAction(StrEnum):
    """What a driver does with a state."""

    REPAIR = "mend"
    CALL_MODEL = "call_model"
    RUN_TOOLS = "run_tools"
    WAIT = "wait"
    FINISH = "finish"
    NOTHING = "nothing"


def apply(state: ChatState, logged: LoggedEvent) -> ChatState:
    """The state after one more event."""
    event = logged.event
    match event:
        case ProcessStep(step=step):
            return _with_step(state, step, logged.seq)
        case CostUpdate() if logged.note is not None:
            finished_count = replace(state, finished_count=len(state.steps))
            return replace(
                finished_count,
                iterations=state.iterations + 1,
                is_answered=logged.note.finish != FinishReason.PAUSED and not open_calls(finished_count),
                usage=event.usage,
                cost=event.cost,
                notes=(*state.notes, logged.note),
                seq=logged.seq,
            )
        case QuestionAsked():
            return replace(state, asked=(*state.asked, QuestionRecord(question=event)), seq=logged.seq)
        case QuestionAnswered():
            return replace(state, asked=_with_answer(state.asked, event), seq=logged.seq)
        case Tainted(by=tool):
            return replace(state, tainted_by=state.tainted_by or tool, seq=logged.seq)
        case MembersEnded():
            return replace(state, members_ended=(*state.members_ended, event), seq=logged.seq)
        case SkillActivated():
            return replace(_with_skill(state, event), seq=logged.seq)
        case SubagentAssigned():
            others = tuple(one for one in state.subagents if one.call_id != event.call_id)
            return replace(state, subagents=(*others, event), seq=logged.seq)
        case Done():
            return replace(state, is_done=True, seq=logged.seq)
        case _:
            return replace(state, seq=logged.seq)


def fold(events: list[LoggedEvent], start: ChatState | None = None) -> ChatState:
    """The state after `events`, from `start` or from nothing."""
    state = start or ChatState()
    for event in events:
        state = apply(state, event)
    return state


def open_calls(state: ChatState) -> list[Step]:
    """Tool calls of ended completions that have no result yet, in order."""
    finished_count = state.steps[: state.finished_count]
    return [step for step in finished_count if step.type == StepType.TOOL_CALL and step.status in OPEN_CALL]


def unfinished_steps(state: ChatState) -> list[Step]:
    """Steps logged by a completion that was cut before its end was."""
    return list(state.steps[state.finished_count :])


def open_questions(state: ChatState) -> list[QuestionAsked]:
    """Questions of open calls that nobody has answered yet, in order."""
    waiting = {call.id_ref for call in open_calls(state)}
    return [
        asked.question for asked in state.asked if asked.answer is None and asked.question.call_id in waiting
    ]


def decide(state: ChatState) -> NextAction:
    """What comes next: mend what a crash cut, then the tools that were asked for, then the model.

    While a question is open, nothing does.
    """
    if state.is_done:
        return NextAction.NOTHING
    if state.finished_count < len(state.steps):
        return NextAction.REPAIR
    if open_calls(state):
        return NextAction.WAIT if state.asked and open_questions(state) else NextAction.RUN_TOOLS
    return NextAction.FINISH if state.is_answered else NextAction.CALL_MODEL


def _with_skill(state: ChatState, event: SkillActivated) -> ChatState:
    allowed = None if event.allowed_tools is None else tuple(event.allowed_tools)
    skill = SkillHead(name=event.name, description=event.description, allowed_tools=allowed)
    narrowing = () if allowed is None else (Narrowing(by=event.name, entries=allowed),)
    return replace(state, skills=(*state.skills, skill), narrowed=(*state.narrowed, *narrowing))


def _with_answer(asked: tuple[QuestionRecord, ...], answer: QuestionAnswered) -> tuple[QuestionRecord, ...]:
    """Only the first answer to a question counts."""
    return tuple(
        replace(one, answer=answer)
        if one.answer is None and one.question.question_id == answer.question_id
        else one
        for one in asked
    )


def _with_step(state: ChatState, step: Step, seq: int) -> ChatState:
    if step.index < len(state.steps):
        steps = (*state.steps[: step.index], step, *state.steps[step.index + 1 :])
    else:
        steps = (*state.steps, step)
    finished_count, is_answered = state.finished_count, state.is_answered
    if step.type == StepType.TOOL_RESULT:
        finished_count, is_answered = len(steps), False
    elif step.status == StepStatus.INTERRUPTED and step.index == finished_count:
        finished_count = step.index + 1
    return replace(state, steps=steps, finished_count=finished_count, is_answered=is_answered, seq=seq)


class ChatLog:
    """For the one process that drives the run. `state` is always that of the log on disk."""

    def __init__(self, log: RunLog, state: ChatState) -> None:
        self._log = log
        self.state = state
        self.run_id = log.run_id

    async def append(
        self,
        entries: Sequence[LogEntry],
        *,
        phase: RunPhase | None = None,
        changes: dict[str, Any] | None = None,
        extra_write: Callable[[Connection], None] | None = None,
        extra_bytes: int = 0,
    ) -> None:
        """Writes in one transaction, publishes, folds; see `RunLog.append`. Raises LostRun."""
        values = {"phase": phase.value, **(changes or {})} if phase is not None else changes
        logged = await self._log.append(
            entries, changes=values, extra_write=extra_write, extra_bytes=extra_bytes
        )
        self.state = fold(logged, self.state)

    def state_after(self, entries: Sequence[LogEntry]) -> ChatState:
        """The state as it would be once these were appended; for deciding before writing."""
        return fold(self._log.preview(entries), self.state)
