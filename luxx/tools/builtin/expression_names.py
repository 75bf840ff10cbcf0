"""The names in expressions (constants, operators, functions, methods) and the budget of work.

Operations that could do much work for little input check their limits before they start.
"""

import ast
import math
import operator
import re
import statistics
from collections.abc import Callable, Iterable
from typing import Any, cast

from luxx.errors import ToolFailed

MAX_EXPRESSION_LENGTH = 4000
MAX_DEPTH = 60
MAX_WORK = 400_000
# The slowest function takes about 60 µs for arguments of fixed size.
CALL_WORK = 10
MAX_ITEMS = 50_000
MAX_SIZE = 200_000
# Just below the 4,300 digits up to which Python converts an integer to text.
MAX_INT_BITS = 14_000
# Numbers with colliding hashes make building a set take n² steps.
MAX_HASHED = 2000


class Budget:
    """The remaining work of one expression. All methods raise ToolFailed when it is used up."""

    def __init__(self) -> None:
        self._remaining = MAX_WORK

    def spend(self, units: int) -> None:
        self._remaining -= units
        if self._remaining < 0:
            raise ToolFailed("the expression takes too much work; compute less at once")

    def pay_for(self, value: Any) -> None:
        """Pay for an operation that processes the whole `value`, and check its size."""
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
        pending: list[Any] = [value]
        while pending:
            item = pending.pop()
            items += 1
            self.spend(1)
            if isinstance(item, str):
                size += len(item)
            elif isinstance(item, int):
                size += _int_size(item)
            elif isinstance(item, list | tuple | set | dict):
                inner = cast("list[Any]", item)
                check_count(items + len(inner))
                if isinstance(item, set | dict):
                    self.spend(len(inner) ** 2 // 100)
                pending.extend(cast("dict[Any, Any]", item).values() if isinstance(item, dict) else ())
                pending.extend(inner)
            check_count(items)
            check_size(size)
        self.spend(size // 50)


def check_count(count: int) -> None:
    if count > MAX_ITEMS:
        raise ToolFailed(f"a value would have more than {MAX_ITEMS:,} items")


def check_size(size: int) -> None:
    if size > MAX_SIZE:
        raise ToolFailed(f"a value would take more than {MAX_SIZE:,} characters")


def check_hashed(count: int) -> None:
    """Check the size of a set or dict before it is built."""
    if count > MAX_HASHED:
        raise ToolFailed(f"a set or dict can have {MAX_HASHED:,} entries here")


def check_bits(bits: int) -> None:
    if bits > MAX_INT_BITS:
        raise ToolFailed(f"a number would have more than {MAX_INT_BITS:,} bits (about 4,200 digits)")


def _int_size(value: int) -> int:
    check_bits(value.bit_length())
    return value.bit_length() // 8


_FORMAT = re.compile(
    r"(?:[^{}]?[<>=^])?[-+ ]?#?0?(?P<width>\d{0,3})[,_]?(?:\.(?P<precision>\d{1,2}))?[bcdeEfFgGosxX%]?"
)
_MAX_ROUND_DIGITS = 400
_MAX_FACTORIAL = 1000
# Bits of the exponent times squared bits of the modulus; takes a tenth of a millisecond.
_MAX_MODULAR_WORK = 10**7
_OPERATOR: Any = operator


def multiply(left: Any, right: Any) -> Any:
    """`*`; checks the size of the result first."""
    for sequence, times in ((left, right), (right, left)):
        if isinstance(sequence, str) and isinstance(times, int):
            check_size(len(sequence) * times)
        elif isinstance(sequence, list | tuple) and isinstance(times, int):
            check_count(len(cast("list[Any]", sequence)) * times)
    return left * right


def power(base: Any, exponent: Any, modulus: Any = None) -> Any:
    """`**` and `pow`; check the size of the result first."""
    if modulus is not None:
        return _modular_power(base, exponent, modulus)
    if isinstance(base, int) and isinstance(exponent, int) and exponent > 0 and abs(base) > 1:
        check_bits(math.ceil(math.log2(abs(base)) * min(exponent, MAX_INT_BITS + 1)))
    return base**exponent


def _modular_power(base: int, exponent: int, modulus: int) -> int:
    if not all(type(value) is int for value in (base, exponent, modulus)):
        raise ToolFailed("pow with three arguments takes integers")
    if exponent.bit_length() * modulus.bit_length() ** 2 > _MAX_MODULAR_WORK:
        raise ToolFailed("pow with such big numbers takes too much work")
    return pow(base, exponent, modulus)


def shift_left(value: Any, by: Any) -> Any:
    """`<<`; checks the size of the result first."""
    if isinstance(value, int) and isinstance(by, int) and value:
        check_bits(value.bit_length() + by)
    return value << by if value or by < 0 else 0


def remainder(left: Any, right: Any) -> Any:
    """`%` of numbers; `%` of a text is refused, because it formats with any width."""
    if isinstance(left, str):
        raise ToolFailed("% does not format text here; use an f-string")
    return left % right


def apply_format(value: Any, spec: str = "") -> str:
    """`format` of a number or text, with a width up to 999 and a precision up to 99."""
    if spec and not isinstance(value, int | float | str):
        raise ToolFailed("only numbers and text can have a format")
    if not _FORMAT.fullmatch(spec):
        raise ToolFailed(f"the format {spec[:50]!r} is not available here")
    return format(value, spec)


def _round(value: Any, digits: int | None = None) -> Any:
    if digits is not None and abs(digits) > _MAX_ROUND_DIGITS:
        raise ToolFailed(f"round takes at most {_MAX_ROUND_DIGITS} digits")
    return round(value, digits)


def _range(*bounds: int) -> list[int]:
    numbers = range(*bounds)
    check_count(len(numbers))
    return list(numbers)


def _sum(values: Iterable[Any], start: Any = 0) -> Any:
    items = [start, *values]
    if not all(isinstance(item, int | float) for item in items):
        raise ToolFailed("sum adds numbers only")
    return sum(items[1:], start)


def _prod(values: Iterable[Any]) -> Any:
    items = list(values)
    if not all(isinstance(item, int | float) for item in items):
        raise ToolFailed("prod multiplies numbers only")
    check_bits(sum(item.bit_length() for item in items if isinstance(item, int)))
    return math.prod(items)


def _factorial(value: int) -> int:
    if value > _MAX_FACTORIAL:
        raise ToolFailed(f"factorial goes up to {_MAX_FACTORIAL}")
    return math.factorial(value)


def _choose(function: Callable[[int, int], int]) -> Callable[[int, int], int]:
    def choose(n: int, k: int) -> int:
        if n > _MAX_FACTORIAL:
            raise ToolFailed(f"{function.__name__} goes up to {_MAX_FACTORIAL}")
        return function(n, k)

    return choose


def _set(values: Any = ()) -> set[Any]:
    check_hashed(len(values))
    return set(values)


def _dict(values: Any = (), **named: Any) -> dict[Any, Any]:
    check_hashed(len(values) + len(named))
    return dict(values, **named)


def _sorted(values: Any, *, reverse: bool = False) -> list[Any]:
    return sorted(values, reverse=reverse)


def _enumerate(values: Any, start: int = 0) -> list[Any]:
    return list(enumerate(cast(Iterable[Any], values), start))


def _reversed(values: Any) -> list[Any]:
    return list(reversed(values))


def _pairs(values: dict[Any, Any]) -> list[Any]:
    return list(values.items())


def _values(values: dict[Any, Any]) -> list[Any]:
    return list(values.values())


def _replace(text: str, old: str, new: str, count: int = -1) -> str:
    occurrences = text.count(old)
    times = occurrences if count < 0 else min(occurrences, count)
    check_size(len(text) + times * max(len(new) - len(old), 0))
    return text.replace(old, new, count)


def _join(separator: str, parts: Any) -> str:
    check_size(len(separator) * len(parts))
    return separator.join(parts)


BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: multiply,
    ast.Div: _OPERATOR.truediv,
    ast.FloorDiv: _OPERATOR.floordiv,
    ast.Mod: remainder,
    ast.Pow: power,
    ast.LShift: shift_left,
    ast.RShift: _OPERATOR.rshift,
    ast.BitAnd: _OPERATOR.and_,
    ast.BitOr: _OPERATOR.or_,
    ast.BitXor: _OPERATOR.xor,
}
UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
    ast.Invert: operator.invert,
}
COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda item, container: item in container,
    ast.NotIn: lambda item, container: item not in container,
}
CONSTANTS: dict[str, Any] = {"pi": math.pi, "e": math.e, "tau": math.tau, "inf": math.inf, "nan": math.nan}
# fmt: off
_PLAIN_MATH = (
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "copysign", "cos",
    "cosh", "degrees", "dist", "erf", "erfc", "exp", "exp2", "expm1", "fabs", "floor", "fmod", "frexp",
    "fsum", "gamma", "gcd", "hypot", "isclose", "isfinite", "isinf", "isnan", "isqrt", "lcm", "lgamma",
    "log", "log10", "log1p", "log2", "modf", "radians", "remainder", "sin", "sinh", "sqrt", "tan",
    "tanh", "trunc",
)
# fmt: on
MATH: dict[str, Any] = {
    **CONSTANTS,
    **{name: getattr(math, name) for name in _PLAIN_MATH},
    "comb": _choose(math.comb),
    "factorial": _factorial,
    "perm": _choose(math.perm),
    "pow": math.pow,
    "prod": _prod,
}
STATISTICS: dict[str, Any] = {
    "mean": statistics.fmean,
    "median": statistics.median,
    "pstdev": statistics.pstdev,
    "stdev": statistics.stdev,
}
MODULES = {"math": MATH, "statistics": STATISTICS}
_PLAIN_FUNCTIONS: tuple[Callable[..., Any], ...] = (
    abs, all, any, bin, bool, chr, divmod, float, hex, int, len, list, max, min, oct, ord, repr, str, tuple,
)  # fmt: skip
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: value for name, value in (MATH | STATISTICS).items() if callable(value)},
    **{function.__name__: function for function in _PLAIN_FUNCTIONS},
    "dict": _dict,
    "enumerate": _enumerate,
    "format": apply_format,
    "pow": power,
    "range": _range,
    "reversed": _reversed,
    "round": _round,
    "set": _set,
    "sorted": _sorted,
    "sum": _sum,
    "zip": lambda *values: list(zip(*values, strict=False)),
}
# fmt: off
_TEXT_METHODS = (
    "capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha", "isdecimal",
    "isdigit", "islower", "isnumeric", "isspace", "istitle", "isupper", "lower", "lstrip", "partition",
    "removeprefix", "removesuffix", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "split",
    "splitlines", "startswith", "strip", "swapcase", "title", "upper",
)
# fmt: on
METHODS: dict[type, dict[str, Callable[..., Any]]] = {
    str: {name: getattr(str, name) for name in _TEXT_METHODS} | {"join": _join, "replace": _replace},
    list: {"count": list[Any].count, "index": list[Any].index},
    tuple: {"count": tuple[Any].count, "index": tuple[Any].index},
    dict: {"get": dict[Any, Any].get, "items": _pairs, "keys": list, "values": _values},
    float: {"is_integer": float.is_integer},
    int: {"bit_length": int.bit_length},
}
