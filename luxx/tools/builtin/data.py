"""The tool process_data, with its operations on JSON and CSV data."""

import csv
import io
import operator
import statistics
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import msgspec

from luxx.errors import ToolFailed
from luxx.tools.builtin.data_options import (
    AggregateOptions,
    CsvOptions,
    FilterOptions,
    FlattenOptions,
    FormatOptions,
    GroupOptions,
    KeysOptions,
    Options,
    PathOptions,
    RenameOptions,
    SliceOptions,
    SortOptions,
    UniqueOptions,
)
from luxx.tools.factory import tool
from luxx.tools.output import indented_size
from luxx.tools.pattern import CompiledPattern, compile_regex, max_searchable_length

O = TypeVar("O", bound=msgspec.Struct)  # noqa: E741
_MISSING: Any = object()
_MAX_FLATTEN_DEPTH = 50
_MAX_CHOICES = 1000
# Each item repeats the keys, so short data with a long key could become gigabytes.
_MAX_RESULT_BYTES = 20_000_000


class DataOperation(msgspec.Struct, Generic[O], frozen=True, kw_only=True):
    """`reads_json`: text data is parsed as JSON first."""

    description: str
    options: type[O]
    function: Callable[[Any, O], Any]
    reads_json: bool = True

    def run(self, data: Any, options: dict[str, Any]) -> Any:
        """Raises ToolFailed for data or options that do not fit."""
        try:
            parsed_options = msgspec.convert(options, self.options)
        except msgspec.ValidationError as error:
            raise ToolFailed(f"wrong options: {error}") from error
        value = _parse(data, Options()) if self.reads_json and isinstance(data, str) else data
        return self.function(value, parsed_options)


def _parse(data: Any, options: Options) -> Any:
    if not isinstance(data, str):
        return data
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ToolFailed(f"the data is not valid JSON: {error}") from error


def _format(data: Any, options: FormatOptions) -> str:
    if not 0 <= options.indent <= 8:
        raise ToolFailed("indent must be from 0 to 8")
    text = msgspec.json.encode(data, order="sorted" if options.sort_keys else None)
    _check_result(indented_size(data, text, options.indent))
    return msgspec.json.format(text, indent=options.indent).decode()


def _minify(data: Any, options: Options) -> str:
    return msgspec.json.encode(data).decode()


def _get(data: Any, options: PathOptions) -> Any:
    value = _value_at(data, options.path)
    if value is _MISSING:
        raise ToolFailed(f"the data has no value at the path {options.path!r}")
    return value


def _filter(data: Any, options: FilterOptions) -> list[Any]:
    test = _tester(options)
    return [item for item in _items(data) if test(_value_at(item, options.path))]


def _sort(data: Any, options: SortOptions) -> list[Any]:
    pairs = [(_value_at(item, options.path), item) for item in _items(data)]
    pairs.sort(key=lambda pair: _sort_key(pair[0]), reverse=options.descending)
    return [item for _, item in pairs]


def _pick(data: Any, options: KeysOptions) -> Any:
    return _each(data, lambda row: {key: row[key] for key in options.keys if key in row})


def _omit(data: Any, options: KeysOptions) -> Any:
    excluded = set(options.keys)
    return _each(data, lambda row: {key: value for key, value in row.items() if key not in excluded})


def _rename(data: Any, options: RenameOptions) -> Any:
    _check_result(len(_rows(data)) * sum(map(len, options.names.values())))
    return _each(data, lambda row: {options.names.get(key, key): value for key, value in row.items()})


def _group(data: Any, options: GroupOptions) -> dict[str, list[Any]]:
    groups: dict[str, list[Any]] = {}
    for item in _items(data):
        groups.setdefault(_group_key(_value_at(item, options.by)), []).append(item)
    return groups


def _aggregate(data: Any, options: AggregateOptions) -> Any:
    if options.by is None:
        return _measure(_items(data), options)
    groups = _group(data, GroupOptions(by=options.by))
    return {name: _measure(items, options) for name, items in groups.items()}


def _unique(data: Any, options: UniqueOptions) -> list[Any]:
    first_items: dict[bytes, Any] = {}
    for item in _items(data):
        value = _value_at(item, options.path)
        first_items.setdefault(b"" if value is _MISSING else msgspec.json.encode(value, order="sorted"), item)
    return list(first_items.values())


