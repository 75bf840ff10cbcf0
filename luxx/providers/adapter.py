"""What a dialect consists of: pure code that encodes a request and parses its stream into deltas.

No network here: `transport.py` sends and reads. `parsing.py` has what the parsers share. A new dialect needs
a package with an `Adapter` and a row in `registry.py`; it must pass `tests/contracts/`.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from luxx.wire.message import PromptImage, PromptMessage, ToolPrompt, UserPrompt
from luxx.wire.model_settings import ModelSettings
from luxx.wire.tool import ToolChoice, ToolSpec
from luxx.wire.turn import Delta

CACHE_MARK = "cache_control"
"""The field that marks how much of a prompt the provider should cache; some servers refuse it by name."""


class Adaptation(StrEnum):
    """A change to requests that a server demands when it refuses one; see `adaptations.py`."""

    RESPONSES = "responses"
    CHAT_COMPLETIONS = "chat_completions"
    MAX_COMPLETION_TOKENS = "max_completion_tokens"
    MAX_TOKENS = "max_tokens"
    NO_TEMPERATURE = "no_temperature"
    NO_SUMMARY = "no_summary"
    NO_ENCRYPTED_REASONING = "no_encrypted_reasoning"
    NO_NOTES = "no_notes"
    NO_CACHE_MARKS = "no_cache_marks"
    ALTERNATING = "alternating"
    NO_SYSTEM = "no_system"
    ENDS_WITH_USER = "ends_with_user"
    JSON_OBJECT = "json_object"
    NO_SCHEMA = "no_schema"
    REASONING_OF_CALLS = "reasoning_of_calls"


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where to send: the address of a provider and its decrypted key. Never logged, never encoded."""

    provider_id: int | None
    provider_type: str
    base_url: str
    api_key: str = ""

    def __repr__(self) -> str:
        return f"Target({self.provider_type}, {self.base_url})"


class CompletionRequest(ModelSettings, frozen=True, kw_only=True):
    """One model call. `max_tokens` limits the completion; None leaves the limit to the provider.

    `stop`: texts that end the completion. `tool_choice` and `parallel_tool_calls`: None leaves the choice of
    tools, and whether several are called at once, to the model. `uncallable`: tools of earlier calls of the
    run that the model must not call now. `caches_prompt`: later requests begin like this one, so that a
    provider which caches only what it is asked to cache should do so. `adaptations`: what the server demanded
    of requests.
    """

    model: str
    messages: list[PromptMessage]
    tools: list[ToolSpec] = []
    response_schema: dict[str, Any] | None = None
    stop: list[str] = []
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    uncallable: list[ToolSpec] = []
    caches_prompt: bool = False
    adaptations: frozenset[Adaptation] = frozenset()


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


class BuildRequest(Protocol):
    """Encodes a completion request in the dialect."""

    def __call__(self, request: CompletionRequest, target: Target, *, stream: bool) -> UpstreamRequest: ...


class Adapter(msgspec.Struct, frozen=True, kw_only=True):
    """The functions of one dialect. `parser` makes the parser of one response; `bound_parser`, if there is
    one, that of the response to a request, whose notes say where they can be sent.

    `models_request` builds the request for the model list, or for its first page, `next_models_request` the
    one for the page that follows a body (None after the last page). `parse_models`: the names in a body.
    """

    dialect: str
    build_request: BuildRequest
    parser: Callable[[], StreamParser]
    bound_parser: Callable[[CompletionRequest, Target], StreamParser] | None = None
    models_request: Callable[[Target], UpstreamRequest]
    parse_models: Callable[[bytes], list[str]]
    next_models_request: Callable[[Target, bytes], UpstreamRequest | None]

    def parser_for(self, request: CompletionRequest, target: Target) -> StreamParser:
        """The parser of the response to this request."""
        return self.parser() if self.bound_parser is None else self.bound_parser(request, target)


def post_request(url: str, headers: dict[str, str], body: dict[str, Any], *, stream: bool) -> UpstreamRequest:
    accept = "text/event-stream" if stream else "application/json"
    headers = {**headers, "content-type": "application/json", "accept": accept}
    return UpstreamRequest(url=url, headers=headers, body=msgspec.json.encode(body))


def get_request(url: str, headers: dict[str, str]) -> UpstreamRequest:
    return UpstreamRequest(url=url, headers={**headers, "accept": "application/json"}, body=b"")


def with_images_after_results(messages: Sequence[PromptMessage], text: str = "") -> list[PromptMessage]:
    """The messages for an API whose tool results take no images: those of all results of a completion follow
    the last one, as a user's message with this text."""
    moved: list[PromptMessage] = []
    images: tuple[PromptImage, ...] = ()
    for message in messages:
        if isinstance(message, ToolPrompt):
            images += message.images
            moved.append(replace(message, images=()))
            continue
        if images:
            moved.append(UserPrompt(text=text, images=images))
            images = ()
        moved.append(message)
    return [*moved, UserPrompt(text=text, images=images)] if images else moved
