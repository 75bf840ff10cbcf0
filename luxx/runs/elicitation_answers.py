"""Answers to what an MCP server asks in the middle of a call. The values go to the server only, so the log of
the run does not have them. Not here: the call that waits (`domain/mcp`).
"""

from collections.abc import Callable
from typing import Any

import msgspec
from sqlalchemy import Connection

from luxx.domain.mcp.elicitation import value_problems
from luxx.infra.field_errors import FieldErrors
from luxx.runs.question_rows import invalid_answer
from luxx.runs.sign_in_questions import IsSignedIn
from luxx.wire.event import QuestionAnswered
from luxx.wire.run import AnswerValue, ElicitationChoice, Question

KeepValues = Callable[[Connection, Question, QuestionAnswered, dict[str, Any] | None], None]
"""Keeps an answer with its values for the call that waits for it, in this transaction."""


def check_elicitation_answer(
    question: Question, answer: AnswerValue, values: dict[str, Any] | None, *, is_owner: bool
) -> None:
    """Raises InvalidInput if the answer or its values do not fit; only the run's user can give values."""
    if answer not in list(ElicitationChoice):
        raise invalid_answer("answer", "this question is answered with accept, decline or cancel")
    if answer != ElicitationChoice.ACCEPT:
        if values:
            raise invalid_answer("arguments", "only the answer accept takes values")
        return
    if not is_owner:
        raise invalid_answer("answer", "only the run's owner can accept; answer decline or cancel, or wait")
    if problems := value_problems(question, values):
        errors = FieldErrors({f"$.{path}": problem for path, problem in problems.items()})
        raise errors.refusal(message=f"these values do not fit: {'; '.join(problems.values())}")


class ServerQuestions(msgspec.Struct, frozen=True, kw_only=True):
    """What answering the questions of MCP servers needs of them."""

    is_signed_in: IsSignedIn
    keep_values: KeepValues
