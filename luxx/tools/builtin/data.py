"""The tool process_data, with its operations on JSON and CSV data."""

import csv
import inspect
import io
import operator
import statistics
from collections.abc import Callable
from typing import Any, Literal, TypeVar, cast

import msgspec

from luxx.errors import ToolFailed
from luxx.infra.strict_json import MAX_VALUES, check_size, decoder
from luxx.tools.factory import tool
from luxx.tools.output import indented_size
from luxx.tools.pattern import CompiledPattern, compile_regex, max_searchable_length

_MISSING: Any = object()
_MAX_FLATTEN_DEPTH = 50
_MAX_CHOICES = 1000
# Each item repeats the keys, so short data with a long key could become gigabytes.
_MAX_RESULT_BYTES = 20_000_000

Test = Literal["eq", "ne", "gt", "ge", "lt", "le", "in", "contains", "matches", "exists"]
Measure = Literal["count", "sum", "mean", "median", "min", "max"]


class DataOperation(msgspec.Struct, frozen=True, kw_only=True):
    """`reads_json`: text data is parsed as JSON first."""

    description: str
    options: type[msgspec.Struct]
    function: Callable[..., Any]
    reads_json: bool

    def run(self, data: Any, raw_options: dict[str, Any]) -> Any:
        """Raises ToolFailed for data or options that do not fit."""
        try:
            options = msgspec.structs.asdict(msgspec.convert(raw_options, self.options))
        except msgspec.ValidationError as error:
            raise ToolFailed(f"wrong options: {error}") from error
        value = _parse(data) if self.reads_json and isinstance(data, str) else data
        return self.function(value, **options)


OPERATIONS: dict[str, DataOperation] = {}

F = TypeVar("F", bound=Callable[..., Any])


def _operation(name: str, description: str, *, reads_json: bool = True) -> Callable[[F], F]:
    """Make an operation of `function(data, …)`; its further parameters are the options."""

    def add(function: F) -> F:
        _, *parameters = inspect.signature(function).parameters.values()
        fields: list[Any] = [
            (each.name, each.annotation, *([] if each.default is each.empty else [each.default]))
            for each in parameters
        ]
        options = msgspec.defstruct("Options", fields, kw_only=True, forbid_unknown_fields=True)
        OPERATIONS[name] = DataOperation(
            description=description, options=options, function=function, reads_json=reads_json
        )
        return function

    return add


@_operation("parse", "JSON text to data")
def _parse(data: Any) -> Any:
    if not isinstance(data, str):
        return data
    document = data.encode()
    try:
        check_size(document)
        return decoder(Any).decode(document)
    except (ValueError, RecursionError) as error:
        raise ToolFailed(f"the data is not valid JSON: {error}") from error


@_operation("format", "data to readable JSON text")
def _format(data: Any, indent: int = 2, sort_keys: bool = False) -> str:
    if not 0 <= indent <= 8:
        raise ToolFailed("indent must be from 0 to 8")
    text = msgspec.json.encode(data, order="sorted" if sort_keys else None)
    _check_result(indented_size(data, text, indent))
    return msgspec.json.format(text, indent=indent).decode()


@_operation("minify", "data to the shortest JSON text")
def _minify(data: Any) -> str:
    return msgspec.json.encode(data).decode()


@_operation("get", "what is at a path")
def _get(data: Any, path: str) -> Any:
    value = _value_at(data, path)
    if value is _MISSING:
        raise ToolFailed(f"the data has no value at the path {path!r}")
    return value


@_operation("filter", "items whose value at path passes")
def _filter(data: Any, path: str = "", test: Test = "eq", value: Any = None) -> list[Any]:
    is_wanted = _tester(test, value)
    return [item for item in _items(data) if is_wanted(_value_at(item, path))]


@_operation("sort", "items by their value at path")
def _sort(data: Any, path: str = "", descending: bool = False) -> list[Any]:
    pairs = [(_value_at(item, path), item) for item in _items(data)]
    pairs.sort(key=lambda pair: _sort_key(pair[0]), reverse=descending)
    return [item for _, item in pairs]


