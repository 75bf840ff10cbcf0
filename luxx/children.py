"""Starting child processes so that whoever is cancelled meanwhile is not kept, and leaves none behind."""

import asyncio
from asyncio.subprocess import Process
from contextlib import suppress
from typing import Any

LAST_SECONDS = 1.0
"""How long a child that was killed may take to be gone."""


async def start_child(*command: str, **options: Any) -> Process:
    """`asyncio.create_subprocess_exec`. Cancelled before the child is there, it is killed as soon as it is.

    Cancelled by itself, asyncio's own waits until all have closed the child's pipes: as long as what the
    child has started by then lives. Raises OSError.
    """
    starting = asyncio.create_task(asyncio.create_subprocess_exec(*command, **options))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        starting.add_done_callback(_put_down)
        await asyncio.wait([starting])
        if starting.exception() is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_SECONDS):
                    await starting.result().wait()
        raise


def _put_down(starting: "asyncio.Task[Process]") -> None:
    if not starting.cancelled() and starting.exception() is None:
        child: Any = starting.result()
        with suppress(ProcessLookupError):
            child.kill()
        # Its pipes too, which others may hold open. There is no public way to them.
        child._transport.close()
