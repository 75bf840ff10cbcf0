"""Readers of documents in the sandbox: no workspace, no network, and only Luxx's own code to read.

What a reader does, and how it bounds itself, is in `documents/`. Each document has a sandbox of its own; one
that has loaded its reader waits for the next, and nothing of anybody has been in it.
"""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import msgspec
import structlog

from luxx.errors import ToolFailed, Unavailable
from luxx.infra.documents.reader import PageForm, PageRequest, ReaderBounds, ReadFailure, read_in_process
from luxx.tools.sandbox.choosing import own_interpreter
from luxx.tools.sandbox.plan import MIB, Backend, ProgramLimits, ProgramSpec, SupervisorSpec
from luxx.tools.sandbox.prewarmed import PrewarmedPool
from luxx.tools.sandbox.process import ExceededLimit, ProgramNotStarted, ProgramResult, SandboxProcess

MOST_WAITING = 2
"""Of a server, all kinds of readers together; each takes some 30 MB, for a minute after a document."""
PACKAGES = ("msgspec", "lxml", "pypdf", "charset_normalizer", "ddgs")
"""What readers import; others lie where these do."""
_READING = Path(__file__).with_name("reading.py").read_text("utf-8")
_LUXX = Path(__file__).parents[2]
_PROCESSES = 8
"""Bubblewrap's own among them; a reader lets itself start none."""
_CHUNK_BYTES = 1 << 20
_PROBE_BOUNDS = ReaderBounds(memory=640 * MIB, seconds=10)
_PROBE_PAGE = msgspec.json.encode(PageRequest(url="", form=PageForm.TEXT, characters=100)) + b"\n<p>probe"
_TIME_LIMIT_EXIT_CODES = (-signal.SIGXCPU, -signal.SIGKILL, 128 + signal.SIGXCPU, 128 + signal.SIGKILL)
"""How the kernel ends what has worked too long; bubblewrap tells a signal as 128 and its number."""

logger = structlog.get_logger()


class ReaderKind(msgspec.Struct, frozen=True, kw_only=True):
    """What a waiting reader is good for."""

    module: str
    bounds: ReaderBounds


