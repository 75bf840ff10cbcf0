"""The SQL that stores questions and answers, and the answer "always", which stores a rule.

A transaction that changes a question of a waiting run updates the run's row first, so that there is no
deadlock. The rules are judged outside of a transaction; a later transaction answers the questions that are
still open. A new rule is followed by a check of the open questions, and a new question by a check of the
rules. So neither misses the other. Transactions lock runs in the order of their ids.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Connection, Select, and_, bindparam, insert, or_, select, update
from sqlalchemy.orm import Session

from luxx.domain.accounts.authentication import user_as_caller
from luxx.domain.accounts.caller import Caller, KeyScope
from luxx.errors import Conflict, LuxxError
from luxx.infra.clock import utc_now
from luxx.infra.field_errors import FieldErrors
from luxx.infra.store.tables import DATABASE_NOW, database_now, table_of
from luxx.runs.cancel import wake
from luxx.runs.log.events import event_row, stamped
from luxx.runs.models import QuestionRow, RunEventRow, RunRow
from luxx.runs.orchestration.inputs import InputKind, give_input
from luxx.runs.turn.asking import bind_answer, may_be_rule
from luxx.runs.turn.rights import rules_for
from luxx.tools.core import CallPermissions, ToolContext, ToolSet
from luxx.tools.permissions.judge import DecidedBy, Judge
from luxx.tools.permissions.service import Owner, append_rule, read_list, record_change
from luxx.tools.permissions.subjects import subject_of
from luxx.tools.sources import ToolSources, tool_caller
from luxx.wire.event import QuestionAnswered
from luxx.wire.run import (
    AnsweredBy,
    AnswerValue,
    LoopChoice,
    Permission,
    Question,
    QuestionKind,
    QuestionStatus,
    QuestionView,
    RunKind,
    RunStatus,
)
from luxx.wire.tool import PermissionRule, RuleAction
from luxx.wire.turn_event import Tainted

DUE_AT_ONCE = 50
"""How many overdue questions one query reads; further queries read the rest."""


class StoredAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that is in the log at `seq`. `is_last`: no question is open, so the run continues.

    `is_input`: the drive of the run will log it.
    """

    run_id: str
    seq: int
    is_last: bool
    is_input: bool = False


_questions, _events = table_of(QuestionRow), table_of(RunEventRow)
_runs = table_of(RunRow)
_encode = msgspec.json.Encoder().encode
_asked = msgspec.json.Decoder(Question)
_answer = msgspec.json.Decoder(AnswerValue)
_event = insert(_events)
_open = _questions.c.status == QuestionStatus.OPEN.value
_next_seq = (
    update(_runs)
    .where(_runs.c.id == bindparam("b_id"), _runs.c.status == RunStatus.WAITING.value)
    .values(last_seq=_runs.c.last_seq + 1)
    .returning(_runs.c.last_seq)
)
_update_answer = (
    update(_questions)
    .where(_questions.c.id == bindparam("b_id"), _open)
    .values(
        status=QuestionStatus.ANSWERED.value,
        answer=bindparam("b_answer"),
        note=bindparam("b_note"),
        answered_by=bindparam("b_by"),
        answered_at=bindparam("b_at"),
    )
)
_WORKING = [RunStatus.QUEUED.value, RunStatus.RUNNING.value]
_has_turns = or_(_runs.c.kind != RunKind.CHAT.value, _runs.c.is_planned)
_is_answerable = or_(
    _runs.c.status == RunStatus.WAITING.value,
    and_(_has_turns, _runs.c.status.in_(_WORKING)),
)
"""In a run with several turns, some may work while others wait for an answer."""

_of_several_turns = select(_runs.c.id).where(_runs.c.id == bindparam("run_id"), _has_turns)
_one_open = select(_questions.c.id).where(_questions.c.run_id == bindparam("run_id"), _open).limit(1)


