"""The stream of one completion: reads the response body, parses it into deltas and retries failed attempts.

`body.py` reads the bytes, the adapter's parser interprets them, this module decides when to retry.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

import msgspec

from luxx.errors import ProviderError, StreamInterrupted, StreamStalled
from luxx.providers.adapter import StreamParser
from luxx.providers.body import ResponseBody
from luxx.providers.failures import redact_error
from luxx.wire.delta import Delta

MAX_RETRY_AFTER_SECONDS = 60.0
MAX_TOTAL_DELAY_SECONDS = 180.0
FIRST_DELAY_SECONDS = 0.5
MAX_DELAY_SECONDS = 16.0

SendRequest = Callable[[Callable[[], None]], Awaitable[tuple[StreamParser, ResponseBody]]]
"""Sends the request once and returns the parser and the response body. Its argument is called once the
request is completely written. Raises ProviderError."""


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """A failed attempt that is followed by another. `attempt` is the number of the next one, from 2.

    `may_be_billed`: the request was sent, and the connection failed before the provider returned anything.
    """

    attempt: int
    delay_ms: int
    reason: str
    may_be_billed: bool


class RetrySchedule(msgspec.Struct, frozen=True, kw_only=True):
    """How often and when a failed attempt is retried. `sleep` and `rand` (0 to 1) are injected."""

    retries: int
    sleep: Callable[[float], Awaitable[None]]
    rand: Callable[[], float]
    on_retry: Callable[[Retry], Awaitable[None]]
    before_retry: Callable[[], Awaitable[None]]
    """Called after the delay, before the request is sent again."""

    def delay(self, error: ProviderError, failed_attempts: int) -> float:
        """Seconds to wait before the next attempt: exponential backoff, or the provider's `retry_after`.

        `failed_attempts` counts the earlier failures, without `error`.
        """
        backoff = min(MAX_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2**failed_attempts)
        jittered = backoff * (0.5 + self.rand() / 2)
        if error.retry_after is None:
            return jittered
        return min(MAX_RETRY_AFTER_SECONDS, error.retry_after + jittered / 10)


@runtime_checkable
class EndAwareParser(Protocol):
    """A parser of a dialect that marks the end of the completion inside the body.

    After the mark, the body is read for at most `drain_seconds`: a body that is read to its end leaves the
    connection reusable, and deltas may still follow the mark.
    """

    @property
    def drain_seconds(self) -> float: ...

    @property
    def is_done(self) -> bool: ...


class CompletionStream:
    """Use: `async with client.answer(…) as stream: while deltas := await stream.read(): …`.

    Leaving the block closes the socket. `read` is one flat function because it runs for every token.
    """

    def __init__(self, send: SendRequest, secret: str, retry_schedule: RetrySchedule) -> None:
        self._send = send
        self._secret = secret
        self._retry_schedule = retry_schedule
        self._body: ResponseBody | None = None
        self._parser: StreamParser | None = None
        self._end_aware_parser: EndAwareParser | None = None
        self._is_drained = False
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
                end_aware_parser = self._end_aware_parser
                while (end_aware_parser is None or not end_aware_parser.is_done) and (
                    piece := await body.read()
                ):
                    deltas = parser.feed(piece)
                    if deltas:
                        self._has_emitted = True
                        return deltas
                return await self._finish(parser, body)
            except (StreamInterrupted, StreamStalled) as connection_error:
                try:
                    return self._close_after_disconnect(connection_error)
                except ProviderError as error:
                    await self._recover(redact_error(error, self._secret))
            except ProviderError as error:
                await self._recover(redact_error(error, self._secret))
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
        # By number: a late callback of a failed attempt must not mark the next attempt as sent.
        parser, body = await self._send(partial(self._sent_attempts.add, self._failed_attempts))
        self._parser, self._body = parser, body
        self._end_aware_parser = parser if isinstance(parser, EndAwareParser) else None
        return parser, body

    async def _finish(self, parser: StreamParser, body: ResponseBody) -> list[Delta]:
        end_aware_parser = self._end_aware_parser
        if end_aware_parser is not None and end_aware_parser.is_done and not self._is_drained:
            self._is_drained = True
            if rest := await _drain(body, parser, end_aware_parser.drain_seconds):
                return rest
        self._parser = None  # A parser is closed only once.
        deltas = parser.close()
        self._is_finished = True
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
        """Waits for the next attempt. Raises `error` if there is none."""
        retry_schedule, failed_attempts = self._retry_schedule, self._failed_attempts
        delay = retry_schedule.delay(error, failed_attempts)
        if (
            self._has_emitted
            or not error.retryable
            or failed_attempts >= retry_schedule.retries
            or self._waited_seconds + delay > MAX_TOTAL_DELAY_SECONDS
        ):
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
        await retry_schedule.on_retry(retry)
        await retry_schedule.sleep(delay)
        await retry_schedule.before_retry()

    async def _close(self) -> None:
        body, self._body, self._parser, self._is_drained = self._body, None, None, False
        if body is not None:
            await body.aclose()


async def _drain(body: ResponseBody, parser: StreamParser, seconds: float) -> list[Delta]:
    rest: list[Delta] = []
    with suppress(TimeoutError, ProviderError):
        async with asyncio.timeout(seconds):
            while piece := await body.read():
                rest += parser.feed(piece)
    return rest