class DocumentReaders:
    """One per server; `backend` gives the sandbox's backend in force. Before `open` nothing is held in."""

    def __init__(self, backend: Callable[[], Backend | None]) -> None:
        self._backend = backend
        self._code = _code()
        self._active_backend: Backend | None = None
        self._is_own_user = False
        self._prewarmed = PrewarmedPool(self._start, MOST_WAITING)
        self.problem = ""
        """Why readers run outside of the sandbox that is in force; empty where they do not."""

    @property
    def backend_name(self) -> str:
        """The name of the backend that holds readers in; `none` where they run as the server's user."""
        return "none" if self._active_backend is None else self._active_backend.name

    async def open(self) -> None:
        """Finds out whether readers run in the sandbox in force, by reading a page."""
        backend = self._backend()
        if backend is None or backend.name == "none":
            return
        self._active_backend = backend
        # Landlock moves nothing: another user may not get to where this Python lies, for example below /root.
        for self._is_own_user in (
            (False, True) if backend.name == "landlock" and os.geteuid() == 0 else (False,)
        ):
            self.problem = await self._probe()
            if not self.problem:
                break
        else:
            self._active_backend = None
            logger.warning("readers_not_sandboxed", reason=self.problem)

    async def close(self) -> None:
        """Ends the readers that wait."""
        await self._prewarmed.close()

    async def run(
        self,
        module: str,
        arguments: Sequence[str],
        document: int | bytes,
        bounds: ReaderBounds,
        *,
        limit: int,
    ) -> bytes | ReadFailure:
        """As `read_in_process`, and in the sandbox where it works. Raises Unavailable."""
        if self._active_backend is None:
            return await read_in_process(module, arguments, document, bounds, limit=limit)
        kind = ReaderKind(module=module, bounds=bounds)
        try:
            return await self._run(kind, arguments, document, limit)
        except (ToolFailed, OSError) as error:
            logger.warning("reader_not_started", reason=str(error))
            raise Unavailable("this server cannot start a process to read it just now; try again") from error
        finally:
            self._prewarmed.refill(kind)

    async def _run(
        self, kind: ReaderKind, arguments: Sequence[str], document: int | bytes, limit: int
    ) -> bytes | ReadFailure:
        limits = _limits(kind.bounds, limit)
        reader_arguments = [*kind.bounds.reader_arguments, *arguments]
        reader = self._prewarmed.take(kind) or await self._start(kind)
        try:
            ran = await reader.run(_input(reader_arguments, document), limits)
        except ProgramNotStarted:
            reader = await self._start(kind)
            ran = await reader.run(_input(reader_arguments, document), limits)
        return _answer(ran)

    async def _start(self, kind: ReaderKind) -> SandboxProcess:
        return await SandboxProcess.start(self._spec(kind))

    def _spec(self, kind: ReaderKind) -> SupervisorSpec:
        backend = self._active_backend
        assert backend is not None
        interpreter = own_interpreter()
        program_spec = ProgramSpec(
            argv=(
                *(interpreter.program, "-I", "-S", "-B", "-c", _READING),
                *(kind.module, *backend.shown_code(self._code)),
            ),
            workspace=None,
            limits=_limits(kind.bounds, 0),
            interpreter=interpreter,
            code=self._code,
            waits=True,
        )
        # A reader writes no file.
        spec = backend.spec(program_spec) | {"scratch": False}
        return spec | {"uid": None} if self._is_own_user else spec

    async def _probe(self) -> str:
        """Why a page cannot be read; empty where it can."""
        kind = ReaderKind(module="luxx.infra.documents.page_text", bounds=_PROBE_BOUNDS)
        try:
            reader = await self._start(kind)
            ran = await reader.run(
                _input(_PROBE_BOUNDS.reader_arguments, _PROBE_PAGE), _limits(_PROBE_BOUNDS, 10_000)
            )
        except (ToolFailed, OSError) as error:
            return str(error)
        if b"probe" in ran.stdout:
            return ""
        stderr_lines = ran.stderr.decode("utf-8", "replace").strip().splitlines()
        return stderr_lines[-1][:300] if stderr_lines else f"a reader ended with exit code {ran.exit_code}"


def _code() -> tuple[Path, ...]:
    """This package, and the directories that hold the others readers need."""
    directories: list[Path] = []
    for name in PACKAGES:
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:
            directory = Path(spec.origin).resolve().parents[1]
            directories += [] if directory in directories else [directory]
    return (_LUXX.resolve(), *directories)


def _limits(bounds: ReaderBounds, answer: int) -> ProgramLimits:
    """A little wider than what the reader allows itself, so that it can still say what it was ended for."""
    return ProgramLimits(
        seconds=bounds.wait_seconds,
        cpu_seconds=bounds.seconds + 2,
        memory_mb=bounds.memory // MIB + 1,
        processes=_PROCESSES,
        file_mb=1,
        disk_mb=1,
        output_kb=answer // 1024 + 1,
    )


async def _input(reader_arguments: Sequence[str], document: int | bytes) -> AsyncGenerator[bytes]:
    yield " ".join(reader_arguments).encode() + b"\n"
    if isinstance(document, bytes):
        yield document
        return
    offset = 0
    while piece := await asyncio.to_thread(os.pread, document, _CHUNK_BYTES, offset):
        offset += len(piece)
        yield piece


def _answer(ran: ProgramResult) -> bytes | ReadFailure:
    if ran.is_truncated or ran.exceeded_limit is ExceededLimit.OUTPUT:
        return ReadFailure.LONG
    if ran.exceeded_limit in (ExceededLimit.TIME, ExceededLimit.CPU):
        return ReadFailure.TIME
    if ran.exceeded_limit is not None:
        return ReadFailure.MEMORY
    if ran.stdout:
        return ran.stdout
    return ReadFailure.TIME if ran.exit_code in _TIME_LIMIT_EXIT_CODES else ReadFailure.MEMORY
