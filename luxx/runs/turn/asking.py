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
from luxx.runs.log.events import LogEntry
from luxx.runs.models import CALL_ID_LENGTH, RunRow
from luxx.runs.question_rows import approved_call, insert_questions, may_be_rule, options_of, permission_for
from luxx.runs.turn.spec import RunSpec
from luxx.runs.turn.state import ChatLog
from luxx.tools.core import ApprovalReason, Approved, ChainContext, NeedsAnswer, ToolContext, ToolDefinition
from luxx.tools.history import Executed
from luxx.wire.event import MembersEnded, ProcessStep, QuestionAnswered, QuestionAsked
from luxx.wire.question import AnsweredBy, Question, QuestionKind, QuestionStatus, WhenAsked
from luxx.wire.run import RunPhase, RunStatus
from luxx.wire.step import Step, StepStatus

CLARIFICATION_SECONDS = 60
"""How long a clarification waits unless the call says so; decisions have a setting."""

NOBODY_TO_ASK = "nobody is there to be asked: this run was begun so"

WAITING_CHANGES: dict[str, Any] = {"status": RunStatus.WAITING.value, "owner": None}

_encode = msgspec.json.Encoder().encode
_cancelled = select(RunRow.is_cancelled).where(RunRow.id == bindparam("run_id"))


class QuestionAsker:
    """For one drive. `decision_seconds` is how long a decision waits unless the call says so, 0 for ever."""

    def __init__(self, spec: RunSpec, log: ChatLog, *, decision_seconds: int) -> None:
        self._spec = spec
        self._log = log
        self._decision_seconds = decision_seconds

    def has_answer(self, call: Step) -> bool:
        """Whether this call has what it asks for before it begins: a permission for what it is, an answer."""
        asked = self._log.state.asked
        if permission_for(self._spec.run_id, call, asked) is not None:
            return True
        return any(
            one.answer is not None
            and one.question.call_id == call.id_ref
            and one.question.kind != QuestionKind.PERMISSION
            for one in asked
        )

    def with_answers(self, call: Step, context: ToolContext, member: str | UnsetType = UNSET) -> ToolContext:
        """The context for one call: with its answers, or with the way to ask."""
        asked = [one for one in self._log.state.asked if one.question.call_id == call.id_ref]
        given = iter([one for one in asked if one.question.kind != QuestionKind.PERMISSION])
        permission = permission_for(self._spec.run_id, call, self._log.state.asked, member)

        async def ask(question: dict[str, Any]) -> dict[str, Any]:
            one = next(given, None)
            if one is not None and one.answer is not None:
                return _answer_data(one.answer)
            wanted = self._question(question)
            if self._is_unattended:
                return _recommended_answer(wanted)
            raise NeedsAnswer(wanted)

        async def approve(tool: ToolDefinition, arguments: dict[str, Any], why: ApprovalReason) -> Approved:
            if self._is_unattended:
                raise ToolFailed(f"{tool.name} was not run: {why.because}, and {NOBODY_TO_ASK}")
            raise NeedsAnswer(replace(_permission(tool, call, why), member=member))

        earlier_approval = None if permission is None else partial(approved_call, permission)
        chain_context = self._chaining(call)
        return replace(
            context, ask=ask, approve=approve, earlier_approval=earlier_approval, chain_context=chain_context
        )

    def _chaining(self, call: Step) -> ChainContext:
        """What a composition's call is told: each of its members is asked about as a call of its own."""

        def context_for_member(context: ToolContext, member: str, tool: str, arguments: str) -> ToolContext:
            return self.with_answers(replace(call, name=tool, arguments=arguments), context, member)

        earlier_members = [one for one in self._log.state.members_ended if one.call_id == call.id_ref]
        finished_members = {member.key: member for one in earlier_members for member in one.members}
        return ChainContext(
            call_id=str(call.id_ref), context_for_member=context_for_member, finished_members=finished_members
        )

    @property
    def _is_unattended(self) -> bool:
        return self._spec.request.when_asked == WhenAsked.DENY

    async def put(self, wanted: list[tuple[Step, NeedsAnswer]]) -> None:
        """Logs the questions and makes the run wait, in one transaction; from then on nobody drives it.

        With a composition's question goes what the composition has done before it asked.

        Raises RunCancelled where a person has ended the run meanwhile.
        """
        entries: list[LogEntry] = []
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

    async def keep_waiting(self) -> None:
        """Lets a run that was taken up with its questions open wait on."""
        await self._wait([], [])

    async def _wait(self, entries: list[LogEntry], put: list[QuestionAsked]) -> bool:
        """Whether a person has ended the run meanwhile."""
        cancelled_flags: list[bool] = []

        def write_questions(connection: Connection) -> None:
            if put:
                now = database_now(connection)
                insert_questions(connection, [self._row(asked, now) for asked in put])
            cancelled_flags.append(connection.execute(_cancelled, {"run_id": self._spec.run_id}).scalar_one())

        await self._log.append(
            entries, phase=RunPhase.WAITING, changes=WAITING_CHANGES, extra_write=write_questions
        )
        return cancelled_flags[-1]

    def _row(self, asked: QuestionAsked, now: datetime) -> dict[str, Any]:
        seconds = asked.timeout_seconds
        question = Question(**{name: getattr(asked, name) for name in Question.__struct_fields__})
        return {
            "id": asked.question_id,
            "run_id": self._spec.run_id,
            "user_id": self._spec.user_id,
            "tenant_id": self._spec.tenant_id,
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


def _permission(tool: ToolDefinition, call: Step, why: ApprovalReason) -> Question:
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


def _recommended_answer(question: Question) -> dict[str, Any]:
    """What is recommended. Raises ToolFailed where only a person can answer."""
    recommended = [option.label for option in question.options if option.is_recommended]
    if question.required or not recommended:
        raise ToolFailed(f"{NOBODY_TO_ASK}; go on as you think best, or say what is missing")
    answer = recommended if question.multiple else recommended[0]
    return {"answer": answer, "answered_by": AnsweredBy.TIMEOUT.value}


def _answer_data(answer: QuestionAnswered) -> dict[str, Any]:
    told: dict[str, Any] = {"answer": answer.answer, "answered_by": answer.answered_by.value}
    if isinstance(answer.note, str):
        told["note"] = answer.note
    return told


def needed_answer(task: "asyncio.Task[Executed]") -> NeedsAnswer | None:
    """What the tool of an ended task has to ask before it can go on."""
    raised = task.exception()
    return raised if isinstance(raised, NeedsAnswer) else None
