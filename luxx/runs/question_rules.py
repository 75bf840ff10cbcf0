"""The answer "always": stores its rule, and answers the open questions that a rule covers.

The rules are judged outside of a transaction; a later transaction answers the questions that are still open.
A new rule is followed by a check of the open questions, and a new question by a check of the rules. So
neither misses the other. Transactions lock runs in the order of their ids.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.service import user_as_caller
from luxx.errors import LuxxError
from luxx.infra.store.tables import table_of
from luxx.runs.models import RunEventRow, RunRow
from luxx.runs.question_rows import (
    QuestionRow,
    StoredAnswer,
    bind_answer,
    invalid_answer,
    may_be_rule,
    question_of,
    store_answer,
)
from luxx.runs.turn.restrictions import rules_for
from luxx.tools.core import ToolContext
from luxx.tools.executor import ToolExecutor
from luxx.tools.permissions.judge import DecidedBy
from luxx.tools.permissions.service import Owner, append_rule, read_list, record_change
from luxx.tools.permissions.subjects import subject_of
from luxx.wire.event import QuestionAnswered, Tainted
from luxx.wire.question import AnsweredBy, Permission, Question, QuestionKind, QuestionStatus
from luxx.wire.rule import Rule, RuleAction
from luxx.wire.run import RunStatus

MAX_PERMISSIONS = 1000
"""How many open permissions of one user one check reads."""

_runs, _events = table_of(RunRow), table_of(RunEventRow)
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
_taint = msgspec.json.Decoder(Tainted)


class OpenPermission(msgspec.Struct, frozen=True, kw_only=True):
    """An open permission question, with the context that its call has now."""

    id: str
    question: Question
    context: ToolContext


def store_rule(
    session: Session, caller: Caller, executor: ToolExecutor, question: Question, answer: QuestionAnswered
) -> None:
    """Stores the rule of the answer "always". Raises Conflict if the user has too many rules."""
    connection = session.connection()
    owner = Owner(tenant_id=caller.tenant_id, user_id=caller.user_id)
    usual = _pattern(executor, question, answer)
    append_rule(connection, owner, Rule(tool=str(question.tool), pattern=usual, action=RuleAction.ALLOW))
    record_change(session, caller, owner, len(read_list(connection, owner)))


def open_permissions(session: Session, user_id: int, workspace: Path) -> list[OpenPermission]:
    """The open permission questions of the user's waiting runs."""
    try:
        caller = user_as_caller(session.connection(), user_id)
    except LuxxError:
        return []
    rows = session.execute(
        select(QuestionRow, RunRow.subject_id)
        .join(RunRow, RunRow.id == QuestionRow.run_id)
        .where(
            QuestionRow.user_id == user_id,
            QuestionRow.status == QuestionStatus.OPEN.value,
            QuestionRow.kind == QuestionKind.PERMISSION.value,
            RunRow.status == RunStatus.WAITING.value,
        )
        .order_by(QuestionRow.run_id, QuestionRow.id)
        .limit(MAX_PERMISSIONS)
    ).all()
    connection = session.connection()
    run_ids = sorted({row.run_id for row, _ in rows})
    events = connection.execute(_tainted, {"run_ids": run_ids})
    taints = {run_id: _taint.decode(data).by for run_id, data in events}
    subjects = {subject_id for _, subject_id in rows}
    rules = {subject_id: rules_for(connection, caller, subject_id) for subject_id in subjects}
    return [
        OpenPermission(
            id=row.id,
            question=question_of(row),
            context=ToolContext(
                user_id=user_id,
                username=caller.username,
                user_permission_level=caller.permission_level,
                run_id=row.run_id,
                tenant_id=caller.tenant_id,
                rules=rules[subject_id],
                tainted_by=taints.get(row.run_id),
                workspace=workspace,
            ),
        )
        for row, subject_id in rows
    ]


def find_covered(executor: ToolExecutor, permissions: Sequence[OpenPermission]) -> list[str]:
    """The ids of those that a rule allows. Run it in a thread: judging many is slow."""
    verdicts: dict[tuple[Any, ...], bool] = {}
    allowed_ids: list[str] = []
    for one in permissions:
        question, context = one.question, one.context
        key = (question.tool, question.arguments, context.rules, context.tainted_by)
        if key not in verdicts:
            verdicts[key] = _is_allowed(executor, question, context)
        allowed_ids += [one.id] if verdicts[key] else []
    return allowed_ids


def store_covered_answers(session: Session, user_id: int, question_ids: Sequence[str]) -> list[StoredAnswer]:
    """Answers those of the questions that are still open."""
    connection = session.connection()
    connection.execute(_lock_waiting_runs, {"user_id": user_id}).all()
    rows = session.scalars(
        select(QuestionRow)
        .join(RunRow, RunRow.id == QuestionRow.run_id)
        .where(
            QuestionRow.id.in_(question_ids),
            QuestionRow.user_id == user_id,
            QuestionRow.status == QuestionStatus.OPEN.value,
            RunRow.status == RunStatus.WAITING.value,
        )
        .order_by(QuestionRow.run_id, QuestionRow.id)
    ).all()
    stored: list[StoredAnswer] = []
    for row in rows:
        answered = QuestionAnswered(
            question_id=row.id, answer=Permission.ALWAYS.value, answered_by=AnsweredBy.RULE
        )
        stored.append(store_answer(connection, row, bind_answer(row.run_id, question_of(row), answered)))
    return stored


def _is_allowed(executor: ToolExecutor, question: Question, context: ToolContext) -> bool:
    tool = executor.registry.get(str(question.tool))
    arguments = _arguments(question)
    if tool is None or arguments is None:
        return False
    verdict = executor.judge.verdict(tool, arguments, context)
    return verdict.action == RuleAction.ALLOW and verdict.decided_by == DecidedBy.RULE


def _pattern(executor: ToolExecutor, question: Question, answer: QuestionAnswered) -> str:
    """The pattern of the rule: the one shown or, for edited arguments, the one that fits these."""
    tool = executor.registry.get(str(question.tool))
    is_edited = isinstance(answer.arguments, str)
    arguments = msgspec.json.decode(str(answer.arguments)) if is_edited else _arguments(question)
    if isinstance(question.usual, str) and not is_edited:
        return question.usual
    usual = "*" if tool is None or arguments is None else subject_of(tool, arguments).usual
    if not may_be_rule(usual):
        raise invalid_answer("answer", "these arguments are too long for a rule; answer once or reject")
    return usual


def _arguments(question: Question) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(str(question.arguments), type=dict[str, Any])
    except msgspec.MsgspecError:
        return None
