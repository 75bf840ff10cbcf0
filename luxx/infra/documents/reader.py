"""Reads web pages and documents in separate processes, with bounds on time, memory and parallel reads.

The modules that run in these processes are `page_text`, `pdf_text` and `document_text`.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from enum import StrEnum
from typing import Protocol

import msgspec

from luxx.errors import Unavailable
from luxx.infra.children import start_child
from luxx.infra.documents.bounds import PageRequest, PageText
from luxx.infra.documents.parts import NO_EXTENSION, Document, decode_document

_GRACE_SECONDS = 1.0


class ReadFailure(StrEnum):
    """Why a reader has no answer."""

    TIME = "time"
    MEMORY = "memory"
    LONG = "long"


class ReaderBounds(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one process: `memory` in bytes of address space, processor `seconds`, and `wait`, the seconds
    of wall time (None: a little more than `seconds`).
    """

    memory: int
    seconds: int
    wait: float | None = None

    @property
    def wait_seconds(self) -> float:
        return self.seconds + _GRACE_SECONDS if self.wait is None else self.wait

    @property
    def reader_arguments(self) -> tuple[str, str]:
        """The first command line arguments of each reader."""
        return str(self.memory), str(self.seconds)


class RunReader(Protocol):
    """Runs a module that reads one document, like `read_in_process`; arguments contain no spaces."""

    async def __call__(
        self,
        module: str,
        arguments: Sequence[str],
        document: int | bytes,
        bounds: ReaderBounds,
        *,
        limit: int,
    ) -> bytes | ReadFailure: ...


