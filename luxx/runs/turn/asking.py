"""Asking a person, for one drive of a run: gives calls their answers and logs new questions.

Logging questions is the last action of a drive; `runs/questions.py` handles the answers.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from hashlib import sha256
from typing import Any, assert_never

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace
from sqlalchemy import Connection, bindparam, insert, select

from luxx.errors import ToolFailed
from luxx.infra.clock import new_id
from luxx.infra.store.tables import database_now, table_of
from luxx.runs.cancel import RunCancelled
from luxx.runs.log.events import LogEntry
from luxx.runs.models import CALL_ID_LENGTH, QuestionRow, RunRow
from luxx.runs.turn.context import RunContext
from luxx.runs.turn.state import QuestionRecord
from luxx.tools.core import (
    ApprovalReason,
    Approved,
    ChainContext,
    NeedsAnswer,
    Rejected,
    ToolContext,
    ToolDefinition,
)
from luxx.tools.history import Executed
from luxx.tools.permissions.service import PATTERN_LENGTH
from luxx.wire.event import ProcessStep, QuestionAnswered, QuestionAsked
from luxx.wire.run import (
    LOOP_DECISION,
    PATTERN_DECISION,
    AnsweredBy,
    ElicitationChoice,
    Option,
    Permission,
    Question,
    QuestionKind,
    QuestionStatus,
    RunPhase,
    RunStatus,
    SignInChoice,
    WhenAsked,
)
from luxx.wire.turn import Step, StepStatus
from luxx.wire.turn_event import MembersEnded

CLARIFICATION_SECONDS = 60
"""How long a clarification waits by default; decisions have a setting."""

NOBODY_TO_ASK = "nobody is there to be asked: this run was started with when_asked=deny"
WAITING_CHANGES: dict[str, Any] = {"status": RunStatus.WAITING.value, "owner": None}
_questions = table_of(QuestionRow)
_insert_questions = insert(_questions)
_close_questions = (
    _questions.update()
    .where(_questions.c.run_id == bindparam("b_run"), _questions.c.status == QuestionStatus.OPEN.value)
    .values(status=QuestionStatus.CLOSED.value)
)
_encode = msgspec.json.Encoder().encode
_cancelled = select(RunRow.is_cancelled).where(RunRow.id == bindparam("run_id"))


@dataclass(frozen=True, slots=True, repr=False)
class QuestionAsker:
    """Asks for one drive of a run."""

    run: RunContext

    def has_answer(self, call: Step) -> bool:
        """Whether this call has a permission that fits it, or an answer to its question."""
        records = self.run.log.state.questions
        if permission_for(self.run.spec.run_id, call, records) is not None:
            return True
        return any(
            one.answer is not None and one.question.call_id == call.id_ref and is_of_tool(one)
            for one in records
        )

    def with_taint(self, executed: Executed) -> Executed:
        """Marks a result as untrusted that has words of somebody else than the run's user: an answer, or what
        they changed or noted in a permission."""
        answers = [
            one.answer
            for one in self.run.log.state.questions
            if one.question.call_id == executed.call_id and one.answer is not None
        ]
        is_untrusted = any(
            isinstance(one.user, str) and (one.approves is UNSET or one.note or one.arguments)
            for one in answers
        )
        return replace(executed, is_untrusted=True) if is_untrusted else executed

    def with_answers(self, call: Step, context: ToolContext, member: str | UnsetType = UNSET) -> ToolContext:
        """The context for one call, with its answers and with the functions that ask a person."""
        questions = self.run.log.state.questions
        records = [one for one in questions if one.question.call_id == call.id_ref]
        others = [one for one in records if one.question.kind != QuestionKind.ELICITATION]
        answered = iter(filter(is_of_tool, others))
        permission = permission_for(self.run.spec.run_id, call, questions, member)

        async def ask(question: dict[str, Any]) -> dict[str, Any]:
            elicitation = question.get("elicitation_id")
            if elicitation is None:
                one = next(answered, None)
            else:
                # One call may ask anew after its server was lost, so the order does not say which it is.
                one = next((one for one in records if one.question.elicitation_id == elicitation), None)
            if one is not None and one.answer is not None:
                return _answer_data(one.answer)
            question_to_ask = self._question(question)
            if self._is_unattended:
                return _recommended_answer(question_to_ask)
            raise NeedsAnswer(question_to_ask)

        async def approve(tool: ToolDefinition, arguments: dict[str, Any], why: ApprovalReason) -> Approved:
            if self._is_unattended:
                raise ToolFailed(f"{tool.name} was not run: {why.because}, and {NOBODY_TO_ASK}")
            raise NeedsAnswer(replace(_permission(tool, call, why), member=member))

        earlier_approval = None if permission is None else partial(approved_call, permission)
        return replace(
            context,
            permissions=replace(context.permissions, approve=approve, earlier_approval=earlier_approval),
            actions=replace(context.actions, ask=ask, chain=self._chain_context(call)),
        )

    def _chain_context(self, call: Step) -> ChainContext:
        """The context of a composition's call: each of its members asks for its own permission."""

        def context_for_member(context: ToolContext, member: str, tool: str, arguments: str) -> ToolContext:
            return self.with_answers(replace(call, name=tool, arguments=arguments), context, member)

        earlier_members = [one for one in self.run.log.state.members_ended if one.call_id == call.id_ref]
        finished_members = {member.key: member for one in earlier_members for member in one.members}
        return ChainContext(context_for_member=context_for_member, finished_members=finished_members)

    @property
    def _is_unattended(self) -> bool:
        return self.run.spec.request.when_asked == WhenAsked.DENY

    async def ask_person(self, pending: list[tuple[Step, NeedsAnswer]]) -> None:
        """Logs the questions and sets the run to waiting, in one transaction; then no process drives it.

        A composition's question is logged with the results of its finished members.
        Raises RunCancelled if a person has cancelled the run meanwhile.
        """
        entries: list[LogEntry] = []
        asked_events: list[QuestionAsked] = []
        for call, signal in pending:
            question = signal.question
            if signal.ended:
                entries.append(MembersEnded(call_id=str(call.id_ref), members=list(signal.ended)))
            if call.status != StepStatus.PENDING:
                entries.append(ProcessStep(step=replace(call, status=StepStatus.PENDING)))
            event = QuestionAsked(
                **{name: getattr(question, name) for name in question.__struct_fields__},
                question_id=new_id(),
                call_id=str(call.id_ref),
            )
            entries.append(event)
            asked_events.append(event)
        if await self._wait(entries, asked_events):
            raise RunCancelled

    async def keep_waiting(self) -> None:
        """Lets a run that was claimed with open questions continue to wait."""
        await self._wait([], [])

    async def _wait(self, entries: list[LogEntry], asked_events: list[QuestionAsked]) -> bool:
        """Sets the run to waiting. Returns whether a person has cancelled it meanwhile."""
        cancelled_flags: list[bool] = []

        def write_questions(connection: Connection) -> None:
            if asked_events:
                now = database_now(connection)
                connection.execute(_insert_questions, [self._row(event, now) for event in asked_events])
            cancelled_flags.append(
                connection.execute(_cancelled, {"run_id": self.run.spec.run_id}).scalar_one()
            )

        await self.run.log.append(
            entries, phase=RunPhase.WAITING, changes=WAITING_CHANGES, extra_write=write_questions
        )
        return cancelled_flags[-1]

    def _row(self, event: QuestionAsked, now: datetime) -> dict[str, Any]:
        seconds = event.timeout_seconds
        question = Question(**{name: getattr(event, name) for name in Question.__struct_fields__})
        return {
            "id": event.question_id,
            "run_id": self.run.spec.run_id,
            "user_id": self.run.spec.user_id,
            "tenant_id": self.run.spec.tenant_id,
            "call_id": event.call_id[:CALL_ID_LENGTH].replace("\0", "\ufffd"),
            "rule_agents": _encode(self.run.spec.request.rule_agents).decode(),
            "kind": event.kind.value,
            "status": QuestionStatus.OPEN.value,
            "asked": _encode(question).decode(),
            "created_at": now,
            "due_at": None if seconds is None else now + timedelta(seconds=seconds),
        }

    def _question(self, data: dict[str, Any]) -> Question:
        """A tool's question with its defaults. Raises ToolFailed if `data` is not a valid question."""
        try:
            question = msgspec.convert(data, Question)
        except msgspec.ValidationError as error:
            raise ToolFailed(f"this is not a valid question: {error}") from error
        if question.decision_type in (LOOP_DECISION, PATTERN_DECISION):
            raise ToolFailed(f"a tool cannot ask a question of the type {question.decision_type}")
        match question.kind:
            case QuestionKind.PERMISSION:
                raise ToolFailed("a tool cannot ask for its own permission; its risk level decides that")
            case QuestionKind.CLARIFICATION:
                seconds = question.timeout_seconds or CLARIFICATION_SECONDS
            case QuestionKind.DECISION:
                default_seconds = self.run.services.config.limits.question_timeout_seconds
                seconds = question.timeout_seconds or default_seconds or None
            case QuestionKind.SIGN_IN:
                return replace(question, options=SIGN_IN_OPTIONS, required=True, timeout_seconds=None)
            case QuestionKind.ELICITATION:
                return replace(question, options=ELICITATION_OPTIONS)
            case _:
                assert_never(question.kind)
        # Without a recommended option there is no answer to take at the timeout.
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
        usual=why.usual if why.usual is not None and may_be_rule(why.usual) else UNSET,
    )


