"""The JSON schema that a request demands for the text of the answer, and the checks that it can be used."""

import asyncio
from typing import Annotated, Any, Literal, cast

import msgspec
from jsonschema import Draft7Validator
from jsonschema.exceptions import SchemaError
from msgspec import Meta

from luxx.errors import InvalidInput

MAX_SCHEMA_BYTES = 65_536
MAX_SCHEMA_DEPTH = 32
MAX_SCHEMA_VALUES = 2000
"""Providers allow less of all three. Larger schemas could overload a parser."""


class ResponseFormat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`schema` is a JSON schema of type object; `name` names the described object."""

    type: Literal["json_schema"]
    schema: dict[str, Any]
    name: (
        Annotated[
            str,
            Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}$(?!\n)", description="1 to 64 letters, digits, '_' and '-'"),
        ]
        | None
    ) = None


async def checked_schema(requested: ResponseFormat) -> dict[str, Any]:
    """The schema to send to the model. Raises InvalidInput for an invalid or too large schema."""
    return await asyncio.to_thread(_check, requested)


def _check(requested: ResponseFormat) -> dict[str, Any]:
    if _is_deeper(requested.schema, MAX_SCHEMA_DEPTH):
        raise _invalid_schema(f"the schema is nested more than {MAX_SCHEMA_DEPTH} deep")
    if _count_values(requested.schema) > MAX_SCHEMA_VALUES:
        raise _invalid_schema(f"the schema has more than {MAX_SCHEMA_VALUES} values")
    if len(msgspec.json.encode(requested.schema)) > MAX_SCHEMA_BYTES:
        raise _invalid_schema(f"the schema is larger than {MAX_SCHEMA_BYTES} bytes")
    if requested.schema.get("type") != "object":
        raise _invalid_schema('the schema must have "type": "object"; models answer with an object')
    try:
        # Models support the keywords of this draft, and validation by a later one takes ten times as long.
        Draft7Validator.check_schema(requested.schema)
    except SchemaError as error:
        raise _invalid_schema(
            f"the schema is not a JSON schema: {error.json_path} {error.message[:200]}"
        ) from error
    return {"title": requested.name, **requested.schema} if requested.name else requested.schema


def _is_deeper(value: object, depth: int) -> bool:
    children = _children(value)
    return bool(children) and (depth == 0 or any(_is_deeper(child, depth - 1) for child in children))


def _count_values(value: object) -> int:
    return 1 + sum(_count_values(child) for child in _children(value))


def _children(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(cast("dict[str, object]", value).values())
    return cast("list[object]", value) if isinstance(value, list) else []


def _invalid_schema(problem: str) -> InvalidInput:
    return InvalidInput(f"response_format: {problem}", field="$.response_format.schema")
