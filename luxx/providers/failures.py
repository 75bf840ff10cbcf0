"""Reads a provider's error response, maps it to a ProviderError and redacts secrets.

Shared by the transport (HTTP errors) and the parsers (errors inside a stream). No network here.
"""

import json
import re
from email.utils import parsedate_to_datetime
from typing import Any, cast
from urllib.parse import quote

import msgspec

from luxx.errors import ContextTooLong, ProviderError, ProviderFailed, ProviderRefused, RateLimited
from luxx.infra.clock import utc_now

MAX_MESSAGE_CHARS = 500  # Of a provider's text, so that it cannot fill logs and events.

_CONTEXT_TOO_LONG = re.compile(
    r"context[ _-]?(length|window|size|limit)|maximum context|prompt is too long|input is too long"
    r"|too many (input )?tokens|reduce the length|exceeds? the (model's )?(maximum|limit).{0,40}token",
    re.IGNORECASE,
)
_OUT_OF_CREDIT = re.compile(
    r"insufficient_(quota|balance|credit)|billing|credits? (exhausted|depleted)", re.I
)
_BUSY = re.compile(r"overload|rate.?limit|too many requests|unavailable|timeout|server_error|internal", re.I)
_SECRETS = re.compile(r"\b((sk|gsk|xai|pplx|rk|key)[-_]|AIza)[A-Za-z0-9_\-]{16,}|(?<=Bearer )[^\s\"',]{8,}")


class UpstreamError(msgspec.Struct, frozen=True, kw_only=True):
    """An error as the server reported it; `code` joins all its codes and types.

    `retry_after` is in seconds; None if the body has none.
    """

    message: str = ""
    code: str = ""
    status: int | None = None
    retry_after: float | None = None


def read_error(value: object) -> UpstreamError:
    """Reads an error object of any vendor's shape; `value` is decoded JSON or text."""
    if isinstance(value, list):
        items = cast("list[object]", value)
        return read_error(items[0]) if items else UpstreamError()
    if not isinstance(value, dict):
        return UpstreamError(message="" if value is None else str(value))
    fields = cast("dict[str, Any]", value)
    inner = fields.get("error")
    if isinstance(inner, dict | list):
        inner_error = read_error(cast("object", inner))
        message = inner_error.message or _to_json(cast("object", inner))
        return msgspec.structs.replace(inner_error, message=message)
    if isinstance(inner, str):
        fields = {"message": inner, **{k: v for k, v in fields.items() if k != "error"}}
    text = fields.get("message") or fields.get("detail") or fields.get("error_msg") or ""
    codes = [str(fields[key]) for key in ("code", "type", "status", "error_code") if fields.get(key)]
    return UpstreamError(
        message=text if isinstance(text, str) else _to_json(text),
        code=" ".join(codes),
        status=_status_of(fields),
        retry_after=_retry_delay(fields.get("details")),
    )


def read_error_body(body: bytes) -> UpstreamError:
    """The error in the body of an HTTP error: JSON of any shape, else the text without markup."""
    text = body.decode("utf-8", "replace").strip()
    try:
        return read_error(json.loads(text))
    except ValueError:
        return UpstreamError(message=" ".join(re.sub(r"<[^>]*>", " ", text).split()))


def as_provider_error(upstream_error: UpstreamError, *, retry_after: float | None = None) -> ProviderError:
    """The ProviderError for an upstream error; without a status, code and message decide.

    `retry_after`: the seconds of the HTTP header, which precede those of the body.
    """
    status = upstream_error.status
    context = "in its stream" if status is None else f"with status {status}"
    reason = truncate(upstream_error.message) or truncate(upstream_error.code) or "no reason given"
    error_text = f"{upstream_error.code} {upstream_error.message}"
    # 413 is always the size; with the other statuses, servers also report other errors.
    if status in (None, 400, 413, 422, 500) and (status == 413 or _CONTEXT_TOO_LONG.search(error_text)):
        return ContextTooLong(f"The prompt is too long for the model: {reason}", status=status)
    if status == 429 or (
        status is None and re.search(r"rate.?limit|resource_exhausted", upstream_error.code, re.I)
    ):
        return RateLimited(
            f"The provider limits the rate of requests: {reason}",
            status=status,
            retry_after=upstream_error.retry_after if retry_after is None else retry_after,
            # Google mentions billing in every such message; a delay shows that the rate is the reason.
            retryable=upstream_error.retry_after is not None or not _OUT_OF_CREDIT.search(error_text),
        )
    if status is None:
        is_refused = "invalid_request" in upstream_error.code and not _BUSY.search(error_text)
    else:
        # Timeout, conflict and "too early" pass, so a retry may help.
        is_refused = status < 500 and status not in (408, 409, 425)
    if is_refused:
        return ProviderRefused(f"The provider refused the request {context}: {reason}", status=status)
    return ProviderFailed(
        f"The provider failed {context}: {reason}",
        status=status,
        retry_after=retry_after,
        retryable=status not in (501, 505),  # "Not implemented" and "HTTP version not supported" stay.
    )


def retry_after_seconds(value: str | None) -> float | None:
    """The seconds of a Retry-After header (seconds or an HTTP date); None if absent or invalid."""
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(value) - utc_now()).total_seconds())
    except (ValueError, TypeError):
        return None


def truncate(text: str) -> str:
    """At most MAX_MESSAGE_CHARS of the text."""
    return text if len(text) <= MAX_MESSAGE_CHARS else text[: MAX_MESSAGE_CHARS - 1] + "…"


def redact(text: str, secret: str) -> str:
    """`text` without the key, in any encoding that a provider may echo, and without strings like keys."""
    if secret:
        for spelling in {secret, quote(secret, safe=""), json.dumps(secret)[1:-1]}:
            text = text.replace(spelling, "[redacted]")
    return _SECRETS.sub("[redacted]", text)


def redact_error(error: ProviderError, secret: str) -> ProviderError:
    """The same error, its message redacted."""
    error.message = redact(error.message, secret)
    error.args = (error.message,)
    return error


def _retry_delay(details: object) -> float | None:
    """The delay in Google's `details`; None for a daily limit, where waiting does not help."""
    if not isinstance(details, list):
        return None
    items = [cast("dict[str, Any]", item) for item in cast("list[object]", details) if isinstance(item, dict)]
    if any("PerDay" in str(item.get("violations")) for item in items):
        return None
    delays = [re.fullmatch(r"(\d{1,9}(?:\.\d+)?)s", str(item.get("retryDelay"))) for item in items]
    return next((float(delay[1]) for delay in delays if delay), None)


def _status_of(fields: dict[str, Any]) -> int | None:
    for key in ("status_code", "code", "status"):
        value = fields.get(key)
        if isinstance(value, str) and value.isdigit():
            value = int(value)
        if isinstance(value, int) and 400 <= value < 600:
            return value
    return None


def _to_json(value: object) -> str:
    return msgspec.json.encode(value).decode()
