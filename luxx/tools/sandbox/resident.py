"""A program that stays in its jail: whoever started it talks to it through pipes until one of both ends it.

Its limits are those of any jail but for the time; what it uses is counted over its whole life.
"""

import asyncio
import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from luxx.errors import ToolFailed
from luxx.tools.sandbox.plan import Backend, Interpreter, Limits, Order, Spec, environment
from luxx.tools.sandbox.process import Jail, Ran

NO_END = math.inf
TICK_MS = 100
"""How often a watch looks at what may stay for days; the usual pace takes a fiftieth of a processor."""
_PIECE = 65_536
_DRAIN_SECONDS = 1.0
_KEPT_ERRORS = 4_096
"""Bytes of what it last said on stderr; the rest is let go."""


class ResidentOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A program to stay. `argv[0]` is a path or a name; `reads`: directories it may read besides the system.

    `variables` are added to its environment and never stand in the arguments of any process.
    """

    argv: tuple[str, ...]
    workspace: Path
    limits: Limits
    reads: tuple[Path, ...] = ()
    variables: Mapping[str, str] = {}


def resident_spec(order: ResidentOrder, backend: Backend, interpreter: Interpreter | None) -> Spec:
    """What the supervisor is told. Raises ToolFailed where there is no such program."""
    own: tuple[str, ...] = () if interpreter is None else interpreter.prefixes
    shown = Interpreter(
        program="/usr/bin/env" if interpreter is None else interpreter.program,
        prefixes=(*own, *(str(one) for one in order.reads)),
    )
    plain = Order(
        argv=(_program(order.argv[0], interpreter), *order.argv[1:]),
        workspace=order.workspace,
        limits=replace(order.limits, seconds=NO_END),
        interpreter=shown,
        is_resident=True,
    )
    spec: Spec = {**backend.spec(plain), "tick_ms": TICK_MS}
    if spec["bubblewrap"] is None:
        own_variables: dict[str, str] = spec["env"]
        return spec | {"env": own_variables | dict(order.variables)}
    return spec | {"private": dict(order.variables)}


def _program(name: str, interpreter: Interpreter | None) -> str:
    """Its path; `python` and `python3` are the Python of jails."""
    if "/" in name:
        return name
    if name in ("python", "python3") and interpreter is not None:
        return interpreter.program
    for folder in environment(None, interpreter)["PATH"].split(":"):
        found = Path(folder) / name
        if found.is_file():
            return str(found)
    raise ToolFailed(f"there is no program named {name!r} where the sandbox looks for programs")


class Resident:
    """`read` and `write` are for one task each; `ended` and `close` for any."""

    def __init__(self, jail: Jail) -> None:
        self._jail = jail
        self._writer, self._reader, self._errors = jail.streams()
        self._said = b""
        self._listening = asyncio.create_task(self._listen())
        self._end = asyncio.create_task(self._hear_end())

    @staticmethod
    async def start(spec: Spec) -> "Resident":
        """Raises ToolFailed where the program could not be started."""
        return Resident(await Jail.start(spec))

    @property
    def pid(self) -> int:
        """Of the process that goes after everything else in the jail."""
        return self._jail.pid

    async def read(self) -> bytes:
        """What it printed next; nothing once it has closed its output."""
        return await self._reader.read(_PIECE)

    async def write(self, data: bytes) -> None:
        """Returns once there is room for more. Raises OSError where it listens no more."""
        if self._writer.is_closing():
            raise BrokenPipeError
        self._writer.write(data)
        await self._writer.drain()

    async def ended(self) -> Ran:
        """Waits until it has ended with all it started. Raises ToolFailed where it never began."""
        return await asyncio.shield(self._end)

    async def close(self) -> None:
        """End it with everything it started. Nobody may be in `read` any more."""
        self._writer.close()
        # What is left in a pipe keeps it open, and an open pipe passes for a living process.
        draining = asyncio.create_task(self._drain())
        await self._jail.close()
        await asyncio.wait({draining}, timeout=_DRAIN_SECONDS)
        tasks = (self._listening, self._end, draining)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(self) -> None:
        with suppress(OSError):
            while piece := await self._errors.read(_PIECE):
                self._said = (self._said + piece)[-_KEPT_ERRORS:]

    async def _drain(self) -> None:
        with suppress(OSError):
            while await self._reader.read(_PIECE):
                pass

    async def _hear_end(self) -> Ran:
        told = await self._jail.hear_end()
        # What it said last is on its way; another process may hold the pipe open.
        await asyncio.wait({self._listening}, timeout=1.0)
        return self._jail.ran(told, stderr=self._said)
