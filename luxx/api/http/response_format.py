"""`response_format` of a message: the JSON schema that an answer's text must fit, read and bounded here."""

import asyncio
from typing import Annotated, Any, Literal, cast

import msgspec
from jsonschema import Draft7Validator
from jsonschema.exceptions import SchemaError
from msgspec import Meta

from luxx.errors import InvalidInput

SCHEMA_BYTES = 65_536
SCHEMA_DEPTH = 32
SCHEMA_VALUES = 2000
"""Providers take less of all three; past this it is no description of an answer but an attack on a parser."""


class ResponseFormat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`schema` is a JSON schema of type object; `name` says what it describes."""

    type: Literal["json_schema"]
    schema: dict[str, Any]
    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}$(?!\n)")] | None = None


async def response_schema(asked: ResponseFormat | None) -> dict[str, Any] | None:
    """The schema to ask the model with. Raises InvalidInput for one that is none, or is out of bounds."""
    return None if asked is None else await asyncio.to_thread(_checked, asked)


def _checked(asked: ResponseFormat) -> dict[str, Any]:
    if _is_deeper(asked.schema, SCHEMA_DEPTH):
        raise _refused(f"the schema is nested more than {SCHEMA_DEPTH} deep")
    if _size(asked.schema) > SCHEMA_VALUES:
        raise _refused(f"the schema has more than {SCHEMA_VALUES} values")
    if len(msgspec.json.encode(asked.schema)) > SCHEMA_BYTES:
        raise _refused(f"the schema is larger than {SCHEMA_BYTES} bytes")
    if asked.schema.get("type") != "object":
        raise _refused('the schema has "type": "object"; models answer with an object')
    try:
        # What models understand is in this draft, and to check by a later one takes ten times as long.
        Draft7Validator.check_schema(asked.schema)
    except SchemaError as error:
        raise _refused(f"the schema is not a JSON schema: {error.json_path} {error.message[:200]}") from error
    return {"title": asked.name, **asked.schema} if asked.name else asked.schema


def _is_deeper(value: object, depth: int) -> bool:
    inner = _inner(value)
    return bool(inner) and (depth == 0 or any(_is_deeper(each, depth - 1) for each in inner))


def _size(value: object) -> int:
    return 1 + sum(_size(each) for each in _inner(value))


def _inner(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(cast("dict[str, object]", value).values())
    return cast("list[object]", value) if isinstance(value, list) else []


def _refused(problem: str) -> InvalidInput:
    return InvalidInput(
        f"response_format: {problem}", detail={"fields": {"$.response_format.schema": problem}}
    )
