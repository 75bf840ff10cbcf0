"""Work whose length depends on its input: on the event loop if it is short, else in a thread."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

MANY = 500
"""Items of a prompt: what is done to each of them takes about 10 µs."""


async def run_sized(size: int, work: Callable[..., T], *arguments: Any, most: int = MANY) -> T:
    """The result of `work`; in a thread if `size` is more than `most`."""
    if size <= most:
        return work(*arguments)
    return await asyncio.to_thread(work, *arguments)
