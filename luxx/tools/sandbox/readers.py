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
from luxx.infra.documents.reader import Bounds, Ended, PageForm, PageRequest, read_in_process
from luxx.tools.sandbox.choosing import own_interpreter
from luxx.tools.sandbox.plan import MIB, Backend, Limits, Order, Spec
from luxx.tools.sandbox.prewarmed import Prewarmed
from luxx.tools.sandbox.process import Hit, Jail, NeverWent, Ran

MOST_WAITING = 2
"""Of a server, all kinds of readers together; each takes some 30 MB, for a minute after a document."""
PACKAGES = ("msgspec", "lxml", "pypdf", "charset_normalizer", "ddgs")
"""What readers import; others lie where these do."""
_READING = Path(__file__).with_name("reading.py").read_text("utf-8")
_LUXX = Path(__file__).parents[2]
_PROCESSES = 8
"""Bubblewrap's own among them; a reader lets itself start none."""
_PIECE = 1 << 20
_PROBE_BOUNDS = Bounds(memory=640 * MIB, seconds=10)
_PROBE_PAGE = msgspec.json.encode(PageRequest(url="", form=PageForm.TEXT, characters=100)) + b"\n<p>probe"
_LATE = (-signal.SIGXCPU, -signal.SIGKILL, 128 + signal.SIGXCPU, 128 + signal.SIGKILL)
"""How the kernel ends what has worked too long; bubblewrap tells a signal as 128 and its number."""

logger = structlog.get_logger()


class ReaderKind(msgspec.Struct, frozen=True, kw_only=True):
    """What a waiting reader is good for."""

    module: str
    bounds: Bounds


class DocumentReaders:
    """One per server; `backend` gives the sandbox's backend in force. Before `open` nothing is held in."""

    def __init__(self, backend: Callable[[], Backend | None]) -> None:
        self._backend = backend
        self._code = _code()
        self._held_by: Backend | None = None
        self._is_own_user = False
        self._prewarmed = Prewarmed(self._start, MOST_WAITING)
        self.problem = ""
        """Why readers run outside of the sandbox that is in force; empty where they do not."""

    @property
    def held_by(self) -> str:
        """The name of the backend that holds readers in; `none` where they run as the server's user."""
        return "none" if self._held_by is None else self._held_by.name

    async def open(self) -> None:
        """Finds out whether readers run in the sandbox in force, by reading a page."""
        backend = self._backend()
        if backend is None or backend.name == "none":
            return
        self._held_by = backend
        # Landlock moves nothing: another user may not get to where this Python lies, for example below /root.
        for self._is_own_user in (
            (False, True) if backend.name == "landlock" and os.geteuid() == 0 else (False,)
        ):
            self.problem = await self._probe()
            if not self.problem:
                break
        else:
            self._held_by = None
            logger.warning("readers_not_sandboxed", reason=self.problem)

    async def close(self) -> None:
        """Ends the readers that wait."""
        await self._prewarmed.close()

    async def run(
        self, module: str, arguments: Sequence[str], given: int | bytes, bounds: Bounds, *, limit: int
    ) -> bytes | Ended:
        """As `read_in_process`, and in the sandbox where it works. Raises Unavailable."""
        if self._held_by is None:
            return await read_in_process(module, arguments, given, bounds, limit=limit)
        kind = ReaderKind(module=module, bounds=bounds)
        try:
            return await self._run(kind, arguments, given, limit)
        except (ToolFailed, OSError) as error:
            logger.warning("reader_not_started", reason=str(error))
            raise Unavailable("this server cannot start a process to read it just now; try again") from error
        finally:
            self._prewarmed.refill(kind)

    async def _run(
        self, kind: ReaderKind, arguments: Sequence[str], given: int | bytes, limit: int
    ) -> bytes | Ended:
        limits = _limits(kind.bounds, limit)
        words = [*kind.bounds.words, *arguments]
        reader = self._prewarmed.take(kind) or await self._start(kind)
        try:
            ran = await reader.run(_input(words, given), limits)
        except NeverWent:
            reader = await self._start(kind)
            ran = await reader.run(_input(words, given), limits)
        return _answer(ran)

    async def _start(self, kind: ReaderKind) -> Jail:
        return await Jail.start(self._spec(kind))

    def _spec(self, kind: ReaderKind) -> Spec:
        backend = self._held_by
        assert backend is not None
        interpreter = own_interpreter()
        order = Order(
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
        spec = backend.spec(order) | {"scratch": False}
        return spec | {"uid": None} if self._is_own_user else spec

    async def _probe(self) -> str:
        """Why a page cannot be read; empty where it can."""
        kind = ReaderKind(module="luxx.infra.documents.page_text", bounds=_PROBE_BOUNDS)
        try:
            reader = await self._start(kind)
            ran = await reader.run(_input(_PROBE_BOUNDS.words, _PROBE_PAGE), _limits(_PROBE_BOUNDS, 10_000))
        except (ToolFailed, OSError) as error:
            return str(error)
        if b"probe" in ran.stdout:
            return ""
        said = ran.stderr.decode("utf-8", "replace").strip().splitlines()
        return said[-1][:300] if said else f"a reader ended with exit code {ran.exit_code}"


def _code() -> tuple[Path, ...]:
    """This package, and the directories that hold the others readers need."""
    found: list[Path] = []
    for name in PACKAGES:
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:
            place = Path(spec.origin).resolve().parents[1]
            found += [] if place in found else [place]
    return (_LUXX.resolve(), *found)


def _limits(bounds: Bounds, answer: int) -> Limits:
    """A little wider than what the reader allows itself, so that it can still say what it was ended for."""
    return Limits(
        seconds=bounds.wait_seconds,
        cpu_seconds=bounds.seconds + 2,
        memory_mb=bounds.memory // MIB + 1,
        processes=_PROCESSES,
        file_mb=1,
        disk_mb=1,
        output_kb=answer // 1024 + 1,
    )


async def _input(words: Sequence[str], given: int | bytes) -> AsyncGenerator[bytes]:
    yield " ".join(words).encode() + b"\n"
    if isinstance(given, bytes):
        yield given
        return
    offset = 0
    while piece := await asyncio.to_thread(os.pread, given, _PIECE, offset):
        offset += len(piece)
        yield piece


def _answer(ran: Ran) -> bytes | Ended:
    if ran.is_truncated or ran.hit is Hit.OUTPUT:
        return Ended.LONG
    if ran.hit in (Hit.TIME, Hit.CPU):
        return Ended.TIME
    if ran.hit is not None:
        return Ended.MEMORY
    if ran.stdout:
        return ran.stdout
    return Ended.TIME if ran.exit_code in _LATE else Ended.MEMORY