def _flatten(data: Any, options: FlattenOptions) -> dict[str, Any]:
    if len(options.separator) > 8:
        raise ToolFailed("the separator must have at most 8 characters")
    flat: dict[str, Any] = {}
    size = 0
    pending: list[tuple[str, Any, int]] = [("", data, 0)]
    while pending:
        prefix, value, depth = pending.pop()
        inner = _children(value)
        if not inner:
            flat[prefix] = value
            continue
        size += len(inner) * len(prefix)
        _check_result(size)
        if depth >= _MAX_FLATTEN_DEPTH:
            raise ToolFailed(f"the data is nested more than {_MAX_FLATTEN_DEPTH} levels deep")
        start = f"{prefix}{options.separator}" if prefix else ""
        pending.extend((f"{start}{key}", item, depth + 1) for key, item in reversed(inner))
    return flat


def _slice(data: Any, options: SliceOptions) -> list[Any]:
    return _items(data)[options.start : options.end]


def _keys(data: Any, options: Options) -> list[str]:
    return list(dict.fromkeys(key for row in _rows(data) for key in row))


def _read_csv(data: Any, options: CsvOptions) -> list[dict[str, Any]]:
    if not isinstance(data, str):
        raise ToolFailed("the data must be CSV text")
    try:
        reader = csv.reader(io.StringIO(data, newline=""), delimiter=options.delimiter, strict=True)
        header, *rows = list(reader) or [[]]
    except (csv.Error, TypeError) as error:
        raise ToolFailed(f"the data is not CSV: {error}") from error
    _check_result(len(rows) * sum(map(len, header)))
    for number, row in enumerate(rows, 2):
        if len(row) > len(header):
            raise ToolFailed(f"row {number} has {len(row)} fields, the header {len(header)}")
    return [dict(zip(header, row, strict=False)) for row in rows if row]


