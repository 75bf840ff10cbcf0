"""The error tree. A class says what went wrong; only `api/errors.py` knows HTTP numbers.

LuxxError
├── ConfigError            the start is refused; names file, line and key
├── DatabaseFromFuture     the start is refused; the database belongs to a newer Luxx
├── UpgradeFailed          the start is refused; the database could not be brought to this version
├── InvalidInput           a request a person must correct
│   └── TooLarge           … because it is too big
├── NotSignedIn            no, expired or revoked token
├── NotAllowed             signed in, but may not
├── NotFound               missing, or someone else's: indistinguishable
├── Gone                   was here, and was deleted because it was old
├── Conflict               the state does not allow it now
├── TooMany                a limit; `retry_after` says when to try again
├── LimitReached           a run has used what it may; it ends with what it produced
├── Unavailable            a part of the server is not there; try later
├── ToolFailed             a tool says why it failed; becomes a result for the model
└── ProviderError          the model's server failed; `retryable` says if trying again may help
    ├── ProviderRefused    401/403/404/400: the request or the key is wrong
    ├── ContextTooLong     the prompt does not fit the model's window
    ├── RateLimited        429, with `retry_after` where given
    ├── ProviderFailed     5xx, overloaded, an error object in the stream
    ├── Unreachable        no connection, TLS or DNS failure
    ├── Stalled            the stream never started or went silent past the idle timeout
    ├── Dropped            the stream ended in the middle
    └── Garbled            the stream is not what the dialect promises
"""

from typing import Any


class LuxxError(Exception):
    """Base of all errors a person can act on; `kind` is the API's `detail.kind`."""

    kind = "error"

    def __init__(
        self, message: str, *, kind: str | None = None, detail: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind or type(self).kind
        self.detail: dict[str, Any] = detail or {}


class ConfigError(LuxxError):
    kind = "config_invalid"


class DatabaseTooNew(LuxxError):
    kind = "database_from_future"


class UpgradeFailed(LuxxError):
    kind = "upgrade_failed"


class InvalidInput(LuxxError):
    kind = "invalid_input"


class TooLarge(InvalidInput):
    kind = "too_large"


class NotSignedIn(LuxxError):
    kind = "not_signed_in"


class NotAllowed(LuxxError):
    kind = "not_allowed"


class NotFound(LuxxError):
    kind = "not_found"


class Gone(LuxxError):
    kind = "gone"


class Conflict(LuxxError):
    kind = "conflict"


class TooMany(LuxxError):
    """`retry_after` in seconds."""

    kind = "too_many"

    def __init__(self, message: str, *, retry_after: int, kind: str | None = None) -> None:
        super().__init__(message, kind=kind)
        self.retry_after = retry_after


class LimitReached(LuxxError):
    """`kind` is the name of the limit's key; `stop_reason` the run's."""

    kind = "limit_reached"

    def __init__(self, message: str, *, kind: str, stop_reason: str) -> None:
        super().__init__(message, kind=kind)
        self.stop_reason = stop_reason


class Unavailable(LuxxError):
    """`retry_after` in seconds, where it is known."""

    kind = "unavailable"

    def __init__(
        self,
        message: str,
        *,
        kind: str | None = None,
        detail: dict[str, Any] | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message, kind=kind, detail=detail)
        self.retry_after = retry_after


class ToolFailed(LuxxError):
    kind = "tool_failed"


class ProviderError(LuxxError):
    """`status` is the upstream's HTTP status where it had one; `retry_after` in seconds."""

    kind = "provider_error"
    retryable = False

    def __init__(
        self,
        message: str,
        *,
        kind: str | None = None,
        status: int | None = None,
        retry_after: float | None = None,
        retryable: bool | None = None,
        detail: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message, kind=kind, detail=detail)
        self.status = status
        self.retry_after = retry_after
        self.retryable = type(self).retryable if retryable is None else retryable


class ProviderRefused(ProviderError):
    kind = "provider_refused"


class ContextTooLong(ProviderRefused):
    kind = "context_too_long"


class RateLimited(ProviderError):
    kind = "rate_limited"
    retryable = True


class ProviderFailed(ProviderError):
    kind = "provider_failed"
    retryable = True


class Unreachable(ProviderError):
    kind = "provider_unreachable"
    retryable = True


class StreamStalled(ProviderError):
    kind = "provider_stalled"
    retryable = True


class StreamInterrupted(ProviderError):
    kind = "provider_dropped"
    retryable = True


class MalformedStream(ProviderError):
    kind = "provider_garbled"
    retryable = True
