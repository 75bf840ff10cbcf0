"""The adapter protocols: pure code that encodes a request in a dialect and parses its stream into deltas.

No network here: `transport.py` sends and reads. `parsing.py` has what the parsers share. A new dialect needs
a package with an `Adapter` and a row in `registry.py`; it must pass `tests/contracts/`.
"""

from typing import Any, Protocol

import msgspec

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

    drain_seconds: float
    """How long the body is read after `is_done`, because deltas may still follow the end mark."""

    @property
    def is_done(self) -> bool:
        """Whether the end mark of the completion arrived; the body may still be open."""
        ...

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
        """The GET request (empty body) for the model list, or for its first page."""
        ...

    def parse_models(self, body: bytes) -> list[str]: ...

    def next_models_request(self, target: Target, body: bytes) -> UpstreamRequest | None:
        """The GET request for the page that follows `body`; None after the last page."""
        ...
