"""Renders artifacts in processes of their own. Importing this module imports no renderer."""

from importlib.util import find_spec

import msgspec

from luxx.errors import LuxxError, Unavailable
from luxx.infra.documents.reader import ReaderBounds, ReaderSlots, ReadFailure, RunReader, read_in_process
from luxx.infra.documents.render.request import RenderAnswer, Rendered, RenderRequest

RENDER_MEMORY_BYTES = 1536 * 1024 * 1024
"""Address space of a process: a deck of 60 pages with pictures takes half of it."""
RENDER_SECONDS = 30
RENDERS_AT_ONCE = 2
RENDERS_PER_USER = 1
RENDER_MAX_WAIT = 60.0
MAX_FILE_BYTES = 50 * 1024 * 1024
_MODULE = "luxx.infra.documents.render.render_main"
_PICTURES_BYTES = 20 * 1024 * 1024
_PACKAGES = ("docx", "fontpkg_arimo", "PIL", "pptx", "pypdfium2", "rdocx", "rpptx", "typst", "xlsxwriter")


class RenderFailed(LuxxError):
    """The renderer made no file. The message is a sentence for the person or model that wrote the source."""

    kind = "render_failed"


def missing_renderer() -> str:
    """Why files cannot be made on this server; empty if they can."""
    if all(find_spec(name) is not None for name in _PACKAGES):
        return ""
    return (
        "this server makes no Office files, PDF and pictures, because it lacks the extra 'artifacts': "
        "pip install 'luxx[artifacts]'"
    )


class RenderProcess:
    """One per server. `run_reader` starts the process, `total` is how many work at once."""

    def __init__(
        self,
        run_reader: RunReader = read_in_process,
        *,
        memory_bytes: int = RENDER_MEMORY_BYTES,
        seconds: int = RENDER_SECONDS,
        total: int = RENDERS_AT_ONCE,
        max_file_bytes: int = MAX_FILE_BYTES,
    ) -> None:
        self._run_reader = run_reader
        self._bounds = ReaderBounds(memory=memory_bytes, seconds=seconds, wait=2.0 * seconds)
        self._slots = ReaderSlots(total=total, per_user=RENDERS_PER_USER, max_wait=RENDER_MAX_WAIT)
        self._max_file_bytes = max_file_bytes

    async def render(self, request: RenderRequest, user_id: int) -> Rendered:
        """The file and its pictures. Raises Unavailable without the extra, and if too many work already;
        RenderFailed if the renderer exceeded its limits or failed.
        """
        if problem := missing_renderer():
            raise Unavailable(problem, kind="renderer_missing")
        try:
            async with self._slots.hold(user_id):
                answer = await self._run_reader(
                    _MODULE,
                    [],
                    msgspec.msgpack.encode(request),
                    self._bounds,
                    limit=self._max_file_bytes + _PICTURES_BYTES,
                )
        except TimeoutError as error:
            text = "the server is making too many files at the moment; try again"
            raise Unavailable(text, kind="renderers_busy") from error
        if isinstance(answer, ReadFailure):
            raise RenderFailed(self._failure(answer))
        return self._decoded(answer)

    def _failure(self, failure: ReadFailure) -> str:
        match failure:
            case ReadFailure.TIME:
                limit = f"more than the {self._bounds.seconds} seconds that it may take"
            case ReadFailure.MEMORY:
                limit = f"more than the {self._bounds.memory >> 20} MB of memory that it may take"
            case ReadFailure.LONG:
                limit = f"a file of more than {self._max_file_bytes >> 20} MB"
        return f"Rendering this source takes {limit}. Shorten it, or divide it into several artifacts."

    def _decoded(self, answer: bytes) -> Rendered:
        try:
            decoded = msgspec.msgpack.decode(answer, type=RenderAnswer)
        except msgspec.DecodeError as error:
            raise RenderFailed(self._failure(ReadFailure.MEMORY)) from error
        if decoded.rendered is None:
            raise RenderFailed(decoded.error)
        return decoded.rendered
