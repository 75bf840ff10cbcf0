"""Type schemas of the OpenAPI document, for `document.py`."""

import inspect
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, TypeAlias, cast, get_args, get_origin

import msgspec

from luxx.api.openai.chat_answer import ChatCompletion
from luxx.api.openai.responses_answer import ResponseObject
from luxx.domain.agents.document import AgentDocument
from luxx.domain.transfer.document import ExportDocument
from luxx.features.rooms.document import RoomDocument
from luxx.features.tasks.document import TaskDocument

RouteKey = tuple[str, str]

DOWNLOAD_ROUTES: dict[RouteKey, tuple[Any, *tuple[str, ...]]] = {
    ("GET", "/agents/{agent_id}/export"): (AgentDocument, "application/yaml"),
    ("GET", "/chat-rooms/{room_id}/export"): (RoomDocument, "application/yaml", "text/markdown"),
    ("GET", "/conversations/{conversation_id}/export"): (ExportDocument, "text/markdown"),
    ("GET", "/tasks/{task_id}/export"): (TaskDocument, "application/yaml"),
}
"""Routes that send a document without the envelope: its type, and their media types besides JSON."""

OPENAI_ROUTES: dict[RouteKey, Any] = {
    ("POST", "/v1/chat/completions"): ChatCompletion,
    ("POST", "/v1/responses"): ResponseObject,
}
"""Routes that answer with this type or, with `stream` in the body, with OpenAI's stream."""

TEXT_ROUTES: dict[RouteKey, tuple[str, ...]] = {
    ("GET", "/tasks/{task_id}/graph"): ("text/vnd.mermaid", "text/vnd.graphviz"),
}
"""Routes that can also send text without the envelope: its media types."""

JsonObject: TypeAlias = dict[str, Any]

REF = "#/components/schemas/{name}"
MODULE_PREFIX = re.compile(r"luxx(?:\.[a-z_]+)*\.(?=[A-Z])")
TIME_FIELD = re.compile(r"_at$|^timestamp$")
"""Names of fields with a time. msgspec sets no format for times that may be naive."""


DESCRIPTIONS: dict[str, dict[str, str]] = tomllib.loads(
    Path(__file__).with_name("descriptions.toml").read_text("utf-8")
)
"""The descriptions of fields by schema and name; `any` for all schemas, `parameters` for parameters."""

TAGS = DESCRIPTIONS.pop("tags")
"""The descriptions of the tags of routes, in the order of the document."""

EXAMPLES: dict[str, Any] = {
    route: msgspec.json.decode(body) for route, body in DESCRIPTIONS.pop("examples").items()
}
"""An example of each JSON body, by method and path: `POST /messages`."""


class TypeSchemas:
    """The schemas of all types in the operations, with short names. `bodies`: those of requests."""

    def __init__(self, types: list[Any], bodies: list[Any]) -> None:
        self._types = types
        references, components = msgspec.json.schema_components(types, ref_template=REF)
        self._names = _short_names(list(components))
        sent = [each for each in types if each not in bodies]
        _, of_answers = msgspec.json.schema_components(sent, ref_template=REF)
        self._references = [self._cleaned(reference) for reference in references]
        self.components: JsonObject = {
            self._names[name]: _describe_fields(
                self._names[name],
                _require_sent_fields(self._cleaned(schema)) if name in of_answers else self._cleaned(schema),
            )
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


def _describe_fields(name: str, schema: JsonObject) -> JsonObject:
    """Adds the descriptions of fields that have none."""
    described = DESCRIPTIONS["any"] | DESCRIPTIONS.get(name, {})
    for field, definition in schema.get("properties", {}).items():
        if field in described:
            definition.setdefault("description", described[field])
    return schema


def _with_time_format(name: str, schema: JsonObject) -> JsonObject:
    if not TIME_FIELD.search(name):
        return schema
    if "anyOf" in schema:
        return {**schema, "anyOf": [_with_time_format(name, option) for option in schema["anyOf"]]}
    return {**schema, "format": "date-time"} if schema.get("type") == "string" else schema


def is_struct_type(kind: Any) -> bool:
    """Whether a type is a msgspec Struct, generic or not."""
    origin = get_origin(kind) or kind
    return isinstance(origin, type) and issubclass(origin, msgspec.Struct)


def is_list(kind: Any) -> bool:
    """Whether a type is a list, with constraints or without."""
    return get_origin(get_args(kind)[0] if get_origin(kind) is Annotated else kind) is list
