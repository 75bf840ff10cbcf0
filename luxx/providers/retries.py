"""When a failed request to a provider is sent again, and what the log says of it. The client sends it."""

from collections.abc import Awaitable, Callable

import msgspec

from luxx.errors import ProviderError

FIRST_DELAY_SECONDS = 0.5
MAX_DELAY_SECONDS = 16.0


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
    max_wait: float
    """Of the waits that the provider states, in seconds; after a longer one the failure is final."""
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
        return error.retry_after + jittered / 10
