"""An answer that goes on for hours, outside of the framework: its frames, and its view of the request, would
be kept for as long.

A route's answer puts what is to go on into the scope and returns; `protection.py` lets it go on.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

DETACHED_STREAM = "luxx.afterwards"
"""Where a request's scope keeps what goes on with the answer: it is given the scope and `send`."""

KEPT_SCOPE_KEYS = frozenset(
    (
        *("type", "asgi", "http_version", "server", "client", "scheme", "method", "root_path", "path"),
        *("raw_path", "query_string", "headers", "path_template"),
    )
)
"""What is still known of such a request, beside what is ours: a server may look at it when the answer begins,
and the count of requests needs the template. Not the `state`, which is the framework's."""


async def run_detached(
    scope: MutableMapping[str, Any], send: Callable[[dict[str, Any]], Awaitable[None]]
) -> None:
    """Takes what the framework has put into the scope out again, and lets the answer go on."""
    for name in [name for name in scope if name not in KEPT_SCOPE_KEYS and not name.startswith("luxx.")]:
        del scope[name]
    await scope.pop(DETACHED_STREAM)(scope, send)
