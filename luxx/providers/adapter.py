"""What a dialect consists of: pure code that encodes a request and parses its stream into deltas; and where a
request goes: the vendors of OpenAI's dialects, their addresses and key headers.

No network here: `transport.py` sends and reads. `parsing.py` has what the parsers share. A new dialect needs
a package with an `Adapter` and a row in `registry.py`; it must pass `tests/contracts/`.
"""

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from enum import StrEnum
from itertools import groupby
from typing import Any, Protocol, TypeVar, cast
from urllib.parse import SplitResult, urlsplit

import msgspec
from msgspec.structs import replace

from luxx.errors import MalformedStream, ProviderError
from luxx.providers.parsing import FramingDetector, RetainedBytes, SseEvent, SseSplitter, trailing_error
from luxx.wire.message import ORIGIN_KEY, PromptImage, PromptMessage, ToolPrompt, UserPrompt
from luxx.wire.model_settings import ModelSettings
from luxx.wire.tool import ToolChoice, ToolSpec
from luxx.wire.turn import Delta, ReplayNote, TextDelta, ThinkingDelta

CACHE_MARK = "cache_control"
"""The field that marks how much of a prompt the provider should cache; some servers refuse it by name."""


class Adaptation(StrEnum):
    """A change to requests that a server demands when it refuses one; see `Adaptations`."""

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
    NO_CHOICE_OF_NONE = "no_choice_of_none"


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
    tools, and whether several are called at once, to the model. `needs_tools`: none may be left out, because
    a client gave them. `caches_prompt`: later requests begin like this one without its last `tail` messages,
    so that a provider which caches only what it is asked to cache should do so.
    `prompted_thinking`: the model was asked to think in its text. `adaptations`: what the server demanded of
    requests.
    """

    model: str
    messages: list[PromptMessage]
    tools: list[ToolSpec] = []
    needs_tools: bool = False
    response_schema: dict[str, Any] | None = None
    stop: list[str] = []
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    caches_prompt: bool = False
    tail: int = 0
    prompted_thinking: bool = False
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


class EventStreamParser(ABC):
    """Parses server-sent events or, from servers that ignore `stream`, one JSON body. A `StreamParser`.

    An error inside the stream is raised after the earlier deltas were returned.
    """

    drain_seconds = 0.2

    def __init__(self) -> None:
        self._splitter = SseSplitter()
        self._framing = FramingDetector()
        self._retained = RetainedBytes()
        self._failure: ProviderError | None = None

    def feed(self, piece: bytes) -> list[Delta]:
        if self._failure is not None:
            raise self._failure
        if not self._framing.is_events:
            piece = self._framing.gather(piece)
        out: list[Delta] = []
        try:
            self._read_piece(piece, out)
        except ProviderError as error:
            self._failure = error
        # Deltas before a failure are returned first; the next call raises it.
        if self._failure is not None and not out:
            raise self._failure
        return out

    def _read_piece(self, piece: bytes, out: list[Delta]) -> None:
        self._read_events(self._splitter.feed(piece), out)

    def _read_rest(self, out: list[Delta]) -> None:
        """Reads what is left at the end of the body. Raises ProviderError for an error in the stream."""
        if self._failure is None and self._framing.is_json:
            self._read_body(bytes(self._framing.body), out)
        elif self._failure is None:
            with suppress(MalformedStream):  # The stream was cut within its last event.
                self._read_events(self._splitter.finish(), out)
        if self._failure is not None:
            raise self._failure
        if (error := trailing_error(self._splitter.unparsed)) is not None:
            raise error

    @abstractmethod
    def _read_events(self, events: list[SseEvent], out: list[Delta]) -> None: ...

    @abstractmethod
    def _read_body(self, body: bytes, out: list[Delta]) -> None: ...


class BuildRequest(Protocol):
    """Encodes a completion request in the dialect."""

    def __call__(self, request: CompletionRequest, target: Target, *, stream: bool) -> UpstreamRequest: ...


class MakeParser(Protocol):
    """Makes the parser of one response, which was written at `origin`; empty: not known."""

    def __call__(self, *, origin: str = "") -> StreamParser: ...


class Adapter(msgspec.Struct, frozen=True, kw_only=True):
    """The functions of one dialect. `splits_thinking`: its parser separates thinking in the text from it.

    `models_request` builds the request for the model list, or for its first page, `next_models_request` the
    one for the page that follows a body (None after the last page). `parse_models`: the names in a body.
    """

    dialect: str
    build_request: BuildRequest
    parser: MakeParser
    splits_thinking: bool = False
    models_request: Callable[[Target], UpstreamRequest]
    parse_models: Callable[[bytes], list[str]]
    next_models_request: Callable[[Target, bytes], UpstreamRequest | None]

    def parser_for(self, request: CompletionRequest, target: Target) -> StreamParser:
        """The parser of the response to this request."""
        return self.parser(origin=origin_of(request.model, target))


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
            moved.append(UserPrompt(text=text, images=images, is_inner=True))
            images = ()
        moved.append(message)
    return [*moved, UserPrompt(text=text, images=images, is_inner=True)] if images else moved


AZURE = "azure_openai"
OPENAI = "openai"

_GENERIC_TYPES = frozenset({"openai_compatible", "openai_responses"})
"""Provider types whose vendor is known from the host only."""

_VENDOR_OF_HOST = {
    "api.openai.com": OPENAI,
    "openai.azure.com": AZURE,
    "openai.azure.us": AZURE,
    "cognitiveservices.azure.com": AZURE,
    "services.ai.azure.com": AZURE,
    "deepseek.com": "deepseek",
    "mistral.ai": "mistral",
    "openrouter.ai": "openrouter",
    "groq.com": "groq",
    "z.ai": "glm",
    "bigmodel.cn": "glm",
    "aliyuncs.com": "qwen",
    "googleapis.com": "google",
    "cerebras.ai": "cerebras",
    "moonshot.ai": "moonshot",
    "moonshot.cn": "moonshot",
    "minimax.io": "minimax",
    "minimaxi.com": "minimax",
}

# Reasoning models take an effort and no temperature.
_REASONING_MODELS = re.compile(r"(?:ft:)?(?:o\d|gpt-(?:[5-9]|\d\d)(?!.*chat))")
# Models that chat completions do not serve, or not with tools and reasoning: the reasoning models, and these.
_RESPONSES_MODELS = re.compile(r"computer-use|codex-|gpt-(?:daybreak|rosalind)")
_FAMILY = re.compile(r"gpt-\d+(?:\.\d+)?|o\d+")
_DATE = re.compile(r"-(?:\d{4}-\d\d-\d\d|\d{8}|latest)$")
_ENDPOINTS = ("/chat/completions", "/responses")
_DEPLOYMENT = re.compile(r"(.*/openai)/deployments/[^/]+")


def vendor_of(target: Target) -> str:
    """The provider's type; for a generic type with a known host, and for Azure, the type of that vendor."""
    vendor = _vendor_of_host(target.base_url)
    if target.provider_type in _GENERIC_TYPES:
        return vendor or target.provider_type
    return AZURE if vendor == AZURE and target.provider_type == OPENAI else target.provider_type


