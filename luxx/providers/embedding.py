"""Embeddings of texts as unit vectors: the client that sends the requests of the dialects that have them, and
sends them again after a failure.

What is embedded, and who pays for it, is the caller's.
"""

import asyncio
import math
import random
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

import msgspec

from luxx.errors import InvalidInput, MalformedStream, ProviderError
from luxx.infra.config.schema import ProvidersConfig
from luxx.infra.strict_json import SMALL_BYTES
from luxx.providers.adapter import Target, UpstreamRequest, run_sized
from luxx.providers.client import MAX_RETRIES, MAX_TOTAL_DELAY_SECONDS, MAX_WAIT_SECONDS
from luxx.providers.failures import redact_error
from luxx.providers.gemini import embeddings as gemini
from luxx.providers.openai_chat import embeddings as openai
from luxx.providers.registry import adapter_for
from luxx.providers.retries import Retry, RetrySchedule
from luxx.providers.transport import Transport

MAX_DIMENSIONS = 8_192
FEW_TEXTS = 8
"""So many texts are written and read within a millisecond."""

_PREFIXES: tuple[tuple[re.Pattern[str], str, str], ...] = (
    (re.compile(r"(^|[^a-z0-9])e5([^a-z0-9]|$)"), "query: ", "passage: "),
    (re.compile(r"nomic-embed-text"), "search_query: ", "search_document: "),
)
"""What models want before a question, and before a text that is searched. Source: their model cards."""


class EmbeddingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Texts to embed. `is_query`: they are searched for; else they are what is searched."""

    model: str
    texts: list[str]
    is_query: bool = False


class Embeddings(msgspec.Struct, frozen=True, kw_only=True):
    """A vector of length 1 for each text, all with the same dimensions. `tokens`: what the provider counted,
    0 if it did not say."""

    vectors: list[list[float]]
    tokens: int = 0


class _Build(Protocol):
    def __call__(
        self, target: Target, model: str, texts: list[str], *, is_query: bool
    ) -> UpstreamRequest: ...


class _Dialect(msgspec.Struct, frozen=True):
    build: _Build
    read: Callable[[bytes], tuple[list[list[float]], int]]


_OPENAI = _Dialect(openai.build_embeddings, openai.read_embeddings)
_DIALECTS = {
    "openai": _OPENAI,
    "openai_responses": _OPENAI,
    "gemini": _Dialect(gemini.build_embeddings, gemini.read_embeddings),
}


class EmbeddingClient:
    """Shared by all. `sleep` and `rand` (0 to 1) are injected; they set the delay between attempts."""

    def __init__(
        self,
        transport: Transport,
        config: ProvidersConfig,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rand: Callable[[], float] = random.random,
    ) -> None:
        self._transport = transport
        self._schedule = RetrySchedule(
            retries=min(config.retries, MAX_RETRIES),
            max_wait=MAX_WAIT_SECONDS,
            sleep=sleep,
            rand=rand,
            on_retry=_ignore,
            before_retry=_do_nothing,
        )

    async def embed(
        self, request: EmbeddingRequest, target: Target, *, has_retries: bool = True
    ) -> Embeddings:
        """The vectors of the texts. Raises InvalidInput for a type of provider without embeddings, and
        ProviderError, redacted, after the last attempt."""
        dialect = _dialect_of(target)
        count, schedule, failed, waited = len(request.texts), self._schedule, 0, 0.0
        build = partial(
            dialect.build, target, request.model, with_prefixes(request), is_query=request.is_query
        )
        upstream = await run_sized(count, build, most=FEW_TEXTS)
        while True:
            try:
                body = await self._transport.fetch(upstream, secret=target.api_key)
                return await run_sized(len(body), _read, dialect, body, count, most=SMALL_BYTES)
            except ProviderError as error:
                redact_error(error, target.api_key)
                delay = schedule.delay(error, failed)
                is_last = not has_retries or failed >= schedule.retries or not error.retryable
                is_long = (error.retry_after or 0) > schedule.max_wait
                if is_last or is_long or waited + delay > MAX_TOTAL_DELAY_SECONDS:
                    raise
            failed, waited = failed + 1, waited + delay
            await schedule.sleep(delay)


def _dialect_of(target: Target) -> _Dialect:
    dialect = _DIALECTS.get(adapter_for(target.provider_type).dialect)
    if dialect is None:
        raise InvalidInput(
            f"a provider of the type '{target.provider_type}' has no embeddings; choose another one",
            kind="no_embeddings",
            field="$.provider_id",
        )
    return dialect


def with_prefixes(request: EmbeddingRequest) -> list[str]:
    """The texts as the model wants them."""
    name = request.model.lower()
    for pattern, query, passage in _PREFIXES:
        if pattern.search(name):
            prefix = query if request.is_query else passage
            return [prefix + text for text in request.texts]
    return request.texts


def _read(dialect: _Dialect, body: bytes, count: int) -> Embeddings:
    """Raises MalformedStream for what is no list of vectors that can be compared."""
    try:
        vectors, tokens = dialect.read(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedStream(f"The provider's embeddings cannot be read: {error}") from error
    if len(vectors) != count:
        raise MalformedStream(f"The provider sent {len(vectors)} embeddings for {count} texts.")
    dimensions = len(vectors[0]) if vectors else 1
    if any(len(vector) != dimensions for vector in vectors) or not 0 < dimensions <= MAX_DIMENSIONS:
        raise MalformedStream(
            f"The provider's embeddings differ in length, or have not 1 to {MAX_DIMENSIONS:,} dimensions."
        )
    return Embeddings(vectors=[_unit(vector) for vector in vectors], tokens=max(0, tokens))


def _unit(vector: list[float]) -> list[float]:
    length = math.hypot(*vector)
    if not (math.isfinite(length) and length > 0):
        raise MalformedStream("The provider sent an embedding that has no direction.")
    return [value / length for value in vector]


async def _ignore(retry: Retry) -> None:
    del retry


async def _do_nothing() -> None:
    pass
