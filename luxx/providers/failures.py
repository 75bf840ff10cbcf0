"""Reads a provider's error response, maps it to a ProviderError and redacts secrets.

Shared by the transport (HTTP errors) and the parsers (errors inside a stream). No network here.
"""

import json
import math
import re
from email.utils import parsedate_to_datetime
from typing import Any, cast
from urllib.parse import quote

import msgspec

from luxx.errors import (
    ContentRefused,
    ContextTooLong,
    KeyRefused,
    OutOfCredit,
    Overloaded,
    ProviderError,
    ProviderFailed,
    ProviderRefused,
    QuotaExceeded,
    RateLimited,
)
from luxx.infra.clock import utc_now
from luxx.infra.strict_json import check_size, without_lone_surrogates

SHORT_DELAY_SECONDS = 60.0
MAX_SPAN_SECONDS = 10 * 365 * 86_400.0
MAX_MESSAGE_CHARS = 500  # Of a provider's text, so that it cannot fill logs and events.
MAX_READ_CHARS = 10_000
"""Of an error's text and of its codes; the expressions that read them take time for every character."""

MAX_DEPTH = 20  # Of errors within errors.
MAX_DETAILS = 100


def _pattern(*alternatives: str) -> re.Pattern[str]:
    return re.compile("|".join(alternatives), re.IGNORECASE)


# What vendors and servers write, by its meaning; tests/providers/test_failures.py has the sources.
_CONTEXT_TOO_LONG = _pattern(
    r"(context|prompt|input)[ _-]?(length|window|size|limit|tokens?)[ _-]?(is )?(exceed|too|overflow|limit)",
    r"(exceed|larger|longer|greater|more|overflow|beyond|fit|maximum|enough).{0,60}"
    r"context[ _-]?(length|window|size|limit)",
    r"context[ _-]?(length|window|size|limit).{0,40}(exceed|overflow|of only|is only|reached|is full)",
    r"maximum (prompt|model|sequence|input) length",
    r"(prompt|input|request|conversation|messages?) (is|are|was|were|has become) too (long|large)\b",
    r"(prompt|input) (contains|has|token count|length|exceeds?).{0,80}(exceed|too (large|long)|max|limit)",
    r"too many (input |prompt )?tokens\b(?!.{0,30}(wait|per|retry))",
    r"reduce (the length of|your prompt|the (number of )?(input|prompt))",
    r"exceeds? (the )?max(imum)? (prompt|length|number of (input )?tokens|(input|context) (length|tokens))",
    r"range of input length|exceeded model token limit|exceed_context_size|n_keep.{0,40}n_ctx",
    r"input tokens exceed|max_prompt_tokens|tokens \+ `?max_new_tokens",
    r"request too large for|prompt too long|input (text )?too long|超过最大长度",
)
_ONLY_OUTPUT = _pattern(
    r"max_(completion_|output_|new_)?tokens[`'\"]? (is|must|should|value|cannot|exceeds?)"
    r"(?!.{0,200}(context|prompt|input))"
)
"""A limit of the answer that is too high: a shorter prompt does not help."""

