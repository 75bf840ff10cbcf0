"""Values of formulas, which workbooks keep beside them for programs that calculate nothing. Pure.

Understands numbers, texts, cells, ranges, operators and the most frequent functions; the value of any other
formula is unknown, and Excel calculates it when it opens the file.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import cast

Value = float | str | bool | None
Cells = Mapping[tuple[str, int, int], object]
"""Values and formulas by sheet (lower case), row and column, both from 0."""

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+)|\"(?P<text>(?:[^\"]|\"\")*)\"|"
    r"(?P<cell>(?:(?P<sheet>[^\W\d]\w*)!)?\$?(?P<column>[A-Za-z]{1,3})\$?(?P<row>\d{1,7})(?![\w(]))|"
    r"(?P<name>[A-Za-z_][\w.]*)|(?P<sign><=|>=|<>|[-+*/^&=<>(),:%]))"
)
_POWERS = {"=": 1, "<>": 1, "<": 1, ">": 1, "<=": 1, ">=": 1, "&": 2, "+": 3, "-": 3, "*": 4, "/": 4, "^": 6}
_MOST_STEPS = 200_000
_DEEPEST = 40


class UnknownValue(Exception):
    """The formula has no value that is known here."""


class Calculator:
    """Values of the formulas of one workbook. Does at most _MOST_STEPS in all."""

    def __init__(self, cells: Cells) -> None:
        self._cells = cells
        self._values: dict[tuple[str, int, int], Value] = {}
        self._open: set[tuple[str, int, int]] = set()
        self._steps = 0

    def value(self, sheet: str, row: int, column: int) -> Value:
        """The value of a cell. Raises UnknownValue."""
        place = (sheet, row, column)
        if place in self._values:
            return self._values[place]
        self._steps += 1
        if place in self._open or len(self._open) > _DEEPEST or self._steps > _MOST_STEPS:
            raise UnknownValue
        given = self._cells.get(place)
        if isinstance(given, str) and given.startswith("="):
            self._open.add(place)
            try:
                value = _Formula(given[1:], sheet, self).value()
            finally:
                self._open.discard(place)
        else:
            value = float(given) if isinstance(given, int | float) and not isinstance(given, bool) else given
        self._values[place] = cast("Value", value)
        return self._values[place]

    def range(self, sheet: str, first: tuple[int, int], last: tuple[int, int]) -> list[Value]:
        """The values of a range, row by row."""
        rows, columns = sorted((first[0], last[0])), sorted((first[1], last[1]))
        count = (rows[1] - rows[0] + 1) * (columns[1] - columns[0] + 1)
        if self._steps + count > _MOST_STEPS:
            raise UnknownValue
        return [
            self.value(sheet, row, column)
            for row in range(rows[0], rows[1] + 1)
            for column in range(columns[0], columns[1] + 1)
        ]


class _Formula:
    """Reads and calculates at once, from left to right."""

    def __init__(self, text: str, sheet: str, calculator: Calculator) -> None:
        self._sheet = sheet
        self._calculator = calculator
        self._tokens: list[re.Match[str]] = []
        position = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if match is None:
                raise UnknownValue
            self._tokens.append(match)
            position = match.end()
        self._at = 0

    def value(self) -> Value:
        value = self._expression(0)
        if self._at != len(self._tokens):
            raise UnknownValue
        return _single(value)

    def _peek(self) -> str | None:
        return self._tokens[self._at]["sign"] if self._at < len(self._tokens) else None

    def _expect(self, sign: str) -> None:
        if self._peek() != sign:
            raise UnknownValue
        self._at += 1

    def _expression(self, power: int) -> Value | list[Value]:
        left = self._operand()
        while (sign := self._peek()) is not None:
            if sign == "%":
                self._at += 1
                left = _number(left) / 100
                continue
            own = _POWERS.get(sign, 0)
            if own <= power:
                break
            self._at += 1
            left = _combine(sign, _single(left), _single(self._expression(own)))
        return left

    def _operand(self) -> Value | list[Value]:
        if self._at >= len(self._tokens):
            raise UnknownValue
        token = self._tokens[self._at]
        self._at += 1
        if token["number"] is not None:
            return float(token["number"])
        if token["text"] is not None:
            return token["text"].replace('""', '"')
        if token["cell"] is not None:
            return self._cells(token)
        if token["name"] is not None:
            return self._call(token["name"].upper())
        match token["sign"]:
            case "-":
                return -_number(self._expression(5))
            case "+":
                return _number(self._expression(5))
            case "(":
                value = self._expression(0)
                self._expect(")")
                return value
            case _:
                raise UnknownValue

    def _cells(self, token: re.Match[str]) -> Value | list[Value]:
        sheet = token["sheet"].lower() if token["sheet"] else self._sheet
        first = _place(token)
        if self._peek() != ":":
            return self._calculator.value(sheet, *first)
        self._at += 1
        other = self._tokens[self._at] if self._at < len(self._tokens) else None
        if other is None or other["cell"] is None:
            raise UnknownValue
        self._at += 1
        return self._calculator.range(sheet, first, _place(other))

    def _call(self, name: str) -> Value | list[Value]:
        if self._peek() != "(":
            if name in ("TRUE", "FALSE"):
                return name == "TRUE"
            raise UnknownValue
        self._at += 1
        arguments: list[Value | list[Value]] = []
        while self._peek() != ")":
            arguments.append(self._expression(0))
            if self._peek() == ",":
                self._at += 1
            elif self._peek() != ")":
                raise UnknownValue
        self._at += 1
        function = _FUNCTIONS.get(name)
        if function is None:
            raise UnknownValue
        return function(arguments)


def _place(token: re.Match[str]) -> tuple[int, int]:
    column = 0
    for letter in token["column"].upper():
        column = column * 26 + ord(letter) - 64
    return int(token["row"]) - 1, column - 1


def _single(value: Value | list[Value]) -> Value:
    if isinstance(value, list):
        raise UnknownValue
    return value


def _number(value: Value | list[Value]) -> float:
    match _single(value):
        case None:
            return 0.0
        case str():
            raise UnknownValue
        case number:
            return float(number)


def _text(value: Value | list[Value]) -> str:
    match _single(value):
        case None:
            return ""
        case bool() as flag:
            return "TRUE" if flag else "FALSE"
        case float() as number:
            return str(int(number)) if number.is_integer() else f"{number:.15g}"
        case text:
            return str(text)


def _combine(sign: str, left: Value, right: Value) -> Value:
    if sign == "&":
        return _text(left) + _text(right)
    if sign in ("=", "<>", "<", ">", "<=", ">="):
        return _compare(sign, left, right)
    a, b = _number(left), _number(right)
    try:
        match sign:
            case "+":
                value = a + b
            case "-":
                value = a - b
            case "*":
                value = a * b
            case "/":
                value = a / b
            case _:
                value = math.pow(a, b)
    except (ArithmeticError, ValueError) as error:
        raise UnknownValue from error
    if not math.isfinite(value):
        raise UnknownValue
    return value


def _compare(sign: str, left: Value, right: Value) -> bool:
    if isinstance(left, str) or isinstance(right, str):
        a, b = _text(left).lower(), _text(right).lower()
        less, equal = a < b, a == b
    else:
        less, equal = _number(left) < _number(right), _number(left) == _number(right)
    return {"=": equal, "<>": not equal, "<": less, ">": not less and not equal, "<=": less or equal,
            ">=": not less}[sign]  # fmt: skip


Arguments = list["Value | list[Value]"]


def _numbers(arguments: Arguments) -> list[float]:
    """Numbers of arguments; in ranges, texts and empty cells do not count."""
    numbers: list[float] = []
    for argument in arguments:
        if isinstance(argument, list):
            numbers += [v for v in argument if isinstance(v, float)]
        else:
            numbers.append(_number(argument))
    return numbers


def _average(arguments: Arguments) -> Value:
    numbers = _numbers(arguments)
    if not numbers:
        raise UnknownValue
    return math.fsum(numbers) / len(numbers)


def _rounded(arguments: Arguments) -> Value:
    number, digits = _number(arguments[0]), int(_number(arguments[1])) if len(arguments) > 1 else 0
    factor = 10.0 ** max(-15, min(15, digits))
    return math.copysign(math.floor(abs(number) * factor + 0.5) / factor, number)


def _if(arguments: Arguments) -> Value:
    if len(arguments) not in (2, 3):
        raise UnknownValue
    chosen = arguments[1] if _number(arguments[0]) else arguments[2] if len(arguments) > 2 else False
    return _single(chosen)


def _flat(arguments: Arguments) -> list[Value]:
    return [
        value for argument in arguments for value in (argument if isinstance(argument, list) else [argument])
    ]


_FUNCTIONS: dict[str, Callable[[Arguments], Value]] = {
    "SUM": lambda given: math.fsum(_numbers(given)),
    "AVERAGE": _average,
    "MIN": lambda given: min(_numbers(given), default=0.0),
    "MAX": lambda given: max(_numbers(given), default=0.0),
    "COUNT": lambda given: float(len(_numbers(given))),
    "COUNTA": lambda given: float(sum(value not in (None, "") for value in _flat(given))),
    "PRODUCT": lambda given: math.prod(_numbers(given)),
    "ROUND": _rounded,
    "ABS": lambda given: abs(_number(given[0])),
    "INT": lambda given: float(math.floor(_number(given[0]))),
    "IF": _if,
    "AND": lambda given: all(_number(value) for value in _flat(given)),
    "OR": lambda given: any(_number(value) for value in _flat(given)),
    "NOT": lambda given: not _number(given[0]),
    "CONCAT": lambda given: "".join(_text(value) for value in _flat(given)),
    "CONCATENATE": lambda given: "".join(_text(value) for value in _flat(given)),
    "LEN": lambda given: float(len(_text(given[0]))),
    "UPPER": lambda given: _text(given[0]).upper(),
    "LOWER": lambda given: _text(given[0]).lower(),
    "TRIM": lambda given: " ".join(_text(given[0]).split()),
}
