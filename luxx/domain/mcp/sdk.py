"""What Luxx uses of the official SDK: loading it, and the tools and answers of servers without its types.

Not here: connections.
"""

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import msgspec

from luxx.errors import ToolFailed

if TYPE_CHECKING:
    from mcp_types import Tool

_OWN_LOGGERS = ("mcp", "client", "httpx2", "httpcore2", "websockets.client")
_MISSING = "the extra 'mcp' is not installed: pip install 'luxx[mcp]'"


SESSION_GONE = "Session terminated"
"""What the SDK says for a session that the server does not know: the request was not carried out."""

CLOSED = -32000
"""The code of errors that stand for an answer that cannot come any more."""


class AnswerLost(Exception):
    """There is no answer that can be read, although the server may have got the request; the message is a
    predicate that follows the server's name."""


class SessionGone(Exception):
    """The server does not know the session any more; it has not carried out the request. The message is a
    predicate that follows the server's name."""


class AnsweredWithError(ToolFailed):
    """The server works, and answered a request with an error."""


class Sdk(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of the SDK in use: session class, protocol types, message wrapper, error class, the check of
    a part of an answer, and what answers a call: a result, or questions that come first."""

    session: Any
    types: Any
    message: Any
    error: type[Exception]
    block: Any
    answer: Any


def load_sdk() -> Sdk:
    """Imports the SDK, which takes long: call it in a thread. Raises ToolFailed if it is not installed."""
    try:
        types, pydantic = import_module("mcp_types"), import_module("pydantic")
        sdk = Sdk(
            session=import_module("mcp.client.session").ClientSession,
            types=types,
            block=pydantic.TypeAdapter(types.ContentBlock),
            answer=pydantic.TypeAdapter(types.CallToolResult | types.InputRequiredResult),
            message=import_module("mcp.shared.message").SessionMessage,
            error=import_module("mcp.shared.exceptions").MCPError,
        )
    except ImportError as error:
        raise ToolFailed(_MISSING) from error
    for name in _OWN_LOGGERS:
        # The SDK logs text that the server sent, which may hold secrets; Luxx logs failures itself.
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return sdk


class AnswerItems:
    """Checks the items of answers one by one. `wrong_tools`: those of the list that is being read, `names`:
    those of its other tools."""

    def __init__(self, sdk: Sdk) -> None:
        self._sdk = sdk
        self.wrong_tools: list[ListedTool] = []
        self.names: list[str] = []

    def clear(self) -> None:
        """Before a list is read."""
        self.wrong_tools.clear()
        self.names.clear()

    def add_wrong(self, name: str, problem: str) -> None:
        self.wrong_tools.append(ListedTool(name=name, description="", parameters={}, problem=problem))

    def without_wrong_items(self, message: Any) -> Any:
        """The SDK refuses a list whole for one item that does not follow the protocol. Wrong tools are kept
        apart; in place of a wrong part of an answer stands a text that says so."""
        result = getattr(message, "result", None)
        items = cast("dict[str, Any]", result) if isinstance(result, dict) else {}
        if isinstance(items.get("tools"), list):
            items["tools"] = [tool for at, tool in enumerate(items["tools"], 1) if self._is_tool(at, tool)]
        if isinstance(items.get("content"), list):
            items["content"] = [self._block(part) for part in items["content"]]
        return message

    def _is_tool(self, number: int, given: Any) -> bool:
        try:
            tool = self._sdk.types.Tool.model_validate(given, by_name=False)
        except ValueError as error:
            name = cast("dict[str, Any]", given).get("name") if isinstance(given, dict) else None
            name = name if isinstance(name, str) and name else f"tool {number}"
            self.add_wrong(name, _first_problem(error))
            return False
        if tool.input_schema.get("type") != "object":
            self.add_wrong(tool.name, "inputSchema.type: must be object")
            return False
        if tool.name in self.names:
            self.add_wrong(tool.name, "its name is in the list already")
            return False
        self.names.append(tool.name)
        return True

    def _block(self, given: Any) -> Any:
        try:
            self._sdk.block.validate_python(given, by_name=False)
        except ValueError as error:
            text = f"[a part of the answer that does not follow the protocol: {_first_problem(error)}]"
            return {"type": "text", "text": text}
        return given


class ListedTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as its server lists it, without SDK types; `problem`: why it cannot be read."""

    name: str
    description: str
    parameters: dict[str, Any]
    is_read_only: bool = False
    problem: str = ""


def _first_problem(error: ValueError) -> str:
    """What does not follow the protocol, by the error of pydantic."""
    problems: list[Any] = getattr(error, "errors", list[Any])()
    if not problems:
        return "it cannot be read"
    path = ".".join(str(part) for part in problems[0]["loc"])
    return f"{path or 'it'}: {str(problems[0]['msg']).lower()}"[:200]


def listed_tool(tool: "Tool") -> ListedTool:
    """Converts the SDK's type."""
    hints = tool.annotations
    title = tool.title or (None if hints is None else hints.title)
    return ListedTool(
        name=tool.name,
        description=tool.description or title or tool.name,
        parameters=tool.input_schema,
        is_read_only=hints is not None and hints.read_only_hint is True,
    )