_KEY_REFUSED = _pattern(
    r"(api|access|subscription|auth\w*)[ _-]?(key|token).{0,40}"
    r"(not (valid|found|provided)|invalid|incorrect|wrong|expired|revoked|disabled|leaked|missing|required)",
    r"(invalid|incorrect|wrong|expired|missing|no) (x-)?(api|access|subscription|auth\w*)[ _-]?(key|token)",
    r"invalid[ _-](authentication|credentials|authorization|bearer)|authentication[ _]?(error|fail)",
    r"api_key_invalid|unauthenticated|unauthorized|missing bearer|no auth credentials",
)
_OUT_OF_CREDIT = _pattern(
    r"(insufficient|not enough|exceeded|negative|no)[ _-](your[ _-]|account[ _-])?(current[ _-])?"
    r"(quota|balance|credits?|funds)",
    r"credit balance is too low|out of credits?|credits? (are |is |have been )?(exhausted|depleted|used up)",
    r"(used|spent) all (available|your) credits|requires more credits|(purchase|add) (more )?credits",
    r"exceeded your (current quota|monthly included credits)|check your plan and billing",
    r"(spending|spend|budget|credit|billing)( hard)? (limit|cap)( has been| is|) ?(reached|exceeded)?",
    r"billing_(error|hard_limit|not_active)|payment (required|method)|arrearage|in arrears|overdue",
    r"account is (suspended|not active|inactive|deactivated|in good standing)|欠费|余额不足",
)
_LONG_QUOTA = _pattern(
    r"per[ _-]?(day|week|month)|\b(daily|weekly|monthly)\b|\((rpd|tpd)\)|\b(rpd|tpd)\b|usage limit"
)
_OVERLOADED = _pattern(
    r"over[ _-]?load|at capacity|over capacity|no capacity|server (is )?busy|engine_overloaded|too busy"
)
_RATE_CODES = _pattern(r"rate.?limit|resource_exhausted|too_many_requests|throttl")
_BUSY = _pattern(r"overload|rate.?limit|too many requests|unavailable|timeout|server_error|internal")
_CONTENT_REFUSED = _pattern(
    r"content[ _]?(policy|filter|management policy)|data_?inspection_?failed|inappropriate content",
    r"unsafe or sensitive content|sensitive_words|flagged for|blocked by .{0,30}(safety|policy|guardrail)",
    r"usage policy|safety (system|policy)|responsibleai",
)

_KEY_LIKE = re.compile(
    r"(?<![A-Za-z0-9])(?:(?:sk|gsk|xai|pplx|rk|key)[-_]|AIza)[A-Za-z0-9_\-]{16,}"
    r"|(?<=Bearer )[^\s\"',]{8,}",
)
_PART = re.compile(r"[A-Za-z0-9]{8,}")

_DELAY = re.compile(r'"?(\d{1,9}(?:\.\d{1,9})?)s"?')
_PLACEHOLDER = re.compile(r"[A-Za-z]{1,12}([-_ ][A-Za-z]{1,12})?")
"""What people enter where a server needs no key: `ollama`, `none`, `not-needed`."""


class UpstreamError(msgspec.Struct, frozen=True, kw_only=True):
    """An error as the server reported it; `code` joins all its codes and types.

    `retry_after` is in seconds; None if the body has none. `is_long_quota`: the quota of a day is used up.
    """

    message: str = ""
    code: str = ""
    status: int | None = None
    retry_after: float | None = None
    is_long_quota: bool = False


def read_error(value: object, depth: int = MAX_DEPTH) -> UpstreamError:
    """Reads an error object of any vendor's shape; `value` is decoded JSON or text."""
    if isinstance(value, list):
        items = cast("list[object]", value)
        return read_error(items[0], depth - 1) if items and depth else UpstreamError()
    if not isinstance(value, dict):
        return UpstreamError(message="" if value is None else str(value)[:MAX_READ_CHARS])
    fields = cast("dict[str, Any]", value)
    inner = fields.get("error")
    if isinstance(inner, dict | list) and depth:
        inner_error = read_error(cast("object", inner), depth - 1)
        message = inner_error.message or _to_json(cast("object", inner))
        return msgspec.structs.replace(inner_error, message=message)
    if isinstance(inner, str):
        fields = {"message": inner, **{k: v for k, v in fields.items() if k != "error"}}
    text = fields.get("message") or fields.get("detail") or fields.get("error_msg") or ""
    codes = [fields[key] for key in ("code", "type", "status", "error_code") if fields.get(key)]
    text = text[:MAX_READ_CHARS] if isinstance(text, str) else _to_json(text)
    return UpstreamError(
        message=_with_cause(text, fields.get("metadata"), depth),
        code=" ".join(code if isinstance(code, str) else _to_json(code) for code in codes)[:MAX_READ_CHARS],
        status=_status_of(fields),
        retry_after=_retry_delay(fields.get("details")),
        is_long_quota=_is_daily(fields.get("details")),
    )


