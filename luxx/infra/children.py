"""Starts child processes: they inherit only the passed descriptors, and a cancelled start kills its child."""

import asyncio
from asyncio.subprocess import Process, SubprocessStreamProtocol
from contextlib import suppress
from typing import Any

from luxx.infra.descriptors import close_all_on_exec

KILL_WAIT_SECONDS = 1.0
"""How long a cancelled start waits for its killed child to exit."""

STREAM_BYTES = 64 * 1024
"""The limit of a stream's buffer, as in `asyncio.create_subprocess_exec`."""


async def start_child(*command: str, **options: Any) -> Process:
    """Like `asyncio.create_subprocess_exec`; kills the child if cancelled meanwhile. Raises OSError.

    The child inherits only its standard streams and `pass_fds`, on every event loop; with uvloop it gets
    each stream under a second number as well.

    asyncio's function does not return on cancel until every process has closed the child's pipes, which
    includes the processes that the child started.
    """
    starting = asyncio.create_task(_start(*command, **options))
    try:
        return (await asyncio.shield(starting))[0]
    except asyncio.CancelledError:
        starting.add_done_callback(_kill_started)
        await asyncio.wait([starting])
        if starting.exception() is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(KILL_WAIT_SECONDS):
                    await starting.result()[0].wait()
        raise


async def _start(*command: str, **options: Any) -> tuple[Process, asyncio.SubprocessTransport]:
    """What `asyncio.create_subprocess_exec` does, which does not return the transport."""
    loop = asyncio.get_running_loop()
    all_options: dict[str, Any] = {"stdin": None, "stdout": None, "stderr": None, **options}
    # Afterwards the event loop makes `pass_fds` inheritable until the child exists.
    close_all_on_exec()
    transport, protocol = await loop.subprocess_exec(
        lambda: SubprocessStreamProtocol(limit=STREAM_BYTES, loop=loop), *command, **all_options
    )
    return Process(transport, protocol, loop), transport


def _kill_started(starting: "asyncio.Task[tuple[Process, asyncio.SubprocessTransport]]") -> None:
    if not starting.cancelled() and starting.exception() is None:
        child, transport = starting.result()
        with suppress(ProcessLookupError):
            child.kill()
        # Close its pipes too: other processes may keep them open.
        transport.close()
