"""The HTTP/1.1 side of the scripted provider: reads requests, writes replies with injected faults.

`parse_request` reads the dialects, `overflow_body` writes their errors for a full context window.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from luxx.providers.openai_chat.request import IMAGES_OF_RESULTS
from luxx.providers.parsing import json_objects
from luxx.providers.scripted.script import BYTES_PER_TOKEN, Faults, ScriptedRequest
from luxx.wire.memory import RECALLED_TITLE

MAX_HEAD_BYTES = 64 * 1024
MAX_REQUEST_BYTES = 64 * 1024 * 1024
GARBAGE = b"\x00\xff{]\x07#\xfe}"

_REASONS = {200: "OK", 302: "Found", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 429: "Busy"}


@dataclass(eq=False)
class Received:
    """A request that the scripted provider received, and its outcome. `closed_at` is a monotonic time.
    `tokens` and `cached_tokens`: what a server that counts counted of the prompt, and found in its cache."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: "ClientConnection"
    rule: str = ""
    is_answered: bool = False
    tokens: int = 0
    cached_tokens: int = 0

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def closed_at(self) -> float | None:
        """When the client closed the socket; None while it is open."""
        return self.connection.closed_at

    async def wait_closed(self, timeout: float) -> None:
        """Waits until the client closes the socket. Raises TimeoutError. Only in the server's own loop."""
        async with asyncio.timeout(timeout):
            await self.connection.closed.wait()


class ClientDisconnected(Exception):
    """The client closed the socket before the reply was complete."""


class ClientConnection(asyncio.StreamReaderProtocol):
    """One client's socket. `closed` is set as soon as the client closes it."""

    def __init__(self, serve: Callable[["ClientConnection"], Awaitable[None]]) -> None:
        self.reader = asyncio.StreamReader(limit=MAX_HEAD_BYTES)
        super().__init__(self.reader, self._begin)
        self.closed = asyncio.Event()
        self.closed_at: float | None = None
        self._serve = serve
        self._writer: asyncio.StreamWriter | None = None

    @property
    def writer(self) -> asyncio.StreamWriter:
        assert self._writer is not None
        return self._writer

    def eof_received(self) -> bool | None:
        self._record_closed()
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._record_closed()
        super().connection_lost(exc)

    async def wait_for(self, awaitable: Awaitable[object]) -> None:
        """Waits for `awaitable`. Raises ClientDisconnected if the client closes the socket first."""
        waits = [asyncio.ensure_future(awaitable), asyncio.ensure_future(self.closed.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if self.closed.is_set():
            raise ClientDisconnected

    async def _begin(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        await self._serve(self)

    def _record_closed(self) -> None:
        if self.closed_at is None:
            self.closed_at = time.monotonic()
            self.closed.set()


async def read_request(connection: ClientConnection) -> Received | None:
    """The next request on this socket; None at its end or for an invalid request."""
    reader = connection.reader
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ", 2)
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines) if name
        }
        size = int(headers.get("content-length", "0"))
        if size > MAX_REQUEST_BYTES:
            return None
        body = await reader.readexactly(size)
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError, ValueError):
        return None
    return Received(method, path, headers, body, connection)


