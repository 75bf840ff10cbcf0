"""Sends a long stream after Litestar has returned, so that its stack frames and request objects are freed.

A streaming response stores a coroutine function in the scope and returns; `protection.py` then runs it.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

DETACHED_STREAM = "luxx.detached_stream"
"""Scope key of the coroutine function that sends the stream, called with the scope and `send`."""

KEPT_SCOPE_KEYS = frozenset(
    (
        *("type", "asgi", "http_version", "server", "client", "scheme", "method", "root_path", "path"),
        *("raw_path", "query_string", "headers", "path_template"),
    )
)
"""The scope keys that stay, besides those of Luxx: the server may read them at the response start, and the
request metrics need the template."""


async def run_detached(
    scope: MutableMapping[str, Any], send: Callable[[dict[str, Any]], Awaitable[None]]
) -> None:
    """Removes the framework's keys from the scope and sends the stream."""
    for name in [name for name in scope if name not in KEPT_SCOPE_KEYS and not name.startswith("luxx.")]:
        del scope[name]
    await scope.pop(DETACHED_STREAM)(scope, send)
