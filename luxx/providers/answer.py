"""One answer of a model while it is read: bytes become deltas, and what failed is tried again in time.

Bytes are the body's, their meaning the parser's, when it is asked again is decided here.
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
"""Sends the request once, and calls what it is given as soon as all of it is written; gives what reads the
answer, and its body. Raises ProviderError."""


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """A failed try that is followed by another; `attempt` is the number of the one to come, from 2.

    `may_be_billed`: it was sent, and broke before the provider had said anything.
    """

    attempt: int
    delay_ms: int
    reason: str
    may_be_billed: bool


class RetrySchedule(msgspec.Struct, frozen=True, kw_only=True):
    """How often and when a failed try is followed by another; `sleep` and `rand` (0 to 1) are injected."""

    retries: int
    sleep: Callable[[float], Awaitable[None]]
    rand: Callable[[], float]
    on_retry: Callable[[Retry], Awaitable[None]]
    before_retry: Callable[[], Awaitable[None]]
    """After the wait, before the request is sent again."""

    def delay(self, error: ProviderError, failed_attempts: int) -> float:
        """Seconds to wait after `failed` tries before this one: doubling, or what the provider asks for."""
        backoff = min(MAX_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2**failed_attempts)
        jittered = backoff * (0.5 + self.rand() / 2)
        if error.retry_after is None:
            return jittered
        return min(MAX_RETRY_AFTER_SECONDS, error.retry_after + jittered / 10)


@runtime_checkable
class EndAwareParser(Protocol):
    """A parser whose dialect marks the end inside the body.

    The body's own end is awaited for `rest_seconds` more: to keep the connection, and to read what follows.
    """

    @property
    def drain_seconds(self) -> float: ...

    @property
    def is_done(self) -> bool: ...


class CompletionStream:
    """Use: `async with client.answer(…) as answer: while deltas := await answer.read(): …`.

    Leaving it closes the socket. Flat on purpose: it is passed through for every token.
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
        """The deltas of the next network read that brought any; none once the answer has ended.

        Retries what may help as long as nothing was given out; then raises ProviderError.
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
        """Whether the newest try's request has been written, so that a provider may work on it and bill it.

        False while a connection is made, and from a try's failure until the next one is sent.
        """
        return self._failed_attempts in self._sent_attempts

    def may_be_billed(self, error: ProviderError) -> bool:
        """Whether the provider may have worked for the try that failed: it did not refuse it."""
        return self.was_sent and isinstance(error, StreamInterrupted | StreamStalled)

    async def _open(self) -> tuple[StreamParser, ResponseBody]:
        # By number: what is written late for a try that has failed says nothing about the next.
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
        self._parser = None  # It is closed once.
        deltas = parser.close()
        self._is_finished = True
        return deltas

    def _close_after_disconnect(self, connection_error: ProviderError) -> list[Delta]:
        """The end of an answer whose connection broke after it was whole; else the break is raised."""
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
        """Waits for the next try, or raises where there is none."""
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
        attempt = Retry(
            attempt=failed_attempts + 2,
            delay_ms=round(delay * 1000),
            reason=error.message,
            may_be_billed=may_be_billed,
        )
        await retry_schedule.on_retry(attempt)
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
