"""Uploads as they come in, piece by piece; a file out of one into a file of ours.

The body's size is bounded before it comes here (`protection.py`), and how long it may take in `heads.py`.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import IO, Any

from litestar import Request
from litestar.types import Receive
from multipart import MultipartError, MultipartSegment, PushMultipartParser

from luxx.errors import InvalidInput

FIELD = "file"
WRITE_BYTES = 1024 * 1024
"""As much is gathered before a thread writes it."""

MOST_PARTS = 20
BOUNDARY = re.compile(r';\s*boundary="?([^";,]{1,200})', re.IGNORECASE)
NO_FILE = "send the file as the body, or as the part 'file' of a form"


async def body_of(receive: Receive) -> AsyncIterator[bytes]:
    """An upload's body as it comes. Raises InvalidInput where it breaks off."""
    more = True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise InvalidInput("the upload broke off; nothing of it is kept", kind="upload_broken")
        more = message.get("more_body", False)
        yield message.get("body", b"")


async def receive_file(request: Request[Any, Any, Any], file: IO[bytes]) -> None:
    """Puts the request's file into `file`. Raises InvalidInput where there is none or as `body_of` does."""
    kind = request.headers.get("content-type", "")
    into = _Writer(file)
    body = body_of(request.receive)
    if kind.lower().startswith("multipart/form-data"):
        boundary = BOUNDARY.search(kind)
        await _receive_part(body, boundary[1] if boundary else "", into)
    else:
        async for chunk in body:
            await into.write(chunk)
    await into.end()
    if not into.size:
        raise InvalidInput(f"there is no file in the request: {NO_FILE}", kind="file_missing")


class _Writer:
    """Writes in large pieces and in a thread."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._waiting = bytearray()
        self.size = 0

    async def write(self, chunk: bytes | bytearray) -> None:
        self._waiting += chunk
        self.size += len(chunk)
        if len(self._waiting) >= WRITE_BYTES:
            await self._flush()

    async def end(self) -> None:
        await self._flush()
        await asyncio.to_thread(self._file.flush)

    async def _flush(self) -> None:
        data, self._waiting = self._waiting, bytearray()
        await asyncio.to_thread(self._file.write, data)


async def _receive_part(body: AsyncIterator[bytes], boundary: str, into: _Writer) -> None:
    """The first part that is a file; the others are passed over."""
    is_ours = is_found = False
    try:
        with PushMultipartParser(boundary, max_segment_count=MOST_PARTS, strict=True) as parser:
            async for chunk in body:
                for event in parser.parse(chunk) if chunk else ():
                    if isinstance(event, MultipartSegment):
                        is_ours = not is_found and (event.name == FIELD or event.filename is not None)
                        is_found = is_found or is_ours
                    elif event and is_ours:
                        await into.write(event)
    except (MultipartError, ValueError) as error:
        raise InvalidInput(f"the form cannot be read: {error}", kind="form_unreadable") from error
