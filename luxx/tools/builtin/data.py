"""process_data: one tool for what is done with JSON and CSV; the operations are in data_operations."""

from typing import Any

from luxx.tools.builtin.data_operations import OPERATIONS, describe_operations
from luxx.tools.factory import tool


@tool(
    name="process_data",
    description=(
        "Transform JSON or CSV data. Text given to an operation on JSON is read as JSON first. "
        "A `path` like a.b.0 leads into nested data.\n" + describe_operations()
    ),
    parameters={
        "data": {"description": "The data: any JSON value, or JSON or CSV as text"},
        "operation": {"type": "string", "enum": list(OPERATIONS)},
        "options": {"type": "object", "default": {}, "description": "As the operation says"},
    },
    required_params=["data", "operation"],
    category="data",
    repeatable=True,
)
def process_data(arguments: dict[str, Any]) -> dict[str, Any]:
    operation = OPERATIONS[arguments["operation"]]
    result = operation.run(arguments["data"], arguments.get("options", {}))
    return {"operation": arguments["operation"], "result": result}
