"""The model client: sends a completion request and returns its deltas, streamed or collected.

`transport.py` moves the bytes, the adapters translate the dialects, a CompletionStream retries.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self

import msgspec

from luxx.errors import MalformedStream, ProviderError, StreamInterrupted, StreamStalled
from luxx.infra.config.schema import ProvidersConfig
from luxx.infra.strict_json import SMALL_BYTES
from luxx.providers.adapter import AZURE, CompletionRequest, StreamParser, Target, run_sized, vendor_of
from luxx.providers.failures import redact_error
from luxx.providers.inline_thinking import InlineThinkingParser
from luxx.providers.model_lists import MAX_LISTED, read_page
from luxx.providers.parsing import OutputBounds
from luxx.providers.registry import (
    MAX_REFUSED_TOOLS,
    Adaptations,
    ProviderType,
    adapter_for,
    completion_adapter,
)
from luxx.providers.retries import Retry, RetrySchedule
from luxx.providers.transport import ResponseBody, Transport
from luxx.wire.tool import ToolCall
from luxx.wire.turn import (
    Delta,
    FinishDelta,
    FinishReason,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    Usage,
    UsageDelta,
)

MAX_RETRIES = 10
MAX_WAIT_SECONDS = 60.0
"""The longest wait that a provider states and a call waits."""

MAX_TOTAL_DELAY_SECONDS = 180.0
MAX_MODEL_PAGES = 20
MAX_COMPLETION_CHARACTERS = 100_000
"""The bound of a collected completion; a delta without text counts as one character."""


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A complete model response, for callers that do not stream."""

    text: str
    thinking: str
    tool_calls: list[ToolCall]
    usage: Usage
    finish: FinishReason


class ModelClient:
    """Shared by all runs. `sleep` and `rand` (0 to 1) are injected; they set the delay between attempts.

    It remembers what servers demanded of requests when they refused one.
    """

    def __init__(
        self,
        transport: Transport,
        config: ProvidersConfig,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rand: Callable[[], float] = random.random,
    ) -> None:
        self._transport = transport
        self._retries = min(config.retries, MAX_RETRIES)
        self._sleep = sleep
        self._rand = rand
        self._adaptations = Adaptations()

    def stream_completion(
        self,
        request: CompletionRequest,
        target: Target,
        *,
        on_retry: Callable[[Retry], Awaitable[None]],
        before_retry: Callable[[], Awaitable[None]] | None = None,
        max_wait: float = MAX_WAIT_SECONDS,
    ) -> "CompletionStream":
        """The stream of a completion. Its first `read()` sends the request.

        `on_retry` is called after a failed attempt, before the delay; `before_retry` after the delay.
        `max_wait`: the longest wait, in seconds, that the provider may state; a longer one is the end of the
        stream.
        """
        retry_schedule = RetrySchedule(
            retries=self._retries,
            max_wait=min(max_wait, MAX_WAIT_SECONDS),
            sleep=self._sleep,
            rand=self._rand,
            on_retry=on_retry,
            before_retry=before_retry or _do_nothing,
        )
        return CompletionStream(self._transport, request, target, retry_schedule, self._adaptations)

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
        async with CompletionStream(self._transport, request, target, None, self._adaptations) as stream:
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

    async def list_models(self, target: Target) -> list[str]:
        """The names of the models that the provider offers, from at most 20 pages. Raises ProviderError."""
        return (await self.list_models_with_facts(target))[0]

    async def list_models_with_facts(self, target: Target) -> tuple[list[str], dict[str, dict[str, Any]]]:
        """The names, and what the list says of each model, see `model_lists.py`. Raises ProviderError."""
        adapter = adapter_for(target.provider_type)
        names: list[str] = []
        facts: dict[str, dict[str, Any]] = {}
        page_request = adapter.models_request(target)
        try:
            for _ in range(MAX_MODEL_PAGES):
                body = await self._transport.fetch(page_request, secret=target.api_key)
                page = await run_sized(len(body), read_page, adapter, target, body, most=SMALL_BYTES)
                names += page.names
                facts |= page.facts
                if page.next_request is None or len(names) >= MAX_LISTED:
                    break
                page_request = page.next_request
        except ProviderError as error:
            raise redact_error(error, target.api_key) from None
        # Azure lists models, while requests name the deployments of a resource.
        return ([] if vendor_of(target) == AZURE else names[:MAX_LISTED]), facts