async def read_in_process(
    module: str, arguments: Sequence[str], document: int | bytes, bounds: ReaderBounds, *, limit: int
) -> bytes | ReadFailure:
    """The output of `module`, at most `limit` bytes; `document` is its input, a descriptor or bytes.

    The caller must detect an incomplete answer: a process that the kernel ends may have printed a part. A
    process that ends without output for an unknown reason counts as MEMORY. Raises Unavailable if no process
    can be started.
    """
    try:
        child = await start_child(
            sys.executable, "-P", "-m", module, *bounds.reader_arguments, *arguments,
            stdin=document if isinstance(document, int) else asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise Unavailable("the server cannot start a process to read the document; try again") from error
    feeding = asyncio.create_task(_feed(child, document)) if isinstance(document, bytes) else None
    try:
        async with asyncio.timeout(bounds.wait_seconds):
            return await _read_output(child, limit)
    except TimeoutError:
        return ReadFailure.TIME
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


async def _read_output(child: asyncio.subprocess.Process, limit: int) -> bytes | ReadFailure:
    assert child.stdout is not None
    output = bytearray()
    while piece := await child.stdout.read(65_536):
        output += piece
        if len(output) > limit:
            return ReadFailure.LONG
    if output:
        return bytes(output)
    # The kernel ends a process that exceeds its processor time with one of these signals.
    is_late = await child.wait() in (-signal.SIGXCPU, -signal.SIGKILL)
    return ReadFailure.TIME if is_late else ReadFailure.MEMORY


class _UserQueue:
    def __init__(self, slots: int) -> None:
        self.slots = asyncio.Semaphore(slots)
        self.waiting = 0


class ReaderSlots:
    """Limits the readers of one kind of document, in `total` and `per_user`. `max_wait` is in seconds."""

    def __init__(self, *, total: int, per_user: int, max_wait: float) -> None:
        self._total = asyncio.Semaphore(total)
        self._per_user = per_user
        self._max_wait = max_wait
        self._queues: dict[int, _UserQueue] = {}

    @asynccontextmanager
    async def hold(self, user_id: int) -> AsyncGenerator[None]:
        """Holds a slot for the user. Raises TimeoutError after `max_wait` seconds."""
        queue = self._queues.setdefault(user_id, _UserQueue(self._per_user))
        queue.waiting += 1
        try:
            async with asyncio.timeout(self._max_wait) as timeout, queue.slots, self._total:
                # The timeout is for the wait only; ReaderBounds limit the work.
                timeout.reschedule(None)
                yield
        finally:
            queue.waiting -= 1
            if not queue.waiting:
                self._queues.pop(user_id, None)


PAGE_MEMORY_BYTES = 640 * 1024 * 1024
"""Address space of the process: a page with 5 MB of small paragraphs takes a third of it."""

PAGE_SECONDS = 5
"""Processor time; a page of a megabyte takes one second."""

WAIT_SECONDS = 15.0
"""Wall time; it is longer, because readers have a low priority on a busy machine."""

PAGES_AT_ONCE = 4
PAGES_PER_USER = 2
"""Processes of one server, and of one user; others wait."""

PAGE_MAX_WAIT = 30.0
"""Seconds that a page may wait for its process."""


class PageProcess:
    """One per server. `run_reader` starts the process."""

    def __init__(
        self,
        run_reader: RunReader = read_in_process,
        *,
        memory_bytes: int = PAGE_MEMORY_BYTES,
        seconds: int = PAGE_SECONDS,
    ) -> None:
        self._run_reader = run_reader
        self._bounds = ReaderBounds(memory=memory_bytes, seconds=seconds, wait=WAIT_SECONDS)
        self._slots = ReaderSlots(total=PAGES_AT_ONCE, per_user=PAGES_PER_USER, max_wait=PAGE_MAX_WAIT)

    async def read(self, data: bytes, page_request: PageRequest, user_id: int = 0) -> PageText:
        """The text of a page. Raises Unavailable if too many pages are being read."""
        limit = 12 * page_request.characters + 500_000
        answer = await self.run(
            "luxx.infra.documents.page_text", data, page_request, limit=limit, user_id=user_id
        )
        if isinstance(answer, ReadFailure):
            return PageText(error=answer)
        try:
            return msgspec.json.decode(answer, type=PageText)
        except msgspec.DecodeError:
            return PageText(error=ReadFailure.MEMORY)

    async def run(
        self, module: str, data: bytes, page_request: msgspec.Struct, *, limit: int, user_id: int = 0
    ) -> bytes | ReadFailure:
        """Like `read`, with the same bounds, for another `module` that reads pages; returns its output.

        The first line of its input is `page_request` as JSON, the rest is the page. The request is no
        argument, because any user of the machine can read the arguments of a process.
        """
        document = msgspec.json.encode(page_request) + b"\n" + data
        try:
            async with self._slots.hold(user_id):
                return await self._run_reader(module, [], document, self._bounds, limit=limit)
        except TimeoutError as error:
            raise Unavailable("the server is reading too many pages at the moment; try again") from error


MAX_DOCUMENT_BYTES = 50 * 1024 * 1024
DOCUMENT_MEMORY_BYTES = 768 * 1024 * 1024
"""Address space of the process: enough for a book of 50 MB."""

DOCUMENT_SECONDS = 30
DOCUMENTS_AT_ONCE = 2
DOCUMENTS_PER_USER = 1
"""Processes of one server, and of one user; others wait."""

DOCUMENT_MAX_WAIT = 60.0
"""Seconds that a document may wait for its process."""

_PDF_MARK = b"%PDF-"
_PDF_MARK_WITHIN = 1024
_LONGEST_EXTENSION = 12


class DocumentProcess:
    """Reads documents, but no pages of the web. One per server; `run_reader` starts the process."""

    def __init__(
        self,
        run_reader: RunReader = read_in_process,
        *,
        memory_bytes: int = DOCUMENT_MEMORY_BYTES,
        seconds: int = DOCUMENT_SECONDS,
    ) -> None:
        self._run_reader = run_reader
        self._bounds = ReaderBounds(memory=memory_bytes, seconds=seconds)
        self._slots = ReaderSlots(
            total=DOCUMENTS_AT_ONCE, per_user=DOCUMENTS_PER_USER, max_wait=DOCUMENT_MAX_WAIT
        )

    async def read(
        self,
        document: int | bytes,
        *,
        extension: str,
        characters: int,
        user_id: int,
        may_cut: bool = False,
    ) -> Document:
        """A document, given as a descriptor or bytes, with the extension of its name. A text of more than
        `characters` is cut if `may_cut`, else an error. Raises Unavailable if too many are being read.
        """
        if isinstance(document, int):
            head = await asyncio.to_thread(os.pread, document, _PDF_MARK_WITHIN, 0)
        else:
            head = document[:_PDF_MARK_WITHIN]
        module = f"luxx.infra.documents.{'pdf' if _PDF_MARK in head else 'document'}_text"
        arguments = [str(characters), str(int(may_cut)), _extension_argument(extension)]
        try:
            async with self._slots.hold(user_id):
                # In JSON a character takes twelve bytes at most, and a part has a cost for the rest.
                answer = await self._run_reader(
                    module, arguments, document, self._bounds, limit=12 * characters + 20_000
                )
        except TimeoutError as error:
            text = "the server is reading too many documents at the moment; try again"
            raise Unavailable(text, kind="documents_busy") from error
        if isinstance(answer, ReadFailure):
            return Document(error=answer)
        return await asyncio.to_thread(decode_document, answer)


def _extension_argument(extension: str) -> str:
    """The extension as an argument, without characters that separate or end arguments."""
    if not extension:
        return NO_EXTENSION
    is_usual = extension.isascii() and extension.isalnum() and len(extension) <= _LONGEST_EXTENSION
    return extension.lower() if is_usual else "unknown"