def _write_csv(data: Any, options: CsvOptions) -> str:
    rows = _rows(data)
    names = list(dict.fromkeys(key for row in rows for key in row))
    _check_result(len(names) * len(rows))
    text = io.StringIO(newline="")
    try:
        writer = csv.writer(text, delimiter=options.delimiter, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([_field(row.get(name)) for name in names] for row in rows)
    except (csv.Error, TypeError) as error:
        raise ToolFailed(f"the data cannot be written as CSV: {error}") from error
    return text.getvalue()


def _check_result(size: int) -> None:
    if size > _MAX_RESULT_BYTES:
        raise ToolFailed("the result would be too big; work on less data at once")


def _value_at(data: Any, path: str) -> Any:
    """The value at a path such as a.b.0, or _MISSING."""
    value = data
    for part in path.split(".") if path else []:
        if isinstance(value, dict) and part in value:
            value = cast(dict[str, Any], value)[part]
        elif isinstance(value, list) and part.isdecimal() and int(part[:9]) < len(cast(list[Any], value)):
            value = cast(list[Any], value)[int(part[:9])]
        else:
            return _MISSING
    return value


def _items(data: Any) -> list[Any]:
    if isinstance(data, list):
        return cast(list[Any], data)
    raise ToolFailed("this operation needs a list")


def _rows(data: Any) -> list[dict[str, Any]]:
    rows = cast(list[Any], data) if isinstance(data, list) else [data]
    if all(isinstance(row, dict) for row in rows):
        return rows
    raise ToolFailed("this operation needs an object or a list of objects")


def _each(data: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    changed = [change(row) for row in _rows(data)]
    return changed if isinstance(data, list) else changed[0]


def _children(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return list(cast(dict[str, Any], value).items())
    if isinstance(value, list):
        return [(str(index), item) for index, item in enumerate(cast(list[Any], value))]
    return []


def _tester(options: FilterOptions) -> Callable[[Any], bool]:
    expected = options.value
    match options.test:
        case "exists":
            return lambda value: value is not _MISSING
        case "matches":
            pattern = compile_regex(str(expected))
            return lambda value: isinstance(value, str) and _matches(pattern, value)
        case "in":
            if len(choices := _items(expected)) > _MAX_CHOICES:
                raise ToolFailed(f"`in` takes a list of at most {_MAX_CHOICES} values")
            return lambda value: value in choices
        case "contains":
            return lambda value: _contains(value, expected)
        case "eq":
            return lambda value: value is not _MISSING and value == expected
        case "ne":
            return lambda value: value is _MISSING or value != expected
        case test:
            compare: Callable[[Any, Any], bool] = getattr(operator, test)
            return lambda value: (
                _comparison_kind(value) == _comparison_kind(expected) != "other" and compare(value, expected)
            )


def _matches(pattern: CompiledPattern, value: str) -> bool:
    if len(value) > (max_length := max_searchable_length(pattern)):
        raise ToolFailed(
            f"a text of {len(value):,} characters is too long for this pattern; "
            f"it can search at most {max_length:,}"
        )
    return pattern.search(value) is not None


def _contains(value: Any, expected: Any) -> bool:
    if isinstance(value, str):
        return isinstance(expected, str) and expected in value
    return isinstance(value, list | dict) and expected in cast("list[Any]", value)


def _comparison_kind(value: Any) -> str:
    """`number`, `text` or `other`. Values can be ordered only within the first two kinds."""
    if isinstance(value, int | float):
        return "number"
    return "text" if isinstance(value, str) else "other"


def _sort_key(value: Any) -> tuple[int, Any]:
    """Sorts numbers first, then text, then other values by their JSON text, then missing values."""
    if value is _MISSING or value is None:
        return (3, 0)
    if isinstance(value, int | float):
        return (0, value)
    return (1, value) if isinstance(value, str) else (2, msgspec.json.encode(value))


def _group_key(value: Any) -> str:
    if value is _MISSING:
        return "(missing)"
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _measure(items: list[Any], options: AggregateOptions) -> Any:
    values = [_value_at(item, options.path) for item in items]
    if options.measure == "count":
        return sum(value is not _MISSING and value is not None for value in values)
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if options.measure == "sum":
        return sum(numbers)
    if not numbers:
        return None
    match options.measure:
        case "mean":
            return statistics.fmean(numbers)
        case "median":
            return statistics.median(numbers)
        case "min":
            return min(numbers)
        case "max":
            return max(numbers)


def _field(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()


OPERATIONS: dict[str, DataOperation[Any]] = {
    "parse": DataOperation(description="JSON text to data", options=Options, function=_parse),
    "format": DataOperation(
        description="data to readable JSON text", options=FormatOptions, function=_format
    ),
    "minify": DataOperation(description="data to the shortest JSON text", options=Options, function=_minify),
    "get": DataOperation(description="what is at a path", options=PathOptions, function=_get),
    "filter": DataOperation(
        description="items whose value at path passes", options=FilterOptions, function=_filter
    ),
    "sort": DataOperation(description="items by their value at path", options=SortOptions, function=_sort),
    "unique": DataOperation(
        description="the first item of each value at path", options=UniqueOptions, function=_unique
    ),
    "slice": DataOperation(
        description="items from start to before end", options=SliceOptions, function=_slice
    ),
    "pick": DataOperation(description="only these keys of objects", options=KeysOptions, function=_pick),
    "omit": DataOperation(description="objects without these keys", options=KeysOptions, function=_omit),
    "rename": DataOperation(
        description="keys of objects, old to new", options=RenameOptions, function=_rename
    ),
    "keys": DataOperation(description="all keys of objects", options=Options, function=_keys),
    "group": DataOperation(
        description="items by their value at path `by`", options=GroupOptions, function=_group
    ),
    "aggregate": DataOperation(
        description="one figure, or one per group", options=AggregateOptions, function=_aggregate
    ),
    "flatten": DataOperation(
        description="nested data to one object", options=FlattenOptions, function=_flatten
    ),
    "csv_to_json": DataOperation(
        description="CSV text to objects", options=CsvOptions, function=_read_csv, reads_json=False
    ),
    "json_to_csv": DataOperation(description="objects to CSV text", options=CsvOptions, function=_write_csv),
}


def describe_operations() -> str:
    """One line per operation, with its options and their defaults."""
    return "\n".join(
        f"{name}: {item.description}{_describe(item.options)}" for name, item in OPERATIONS.items()
    )


def _describe(options: type[msgspec.Struct]) -> str:
    parts: list[str] = []
    for field in msgspec.structs.fields(options):
        values: tuple[Any, ...] = getattr(field.type, "__args__", ())
        choice = "|".join(values) if values and all(isinstance(value, str) for value in values) else ""
        default = "" if field.required else f"={msgspec.json.encode(field.default).decode()}"
        parts.append(f"{field.name}{default}{f' ({choice})' if choice else ''}")
    return f" ({', '.join(parts)})" if parts else ""


@tool(
    name="process_data",
    description=(
        "Transform JSON or CSV data. Text given to an operation on JSON is read as JSON first. "
        "A `path` like a.b.0 leads into nested data.\n" + describe_operations()
    ),
    parameters={
        "data": {"description": "The data: any JSON value, or JSON or CSV as text"},
        "operation": {"type": "string", "enum": list(OPERATIONS)},
        "options": {"type": "object", "default": {}, "description": "As the operation says"},
    },
    required_params=["data", "operation"],
    category="data",
    repeatable=True,
)
def process_data(arguments: dict[str, Any]) -> dict[str, Any]:
    operation = OPERATIONS[arguments["operation"]]
    result = operation.run(arguments["data"], arguments.get("options", {}))
    return {"operation": arguments["operation"], "result": result}
