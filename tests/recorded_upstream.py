"""A provider's server that sends given bytes: a recording to the first call of a path, and a short answer to
later ones; or the same answer to all.

The first segment of the path selects the recording, so that one server plays all of them.
"""

import threading
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from types import MappingProxyType, TracebackType
from typing import Any, Self
from urllib.parse import unquote

import msgspec

from luxx.providers.scripted.dialects import dialect_writer_for
from luxx.providers.scripted.http import parse_request
from luxx.providers.scripted.script import Text, WireBytes, write_stream

END = "That is all."
PIECE = 1000
CHUNKS_AT_ONCE = 10_000
"""Written at once: tiny ones arrive together too."""


class Answer(msgspec.Struct, frozen=True):
    """What is sent to every call, in chunks of `piece` bytes."""

    body: bytes
    status: int = 200
    headers: Mapping[str, str] = MappingProxyType({"content-type": "text/event-stream"})
    piece: int = 65_536


class RecordedUpstream:
    """`streams` are the recordings and answers by path; `asked` are the bodies of the requests to each."""

    def __init__(self, streams: Mapping[str, bytes | Answer]) -> None:
        self.asked: dict[str, list[bytes]] = {}
        self._streams = streams
        upstream = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                upstream.answer(self, body)

            def do_GET(self) -> None:
                upstream.answer(self, b"")

            def log_message(self, *_: Any) -> None:
                """Logs nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/{name}"

    def answer(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        name = unquote(handler.path.split("/")[1])
        calls = self.asked.setdefault(name, [])
        calls.append(body)
        given = self._streams[name]
        if isinstance(given, bytes):
            given = Answer(given if len(calls) == 1 else _an_end(handler.path, body), piece=PIECE)
        handler.send_response(given.status)
        for header, value in given.headers.items():
            handler.send_header(header, value)
        handler.send_header("transfer-encoding", "chunked")
        handler.end_headers()
        pieces = (given.body[at : at + given.piece] for at in range(0, len(given.body), given.piece))
        with suppress(ConnectionError):  # Luxx may read only a part.
            while some := list(islice(pieces, CHUNKS_AT_ONCE)):
                handler.wfile.write(b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in some))
            handler.wfile.write(b"0\r\n\r\n")


def _an_end(path: str, body: bytes) -> bytes:
    request = parse_request("POST", path, body)
    assert request is not None, f"{path} is of no dialect"
    moves = write_stream([Text(text=END)], dialect_writer_for(request, is_crlf=False))
    return b"".join(move.data for move in moves if isinstance(move, WireBytes))
