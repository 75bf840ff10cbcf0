"""The error tree. Only `api/http/errors.py` maps the classes to HTTP status codes.

LuxxError
├── ConfigError            the server does not start; names file, line and key
├── DatabaseTooNew         the server does not start; a newer Luxx wrote the database
├── DatabaseTooOld         the server does not start; a development version wrote the database
├── UpgradeFailed          the server does not start; the database migration failed
├── InvalidInput           the client must correct the request
│   ├── TooLarge           … because it is too large
│   └── UnlistedModel      … because the provider does not list the model
├── NotSignedIn            the token is missing, expired or revoked
├── NotAllowed             the user is signed in and lacks the permission
├── NotFound               the object is missing or belongs to someone else; the error does not say which
├── Gone                   the object was deleted because of its age
├── Conflict               the current state does not allow the request
├── TooMany                a limit is reached; `retry_after` gives the time to wait
├── LimitReached           a run used up a limit; it ends with its output so far
├── Unavailable            a part of the server is unavailable; try later
├── ToolFailed             a tool failed; the message becomes a result for the model
└── ProviderError          the provider failed; `retryable` says whether a retry may help
    ├── ProviderRefused    400/403/404: the request is wrong
    │   ├── ContextTooLong the prompt does not fit the context window
    │   ├── KeyRefused     the key is wrong, expired or not allowed to do this
    │   ├── OutOfCredit    the account has no credit, or its owner's spending limit is reached
    │   └── ContentRefused a filter refused the prompt
    ├── RateLimited        429, with `retry_after` if the provider sends it
    │   └── QuotaExceeded  the limit of a day or a longer time; a retry does not help
    ├── ProviderFailed     5xx, or an error object in the stream
    │   └── Overloaded     the server has too much to do
    ├── Unreachable        no connection, TLS or DNS failure
    ├── StreamStalled      no data arrived within the idle timeout
    ├── StreamInterrupted  the stream ended before the answer was complete
    └── MalformedStream    the stream violates the provider's dialect
"""

from collections.abc import Mapping
from typing import Any, Self


class LuxxError(Exception):
    """The base of all errors that a person can act on. `kind` is the API's `detail.kind`.

    `field` is the JSON path of a wrong field (`$.name`) or the name of a wrong parameter. `fields` are
    several of them with a sentence each, which `infra/field_errors.py` collects.
    """

    kind = "error"

    def __init__(
        self,
        message: str,
        *,
        kind: str | None = None,
        field: str | None = None,
        fields: Mapping[str, str] | None = None,
        detail: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind or type(self).kind
        self.detail: dict[str, Any] = detail or {}
        if fields is not None:
            self.detail["fields"] = dict(fields)
        elif field is not None:
            self.about(field)

    @property
    def fields(self) -> dict[str, str]:
        """A sentence for each wrong field, by its path."""
        return self.detail.get("fields", {})

    def about(self, field: str) -> Self:
        """The error itself, with the field that it is about, unless it already names one."""
        self.detail.setdefault("fields", {field: self.message})
        return self


class ConfigError(LuxxError):
    kind = "config_invalid"


class DatabaseTooNew(LuxxError):
    kind = "database_from_future"


class DatabaseTooOld(LuxxError):
    kind = "database_too_old"


class UpgradeFailed(LuxxError):
    kind = "upgrade_failed"


class InvalidInput(LuxxError):
    kind = "invalid_input"


class TooLarge(InvalidInput):
    kind = "too_large"


class AmbiguousName(InvalidInput):
    """Several things that the caller may use have the name; the message names them."""

    kind = "name_ambiguous"


class UnlistedModel(InvalidInput):
    """`provider_id` has a list of models that does not contain the one that was asked for."""

    kind = "model_unlisted"

    def __init__(self, message: str, provider_id: int, field: str = "$.model") -> None:
        super().__init__(message, field=field)
        self.provider_id = provider_id


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
    """`kind` is the config key of the limit; the run ends with `stop_reason`."""

    kind = "limit_reached"

    def __init__(self, message: str, *, kind: str, stop_reason: str) -> None:
        super().__init__(message, kind=kind)
        self.stop_reason = stop_reason


class Unavailable(LuxxError):
    """`retry_after` in seconds, if known."""

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
    """`status` is the provider's HTTP status, if there is one; `retry_after` in seconds."""

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


class KeyRefused(ProviderRefused):
    kind = "provider_key_refused"


class OutOfCredit(ProviderRefused):
    kind = "provider_out_of_credit"


class ContentRefused(ProviderRefused):
    kind = "provider_content_refused"


class RateLimited(ProviderError):
    kind = "rate_limited"
    retryable = True


class QuotaExceeded(RateLimited):
    kind = "provider_quota"
    retryable = False


class ProviderFailed(ProviderError):
    kind = "provider_failed"
    retryable = True


class Overloaded(ProviderFailed):
    kind = "provider_overloaded"


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