def store_answer(connection: Connection, row: QuestionRow, answer: QuestionAnswered) -> StoredAnswer:
    """Stores and logs the answer; wakes the run if no other question is open.

    A run with several turns that works meanwhile gets it as an input, which its drive logs.

    Raises Conflict if the question is no longer open; then the caller must roll back the transaction.
    """
    seq = connection.execute(_next_seq, {"b_id": row.run_id}).scalar()
    if seq is None and not _give_answer(connection, row.run_id, answer):
        raise _too_late(_status(connection, row.id))
    values = {
        "b_id": row.id,
        "b_answer": _encode(answer.answer).decode(),
        "b_note": answer.note if isinstance(answer.note, str) else None,
        "b_by": answer.answered_by.value,
        "b_at": database_now(connection),
    }
    if connection.execute(_update_answer, values).rowcount != 1:
        raise _too_late(_status(connection, row.id))
    if seq is None:
        return StoredAnswer(run_id=row.run_id, seq=0, is_last=False, is_input=True)
    connection.execute(_event, event_row(seq, stamped(answer, row.run_id)))
    is_last = connection.execute(_one_open, {"run_id": row.run_id}).first() is None
    # Each turn of a run with several turns waits for its own questions.
    is_last = is_last or connection.scalar(_of_several_turns, {"run_id": row.run_id}) is not None
    if is_last:
        wake(connection, RunRow.id == row.run_id)
    return StoredAnswer(run_id=row.run_id, seq=seq, is_last=is_last)


def _give_answer(connection: Connection, run_id: str, answer: QuestionAnswered) -> bool:
    """Gives the answer to a run with several turns, of which some work while one waits for it."""
    if connection.scalar(_of_several_turns, {"run_id": run_id}) is None:
        return False
    return give_input(connection, run_id, InputKind.ANSWER, _encode(answer).decode())


def can_answer(run: RunRow) -> bool:
    """Whether the open questions of the run can be answered now."""
    has_turns = run.kind != RunKind.CHAT.value or run.is_planned
    is_working = has_turns and run.status in _WORKING
    return run.status == RunStatus.WAITING.value or is_working


def due_questions(connection: Connection) -> list[str]:
    """Up to DUE_AT_ONCE overdue open questions, the longest overdue first."""
    now: Any = DATABASE_NOW if connection.dialect.name == "postgresql" else utc_now()
    query = select(_questions.c.id).where(_open, _questions.c.due_at <= now)
    return list(connection.scalars(query.order_by(_questions.c.due_at).limit(DUE_AT_ONCE)))


def question_of(row: QuestionRow) -> Question:
    """The question of a row."""
    return _asked.decode(row.asked)


def question_view(row: QuestionRow, subject_id: str, caller: Caller) -> QuestionView:
    """The row of a question as the API returns it to this caller, without an option that is not theirs: only
    who may write the rules of the run's user can answer `always`."""
    copied = ("id", "run_id", "call_id", "created_at", "due_at", "answered_at", "note")
    question = question_of(row)
    may_write_rules = row.user_id == caller.user_id and caller.has_scope(KeyScope.ADMIN)
    if question.kind == QuestionKind.PERMISSION and not may_write_rules:
        options = [option for option in question.options if option.label != Permission.ALWAYS]
        question = msgspec.structs.replace(question, options=options, usual=msgspec.UNSET)
    return QuestionView(
        **msgspec.structs.asdict(question),
        **{name: getattr(row, name) for name in copied},
        subject_id=subject_id,
        status=QuestionStatus(row.status),
        answered_by=None if row.answered_by is None else AnsweredBy(row.answered_by),
        answer=None if row.answer is None else _answer.decode(row.answer),
    )


def check_open(status: str | None) -> None:
    """Raises Conflict if the question is answered or closed."""
    if status != QuestionStatus.OPEN.value:
        raise _too_late(status)


def _status(connection: Connection, question_id: str) -> str | None:
    """The current status; another transaction may have changed it."""
    return connection.scalar(select(_questions.c.status).where(_questions.c.id == question_id))


def _too_late(status: str | None) -> Conflict:
    if status == QuestionStatus.ANSWERED.value:
        return Conflict("this question has been answered already", kind="question_answered")
    return Conflict("the run has ended, so this question no longer needs an answer", kind="question_closed")


