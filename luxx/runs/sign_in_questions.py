"""Questions that ask the run's user to sign in at an MCP server: which ones are no longer needed, and their
answers. Not here: signing in (`domain/mcp`).
"""

from collections.abc import Callable

import msgspec
from sqlalchemy import ColumnElement, Connection, select
from sqlalchemy.orm import Session

from luxx.infra.store.tables import table_of
from luxx.runs.models import QuestionRow, RunRow
from luxx.runs.question_rows import StoredAnswer, can_answer, invalid_answer, question_of, store_answer
from luxx.wire.event import QuestionAnswered
from luxx.wire.run import AnsweredBy, AnswerValue, QuestionKind, QuestionStatus, SignInChoice

MOST_AT_ONCE = 1000
"""How many open sign-ins one check reads."""

IsSignedIn = Callable[[Connection, int, str], bool]
"""Whether a user need not sign in at the MCP server that they know by this name."""

_runs = table_of(RunRow)


class WhoseQuestions(msgspec.Struct, frozen=True, kw_only=True):
    """The questions of one user, or of all users of a tenant."""

    user_id: int | None = None
    tenant_id: int | None = None

    @property
    def condition(self) -> ColumnElement[bool]:
        if self.user_id is not None:
            return QuestionRow.user_id == self.user_id
        return QuestionRow.tenant_id == self.tenant_id


def check_sign_in_answer(answer: AnswerValue, *, is_owner: bool) -> None:
    """Raises InvalidInput if `answer` does not answer a sign-in; only the run's user can have signed in."""
    if answer not in list(SignInChoice):
        raise invalid_answer("answer", "a sign-in is answered with signed_in or skip")
    if answer == SignInChoice.SIGNED_IN and not is_owner:
        raise invalid_answer("answer", "only the run's owner can sign in; answer skip, or wait")


def open_sign_ins(session: Session, whose: WhoseQuestions, is_signed_in: IsSignedIn) -> list[QuestionRow]:
    """The open sign-ins that are no longer needed, in the order of their runs."""
    query = (
        select(QuestionRow, RunRow)
        .join(RunRow, RunRow.id == QuestionRow.run_id)
        .where(
            whose.condition,
            QuestionRow.status == QuestionStatus.OPEN.value,
            QuestionRow.kind == QuestionKind.SIGN_IN.value,
        )
        .order_by(QuestionRow.run_id, QuestionRow.id)
        .limit(MOST_AT_ONCE)
    )
    known: dict[tuple[int, str], bool] = {}
    found: list[QuestionRow] = []
    connection = session.connection()
    for row, run in session.execute(query):
        key = row.user_id, str(question_of(row).server)
        if key not in known:
            known[key] = is_signed_in(connection, *key)
        if known[key] and can_answer(run):
            found.append(row)
    return found


def store_sign_in_answers(
    session: Session, whose: WhoseQuestions, is_signed_in: IsSignedIn
) -> list[StoredAnswer]:
    """Answers the sign-ins that are no longer needed."""
    connection = session.connection()
    run_ids = sorted({row.run_id for row in open_sign_ins(session, whose, is_signed_in)})
    if not run_ids:
        return []
    # Whoever changes a question of a waiting run has its row first; then the questions are read anew.
    connection.execute(
        select(_runs.c.id).where(_runs.c.id.in_(run_ids)).order_by(_runs.c.id).with_for_update()
    ).all()
    session.expire_all()
    return [
        store_answer(
            connection,
            row,
            QuestionAnswered(
                question_id=row.id, answer=SignInChoice.SIGNED_IN.value, answered_by=AnsweredBy.PERSON
            ),
        )
        for row in open_sign_ins(session, whose, is_signed_in)
        if row.run_id in run_ids
    ]
