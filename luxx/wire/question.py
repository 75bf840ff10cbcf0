"""Questions: what a run asks a person, the answers there are, and the words for both."""

from datetime import datetime
from enum import StrEnum

import msgspec
from msgspec import UNSET, UnsetType


class QuestionKind(StrEnum):
    """`permission`: may this tool run; `clarification`: what is wanted; `decision`: which way to go."""

    PERMISSION = "permission"
    CLARIFICATION = "clarification"
    DECISION = "decision"


class QuestionStatus(StrEnum):
    """`closed`: the run ended before anybody answered."""

    OPEN = "open"
    ANSWERED = "answered"
    CLOSED = "closed"


class Permission(StrEnum):
    """Answers to a permission; `always` also makes a rule of the user's (docs/permissions.md)."""

    ONCE = "once"
    ALWAYS = "always"
    REJECT = "reject"


class AnsweredBy(StrEnum):
    """`timeout`: nobody answered in time, so the recommended option counts. `rule`: the answer `always` to
    another question made a rule that allows this too."""

    PERSON = "person"
    TIMEOUT = "timeout"
    RULE = "rule"


class WhenAsked(StrEnum):
    """What becomes of a run that has to ask: it waits for a person, or is denied what it asks for."""

    WAIT = "wait"
    DENY = "deny"


class Option(msgspec.Struct, frozen=True, kw_only=True):
    label: str
    description: str = ""
    is_recommended: bool = False
    estimated_duration_ms: int | UnsetType = UNSET


AnswerValue = str | list[str]
"""An option's label or own words; several where the question takes several."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """`required`: it stays open until a person answers; else the recommended option counts in the end.

    `timeout_seconds` null: no end is set. `tool`, `arguments` (JSON text, as the model wrote it), `risk`,
    `because` (why it is asked) and `usual` (the pattern that `always` would allow) are a permission's, and so
    is `member`, where a member of a composition makes the call: its id, and of its first fallback `id.1`;
    `question_type` a clarification's, `decision_type` and `context` a decision's.
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
    """A question as its person sees it. `call_id` is the tool call that waits for the answer."""

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
