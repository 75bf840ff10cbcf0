"""`/questions` and `/runs/{id}/questions`: what runs ask you, and your answers."""

from typing import Annotated, Any

import msgspec
from litestar import Controller, get, post
from litestar.di import NamedDependency
from litestar.params import FromQuery, JSONBody
from msgspec import Meta

from luxx.api.envelope import Page, Success, success
from luxx.api.parameters import GivenCaller, PageNumber, PageSize, TextId
from luxx.runs.questions import GivenAnswer, QuestionFilter, QuestionService
from luxx.wire.question import QuestionStatus, QuestionView

GivenQuestions = NamedDependency[QuestionService]
Words = Annotated[str, Meta(min_length=1, max_length=10_000)]


class AnswerBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`answer`: an option's label or your own words, several in a list where `multiple`; for a permission
    `once`, `always` (until the run ends) or `reject`. `note` is for the model. `arguments`: what to run the
    tool of a permission with instead.
    """

    answer: Words | Annotated[list[Words], Meta(min_length=1, max_length=50)]
    note: Annotated[str, Meta(max_length=10_000)] | None = None
    arguments: dict[str, Any] | None = None


class QuestionController(Controller):
    path = "/"
    tags = ("questions",)

    @get("/questions")
    async def list_questions(
        self,
        caller: GivenCaller,
        questions: GivenQuestions,
        status: FromQuery[QuestionStatus | None] = None,
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[QuestionView]]:
        """What all your runs ask or have asked you, newest first."""
        wanted = QuestionFilter(status=status)
        items, total = await questions.list_page(caller, wanted, page=page, page_size=page_size)
        return success(Page(items=items, total=total, page=page, page_size=page_size))

    @get("/runs/{run_id:str}/questions")
    async def questions_of_run(
        self,
        caller: GivenCaller,
        questions: GivenQuestions,
        run_id: TextId,
        status: FromQuery[QuestionStatus | None] = None,
        page: PageNumber = 1,
        page_size: PageSize = 20,
    ) -> Success[Page[QuestionView]]:
        """What one run asks or has asked you, newest first."""
        wanted = QuestionFilter(run_id=run_id, status=status)
        items, total = await questions.list_page(caller, wanted, page=page, page_size=page_size)
        return success(Page(items=items, total=total, page=page, page_size=page_size))

    @post("/runs/{run_id:str}/questions/{question_id:str}/answer", status_code=200)
    async def answer_question(
        self,
        caller: GivenCaller,
        questions: GivenQuestions,
        run_id: TextId,
        question_id: TextId,
        data: JSONBody[AnswerBody],
    ) -> Success[QuestionView]:
        """Answer a question. The run goes on once all that it asks has an answer; 409 for a second answer."""
        given = GivenAnswer(answer=data.answer, note=data.note, arguments=data.arguments)
        return success(await questions.answer(caller, run_id, question_id, given), "answered")