def _recommended_answer(question: Question) -> dict[str, Any]:
    """The recommended options as the answer. Raises ToolFailed if only a person can answer."""
    recommended = [option.label for option in question.options if option.is_recommended]
    if question.required or not recommended:
        raise ToolFailed(f"{NOBODY_TO_ASK}; continue with your best judgement, or say what is missing")
    answer = recommended if question.multiple else recommended[0]
    return {"answer": answer, "answered_by": AnsweredBy.TIMEOUT.value}


def _answer_data(answer: QuestionAnswered) -> dict[str, Any]:
    data: dict[str, Any] = {"answer": answer.answer, "answered_by": answer.answered_by.value}
    if isinstance(answer.note, str):
        data["note"] = answer.note
    return data


def needed_answer(task: "asyncio.Task[Executed]") -> NeedsAnswer | None:
    """The question that the tool of an ended task raised, or None."""
    raised = task.exception()
    return raised if isinstance(raised, NeedsAnswer) else None


ONCE = Option(label=Permission.ONCE.value, description="This call may run")
REJECT = Option(label=Permission.REJECT.value, description="This call may not run")


SIGN_IN_OPTIONS = [
    Option(label=SignInChoice.SIGNED_IN.value, description="You have signed in; the call is tried again"),
    Option(label=SignInChoice.SKIP.value, description="Go on without it; the call fails"),
]


