"""Events of a turn that are neither steps nor its end: retries, recalled facts, what its prompts leave out,
repetition, warnings, taint, skills, to-do lists, subagents and commands for the page. `event.py` has the
union of all events.
"""

from enum import StrEnum

from msgspec import UNSET, UnsetType

from luxx.wire.delegation import DelegationStrategy
from luxx.wire.message import CompressionStrategy
from luxx.wire.run import ChosenBy, LoopChoice, LoopKind, RoutedChoice, RunStatus
from luxx.wire.todos import TodoAuthor, TodoItem
from luxx.wire.tool import MemberEnded
from luxx.wire.turn import EventBase, Usage


class Retrying(EventBase, frozen=True, kw_only=True, tag="retrying"):
    """A model call failed and is made again after `delay_ms`. `reason` is a sentence.

    `fallback`: the number of the fallback that makes it, from 1, in the order in which the run asks them,
    once the provider has failed for good.
    """

    attempt: int
    delay_ms: int
    reason: str
    fallback: int | UnsetType = UNSET


class MemoryRecalled(EventBase, frozen=True, kw_only=True, tag="memory_recalled"):
    """The turn is given these remembered facts, before its first model call; the log keeps their texts."""

    memories_used: list[str]


class ContextCompressed(EventBase, frozen=True, kw_only=True, tag="context_compressed"):
    """The model is sent less from here on, because all of it does not fit its context window; nothing stored
    changes.

    The oldest `messages` messages are left out, which begin `turns` turns; of these, the first message and
    the newest ones of users are still sent, and so are results of protected tools. The completions whose
    results are shortened are `results`. The tokens are those of the prompt, estimated; `token_budget` is the
    window without the answer. `window` is the model's, None if it is unknown. `overflow`: the provider has
    refused the prompt before. The counts of messages are those of the history that is sent. `was_compressed`:
    false where a model with a larger window gets all again; then there is no strategy.
    """

    messages: int
    turns: int
    results: int
    tokens_before: int
    tokens_after: int
    window: int | None
    overflow: bool = False
    was_compressed: bool = True
    compression_strategy: CompressionStrategy | UnsetType = UNSET
    original_message_count: int = 0
    final_message_count: int = 0
    estimated_tokens: int = 0
    token_budget: int = 0
    budget_utilization_pct: float = 0.0
    summarized_message_count: int = 0
    summary: str | UnsetType = UNSET
    summary_usage: Usage | UnsetType = UNSET


class DoomLoopDetected(EventBase, frozen=True, kw_only=True, tag="doom_loop_detected"):
    """The model repeats itself, `times` times: calls of `tool`, or a text (then there is no tool and no
    call). `call_ids`: the calls that are the same, with those that are held back; `held`: these, which do not
    run before a person has decided."""

    kind: LoopKind
    tool: str
    call_ids: list[str]
    times: int
    held: list[str] = []


class DoomLoopIntervened(EventBase, frozen=True, kw_only=True, tag="doom_loop_intervened"):
    """A person decided about the calls `call_ids`, which were held back. `note`: for the model."""

    choice: LoopChoice
    call_ids: list[str]
    note: str | UnsetType = UNSET


class PlanUpdated(EventBase, frozen=True, kw_only=True, tag="plan_updated"):
    """The to-do list is this one from now on. `by`: the model wrote it, or a person changed it."""

    todos: list[TodoItem]
    by: TodoAuthor = TodoAuthor.MODEL


class WarningCode(StrEnum):
    """What a warning says, where a program needs to know it. `stops_not_sent` is in older logs only: now
    every stop is kept."""

    SCHEMA_NOT_MET = "schema_not_met"
    STOPS_NOT_SENT = "stops_not_sent"


class Warning(EventBase, frozen=True, kw_only=True, tag="warning"):
    """Something that the user should know; the run continues. `code` says it to programs; most have none."""

    message: str
    code: WarningCode | UnsetType = UNSET


class Tainted(EventBase, frozen=True, kw_only=True, tag="tainted"):
    """The tool `by` returned untrusted content, or the person `@name`, who is not the run's user, wrote what
    the turn reads. From now on tools that could do harm with it ask first, unless a rule allows them."""

    by: str


PERSON = "@"
"""Begins the `by` of a taint by words of a person; no tool has such a name."""


class MembersEnded(EventBase, frozen=True, kw_only=True, tag="members_ended"):
    """The composition of the call `call_id` waits for a person. These members have finished; it does not
    repeat them when it continues."""

    call_id: str
    members: list[MemberEnded]


class SkillActivated(EventBase, frozen=True, kw_only=True, tag="skill_activated"):
    """The skill `name` is active for the rest of the run. With `allowed_tools` the run may only use these
    tools; each active skill must allow a call. `scope` and `digest`: its layer and its text, empty in older
    logs. `score`: of the match, if the router activated it."""

    name: str
    description: str
    allowed_tools: list[str] | None = None
    scope: str = ""
    digest: str = ""
    by: ChosenBy = ChosenBy.MODEL
    score: float | None = None


class PatternUsed(EventBase, frozen=True, kw_only=True, tag="pattern_used"):
    """The model is given a learned pattern as reference. `similarity`: of the request and the pattern, 0 to
    100."""

    pattern_id: str
    name: str
    similarity: float


def pattern_used(pattern: RoutedChoice) -> PatternUsed:
    """The event of a pattern that a model is given."""
    return PatternUsed(pattern_id=pattern.id, name=pattern.name, similarity=pattern.score)


class SubagentAssigned(EventBase, frozen=True, kw_only=True, tag="subagent_assigned"):
    """A subagent of the call `call_id` in the run `subagent_run_id` started, waits for a person, or ended.

    `task` may be shortened; `tool_calls` is set at its end. `index`: which task of the call, from 0 on.
    `agent_id` null: it works without an agent of its own. `strategy` null: the call has one task. `by` the
    router: there is no subagent and no call, the agent answers the message in this run; `score` is that of
    the match."""

    subagent_run_id: str
    call_id: str
    task: str
    status: RunStatus
    tool_calls: int = 0
    index: int = 0
    agent_id: int | None = None
    agent_name: str = ""
    strategy: DelegationStrategy | None = None
    by: ChosenBy = ChosenBy.MODEL
    score: float | None = None


class UiCommandKind(StrEnum):
    TOAST = "toast"
    REFRESH = "refresh"
    NAVIGATE = "navigate"
    MODAL = "modal"


class RefreshTarget(StrEnum):
    """The lists that a page can load again."""

    CONVERSATIONS = "conversations"
    ROOMS = "rooms"
    TASKS = "tasks"
    AGENTS = "agents"
    SKILLS = "skills"
    PROMPTS = "prompts"
    KNOWLEDGE = "knowledge"
    MEMORIES = "memories"
    FILES = "files"
    RUNS = "runs"


class ToastType(StrEnum):
    INFO = "info"
    SUCCESS = "success"
    WARNING = "warning"
    ERROR = "error"


UI_COMMANDS_OF_TURN = 5
"""The most commands of one turn."""


class UiCommand(EventBase, frozen=True, kw_only=True, tag="ui_command"):
    """What the page of a person does who follows the run: a `toast` with `message` and `type`, a `refresh` of
    the list `target`, a `navigate` to the `path` within the web UI, a `modal` with `title` and `text`. A
    client carries it out only if it happens while it is connected, never in a replay."""

    command: UiCommandKind
    payload: dict[str, str]