@_operation("pick", "only these keys of objects")
def _pick(data: Any, keys: list[str]) -> Any:
    return _each(data, lambda row: {key: row[key] for key in keys if key in row})


@_operation("omit", "objects without these keys")
def _omit(data: Any, keys: list[str]) -> Any:
    excluded = set(keys)
    return _each(data, lambda row: {key: value for key, value in row.items() if key not in excluded})


@_operation("rename", "keys of objects, old to new")
def _rename(data: Any, names: dict[str, str]) -> Any:
    _check_result(len(_rows(data)) * sum(map(len, names.values())))
    return _each(data, lambda row: {names.get(key, key): value for key, value in row.items()})


@_operation("group", "items by their value at path `by`")
def _group(data: Any, by: str) -> dict[str, list[Any]]:
    groups: dict[str, list[Any]] = {}
    for item in _items(data):
        groups.setdefault(_group_key(_value_at(item, by)), []).append(item)
    return groups


@_operation("aggregate", "one figure, or one per group")
def _aggregate(data: Any, measure: Measure, path: str = "", by: str | None = None) -> Any:
    if by is None:
        return _measure(_items(data), measure, path)
    return {name: _measure(items, measure, path) for name, items in _group(data, by).items()}


@_operation("unique", "the first item of each value at path")
def _unique(data: Any, path: str = "") -> list[Any]:
    first_items: dict[bytes, Any] = {}
    for item in _items(data):
        value = _value_at(item, path)
        first_items.setdefault(b"" if value is _MISSING else msgspec.json.encode(value, order="sorted"), item)
    return list(first_items.values())


@_operation("flatten", "nested data to one object")
def _flatten(data: Any, separator: str = ".") -> dict[str, Any]:
    if len(separator) > 8:
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
        start = f"{prefix}{separator}" if prefix else ""
        pending.extend((f"{start}{key}", item, depth + 1) for key, item in reversed(inner))
    return flat


@_operation("slice", "items from start to before end")
def _slice(data: Any, start: int = 0, end: int | None = None) -> list[Any]:
    return _items(data)[start:end]


@_operation("keys", "all keys of objects")
def _keys(data: Any) -> list[str]:
    return list(dict.fromkeys(key for row in _rows(data) for key in row))


@_operation("csv_to_json", "CSV text to objects", reads_json=False)
def _read_csv(data: Any, delimiter: str = ",") -> list[dict[str, Any]]:
    if not isinstance(data, str):
        raise ToolFailed("the data must be CSV text")
    if data.count("\n") + data.count(delimiter or ",") > MAX_VALUES:
        raise ToolFailed(f"the data has more than {MAX_VALUES:,} fields; work on less data at once")
    try:
        reader = csv.reader(io.StringIO(data, newline=""), delimiter=delimiter, strict=True)
        header, *rows = list(reader) or [[]]
    except (csv.Error, TypeError) as error:
        raise ToolFailed(f"the data is not CSV: {error}") from error
    _check_result(len(rows) * sum(map(len, header)))
    for number, row in enumerate(rows, 2):
        if len(row) > len(header):
            raise ToolFailed(f"row {number} has {len(row)} fields, the header {len(header)}")
    return [dict(zip(header, row, strict=False)) for row in rows if row]


@_operation("json_to_csv", "objects to CSV text")
def _write_csv(data: Any, delimiter: str = ",") -> str:
    rows = _rows(data)
    names = list(dict.fromkeys(key for row in rows for key in row))
    _check_result(len(names) * len(rows))
    text = io.StringIO(newline="")
    try:
        writer = csv.writer(text, delimiter=delimiter, lineterminator="\n")
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


def _tester(test: Test, expected: Any) -> Callable[[Any], bool]:
    match test:
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
        case _:
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


def _measure(items: list[Any], measure: Measure, path: str) -> Any:
    values = [_value_at(item, path) for item in items]
    if measure == "count":
        return sum(value is not _MISSING and value is not None for value in values)
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if measure == "sum":
        return sum(numbers)
    if not numbers:
        return None
    return {"mean": statistics.fmean, "median": statistics.median, "min": min, "max": max}[measure](numbers)


def _field(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()


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
    is_self_contained=True,
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
