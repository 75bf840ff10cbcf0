"""The shape of every JSON answer: success, failure, and a page of a list."""

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
    """`error` is a sentence to act on, `code` the HTTP status, `detail.kind` the error's class."""

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
    """The answer that carries `data`."""
    return Success(data=data, message=message)
