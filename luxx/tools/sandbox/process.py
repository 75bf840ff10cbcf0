"""One sandbox process as the server sees it: starts it through a supervisor, reads its output, ends it.

Not here: how a program is confined (`backends`), and which process a call gets (`service`).
"""

import asyncio
import marshal
import socket
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from luxx.errors import ToolFailed
from luxx.infra.children import start_child
from luxx.tools.sandbox.plan import ProgramLimits, SupervisorSpec

_ROOT = str(Path(__file__).parents[3])
_SUPERVISOR_CODE = (
    "import sys; sys.path.insert(0, sys.argv[1]); from luxx.tools.sandbox.supervisor import main; "
    "main([int(one) for one in sys.argv[2:]])"
)
_START_SECONDS = 15.0
_END_SECONDS = 10.0
"""How long a supervisor may take to end its tree. After that the server kills the keeper, and the supervisor
ends the tree because its keeper is gone."""
_DRAIN_SECONDS = 2.0
_CHUNK_BYTES = 65_536
OUTPUT_KILL_FACTOR = 16
"""Output past the limit is dropped. A program that prints this many times the limit is ended."""

OnOutput = Callable[[str, bytes], None]
"""Called with `stdout` or `stderr` and each kept piece of output as it arrives."""


class ExceededLimit(StrEnum):
    """The limit that a program exceeded and was ended for."""

    TIME = "time"
    CPU = "cpu"
    MEMORY = "memory"
    MACHINE_MEMORY = "machine_memory"
    PROCESSES = "processes"
    FILE = "file"
    DISK = "disk"
    OUTPUT = "output"


class ProgramNotStarted(ToolFailed):
    """The sandbox process ended before its program started, so the caller can retry in another one."""


class ProgramResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a program ended. `exit_code` is negative for a signal; `memory` is its peak in bytes.

    `is_truncated`: the program printed more than the limit, and the rest is dropped.
    """

    exit_code: int
    stdout: bytes
    stderr: bytes
    is_truncated: bool
    exceeded_limit: ExceededLimit | None
    seconds: float
    cpu_seconds: float
    memory: int


class SandboxProcess:
    """A started program. `run` waits for its end; `close` ends it at any time and may be called again."""

    def __init__(
        self, spec: SupervisorSpec, process: Process, control: socket.socket, fd_channel: socket.socket | None
    ) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.stdin, self.stdout, self.stderr = process.stdin, process.stdout, process.stderr
        """For a caller that talks to the program instead of calling `run`."""
        self._fd_channel = fd_channel
        self._waits = bool(spec["waits"])
        self._has_begun = asyncio.Event()
        self._process = process
        self._control = control

    @property
    def pid(self) -> int:
        """The pid of the supervisor's keeper, which ends after all other processes of the sandbox."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    @staticmethod
    async def start(spec: SupervisorSpec) -> "SandboxProcess":
        """Raises ToolFailed if the program cannot be started."""
        own_socket, supervisor_socket = socket.socketpair()
        own_socket.setblocking(False)
        own_channel, supervisor_channel = socket.socketpair() if spec["has_proxy"] else (None, None)
        passed = [handle for handle in (supervisor_socket, supervisor_channel) if handle is not None]
        channel_fd = None if supervisor_channel is None else supervisor_channel.fileno()
        spec_with_channel = spec | {"fd_channel": channel_fd}
        try:
            # The first of the descriptors is the control socket.
            fds = [handle.fileno() for handle in passed]
            process = await start_child(
                *(sys.executable, "-I", "-S", "-c", _SUPERVISOR_CODE, _ROOT, *map(str, fds)),
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                pass_fds=fds,
                env={"TMPDIR": tempfile.gettempdir()},
                cwd="/",
                start_new_session=True,
            )
        except BaseException:
            _close(own_socket, own_channel)
            raise
        finally:
            _close(*passed)
        started = SandboxProcess(spec, process, own_socket, own_channel)
        try:
            async with asyncio.timeout(_START_SECONDS):
                data = marshal.dumps(spec_with_channel)
                await asyncio.get_running_loop().sock_sendall(own_socket, len(data).to_bytes(4, "big") + data)
                await started._wait_for_message("started")
        except BaseException as error:
            await started.close()
            if isinstance(error, TimeoutError):
                raise ToolFailed("the sandbox process did not start in time") from None
            raise
        return started

    async def run(
        self, stdin: bytes | AsyncIterable[bytes], limits: ProgramLimits, on_output: OnOutput | None = None
    ) -> ProgramResult:
        """Let the program run, write `stdin` to it, and wait for its end. A cancelled call ends the program.

        Of `limits` this uses the seconds (for a program that waited) and the output size. Raises ToolFailed
        if the sandbox could not be set up, ProgramNotStarted if a waiting process ended too early.
        """
        output = _OutputCollector(limits.output_kb * 1024, on_output, self._close_control)
        streams = [
            asyncio.create_task(self._feed_once_begun(stdin, limits.seconds)),
            asyncio.create_task(output.listen("stdout", self.stdout)),
            asyncio.create_task(output.listen("stderr", self.stderr)),
        ]
        try:
            ended = await self.wait_for_end()
            await asyncio.wait(streams, timeout=_DRAIN_SECONDS)
        finally:
            for stream in streams:
                stream.cancel()
            await self.close()
            await asyncio.gather(*streams, return_exceptions=True)
        for stream in streams:
            if not stream.cancelled():
                stream.result()
        return program_result(
            ended, output.kept, is_output_exceeded=output.is_output_exceeded, is_truncated=output.is_truncated
        )

    async def close(self) -> None:
        """End the program with every process it started; none of them runs when this returns."""
        self._close_control()
        try:
            async with asyncio.timeout(_END_SECONDS):
                await self._process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        finally:
            _close(self._control, self._fd_channel)

    def take_proxy_socket(self) -> socket.socket | None:
        """The proxy socket that listens inside the sandbox, or None. The caller serves it and closes it."""
        if self._fd_channel is None:
            return None
        # The supervisor has sent it before `started`.
        self._fd_channel.setblocking(False)
        _, fds, _, _ = socket.recv_fds(self._fd_channel, 1, 1)
        proxy_socket = socket.socket(fileno=fds[0])
        proxy_socket.setblocking(False)
        return proxy_socket

    def _close_control(self) -> None:
        """The supervisor ends the whole tree when its control socket is closed."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)

    async def wait_for_end(self) -> dict[str, Any]:
        """The supervisor's last message, which `program_result` reads."""
        started_at = time.monotonic()
        message = await self._receive_message()
        while message is not None and "code" not in message and "failed" not in message:
            if "begun" in message:
                self._has_begun.set()
            message = await self._receive_message()
        if self._waits and not self._has_begun.is_set():
            raise ProgramNotStarted("the sandbox process ended before its program started")
        if message is None:
            # The supervisor was killed; its keeper ends the tree.
            seconds = time.monotonic() - started_at
            return {"code": -9, "exceeded_limit": None, "wall": seconds, "cpu": 0.0, "memory": 0}
        return message

    async def _feed_once_begun(self, stdin: bytes | AsyncIterable[bytes], seconds: float) -> None:
        if self._waits:
            await asyncio.get_running_loop().sock_sendall(self._control, f"{seconds:.3f}".encode())
            await self._has_begun.wait()
        # The pipe is closed already if the program has ended.
        if not self.stdin.is_closing():
            with suppress(BrokenPipeError, ConnectionResetError):
                async for piece in _pieces(stdin):
                    self.stdin.write(piece)
                    await self.stdin.drain()
        self.stdin.close()

    async def _wait_for_message(self, key: str) -> None:
        """Raises ToolFailed if the next message has no such key."""
        message = await self._receive_message()
        if message is None or key not in message:
            reason = "its supervisor ended" if message is None else str(message.get("failed"))
            error_line = last_line(await self.stderr.read(1000))
            raise ToolFailed(f"{reason}: {error_line}" if error_line else reason)

    async def _receive_message(self) -> dict[str, Any] | None:
        length = await self._receive_exactly(4)
        data = None if length is None else await self._receive_exactly(int.from_bytes(length, "big"))
        return None if data is None else marshal.loads(data)

    async def _receive_exactly(self, length: int) -> bytes | None:
        loop = asyncio.get_running_loop()
        data = b""
        while len(data) < length:
            try:
                piece = await loop.sock_recv(self._control, length - len(data))
            except ConnectionError:
                return None
            if not piece:
                return None
            data += piece
        return data