def check_permission_answer(question: Question, answer: AnswerValue, *, is_owner: bool) -> None:
    """Raises InvalidInput if `answer` does not answer a permission.

    `is_owner`: the run is the caller's own. The answer `always` adds a rule to the list of the run's user,
    which nobody else may change.
    """
    if answer not in list(Permission):
        allowed = "once, always or reject" if is_owner else "once or reject"
        raise invalid_answer("answer", f"a permission is answered with {allowed}")
    if answer == Permission.ALWAYS and not is_owner:
        problem = (
            "always adds a rule of the run's owner, so only the owner can answer it; answer once or reject"
        )
        raise invalid_answer("answer", problem)
    if answer == Permission.ALWAYS and answer not in [option.label for option in question.options]:
        raise invalid_answer("answer", "no rule of yours can allow this call; answer once or reject")


def check_loop_answer(
    question: Question, answer: AnswerValue, note: str | None, *, has_arguments: bool
) -> None:
    """Raises InvalidInput if `answer` says nothing on a call that repeats earlier ones: other words than the
    options are a note to the model."""
    labels = [option.label for option in question.options]
    if answer in list(LoopChoice) and answer not in labels:
        raise invalid_answer("answer", f"this question is answered with {', '.join(labels)}, or in own words")
    if has_arguments and answer != LoopChoice.CORRECT:
        raise invalid_answer("arguments", "only the answer correct takes arguments")
    if answer == LoopChoice.CORRECT and not has_arguments and not (note or "").strip():
        raise invalid_answer("note", "the answer correct needs a note to the model, or arguments")


def answer_event(
    run_id: str,
    question_id: str,
    question: Question,
    answer: AnswerValue,
    *,
    note: str | None,
    edited: str | None,
    user: str | None = None,
) -> QuestionAnswered:
    """The event of a person's answer; a permission is bound to the call that it allows. `user`: the person,
    if it is not the run's user."""
    answered = QuestionAnswered(
        question_id=question_id,
        answer=answer,
        answered_by=AnsweredBy.PERSON,
        note=msgspec.UNSET if note is None else note,
        arguments=msgspec.UNSET if edited is None else edited,
        user=msgspec.UNSET if user is None else user,
    )
    return answered if question.kind != QuestionKind.PERMISSION else bind_answer(run_id, question, answered)


def invalid_answer(field: str, problem: str) -> LuxxError:
    """The error for one field of an answer."""
    return FieldErrors({f"$.{field}": problem}).refusal()


MAX_PERMISSIONS = 1000
"""How many open permissions of one user one check reads."""

_lock_waiting_runs = (
    select(_runs.c.id)
    .where(_runs.c.user_id == bindparam("user_id"), _runs.c.status == RunStatus.WAITING.value)
    .order_by(_runs.c.id)
    .with_for_update()
)
_tainted = select(_events.c.run_id, _events.c.data).where(
    _events.c.run_id.in_(bindparam("run_ids", expanding=True)),
    _events.c.type == str(Tainted.__struct_config__.tag),
)
_agent_ids = msgspec.json.Decoder(tuple[int, ...])
_taint = msgspec.json.Decoder(Tainted)


class OpenPermission(msgspec.Struct, frozen=True, kw_only=True):
    """An open permission question, with the context that its call has now."""

    id: str
    question: Question
    context: ToolContext


def store_rule(
    session: Session, caller: Caller, tools: ToolSources, question: Question, answer: QuestionAnswered
) -> None:
    """Stores the rule of the answer "always". Raises Conflict if the user has too many rules."""
    connection = session.connection()
    owner = Owner(tenant_id=caller.tenant_id, user_id=caller.user_id)
    name = str(question.tool)
    usual = _pattern(tools.for_caller(session, caller, (name,)), question, answer)
    append_rule(connection, owner, PermissionRule(tool=name, pattern=usual, action=RuleAction.ALLOW))
    record_change(session, caller, owner, len(read_list(connection, owner)))


