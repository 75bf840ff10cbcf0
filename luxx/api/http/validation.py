"""Sentences about wrong values: what a type allows, and where a value differs from it.

msgspec decides what is valid. Its messages quote patterns and Python types, so clients get these instead.
"""

import difflib
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, cast, get_args, get_origin

import msgspec
from msgspec import UNSET, inspect
from msgspec.structs import FieldInfo

FieldErrorPairs = Iterator[tuple[str, str]]

_ERROR_PATH = re.compile(r" - at `\$(.*)`$")
_PATH_PART = re.compile(r"\.([^.\[\]]+)|\[[^\]]*\]")
_FIELD_ERROR = re.compile(r"Object (missing required|contains unknown) field `(.*)`", re.DOTALL)
_MAX_NAME = 64


def requirement_of(expected_type: Any) -> str:
    """What the type allows, to stand behind "must be": `text of 1 to 300 characters`, `true or false`."""
    return _requirement(_type_info(expected_type))


def field_errors(path: str, value: Any, expected_type: Any) -> FieldErrorPairs:
    """The path and a sentence for each wrong value in `value`, whose own path is `path`."""
    bare_type = _unwrap_type(expected_type)
    if isinstance(value, dict) and _is_struct(bare_type):
        yield from _member_errors(path, cast("dict[str, Any]", value), bare_type)
        return
    if isinstance(value, list) and get_origin(bare_type) is list:
        has_errors = False
        for index, item in enumerate(cast("list[Any]", value)):
            for field_error in field_errors(f"{path}[{index}]", item, get_args(bare_type)[0]):
                has_errors = True
                yield field_error
        if has_errors:
            return
    try:
        msgspec.convert(value, expected_type)
    except msgspec.ValidationError as error:
        yield first_error(path, error, expected_type)


def readable_part(value: Any, expected_type: Any) -> Any:
    """`value` as the type, without what is wrong in it: where a field must not be missing, it gets a sample.

    So what is right in a document can be checked further. Raises ValidationError where that is not enough.
    """
    return msgspec.convert(_without_errors(value, expected_type), expected_type)


def _without_errors(value: Any, expected_type: Any) -> Any:
    """The value without wrong fields and items; UNSET if nothing of it is right."""
    bare_type = _unwrap_type(expected_type)
    if isinstance(value, dict) and _is_struct(bare_type):
        members = cast("dict[str, Any]", value)
        kept: dict[str, Any] = {}
        part: Any
        for field in msgspec.structs.fields(bare_type):
            part = members.get(field.encode_name, UNSET)
            part = part if part is UNSET else _without_errors(part, field.type)
            if part is UNSET and field.required:
                part = _sample(_type_info(field.type))
            if part is not UNSET:
                kept[field.encode_name] = part
        return kept
    if isinstance(value, list) and get_origin(bare_type) is list:
        (item_type,) = get_args(bare_type)
        is_struct = _is_struct(_unwrap_type(item_type))
        items: list[Any] = []
        for item in cast("list[Any]", value):
            part = _without_errors(item, item_type)
            # The paths of the other items stay as they are.
            part = _sample(_type_info(item_type)) if part is UNSET and is_struct else part
            if part is not UNSET:
                items.append(part)
        return items
    try:
        msgspec.convert(value, expected_type)
    except msgspec.ValidationError:
        return UNSET
    return cast("Any", value)


def _sample(info: inspect.Type) -> Any:
    """A small value of the type."""
    match info:
        case inspect.Metadata():
            return _sample(info.type)
        case inspect.UnionType():
            return None if info.includes_none else _sample(info.types[0])
        case inspect.StrType():
            return "x" * (info.min_length or 0)
        case inspect.IntType() | inspect.FloatType():
            return info.ge or 0
        case inspect.BoolType():
            return False
        case inspect.EnumType():
            return next(iter(info.cls)).value
        case inspect.StructType():
            return {field.encode_name: _sample(field.type) for field in info.fields if field.required}
        case inspect.ListType():
            return list[Any]()
        case _:
            return dict[str, Any]()


def first_error(path: str, error: msgspec.ValidationError, expected_type: Any) -> tuple[str, str]:
    """The path and a sentence for the error of msgspec about a value at `path`."""
    message = str(error)
    at = _ERROR_PATH.search(message)
    inner_path = at.group(1) if at else ""
    info = _type_info(expected_type)
    for part in _PATH_PART.finditer(inner_path):
        info = _inner_type(info, part.group(1))
    field_error = _FIELD_ERROR.match(message)
    if field_error is None:
        return path + inner_path, f"must be {_requirement(info)}"
    name = field_error.group(2)
    if field_error.group(1) == "missing required":
        return f"{path}{inner_path}.{name}", _missing(_inner_type(info, name))
    return f"{path}{inner_path}.{name}", unknown(name, _field_names(info))


def unknown(name: str, known: Sequence[str], subject: str = "field") -> str:
    """The sentence for a name that does not exist. It suggests a similar one, or all that there are."""
    similar = difflib.get_close_matches(name[:_MAX_NAME], known, n=1)
    if similar:
        return f"unknown {subject}; did you mean {similar[0]}?"
    return f"unknown {subject}; allowed: {', '.join(known) or 'none'}"


def _missing(info: inspect.Type) -> str:
    return f"this field is required and must be {_requirement(info)}"


