"""Starting child processes: with no descriptor but those passed, and without leaving any behind on cancel."""

import asyncio
from asyncio.subprocess import Process
from contextlib import suppress
from typing import Any

from luxx.infra.descriptors import close_all_on_exec

KILL_WAIT_SECONDS = 1.0
"""How long a child that was killed may take to be gone."""


async def start_child(*command: str, **options: Any) -> Process:
    """`asyncio.create_subprocess_exec`. Cancelled before the child is there, it is killed as soon as it is.

    The child gets its standard streams and `pass_fds` only, on every event loop; uvloop gives it each stream
    under a second number as well.

    Cancelled by itself, asyncio's own waits until all have closed the child's pipes: as long as what the
    child has started by then lives. Raises OSError.
    """
    starting = asyncio.create_task(_start(*command, **options))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        starting.add_done_callback(_kill_started)
        await asyncio.wait([starting])
        if starting.exception() is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(KILL_WAIT_SECONDS):
                    await starting.result().wait()
        raise


async def _start(*command: str, **options: Any) -> Process:
    # The loop makes `pass_fds` inheritable after this, until the child is there.
    close_all_on_exec()
    return await asyncio.create_subprocess_exec(*command, **options)


def _kill_started(starting: "asyncio.Task[Process]") -> None:
    if not starting.cancelled() and starting.exception() is None:
        child: Any = starting.result()
        with suppress(ProcessLookupError):
            child.kill()
        # Its pipes too, which others may hold open. There is no public way to them.
        child._transport.close()