class CompletionStream:
    """Use: `async with client.stream_completion(…) as stream: while deltas := await stream.read(): …`.

    Leaving the block closes the socket. Without a retry schedule, the first failure is final. `read` is one
    flat function because it runs for every token.
    """

    def __init__(
        self,
        transport: Transport,
        request: CompletionRequest,
        target: Target,
        retry_schedule: RetrySchedule | None,
        adaptations: Adaptations,
    ) -> None:
        self._transport = transport
        self._adaptations = adaptations
        self._request = adaptations.adapt(request, target)
        self._target = target
        self.refused_tools: dict[str, str] = {}
        """What the server said, by the name of each tool that it refused in this call."""
        self._retry_schedule = retry_schedule
        self._bounds = OutputBounds(
            request.max_tokens, ends_repetition=target.provider_type == ProviderType.LOCAL
        )
        self._body: ResponseBody | None = None
        self._parser: StreamParser | None = None
        self._is_drained = False
        self._silent_bytes = 0
        """Received since the last delta."""
        self._has_emitted = False
        self._is_finished = False
        self._sent_attempts: set[int] = set()
        self._failed_attempts = 0
        self._waited_seconds = 0.0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def read(self) -> list[Delta]:
        """The deltas of the next network read that completes any; an empty list at the end.

        Retries a failed attempt as long as no delta was returned. Raises ProviderError.
        """
        while not self._is_finished:
            try:
                parser, body = self._parser, self._body
                if parser is None or body is None:
                    parser, body = await self._open()
                while not parser.is_done and (piece := await body.read()):
                    self._silent_bytes += len(piece)
                    if self._silent_bytes <= SMALL_BYTES:
                        deltas = parser.feed(piece)
                    else:  # It may complete an event of megabytes.
                        deltas = await asyncio.to_thread(parser.feed, piece)
                    if deltas:
                        self._silent_bytes = 0
                        self._has_emitted = True
                        cut = self._bounds.cut(deltas)
                        return deltas if cut is None else await self._end_with(cut)
                return await self._finish(parser, body)
            except (StreamInterrupted, StreamStalled) as connection_error:
                try:
                    return self._close_after_disconnect(connection_error)
                except ProviderError as error:
                    await self._recover(error)
            except ProviderError as error:
                await self._recover(error)
        return []

    @property
    def was_sent(self) -> bool:
        """Whether the request of the newest attempt is written, so that the provider may process and bill it.

        False while connecting, and from the failure of an attempt until the next one is sent.
        """
        return self._failed_attempts in self._sent_attempts

    def may_be_billed(self, error: ProviderError) -> bool:
        """Whether the provider may bill the failed attempt: it got the request and did not refuse it."""
        return self.was_sent and isinstance(error, StreamInterrupted | StreamStalled)

    async def _open(self) -> tuple[StreamParser, ResponseBody]:
        adapter = completion_adapter(self._request, self._target)
        build = partial(adapter.build_request, self._request, self._target, stream=True)
        upstream_request = await run_sized(len(self._request.messages), build)
        # By number: a late callback of a failed attempt must not mark the next attempt as sent.
        on_sent = partial(self._sent_attempts.add, self._failed_attempts)
        body = await self._transport.open(upstream_request, secret=self._target.api_key, on_sent=on_sent)
        parser = adapter.parser_for(self._request, self._target)
        if self._request.prompted_thinking and not adapter.splits_thinking:
            parser = InlineThinkingParser(parser)
        self._parser, self._body = parser, body
        return parser, body

    async def _finish(self, parser: StreamParser, body: ResponseBody) -> list[Delta]:
        if parser.is_done and not self._is_drained:
            self._is_drained = True
            if rest := await _drain(body, parser):
                return rest
        self._parser = None  # A parser is closed only once.
        deltas = await run_sized(self._silent_bytes, parser.close, most=SMALL_BYTES)
        self._is_finished = True
        return deltas

    async def _end_with(self, deltas: list[Delta]) -> list[Delta]:
        """Closes the socket of a completion that the provider does not end."""
        self._is_finished = True
        await self._close()
        return deltas

    def _close_after_disconnect(self, connection_error: ProviderError) -> list[Delta]:
        """The last deltas, if the completion was complete when the connection failed.

        Raises `connection_error` otherwise.
        """
        parser, self._parser = self._parser, None
        if parser is None:
            raise connection_error
        try:
            deltas = parser.close()
        except StreamInterrupted:
            raise connection_error from None
        self._is_finished = True
        return deltas

    async def _recover(self, error: ProviderError) -> None:
        """Waits for the next attempt. Raises `error`, redacted, if there is none."""
        redact_error(error, self._target.api_key)
        may_adapt = not self._has_emitted and len(self.refused_tools) < MAX_REFUSED_TOOLS
        if may_adapt and (adapted := self._adaptations.adapt_after(error, self._request, self._target)):
            left = {tool.name for tool in adapted.tools}
            refused = [tool.name for tool in self._request.tools if tool.name not in left]
            self.refused_tools |= dict.fromkeys(refused, error.message)
            self._request = adapted
            await self._close()
            return
        schedule, failed_attempts = self._retry_schedule, self._failed_attempts
        if (
            schedule is None
            or self._has_emitted
            or not error.retryable
            or failed_attempts >= schedule.retries
        ):
            self._is_finished = True
            raise error
        if error.retry_after is not None and error.retry_after > schedule.max_wait:
            self._is_finished = True
            raise error
        delay = schedule.delay(error, failed_attempts)
        if self._waited_seconds + delay > MAX_TOTAL_DELAY_SECONDS:
            self._is_finished = True
            raise error
        may_be_billed = self.may_be_billed(error)
        await self._close()
        self._failed_attempts = failed_attempts + 1
        self._waited_seconds += delay
        retry = Retry(
            attempt=failed_attempts + 2,
            delay_ms=round(delay * 1000),
            reason=error.message,
            may_be_billed=may_be_billed,
        )
        await schedule.on_retry(retry)
        await schedule.sleep(delay)
        await schedule.before_retry()

    async def _close(self) -> None:
        body, self._body, self._parser, self._is_drained = self._body, None, None, False
        self._silent_bytes = 0
        if body is not None:
            await body.aclose()


async def _drain(body: ResponseBody, parser: StreamParser) -> list[Delta]:
    """Reads on after the end mark: a body that is read to its end leaves the connection reusable."""
    rest: list[Delta] = []
    with suppress(TimeoutError, ProviderError):
        async with asyncio.timeout(parser.drain_seconds):
            while piece := await body.read():
                rest += parser.feed(piece)
    return rest


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
