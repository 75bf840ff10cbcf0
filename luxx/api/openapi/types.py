"""Type schemas of the OpenAPI document, and the media types of routes with files. For `document.py`."""

import inspect
import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias, Union, cast, get_args, get_origin

import msgspec
from litestar.params import ParameterKwarg
from litestar.typing import FieldDefinition
from msgspec import Meta

from luxx.domain.transfer.document import ExportDocument

RouteKey = tuple[str, str]

DOWNLOAD_ROUTES: dict[RouteKey, tuple[Any, str]] = {
    ("GET", "/conversations/{conversation_id}/export"): (ExportDocument, "text/markdown"),
}
"""Routes that send a document without the envelope: its type, and their other media type."""

UPLOAD_ROUTES: dict[RouteKey, dict[str, Any]] = {
    ("POST", "/conversations/import"): {
        "application/json": {"schema": {"anyOf": [{"type": "object"}, {"type": "array", "items": {}}]}},
        "application/zip": {"schema": {"type": "string", "format": "binary"}},
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "properties": {"file": {"type": "string", "format": "binary"}},
                "required": ["file"],
            }
        },
    },
}
"""Routes whose body is a streamed file: its media types and schemas."""

JsonObject: TypeAlias = dict[str, Any]

REF = "#/components/schemas/{name}"
MODULE_PREFIX = re.compile(r"luxx(?:\.[a-z_]+)*\.(?=[A-Z])")
TIME_FIELD = re.compile(r"_at$|^timestamp$")
"""Names of fields with a time. msgspec sets no format for times that may be naive."""


class TypeSchemas:
    """The schemas of all types in the operations, with short names."""

    def __init__(self, types: list[Any]) -> None:
        self._types = types
        references, components = msgspec.json.schema_components(types, ref_template=REF)
        self._names = _short_names(list(components))
        self._references = [self._cleaned(reference) for reference in references]
        self.components: JsonObject = {
            self._names[name]: _require_sent_fields(self._cleaned(schema))
            for name, schema in sorted(components.items())
        }

    def of(self, kind: Any) -> JsonObject:
        """The schema of a type, usually a reference."""
        return next(schema for one, schema in zip(self._types, self._references, strict=True) if one == kind)

    def _cleaned(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._cleaned(item) for item in cast("list[Any]", value)]
        if not isinstance(value, dict):
            return value
        return {key: self._cleaned_item(key, item) for key, item in cast("JsonObject", value).items()}

    def _cleaned_item(self, key: str, item: Any) -> Any:
        if isinstance(item, str) and item.startswith(REF.format(name="")):
            return REF.format(name=self._names[item.rpartition("/")[2]])
        if isinstance(item, str) and key == "description":
            return inspect.cleandoc(item)
        if isinstance(item, str) and key == "title":
            return MODULE_PREFIX.sub("", item)
        if isinstance(item, dict) and key == "properties":
            fields = cast("dict[str, JsonObject]", item)
            return {name: _with_time_format(name, self._cleaned(schema)) for name, schema in fields.items()}
        return self._cleaned(item)


def _short_names(names: list[str]) -> dict[str, str]:
    """Shortens `Success_luxx.wire.run.Run_` to `Success_Run`, unless two types would get the same name."""
    short = {name: MODULE_PREFIX.sub("", name).strip("_") for name in names}
    taken = list(short.values())
    return {name: short_name if taken.count(short_name) == 1 else name for name, short_name in short.items()}


def _require_sent_fields(schema: JsonObject) -> JsonObject:
    """Marks fields with defaults as required: the server sends them always and omits only UNSET fields."""
    if "properties" not in schema or schema.get("additionalProperties") is False:
        return schema
    fields: dict[str, JsonObject] = schema["properties"]
    sent = {
        name: {key: item for key, item in definition.items() if key != "default"}
        for name, definition in fields.items()
    }
    marked = schema.get("required", [])
    required = [name for name, definition in fields.items() if name in marked or "default" in definition]
    return {**schema, "properties": sent, "required": required}


def _with_time_format(name: str, schema: JsonObject) -> JsonObject:
    if not TIME_FIELD.search(name):
        return schema
    if "anyOf" in schema:
        return {**schema, "anyOf": [_with_time_format(name, one) for one in schema["anyOf"]]}
    return {**schema, "format": "date-time"} if schema.get("type") == "string" else schema


def is_struct_type(kind: Any) -> bool:
    """Whether a type is a msgspec Struct, generic or not."""
    origin = get_origin(kind) or kind
    return isinstance(origin, type) and issubclass(origin, msgspec.Struct)


def is_list(kind: Any) -> bool:
    """Whether a type is a list, with constraints or without."""
    return get_origin(get_args(kind)[0] if get_origin(kind) is Annotated else kind) is list


def parameter_type(field: FieldDefinition) -> Any:
    """The parameter's type with its constraints and without None, which a path or query cannot express."""
    options = [one for one in get_args(field.annotation) if one is not type(None)]
    kind: Any = Union[tuple(options)] if field.is_optional else field.annotation  # noqa: UP007 - made at run time
    definition = field.kwarg_definition
    if not isinstance(definition, ParameterKwarg):
        return kind
    bounds = {
        "gt": definition.gt,
        "ge": definition.ge,
        "lt": definition.lt,
        "le": definition.le,
        "min_length": definition.min_length,
        "max_length": definition.max_length,
        "pattern": definition.pattern,
    }
    constraints = {name: bound for name, bound in bounds.items() if bound is not None}
    return Annotated[kind, Meta(**cast("Mapping[str, Any]", constraints))] if constraints else kind
