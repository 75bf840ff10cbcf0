"""A model server that is never the bottleneck: OpenAI's chat completions in raw bytes, on a uvloop Protocol.
Answers without tools are also served in the dialect of OpenAI's Responses API.

The marker in the last user message determines the answer or, if it has none, the one in the system prompt:
- `[[n=250 closed=7]]` 250 chunks, each written when `release(7)` reports that the one before arrived, so
  a relay reads exactly one chunk at a time on any machine;
- `[[n=100 delay=20]]` 100 chunks, one every 20 ms; with `paragraph=40` a new paragraph begins after every
  40 chunks;
- `[[loop=20 tools=a,b,c,d]]` parallel tool calls, 20 times, then one word.
Each content chunk is ` NNNNN@TTTTTTTT`: its number and the time of its write (CLOCK_MONOTONIC in µs, low
32 bits, hex), so that a client can detect losses and measure one-way latency.
"""

import asyncio
import re
import time
from typing import Any

import msgspec

MARKER = re.compile(r"\[\[([^\]]*)\]\]")
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
    b"x-request-id: req_bench\r\ntransfer-encoding: chunked\r\n\r\n"
)
MODELS = b'{"object":"list","data":[{"id":"bench-model","object":"model","created":1,"owned_by":"bench"}]}'
CHUNK_HEAD = (
    b'{"id":"chatcmpl-0123456789abcdefghijklmnopqrs","object":"chat.completion.chunk","created":1741570283,'
    b'"model":"bench-model","service_tier":"default","system_fingerprint":"fp_0123456789",'
)
USAGE = (
    b'"choices":[],"usage":{"prompt_tokens":42,"completion_tokens":%d,"total_tokens":%d,'
    b'"prompt_tokens_details":{"cached_tokens":7},"completion_tokens_details":{"reasoning_tokens":0}}}'
)
ARGUMENT_FRAGMENTS = ('{"value"', ':"short ', 'words %d"}')
"""With the number of the request, because a model that repeats its calls is held back."""


def frame(data: bytes) -> bytes:
    """A server-sent event in an HTTP chunk of its own."""
    return b"%x\r\ndata: %s\n\n\r\n" % (len(data) + 8, data)


def choice(delta: bytes, finish: bytes = b"null") -> bytes:
    """A chunk with one choice."""
    body = b'"choices":[{"index":0,"delta":%s,"logprobs":null,"finish_reason":%s}],"usage":null}'
    return frame(CHUNK_HEAD + body % (delta, finish))


def tail(finish: bytes, tokens: int) -> bytes:
    """The end of an answer: the reason, the usage, [DONE], the end of the body."""
    usage = frame(CHUNK_HEAD + USAGE % (tokens, tokens + 42))
    return choice(b"{}", b'"%s"' % finish) + usage + frame(b"[DONE]") + b"0\r\n\r\n"


OPENING = choice(b'{"role":"assistant","content":"","refusal":null}')
TOKEN_BEFORE, TOKEN_AFTER = choice(b'{"content":" 00000@00000000"}').split(b"00000@00000000")


def response_event(kind: bytes, fields: bytes) -> bytes:
    """An event of the Responses API in an HTTP chunk of its own."""
    data = b'{"type":"%s",%s}' % (kind, fields)
    return b"%x\r\nevent: %s\ndata: %s\n\n\r\n" % (len(kind) + len(data) + 16, kind, data)


ITEM = b"msg_0123456789abcdef0123456789abcdef0123456789abcdef"
IN_ITEM = b'"item_id":"%s","output_index":0,"content_index":0,' % ITEM
RESPONSE = (
    b'{"id":"resp_bench","object":"response","status":"%s","model":"bench-model","output":[],"usage":%s}'
)
RESPONSE_USAGE = (
    b'{"input_tokens":42,"input_tokens_details":{"cached_tokens":7},"output_tokens":%d,'
    b'"output_tokens_details":{"reasoning_tokens":0},"total_tokens":%d}'
)
RESPONSE_OPENING = response_event(
    b"response.created", b'"sequence_number":0,"response":' + RESPONSE % (b"in_progress", b"null")
) + response_event(
    b"response.output_item.added",
    b'"sequence_number":1,"output_index":0,"item":{"id":"%s","type":"message","status":"in_progress",'
    b'"role":"assistant","content":[]}' % ITEM,
)
RESPONSE_TOKEN = response_event(
    b"response.output_text.delta",
    IN_ITEM + b'"delta":" 00000@00000000","logprobs":[],"sequence_number":1000',
)


def response_tail(tokens: int) -> bytes:
    """The end of a response: its complete item, its usage, the end of the body."""
    item = b'{"id":"%s","type":"message","status":"completed","role":"assistant","content":[]}' % ITEM
    response = RESPONSE % (b"completed", RESPONSE_USAGE % (tokens, tokens + 42))
    return (
        response_event(b"response.output_item.done", b'"output_index":0,"item":%s' % item)
        + response_event(b"response.completed", b'"response":%s' % response)
        + b"0\r\n\r\n"
    )


RESPONSE_BEFORE, RESPONSE_AFTER = RESPONSE_TOKEN.split(b"00000@00000000")


