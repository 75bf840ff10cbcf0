"""Questions of a run to a person, and their answers."""

from datetime import datetime
from enum import StrEnum

import msgspec
from msgspec import UNSET, UnsetType


class QuestionKind(StrEnum):
    """`permission`: whether a tool may run; `clarification`: what the goal is; `decision`: which option."""

    PERMISSION = "permission"
    CLARIFICATION = "clarification"
    DECISION = "decision"


class QuestionStatus(StrEnum):
    """`closed`: the run ended before anybody answered."""

    OPEN = "open"
    ANSWERED = "answered"
    CLOSED = "closed"


class Permission(StrEnum):
    """Answers to a permission; `always` also adds a rule of the user (docs/agents/permissions.md)."""

    ONCE = "once"
    ALWAYS = "always"
    REJECT = "reject"


class AnsweredBy(StrEnum):
    """`timeout`: nobody answered in time, so the recommended option is the answer. `rule`: a rule now allows
    the call, for example after the answer `always` to another question."""

    PERSON = "person"
    TIMEOUT = "timeout"
    RULE = "rule"


class WhenAsked(StrEnum):
    """What a run does when it must ask a person: it waits, or the call is denied."""

    WAIT = "wait"
    DENY = "deny"


class Option(msgspec.Struct, frozen=True, kw_only=True):
    label: str
    description: str = ""
    is_recommended: bool = False
    estimated_duration_ms: int | UnsetType = UNSET


AnswerValue = str | list[str]
"""The label of an option or a free text; a list if the question accepts several."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A question. `required`: it stays open until a person answers; else it gets the recommended option at
    the timeout. `timeout_seconds` null: no timeout.

    Only of a permission: `tool`, `arguments` (the JSON text that the model wrote), `risk`, `because` (the
    reason), `usual` (the pattern that `always` would allow; absent if `always` cannot be answered) and, for a
    member of a composition, `member` (its id, with `.1` for its first fallback). Only of a clarification:
    `question_type`. Only of a decision: `decision_type` and `context`.
    """

    kind: QuestionKind
    prompt: str
    options: list[Option] = []
    multiple: bool = False
    required: bool = False
    timeout_seconds: int | None = None
    tool: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    risk: str | UnsetType = UNSET
    because: str | UnsetType = UNSET
    usual: str | UnsetType = UNSET
    member: str | UnsetType = UNSET
    question_type: str | UnsetType = UNSET
    decision_type: str | UnsetType = UNSET
    context: str | UnsetType = UNSET


class QuestionView(Question, frozen=True, kw_only=True):
    """A question as the API returns it. `call_id` is the tool call that waits for the answer."""

    id: str
    run_id: str
    subject_id: str
    call_id: str
    status: QuestionStatus
    created_at: datetime
    due_at: datetime | None = None
    answered_at: datetime | None = None
    answered_by: AnsweredBy | None = None
    answer: AnswerValue | None = None
    note: str | None = None
