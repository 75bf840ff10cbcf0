"""What an adapter is: pure code that turns a request into a dialect's bytes and its stream into deltas.

No network here: `transport.py` sends and reads. A new dialect is one file with an `Adapter`
and a row in `registry.py`; it must pass `tests/contracts/`.
"""

from typing import Any, Protocol

import msgspec

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
