"""Tools: the definition that a model gets, a call, and its result."""

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
