"""What an adapter is: pure code that turns a request into a dialect's bytes and its stream into deltas.

No network here: `transport.py` sends and reads. A new dialect is one file with an `Adapter`
and a row in `registry.py`; it must pass `tests/contracts/`.
"""

from typing import Any, Protocol

import msgspec

from luxx.errors import MalformedStream
from luxx.wire.delta import Delta
from luxx.wire.message import PromptMessage
from luxx.wire.tool import ToolSpec


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where to send: a provider row with its key unsealed. Never logged, never encoded."""

    provider_id: int | None
    provider_type: str
    base_url: str
    api_key: str = ""

    def __repr__(self) -> str:
        return f"Target({self.provider_type}, {self.base_url})"


class CompletionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One model call. `max_tokens` limits the answer; None leaves it to the provider."""

    model: str
    messages: list[PromptMessage]
    tools: list[ToolSpec] = []
    thinking_enabled: bool = False
    temperature: float | None = None
    max_tokens: int | None = None
    response_schema: dict[str, Any] | None = None


class UpstreamRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An HTTP POST ready to send."""

    url: str
    headers: dict[str, str]
    body: bytes


class StreamParser(Protocol):
    """Reads one response body, fed in pieces of any size. Not reusable."""

    def feed(self, piece: bytes) -> list[Delta]:
        """The deltas completed by this piece. Raises ProviderError for an error in the stream."""
        ...

    def close(self) -> list[Delta]:
        """Call once at the end of the body. Raises Dropped if the answer is not whole."""
        ...


class Adapter(Protocol):
    dialect: str

    def build_request(
        self, request: CompletionRequest, target: Target, *, stream: bool
    ) -> UpstreamRequest: ...

    def parser(self) -> StreamParser: ...

    def models_request(self, target: Target) -> UpstreamRequest:
        """A GET (empty body) that lists models."""
        ...

    def parse_models(self, body: bytes) -> list[str]: ...


MAX_RETAINED_BYTES = 32 * 1024 * 1024
MAX_BLANK_BYTES = 64 * 1024

_JSON = b"{["


class RetainedBytes:
    """Counts the events of which anything is kept: `keep` for each, however often, counts `coming` once."""

    __slots__ = ("_bytes", "event_bytes")

    def __init__(self) -> None:
        self.event_bytes = 0
        self._bytes = 0

    def retain_event(self) -> None:
        """Something of the event at hand stays. Raises Garbled past the bound."""
        self._bytes += self.event_bytes
        self.event_bytes = 0
        if self._bytes > MAX_RETAINED_BYTES:
            raise MalformedStream(
                f"The provider's answer holds more than {MAX_RETAINED_BYTES} bytes beside its text."
            )


class FramingDetector:
    """Tells by an answer's first byte how it is framed: `is_events` or `is_json`.

    Blanks before it are dropped. A JSON body begins with a brace or a bracket, which no event stream does.
    """

    def __init__(self) -> None:
        self.is_events = False
        self.is_json = False
        self.body = bytearray()
        self._blank_bytes = 0

    def read(self, piece: bytes) -> bytes:
        """What of the piece belongs to the answer. Raises Garbled for blanks past the bound."""
        if self.is_events or self.is_json:
            return piece
        data = piece.lstrip()
        if data:
            self.is_json = data[0] in _JSON
            self.is_events = not self.is_json
            return data
        self._blank_bytes += len(piece)
        if self._blank_bytes > MAX_BLANK_BYTES:
            raise MalformedStream(
                f"The provider sent more than {MAX_BLANK_BYTES} blank bytes before its answer."
            )
        return b""

    def gather(self, piece: bytes) -> bytes:
        """What of the piece belongs to an event stream; a JSON body is gathered in `body` instead."""
        data = self.read(piece)
        if not self.is_json:
            return data
        self.body += data
        if len(self.body) > MAX_RETAINED_BYTES:
            raise MalformedStream(f"The provider sent an answer of more than {MAX_RETAINED_BYTES} bytes.")
        return b""