@dataclass(eq=False)
class Reply:
    """One reply: writes the head, then the body, with the faults at their offsets."""

    _connection: ClientConnection
    _faults: Faults
    _sent: int = 0
    _is_chunked: bool = False

    async def begin(self, status: int, headers: dict[str, str], *, size: int | None) -> None:
        """Sends the head; without a size, the body is chunked."""
        if self._faults.never_start:
            await self._connection.wait_for(asyncio.Event().wait())
        self._is_chunked = size is None
        framing = {"transfer-encoding": "chunked"} if size is None else {"content-length": str(size)}
        lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Scripted')}"]
        lines += [f"{name}: {value}" for name, value in {**headers, **framing}.items()]
        self._connection.writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))

    async def write(self, data: bytes) -> None:
        data = self._corrupt(data)
        end = self._cut_offset()
        if end is not None and self._sent + len(data) >= end:
            await self._send_pieces(data[: max(0, end - self._sent)])
            await self._disconnect()
        await self._send_pieces(data)

    async def finish(self) -> None:
        if self._cut_offset() is not None:
            await self._disconnect()
        if self._faults.keep_open:
            await self._connection.wait_for(asyncio.Event().wait())
        if self._is_chunked:
            self._connection.writer.write(b"0\r\n\r\n")
        await self._connection.writer.drain()

    def _cut_offset(self) -> int | None:
        ends = [at for at in (self._faults.drop_at, self._faults.stall_at) if at is not None]
        return min(ends) if ends else None

    async def _disconnect(self) -> None:
        await self._connection.writer.drain()
        if self._faults.stall_at is not None and self._faults.stall_at == self._cut_offset():
            await self._connection.wait_for(asyncio.Event().wait())
        self._connection.writer.close()
        raise ClientDisconnected

    async def _send_pieces(self, data: bytes) -> None:
        size = self._faults.split or len(data)
        writer = self._connection.writer
        for at in range(0, len(data), size or 1):
            piece = data[at : at + size]
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if self._is_chunked else piece)
            self._sent += len(piece)
            if self._faults.split:
                # Lets the event loop send this piece before the next one is written.
                await asyncio.sleep(0)
        await writer.drain()
        if self._connection.closed.is_set():
            raise ClientDisconnected

    def _corrupt(self, data: bytes) -> bytes:
        at = self._faults.garble_at
        if at is None or at + len(GARBAGE) <= self._sent or at >= self._sent + len(data):
            return data
        corrupted = bytearray(data)
        for n, byte in enumerate(GARBAGE):
            if 0 <= at + n - self._sent < len(data):
                corrupted[at + n - self._sent] = byte
        return bytes(corrupted)


