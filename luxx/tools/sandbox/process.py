"""One jail as the server sees it: started through a supervisor, listened to, and always ended.

Not here: how a program is held in (the backends), and which jail a call gets (`sandbox`).
"""

import asyncio
import marshal
import socket
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from luxx.errors import ToolFailed
from luxx.infra.children import start_child
from luxx.tools.sandbox.plan import Limits, Spec

_ROOT = str(Path(__file__).parents[3])
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv[1]); from luxx.tools.sandbox.supervisor import main; "
    "main([int(one) for one in sys.argv[2:]])"
)
_START_SECONDS = 15.0
_END_SECONDS = 10.0
"""How long a supervisor may take to end a tree before its keeper is killed, which tells it once more."""
_DRAIN_SECONDS = 2.0
_PIECE = 65_536
FLOOD_FACTOR = 16
"""What is printed past the limit is dropped, up to so many times the limit; then the program is ended."""

OnOutput = Callable[[str, bytes], None]
"""Told of each piece that is kept, with `stdout` or `stderr`, as it comes."""


class Hit(StrEnum):
    """The limit a program was ended for."""

    TIME = "time"
    CPU = "cpu"
    MEMORY = "memory"
    MACHINE = "machine_memory"
    PROCESSES = "processes"
    FILE = "file"
    DISK = "disk"
    OUTPUT = "output"


class NeverWent(ToolFailed):
    """The jail was gone before anything ran in it, so it can be done again elsewhere."""


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """How a program ended. `exit_code` is negative for a signal; `memory` the most it held, in bytes.

    `is_truncated`: it printed more than was kept.
    """

    exit_code: int
    stdout: bytes
    stderr: bytes
    is_truncated: bool
    hit: Hit | None
    seconds: float
    cpu_seconds: float
    memory: int