def token(number: int, *, is_response: bool = False, is_paragraph: bool = False) -> bytes:
    """The content chunk of this number, with the current time. `is_paragraph`: the first of a new one,
    in chat completions only."""
    stamp = (time.monotonic_ns() // 1000) & 0xFFFFFFFF
    if is_paragraph:
        return choice(b'{"content":"\\n\\n%05d@%08x"}' % (number, stamp))
    before, after = (RESPONSE_BEFORE, RESPONSE_AFTER) if is_response else (TOKEN_BEFORE, TOKEN_AFTER)
    return b"%s%05d@%08x%s" % (before, number, stamp, after)


class Plan(msgspec.Struct):
    """The answer to one request. `closed` is a stream's id or -1; `delay` in seconds."""

    n: int = 3
    closed: int = -1
    delay: float = 0.0
    paragraph: int = 0
    tools: tuple[str, ...] = ()


def read_plan(messages: list[dict[str, Any]]) -> Plan:
    """The plan of the marker, after the rounds of tools that the prompt contains."""
    last = max((at for at, message in enumerate(messages) if message["role"] == "user"), default=0)
    match = MARKER.search(_text(messages[last])) or MARKER.search(_text(messages[0])) if messages else None
    words = dict(word.split("=", 1) for word in match[1].split()) if match else {}
    plan = Plan(
        n=int(words.get("n", 3)),
        closed=int(words.get("closed", -1)),
        delay=float(words.get("delay", 0)) / 1000,
        paragraph=int(words.get("paragraph", 0)),
    )
    rounds = sum(1 for message in messages[last:] if message.get("tool_calls"))
    if rounds < int(words.get("loop", 0)):
        plan.tools = tuple(words["tools"].split(","))
    return plan


def _text(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else " ".join(part.get("text", "") for part in content)


class Upstream:
    """The server: its number of requests, and its closed-loop streams by id."""

    def __init__(self) -> None:
        self.requests = 0
        self.port = 0
        self.streams: dict[int, _Connection] = {}
        self._server: asyncio.Server | None = None

    async def open(self, host: str = "127.0.0.1") -> None:
        """Listens on any free port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), host, 0, backlog=4096)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()

    def release(self, stream: int) -> None:
        """The client has received the last chunk of this stream: write the next one."""
        connection = self.streams.get(stream)
        if connection is not None:
            connection.emit()


class _Connection(asyncio.Protocol):
    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._transport: Any = None
        self._received = b""
        self._plan = Plan()
        self._is_response = False
        self._sent = 0
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()

    def data_received(self, data: bytes) -> None:
        self._received += data
        while self._answer_one():
            pass

    def _answer_one(self) -> bool:
        head, end, rest = self._received.partition(b"\r\n\r\n")
        if not end:
            return False
        lines = head.split(b"\r\n")
        length = 0
        for line in lines[1:]:
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        if len(rest) < length:
            return False
        self._received = rest[length:]
        self._begin(lines[0].split(b" ")[1], rest[:length])
        return bool(self._received)

    def _begin(self, path: bytes, body: bytes) -> None:
        self._upstream.requests += 1
        self._is_response = path.endswith(b"/responses")
        if not (self._is_response or path.endswith(b"/chat/completions")):
            self._transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
                % (len(MODELS), MODELS)
            )
            return
        fields = msgspec.json.decode(body)
        self._plan = read_plan(fields["input"] if self._is_response else fields["messages"])
        self._sent = 0
        opening = RESPONSE_OPENING if self._is_response else OPENING
        if self._plan.tools:
            self._transport.write(HEAD + OPENING + self._calls() + tail(b"tool_calls", 16))
            return
        if self._plan.closed >= 0:
            self._upstream.streams[self._plan.closed] = self
            self._transport.write(HEAD + opening)
            self.emit()
            return
        self._transport.write(HEAD + opening)
        self._due = asyncio.get_running_loop().time()
        self._tick()

    def _calls(self) -> bytes:
        out: list[bytes] = []
        start = b'{"tool_calls":[{"index":%d,"id":"call_%08x%02d","type":"function","function":%s}]}'
        more = b'{"tool_calls":[{"index":%d,"function":{"arguments":%s}}]}'
        *begin, end = ARGUMENT_FRAGMENTS
        fragments = [msgspec.json.encode(part) for part in (*begin, end % self._upstream.requests)]
        for at, name in enumerate(self._plan.tools):
            function = b'{"name":"%s","arguments":""}' % name.encode()
            out.append(choice(start % (at, self._upstream.requests, at, function)))
            out += [choice(more % (at, part)) for part in fragments]
        return b"".join(out)

    def _tick(self) -> None:
        """Each chunk has a fixed time from the start of the stream. With a delay after each chunk, streams
        that one late turn of the loop served would send in the same millisecond from then on."""
        self.emit()
        if self._sent < self._plan.n:
            self._due += self._plan.delay
            self._timer = asyncio.get_running_loop().call_at(self._due, self._tick)

    def emit(self) -> None:
        """Writes the next chunk; with the last one, the end."""
        if self._sent >= self._plan.n:
            return
        paragraph = self._plan.paragraph
        is_paragraph = paragraph > 0 and self._sent > 0 and self._sent % paragraph == 0
        piece = token(self._sent, is_response=self._is_response, is_paragraph=is_paragraph)
        self._sent += 1
        if self._sent == self._plan.n:
            piece += response_tail(self._plan.n) if self._is_response else tail(b"stop", self._plan.n)
            self._forget()
        self._transport.write(piece)

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._upstream.streams.get(self._plan.closed) is self:
            del self._upstream.streams[self._plan.closed]