ELICITATION_OPTIONS = [
    Option(label=ElicitationChoice.ACCEPT.value, description="The server gets what it asks for"),
    Option(label=ElicitationChoice.DECLINE.value, description="The server learns that you do not want it"),
    Option(
        label=ElicitationChoice.CANCEL.value,
        description="The server learns that nobody decided",
        is_recommended=True,
    ),
]


def is_of_tool(record: QuestionRecord) -> bool:
    """Whether the tool itself asked, so that it gets the answer."""
    question = record.question
    is_own = question.decision_type in (LOOP_DECISION, PATTERN_DECISION)
    return question.kind != QuestionKind.PERMISSION and not is_own


def call_hash(run_id: str, tool: str, arguments: str) -> str:
    """A hash of run, tool and arguments; equal for all JSON texts of the same arguments."""
    try:
        decoded: Any = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        decoded = arguments
    return sha256(msgspec.json.encode([run_id, tool, decoded], order="sorted")).hexdigest()


def permission_for(
    run_id: str, call: Step, questions: tuple[QuestionRecord, ...], member: str | UnsetType = UNSET
) -> QuestionAnswered | None:
    """The answer to the permission question of this call with its current arguments, or None.

    `member` is the key of a composition's member: an answer is valid for one member of one call only.
    """
    now = call_hash(run_id, str(call.name), str(call.arguments or "{}"))
    for record in reversed(questions):
        question, answer = record.question, record.answer
        if question.kind != QuestionKind.PERMISSION or question.call_id != call.id_ref or answer is None:
            continue
        if question.member != member:
            continue
        if call_hash(run_id, str(question.tool), str(question.arguments)) != now:
            continue
        if answer.answer == Permission.REJECT or answer.approves == _approved_hash(run_id, question, answer):
            return answer
    return None


def options_of(usual: str | None) -> list[Option]:
    """The options of a permission; "always" only if there is a pattern that fits into a rule."""
    if usual is None or not may_be_rule(usual):
        return [ONCE, REJECT]
    about = "This call may run, and so may all calls that match; this adds a rule"
    return [ONCE, Option(label=Permission.ALWAYS.value, description=about), REJECT]


def may_be_rule(usual: str) -> bool:
    """Whether a rule can store the pattern: not too long, and without NUL for PostgreSQL."""
    return len(usual) <= PATTERN_LENGTH and "\0" not in usual


def bind_answer(run_id: str, question: Question, answer: QuestionAnswered) -> QuestionAnswered:
    """The answer with the hash of the call that it allows."""
    if answer.answer == Permission.REJECT:
        return answer
    return msgspec.structs.replace(answer, approves=_approved_hash(run_id, question, answer))


def approved_call(answer: QuestionAnswered, arguments: dict[str, Any]) -> Approved:
    """The call as the answer allows it. Raises Rejected if the person rejected it."""
    note = answer.note if isinstance(answer.note, str) else None
    if answer.answer == Permission.REJECT:
        default_advice = "Do not repeat the call; find another way, or ask the user."
        reason = f", with this note: {note}. Follow the note." if note else f". {default_advice}"
        raise Rejected(f"the user did not allow this call{reason}")
    if isinstance(answer.arguments, str):
        edited: dict[str, Any] = msgspec.json.decode(answer.arguments)
        return Approved(arguments=edited, is_edited=edited != arguments, note=note)
    return Approved(arguments=arguments, note=note)


def _approved_hash(run_id: str, question: Question | QuestionAsked, answer: QuestionAnswered) -> str:
    arguments = answer.arguments if isinstance(answer.arguments, str) else str(question.arguments)
    return call_hash(run_id, str(question.tool), arguments)


def close_questions(connection: Connection, run_id: str, question_ids: Sequence[str] | None = None) -> None:
    """Closes the open questions of a run that has ended; with `question_ids` only these, of an ended turn."""
    query = _close_questions
    if question_ids is not None:
        query = query.where(_questions.c.id.in_(question_ids))
    connection.execute(query, {"b_run": run_id})
