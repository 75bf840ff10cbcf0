"""Questions as their person uses them: see them, answer one. And what happens when nobody does in time."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, assert_never

import msgspec
import structlog
from sqlalchemy import Select, func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.errors import Conflict, InvalidInput, NotFound
from luxx.infra.store.engine import Store
from luxx.runs.models import RunRow, own_run
from luxx.runs.question_rows import (
    DUE_AT_ONCE,
    QuestionRow,
    Settled,
    answer_to,
    check_open,
    check_permission,
    close_questions,
    due_questions,
    question_of,
    question_view,
    settle,
    wrong,
)
from luxx.runs.question_rules import covered, keep_rule, open_permissions, settle_covered
from luxx.runs.streams.hub import Hub
from luxx.runs.streams.notices import Told
from luxx.tools.executor import ToolExecutor
from luxx.tools.permissions.service import take_turn
from luxx.wire.event import QuestionAnswered
from luxx.wire.question import (
    Answer,
    AnsweredBy,
    Permission,
    Question,
    QuestionKind,
    QuestionStatus,
    QuestionView,
)
from luxx.wire.run import ENDED, RunStatus

logger = structlog.get_logger()


class Engine(Protocol):
    """Who drives runs (`durable.py`)."""

    def wake(self) -> None:
        """A run waits for a place: somebody is to look."""
        ...


class GivenAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a person answers. `arguments` are for a permission: those to run the tool with instead."""

    answer: Answer
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
        store: Store,
        hub: Hub,
        engine: Engine,
        executor: ToolExecutor,
        told: Told,
        workspace_of: Callable[[int], Path],
    ) -> None:
        self._workspace_of = workspace_of
        self._store = store
        self._hub = hub
        self._engine = engine
        self._executor = executor
        self._told = told

    async def list_page(
        self, caller: Caller, wanted: QuestionFilter, *, page: int, page_size: int
    ) -> tuple[list[QuestionView], int]:
        """The caller's questions, newest first, and how many match. Raises NotFound for another's run."""

        def work(session: Session) -> tuple[list[QuestionView], int]:
            if wanted.run_id is not None:
                own_run(session, caller, wanted.run_id)
            query = _matching(caller, wanted)
            total = session.scalar(select(func.count()).select_from(query.subquery())) or 0
            ordered = query.order_by(QuestionRow.id.desc()).offset((page - 1) * page_size).limit(page_size)
            return [question_view(row, subject_id) for row, subject_id in session.execute(ordered)], total

        return await self._store.read(work)

    async def answer(self, caller: Caller, run_id: str, question_id: str, given: GivenAnswer) -> QuestionView:
        """Takes the answer, once for all processes, and lets the run go on after its last question.

        Raises NotFound, InvalidInput, or Conflict where there is an answer or the run has ended.
        """

        def work(session: Session) -> tuple[QuestionView, Settled, bool]:
            if given.answer == Permission.ALWAYS:
                take_turn(session.connection(), caller.tenant_id)
            run, row = _own_question(session, caller, run_id, question_id)
            check_open(row.status)
            question = question_of(row)
            answered = self._checked(run_id, question_id, question, given)
            is_rule = question.kind == QuestionKind.PERMISSION and answered.answer == Permission.ALWAYS
            if is_rule:
                keep_rule(session, caller, self._executor, question, answered)
            settled = settle(session.connection(), row, answered)
            session.refresh(row)
            return question_view(row, run.subject_id), settled, is_rule

        view, settled, is_rule = await self._store.write(work)
        self._go_on(caller.user_id, [settled])
        if is_rule:
            await self.answer_covered(caller.user_id)
        return view

    async def answer_covered(self, user_id: int) -> None:
        """Answers those open permissions of the user's runs that a rule allows now.

        What brought the rule has been done by then: where this fails, the questions stay open.
        """
        try:
            workspace = self._workspace_of(user_id)
            asked = await self._store.read(lambda session: open_permissions(session, user_id, workspace))
            found = await asyncio.to_thread(covered, self._executor, asked) if asked else []
            if not found:
                return
            settled = await self._store.write(lambda session: settle_covered(session, user_id, found))
        except (Conflict, SQLAlchemyError):
            logger.exception("covered_questions_stay_open", user_id=user_id)
            return
        self._go_on(user_id, settled)

    async def answer_due(self) -> None:
        """Gives those questions their recommended option whose time is over; any process may do it."""
        is_more = True
        while is_more:
            due = await self._store.read(lambda session: due_questions(session.connection()))
            ended = [question_id for question_id in due if await self._end_waiting(question_id)]
            # What nothing could be done about now is not looked at again before the next beat.
            is_more = len(due) == DUE_AT_ONCE and bool(ended)

    async def _end_waiting(self, question_id: str) -> bool:
        """Whether this question is open no longer by what was done here."""
        try:
            found = await self._store.write(lambda session: _answer_due(session, question_id))
        except Conflict:
            return False  # Somebody was quicker.
        if found is None:
            return False
        user_id, settled = found
        logger.info("question_timed_out", run_id=settled.run_id)
        self._go_on(user_id, [settled])
        return True

    def _go_on(self, user_id: int, all_settled: list[Settled]) -> None:
        for settled in all_settled:
            self._hub.tell(settled.run_id, settled.seq)
            self._told(settled.run_id, user_id)
        if any(settled.is_last for settled in all_settled):
            self._engine.wake()

    def _checked(
        self, run_id: str, question_id: str, question: Question, given: GivenAnswer
    ) -> QuestionAnswered:
        """The answer as it is logged. Raises InvalidInput for what answers something else."""
        if given.arguments is not None and question.kind != QuestionKind.PERMISSION:
            raise wrong("arguments", "only a permission takes arguments")
        match question.kind:
            case QuestionKind.PERMISSION:
                check_permission(question, given.answer)
            case QuestionKind.CLARIFICATION | QuestionKind.DECISION:
                _check_choice(question, given.answer)
            case _:
                assert_never(question.kind)
        edited = None if given.arguments is None else self._edited(question, given.arguments)
        return answer_to(run_id, question_id, question, given.answer, note=given.note, edited=edited)

    def _edited(self, question: Question, arguments: dict[str, Any]) -> str:
        """A person's arguments as JSON text; they have to fit the tool as the model's had to."""
        found = self._executor.registry.lookup(str(question.tool))
        problems = found[1].problems(arguments) if found is not None else {}
        if problems:
            words = "; ".join(problems.values())
            fields = {f"$.{path}": problem for path, problem in problems.items()}
            raise InvalidInput(
                f"these arguments do not fit {question.tool}: {words}",
                kind="arguments_invalid",
                detail={"fields": fields},
            )
        return msgspec.json.encode(arguments).decode()