def _member_errors(path: str, value: dict[str, Any], struct: Any) -> FieldErrorPairs:
    struct_fields: dict[str, FieldInfo] = {
        field.encode_name: field for field in msgspec.structs.fields(struct)
    }
    for name in value:
        if name not in struct_fields and struct.__struct_config__.forbid_unknown_fields:
            yield f"{path}.{name}", unknown(name, list(struct_fields))
    for name, field in struct_fields.items():
        if name in value:
            yield from field_errors(f"{path}.{name}", value[name], field.type)
        elif field.required:
            yield f"{path}.{name}", _missing(_type_info(field.type))


def _unwrap_type(expected_type: Any) -> Any:
    """A type without its constraints; of a union, its only struct or list type if there is one."""
    if hasattr(expected_type, "__metadata__"):
        return _unwrap_type(get_args(expected_type)[0])
    choices = (
        [_unwrap_type(choice) for choice in get_args(expected_type)]
        if get_origin(expected_type) is not list
        else []
    )
    containers = [choice for choice in choices if _is_struct(choice) or get_origin(choice) is list]
    return containers[0] if len(containers) == 1 else expected_type


def _is_struct(expected_type: Any) -> bool:
    return isinstance(expected_type, type) and issubclass(expected_type, msgspec.Struct)


# Types as sentences


@lru_cache(maxsize=512)
def _type_info(expected_type: Any) -> inspect.Type:
    return inspect.type_info(expected_type)


_FIXED_REQUIREMENTS: dict[type[inspect.Type], str] = {
    inspect.BoolType: "true or false",
    inspect.BytesType: "text in base64",
    inspect.DateTimeType: "a time with a time zone, such as 2026-01-31T12:00:00Z",
    inspect.DateType: "a date, such as 2026-01-31",
    inspect.DictType: "a JSON object",
    inspect.NoneType: "null",
    inspect.StructType: "a JSON object",
}


def _requirement(info: inspect.Type) -> str:
    match info:
        case inspect.Metadata(type=inspect.StrType(pattern=str()) as text):
            # The description of a type with a pattern says in words what the pattern allows.
            schema = cast("dict[str, Any]", cast("Any", info).extra_json_schema or {})
            words = str(schema.get("description", "another text"))
            return f"{_text(text)}: {words}" if text.min_length or text.max_length else words
        case inspect.Metadata():
            return _requirement(info.type)
        case inspect.UnionType():
            options = [_requirement(one) for one in info.types if not isinstance(one, inspect.NoneType)]
            return ", or ".join(dict.fromkeys([*options, *(["null"] if info.includes_none else [])]))
        case inspect.StrType():
            return _text(info)
        case inspect.IntType():
            return f"a whole number{_range(info.ge, info.le)}"
        case inspect.FloatType():
            above = "" if info.gt is None else f" above {info.gt:,}"
            return f"a number{above}{_range(info.ge, info.le)}"
        case inspect.EnumType():
            return _choice([member.value for member in info.cls])
        case inspect.LiteralType():
            return _choice(info.values)
        case inspect.ListType():
            size = _count(info.min_length, info.max_length, "item")
            return f"a list{size}, each {_requirement(info.item_type)}"
        case _:
            return _FIXED_REQUIREMENTS.get(type(info), "another value")


def _text(info: inspect.StrType) -> str:
    return f"text{_count(info.min_length, info.max_length, 'character')}"


def _count(least: int | None, most: int | None, unit: str) -> str:
    size = _range(least or None, most).replace(" from", " of")
    return size and f"{size} {unit}{'s' if (most or least) != 1 else ''}"


def _range(least: float | None, most: float | None) -> str:
    if least is None:
        return "" if most is None else f" of at most {most:,}"
    if most is None:
        return f" of at least {least:,}"
    return f" of {least:,}" if least == most else f" from {least:,} to {most:,}"


def _choice(values: Sequence[object]) -> str:
    words = [repr(value) if isinstance(value, str) else str(value) for value in values]
    return words[0] if len(words) == 1 else f"one of {', '.join(words)}"


def _options(info: inspect.Type) -> list[inspect.Type]:
    """The types of a union, or the type itself, without the annotations of msgspec."""
    if isinstance(info, inspect.UnionType):
        return [option for member in info.types for option in _options(member)]
    return [info]


def _inner_type(info: inspect.Type, name: str | None) -> inspect.Type:
    """The type of a field by its name, or of the items of a list or object if `name` is None."""
    tags: list[Any] = []
    for option in _options(info):
        while isinstance(option, inspect.Metadata):
            option = option.type
        match option:
            case inspect.StructType(fields=fields, tag_field=tag_field):
                for field in fields:
                    if field.encode_name == name:
                        return field.type
                if name == tag_field:
                    tags.append(option.tag)
            case inspect.ListType(item_type=item_type) if name is None:
                return item_type
            case inspect.DictType(value_type=value_type):
                return value_type
            case _:
                pass
    return inspect.LiteralType(tuple(tags)) if tags else inspect.AnyType()


def _field_names(info: inspect.Type) -> list[str]:
    names = [
        field.encode_name
        for option in _options(info)
        if isinstance(option, inspect.StructType)
        for field in option.fields
    ]
    return list(dict.fromkeys(names))
