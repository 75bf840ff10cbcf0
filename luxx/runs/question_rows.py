"""Rows of questions, the SQL that stores questions and answers and wakes runs, and the permission answers.

A transaction that changes a question of a waiting run updates the run's row first, so that there is no
deadlock.
"""

from collections.abc import Sequence
from datetime import datetime
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from sqlalchemy import (
    ColumnElement,
    Connection,
    ForeignKey,
    Index,
    String,
    Text,
    bindparam,
    insert,
    select,
    update,
)
from sqlalchemy.orm import Mapped, mapped_column

from luxx.errors import Conflict, InvalidInput
from luxx.infra.clock import timestamp, utc_now
from luxx.infra.store.clock import DATABASE_NOW, database_now
from luxx.infra.store.tables import Base, UtcDateTime, table_of
from luxx.runs.models import CALL_ID_LENGTH, RunEventRow, RunRow
from luxx.runs.turn.state import QuestionRecord
from luxx.tools.core import Approved, Rejected
from luxx.tools.permissions.service import PATTERN_LENGTH
from luxx.wire.event import QuestionAnswered, QuestionAsked
from luxx.wire.question import (
    AnsweredBy,
    AnswerValue,
    Option,
    Permission,
    Question,
    QuestionKind,
    QuestionStatus,
    QuestionView,
)
from luxx.wire.run import RunStatus
from luxx.wire.step import Step

DUE_AT_ONCE = 50
"""How many overdue questions one query reads; further queries read the rest."""


class QuestionRow(Base):
    """`asked` and `answer` are JSON. At `due_at` an unanswered question gets its recommended option."""

    __tablename__ = "questions"
    __table_args__ = (
        Index("ix_questions_user_id_status_id", "user_id", "status", "id"),
        Index("ix_questions_status_due_at", "status", "due_at"),
    )

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), index=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"), index=True)
    call_id: Mapped[str] = mapped_column(String(CALL_ID_LENGTH))
    kind: Mapped[str] = mapped_column(String(20))
    status: Mapped[str] = mapped_column(String(20))
    asked: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    due_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    answered_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    answered_by: Mapped[str | None] = mapped_column(String(20))
    answer: Mapped[str | None] = mapped_column(Text)
    note: Mapped[str | None] = mapped_column(Text)


class StoredAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that is in the log at `seq`. `is_last`: no question is open, so the run continues."""

    run_id: str
    seq: int
    is_last: bool


_questions = table_of(QuestionRow)
_runs = table_of(RunRow)
_encode = msgspec.json.Encoder().encode
_asked = msgspec.json.Decoder(Question)
_answer = msgspec.json.Decoder(AnswerValue)
_insert = insert(_questions)
_event = insert(table_of(RunEventRow))
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
_one_open = select(_questions.c.id).where(_questions.c.run_id == bindparam("run_id"), _open).limit(1)
_close = (
    update(_questions)
    .where(_questions.c.run_id == bindparam("b_run"), _open)
    .values(status=QuestionStatus.CLOSED.value)
)


def insert_questions(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    connection.execute(_insert, rows)


def store_answer(connection: Connection, row: QuestionRow, answer: QuestionAnswered) -> StoredAnswer:
    """Stores and logs the answer; wakes the run if no other question is open.

    Raises Conflict if the question is no longer open; then the caller must roll back the transaction.
    """
    seq = connection.execute(_next_seq, {"b_id": row.run_id}).scalar()
    if seq is None:
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
    event = msgspec.structs.replace(answer, run_id=row.run_id, timestamp=timestamp())
    data = _encode(event)
    kind = str(event.__struct_config__.tag)
    connection.execute(
        _event, {"run_id": row.run_id, "seq": seq, "type": kind, "data": data, "internal": None}
    )
    is_last = connection.execute(_one_open, {"run_id": row.run_id}).first() is None
    if is_last:
        wake(connection, RunRow.id == row.run_id)
    return StoredAnswer(run_id=row.run_id, seq=seq, is_last=is_last)


def wake(connection: Connection, condition: ColumnElement[bool]) -> None:
    """Queues the runs that match `condition` and wait for a person."""
    connection.execute(
        update(_runs)
        .where(condition, _runs.c.status == RunStatus.WAITING.value)
        .values(status=RunStatus.QUEUED.value, phase=None, owner=None)
    )


def close_questions(connection: Connection, run_id: str) -> None:
    """Closes the open questions of a run that has ended."""
    connection.execute(_close, {"b_run": run_id})


def due_questions(connection: Connection) -> list[str]:
    """Up to DUE_AT_ONCE overdue open questions, the longest overdue first."""
    now: Any = DATABASE_NOW if connection.dialect.name == "postgresql" else utc_now()
    query = select(_questions.c.id).where(_open, _questions.c.due_at <= now)
    return list(connection.scalars(query.order_by(_questions.c.due_at).limit(DUE_AT_ONCE)))


def question_of(row: QuestionRow) -> Question:
    """The question of a row."""
    return _asked.decode(row.asked)


def question_view(row: QuestionRow, subject_id: str) -> QuestionView:
    """The row of a question as the API returns it."""
    question = question_of(row)
    return QuestionView(
        **{name: getattr(question, name) for name in question.__struct_fields__},
        id=row.id,
        run_id=row.run_id,
        subject_id=subject_id,
        call_id=row.call_id,
        status=QuestionStatus(row.status),
        created_at=row.created_at,
        due_at=row.due_at,
        answered_at=row.answered_at,
        answered_by=None if row.answered_by is None else AnsweredBy(row.answered_by),
        answer=None if row.answer is None else _answer.decode(row.answer),
        note=row.note,
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


ONCE = Option(label=Permission.ONCE.value, description="This call may run")
REJECT = Option(label=Permission.REJECT.value, description="This call may not run")


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


def options_of(usual: str) -> list[Option]:
    """The options of a permission; "always" only if the pattern fits into a rule."""
    if not may_be_rule(usual):
        return [ONCE, REJECT]
    about = "This call may run, and so may all calls that match; this adds a rule"
    return [ONCE, Option(label=Permission.ALWAYS.value, description=about), REJECT]


def may_be_rule(usual: str) -> bool:
    """Whether a rule can store the pattern: not too long, and without NUL for PostgreSQL."""
    return len(usual) <= PATTERN_LENGTH and "\0" not in usual


def check_permission_answer(question: Question, answer: AnswerValue) -> None:
    """Raises InvalidInput if `answer` does not answer a permission."""
    if answer not in list(Permission):
        raise invalid_answer("answer", "a permission is answered with once, always or reject")
    if answer == Permission.ALWAYS and answer not in [option.label for option in question.options]:
        raise invalid_answer("answer", "this call is too long for a rule; answer once or reject")


def answer_event(
    run_id: str,
    question_id: str,
    question: Question,
    answer: AnswerValue,
    *,
    note: str | None,
    edited: str | None,
) -> QuestionAnswered:
    """The event of a person's answer; a permission is bound to the call that it allows."""
    answered = QuestionAnswered(
        question_id=question_id,
        answer=answer,
        answered_by=AnsweredBy.PERSON,
        note=msgspec.UNSET if note is None else note,
        arguments=msgspec.UNSET if edited is None else edited,
    )
    return answered if question.kind != QuestionKind.PERMISSION else bind_answer(run_id, question, answered)


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


def invalid_answer(field: str, problem: str) -> InvalidInput:
    """The error for one field of an answer."""
    return InvalidInput(f"the request is not valid: {problem}", detail={"fields": {f"$.{field}": problem}})


def _approved_hash(run_id: str, question: Question | QuestionAsked, answer: QuestionAnswered) -> str:
    arguments = answer.arguments if isinstance(answer.arguments, str) else str(question.arguments)
    return call_hash(run_id, str(question.tool), arguments)
