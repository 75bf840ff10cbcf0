"""Routes that take or give files, as the OpenAPI document tells of them. For `schema.py`."""

import inspect
import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias, Union, cast, get_args, get_origin

import msgspec
from litestar.params import ParameterKwarg
from litestar.typing import FieldDefinition
from msgspec import Meta

from luxx.domain.transfer.document import ExportDocument

Route = tuple[str, str]

DOWNLOADS: dict[Route, tuple[Any, str]] = {
    ("GET", "/conversations/{conversation_id}/export"): (ExportDocument, "text/markdown"),
}
"""Routes that answer with a bare document, and the other media type they also have."""

UPLOADS: dict[Route, dict[str, Any]] = {
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
"""Routes whose body is a file, streamed, and what it may be."""


Json: TypeAlias = dict[str, Any]

REF = "#/components/schemas/{name}"
MODULES = re.compile(r"luxx(?:\.[a-z_]+)*\.(?=[A-Z])")
TIMES = re.compile(r"_at$|^timestamp$")
"""Names of fields that hold a time; msgspec gives no format for those that may be naive."""


class Types:
    """Schemas of all types that operations speak of, under short names."""

    def __init__(self, wanted: list[Any]) -> None:
        self._wanted = wanted
        references, components = msgspec.json.schema_components(wanted, ref_template=REF)
        self._names = _short_names(list(components))
        self._references = [self._tidied(reference) for reference in references]
        self.components: Json = {
            self._names[name]: _always_whole(self._tidied(schema))
            for name, schema in sorted(components.items())
        }

    def of(self, kind: Any) -> Json:
        """The schema of a type, for the most part a reference."""
        return next(schema for one, schema in zip(self._wanted, self._references, strict=True) if one == kind)

    def _tidied(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._tidied(item) for item in cast("list[Any]", value)]
        if not isinstance(value, dict):
            return value
        return {key: self._tidied_item(key, item) for key, item in cast("Json", value).items()}

    def _tidied_item(self, key: str, item: Any) -> Any:
        if isinstance(item, str) and item.startswith(REF.format(name="")):
            return REF.format(name=self._names[item.rpartition("/")[2]])
        if isinstance(item, str) and key == "description":
            return inspect.cleandoc(item)
        if isinstance(item, str) and key == "title":
            return MODULES.sub("", item)
        if isinstance(item, dict) and key == "properties":
            fields = cast("dict[str, Json]", item)
            return {name: _timed(name, self._tidied(schema)) for name, schema in fields.items()}
        return self._tidied(item)


def _short_names(names: list[str]) -> dict[str, str]:
    """`Success_luxx.wire.run.Run_` as `Success_Run`, unless two would get the same name."""
    short = {name: MODULES.sub("", name).strip("_") for name in names}
    taken = list(short.values())
    return {name: brief if taken.count(brief) == 1 else name for name, brief in short.items()}


def _always_whole(schema: Json) -> Json:
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


def _timed(name: str, schema: Json) -> Json:
    if not TIMES.search(name):
        return schema
    if "anyOf" in schema:
        return {**schema, "anyOf": [_timed(name, one) for one in schema["anyOf"]]}
    return {**schema, "format": "date-time"} if schema.get("type") == "string" else schema


def is_shape(kind: Any) -> bool:
    """Whether a type is one of ours, and not bytes, text or anything."""
    named = get_origin(kind) or kind
    return isinstance(named, type) and issubclass(named, msgspec.Struct)


def is_list(kind: Any) -> bool:
    """Whether a type is a list, with bounds or without."""
    return get_origin(get_args(kind)[0] if get_origin(kind) is Annotated else kind) is list


def parameter_type(field: FieldDefinition) -> Any:
    """The parameter's type with its bounds; null has no spelling in a path or a query."""
    options = [one for one in get_args(field.annotation) if one is not type(None)]
    kind: Any = Union[tuple(options)] if field.is_optional else field.annotation  # noqa: UP007 - made at run time
    told = field.kwarg_definition
    if not isinstance(told, ParameterKwarg):
        return kind
    bounds = {
        "gt": told.gt,
        "ge": told.ge,
        "lt": told.lt,
        "le": told.le,
        "min_length": told.min_length,
        "max_length": told.max_length,
        "pattern": told.pattern,
    }
    given = {name: bound for name, bound in bounds.items() if bound is not None}
    return Annotated[kind, Meta(**cast("Mapping[str, Any]", given))] if given else kind
