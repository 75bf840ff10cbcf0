"""The answer "always": the rule that it makes, and the open questions that need no answer any more for it.

All in the transaction of the answer. Runs are locked in the order of their ids, after the rules.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
from sqlalchemy import Connection, bindparam, select
from sqlalchemy.orm import Session

from luxx.accounts.caller import Caller
from luxx.runs.approvals import bound, may_be_rule, wrong
from luxx.runs.binding import rules_for
from luxx.runs.models import RunEventRow, RunRow
from luxx.runs.questions_rows import QuestionRow, Settled, question_of, settle
from luxx.store.tables import table_of
from luxx.tools.core import ToolContext
from luxx.tools.executor import ToolExecutor
from luxx.tools.permission import DecidedBy
from luxx.tools.rules_rows import Owner, append, read_list
from luxx.tools.rules_service import record_change
from luxx.tools.subjects import subject_of
from luxx.wire.event import QuestionAnswered, Tainted
from luxx.wire.question import AnsweredBy, Permission, Question, QuestionKind, QuestionStatus
from luxx.wire.rule import Rule, RuleAction
from luxx.wire.run import RunStatus

MOST_AT_ONCE = 1000
"""Open permissions of one user that one answer looks at."""

_runs, _events = table_of(RunRow), table_of(RunEventRow)
_locked = (
    select(_runs.c.id)
    .where(_runs.c.user_id == bindparam("user_id"), _runs.c.status == RunStatus.WAITING.value)
    .order_by(_runs.c.id)
    .with_for_update()
)
_tainted = select(_events.c.data).where(
    _events.c.run_id == bindparam("run_id"), _events.c.type == str(Tainted.__struct_config__.tag)
)
_taint = msgspec.json.Decoder(Tainted)


def keep_rule(
    session: Session, caller: Caller, executor: ToolExecutor, question: Question, answer: QuestionAnswered
) -> None:
    """Makes the rule that "always" means. Raises Conflict where the user has no room for it."""
    connection = session.connection()
    owner = Owner(tenant_id=caller.tenant_id, user_id=caller.user_id)
    usual = _usual(executor, question, answer)
    append(connection, owner, Rule(tool=str(question.tool), pattern=usual, action=RuleAction.ALLOW))
    record_change(session, caller, owner, len(read_list(connection, owner)))
    connection.execute(_locked, {"user_id": caller.user_id}).all()


def settle_covered(session: Session, caller: Caller, executor: ToolExecutor) -> list[Settled]:
    """Answers those open permissions of the user's runs that a rule allows now."""
    query = (
        select(QuestionRow, RunRow.subject_id)
        .join(RunRow, RunRow.id == QuestionRow.run_id)
        .where(
            QuestionRow.user_id == caller.user_id,
            QuestionRow.status == QuestionStatus.OPEN.value,
            QuestionRow.kind == QuestionKind.PERMISSION.value,
            RunRow.status == RunStatus.WAITING.value,
        )
        .order_by(QuestionRow.run_id, QuestionRow.id)
        .limit(MOST_AT_ONCE)
    )
    rows = [(row, subject_id) for row, subject_id in session.execute(query)]
    return list(_settled(session.connection(), caller, executor, rows))


def _settled(
    connection: Connection, caller: Caller, executor: ToolExecutor, rows: list[tuple[QuestionRow, str]]
) -> Iterator[Settled]:
    for row, subject_id in rows:
        question = question_of(row)
        if _is_allowed(connection, caller, executor, question, row.run_id, subject_id):
            answered = QuestionAnswered(
                question_id=row.id, answer=Permission.ALWAYS.value, answered_by=AnsweredBy.RULE
            )
            yield settle(connection, row, bound(row.run_id, question, answered))


def _is_allowed(
    connection: Connection,
    caller: Caller,
    executor: ToolExecutor,
    question: Question,
    run_id: str,
    subject_id: str,
) -> bool:
    tool = executor.registry.get(str(question.tool))
    arguments = _arguments(question)
    if tool is None or arguments is None:
        return False
    tainted = connection.execute(_tainted, {"run_id": run_id}).scalar()
    context = ToolContext(
        user_id=caller.user_id,
        username=caller.username,
        user_permission_level=caller.permission_level,
        run_id=run_id,
        tenant_id=caller.tenant_id,
        rules=rules_for(connection, caller, subject_id),
        tainted_by=None if tainted is None else _taint.decode(tainted).by,
    )
    verdict = executor.judge.verdict(tool, arguments, context)
    return verdict.action == RuleAction.ALLOW and verdict.decided_by == DecidedBy.RULE


def _usual(executor: ToolExecutor, question: Question, answer: QuestionAnswered) -> str:
    """The pattern that was shown, or where the arguments were changed, that of the changed ones."""
    tool = executor.registry.get(str(question.tool))
    is_edited = isinstance(answer.arguments, str)
    arguments = msgspec.json.decode(str(answer.arguments)) if is_edited else _arguments(question)
    if isinstance(question.usual, str) and not is_edited:
        return question.usual
    usual = "*" if tool is None or arguments is None else subject_of(tool, arguments).usual
    if not may_be_rule(usual):
        raise wrong("answer", "what these arguments do is too long for a rule; answer once or reject")
    return usual


def _arguments(question: Question) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(str(question.arguments), type=dict[str, Any])
    except msgspec.MsgspecError:
        return None
