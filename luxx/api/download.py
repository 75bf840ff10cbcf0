"""A file of the disk as an answer: raw ASGI, read piece by piece in threads, whole or one range of it."""

import asyncio
import re
from collections.abc import Mapping
from typing import Any

from litestar import Request
from litestar.response.base import ASGIResponse, Response
from litestar.types import Receive, Scope, Send

from luxx.files.names import disposition
from luxx.files.storage import OpenFile

PIECE = 256 * 1024
RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)


class Download(Response[bytes]):
    """Answer a route with this to send an open file, which is closed at the end."""

    def __init__(self, file: OpenFile, part: range, headers: Mapping[str, str]) -> None:
        super().__init__(b"", media_type="application/octet-stream")
        self._sending = _Sending(file, part, headers)

    def to_asgi_response(self, app: Any, request: Request[Any, Any, Any], **kwargs: Any) -> ASGIResponse:
        """What Litestar calls to send it; nothing of a plain response applies."""
        del app, request, kwargs
        return self._sending


class _Sending(ASGIResponse):
    def __init__(self, file: OpenFile, part: range, more: Mapping[str, str]) -> None:
        super().__init__(media_type="application/octet-stream")
        self._file = file
        self._part = part
        self._is_whole = len(part) == file.size
        headers = {
            "content-type": "application/octet-stream",
            "content-length": str(len(part)),
            "content-disposition": disposition(file.name),
            "accept-ranges": "bytes",
            "cache-control": "private, no-store",
            **more,
        }
        if not self._is_whole:
            headers["content-range"] = f"bytes {part.start}-{part.stop - 1}/{file.size}"
        self._fields = [(name.encode(), value.encode()) for name, value in headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            status = 200 if self._is_whole else 206
            await send({"type": "http.response.start", "status": status, "headers": self._fields})
            at = self._part.start
            while at < self._part.stop:
                count = min(PIECE, self._part.stop - at)
                data = await asyncio.to_thread(self._file.read_at, at, count)
                if not data:
                    return  # It was cut short meanwhile; so is the answer, and the client sees that.
                at += len(data)
                await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except OSError:
            pass  # The client went away.
        finally:
            await asyncio.shield(asyncio.to_thread(self._file.close))


def range_of(asked: str | None, size: int) -> range | None:
    """The bytes that a Range header asks for; None where there are none such in the file.

    Several ranges and what is no range are answered with the whole, as RFC 9110 allows.
    """
    found = RANGE.fullmatch(asked.strip()) if asked else None
    if found is None or found.groups() == ("", ""):
        return range(size)
    first, last = found.groups()
    if not first:
        return range(max(0, size - int(last)), size) if int(last) and size else None
    end = min(size, int(last) + 1) if last else size
    if last and int(last) < int(first):
        return range(size)
    return range(int(first), end) if int(first) < size else None