def _with_cause(message: str, metadata: object, depth: int) -> str:
    """The message of a gateway (OpenRouter) with what the provider behind it said, and its name."""
    if not isinstance(metadata, dict) or not depth:
        return message
    fields = cast("dict[str, Any]", metadata)
    raw, name = fields.get("raw"), fields.get("provider_name")
    cause = ""
    if isinstance(raw, str) and raw.strip():
        cause = read_error_body(raw.encode("utf-8", "replace"), depth - 1).message
        cause = cause or raw.strip()[:MAX_READ_CHARS]
    elif isinstance(raw, dict | list):
        cause = read_error(cast("object", raw), depth - 1).message or _to_json(cast("object", raw))
    if not cause or cause in message:
        return message
    source = f" ({name[:MAX_MESSAGE_CHARS]})" if isinstance(name, str) and name else ""
    return f"{message.rstrip('.')}: {cause}{source}" if message else f"{cause}{source}"


def read_error_body(body: bytes, depth: int = MAX_DEPTH) -> UpstreamError:
    """The error in the body of an HTTP error: JSON of any shape, else the text without markup."""
    text = without_lone_surrogates(body).decode("utf-8", "replace").strip()
    try:
        check_size(body)
        return read_error(json.loads(text), depth)
    except (ValueError, RecursionError):
        plain = re.sub(r"<[^<>]*>", " ", text[: 2 * MAX_READ_CHARS])
        return UpstreamError(message=" ".join(plain.split())[:MAX_READ_CHARS])


def as_provider_error(upstream_error: UpstreamError, *, retry_after: float | None = None) -> ProviderError:
    """The ProviderError for an upstream error; without a status, code and message decide.

    `retry_after`: the seconds of the HTTP header, which precede those of the body.
    """
    status, code = upstream_error.status, upstream_error.code
    reason = truncate(upstream_error.message) or truncate(code) or "no reason given"
    text = f"{code} {upstream_error.message}"
    if retry_after is None:
        retry_after = upstream_error.retry_after
    if _is_too_long(status, code, text):
        return ContextTooLong(f"The prompt is too long for the model: {reason}", status=status)
    if (account_error := _account_error(upstream_error, text, reason)) is not None:
        return account_error
    if status == 429 or (status is None and _RATE_CODES.search(code)):
        return _rate_error(upstream_error, text, reason, retry_after)
    context = "in its stream" if status is None else f"with status {status}"
    if status in (None, 400, 403, 422, 451) and _CONTENT_REFUSED.search(text):
        return ContentRefused(f"A filter of the provider refused this request: {reason}", status=status)
    if status is None:
        is_refused = "invalid_request" in code and not _BUSY.search(text)
    else:
        # Timeout, conflict, "too early" and "client closed request" pass, so a retry may help.
        is_refused = status < 500 and status not in (408, 409, 425, 499)
    if is_refused:
        return ProviderRefused(f"The provider refused the request {context}: {reason}", status=status)
    if status in (503, 529) or (status in (None, 500, 502) and _OVERLOADED.search(text)):
        return Overloaded(f"The provider is overloaded: {reason}", status=status, retry_after=retry_after)
    return ProviderFailed(
        f"The provider failed {context}: {reason}",
        status=status,
        retry_after=retry_after,
        retryable=status not in (501, 505),  # "Not implemented" and "HTTP version not supported" stay.
    )


def _is_too_long(status: int | None, code: str, text: str) -> bool:
    # 413 is always the size. Others report it as a wrong request, an internal error, or a limit of the rate
    # that one request exceeds.
    if status == 413:
        return True
    if status == 429 or (status is None and _RATE_CODES.search(code)):
        return bool(re.search(r"request too large for", text, re.I)) and not _LONG_QUOTA.search(text)
    if status not in (None, 400, 422, 500):
        return False
    return bool(_CONTEXT_TOO_LONG.search(text)) and not _ONLY_OUTPUT.search(text)


def _account_error(upstream_error: UpstreamError, text: str, reason: str) -> ProviderError | None:
    """The error of an account without credit, or of a refused key; None: it is neither."""
    status = upstream_error.status
    # Google mentions billing in every message on a rate; a delay shows that the rate is the reason.
    is_delayed = upstream_error.retry_after is not None or upstream_error.is_long_quota
    if status == 402 or (status in (None, 400, 403, 429) and not is_delayed and _OUT_OF_CREDIT.search(text)):
        return OutOfCredit(
            f"The provider's account has no credit left, or has reached its spending limit: {reason}",
            status=status,
        )
    if status == 401 or (status in (None, 400, 403) and _KEY_REFUSED.search(text)):
        context = "in its stream" if status is None else f"with status {status}"
        return KeyRefused(
            f"The provider refused the key {context}: {reason.rstrip('.')}. Check this provider's key.",
            status=status,
        )
    return None


