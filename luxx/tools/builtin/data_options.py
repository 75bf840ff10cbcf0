"""The options each operation of process_data takes, as typed Structs."""

from typing import Any, Literal

import msgspec

Test = Literal["eq", "ne", "gt", "ge", "lt", "le", "in", "contains", "matches", "exists"]
Measure = Literal["count", "sum", "mean", "median", "min", "max"]


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """No options."""


class FormatOptions(Options, frozen=True, kw_only=True):
    indent: int = 2
    sort_keys: bool = False


class PathOptions(Options, frozen=True, kw_only=True):
    path: str


class FilterOptions(Options, frozen=True, kw_only=True):
    path: str = ""
    test: Test = "eq"
    value: Any = None


class SortOptions(Options, frozen=True, kw_only=True):
    path: str = ""
    descending: bool = False


class KeysOptions(Options, frozen=True, kw_only=True):
    keys: list[str]


class RenameOptions(Options, frozen=True, kw_only=True):
    names: dict[str, str]


class GroupOptions(Options, frozen=True, kw_only=True):
    by: str


class AggregateOptions(Options, frozen=True, kw_only=True):
    measure: Measure
    path: str = ""
    by: str | None = None


class UniqueOptions(Options, frozen=True, kw_only=True):
    path: str = ""


class FlattenOptions(Options, frozen=True, kw_only=True):
    separator: str = "."


class SliceOptions(Options, frozen=True, kw_only=True):
    start: int = 0
    end: int | None = None


class CsvOptions(Options, frozen=True, kw_only=True):
    delimiter: str = ","
