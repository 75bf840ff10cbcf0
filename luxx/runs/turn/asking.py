"""Asking, for the drive of a run: what a call is told of its answers, and how new questions are put.

Putting questions is the last that a drive does; what comes after is in `questions.py`.
"""

import asyncio
from datetime import datetime, timedelta
from functools import partial
from typing import Any, assert_never

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace
from sqlalchemy import Connection, bindparam, select

from luxx.errors import ToolFailed
from luxx.infra.clock import new_id
from luxx.infra.store.clock import database_now
from luxx.runs.engine.cancel import RunCancelled
from luxx.runs.log.events import Entry
from luxx.runs.models import CALL_ID_LENGTH, RunRow
from luxx.runs.question_rows import carried_over, insert_questions, may_be_rule, options_of, permission_for
from luxx.runs.turn.spec import ChatBrief
from luxx.runs.turn.state import ChatLog
from luxx.tools.core import Approved, Chaining, NeedsAnswer, ToolContext, ToolDefinition, WhyAsked
from luxx.tools.history import Executed
from luxx.wire.event import MembersEnded, ProcessStep, QuestionAnswered, QuestionAsked
from luxx.wire.question import AnsweredBy, Question, QuestionKind, QuestionStatus, WhenAsked
from luxx.wire.run import RunPhase, RunStatus
from luxx.wire.step import Step, StepStatus

CLARIFICATION_SECONDS = 60
"""How long a clarification waits unless the call says so; decisions have a setting."""

NOBODY = "nobody is there to be asked: this run was begun so"

WAITING: dict[str, Any] = {"status": RunStatus.WAITING.value, "owner": None}

_encode = msgspec.json.Encoder().encode
_cancelled = select(RunRow.is_cancelled).where(RunRow.id == bindparam("run_id"))


