"""What no signature tells of a route, told by its handler: parts of its operation in the OpenAPI document."""

from collections.abc import Mapping
from typing import Any

DESCRIBED = "described"
"""The `opt` of a handler: `opt={DESCRIBED: {"requestBody": …, "parameters": […], "responses": {…}}}`."""


def with_described(operation: dict[str, Any], opt: Mapping[str, Any]) -> dict[str, Any]:
    """The operation with the handler's parts added; of a response of the same status the handler's counts."""
    parts: Mapping[str, Any] = opt.get(DESCRIBED, {})
    for name, more in parts.items():
        known = operation.get(name)
        match known:
            case None:
                operation[name] = more
            case list():
                operation[name] = [*known, *more]
            case _:
                operation[name] = {**known, **more}
    return operation
