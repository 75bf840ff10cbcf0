"""Decodes JSON bodies strictly: no conversion from text to numbers, and an error for each wrong field.

The decoder stops at the first error; a second pass over the invalid body finds the others. Anybody may send
an invalid body, so that pass reads at most MAX_INSPECTED_BYTES and reports at most MAX_REPORTED_FIELDS.
"""

import re
from collections.abc import Callable, Iterator
from itertools import islice
from math import isfinite
from typing import Any, cast

import msgspec
from litestar import Request

from luxx.api.http.validation import field_errors, first_error
from luxx.errors import InvalidInput
from luxx.infra.json_keys import duplicate_key_paths, has_duplicate_key

BODY = "data"
"""The parameter of handlers for the body."""

_NUL_ESCAPE = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
"""PostgreSQL cannot store NUL in text. In valid JSON it can appear only as this escape."""

NUL_MESSAGE = "text must not contain the character NUL"

REPEATED_MESSAGE = "this field appears twice; send it once"

MAX_INSPECTED_BYTES = 64 * 1024
"""The largest invalid body that is inspected. For a larger one only the first error is reported."""

MAX_REPORTED_FIELDS = 20
MAX_PATH_CHARS = 200
"""Characters of a reported path. It may repeat names that the client sent."""

FieldErrors = dict[str, str]


class JsonRequest(Request[Any, Any, Any]):
    """A request whose body is decoded strictly to the handler's Struct."""

    async def json(self) -> Any:
        """The body as the type of the handler's `data`. Raises InvalidInput.

        If `data` has a default, an empty body means the default.
        """
        parameter = self.route_handler.parsed_fn_signature.parameters[BODY]
        body = await self.body()
        return (
            parameter.default if parameter.has_default and not body else read_body(body, parameter.annotation)
        )


def read_body(body: bytes, expected_type: Any) -> Any:
    """`body` as `expected_type`. Raises InvalidInput with the path of each wrong field in `detail.fields`."""
    if not body:
        raise invalid_fields({"$": "a JSON object is needed as the body"})
    try:
        if _NUL_ESCAPE.search(body):
            raise _error_at(body, NUL_MESSAGE, lambda body: _nul_paths("$", msgspec.json.decode(body)))
        value = _decode(body, expected_type)
        if has_duplicate_key(body):
            raise _error_at(body, REPEATED_MESSAGE, duplicate_key_paths)
        return value
    except RecursionError as error:
        raise invalid_fields({"$": "nested too deeply"}) from error
    except ValueError as error:
        # Not JSON, or not UTF-8.
        raise invalid_fields({"$": f"not readable as JSON: {error}"}) from error


def invalid_fields(fields: FieldErrors) -> InvalidInput:
    """An error for these fields. `fields` maps paths to problems; it shows MAX_REPORTED_FIELDS of them."""
    shown = {
        path if len(path) <= MAX_PATH_CHARS else f"{path[:MAX_PATH_CHARS]}…": problem
        for path, problem in islice(fields.items(), MAX_REPORTED_FIELDS)
    }
    listed = "; ".join(f"{path}: {problem}" for path, problem in shown.items())
    more = "; and more" if len(fields) > MAX_REPORTED_FIELDS else ""
    return InvalidInput(f"the request is not valid: {listed}{more}", detail={"fields": shown})


def _error_at(body: bytes, problem: str, find_paths: Callable[[bytes], Iterator[str]]) -> InvalidInput:
    """The same problem at each path that `find_paths` finds; a large body is not inspected."""
    if len(body) > MAX_INSPECTED_BYTES:
        return invalid_fields({"$": problem})
    return invalid_fields(dict.fromkeys(islice(find_paths(body), MAX_REPORTED_FIELDS + 1), problem))


def _decode(body: bytes, expected_type: Any) -> Any:
    try:
        return msgspec.json.decode(body, type=expected_type)
    except msgspec.ValidationError as error:
        is_inspected = len(body) <= MAX_INSPECTED_BYTES
        if not is_inspected and "got `float`" not in str(error):
            raise invalid_fields(dict([first_error("$", error, expected_type)])) from error
        value = msgspec.json.Decoder(float_hook=_number).decode(body)
        errors = (
            dict(islice(field_errors("$", value, expected_type), MAX_REPORTED_FIELDS + 1))
            if is_inspected
            else {}
        )
        if errors:
            raise invalid_fields(errors) from error
    try:
        return msgspec.convert(value, expected_type)
    except msgspec.ValidationError as error:
        raise invalid_fields(dict([first_error("$", error, expected_type)])) from error


def _number(literal: str) -> int | float:
    """JSON has one number type, so 5.0 is accepted as the integer 5."""
    value = float(literal)
    if not isfinite(value):
        raise ValueError("a number is out of range")
    return int(value) if value.is_integer() else value


def _nul_paths(path: str, value: Any) -> Iterator[str]:
    """The paths of the texts with a NUL; for a key with a NUL, the path of its object."""
    if isinstance(value, str) and "\0" in value:
        yield path
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[Any]", value)):
            yield from _nul_paths(f"{path}[{index}]", item)
    elif isinstance(value, dict):
        for name, item in cast("dict[str, Any]", value).items():
            yield from [path] if "\0" in name else _nul_paths(f"{path}.{name}", item)
