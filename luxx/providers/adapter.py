"""The adapter protocols: pure code that encodes a request in a dialect and parses its stream into deltas.

No network here: `transport.py` sends and reads. A new dialect needs a package with an `Adapter` and an
entry in `registry.py`; it must pass `tests/contracts/`.
"""

from typing import Any, Protocol

import msgspec

from luxx.errors import MalformedStream
from luxx.wire.delta import Delta
from luxx.wire.message import PromptMessage
from luxx.wire.tool import ToolSpec


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where to send: the address of a provider and its decrypted key. Never logged, never encoded."""

    provider_id: int | None
    provider_type: str
    base_url: str
    api_key: str = ""

    def __repr__(self) -> str:
        return f"Target({self.provider_type}, {self.base_url})"


class CompletionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One model call. `max_tokens` limits the completion; None leaves the limit to the provider."""

    model: str
    messages: list[PromptMessage]
    tools: list[ToolSpec] = []
    thinking_enabled: bool = False
    temperature: float | None = None
    max_tokens: int | None = None
    response_schema: dict[str, Any] | None = None


class UpstreamRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An HTTP request ready to send: a POST, or a GET if `body` is empty."""

    url: str
    headers: dict[str, str]
    body: bytes


class StreamParser(Protocol):
    """Parses one response body, fed in pieces of any size. Not reusable."""

    def feed(self, piece: bytes) -> list[Delta]:
        """The deltas completed by this piece. Raises ProviderError for an error in the stream."""
        ...

    def close(self) -> list[Delta]:
        """Call once at the end of the body. Raises StreamInterrupted if the completion is incomplete."""
        ...


class Adapter(Protocol):
    dialect: str

    def build_request(
        self, request: CompletionRequest, target: Target, *, stream: bool
    ) -> UpstreamRequest: ...

    def parser(self) -> StreamParser: ...

    def models_request(self, target: Target) -> UpstreamRequest:
        """The GET request (empty body) that lists models."""
        ...

    def parse_models(self, body: bytes) -> list[str]: ...


MAX_RETAINED_BYTES = 32 * 1024 * 1024
MAX_BLANK_BYTES = 64 * 1024

_JSON = b"{["


class RetainedBytes:
    """Bounds the bytes of events that a parser keeps.

    The parser sets `event_bytes` per event; `retain_event` counts them once, however often it is called.
    """

    __slots__ = ("_bytes", "event_bytes")

    def __init__(self) -> None:
        self.event_bytes = 0
        self._bytes = 0

    def retain_event(self) -> None:
        """Counts the current event. Raises MalformedStream past the bound."""
        self._bytes += self.event_bytes
        self.event_bytes = 0
        if self._bytes > MAX_RETAINED_BYTES:
            raise MalformedStream(
                f"The provider's response contains more than {MAX_RETAINED_BYTES} bytes besides its text."
            )


class FramingDetector:
    """Detects by the first byte whether a body is an event stream (`is_events`) or JSON (`is_json`).

    It drops leading whitespace. A JSON body begins with a brace or a bracket; an event stream never does.
    """

    def __init__(self) -> None:
        self.is_events = False
        self.is_json = False
        self.body = bytearray()
        self._blank_bytes = 0

    def read(self, piece: bytes) -> bytes:
        """The piece without leading whitespace. Raises MalformedStream for whitespace past the bound."""
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
                f"The provider sent more than {MAX_BLANK_BYTES} blank bytes before its response."
            )
        return b""

    def gather(self, piece: bytes) -> bytes:
        """The part of the piece that belongs to an event stream; a JSON body is collected in `body`.

        Raises MalformedStream for a body past the bound.
        """
        data = self.read(piece)
        if not self.is_json:
            return data
        self.body += data
        if len(self.body) > MAX_RETAINED_BYTES:
            raise MalformedStream(f"The provider sent a response of more than {MAX_RETAINED_BYTES} bytes.")
        return b""
