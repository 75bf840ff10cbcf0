"""Schemas of types as msgspec makes them, put into the form of the OpenAPI document. Pure."""

import re
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]

MODULES = re.compile(r"luxx(?:\.[a-z_]+)*\.(?=[A-Z])")
TIMES = re.compile(r"_at$|^timestamp$")
"""Names of fields that hold a time; msgspec gives no format for those that may be naive."""


def short_names(names: list[str]) -> dict[str, str]:
    """`Success_luxx.wire.run.Run_` as `Success_Run`, unless two would get the same name."""
    short = {name: MODULES.sub("", name).strip("_") for name in names}
    taken = list(short.values())
    return {name: brief if taken.count(brief) == 1 else name for name, brief in short.items()}


def always_whole(schema: Json) -> Json:
    """What we send carries every field, defaults too; only what may be unset is left out at times."""
    if "properties" not in schema or schema.get("additionalProperties") is False:
        return schema
    fields: dict[str, Json] = schema["properties"]
    sent = {
        name: {key: item for key, item in told.items() if key != "default"} for name, told in fields.items()
    }
    known = schema.get("required", [])
    required = [name for name, told in fields.items() if name in known or "default" in told]
    return {**schema, "properties": sent, "required": required}


def timed(name: str, schema: Json) -> Json:
    if not TIMES.search(name):
        return schema
    if "anyOf" in schema:
        return {**schema, "anyOf": [timed(name, one) for one in schema["anyOf"]]}
    return {**schema, "format": "date-time"} if schema.get("type") == "string" else schema
