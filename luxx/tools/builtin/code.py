"""The code tools that need no sandbox: python_eval."""

import math
from typing import Any, cast

from luxx.tools.builtin.expression import evaluate
from luxx.tools.builtin.expression_limits import MAX_EXPRESSION_LENGTH
from luxx.tools.core import CommandPermission, Risk
from luxx.tools.factory import tool


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