async def _pieces(stdin: bytes | AsyncIterable[bytes]) -> AsyncGenerator[bytes]:
    if isinstance(stdin, bytes):
        yield stdin
    else:
        async for piece in stdin:
            yield piece


def _close(*sockets: socket.socket | None) -> None:
    for socket_ in sockets:
        if socket_ is not None:
            socket_.close()


@dataclass(slots=True)
class _OutputCollector:
    """Keeps a program's output, up to `limit` bytes of stdout and stderr together."""

    limit: int
    on_output: OnOutput | None
    stop_program: Callable[[], None]
    kept: dict[str, list[bytes]] = field(default_factory=lambda: {"stdout": [], "stderr": []})
    size: int = 0
    is_output_exceeded: bool = False

    @property
    def is_truncated(self) -> bool:
        return self.size > self.limit

    async def listen(self, name: str, reader: asyncio.StreamReader) -> None:
        while piece := await reader.read(_CHUNK_BYTES):
            remaining = max(self.limit - self.size, 0)
            self.size += len(piece)
            if remaining:
                self.kept[name].append(piece[:remaining])
                if self.on_output is not None:
                    self.on_output(name, piece[:remaining])
            if self.size > OUTPUT_KILL_FACTOR * self.limit and not self.is_output_exceeded:
                self.is_output_exceeded = True
                self.stop_program()


def program_result(
    ended: dict[str, Any],
    kept: dict[str, list[bytes]],
    *,
    is_output_exceeded: bool = False,
    is_truncated: bool = False,
) -> ProgramResult:
    """The result for the supervisor's last message. Raises ToolFailed if the program never started."""
    stdout, stderr = (b"".join(kept[name]) for name in ("stdout", "stderr"))
    if "failed" in ended:
        error_line = last_line(stderr)
        raise ToolFailed(f"{ended['failed']}: {error_line}" if error_line else ended["failed"])
    limit = ended["exceeded_limit"]
    exceeded_limit = ExceededLimit(limit) if limit else _limit_from_exit_code(ended["code"])
    return ProgramResult(
        exit_code=ended["code"],
        stdout=stdout,
        stderr=stderr,
        is_truncated=is_truncated,
        exceeded_limit=ExceededLimit.OUTPUT if is_output_exceeded else exceeded_limit,
        seconds=ended["wall"],
        cpu_seconds=ended["cpu"],
        memory=ended["memory"],
    )


def last_line(output: bytes) -> str:
    """The last line that is not blank, shortened; empty if there is none."""
    lines = output.decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:300] if lines else ""


def _limit_from_exit_code(code: int) -> ExceededLimit | None:
    """The limit that the kernel itself enforced. Bubblewrap reports a signal as 128 plus its number."""
    match code:
        case -24 | 152:
            return ExceededLimit.CPU
        case -25 | 153:
            return ExceededLimit.FILE
        case _:
            return None