def is_reasoning_model(model: str) -> bool:
    """Whether it is one of OpenAI's reasoning models, by its name."""
    return _REASONING_MODELS.match(model) is not None


def prefers_responses(target: Target, model: str) -> bool:
    """Whether a model of OpenAI or Azure is called through the Responses API although the type is another.

    At Azure only where the address has the version-1 API, which every deployment's model serves.
    """
    host = _vendor_of_host(target.base_url)
    if target.provider_type not in (OPENAI, AZURE, "openai_compatible") or host not in (OPENAI, AZURE):
        return False
    if host == AZURE and not _azure_path(_split(target.base_url).path).endswith("/openai/v1"):
        return False
    return is_reasoning_model(model) or _RESPONSES_MODELS.match(model) is not None


def endpoint(target: Target, path: str) -> str:
    """The address with this path before its query; an endpoint's path at its end is removed.

    At Azure, only chat completions have the deployment in their path.
    """
    parts = _split(target.base_url)
    base = parts.path.rstrip("/")
    for known in _ENDPOINTS:
        base = base.removesuffix(known).rstrip("/")
    if vendor_of(target) == AZURE:
        base = _azure_path(base)
        if path != "chat/completions":
            base = _DEPLOYMENT.sub(r"\1", base)
    return parts._replace(path=f"{base}/{path}").geturl()


def key_headers(target: Target) -> dict[str, str]:
    """The header with the key; Azure takes its own keys in `api-key`, and tokens of Entra as others do."""
    if not target.api_key:
        return {}
    if vendor_of(target) == AZURE and not target.api_key.startswith("eyJ"):
        return {"api-key": target.api_key}
    return {"authorization": f"Bearer {target.api_key}"}


def origin_of(model: str, target: Target) -> str:
    """The host, with the port that the address names, and the family of the model, separated by a space:
    where signatures and encrypted reasoning can be read."""
    name = model.lower().rsplit("/", 1)[-1]
    family = _FAMILY.match(name.removeprefix("ft:"))
    host = _split(target.base_url).netloc.rpartition("@")[2].lower()
    return f"{host} {family[0] if family else _DATE.sub('', name)}"


def with_origin(data: ReplayNote, origin: str) -> ReplayNote:
    """The note with its origin, if that is known."""
    return {**data, ORIGIN_KEY: origin} if origin else data


def is_of_origin(replay: ReplayNote, origin: str) -> bool:
    """Whether what can be read only where it was written may be sent there: a note of an older version of
    Luxx does not say where that was."""
    written = replay.get(ORIGIN_KEY)
    return written is None or written == origin


def _azure_path(path: str) -> str:
    """The path of the API; the version-1 API if the address is that of the resource only."""
    path = path.rstrip("/")
    return "/openai/v1" if path in ("", "/openai") else path


def _vendor_of_host(base_url: str) -> str | None:
    host = _split(base_url).hostname or ""
    for domain, vendor in _VENDOR_OF_HOST.items():
        if host == domain or host.endswith("." + domain):
            return vendor
    return None


def _split(base_url: str) -> SplitResult:
    """The parts of an address; one that is no URL is all path, and the transport refuses it."""
    try:
        return urlsplit(base_url.strip())
    except ValueError:
        return SplitResult("", "", base_url.strip(), "", "")


def merge_fragments(deltas: list[Delta]) -> list[Delta]:
    """Merges neighbouring fragments of the same kind."""
    if len(deltas) == 1:
        return deltas
    merged: list[Delta] = []
    for kind, group in groupby(deltas, type):
        if kind is TextDelta or kind is ThinkingDelta:
            fragments = cast("Iterator[TextDelta | ThinkingDelta]", group)
            merged.append(kind(text="".join(delta.text for delta in fragments)))
        else:
            merged.extend(group)
    return merged


T = TypeVar("T")

MANY = 500
"""Items of a prompt: what is done to each of them takes about 10 µs."""


async def run_sized(size: int, work: Callable[..., T], *arguments: Any, most: int = MANY) -> T:
    """The result of `work`; in a thread if `size` is more than `most`."""
    if size <= most:
        return work(*arguments)
    return await asyncio.to_thread(work, *arguments)