def _rate_error(
    upstream_error: UpstreamError, text: str, reason: str, retry_after: float | None
) -> ProviderError:
    status = upstream_error.status
    if _OVERLOADED.search(text):
        return Overloaded(f"The provider is overloaded: {reason}", status=status, retry_after=retry_after)
    if upstream_error.is_long_quota or _LONG_QUOTA.search(text):
        return QuotaExceeded(
            f"The provider's quota for a longer time is used up: {reason}",
            status=status,
            retry_after=retry_after,
            retryable=retry_after is not None and retry_after <= SHORT_DELAY_SECONDS,
        )
    return RateLimited(
        f"The provider limits the rate of requests: {reason}", status=status, retry_after=retry_after
    )


def with_wait(error: ProviderError) -> ProviderError:
    """The error, whose sentence says when to try again if the provider says so."""
    if error.retry_after is not None and error.retry_after >= 1:
        text = error.message.rstrip(".")
        error.message = f"{text}. Try again in {_span(error.retry_after)}, or choose another model."
    return error


def _span(seconds: float) -> str:
    """A span of time in words, rounded up."""
    if seconds > MAX_SPAN_SECONDS:
        return "a very long time"
    for unit, size in (("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1)):
        if seconds >= size * (2 if unit != "second" else 1) or seconds == size:
            count = math.ceil(seconds / size)
            return f"{count} {unit}{'' if count == 1 else 's'}"
    return "1 second"


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
    """`text` without the key, in any encoding that a provider may echo, and without strings like keys.

    Ordinary words stay: a key that is one, as servers without keys get, is only hidden where it is quoted or
    named as a key.
    """
    if secret and _PLACEHOLDER.fullmatch(secret):
        blank = "[\"' :=]{0,20}"
        named = rf"(?i)((?:key|token|bearer)\b{blank}(?:is |provided|was )?{blank}){re.escape(secret)}\b"
        text = re.sub(named, r"\1[redacted]", text)
        text = re.sub(rf"([\"'`]){re.escape(secret)}(?=[\"'`])", r"\1[redacted]", text)
    elif secret:
        for spelling in {secret, quote(secret, safe=""), json.dumps(secret)[1:-1]}:
            text = text.replace(spelling, "[redacted]")
    return _KEY_LIKE.sub(_hide_random, text)


def _hide_random(match: re.Match[str]) -> str:
    return "[redacted]" if any(map(_is_random, _PART.findall(match[0]))) else match[0]


def _is_random(part: str) -> bool:
    """Whether it has digits and letters, or many digits: no word and no name of a setting is like this."""
    return not (part.isalpha() or part.isdigit()) or (part.isdigit() and len(part) >= 12)


def redact_error(error: ProviderError, secret: str) -> ProviderError:
    """The same error, its message redacted."""
    error.message = redact(error.message, secret)
    error.args = (error.message,)
    return error


def _retry_delay(details: object) -> float | None:
    """The delay in Google's `details`; None for a daily limit, where waiting does not help."""
    if _is_daily(details):
        return None
    delays = [_DELAY.fullmatch(_to_json(item.get("retryDelay"))) for item in _items(details)]
    return next((float(delay[1]) for delay in delays if delay), None)


def _is_daily(details: object) -> bool:
    return any("PerDay" in _to_json(item.get("violations")) for item in _items(details))


def _items(details: object) -> list[dict[str, Any]]:
    if not isinstance(details, list):
        return []
    items = cast("list[object]", details)[:MAX_DETAILS]
    return [cast("dict[str, Any]", item) for item in items if isinstance(item, dict)]


def _status_of(fields: dict[str, Any]) -> int | None:
    for key in ("status_code", "code", "status"):
        value = fields.get(key)
        if isinstance(value, str) and value.isdecimal() and len(value) < 5:
            value = int(value)
        if isinstance(value, int) and 400 <= value < 600:
            return value
    return None


def _to_json(value: object) -> str:
    try:
        return msgspec.json.encode(value).decode()[:MAX_READ_CHARS]
    except (UnicodeEncodeError, RecursionError):
        return ""