class Asker:
    """For one drive. `decision_seconds` is how long a decision waits unless the call says so, 0 for ever."""

    def __init__(self, brief: ChatBrief, log: ChatLog, *, decision_seconds: int) -> None:
        self._brief = brief
        self._log = log
        self._decision_seconds = decision_seconds

    def is_free(self, call: Step) -> bool:
        """Whether this call has what it asks for before it begins: a permission for what it is, an answer."""
        asked = self._log.state.asked
        if permission_for(self._brief.run_id, call, asked) is not None:
            return True
        return any(
            one.answer is not None
            and one.question.call_id == call.id_ref
            and one.question.kind != QuestionKind.PERMISSION
            for one in asked
        )

    def told(self, call: Step, context: ToolContext, member: str | UnsetType = UNSET) -> ToolContext:
        """The context for one call: with its answers, or with the way to ask."""
        asked = [one for one in self._log.state.asked if one.question.call_id == call.id_ref]
        given = iter([one for one in asked if one.question.kind != QuestionKind.PERMISSION])
        permission = permission_for(self._brief.run_id, call, self._log.state.asked, member)

        async def ask(question: dict[str, Any]) -> dict[str, Any]:
            one = next(given, None)
            if one is not None and one.answer is not None:
                return _told(one.answer)
            wanted = self._question(question)
            if self._is_unattended:
                return _unattended(wanted)
            raise NeedsAnswer(wanted)

        async def approve(tool: ToolDefinition, arguments: dict[str, Any], why: WhyAsked) -> Approved:
            if self._is_unattended:
                raise ToolFailed(f"{tool.name} was not run: {why.because}, and {NOBODY}")
            raise NeedsAnswer(replace(_permission(tool, call, why), member=member))

        answered = None if permission is None else partial(carried_over, permission)
        chaining = self._chaining(call)
        return replace(context, ask=ask, approve=approve, answered=answered, chaining=chaining)

    def _chaining(self, call: Step) -> Chaining:
        """What a composition's call is told: each of its members is asked about as a call of its own."""

        def told(context: ToolContext, member: str, tool: str, arguments: str) -> ToolContext:
            return self.told(replace(call, name=tool, arguments=arguments), context, member)

        before = [one for one in self._log.state.members_ended if one.call_id == call.id_ref]
        recalled = {member.key: member for one in before for member in one.members}
        return Chaining(call_id=str(call.id_ref), told=told, recalled=recalled)

    @property
    def _is_unattended(self) -> bool:
        return self._brief.request.when_asked == WhenAsked.DENY

    async def put(self, wanted: list[tuple[Step, NeedsAnswer]]) -> None:
        """Logs the questions and makes the run wait, in one transaction; from then on nobody drives it.

        With a composition's question goes what the composition has done before it asked.

        Raises RunCancelled where a person has ended the run meanwhile.
        """
        entries: list[Entry] = []
        put: list[QuestionAsked] = []
        for call, signal in wanted:
            question = signal.question
            if signal.ended:
                entries.append(MembersEnded(call_id=str(call.id_ref), members=list(signal.ended)))
            if call.status != StepStatus.PENDING:
                entries.append(ProcessStep(step=replace(call, status=StepStatus.PENDING)))
            asked = QuestionAsked(
                **{name: getattr(question, name) for name in question.__struct_fields__},
                question_id=new_id(),
                call_id=str(call.id_ref),
            )
            entries.append(asked)
            put.append(asked)
        if await self._wait(entries, put):
            raise RunCancelled

    async def wait_on(self) -> None:
        """Lets a run that was taken up with its questions open wait on."""
        await self._wait([], [])

    async def _wait(self, entries: list[Entry], put: list[QuestionAsked]) -> bool:
        """Whether a person has ended the run meanwhile."""
        found: list[bool] = []

        def keep(connection: Connection) -> None:
            if put:
                now = database_now(connection)
                insert_questions(connection, [self._row(asked, now) for asked in put])
            found.append(connection.execute(_cancelled, {"run_id": self._brief.run_id}).scalar_one())

        await self._log.append(entries, phase=RunPhase.WAITING, changes=WAITING, also=keep)
        return found[-1]

    def _row(self, asked: QuestionAsked, now: datetime) -> dict[str, Any]:
        seconds = asked.timeout_seconds
        question = Question(**{name: getattr(asked, name) for name in Question.__struct_fields__})
        return {
            "id": asked.question_id,
            "run_id": self._brief.run_id,
            "user_id": self._brief.user_id,
            "tenant_id": self._brief.tenant_id,
            "call_id": asked.call_id[:CALL_ID_LENGTH].replace("\0", "\ufffd"),
            "kind": asked.kind.value,
            "status": QuestionStatus.OPEN.value,
            "asked": _encode(question).decode(),
            "created_at": now,
            "due_at": None if seconds is None else now + timedelta(seconds=seconds),
        }

    def _question(self, given: dict[str, Any]) -> Question:
        """What a tool wants to know, with its defaults. Raises ToolFailed for what is no question."""
        try:
            question = msgspec.convert(given, Question)
        except msgspec.ValidationError as error:
            raise ToolFailed(f"this is not a question: {error}") from error
        match question.kind:
            case QuestionKind.PERMISSION:
                raise ToolFailed("a tool cannot give itself a permission; its risk says whether it is asked")
            case QuestionKind.CLARIFICATION:
                seconds = question.timeout_seconds or CLARIFICATION_SECONDS
            case QuestionKind.DECISION:
                seconds = question.timeout_seconds or self._decision_seconds or None
            case _:
                assert_never(question.kind)
        # Where nothing is recommended, nobody's silence can be taken for an answer.
        is_required = question.required or not any(option.is_recommended for option in question.options)
        return replace(question, required=is_required, timeout_seconds=None if is_required else seconds)


def _permission(tool: ToolDefinition, call: Step, why: WhyAsked) -> Question:
    return Question(
        kind=QuestionKind.PERMISSION,
        prompt=f"May {tool.name} be run with these arguments?",
        options=options_of(why.usual),
        required=True,
        tool=tool.name,
        arguments=str(call.arguments or "{}"),
        risk=tool.risk.value,
        because=why.because,
        usual=why.usual if may_be_rule(why.usual) else UNSET,
    )


def _unattended(question: Question) -> dict[str, Any]:
    """What is recommended. Raises ToolFailed where only a person can answer."""
    recommended = [option.label for option in question.options if option.is_recommended]
    if question.required or not recommended:
        raise ToolFailed(f"{NOBODY}; go on as you think best, or say what is missing")
    answer = recommended if question.multiple else recommended[0]
    return {"answer": answer, "answered_by": AnsweredBy.TIMEOUT.value}


def _told(answer: QuestionAnswered) -> dict[str, Any]:
    told: dict[str, Any] = {"answer": answer.answer, "answered_by": answer.answered_by.value}
    if isinstance(answer.note, str):
        told["note"] = answer.note
    return told


def wanted_by(task: "asyncio.Task[Executed]") -> NeedsAnswer | None:
    """What the tool of an ended task has to ask before it can go on."""
    raised = task.exception()
    return raised if isinstance(raised, NeedsAnswer) else None
