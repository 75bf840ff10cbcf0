"""A run as the API returns it, its states and questions to people, and where it comes from."""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from luxx.wire.tool import Narrowing
from luxx.wire.turn import Usage


class QuestionKind(StrEnum):
    """`permission`: whether a tool may run; `clarification`: what the goal is; `decision`: which option;
    `sign_in`: the user has to sign in at an MCP server; `elicitation`: an MCP server asks the user for
    values, or to open an address, in the middle of a call."""

    PERMISSION = "permission"
    CLARIFICATION = "clarification"
    DECISION = "decision"
    SIGN_IN = "sign_in"
    ELICITATION = "elicitation"


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


class SignInChoice(StrEnum):
    """Answers to a sign-in: `signed_in`, which completing it gives by itself, tries the call again, `skip`
    lets it fail."""

    SIGNED_IN = "signed_in"
    SKIP = "skip"


class ElicitationChoice(StrEnum):
    """Answers to an elicitation: `accept` sends the values to the MCP server, or says that the address was
    opened; `decline` says no; `cancel`, which also the timeout gives, that nobody decided."""

    ACCEPT = "accept"
    DECLINE = "decline"
    CANCEL = "cancel"


class ChosenBy(StrEnum):
    """Who chose a skill or an agent. `router`: the words of the request, without a model call."""

    MODEL = "model"
    PERSON = "person"
    ROUTER = "router"


class RoutedChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A skill or an agent that the words of a message ask for, or a learned pattern that fits it. `acts`: the
    skill is loaded, the agent answers, or the pattern is given; otherwise the model gets the name and
    decides. `clause`: the part of a message of several that asks for the skill; the model is reminded of it
    if it stops without the skill. Only of a pattern, whose `score` is its similarity: `id`, `text` as the
    model gets it, and `is_offered`: a person is asked before."""

    kind: Literal["skill", "agent", "pattern"]
    name: str
    score: float
    acts: bool = False
    clause: str = ""
    id: str = ""
    text: str = ""
    is_offered: bool = False


def acting_agent(routed: Sequence[RoutedChoice]) -> str | None:
    """The name of the agent among these that answers."""
    return next((one.name for one in routed if one.acts and one.kind == "agent"), None)


class LoopKind(StrEnum):
    """How a turn repeats itself. `call`: one call again and again; `cycle`: the same two to four calls;
    `error`: one tool fails in the same way; `stall`: no call brings anything new; `text`: a text without
    end."""

    CALL = "call"
    CYCLE = "cycle"
    ERROR = "error"
    STALL = "stall"
    TEXT = "text"


LOOP_DECISION = "doom_loop"
"""The `decision_type` of the question about calls that are held back because they repeat earlier ones."""


class LoopChoice(StrEnum):
    """Answers to that question. `continue`: these calls may be repeated for the rest of the turn; `correct`:
    with other arguments, or not at all but with a note to the model; `skip`: the call is not run."""

    STOP = "stop"
    CONTINUE = "continue"
    CORRECT = "correct"
    SKIP = "skip"


PATTERN_DECISION = "pattern"
"""The `decision_type` of the question whether a learned pattern that fits well is used; it has no call."""


class PatternChoice(StrEnum):
    """Answers to that question; words of a person's own go to the model with the pattern."""

    USE = "use"
    SKIP = "skip"


class AnsweredBy(StrEnum):
    """`timeout`: nobody answered in time, so the recommended option is the answer. `rule`: a rule now allows
    the call, for example after the answer `always` to another question. `person`: also who completed the
    sign-in that a question asks for."""

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

    Of a permission, and of the decision about a call that repeats earlier ones: `tool` and `arguments` (the
    JSON text that the model wrote). Only of a permission: `risk`, `because` (the reason), `usual` (the
    pattern that `always` would allow; absent if `always` cannot be answered) and, for a member of a
    composition, `member` (its id, with `.1` for its first fallback). Only of a clarification:
    `question_type`. Only of a decision: `decision_type` and `context`. Only of a sign-in: `server` (its name)
    and `authorization_url`, an address of Luxx at which the run's user begins it. Only of an elicitation:
    `server`, `elicitation_id`, and either `requested_schema`, the JSON schema of the values, or `url`, the
    address to open.
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
    server: str | UnsetType = UNSET
    authorization_url: str | UnsetType = UNSET
    elicitation_id: str | UnsetType = UNSET
    requested_schema: dict[str, Any] | UnsetType = UNSET
    url: str | UnsetType = UNSET


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


