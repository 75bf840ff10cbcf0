"""The types of the columns of sheets, and which formulas they may have. Pure."""

import re
from enum import StrEnum

import msgspec

MAX_FORMULA = 1_000
_FUNCTION = re.compile(r"([A-Za-z_][A-Za-z0-9_.]*)\s*\(")
_STRING = re.compile(r'"[^"]*"')
_REACHES_OUT = re.compile(r"[|\[\]{}\\@#\x00-\x1f]|://")
"""Arrays, other workbooks, commands of DDE and addresses."""

FUNCTIONS = frozenset({
    "ABS", "AND", "AVERAGE", "AVERAGEA", "AVERAGEIF", "AVERAGEIFS", "CEILING", "CHOOSE", "CLEAN", "COLUMN",
    "COLUMNS", "CONCAT", "CONCATENATE", "CORREL", "COUNT", "COUNTA", "COUNTBLANK", "COUNTIF", "COUNTIFS",
    "DATE", "DATEDIF", "DATEVALUE", "DAY", "DAYS", "EDATE", "EOMONTH", "EXACT", "EXP", "FALSE", "FIND",
    "FLOOR", "FORECAST", "FV", "GEOMEAN", "GROWTH", "HLOOKUP", "HOUR", "IF", "IFERROR", "IFNA", "IFS",
    "INDEX", "INT", "IPMT", "IRR", "ISBLANK", "ISERROR", "ISEVEN", "ISNA", "ISNUMBER", "ISODD", "ISTEXT",
    "LARGE", "LEFT", "LEN", "LINEST", "LN", "LOG", "LOG10", "LOOKUP", "LOWER", "MATCH", "MAX", "MAXA",
    "MAXIFS", "MEDIAN", "MID", "MIN", "MINA", "MINIFS", "MINUTE", "MOD", "MODE", "MONTH", "MROUND",
    "NETWORKDAYS", "NOT", "NOW", "NPER", "NPV", "OR", "PERCENTILE", "PI", "PMT", "POWER", "PPMT", "PRODUCT",
    "PROPER", "PV", "QUARTILE", "QUOTIENT", "RANK", "RATE", "REPLACE", "REPT", "RIGHT", "ROUND",
    "ROUNDDOWN", "ROUNDUP", "ROW", "ROWS", "SEARCH", "SECOND", "SIGN", "SLN", "SLOPE", "SMALL", "SQRT",
    "STDEV", "STDEV.P", "STDEV.S", "STDEVP", "SUBSTITUTE", "SUBTOTAL", "SUM", "SUMIF", "SUMIFS",
    "SUMPRODUCT", "SUMSQ", "SWITCH", "TEXT", "TEXTJOIN", "TIME", "TIMEVALUE", "TODAY", "TREND", "TRIM",
    "TRUE", "TRUNC", "UPPER", "VALUE", "VAR", "VAR.P", "VAR.S", "VARP", "VLOOKUP", "WEEKDAY", "WEEKNUM",
    "WORKDAY", "XLOOKUP", "XOR", "YEAR", "YEARFRAC",
})  # fmt: skip
"""The functions of formulas: those that compute from cells, and reach nothing outside of the file."""


class ColumnType(StrEnum):
    """The type of all cells of a column; any cell may also be empty (null)."""

    TEXT = "text"
    NUMBER = "number"
    DATE = "date"
    BOOL = "bool"
    FORMULA = "formula"


class RenderedColumn(msgspec.Struct, frozen=True):
    name: str
    type: ColumnType = ColumnType.TEXT


class RenderedSheet(msgspec.Struct, frozen=True):
    """A sheet as renderers read it: what is wrong in it is a problem and no error."""

    name: str
    columns: tuple[RenderedColumn, ...]
    rows: tuple[tuple[str | int | float | bool | None, ...], ...] = ()


def read_sheet(page: str) -> RenderedSheet:
    """The sheet of a page. Raises msgspec.DecodeError."""
    return msgspec.json.decode(page, type=RenderedSheet)


def formula_problem(formula: str) -> str | None:
    """Why a formula is refused; None if it computes from cells of the file only."""
    if not formula.startswith("=") or len(formula) > MAX_FORMULA:
        return f"a formula begins with = and has at most {MAX_FORMULA} characters"
    bare = _STRING.sub("", formula)
    if _REACHES_OUT.search(bare):
        return "a formula may not name other files or programs"
    for name in _FUNCTION.findall(bare):
        if name.upper() not in FUNCTIONS:
            return f"the function {name.upper()[:40]} is not allowed in a formula"
    return None
