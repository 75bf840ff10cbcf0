"""A model as the rest of the house sees it: send a request, get deltas, with the retries in between.

Bytes are the transport's, dialects the adapters'.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Protocol, runtime_checkable

import msgspec

from luxx.config import ProvidersConfig
from luxx.errors import Dropped, ProviderError, Stalled
from luxx.providers.adapter import Adapter, CompletionRequest, StreamParser, Target, UpstreamRequest
from luxx.providers.failures import redacted
from luxx.providers.registry import adapter_for
from luxx.providers.transport import Transport
from luxx.wire.delta import (
    Delta,
    FinishDelta,
    FinishReason,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    UsageDelta,
)
from luxx.wire.tool import ToolCall
from luxx.wire.usage import Usage

MAX_MODEL_PAGES = 20
MAX_RETRIES = 10
MAX_RETRY_AFTER_SECONDS = 60.0
MAX_WAITED_SECONDS = 180.0
FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 16.0
DRAIN_SECONDS = 0.2
"""How long the end of a body is awaited after the stream said it is done, to keep the connection."""


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """A failed try that is followed by another; `attempt` is the number of the one to come, from 2."""

    attempt: int
    delay_ms: int
    reason: str


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer, for callers that do not stream."""

    text: str
    thinking: str
    tool_calls: list[ToolCall]
    usage: Usage
    finish: FinishReason


@runtime_checkable
class KnowsItsEnd(Protocol):
    """A parser whose dialect marks the end inside the body."""

    @property
    def is_done(self) -> bool: ...


@runtime_checkable
class ListsByPage(Protocol):
    """An adapter whose servers list their models in pages."""

    def next_models_request(self, target: Target, body: bytes) -> UpstreamRequest | None:
        """The GET of the page after the one read as `body`; None after the last."""
        ...


class ModelClient:
    """Shared by all runs; `sleep` and `rand` (0 to 1) are injected for the waits between tries."""

    def __init__(
        self,
        transport: Transport,
        config: ProvidersConfig,
        *,
        adapters: Callable[[str], Adapter] = adapter_for,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rand: Callable[[], float] = random.random,
    ) -> None:
        self._transport = transport
        self._retries = min(config.retries, MAX_RETRIES)
        self._adapters = adapters
        self._sleep = sleep
        self._rand = rand

    async def stream(
        self,
        request: CompletionRequest,
        target: Target,
        *,
        on_retry: Callable[[Retry], Awaitable[None]],
    ) -> AsyncGenerator[list[Delta], None]:
        """One list per network read, never an empty one. Use with `contextlib.aclosing`.

        Retries what may help as long as nothing was given out; then raises ProviderError.
        """
        waited = 0.0
        failed = 0
        while True:
            has_begun = False
            try:
                async with aclosing(self._try(request, target)) as batches:
                    async for deltas in batches:
                        has_begun = True
                        yield deltas
                return
            except ProviderError as error:
                failure = redacted(error, target.api_key)
                delay = self._delay(failure, failed)
                if (
                    has_begun
                    or not failure.retryable
                    or failed >= self._retries
                    or waited + delay > MAX_WAITED_SECONDS
                ):
                    raise
            failed += 1
            waited += delay
            await on_retry(Retry(attempt=failed + 1, delay_ms=round(delay * 1000), reason=failure.message))
            await self._sleep(delay)

    async def complete(self, request: CompletionRequest, target: Target) -> Completion:
        """The whole answer of one try, without retries: what a test of a provider needs."""
        text: list[str] = []
        thinking: list[str] = []
        calls: dict[int, ToolCall] = {}
        usage = Usage()
        finish = FinishReason.UNKNOWN
        try:
            async with aclosing(self._try(request, target)) as batches:
                async for deltas in batches:
                    for delta in deltas:
                        match delta:
                            case TextDelta():
                                text.append(delta.text)
                            case ThinkingDelta():
                                thinking.append(delta.text)
                            case ToolCallDelta():
                                calls[delta.slot] = _grown(calls.get(delta.slot), delta)
                            case UsageDelta():
                                usage = delta.usage
                            case FinishDelta():
                                finish = delta.reason
                            case _:
                                pass
        except ProviderError as error:
            redacted(error, target.api_key)
            raise
        return Completion(
            text="".join(text),
            thinking="".join(thinking),
            tool_calls=[calls[slot] for slot in sorted(calls)],
            usage=usage,
            finish=finish,
        )

    async def list_models(self, target: Target) -> list[str]:
        """The names of the models the provider offers, of at most 20 pages. Raises ProviderError."""
        adapter = self._adapters(target.provider_type)
        names: list[str] = []
        asked: UpstreamRequest | None = adapter.models_request(target)
        try:
            for _ in range(MAX_MODEL_PAGES):
                body = await self._transport.fetch(asked, secret=target.api_key)
                names += adapter.parse_models(body)
                asked = (
                    adapter.next_models_request(target, body) if isinstance(adapter, ListsByPage) else None
                )
                if asked is None:
                    break
            return names
        except ProviderError as error:
            redacted(error, target.api_key)
            raise

    async def _try(self, request: CompletionRequest, target: Target) -> AsyncGenerator[list[Delta], None]:
        adapter = self._adapters(target.provider_type)
        parser = adapter.parser()
        ending = parser if isinstance(parser, KnowsItsEnd) else None
        sent = adapter.build_request(request, target, stream=True)
        async with aclosing(self._transport.stream(sent, secret=target.api_key)) as pieces:
            try:
                async for piece in pieces:
                    deltas = parser.feed(piece)
                    if deltas:
                        yield deltas
                    if ending is not None and ending.is_done:
                        await _drain(pieces)
                        break
            except (Dropped, Stalled) as error:
                last = _last_of(parser, error)
            else:
                last = parser.close()
        if last:
            yield last

    def _delay(self, error: ProviderError, failed: int) -> float:
        backoff = min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2**failed)
        jittered = backoff * (0.5 + self._rand() / 2)
        if error.retry_after is None:
            return jittered
        return min(MAX_RETRY_AFTER_SECONDS, error.retry_after + jittered / 10)


def _last_of(parser: StreamParser, error: ProviderError) -> list[Delta]:
    """The end of an answer whose connection broke after it was whole; else the break is raised."""
    try:
        return parser.close()
    except Dropped:
        raise error from None


async def _drain(pieces: AsyncGenerator[bytes, None]) -> None:
    with suppress(TimeoutError, ProviderError):
        async with asyncio.timeout(DRAIN_SECONDS):
            async for _ in pieces:
                pass


def _grown(call: ToolCall | None, delta: ToolCallDelta) -> ToolCall:
    arguments = delta.arguments if call is None else call.arguments + delta.arguments
    return ToolCall(call_id=delta.call_id, name=delta.name, arguments=arguments)
