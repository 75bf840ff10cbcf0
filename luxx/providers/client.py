"""The model client: sends a completion request and returns its deltas, streamed or collected.

`transport.py` moves the bytes, the adapters translate the dialects, `answer.py` retries failed attempts.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Protocol, runtime_checkable

import msgspec

from luxx.errors import MalformedStream, ProviderError
from luxx.infra.config.schema import ProvidersConfig
from luxx.providers.adapter import Adapter, CompletionRequest, StreamParser, Target, UpstreamRequest
from luxx.providers.answer import CompletionStream, Retry, RetrySchedule
from luxx.providers.body import ResponseBody
from luxx.providers.failures import redact_error
from luxx.providers.registry import adapter_for
from luxx.providers.transport import Transport
from luxx.wire.delta import (
    Delta,
    FinishDelta,
    FinishReason,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    Usage,
    UsageDelta,
)
from luxx.wire.tool import ToolCall

MAX_MODEL_PAGES = 20
MAX_RETRIES = 10
MAX_COMPLETION_CHARACTERS = 100_000
"""The bound of a collected completion; a delta without text counts as one character."""


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A complete model response, for callers that do not stream."""

    text: str
    thinking: str
    tool_calls: list[ToolCall]
    usage: Usage
    finish: FinishReason


@runtime_checkable
class PagedModelList(Protocol):
    """An adapter whose servers return their model list in pages."""

    def next_models_request(self, target: Target, body: bytes) -> UpstreamRequest | None:
        """The GET request for the page that follows `body`; None after the last page."""
        ...


class ModelClient:
    """Shared by all runs. `sleep` and `rand` (0 to 1) are injected; they set the delay between attempts."""

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

    def answer(
        self,
        request: CompletionRequest,
        target: Target,
        *,
        on_retry: Callable[[Retry], Awaitable[None]],
        before_retry: Callable[[], Awaitable[None]] | None = None,
    ) -> CompletionStream:
        """Returns the stream of a completion. The first `read()` sends the request.

        `on_retry` is called after a failed attempt, before the delay; `before_retry` after the delay.
        """
        return self._open_stream(
            request, target, self._retry_schedule(self._retries, on_retry, before_retry or _do_nothing)
        )

    async def complete(self, request: CompletionRequest, target: Target) -> Completion:
        """Collects the completion of one attempt, without retries. Provider checks use it.

        Raises ProviderError, also if the response ends early.
        """
        remaining = MAX_COMPLETION_CHARACTERS
        text: list[str] = []
        thinking: list[str] = []
        calls: dict[int, ToolCall] = {}
        usage = Usage()
        finish = FinishReason.UNKNOWN
        async with self._open_stream(
            request, target, self._retry_schedule(0, _reject_retry, _do_nothing)
        ) as stream:
            while deltas := await stream.read():
                for delta in deltas:
                    remaining -= _size(delta)
                    if remaining < 0:
                        raise MalformedStream(
                            f"The response is longer than {MAX_COMPLETION_CHARACTERS:,} characters."
                        )
                    match delta:
                        case TextDelta():
                            text.append(delta.text)
                        case ThinkingDelta():
                            thinking.append(delta.text)
                        case ToolCallDelta():
                            calls[delta.slot] = _extend_call(calls.get(delta.slot), delta)
                        case UsageDelta():
                            usage = delta.usage
                        case FinishDelta():
                            finish = delta.reason
                        case _:
                            pass
        return Completion(
            text="".join(text),
            thinking="".join(thinking),
            tool_calls=[calls[slot] for slot in sorted(calls)],
            usage=usage,
            finish=finish,
        )

    def _open_stream(
        self, request: CompletionRequest, target: Target, retry_schedule: RetrySchedule
    ) -> CompletionStream:
        async def send(on_sent: Callable[[], None]) -> tuple[StreamParser, ResponseBody]:
            adapter = self._adapters(target.provider_type)
            upstream_request = adapter.build_request(request, target, stream=True)
            body = await self._transport.open(upstream_request, secret=target.api_key, on_sent=on_sent)
            return adapter.parser(), body

        return CompletionStream(send, target.api_key, retry_schedule)

    def _retry_schedule(
        self,
        retries: int,
        on_retry: Callable[[Retry], Awaitable[None]],
        before_retry: Callable[[], Awaitable[None]],
    ) -> RetrySchedule:
        return RetrySchedule(
            retries=retries, sleep=self._sleep, rand=self._rand, on_retry=on_retry, before_retry=before_retry
        )

    async def list_models(self, target: Target) -> list[str]:
        """The names of the models that the provider offers, from at most 20 pages. Raises ProviderError."""
        adapter = self._adapters(target.provider_type)
        names: list[str] = []
        page_request: UpstreamRequest | None = adapter.models_request(target)
        try:
            for _ in range(MAX_MODEL_PAGES):
                body = await self._transport.fetch(page_request, secret=target.api_key)
                names += adapter.parse_models(body)
                page_request = (
                    adapter.next_models_request(target, body) if isinstance(adapter, PagedModelList) else None
                )
                if page_request is None:
                    break
            return names
        except ProviderError as error:
            redact_error(error, target.api_key)
            raise


async def _reject_retry(_retry: Retry) -> None:
    raise AssertionError("a retry was reported although retries are disabled")


async def _do_nothing() -> None:
    pass


def _size(delta: Delta) -> int:
    match delta:
        case TextDelta() | ThinkingDelta():
            return len(delta.text)
        case ToolCallDelta():
            return len(delta.call_id) + len(delta.name) + len(delta.arguments) + 1
        case _:
            return 1


def _extend_call(call: ToolCall | None, delta: ToolCallDelta) -> ToolCall:
    arguments = delta.arguments if call is None else call.arguments + delta.arguments
    return ToolCall(call_id=delta.call_id, name=delta.name, arguments=arguments)
