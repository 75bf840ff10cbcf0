"""ask_clarification, ask_decision: a model asks the person whom it works for.

What is asked, and with which answer nobody's silence counts; how a run waits is the runs' affair.
"""

from typing import Any

from msgspec.structs import replace

from luxx.tools.core import ToolContext, ToolDefinition
from luxx.tools.factory import tool

CLARIFICATION_SECONDS = 60
MOST_SECONDS = 30 * 86_400
QUESTION_TYPES = ("scope", "approach", "prerequisite", "priority")
DECISION_TYPES = ("branch", "method", "confirmation", "risk", "custom")
NEEDS_A_PERSON = frozenset({"confirmation", "risk"})
"""Decisions that nobody's silence may take."""

_OPTION = {
    "type": "object",
    "properties": {
        "label": {"type": "string", "minLength": 1, "maxLength": 200, "description": "One to five words"},
        "description": {"type": "string", "maxLength": 2000, "description": "What choosing it means"},
        "is_recommended": {"type": "boolean", "description": "What you would do if nobody answered"},
        "estimated_duration_ms": {"type": "integer", "minimum": 0, "maximum": 2**53 - 1},
    },
    "required": ["label"],
    "additionalProperties": False,
}
_OPTIONS = {
    "type": "array",
    "items": _OPTION,
    "maxItems": 20,
    "description": "What can be chosen; the person may also answer in their own words",
}
_TIMEOUT = {
    "type": "integer",
    "minimum": 1,
    "maximum": MOST_SECONDS,
    "description": "After this many seconds the recommended option counts",
}
_TEXT = {"type": "string", "minLength": 1, "maxLength": 10_000}


@tool(
    name="ask_clarification",
    description=(
        "Ask the person you work for what they want, where their request can be understood in several ways. "
        "Everything waits for the answer. Do not use it for what you can find out yourself."
    ),
    parameters={
        "question_type": {"type": "string", "enum": list(QUESTION_TYPES)},
        "question": _TEXT,
        "options": _OPTIONS,
        "required": {"type": "boolean", "default": False, "description": "Wait until a person answers"},
        "timeout_seconds": {**_TIMEOUT, "default": CLARIFICATION_SECONDS},
    },
    required_params=["question_type", "question", "options"],
    category="questions",
)
async def ask_clarification(arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
    return await context.ask(
        {
            "kind": "clarification",
            "prompt": arguments["question"],
            "options": arguments["options"],
            "required": arguments.get("required", False),
            "timeout_seconds": arguments.get("timeout_seconds", CLARIFICATION_SECONDS),
            "question_type": arguments["question_type"],
        }
    )


@tool(
    name="ask_decision",
    description=(
        "Let the person you work for decide how to go on, where ways part or something risky is next. "
        "Everything waits for the answer. Confirmations and risks wait until a person answers."
    ),
    parameters={
        "decision_type": {"type": "string", "enum": list(DECISION_TYPES)},
        "context": {**_TEXT, "description": "What is to be decided, and why now"},
        "options": _OPTIONS,
        "allow_multiple": {"type": "boolean", "default": False},
        "timeout_seconds": _TIMEOUT,
    },
    required_params=["decision_type", "context", "options"],
    category="questions",
)
async def ask_decision(arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
    return await context.ask(
        {
            "kind": "decision",
            "prompt": arguments["context"],
            "options": arguments["options"],
            "multiple": arguments.get("allow_multiple", False),
            "required": arguments["decision_type"] in NEEDS_A_PERSON,
            "timeout_seconds": arguments.get("timeout_seconds"),
            "decision_type": arguments["decision_type"],
            "context": arguments["context"],
        }
    )


def asking_tools() -> list[ToolDefinition]:
    """Both, as a registry takes them."""
    return [replace(one.definition, only_asks=True) for one in (ask_clarification, ask_decision)]
