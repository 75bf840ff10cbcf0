"""Tools: the definition that a model gets, a call, its result; permission rules, skills and narrowings."""

from enum import IntEnum, StrEnum
from typing import Any

import msgspec


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


class Narrowing(msgspec.Struct, frozen=True, kw_only=True):
    """A limit on the tools of a run, set by the active skill `by`; an empty `by` means the delegating run."""

    by: str
    entries: tuple[str, ...]
