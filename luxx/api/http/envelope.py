"""The envelope of every JSON response: success, failure, and a page of a list."""

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
