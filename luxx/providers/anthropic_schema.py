"""A JSON schema made fit for Anthropic's structured output: what the API refuses is said in words instead."""

from typing import Any, cast

import msgspec

_KEPT = frozenset({"type", "enum", "const", "title", "required", "default", "$ref"})
_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"}
)


def strict_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """The same schema with closed objects and without limits; those go into the description."""
    strict: dict[str, Any] = {name: value for name, value in schema.items() if name in _KEPT}
    if "$ref" in strict:
        return {"$ref": strict["$ref"], **_definitions(schema)}
    left = {name: value for name, value in schema.items() if name not in _KEPT | _READ}
    for name, as_name in (("anyOf", "anyOf"), ("oneOf", "anyOf"), ("allOf", "allOf")):
        if isinstance(schema.get(name), list):
            strict[as_name] = [strict_schema(one) for one in _objects(schema[name])]
    if schema.get("type") == "object" or "properties" in schema:
        strict["type"] = "object"
        strict["properties"] = _each(schema.get("properties"))
        strict["additionalProperties"] = False
    if isinstance(schema.get("items"), dict):
        strict["items"] = strict_schema(schema["items"])
    if schema.get("format") in _FORMATS:
        strict["format"] = schema["format"]
    elif "format" in schema:
        left["format"] = schema["format"]
    if schema.get("minItems") in (0, 1):
        strict["minItems"] = schema["minItems"]
    elif "minItems" in schema:
        left["minItems"] = schema["minItems"]
    said = [str(schema["description"])] if schema.get("description") else []
    if left:
        said.append(msgspec.json.encode(left).decode())
    if said:
        strict["description"] = "\n\n".join(said)
    return {**strict, **_definitions(schema)}


_READ = frozenset(
    {
        "$defs",
        "$schema",
        "additionalProperties",
        "allOf",
        "anyOf",
        "definitions",
        "description",
        "format",
        "items",
        "minItems",
        "oneOf",
        "properties",
    }
)


def _definitions(schema: dict[str, Any]) -> dict[str, Any]:
    return {name: _each(schema[name]) for name in ("$defs", "definitions") if name in schema}


def _each(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        return {}
    fields = cast("dict[str, Any]", value)
    return {
        name: strict_schema(cast("dict[str, Any]", one))
        for name, one in fields.items()
        if isinstance(one, dict)
    }


def _objects(value: list[Any]) -> list[dict[str, Any]]:
    return [cast("dict[str, Any]", one) for one in value if isinstance(one, dict)]
