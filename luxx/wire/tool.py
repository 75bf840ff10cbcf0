"""Tools: the definition that a model gets, a call, its result; permission rules, skills and narrowings.

Also compositions, named chains of tools as their owner writes them, and the results of their members.
"""

import unicodedata
from enum import IntEnum, StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from luxx.wire.turn import StepFile


class CommandPermission(IntEnum):
    """What a user may do, and what a tool requires: a tool runs if its level is at most the user's."""

    READ_ONLY = 1
    WRITE = 2
    EXECUTE = 3
    ADMIN = 4


class Risk(StrEnum):
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


SEARCH_TOOL, CALL_TOOL = "tool_search", "tool_call"
"""The tools that stand for those of MCP servers where these are too many for a prompt."""


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as offered to a model. `parameters` is a JSON schema of type object."""

    name: str
    description: str
    parameters: dict[str, Any]


class ToolChoiceMode(StrEnum):
    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"


class ToolChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the model may, must not or must call a tool; `name`: the one that it must call."""

    mode: ToolChoiceMode
    name: str | None = None


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A model's request. `arguments` is the JSON text as the model wrote it, valid or not."""

    call_id: str
    name: str
    arguments: str


UNKNOWN_OUTCOME = {"outcome": "unknown"}
"""The data of a failed call that may have been carried out."""


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a call. `data` is any JSON value; `error` is a sentence."""

    success: bool
    data: Any = None
    error: str | None = None

    @staticmethod
    def ok(data: Any = None) -> "ToolResult":
        return ToolResult(success=True, data=data)

    @staticmethod
    def fail(error: str) -> "ToolResult":
        return ToolResult(success=False, error=error)

    def to_dict(self) -> dict[str, Any]:
        return {"success": self.success, "data": self.data, "error": self.error}


class RuleAction(StrEnum):
    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


class RuleScope(StrEnum):
    """The scope of a rule, in the order in which rules are read: the last match decides."""

    SERVER = "server"
    TENANT = "tenant"
    USER = "user"
    PROJECT = "project"
    AGENT = "agent"


class PermissionRule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule for tool calls (docs/agents/permissions.md). `tool` and `pattern` accept `*` and `?`."""

    tool: str
    pattern: str = "*"
    action: RuleAction


class PlacedRule(PermissionRule, frozen=True, kw_only=True):
    """A rule with its scope; `place` counts from 0 within the scope. `scope_id` is the id of its project
    or agent."""

    scope: RuleScope
    scope_id: str | None = None
    place: int


class SkillHead(msgspec.Struct, frozen=True, kw_only=True):
    """The name and description by which a model chooses a skill. `allowed_tools` are entries like `file_read`
    or `shell_execute(git *)`; None: the skill does not limit the tools of a run."""

    name: str
    description: str
    allowed_tools: tuple[str, ...] | None = None


class ActiveSkill(SkillHead, frozen=True, kw_only=True):
    """A skill that is active in a run, in the layer `scope`, with the text of this `digest`. Both are empty
    in older logs."""

    scope: str = ""
    digest: str = ""


SKILL_STEP, ROUTED_STEP, PATTERN_STEP = "skill", "routed_skill", "pattern"
SKILL_STEPS = frozenset({SKILL_STEP, ROUTED_STEP, PATTERN_STEP})
"""The `name` of the step of the type `user` with the text of a skill, which a person activated or the words
of the message asked for; `id_ref` is the name of the skill."""


def skill_key(name: str) -> str:
    """What two names of one skill have in common: width, case, and `_` or `-` make no difference."""
    return unicodedata.normalize("NFKC", name.strip()).casefold().replace("_", "-")


class Narrowing(msgspec.Struct, frozen=True, kw_only=True):
    """A limit on the tools of a run, set by the active skill `by`; an empty `by` means the delegating run."""

    by: str
    entries: tuple[str, ...]


