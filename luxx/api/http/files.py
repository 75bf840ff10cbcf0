"""File downloads and uploads in chunks, with disk access in threads; documents in YAML or JSON."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import IO, Any, cast

import msgspec
from litestar import Request, Response
from litestar.response.base import ASGIResponse
from litestar.types import Receive, Scope, Send
from multipart import MultipartError, MultipartSegment, PushMultipartParser

from luxx.api.http.event_streams import ABORT_KEY, is_head
from luxx.domain.files.names import content_disposition
from luxx.domain.files.storage import OpenFile
from luxx.errors import InvalidInput
from luxx.infra.documents.yaml_text import encode_document

READ_BYTES = 256 * 1024  # Read at once, in one call of a thread.
RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)


DOCUMENT_TYPES = {"yaml": "application/yaml", "json": "application/json"}


async def document_response(document: msgspec.Struct, format: str) -> Response[str]:
    """The text of a document, in a thread because YAML is slow."""
    text = await asyncio.to_thread(encode_document, document, format)
    return Response(text, media_type=DOCUMENT_TYPES[format])


class FileASGIResponse(ASGIResponse):
    """The ASGI application that sends an open file, or a range of it, and closes it."""

    def __init__(self, file: OpenFile, byte_range: range, extra_headers: Mapping[str, str]) -> None:
        super().__init__(media_type="application/octet-stream")
        self._file = file
        self._byte_range = byte_range
        self._is_whole = len(byte_range) == file.size
        headers = {
            "content-type": "application/octet-stream",
            "content-length": str(len(byte_range)),
            "content-disposition": content_disposition(file.name),
            "accept-ranges": "bytes",
            "cache-control": "private, no-store",
            **extra_headers,
        }
        if not self._is_whole:
            headers["content-range"] = f"bytes {byte_range.start}-{byte_range.stop - 1}/{file.size}"
        self._raw_headers = [(name.encode(), value.encode()) for name, value in headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            status = 200 if self._is_whole else 206
            await send({"type": "http.response.start", "status": status, "headers": self._raw_headers})
            offset = self._byte_range.stop if is_head(scope) else self._byte_range.start
            while offset < self._byte_range.stop:
                count = min(READ_BYTES, self._byte_range.stop - offset)
                data = await asyncio.to_thread(self._file.read_at, offset, count)
                if not data:
                    return  # The file was truncated meanwhile; the client detects the short response.
                offset += len(data)
                await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except OSError:
            pass  # The client went away.
        finally:
            await asyncio.shield(asyncio.to_thread(self._file.close))


def parse_range(header: str | None, size: int) -> range | None:
    """The requested bytes; None if the range is outside the file.

    For several ranges or an invalid header it returns the whole file, as RFC 9110 allows.
    """
    match = RANGE.fullmatch(header.strip()) if header else None
    if match is None or match.groups() == ("", ""):
        return range(size)
    first, last = match.groups()
    if not first:
        return range(max(0, size - int(last)), size) if int(last) and size else None
    end = min(size, int(last) + 1) if last else size
    if last and int(last) < int(first):
        return range(size)
    return range(int(first), end) if int(first) < size else None


SEND_BYTES = 64 * 1024
"""The size of a chunk, and thus of the memory for a client that does not read."""

STALLED_SECONDS = 60.0
"""How long a client may take to read one chunk before its connection is aborted."""


class TempFileASGIResponse(ASGIResponse):
    """The ASGI application that sends `file` from its current position and then calls `close`."""

    def __init__(
        self,
        file: IO[bytes],
        headers: Mapping[str, str],
        *,
        close: Callable[[], None],
        stalled_seconds: float = STALLED_SECONDS,
    ) -> None:
        super().__init__(media_type=headers["content-type"])
        self._file = file
        self._raw_headers = [
            (name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()
        ]
        self._close = close
        self._stalled_seconds = stalled_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        disconnect = asyncio.create_task(_wait_for_disconnect(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self._raw_headers})
            while not (is_head(scope) or disconnect.done()):
                data = await asyncio.to_thread(self._file.read, SEND_BYTES)
                if not data:
                    break
                await self._send(send, data, has_more=True)
            await self._send(send, b"", has_more=False)
        except TimeoutError:
            # A close would wait until the client reads the buffered data.
            abort = cast("dict[str, Any]", scope).get(ABORT_KEY)
            if abort is not None:
                abort()
                await disconnect  # Otherwise uvicorn logs an error about the incomplete response.
        except OSError:
            pass  # The client went away.
        finally:
            disconnect.cancel()
            self._close()
            await asyncio.gather(disconnect, return_exceptions=True)

    async def _send(self, send: Send, data: bytes, *, has_more: bool) -> None:
        async with asyncio.timeout(self._stalled_seconds):
            await send({"type": "http.response.body", "body": data, "more_body": has_more})


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


FILE_FIELD = "file"
WRITE_BYTES = 1024 * 1024
"""The bytes that are buffered before a thread writes them."""

MAX_PARTS = 20  # Parts of a form; only one of them is used.
BOUNDARY = re.compile(r';\s*boundary="?([^";,]{1,200})', re.IGNORECASE)
HOW_TO_SEND = "send the file as the body, or as the part 'file' of a form"


async def body_chunks(receive: Receive) -> AsyncIterator[bytes]:
    """The body of an upload in chunks. Raises InvalidInput if the client disconnects."""
    has_more = True
    while has_more:
        message = await receive()
        if message["type"] != "http.request":
            raise InvalidInput("the upload was interrupted; nothing was saved", kind="upload_broken")
        has_more = message.get("more_body", False)
        yield message.get("body", b"")


async def receive_file(request: Request[Any, Any, Any], file: IO[bytes]) -> None:
    """Writes the upload to `file`. Raises InvalidInput if there is no file or the upload is interrupted."""
    content_type = request.headers.get("content-type", "")
    writer = _BufferedWriter(file)
    body = body_chunks(request.receive)
    if content_type.lower().startswith("multipart/form-data"):
        boundary = BOUNDARY.search(content_type)
        await _receive_part(body, boundary[1] if boundary else "", writer)
    else:
        async for chunk in body:
            await writer.write(chunk)
    await writer.end()
    if not writer.size:
        raise InvalidInput(f"there is no file in the request: {HOW_TO_SEND}", kind="file_missing")


class _BufferedWriter:
    """Writes large blocks in a thread."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._buffer = bytearray()
        self.size = 0

    async def write(self, chunk: bytes | bytearray) -> None:
        self._buffer += chunk
        self.size += len(chunk)
        if len(self._buffer) >= WRITE_BYTES:
            await self._flush()

    async def end(self) -> None:
        await self._flush()
        await asyncio.to_thread(self._file.flush)

    async def _flush(self) -> None:
        data, self._buffer = self._buffer, bytearray()
        await asyncio.to_thread(self._file.write, data)


async def _receive_part(body: AsyncIterator[bytes], boundary: str, writer: _BufferedWriter) -> None:
    """Writes the first part that is a file and ignores the others."""
    is_file_part = has_file_part = False
    try:
        with PushMultipartParser(boundary, max_segment_count=MAX_PARTS, strict=True) as parser:
            async for chunk in body:
                for event in parser.parse(chunk) if chunk else ():
                    if isinstance(event, MultipartSegment):
                        is_file_part = not has_file_part and (
                            event.name == FILE_FIELD or event.filename is not None
                        )
                        has_file_part = has_file_part or is_file_part
                    elif event and is_file_part:
                        await writer.write(event)
    except (MultipartError, ValueError) as error:
        raise InvalidInput(f"the form cannot be read: {error}", kind="form_unreadable") from error