def open_permissions(
    session: Session, user_id: int, tools: ToolSources, workspace: Path
) -> list[OpenPermission]:
    """The open permission questions of the user's waiting runs."""
    try:
        caller = user_as_caller(session.connection(), user_id)
    except LuxxError:
        return []
    is_permission = QuestionRow.kind == QuestionKind.PERMISSION.value
    rows = session.execute(_open_of_user(user_id).where(is_permission).limit(MAX_PERMISSIONS)).all()
    connection = session.connection()
    run_ids = sorted({row.run_id for row, _ in rows})
    events = connection.execute(_tainted, {"run_ids": run_ids})
    taints = {run_id: _taint.decode(data).by for run_id, data in events}
    scopes = {row.id: (subject_id, _agent_ids.decode(row.rule_agents)) for row, subject_id in rows}
    rules = {scope: rules_for(connection, caller, *scope) for scope in set(scopes.values())}
    questions = {row.id: question_of(row) for row, _ in rows}
    known_tools = tools.for_caller(session, caller, {str(question.tool) for question in questions.values()})
    return [
        OpenPermission(
            id=row.id,
            question=questions[row.id],
            context=ToolContext(
                caller=tool_caller(caller, run_id=row.run_id, tools=known_tools),
                permissions=CallPermissions(
                    rules=rules[scopes[row.id]], tainted_by=taints.get(row.run_id), workspace=workspace
                ),
            ),
        )
        for row, _ in rows
    ]


def find_covered(judge: Judge, permissions: Sequence[OpenPermission]) -> list[str]:
    """The ids of those that a rule allows. Run it in a thread: judging many is slow."""
    verdicts: dict[tuple[Any, ...], bool] = {}
    allowed_ids: list[str] = []
    for permission in permissions:
        question, context = permission.question, permission.context
        key = (question.tool, question.arguments, context.permissions.rules, context.permissions.tainted_by)
        if key not in verdicts:
            verdicts[key] = _is_allowed(judge, question, context)
        allowed_ids += [permission.id] if verdicts[key] else []
    return allowed_ids


def store_covered_answers(session: Session, user_id: int, question_ids: Sequence[str]) -> list[StoredAnswer]:
    """Answers those of the questions that are still open."""
    connection = session.connection()
    connection.execute(_lock_waiting_runs, {"user_id": user_id}).all()
    rows = session.scalars(_open_of_user(user_id).where(QuestionRow.id.in_(question_ids))).all()
    stored: list[StoredAnswer] = []
    for row in rows:
        answered = QuestionAnswered(
            question_id=row.id, answer=Permission.ALWAYS.value, answered_by=AnsweredBy.RULE
        )
        stored.append(store_answer(connection, row, bind_answer(row.run_id, question_of(row), answered)))
    return stored


def _open_of_user(user_id: int) -> Select[QuestionRow, str]:
    """The open questions of the user's runs, each with the subject of its run."""
    return (
        select(QuestionRow, RunRow.subject_id)
        .join(RunRow, RunRow.id == QuestionRow.run_id)
        .where(
            QuestionRow.user_id == user_id,
            QuestionRow.status == QuestionStatus.OPEN.value,
            _is_answerable,
        )
        .order_by(QuestionRow.run_id, QuestionRow.id)
    )


def _is_allowed(judge: Judge, question: Question, context: ToolContext) -> bool:
    tools, arguments = context.caller.tools, _arguments(question)
    found = None if tools is None else tools.lookup(str(question.tool))
    if found is None or arguments is None:
        return False
    verdict = judge.verdict(found[0], arguments, context)
    return verdict.action == RuleAction.ALLOW and verdict.decided_by == DecidedBy.RULE


def _pattern(tools: ToolSet, question: Question, answer: QuestionAnswered) -> str:
    """The pattern of the rule: the one shown or, for edited arguments, the one that fits these."""
    found = tools.lookup(str(question.tool))
    is_edited = isinstance(answer.arguments, str)
    arguments = msgspec.json.decode(str(answer.arguments)) if is_edited else _arguments(question)
    if isinstance(question.usual, str) and not is_edited:
        return question.usual
    usual = "*" if found is None or arguments is None else subject_of(found[0], arguments).usual
    if not may_be_rule(usual):
        raise invalid_answer("answer", "these arguments are too long for a rule; answer once or reject")
    return usual


def _arguments(question: Question) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(str(question.arguments), type=dict[str, Any])
    except msgspec.MsgspecError:
        return None