MAX_MEMBERS = 5
MAX_FALLBACKS = 3
MAX_SECONDS = 3600

ToolName = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=64,
        pattern=r"^[A-Za-z_][A-Za-z0-9_-]*$(?!\n)",
        description="letters, digits, '_' and '-', beginning with a letter or '_'",
    ),
]
MemberId = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=32,
        pattern=r"^[a-z][a-z0-9_]*$(?!\n)",
        description="lower case letters, digits and '_', beginning with a letter",
    ),
]
ParameterName = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=64,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$(?!\n)",
        description="letters, digits and '_', beginning with a letter or '_'",
    ),
]
ResultPath = Annotated[str, Meta(max_length=200)]


class CompositionKind(StrEnum):
    """`sequential`: one by one; `parallel`: all at once; `conditional`: results choose the next member."""

    SEQUENTIAL = "sequential"
    PARALLEL = "parallel"
    CONDITIONAL = "conditional"


class ParameterType(StrEnum):
    STRING = "string"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    ARRAY = "array"
    OBJECT = "object"


class Parameter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An argument of the composition; members refer to it by `{"$from": "input", "path": name}`."""

    name: ParameterName
    type: ParameterType = ParameterType.STRING
    description: Annotated[str, Meta(max_length=1000)] = ""
    required: bool = True


class MemberOutcome(StrEnum):
    SUCCESS = "success"
    FAILURE = "failure"
    ANY = "any"


class Comparison(StrEnum):
    """`less` and `greater` compare two numbers or two texts; `contains` a text, a list or an object."""

    EQUAL = "equal"
    UNEQUAL = "unequal"
    LESS = "less"
    GREATER = "greater"
    CONTAINS = "contains"
    EXISTS = "exists"


class Branch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The next member after a member of a `conditional` composition: a later member, or `end`.

    The branch applies if the member ended as `on` says and, with `compare`, the value at `path` in its result
    compares so with `value`.
    """

    go: Annotated[str, Meta(min_length=1, max_length=32)]
    on: MemberOutcome = MemberOutcome.SUCCESS
    path: ResultPath | None = None
    compare: Comparison | None = None
    value: Any = None


class Fallback(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool that is tried if the one before it failed."""

    tool: ToolName
    arguments: dict[str, Any] = {}


class Member(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call that a composition makes. In `arguments`, `{"$from": source, "path": path}` is replaced by a
    value of the `input`, of the `previous` result, or of the result of an earlier member by its id; by its
    `default` if there is no such value."""

    id: MemberId
    tool: ToolName
    arguments: dict[str, Any] = {}
    fallbacks: Annotated[list[Fallback], Meta(max_length=MAX_FALLBACKS)] = []
    then: Annotated[list[Branch], Meta(max_length=10)] = []


class Composition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A composition as its owner writes it; `name` is its tool name, `timeout_seconds` limits the call."""

    name: ToolName
    description: Annotated[str, Meta(min_length=1, max_length=4000)]
    kind: CompositionKind = CompositionKind.SEQUENTIAL
    parameters: Annotated[list[Parameter], Meta(max_length=20)] = []
    members: Annotated[list[Member], Meta(min_length=1, max_length=MAX_MEMBERS)]
    timeout_seconds: Annotated[int, Meta(ge=1, le=MAX_SECONDS)] = 120


class MemberStatus(StrEnum):
    """`denied`: by level or rule; `rejected`: by a person, and then no fallback is tried."""

    DONE = "done"
    FAILED = "failed"
    DENIED = "denied"
    REJECTED = "rejected"


class MemberEnded(msgspec.Struct, frozen=True, kw_only=True):
    """A finished call of a member. `key` is equal for the same position, tool and arguments."""

    key: str
    id: str
    tool: str
    status: MemberStatus
    result: ToolResult
    duration_ms: int
    is_untrusted: bool = False
    images: tuple[StepFile, ...] = ()
    note: str | UnsetType = UNSET
