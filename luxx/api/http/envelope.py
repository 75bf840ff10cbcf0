"""The envelope of every JSON response: success, failure, and a page of a list."""

from collections.abc import Iterable, Mapping
from typing import Any, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

T = TypeVar("T")


class Success(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """`{"success": true, "data": …, "message": "…"}`."""

    data: T
    message: str = ""
    success: Literal[True] = True


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """`error`: what is wrong and what to do. `code`: the HTTP status. `detail.kind`: the kind of error."""

    error: str
    code: int
    detail: dict[str, Any] | UnsetType = UNSET
    success: Literal[False] = False


class Page(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One page of a list; `page` counts from 1, `total` counts all items."""

    items: list[T]
    total: int
    page: int
    page_size: int


def success(data: T, message: str = "") -> Success[T]:
    return Success(data=data, message=message)


def page_of(found: tuple[list[T], int], page: int, page_size: int) -> Success[Page[T]]:
    """The envelope for one page, from its items and the number of all items."""
    items, total = found
    return Success(data=Page(items=items, total=total, page=page, page_size=page_size))


OPENAI_PREFIX = "/v1"
"""The paths of the OpenAI-compatible API, whose errors have the form of OpenAI's."""


class OpenAIError(msgspec.Struct, frozen=True, kw_only=True):
    """An error of the OpenAI-compatible API. `param` is the wrong field, if one is; `code` the kind."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class OpenAIFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a refused request of the OpenAI-compatible API."""

    error: OpenAIError


_CODES = {
    "no_such_route": "unknown_url",
    "model_unlisted": "model_not_found",
    "too_many": "rate_limit_exceeded",
    "rate_limited": "rate_limit_exceeded",
    "context_too_long": "context_length_exceeded",
}
"""OpenAI's codes for kinds of errors; the others are the kinds themselves."""


def openai_failure(status: int, message: str, kind: str, fields: Iterable[str] = ()) -> OpenAIFailure:
    """An error in OpenAI's form. `fields` are the JSON paths of the wrong fields."""
    field = next(iter(fields), "$").removeprefix("$").removeprefix(".")
    match status:
        case 403:
            type_ = "permission_error"
        case 429:
            type_ = "rate_limit_error"
        case _:
            type_ = "server_error" if status >= 500 else "invalid_request_error"
    message = message.replace("$.", "").replace(": $: ", ": ")
    code = "invalid_api_key" if status == 401 else _CODES.get(kind, kind)
    return OpenAIFailure(error=OpenAIError(message=message, type=type_, param=field or None, code=code))


def is_openai_path(path: str) -> bool:
    """Whether the path is of the OpenAI-compatible API."""
    return path == OPENAI_PREFIX or path.startswith(f"{OPENAI_PREFIX}/")


def failure_at(
    path: str, status: int, error: str, kind: str, detail: Mapping[str, Any] | None = None
) -> Failure | OpenAIFailure:
    """The body of a failure of a request to this path."""
    if is_openai_path(path):
        return openai_failure(status, error, kind, (detail or {}).get("fields", ()))
    return Failure(error=error, code=status, detail={"kind": kind, **(detail or {})})
