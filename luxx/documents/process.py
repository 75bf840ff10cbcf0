"""A process that reads one document: started, fed, listened to, bounded and killed here.

It runs as the server's user, within limits: where a sandbox is in force, `tools/sandbox/readers.py` starts
readers instead. A thread could not be killed, and a page of 5 MB that is one tag with a million attributes
keeps a parser busy for hours. What the process reads, and how it bounds itself, is `bounds.py`'s and its
module's.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Protocol

import msgspec

from luxx.children import start_child
from luxx.errors import Unavailable

_GRACE_SECONDS = 1.0


class Ended(StrEnum):
    """Why there is no answer."""

    TIME = "time"
    MEMORY = "memory"
    LONG = "long"


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """Of one process: `memory` in bytes of address space, `seconds` of work, `wait` by the clock.

    Without a `wait` it is a little more than the work.
    """

    memory: int
    seconds: int
    wait: float | None = None

    @property
    def wait_seconds(self) -> float:
        return self.seconds + _GRACE_SECONDS if self.wait is None else self.wait

    @property
    def words(self) -> tuple[str, str]:
        """The first arguments of each reader."""
        return str(self.memory), str(self.seconds)


class RunReader(Protocol):
    """Runs a module that reads one document, as `read_in_process` does; no argument has a space in it."""

    async def __call__(
        self, module: str, arguments: Sequence[str], given: int | bytes, bounds: Bounds, *, limit: int
    ) -> bytes | Ended: ...


async def read_in_process(
    module: str, arguments: Sequence[str], given: int | bytes, bounds: Bounds, *, limit: int
) -> bytes | Ended:
    """What `module` answers, at most `limit` bytes; `given` is its input, as a descriptor or as bytes.

    An answer that was cut off is for the caller to notice, as MEMORY is what the kernel does not tell.
    Raises Unavailable where no process can be started.
    """
    try:
        child = await start_child(
            sys.executable, "-P", "-m", module, *bounds.words, *arguments,
            stdin=given if isinstance(given, int) else asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise Unavailable("this server cannot start a process to read it just now; try again") from error
    feeding = asyncio.create_task(_feed(child, given)) if isinstance(given, bytes) else None
    try:
        async with asyncio.timeout(bounds.wait_seconds):
            return await _heard(child, limit)
    except TimeoutError:
        return Ended.TIME
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        if feeding is not None:
            feeding.cancel()
        await asyncio.shield(child.wait())


async def _feed(child: asyncio.subprocess.Process, data: bytes) -> None:
    assert child.stdin is not None
    with suppress(ConnectionError):
        child.stdin.write(data)
        await child.stdin.drain()
    child.stdin.close()


async def _heard(child: asyncio.subprocess.Process, limit: int) -> bytes | Ended:
    assert child.stdout is not None
    said = bytearray()
    while piece := await child.stdout.read(65_536):
        said += piece
        if len(said) > limit:
            return Ended.LONG
    if said:
        return bytes(said)
    # The kernel ended it: for its time by one of these signals, else for its memory.
    is_late = await child.wait() in (-signal.SIGXCPU, -signal.SIGKILL)
    return Ended.TIME if is_late else Ended.MEMORY
