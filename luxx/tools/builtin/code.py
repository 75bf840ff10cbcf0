"""The code tools: python_eval, which needs no sandbox, and python_execute, which runs in it."""

import math
from typing import Any, cast

from msgspec.structs import replace

from luxx.tools.builtin.expression import evaluate
from luxx.tools.builtin.expression_limits import MAX_EXPRESSION_LENGTH
from luxx.tools.builtin.programs import (
    TIMEOUT,
    going_of,
    longest,
    network_words,
    risk_of,
    run_and_tell,
    workspace_for,
)
from luxx.tools.core import CommandPermission, Risk, ToolContext, ToolDefinition, ToolResult
from luxx.tools.factory import tool
from luxx.tools.marks import KeepFigures, keep_no_figures
from luxx.tools.sandbox.service import Sandbox

MAX_CODE_LENGTH = 200_000
EXECUTE = "python_execute"


@tool(
    name="python_eval",
    description=(
        "Evaluate one Python expression: arithmetic, comparisons, text, lists, dicts, sets, comprehensions, "
        "f-strings, and the usual functions with those of math and statistics. No statements, imports, "
        "lambdas or attributes; the work it may do is bounded."
    ),
    parameters={
        "expression": {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_EXPRESSION_LENGTH,
            "description": "For example: sum(x**2 for x in range(10))",
        }
    },
    required_params=["expression"],
    category="code",
    required_permission=CommandPermission.EXECUTE,
    risk=Risk.LOW,
    repeatable=True,
)
def python_eval(arguments: dict[str, Any]) -> dict[str, Any]:
    value = evaluate(arguments["expression"])
    return {"result": _plain(value), "type": type(value).__name__}


def python_tool(sandbox: Sandbox, keep_figures: KeepFigures = keep_no_figures) -> ToolDefinition:
    """python_execute on one server's sandbox."""

    @tool(
        name=EXECUTE,
        description=(
            f"Run a Python program in the workspace, in a sandbox{network_words(sandbox)}: the workspace can "
            "be written, the system only read, nothing else is there. Print what you want to know. Gives "
            "exit code, stdout, stderr and the files that changed; open matplotlib figures are saved, named "
            "and shown. Each program starts anew; files stay."
        ),
        parameters={
            "code": {"type": "string", "minLength": 1, "maxLength": MAX_CODE_LENGTH},
            "timeout": TIMEOUT,
        },
        required_params=["code"],
        category="code",
        required_permission=CommandPermission.EXECUTE,
        starts_programs=True,
        is_egress=sandbox.way_out.is_wanted or sandbox.is_unprotected,
        risk=risk_of(sandbox, Risk.MEDIUM),
        timeout=longest(sandbox, EXECUTE),
    )
    async def python_execute(arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        workspace, code = workspace_for(context), arguments["code"]
        given = sandbox.limits_for(EXECUTE, context.user_permission_level)
        limits = replace(given, seconds=min(arguments.get("timeout", given.seconds), given.seconds))
        going = going_of(sandbox, EXECUTE, context, limits, keep_figures)
        return await run_and_tell(
            going, lambda: sandbox.run_python(code, workspace, given, limits.seconds, going.outing)
        )

    return python_execute.definition


def _plain(value: Any) -> Any:
    """The value as JSON can say it: tuples and sets as lists, keys as text, inf and nan as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast("list[Any]", value)]
    if isinstance(value, set):
        return [_plain(item) for item in sorted(cast("set[Any]", value), key=repr)]
    if isinstance(value, dict):
        return {
            key if isinstance(key, str) else repr(key): _plain(item)
            for key, item in cast("dict[Any, Any]", value).items()
        }
    return value
