"""JSON bodies, read strictly: text is no number, and every wrong field is named by its path.

The decoder stops at the first mistake; only a body that has one is walked again to find them all.
"""

import re
from collections.abc import Iterator
from typing import Any, cast, get_args, get_origin

import msgspec
from litestar import Request
from msgspec.structs import FieldInfo

from luxx.errors import InvalidInput

BODY = "data"
"""The handlers' parameter that takes the body."""

_AT = re.compile(r" - at `\$(.*)`$")

_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
"""No database stores it in text; the escape is the only way that JSON can carry it."""

NO_NUL = "text must not contain the character NUL"

Fields = dict[str, str]


class JsonRequest(Request[Any, Any, Any]):
    """A request whose body becomes the handler's Struct in one strict step."""

    async def json(self) -> Any:
        """The body as the type of the handler's `data`. Raises InvalidInput.

        Where `data` has a default, no body at all is as good as that.
        """
        taken = self.route_handler.parsed_fn_signature.parameters[BODY]
        body = await self.body()
        return taken.default if taken.has_default and not body else read_body(body, taken.annotation)


def read_body(body: bytes, wanted: Any) -> Any:
    """`body` as `wanted`. Raises InvalidInput with each wrong field's path in `detail.fields`."""
    if not body:
        raise refusal({"$": "a JSON object is needed as the body"})
    try:
        if _NUL.search(body):
            raise refusal(dict.fromkeys(_with_nul("$", msgspec.json.decode(body)), NO_NUL))
        return _decode(body, wanted)
    except RecursionError as error:
        raise refusal({"$": "nested too deeply"}) from error
    except ValueError as error:
        # Not JSON, or not UTF-8.
        raise refusal({"$": f"not readable as JSON: {error}"}) from error


def refusal(fields: Fields) -> InvalidInput:
    """The error that names these fields."""
    named = "; ".join(f"{path}: {problem}" for path, problem in fields.items())
    return InvalidInput(f"the request is not valid: {named}", detail={"fields": fields})


def _decode(body: bytes, wanted: Any) -> Any:
    try:
        return msgspec.json.decode(body, type=wanted)
    except msgspec.ValidationError as error:
        value = _with_whole_numbers(msgspec.json.decode(body))
        wrong = _wrong("$", value, wanted)
        if wrong:
            raise refusal(wrong) from error
    try:
        return msgspec.convert(value, wanted)
    except msgspec.ValidationError as error:
        raise refusal(_named("$", error)) from error


def _with_whole_numbers(value: Any) -> Any:
    """JSON knows one kind of number: 5.0 is as good an integer as 5."""
    if isinstance(value, list):
        return [_with_whole_numbers(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {name: _with_whole_numbers(item) for name, item in cast("dict[str, Any]", value).items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _wrong(path: str, value: Any, wanted: Any) -> Fields:
    plain = _plain(wanted)
    if isinstance(value, dict) and _is_struct(plain):
        return _wrong_members(path, cast("dict[str, Any]", value), plain)
    if isinstance(value, list) and get_origin(plain) is list:
        wrong: Fields = {}
        for index, item in enumerate(cast("list[Any]", value)):
            wrong |= _wrong(f"{path}[{index}]", item, get_args(plain)[0])
        if wrong:
            return wrong
    try:
        msgspec.convert(value, wanted)
    except msgspec.ValidationError as error:
        return _named(path, error)
    return {}


def _wrong_members(path: str, value: dict[str, Any], struct: Any) -> Fields:
    known: dict[str, FieldInfo] = {field.encode_name: field for field in msgspec.structs.fields(struct)}
    wrong = {f"{path}.{name}": "unknown field" for name in value if name not in known}
    for name, field in known.items():
        if name in value:
            wrong |= _wrong(f"{path}.{name}", value[name], field.type)
        elif field.required:
            wrong[f"{path}.{name}"] = "this field is required"
    return wrong


def _with_nul(path: str, value: Any) -> Iterator[str]:
    """The paths of the texts that hold a NUL; a member's name counts as its object's."""
    if isinstance(value, str) and "\0" in value:
        yield path
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[Any]", value)):
            yield from _with_nul(f"{path}[{index}]", item)
    elif isinstance(value, dict):
        for name, item in cast("dict[str, Any]", value).items():
            yield from [path] if "\0" in name else _with_nul(f"{path}.{name}", item)


def _named(path: str, error: msgspec.ValidationError) -> Fields:
    message = str(error)
    at = _AT.search(message)
    return {path + (at.group(1) if at else ""): _AT.sub("", message)}


def _plain(wanted: Any) -> Any:
    """A type without its constraints; of a choice, the one that can hold members."""
    if hasattr(wanted, "__metadata__"):
        return _plain(get_args(wanted)[0])
    choices = [_plain(choice) for choice in get_args(wanted)] if get_origin(wanted) is not list else []
    holding = [choice for choice in choices if _is_struct(choice) or get_origin(choice) is list]
    return holding[0] if len(holding) == 1 else wanted


def _is_struct(wanted: Any) -> bool:
    return isinstance(wanted, type) and issubclass(wanted, msgspec.Struct)
