"""Runs document readers in the sandbox: without workspace and network, with read access to Luxx's code only.

`infra/documents` holds the readers and their own limits. Each document gets a sandbox process of its own.
After a document, a process with its reader loaded waits for the next one; no document has been in it.
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
from luxx.infra.documents.bounds import PageForm, PageRequest
from luxx.infra.documents.reader import ReaderBounds, ReadFailure, read_in_process
from luxx.tools.sandbox.backends import Backend
from luxx.tools.sandbox.choosing import own_interpreter
from luxx.tools.sandbox.plan import MIB, ProgramLimits, ProgramSpec, SupervisorSpec
from luxx.tools.sandbox.process import ExceededLimit, ProgramResult, SandboxProcess, last_line
from luxx.tools.sandbox.resident import PrewarmedPool

MOST_WAITING = 2
"""Waiting readers of a server, of all kinds; each takes some 30 MB, for a minute after a document."""
PACKAGES = (
    *("msgspec", "lxml", "bs4", "pypdf", "python_calamine", "charset_normalizer", "ddgs"),
    *("pptx", "docx", "xlsxwriter", "typst", "rpptx", "rdocx", "pypdfium2", "PIL", "markdown_it"),
    *("fontpkg_arimo", "noto_cjk_sans_otc"),
)
"""The packages that readers and renderers import; their dependencies are in the same directories."""
_READER_MAIN = Path(__file__).with_name("reader_main.py").read_text("utf-8")
_LUXX = Path(__file__).parents[2]
_PROCESSES = 8
"""Includes bubblewrap's own processes; a reader denies itself to start any."""
_CHUNK_BYTES = 1 << 20
_PROBE_BOUNDS = ReaderBounds(memory=640 * MIB, seconds=10)
_PROBE_PAGE = msgspec.json.encode(PageRequest(url="", form=PageForm.TEXT, characters=100)) + b"\n<p>probe"
_TIME_LIMIT_EXIT_CODES = (-signal.SIGXCPU, -signal.SIGKILL, 128 + signal.SIGXCPU, 128 + signal.SIGKILL)
"""Exit codes of a reader that the kernel ended for its processor time. Bubblewrap reports a signal as 128
plus its number."""

logger = structlog.get_logger()


class ReaderKind(msgspec.Struct, frozen=True, kw_only=True):
    """The key of waiting readers: the module they have loaded, and their bounds."""

    module: str
    bounds: ReaderBounds


class DocumentReaders:
    """One per server; `backend` returns the active backend. Before `open` readers run unconfined."""

    def __init__(self, backend: Callable[[], Backend | None]) -> None:
        self._backend = backend
        self._code = _code()
        self._active_backend: Backend | None = None
        self._is_own_user = False
        self._prewarmed = PrewarmedPool(self._start, MOST_WAITING)
        self.problem = ""
        """Why readers run outside of the active sandbox; empty if they run in it."""

    @property
    def backend_name(self) -> str:
        """The name of the backend that confines readers; `none` if they run as the server's user."""
        return "none" if self._active_backend is None else self._active_backend.name

    async def open(self) -> None:
        """Reads a test page to find out whether readers work in the active sandbox."""
        backend = self._backend()
        if backend is None or backend.name == "none":
            return
        self._active_backend = backend
        # Landlock binds no paths: another user may have no access to this Python, for example below /root.
        tries_own_user = backend.name == "landlock" and os.geteuid() == 0
        for self._is_own_user in (False, True) if tries_own_user else (False,):
            self.problem = await self._probe()
            if not self.problem:
                break
        else:
            self._active_backend = None
            logger.warning("readers_not_sandboxed", reason=self.problem)

    async def close(self) -> None:
        """Ends the waiting readers."""
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
        """Like `read_in_process`, but in the sandbox if readers work there. Raises Unavailable."""
        if self._active_backend is None:
            return await read_in_process(module, arguments, document, bounds, limit=limit)
        limits = _limits(bounds, limit)

        async def read(reader: SandboxProcess) -> ProgramResult:
            return await reader.run(_input([*bounds.reader_arguments, *arguments], document), limits)

        try:
            return _answer(await self._prewarmed.use(ReaderKind(module=module, bounds=bounds), read))
        except (ToolFailed, OSError) as error:
            logger.warning("reader_not_started", reason=str(error))
            raise Unavailable("the server cannot start a process to read the document; try again") from error

    async def _start(self, kind: ReaderKind) -> SandboxProcess:
        return await SandboxProcess.start(self._spec(kind))

    def _spec(self, kind: ReaderKind) -> SupervisorSpec:
        backend = self._active_backend
        assert backend is not None
        interpreter = own_interpreter()
        program_spec = ProgramSpec(
            argv=(
                *(interpreter.program, "-I", "-S", "-B", "-c", _READER_MAIN),
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
        """Why a test page cannot be read; empty if it can."""
        kind = ReaderKind(module="luxx.infra.documents.page_text", bounds=_PROBE_BOUNDS)
        try:
            reader = await self._start(kind)
            result = await reader.run(
                _input(_PROBE_BOUNDS.reader_arguments, _PROBE_PAGE), _limits(_PROBE_BOUNDS, 10_000)
            )
        except (ToolFailed, OSError) as error:
            return str(error)
        if b"probe" in result.stdout:
            return ""
        return last_line(result.stderr) or f"a reader ended with exit code {result.exit_code}"


def _code() -> tuple[Path, ...]:
    """The directory of Luxx, and those that hold the packages of the readers."""
    directories: list[Path] = []
    for name in PACKAGES:
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:
            directory = Path(spec.origin).resolve().parents[1]
            directories += [] if directory in directories else [directory]
    return (_LUXX.resolve(), *directories)


def _limits(bounds: ReaderBounds, answer: int) -> ProgramLimits:
    """A little wider than the reader's own limits, so that it can still report which one it exceeded."""
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


def _answer(result: ProgramResult) -> bytes | ReadFailure:
    if result.is_truncated or result.exceeded_limit is ExceededLimit.OUTPUT:
        return ReadFailure.LONG
    if result.exceeded_limit in (ExceededLimit.TIME, ExceededLimit.CPU):
        return ReadFailure.TIME
    if result.exceeded_limit is not None:
        return ReadFailure.MEMORY
    if result.stdout:
        return result.stdout
    return ReadFailure.TIME if result.exit_code in _TIME_LIMIT_EXIT_CODES else ReadFailure.MEMORY
