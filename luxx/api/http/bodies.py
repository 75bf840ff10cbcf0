"""JSON bodies, read strictly: text is no number, and every wrong field is named by its path.

The decoder stops at the first mistake; only a body that has one is walked again to find more. That is
bounded, because anybody may send a wrong body: MOST_WALKED bytes are walked, MOST_NAMED fields named.
"""

import re
from collections.abc import Iterator
from itertools import islice
from math import isfinite
from typing import Any, cast, get_args, get_origin

import msgspec
from litestar import Request
from msgspec.structs import FieldInfo

from luxx.errors import InvalidInput
from luxx.infra.json_keys import has_repeated_member, repeated_members

BODY = "data"
"""The handlers' parameter that takes the body."""

_AT = re.compile(r" - at `\$(.*)`$")

_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
"""No database stores it in text; the escape is the only way that JSON can carry it."""

NO_NUL = "text must not contain the character NUL"

NO_REPEATED = "this field is there twice; send it once"

MOST_WALKED = 64 * 1024
"""Bytes of a wrong body; of a longer one only the first mistake is named."""

MOST_NAMED = 20
MOST_SHOWN = 200
"""Characters of a path and of what is wrong there: both may repeat names that the sender made up."""

Fields = dict[str, str]
Wrong = Iterator[tuple[str, str]]


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
            raise _with_nul_in(body)
        value = _decode(body, wanted)
        if has_repeated_member(body):
            raise _with_repeated_in(body)
        return value
    except RecursionError as error:
        raise refusal({"$": "nested too deeply"}) from error
    except ValueError as error:
        # Not JSON, or not UTF-8.
        raise refusal({"$": f"not readable as JSON: {error}"}) from error


def refusal(fields: Fields) -> InvalidInput:
    """The error that names these fields, or the first of very many."""
    shown = {_cut(path): _cut(problem) for path, problem in islice(fields.items(), MOST_NAMED)}
    named = "; ".join(f"{path}: {problem}" for path, problem in shown.items())
    more = "; and more" if len(fields) > MOST_NAMED else ""
    return InvalidInput(f"the request is not valid: {named}{more}", detail={"fields": shown})


def _with_nul_in(body: bytes) -> InvalidInput:
    if len(body) > MOST_WALKED:
        return refusal({"$": NO_NUL})
    return refusal(dict.fromkeys(islice(_with_nul("$", msgspec.json.decode(body)), MOST_NAMED + 1), NO_NUL))


def _with_repeated_in(body: bytes) -> InvalidInput:
    if len(body) > MOST_WALKED:
        return refusal({"$": NO_REPEATED})
    return refusal(dict.fromkeys(islice(repeated_members(body), MOST_NAMED + 1), NO_REPEATED))


def _decode(body: bytes, wanted: Any) -> Any:
    try:
        return msgspec.json.decode(body, type=wanted)
    except msgspec.ValidationError as error:
        is_walked = len(body) <= MOST_WALKED
        if not is_walked and not _is_of_a_float(error):
            raise refusal(_named("$", error)) from error
        value = msgspec.json.Decoder(float_hook=_number).decode(body)
        wrong = dict(islice(_wrong("$", value, wanted), MOST_NAMED + 1)) if is_walked else {}
        if wrong:
            raise refusal(wrong) from error
    try:
        return msgspec.convert(value, wanted)
    except msgspec.ValidationError as error:
        raise refusal(_named("$", error)) from error


def _number(written: str) -> int | float:
    """JSON knows one kind of number: 5.0 is as good an integer as 5."""
    value = float(written)
    if not isfinite(value):
        raise ValueError("a number is out of range")
    return int(value) if value.is_integer() else value


def _is_of_a_float(error: msgspec.ValidationError) -> bool:
    return "got `float`" in str(error)


def _wrong(path: str, value: Any, wanted: Any) -> Wrong:
    plain = _plain(wanted)
    if isinstance(value, dict) and _is_struct(plain):
        yield from _wrong_members(path, cast("dict[str, Any]", value), plain)
        return
    if isinstance(value, list) and get_origin(plain) is list:
        is_wrong = False
        for index, item in enumerate(cast("list[Any]", value)):
            for found in _wrong(f"{path}[{index}]", item, get_args(plain)[0]):
                is_wrong = True
                yield found
        if is_wrong:
            return
    try:
        msgspec.convert(value, wanted)
    except msgspec.ValidationError as error:
        yield from _named(path, error).items()


def _wrong_members(path: str, value: dict[str, Any], struct: Any) -> Wrong:
    known: dict[str, FieldInfo] = {field.encode_name: field for field in msgspec.structs.fields(struct)}
    for name in value:
        if name not in known:
            yield f"{path}.{name}", "unknown field"
    for name, field in known.items():
        if name in value:
            yield from _wrong(f"{path}.{name}", value[name], field.type)
        elif field.required:
            yield f"{path}.{name}", "this field is required"


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


def _cut(text: str) -> str:
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"


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