class Jail:
    """A started program. `run` hears it out; `close` ends it at any time. Both may be awaited once done."""

    def __init__(
        self, spec: Spec, process: Process, control: socket.socket, letterbox: socket.socket | None
    ) -> None:
        self._door: socket.socket | None = None
        self._letterbox = letterbox
        self._waits = bool(spec["waits"])
        self._process = process
        self._control = control

    @property
    def pid(self) -> int:
        """Of the supervisor's keeper, which goes after everything else."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    @staticmethod
    async def start(spec: Spec) -> "Jail":
        """Raises ToolFailed where the program could not be started."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        inlet, outlet = socket.socketpair() if spec["has_door"] else (None, None)
        passed = [one for one in (theirs, outlet) if one is not None]
        told = spec | {"letterbox": None if outlet is None else outlet.fileno()}
        try:
            process = await _new_supervisor([one.fileno() for one in passed])
        except BaseException:
            _close(ours, inlet)
            raise
        finally:
            _close(*passed)
        jail = Jail(spec, process, ours, inlet)
        try:
            async with asyncio.timeout(_START_SECONDS):
                text = marshal.dumps(told)
                await asyncio.get_running_loop().sock_sendall(ours, len(text).to_bytes(4, "big") + text)
                await jail._expect("started")
            jail._find_door()
        except BaseException as error:
            await jail.close()
            if isinstance(error, TimeoutError):
                raise ToolFailed("the jail was not ready in time") from None
            raise
        return jail

    async def run(
        self, stdin: bytes | AsyncIterable[bytes], limits: Limits, on_output: OnOutput | None = None
    ) -> Ran:
        """Let it go, give it `stdin`, and hear it out. Ended early, it ends the program first.

        Of `limits` the time of one that waited counts, and the output. Raises ToolFailed where the jail was
        not set up after all.
        """
        heard = _Heard(limits, on_output, self._hang_up)
        listening = [self._feed_when_going(stdin, heard), *self._listen(heard)]
        streams = [asyncio.create_task(one) for one in listening]
        try:
            ended = await self._hear_end(heard.is_going)
            await asyncio.wait(streams, timeout=_DRAIN_SECONDS)
        finally:
            for one in streams:
                one.cancel()
            await self.close()
            await asyncio.gather(*streams, return_exceptions=True)
        for one in streams:
            if not one.cancelled():
                one.result()
        return _ran(ended, heard.kept, is_flood=heard.is_flood, is_truncated=heard.is_truncated)

    def streams(self) -> tuple[asyncio.StreamWriter, asyncio.StreamReader, asyncio.StreamReader]:
        """Its stdin, stdout and stderr, for one who does not `run` it but talks to it."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        return process.stdin, process.stdout, process.stderr

    async def hear_end(self) -> dict[str, Any]:
        """What the supervisor says once a program that one talks to has ended."""
        return await self._hear_end(asyncio.Event())

    @staticmethod
    def ran(ended: dict[str, Any], *, stderr: bytes) -> Ran:
        """How a program ended that one talked to. Raises ToolFailed where it never began."""
        return _ran(ended, {"stdout": [], "stderr": [stderr]})

    async def close(self) -> None:
        """End it with everything it started. Nothing of it runs any more afterwards."""
        self._hang_up()
        try:
            async with asyncio.timeout(_END_SECONDS):
                await self._process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        finally:
            _close(self._control, self._letterbox, self._door)

    def door(self) -> socket.socket | None:
        """The socket that listens in a jail with a way out; it is the caller's now, to serve and to close."""
        door, self._door = self._door, None
        return door

    def _find_door(self) -> None:
        """It lies in the letterbox when the jail has started."""
        if self._letterbox is not None:
            self._letterbox.setblocking(False)
            _, found, _, _ = socket.recv_fds(self._letterbox, 1, 1)
            self._door = socket.socket(fileno=found[0])
            self._door.setblocking(False)

    def _hang_up(self) -> None:
        """The supervisor takes silence as the word to end everything."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)

    async def _hear_end(self, is_going: asyncio.Event) -> dict[str, Any]:
        began = time.monotonic()
        told = await self._hear()
        while told is not None and "code" not in told and "failed" not in told:
            if "going" in told:
                is_going.set()
            told = await self._hear()
        if self._waits and not is_going.is_set():
            raise NeverWent("the jail ended before its program began")
        if told is None:
            # The supervisor was killed; its keeper ends what it watched over.
            return {"code": -9, "hit": None, "wall": time.monotonic() - began, "cpu": 0.0, "memory": 0}
        return told

    async def _feed_when_going(self, stdin: bytes | AsyncIterable[bytes], heard: "_Heard") -> None:
        if self._waits:
            await asyncio.get_running_loop().sock_sendall(self._control, f"{heard.seconds:.3f}".encode())
            await heard.is_going.wait()
        writer = self._process.stdin
        assert writer is not None
        # A program that has already ended takes its streams along.
        if not writer.is_closing():
            with suppress(BrokenPipeError, ConnectionResetError):
                async for piece in _pieces(stdin):
                    writer.write(piece)
                    await writer.drain()
        writer.close()

    def _listen(self, heard: "_Heard") -> list[Any]:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        return [
            heard.listen("stdout", self._process.stdout),
            heard.listen("stderr", self._process.stderr),
        ]

    async def _expect(self, word: str) -> None:
        told = await self._hear()
        if told is None or word not in told:
            reason = "its supervisor ended" if told is None else str(told.get("failed"))
            assert self._process.stderr is not None
            said = (await self._process.stderr.read(1000)).decode("utf-8", "replace").strip()
            raise ToolFailed(f"{reason}: {said.splitlines()[-1]}" if said else reason)

    async def _hear(self) -> dict[str, Any] | None:
        length = await self._exactly(4)
        text = None if length is None else await self._exactly(int.from_bytes(length, "big"))
        return None if text is None else marshal.loads(text)

    async def _exactly(self, length: int) -> bytes | None:
        loop = asyncio.get_running_loop()
        heard = b""
        while len(heard) < length:
            try:
                piece = await loop.sock_recv(self._control, length - len(heard))
            except ConnectionError:
                return None
            if not piece:
                return None
            heard += piece
        return heard


async def _new_supervisor(passed: list[int]) -> Process:
    """The first descriptor is the one it is told on."""
    return await start_child(
        *(sys.executable, "-I", "-S", "-c", _BOOT, _ROOT, *map(str, passed)),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        pass_fds=passed,
        env={},
        cwd="/",
        start_new_session=True,
    )


async def _pieces(stdin: bytes | AsyncIterable[bytes]) -> AsyncGenerator[bytes]:
    if isinstance(stdin, bytes):
        yield stdin
    else:
        async for piece in stdin:
            yield piece


def _close(*sockets: socket.socket | None) -> None:
    for one in sockets:
        if one is not None:
            one.close()


class _Heard:
    """What a program printed, up to a limit for both of its streams together."""

    def __init__(self, limits: Limits, on_output: OnOutput | None, end: Callable[[], None]) -> None:
        self.kept: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        self.size = 0
        self.is_flood = False
        self.is_going = asyncio.Event()
        self.seconds = limits.seconds
        self._limit = limits.output_kb * 1024
        self._on_output = on_output
        self._end = end

    @property
    def is_truncated(self) -> bool:
        return self.size > self._limit

    async def listen(self, name: str, reader: asyncio.StreamReader) -> None:
        while piece := await reader.read(_PIECE):
            room = max(self._limit - self.size, 0)
            self.size += len(piece)
            if room:
                self.kept[name].append(piece[:room])
                if self._on_output is not None:
                    self._on_output(name, piece[:room])
            if self.size > FLOOD_FACTOR * self._limit and not self.is_flood:
                self.is_flood = True
                self._end()


def _ran(
    ended: dict[str, Any],
    kept: dict[str, list[bytes]],
    *,
    is_flood: bool = False,
    is_truncated: bool = False,
) -> Ran:
    stdout, stderr = (b"".join(kept[name]) for name in ("stdout", "stderr"))
    if "failed" in ended:
        said = stderr.decode("utf-8", "replace").strip().splitlines()
        raise ToolFailed(f"{ended['failed']}: {said[-1][:300]}" if said else ended["failed"])
    hit = Hit(ended["hit"]) if ended["hit"] else _hit_by(ended["code"])
    return Ran(
        exit_code=ended["code"],
        stdout=stdout,
        stderr=stderr,
        is_truncated=is_truncated,
        hit=Hit.OUTPUT if is_flood else hit,
        seconds=ended["wall"],
        cpu_seconds=ended["cpu"],
        memory=ended["memory"],
    )


def _hit_by(code: int) -> Hit | None:
    """The limit that the kernel itself enforced; bubblewrap tells a signal as 128 and its number."""
    match code:
        case -24 | 152:
            return Hit.CPU
        case -25 | 153:
            return Hit.FILE
        case _:
            return None
