"""What an expression may cost: a budget of work that is paid before the work is done.

No clock and no thread: the budget holds wherever it runs. Every single operation that costs more than
a fixed amount pays by the size of what it touches, so that all of it stays at about a second.
"""

from typing import Any, cast

from luxx.errors import ToolFailed

MAX_EXPRESSION_LENGTH = 4000
MAX_DEPTH = 60
MAX_WORK = 400_000
# The dearest function takes about 60 µs for arguments of fixed size.
CALL_WORK = 10
MAX_ITEMS = 50_000
MAX_SIZE = 200_000
# About the 4,300 digits up to which Python turns an integer into text.
MAX_INT_BITS = 14_000
# Numbers can be chosen so that all fall on the same place of a set: building one then takes n² steps.
MAX_HASHED = 2000


class Budget:
    """Work left for one expression. Everything raises ToolFailed when there is too much of it."""

    def __init__(self) -> None:
        self._left = MAX_WORK

    def spend(self, units: int) -> None:
        self._left -= units
        if self._left < 0:
            raise ToolFailed("the expression takes too much work; compute less at once")

    def pay_for(self, value: Any) -> None:
        """Pay for an operation that goes through the whole of `value`, and see that it is not too big."""
        if value is None or isinstance(value, bool | float):
            return
        if isinstance(value, int):
            self.spend(_int_size(value) // 50)
        elif isinstance(value, str):
            check_size(len(value))
            self.spend(len(value) // 50)
        else:
            self._pay_for_items(value)

    def pay_for_lookup(self, container: Any) -> None:
        """Pay for finding one key of a set or dict."""
        self.spend(1 + len(container) // 8)

    def _pay_for_items(self, value: Any) -> None:
        items = size = 0
        waiting: list[Any] = [value]
        while waiting:
            item = waiting.pop()
            items += 1
            self.spend(1)
            if isinstance(item, str):
                size += len(item)
            elif isinstance(item, int):
                size += _int_size(item)
            elif isinstance(item, list | tuple | set | dict):
                inner = cast("list[Any]", item)
                check_count(items + len(inner))
                self._pay_for_hashing(inner)
                waiting.extend(cast("dict[Any, Any]", item).values() if isinstance(item, dict) else ())
                waiting.extend(inner)
            check_count(items)
            check_size(size)
        self.spend(size // 50)

    def _pay_for_hashing(self, value: Any) -> None:
        if isinstance(value, set | dict):
            self.spend(len(cast("set[Any]", value)) ** 2 // 100)


def check_count(count: int) -> None:
    if count > MAX_ITEMS:
        raise ToolFailed(f"a value would have more than {MAX_ITEMS:,} items")


def check_size(size: int) -> None:
    if size > MAX_SIZE:
        raise ToolFailed(f"a value would take more than {MAX_SIZE:,} characters")


def check_hashed(count: int) -> None:
    """For a set or dict about to be built."""
    if count > MAX_HASHED:
        raise ToolFailed(f"a set or dict can have {MAX_HASHED:,} entries here")


def check_bits(bits: int) -> None:
    if bits > MAX_INT_BITS:
        raise ToolFailed(f"a number would have more than {MAX_INT_BITS:,} bits (about 4,200 digits)")


def _int_size(value: int) -> int:
    check_bits(value.bit_length())
    return value.bit_length() // 8
