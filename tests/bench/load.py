"""Clients: raw keep-alive connections that read streams, check that they are complete, and time
each token.
"""

import asyncio
import re
import time
from collections.abc import Callable
from typing import Any

import msgspec

OPENAI_TEXT = re.compile(rb'"delta":\{[^{}]*?"content":"( [^"]+)"')
LUXX_TEXT = re.compile(rb'(?:^|\r\n|\n\n)event: process_step\n[^\n]*"(?:delta|content)":"( [^"]+)"')
"""Deltas, and the snapshot at the start of a stream; logged events have an id and no new text."""

TOKEN = re.compile(rb" (\d{5})@([0-9a-f]{8})")
ROOM_TEXT = re.compile(rb'(?:^|\r\n|\n\n)event: message_chunk\n[^\n]*"content":"( [^"]+)"')
TOOL_RESULT = re.compile(rb'"type":"tool_result"')
STREAM_END = b"0\r\n\r\n"
WAIT_SECONDS = 120.0
MAX_TOKENS = 100_000
"""Tokens are numbered with five digits."""


class Broken(Exception):
    """A stream was refused, interrupted, or incomplete."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A server to load. `body_of` makes a request's body from a conversation and a prompt.

    `turn_tokens`: the tokens of each turn of a stream with several, which are numbered from 0; 0: one turn.
    """

    name: str
    port: int
    path: str
    headers: bytes
    text: re.Pattern[bytes]
    body_of: Callable[[str, str], bytes]
    turn_tokens: int = 0

    def request(self, conversation: str, prompt: str) -> bytes:
        """The bytes of one request."""
        body = self.body_of(conversation, prompt)
        head = f"POST {self.path} HTTP/1.1\r\nhost: 127.0.0.1:{self.port}\r\n".encode() + self.headers
        return head + b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


def openai_target(name: str, port: int, headers: bytes = b"", model: str = "bench-model") -> Target:
    """A server of the upstream's own dialect: a relay, or the upstream itself."""

    def body_of(_conversation: str, prompt: str) -> bytes:
        messages = [{"role": "user", "content": prompt}]
        return msgspec.json.encode(
            {"model": model, "stream": True, "stream_options": {"include_usage": True}}
            | {"messages": messages}
        )

    return Target(
        name=name, port=port, path="/v1/chat/completions", headers=headers, text=OPENAI_TEXT, body_of=body_of
    )


def luxx_target(port: int, token: str, *, tools: bool) -> Target:
    """Luxx as a signed-in client uses it."""

    def body_of(conversation: str, prompt: str) -> bytes:
        return msgspec.json.encode({"conversation_id": conversation, "content": prompt, "tools": tools})

    return Target(
        name="luxx",
        port=port,
        path="/messages/stream",
        headers=f"authorization: Bearer {token}\r\n".encode(),
        text=LUXX_TEXT,
        body_of=body_of,
    )


def run_target(port: int, token: str, path: str, text: re.Pattern[bytes], turn_tokens: int) -> Target:
    """The start of a room's or a task's run, followed to its end."""
    return Target(
        name="luxx",
        port=port,
        path=path,
        headers=f"authorization: Bearer {token}\r\naccept: text/event-stream\r\n".encode(),
        text=text,
        body_of=lambda _conversation, _prompt: b"",
        turn_tokens=turn_tokens,
    )


class Answer(msgspec.Struct):
    """The measurements of one stream: times in seconds, one-way latencies in µs."""

    sent_at: float
    first_at: float = 0.0
    ended_at: float = 0.0
    tokens: int = 0
    tool_results: int = 0
    latencies: list[int] = []

    @property
    def first_token(self) -> float:
        return self.first_at - self.sent_at


class Client(asyncio.Protocol):
    """One connection, one stream at a time. `on_token` is called with the number of each token."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._transport: Any = None
        self._buffer = b""
        self._last = b""
        self._is_begun = False
        self._answer = Answer(0.0)
        self._done: asyncio.Future[Answer] | None = None
        self._on_token: Callable[[int], None] = _ignore

    @classmethod
    async def connect(cls, target: Target) -> "Client":
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(lambda: cls(target), "127.0.0.1", target.port)
        return client

    async def stream(
        self, conversation: str, prompt: str, expect: int, on_token: Callable[[int], None] | None = None
    ) -> Answer:
        """Sends a request and reads to the end. Raises Broken unless exactly `expect` tokens came, in
        order."""
        self._buffer, self._is_begun = b"", False
        self._on_token = on_token or _ignore
        self._done = asyncio.get_running_loop().create_future()
        request = self._target.request(conversation, prompt)
        self._answer = Answer(time.perf_counter())
        self._transport.write(request)
        answer = await asyncio.wait_for(self._done, WAIT_SECONDS)
        if answer.tokens != expect:
            raise Broken(f"{self._target.name}: {answer.tokens} tokens of {expect}; last: {self._last!r}")
        return answer

    def close(self) -> None:
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"the connection was closed ({exc})")

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        if not self._is_begun:
            head, end, buffer = buffer.partition(b"\r\n\r\n")
            if not end:
                self._buffer = head
                return
            if not head.startswith(b"HTTP/1.1 200"):
                self._fail((head + buffer)[:2000].decode("utf-8", "replace"))
                return
            self._is_begun = True
        # Only complete events are read; the rest waits for more data, except the last chunk.
        cut = buffer.rfind(b"\n\n") + 2
        whole, self._buffer = (buffer[:cut], buffer[cut:]) if cut > 1 else (b"", buffer)
        if whole:
            self._last = whole[-2000:]
            self._read(whole)
        if self._buffer.endswith(STREAM_END) and self._done is not None and not self._done.done():
            self._answer.ended_at = time.perf_counter()
            self._done.set_result(self._answer)

    def _read(self, events: bytes) -> None:
        answer = self._answer
        for text in self._target.text.finditer(events):
            for number, stamp in TOKEN.findall(text[1]):
                if not answer.tokens:
                    answer.first_at = time.perf_counter()
                due = answer.tokens % (self._target.turn_tokens or MAX_TOKENS)
                if int(number) != due:
                    self._fail(f"token {int(number)} came where {due} was due")
                    return
                now = (time.monotonic_ns() // 1000) & 0xFFFFFFFF
                answer.latencies.append((now - int(stamp, 16)) & 0xFFFFFFFF)
                answer.tokens += 1
                self._on_token(int(number))
        if b"tool_result" in events:
            answer.tool_results += len(TOOL_RESULT.findall(events))

    def _fail(self, why: str) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(Broken(f"{self._target.name}: {why}"))


def _ignore(_number: int) -> None:
    return
