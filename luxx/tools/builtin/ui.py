"""The tool ui_command: what the page of the person does who follows the run.

Texts are plain and bounded, and addresses are those of the web UI. Which commands a run may give, and how
many, is decided in `runs/turn/rights.py`.
"""

import re
import unicodedata
from typing import Any
from urllib.parse import unquote, urlsplit

from msgspec.structs import replace

from luxx.errors import ToolFailed
from luxx.tools.core import ToolContext, ToolDefinition
from luxx.tools.factory import tool
from luxx.wire.turn_event import RefreshTarget, ToastType, UiCommand, UiCommandKind

MAX_MESSAGE = 300
MAX_TITLE = 120
MAX_TEXT = 4_000
MAX_PATH = 500

PAGES = (
    "chat", "rooms", "tasks", "runs", "files", "memories", "graph", "knowledge", "agents", "prompts",
    "providers", "tools", "usage", "settings", "admin",
)  # fmt: skip
"""The first part of each address that a person can be led to."""

_PREFIX = "/ui"
_VISIBLE = re.compile(r"[\x21-\x7e]+")
_SEGMENT = re.compile(r"(?:[A-Za-z0-9_~.-]|%[0-9A-Fa-f]{2})+")
_QUERY = re.compile(r"(?:[A-Za-z0-9_~.&=+-]|%[0-9A-Fa-f]{2})*")
# Letters that show nothing, or that turn around what follows: a text could seem to say something else.
_HIDDEN = frozenset({"Cc", "Cf", "Co", "Cn", "Cs", "Zl", "Zp"})
_JOINERS = "\u200c\u200d"

FIELDS: dict[UiCommandKind, tuple[str, ...]] = {
    UiCommandKind.TOAST: ("message", "type"),
    UiCommandKind.REFRESH: ("target",),
    UiCommandKind.NAVIGATE: ("path",),
    UiCommandKind.MODAL: ("title", "text"),
}
"""The fields of the payload of each command."""


def _text(max_length: int, description: str) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "maxLength": max_length, "description": description}


@tool(
    name="ui_command",
    is_self_contained=True,
    description=(
        "Let the page of the person who follows this run in the web UI do something now: toast shows a short "
        "message, refresh loads a list again, navigate opens a page, modal shows a text in a dialog. Use it "
        "only if the person asked for it or has to see it at once; what you have to say belongs into your "
        "answer."
    ),
    parameters={
        "command": {"type": "string", "enum": [each.value for each in UiCommandKind]},
        "payload": {
            "type": "object",
            "properties": {
                "message": _text(MAX_MESSAGE, "toast: one line of plain text"),
                "type": {"type": "string", "enum": [each.value for each in ToastType], "default": "info"},
                "target": {
                    "type": "string",
                    "enum": [each.value for each in RefreshTarget],
                    "description": "refresh: the list",
                },
                "path": _text(MAX_PATH, "navigate: a path of the web UI, such as /tasks or /tasks/ID"),
                "title": _text(MAX_TITLE, "modal"),
                "text": _text(MAX_TEXT, "modal: plain text"),
            },
            "additionalProperties": False,
        },
    },
    required_params=["command", "payload"],
    category="page",
    subject="command",
)
async def ui_command(arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
    command = UiCommandKind(arguments["command"])
    payload = _payload(command, arguments["payload"])
    context.actions.show(UiCommand(command=command, payload=payload))
    return {"command": command.value, "payload": payload}


def ui_tools() -> list[ToolDefinition]:
    """The tool, which is offered only where something names it: most runs have nothing to show."""
    return [replace(ui_command.definition, is_on_demand=True)]


def _payload(command: UiCommandKind, given: dict[str, str]) -> dict[str, str]:
    """The payload with plain texts and a checked path. Raises ToolFailed."""
    names = FIELDS[command]
    if command == UiCommandKind.TOAST:
        given = {"type": ToastType.INFO.value, **given}
    if set(given) != set(names):
        raise ToolFailed(f"the payload of {command.value} has {' and '.join(names)}, and nothing else")
    match command:
        case UiCommandKind.NAVIGATE:
            return {"path": path_in_ui(given["path"])}
        case UiCommandKind.REFRESH:
            return {"target": given["target"]}
        case UiCommandKind.TOAST:
            return {"message": _plain("message", given["message"]), "type": given["type"]}
        case UiCommandKind.MODAL:
            return {"title": _plain("title", given["title"]), "text": _plain("text", given["text"], "\n")}


def _plain(name: str, text: str, kept: str = "") -> str:
    """The text without characters that are not shown; line breaks only where they are `kept`."""
    shown = "".join(
        letter if letter in kept or letter in _JOINERS or unicodedata.category(letter) not in _HIDDEN else " "
        for letter in text
    )
    shown = shown.strip() if kept else " ".join(shown.split())
    if not shown.strip(_JOINERS + " \n"):
        raise ToolFailed(f"{name} has no character that can be shown")
    return shown


def path_in_ui(path: str) -> str:
    """The path within the web UI, without `/ui`. Raises ToolFailed for any other address."""
    reason = (
        f"no page was opened: {path[:80]!r} is not an address of the web UI. Use a path such as /tasks or "
        f"/tasks/ID, with a first part of: {', '.join(PAGES)}"
    )
    inner = path.removeprefix(_PREFIX) if path.startswith(f"{_PREFIX}/") else path
    try:
        # The parser, as browsers do, leaves out spaces and line breaks that it finds.
        parts = urlsplit(inner if _VISIBLE.fullmatch(inner) else "")
    except ValueError as error:
        raise ToolFailed(reason) from error
    # What a browser or a proxy could read as something else does not match the patterns.
    is_plain = not parts.scheme and not parts.netloc and "#" not in inner and _QUERY.fullmatch(parts.query)
    first, *segments = parts.path.rstrip("/").split("/")
    if not is_plain or first or not segments or segments[0] not in PAGES:
        raise ToolFailed(reason)
    if not all(_SEGMENT.fullmatch(each) and _is_harmless(unquote(each)) for each in segments):
        raise ToolFailed(reason)
    if not _is_harmless(unquote(parts.query), is_query=True):
        raise ToolFailed(reason)
    return f"{parts.path}?{parts.query}" if parts.query else parts.path


def _is_harmless(decoded: str, *, is_query: bool = False) -> bool:
    """Whether the decoded text neither leaves its place nor is encoded twice."""
    if is_query and not decoded:
        return True
    refused = "\\%\ufffd" if is_query else "/\\%\ufffd?#"
    return decoded not in (".", "..") and all(
        letter not in refused and unicodedata.category(letter) not in _HIDDEN for letter in decoded
    )