def _matching(caller: Caller, wanted: QuestionFilter) -> Select[QuestionRow, str]:
    query = (
        select(QuestionRow, RunRow.subject_id)
        .join(RunRow, RunRow.id == QuestionRow.run_id)
        .where(QuestionRow.user_id == caller.user_id)
    )
    if wanted.run_id is not None:
        query = query.where(QuestionRow.run_id == wanted.run_id)
    if wanted.status is not None:
        query = query.where(QuestionRow.status == wanted.status.value)
    return query


def _own_question(
    session: Session, caller: Caller, run_id: str, question_id: str
) -> tuple[RunRow, QuestionRow]:
    run = own_run(session, caller, run_id)
    row = session.get(QuestionRow, question_id)
    if row is None or row.run_id != run.id or row.user_id != caller.user_id:
        raise NotFound("this run has no question with this id", kind="question_not_found")
    return run, row


def _check_choice(question: Question, answer: Answer) -> None:
    if isinstance(answer, list) and not question.multiple:
        raise wrong("answer", "this question takes one answer, so give one text")
    said = answer if isinstance(answer, list) else [answer]
    if not said or not all(one.strip() for one in said):
        raise wrong("answer", "at least one visible character is needed")


def _answer_due(session: Session, question_id: str) -> tuple[int, Settled] | None:
    """The recommended option, as if somebody had chosen it. Raises Conflict where it is not open any more."""
    row = session.get(QuestionRow, question_id)
    run = None if row is None else session.get(RunRow, row.run_id)
    if row is None or run is None:
        return None
    if run.status in [status.value for status in ENDED]:
        close_questions(session.connection(), run.id)
        return None
    question = question_of(row)
    recommended = [option.label for option in question.options if option.is_recommended]
    if run.status != RunStatus.WAITING.value or not recommended:
        return None
    answered = QuestionAnswered(
        question_id=row.id,
        answer=recommended if question.multiple else recommended[0],
        answered_by=AnsweredBy.TIMEOUT,
    )
    return row.user_id, settle(session.connection(), row, answered)