def overflow_body(request: ScriptedRequest, window: int) -> dict[str, Any]:
    """The body of the vendor's error for a prompt that does not fit the context window."""
    match request.dialect:
        case "openai" | "openai_responses":
            message = (
                f"This model's maximum context length is {window} tokens. However, you requested "
                f"{request.tokens + request.max_tokens} tokens ({request.tokens} in the messages, "
                f"{request.max_tokens} in the completion). Please reduce the length of the messages."
            )
            error = {"message": message, "type": "invalid_request_error", "param": "messages"}
            return {"error": {**error, "code": "context_length_exceeded"}}
        case "anthropic":
            message = f"prompt is too long: {request.tokens} tokens > {window} maximum"
            if request.tokens <= window:
                message = (
                    "input length and `max_tokens` exceed context limit: "
                    f"{request.tokens} + {request.max_tokens} > {window}, decrease input length"
                )
            return {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
        case _:
            message = (
                f"The input token count ({request.tokens}) exceeds the maximum number of tokens allowed "
                f"({window})."
            )
            return {"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}}


def parse_request(method: str, path: str, body: bytes) -> ScriptedRequest | None:
    """The request in a POST; its path selects the dialect. None for an unknown path or an invalid body."""
    if method != "POST":
        return None
    try:
        fields = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError:
        return None
    request = _read_dialect(path, fields)
    limits = (fields.get(name) for name in ("max_completion_tokens", "max_tokens", "max_output_tokens"))
    longest = next((limit for limit in limits if limit), 0)
    return request and msgspec.structs.replace(
        request,
        tokens=len(body) // BYTES_PER_TOKEN,
        max_tokens=longest if isinstance(longest, int) else 0,
    )


def _read_dialect(path: str, fields: dict[str, Any]) -> ScriptedRequest | None:
    path, _, query = path.partition("?")
    if path.endswith("/chat/completions"):
        return _openai(fields)
    if path.endswith("/responses"):
        return _responses(fields)
    if path.endswith("/messages"):
        return _anthropic(fields)
    name, _, verb = path.rpartition("/")[2].partition(":")
    if verb in ("streamGenerateContent", "generateContent"):
        is_stream = verb == "streamGenerateContent"
        return _gemini(fields, name, is_stream=is_stream, is_sse="alt=sse" in query)
    return None


def _openai(fields: dict[str, Any]) -> ScriptedRequest:
    # Images of tool results come as a user's message, because this dialect has no other place for them.
    messages = [
        message
        for message in _without_recalled(json_objects(fields.get("messages")))
        if _text(message.get("content")) != IMAGES_OF_RESULTS
    ]
    roles = [str(message.get("role")) for message in messages]
    return ScriptedRequest(
        dialect="openai",
        model=str(fields.get("model", "")),
        system="\n".join(
            _text(message.get("content"))
            for message in messages
            if message.get("role") in ("system", "developer")
        ),
        user=_last([_text(m.get("content")) for m in messages if m.get("role") == "user"]),
        has_tool_result="tool" in roles[_after_last(roles, "user") :],
        stream=bool(fields.get("stream")),
    )


def _responses(fields: dict[str, Any]) -> ScriptedRequest:
    given = fields.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else json_objects(given)
    items = _without_recalled(items)
    kinds = [str(item.get("role") or item.get("type")) for item in items]
    systems = [item.get("content") for item in items if item.get("role") in ("system", "developer")]
    return ScriptedRequest(
        dialect="openai_responses",
        model=str(fields.get("model", "")),
        system="\n".join(filter(None, map(_text, [fields.get("instructions"), *systems]))),
        user=_last([_text(item.get("content")) for item in items if item.get("role") == "user"]),
        has_tool_result="function_call_output" in kinds[_after_last(kinds, "user") :],
        stream=bool(fields.get("stream")),
    )


def _anthropic(fields: dict[str, Any]) -> ScriptedRequest:
    messages = json_objects(fields.get("messages"))
    contents = [message.get("content") for message in messages if message.get("role") == "user"]
    user, has_result = _last_user_text(
        (_text(content), any(part.get("type") == "tool_result" for part in json_objects(content)))
        for content in contents
    )
    return ScriptedRequest(
        dialect="anthropic",
        model=str(fields.get("model", "")),
        system=_text(fields.get("system")),
        user=user,
        has_tool_result=has_result,
        stream=bool(fields.get("stream")),
    )


def _gemini(fields: dict[str, Any], model: str, *, is_stream: bool, is_sse: bool) -> ScriptedRequest:
    contents = [content for content in json_objects(fields.get("contents")) if content.get("role") != "model"]
    user, has_result = _last_user_text(
        (_text(parts), any("functionResponse" in part for part in parts))
        for parts in (json_objects(content.get("parts")) for content in contents)
    )
    system = json_objects([fields.get("systemInstruction") or fields.get("system_instruction")])
    return ScriptedRequest(
        dialect="gemini" if is_sse or not is_stream else "gemini_array",
        model=model,
        system=_text(system[0].get("parts")) if system else "",
        user=user,
        has_tool_result=has_result,
        stream=is_stream,
    )


def _without_recalled(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages without the last one that only has what Luxx remembers: a script is about the others."""
    is_recalled = len(messages) > 1 and _text(messages[-1].get("content")).startswith(RECALLED_TITLE)
    return messages[:-1] if is_recalled else messages


def _last_user_text(messages: Iterable[tuple[str, bool]]) -> tuple[str, bool]:
    """The last text of a user, and whether a tool result is in its message or follows it.

    `messages` are the texts of the user's messages, and whether each has a tool result.
    """
    last, has_result = "", False
    for text, is_result in messages:
        if text:
            last, has_result = text, is_result
        has_result = has_result or is_result
    return last, has_result


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(str(part["text"]) for part in json_objects(content) if "text" in part)


def _last(texts: list[str]) -> str:
    return texts[-1] if texts else ""


def _after_last(roles: list[str], role: str) -> int:
    return len(roles) - roles[::-1].index(role) if role in roles else 0
