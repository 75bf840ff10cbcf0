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
from luxx.tools.sandbox.plan import (
    Backend,
    Interpreter,
    ProgramLimits,
    ProgramSpec,
    SupervisorSpec,
    environment,
)
from luxx.tools.sandbox.process import ProgramResult, SandboxProcess

NO_TIME_LIMIT = math.inf
TICK_MS = 100
"""How often a watch looks at what may stay for days; the usual pace takes a fiftieth of a processor."""
_CHUNK_BYTES = 65_536
_DRAIN_SECONDS = 1.0
_KEPT_ERRORS = 4_096
"""Bytes of what it last said on stderr; the rest is let go."""


class ResidentSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A program to stay. `argv[0]` is a path or a name; `reads`: directories it may read besides the system.

    `variables` are added to its environment and never stand in the arguments of any process.
    """

    argv: tuple[str, ...]
    workspace: Path
    limits: ProgramLimits
    reads: tuple[Path, ...] = ()
    variables: Mapping[str, str] = {}


def resident_spec(
    program_spec: ResidentSpec, backend: Backend, interpreter: Interpreter | None
) -> SupervisorSpec:
    """What the supervisor is told. Raises ToolFailed where there is no such program."""
    own: tuple[str, ...] = () if interpreter is None else interpreter.prefixes
    shown = Interpreter(
        program="/usr/bin/env" if interpreter is None else interpreter.program,
        prefixes=(*own, *(str(one) for one in program_spec.reads)),
    )
    plain = ProgramSpec(
        argv=(_program(program_spec.argv[0], interpreter), *program_spec.argv[1:]),
        workspace=program_spec.workspace,
        limits=replace(program_spec.limits, seconds=NO_TIME_LIMIT),
        interpreter=shown,
        is_resident=True,
    )
    spec: SupervisorSpec = {**backend.spec(plain), "tick_ms": TICK_MS}
    if spec["bubblewrap"] is None:
        own_variables: dict[str, str] = spec["env"]
        return spec | {"env": own_variables | dict(program_spec.variables)}
    return spec | {"private": dict(program_spec.variables)}


def _program(name: str, interpreter: Interpreter | None) -> str:
    """Its path; `python` and `python3` are the Python of jails."""
    if "/" in name:
        return name
    if name in ("python", "python3") and interpreter is not None:
        return interpreter.program
    for folder in environment(None, interpreter)["PATH"].split(":"):
        path = Path(folder) / name
        if path.is_file():
            return str(path)
    raise ToolFailed(f"there is no program named {name!r} where the sandbox looks for programs")


class Resident:
    """`read` and `write` are for one task each; `ended` and `close` for any."""

    def __init__(self, process: SandboxProcess) -> None:
        self._process = process
        self._writer, self._reader, self._errors = process.streams()
        self._stderr_tail = b""
        self._listening = asyncio.create_task(self._listen())
        self._end = asyncio.create_task(self._wait_for_end())

    @staticmethod
    async def start(spec: SupervisorSpec) -> "Resident":
        """Raises ToolFailed where the program could not be started."""
        return Resident(await SandboxProcess.start(spec))

    @property
    def pid(self) -> int:
        """Of the process that goes after everything else in the jail."""
        return self._process.pid

    async def read(self) -> bytes:
        """What it printed next; nothing once it has closed its output."""
        return await self._reader.read(_CHUNK_BYTES)

    async def write(self, data: bytes) -> None:
        """Returns once there is room for more. Raises OSError where it listens no more."""
        if self._writer.is_closing():
            raise BrokenPipeError
        self._writer.write(data)
        await self._writer.drain()

    async def ended(self) -> ProgramResult:
        """Waits until it has ended with all it started. Raises ToolFailed where it never began."""
        return await asyncio.shield(self._end)

    async def close(self) -> None:
        """End it with everything it started. Nobody may be in `read` any more."""
        self._writer.close()
        # What is left in a pipe keeps it open, and an open pipe passes for a living process.
        draining = asyncio.create_task(self._drain())
        await self._process.close()
        await asyncio.wait({draining}, timeout=_DRAIN_SECONDS)
        tasks = (self._listening, self._end, draining)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(self) -> None:
        with suppress(OSError):
            while piece := await self._errors.read(_CHUNK_BYTES):
                self._stderr_tail = (self._stderr_tail + piece)[-_KEPT_ERRORS:]

    async def _drain(self) -> None:
        with suppress(OSError):
            while await self._reader.read(_CHUNK_BYTES):
                pass

    async def _wait_for_end(self) -> ProgramResult:
        ended_message = await self._process.wait_for_end()
        # What it said last is on its way; another process may hold the pipe open.
        await asyncio.wait({self._listening}, timeout=1.0)
        return self._process.ran(ended_message, stderr=self._stderr_tail)
