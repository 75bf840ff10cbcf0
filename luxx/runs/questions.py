"""The operations on questions: list them, answer one, and answer those that are due or covered by a rule."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, assert_never

import msgspec
import structlog
from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller, KeyScope
from luxx.errors import Conflict, NotFound
from luxx.infra.field_errors import FieldErrors
from luxx.infra.store.tables import Lock, lock_until_commit
from luxx.runs.elicitation_answers import ServerQuestions, check_elicitation_answer
from luxx.runs.engine.driver import RunDriver
from luxx.runs.models import QuestionRow, RunRight, RunRow, find_run, member_subjects
from luxx.runs.question_rows import (
    DUE_AT_ONCE,
    StoredAnswer,
    answer_event,
    can_answer,
    check_loop_answer,
    check_open,
    check_permission_answer,
    due_questions,
    find_covered,
    invalid_answer,
    open_permissions,
    question_of,
    question_view,
    store_answer,
    store_covered_answers,
    store_rule,
)
from luxx.runs.sign_in_questions import (
    WhoseQuestions,
    check_sign_in_answer,
    open_sign_ins,
    store_sign_in_answers,
)
from luxx.runs.turn.asking import close_questions
from luxx.runs.turn.context import RunServices
from luxx.tools.core import ToolSet
from luxx.wire.event import QuestionAnswered
from luxx.wire.run import (
    ENDED,
    LOOP_DECISION,
    AnsweredBy,
    AnswerValue,
    Permission,
    Question,
    QuestionKind,
    QuestionStatus,
    QuestionView,
)

logger = structlog.get_logger()


class GivenAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A person's answer. `arguments` replace the arguments of the call: of a permission, or with `correct` of
    one that repeats earlier ones. Of an elicitation they are the values that the MCP server asks for."""

    answer: AnswerValue
    note: str | None = None
    arguments: dict[str, Any] | None = None


class QuestionFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which questions to list; None does not filter."""

    run_id: str | None = None
    status: QuestionStatus | None = None


class QuestionService:
    """One per process."""

    def __init__(
        self,
        services: RunServices,
        engine: RunDriver,
        workspace_of: Callable[[int], Path],
        servers: ServerQuestions,
    ) -> None:
        self._is_signed_in = servers.is_signed_in
        self._keep_values = servers.keep_values
        self._store = services.store
        self._hub = services.hub
        self._tools = services.tools
        self._judge = services.executor.judge
        self._notify = services.notify
        self._engine = engine
        self._workspace_of = workspace_of

    async def list_page(
        self, caller: Caller, question_filter: QuestionFilter, *, page: int, page_size: int
    ) -> tuple[list[QuestionView], int]:
        """A page of the questions of the runs that the caller may see, newest first, and how many match.

        Raises NotFound for a run that the caller may not see.
        """

        def read_page(session: Session) -> tuple[list[QuestionView], int]:
            if question_filter.run_id is not None:
                find_run(session, caller, question_filter.run_id)
            query = select(QuestionRow, RunRow.subject_id).join(RunRow, RunRow.id == QuestionRow.run_id)
            if question_filter.run_id is not None:
                query = query.where(QuestionRow.run_id == question_filter.run_id)
            else:
                query = query.where(_is_of(caller, member_subjects(session, caller)))
            if question_filter.status is not None:
                query = query.where(QuestionRow.status == question_filter.status.value)
            total = session.scalar(select(func.count()).select_from(query.subquery())) or 0
            ordered = query.order_by(QuestionRow.id.desc()).offset((page - 1) * page_size).limit(page_size)
            rows = session.execute(ordered)
            return [question_view(row, subject_id, caller) for row, subject_id in rows], total

        return await self._store.read(read_page)

    async def answer(self, caller: Caller, run_id: str, question_id: str, given: GivenAnswer) -> QuestionView:
        """Stores the answer; after the last open question the run continues.

        Raises NotFound, NotAllowed, InvalidInput, or Conflict if the question is answered already or the run
        has ended.
        """

        def write_answer(session: Session) -> tuple[QuestionView, StoredAnswer, bool]:
            if given.answer == Permission.ALWAYS:
                caller.require_scope(KeyScope.ADMIN, "the answer 'always', which writes a permission rule,")
                lock_until_commit(session.connection(), Lock.TENANT_RULES, caller.tenant_id)
            run, row = _find_question(session, caller, run_id, question_id)
            check_open(row.status)
            question = question_of(row)
            answered = self._validated(session, caller, row, question, given)
            is_rule = question.kind == QuestionKind.PERMISSION and answered.answer == Permission.ALWAYS
            if is_rule:
                store_rule(session, caller, self._tools, question, answered)
            stored = store_answer(session.connection(), row, answered)
            if question.kind == QuestionKind.ELICITATION:
                self._keep_values(session.connection(), question, answered, given.arguments)
            session.refresh(row)
            return question_view(row, run.subject_id, caller), stored, is_rule

        view, stored, is_rule = await self._store.write(write_answer)
        self._continue_runs([stored])
        if is_rule:
            await self.answer_covered(caller.user_id)
        return view

    async def answer_new(self, user_id: int) -> None:
        """Answers what has become needless while it was asked: a rule or a sign-in came first."""
        await self.answer_covered(user_id)
        await self.answer_signed_in(WhoseQuestions(user_id=user_id))

    async def answer_covered(self, user_id: int) -> None:
        """Answers the open permission questions of the user that a rule now allows.

        The rule is stored already. If this fails, the questions stay open and the error is logged.
        """
        try:
            workspace = self._workspace_of(user_id)
            permissions = await self._store.read(
                lambda session: open_permissions(session, user_id, self._tools, workspace)
            )
            if not permissions:
                return
            allowed_ids = await asyncio.to_thread(find_covered, self._judge, permissions)
            if not allowed_ids:
                return
            stored = await self._store.write(
                lambda session: store_covered_answers(session, user_id, allowed_ids)
            )
        except (Conflict, SQLAlchemyError):
            logger.exception("covered_questions_not_answered", user_id=user_id)
            return
        self._continue_runs(stored)

    async def answer_signed_in(self, whose: WhoseQuestions) -> None:
        """Answers the open sign-ins that are no longer needed. If this fails, they stay open and the error is
        logged: their user can answer them."""
        is_signed_in = self._is_signed_in
        try:
            if not await self._store.read(lambda session: open_sign_ins(session, whose, is_signed_in)):
                return
            stored = await self._store.write(
                lambda session: store_sign_in_answers(session, whose, is_signed_in)
            )
        except (Conflict, SQLAlchemyError):
            logger.exception("sign_ins_not_answered", user_id=whose.user_id, tenant_id=whose.tenant_id)
            return
        self._continue_runs(stored)

    async def answer_due(self) -> None:
        """Answers overdue questions with their recommended option; every process may do this."""
        is_more = True
        while is_more:
            due = await self._store.read(lambda session: due_questions(session.connection()))
            ended = [question_id for question_id in due if await self._answer_if_due(question_id)]
            # If none could be answered, the next heartbeat tries again.
            is_more = len(due) == DUE_AT_ONCE and bool(ended)

    async def _answer_if_due(self, question_id: str) -> bool:
        """Answers the question if it is overdue. Returns whether this call answered it."""
        try:
            stored = await self._store.write(lambda session: _answer_due(session, question_id))
        except Conflict:
            return False  # Another process or a person has answered it.
        if stored is None:
            return False
        logger.info("question_timed_out", run_id=stored.run_id)
        self._continue_runs([stored])
        return True

    def _continue_runs(self, stored_answers: list[StoredAnswer]) -> None:
        for stored in stored_answers:
            if stored.is_input:
                self._engine.deliver(stored.run_id)
            else:
                self._hub.announce_log(stored.run_id, stored.seq)
            self._notify(stored.run_id, None)  # In every process: members of a room may listen there.
        if any(stored.is_last for stored in stored_answers):
            self._engine.wake()

    def _validated(
        self, session: Session, caller: Caller, row: QuestionRow, question: Question, given: GivenAnswer
    ) -> QuestionAnswered:
        """The event of a valid answer. Raises InvalidInput if the answer does not fit the question."""
        is_owner = row.user_id == caller.user_id
        is_loop = question.decision_type == LOOP_DECISION
        edits = question.kind == QuestionKind.PERMISSION or is_loop
        if given.arguments is not None and not edits and question.kind != QuestionKind.ELICITATION:
            raise invalid_answer("arguments", "only a permission takes arguments")
        match question.kind:
            case QuestionKind.PERMISSION:
                check_permission_answer(question, given.answer, is_owner=is_owner)
            case QuestionKind.DECISION if is_loop:
                _check_choice(question, given.answer)
                check_loop_answer(
                    question, given.answer, given.note, has_arguments=given.arguments is not None
                )
            case QuestionKind.CLARIFICATION | QuestionKind.DECISION:
                _check_choice(question, given.answer)
            case QuestionKind.SIGN_IN:
                check_sign_in_answer(given.answer, is_owner=is_owner)
            case QuestionKind.ELICITATION:
                check_elicitation_answer(question, given.answer, given.arguments, is_owner=is_owner)
            case _:
                assert_never(question.kind)
        edited = None
        if given.arguments is not None and edits:
            # The tools of the run's user, who may be another one than the caller.
            owner = msgspec.structs.replace(caller, user_id=row.user_id)
            tools = self._tools.for_caller(session, owner, (str(question.tool),))
            edited = _edited_arguments(tools, question, given.arguments)
        user = None if is_owner else caller.username
        return answer_event(
            row.run_id, row.id, question, given.answer, note=given.note, edited=edited, user=user
        )


def _edited_arguments(tools: ToolSet, question: Question, arguments: dict[str, Any]) -> str:
    """The edited arguments as JSON text. Raises InvalidInput if they do not fit the tool."""
    found = tools.lookup(str(question.tool))
    problems = found[1].problems(arguments) if found is not None else {}
    if problems:
        errors = FieldErrors({f"$.{path}": problem for path, problem in problems.items()})
        message = f"these arguments do not fit {question.tool}: {'; '.join(problems.values())}"
        raise errors.refusal(message=message, kind="arguments_invalid")
    return msgspec.json.encode(arguments).decode()


def _is_of(caller: Caller, subject_ids: Sequence[str]) -> ColumnElement[bool]:
    """The condition on the questions of the runs that the caller may see; see `visible_to`."""
    is_own = QuestionRow.user_id == caller.user_id
    if not subject_ids:
        return is_own
    return or_(is_own, and_(QuestionRow.tenant_id == caller.tenant_id, RunRow.subject_id.in_(subject_ids)))


def _find_question(
    session: Session, caller: Caller, run_id: str, question_id: str
) -> tuple[RunRow, QuestionRow]:
    run = find_run(session, caller, run_id, RunRight.ANSWER)
    row = session.get(QuestionRow, question_id)
    if row is None or row.run_id != run.id:
        raise NotFound("this run has no question with this id", kind="question_not_found")
    return run, row


def _check_choice(question: Question, answer: AnswerValue) -> None:
    if isinstance(answer, list) and not question.multiple:
        raise invalid_answer("answer", "this question accepts one answer; send one string")
    answers = answer if isinstance(answer, list) else [answer]
    if not answers or not all(answer.strip() for answer in answers):
        raise invalid_answer("answer", "at least one visible character is needed")


def _answer_due(session: Session, question_id: str) -> StoredAnswer | None:
    """Stores the recommended option as the answer. Raises Conflict if the question is not open."""
    row = session.get(QuestionRow, question_id)
    run = None if row is None else session.get(RunRow, row.run_id)
    if row is None or run is None:
        return None
    if run.status in ENDED:
        close_questions(session.connection(), run.id)
        return None
    question = question_of(row)
    recommended = [option.label for option in question.options if option.is_recommended]
    if not can_answer(run) or not recommended:
        return None
    answered = QuestionAnswered(
        question_id=row.id,
        answer=recommended if question.multiple else recommended[0],
        answered_by=AnsweredBy.TIMEOUT,
    )
    return store_answer(session.connection(), row, answered)
