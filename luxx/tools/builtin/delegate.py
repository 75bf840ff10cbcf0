"""delegate: a model gives a piece of its work to a subagent, and has its answer as the result.

How the subagent's run is made, followed and ended is the runs' affair (runs/delegation).
"""

from typing import Any

from luxx.tools.core import ToolContext, ToolDefinition, keep_never
from luxx.tools.factory import tool
from luxx.wire.delegation import Assignment

DELEGATE_TOOL = "delegate"
MOST_SECONDS = 30 * 86_400.0
"""A subagent may wait for a person; what bounds its work are the limits of the run that delegates."""

_MOST_TEXT = 40_000
_TEXT = {"type": "string", "minLength": 1, "maxLength": _MOST_TEXT}


@tool(
    name=DELEGATE_TOOL,
    description=(
        "Give a piece of work to a subagent, and wait for its answer. It sees nothing of this conversation "
        "but the task, so say all that it has to know. It has your tools, or those of them that you name. "
        "Several calls in one answer work side by side."
    ),
    parameters={
        "task": {**_TEXT, "description": "What is to be done, and what the answer is to say"},
        "system_prompt": {**_TEXT, "description": "Who the subagent is and how it works"},
        "tools": {
            "type": "array",
            "items": {"type": "string", "minLength": 1, "maxLength": 64},
            "maxItems": 200,
            "description": "Those of your tools that it may use; left out: all",
        },
        "model": {
            "type": "string",
            "minLength": 1,
            "maxLength": 200,
            "description": "Another model of the same provider",
        },
    },
    required_params=["task"],
    category="agents",
    # A call that a crash cut goes on with the subagent it has; an answer is of that call alone.
    repeatable=True,
    keeps=keep_never,
    timeout=MOST_SECONDS,
)
async def delegate(arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
    tools: list[str] | None = arguments.get("tools")
    end = await context.delegate(
        Assignment(
            task=arguments["task"],
            system_prompt=arguments.get("system_prompt"),
            tools=None if tools is None else tuple(tools),
            model=arguments.get("model"),
        )
    )
    return {"answer": end.answer, "run_id": end.run_id, "stop_reason": end.stop_reason}


def delegating_tools() -> list[ToolDefinition]:
    """It, as a registry takes it."""
    return [delegate.definition]