class RunKind(StrEnum):
    CHAT = "chat"
    ROOM = "room"
    TASK = "task"
    MEMORY = "memory"
    INDEX = "index"
    ARTIFACT = "artifact"
    PATTERN = "pattern"
    TITLE = "title"
    FOLLOW_UPS = "follow_ups"


SIDE_KINDS = frozenset({RunKind.TITLE, RunKind.FOLLOW_UPS})
"""Runs that write something short about an answer: nobody waits for them, and they need no slot."""


class RunStatus(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDED = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED})
"""Final statuses."""

IN_PROGRESS = frozenset({RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.WAITING})
"""The statuses of a run with which its room or task runs; the graph of a task does not change meanwhile."""


class RunPhase(StrEnum):
    """The phase of a running run: `thinking` during a model call, `acting` while all its tools run,
    `observing` once one has finished and others still run, `retrying` before a repeated model call."""

    THINKING = "thinking"
    ACTING = "acting"
    OBSERVING = "observing"
    WAITING = "waiting"
    RETRYING = "retrying"


class MemberRight(StrEnum):
    """A member's right to a room or task of another user. Each includes the ones before it."""

    WATCH = "watch"
    SPEAK = "speak"
    STEER = "steer"


class StopReason(StrEnum):
    """Why a run ended. `length`, `content_filter`, `refusal` and `context_full` say why its last completion
    ended before the answer was complete, `doom_loop` that the model repeated itself, `steps_failed` that a
    task carried out what it could."""

    FINISHED = "finished"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"
    REFUSAL = "refusal"
    CONTEXT_FULL = "context_full"
    CANCELLED = "cancelled"
    MAX_ITERATIONS = "max_iterations"
    TOKENS = "tokens"
    COST = "cost"
    TIME = "time"
    DOOM_LOOP = "doom_loop"
    STEPS_FAILED = "steps_failed"
    ERROR = "error"


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run. `last_seq` is the newest event in the log; `cost` in US dollars is null without a price.

    Provider and model are those that answer; null in a room or task, whose messages and steps name theirs.
    """

    id: str
    kind: RunKind
    subject_id: str
    status: RunStatus
    phase: RunPhase | None = None
    parent_run_id: str | None = None
    message_id: str | None = None
    stop_reason: str | None = None
    error: str | None = None
    provider_id: int | None = None
    provider_name: str | None = None
    model: str | None = None
    usage: Usage = Usage()
    cost: float | None = None
    last_seq: int = 0
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None


class TitledRun(Run, frozen=True, kw_only=True):
    """A run with the title of its chat, room or task; null if the caller cannot see one."""

    title: str | None = None


class InConversation(msgspec.Struct, frozen=True, kw_only=True, tag="conversation", omit_defaults=True):
    """The origin of a run that answers the user's message `message_id` of a conversation. `is_compared`: a
    run of another model answers it too, and a person selects one of the answers."""

    message_id: str
    is_compared: bool = False


class Invocation(msgspec.Struct, frozen=True, kw_only=True, tag="invocation"):
    """The origin of a run that answers the stored message `message_id` of nobody's conversation: an agent was
    called, whose id is the run's subject."""

    message_id: str


class Compression(msgspec.Struct, frozen=True, kw_only=True, tag="compression"):
    """The origin of a run that a person started so that less of a conversation is sent. It answers nothing:
    what it decides is kept with the newest answer, `message_id`."""

    message_id: str


class OrchestratedTurn(msgspec.Struct, frozen=True, kw_only=True, tag="orchestrated"):
    """The origin of a turn of a room or of a task, whose orchestration gives the messages."""


class RoomCopyTurn(msgspec.Struct, frozen=True, kw_only=True, tag="room_copy"):
    """The origin of a turn of a call that got a copy of a room: what it writes stays in the log."""


class Delegated(msgspec.Struct, frozen=True, kw_only=True, tag="delegated"):
    """The origin of a subagent's run and what it inherits. `root_run_id`: the first run of the chain, whose
    limits all its subagents share. `most_calls`: its limit of tool calls; None: no limit. `agent_ids`: the
    agents of the runs above, whose rules restrict this run too. `message_id`: the user's message that the
    first run answers, if it is one of a conversation or an invocation. `is_of_given`: the first run got its
    messages from its client and stores nothing, so this one stores no files. `numbers_pages`: the first run
    may write reports, so the pages that this one reads get numbers."""

    message_id: str | None = None
    is_of_given: bool = False
    call_id: str
    task: str
    depth: int
    root_run_id: str
    most_calls: int | None = None
    tainted_by: str | None = None
    narrowed: tuple[Narrowing, ...] = ()
    agent_ids: tuple[int, ...] = ()
    numbers_pages: bool = False
