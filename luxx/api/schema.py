"""The OpenAPI document, made from the routes: types by msgspec, which also reads the requests, so they agree.

What no signature tells (streams, failures, who may come in) is added here; how it is shown is `docs.py`'s.
"""

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, TypeAlias, Union, cast, get_args, get_origin

import msgspec
from litestar import Litestar, Response
from litestar.handlers import HTTPRouteHandler
from litestar.params import HeaderParameter, ParameterKwarg
from litestar.routes import HTTPRoute
from litestar.typing import FieldDefinition
from msgspec import Meta

from luxx.api.envelope import Failure, Success
from luxx.api.guards import PUBLIC
from luxx.wire.event import Event, RunState
from luxx.wire.run import Run

Json: TypeAlias = dict[str, Any]

BODY = "data"
RESERVED = frozenset({"request", "socket", "state", "scope", "headers", "cookies", "query", "body", BODY})
REF = "#/components/schemas/{name}"
MODULES = re.compile(r"luxx(?:\.[a-z_]+)*\.(?=[A-Z])")
TIMES = re.compile(r"_at$|^timestamp$")
"""Names of fields that hold a time; msgspec gives no format for those that may be naive."""

TAGS = {
    "service": "What runs here and whether it works.",
    "auth": "Sign-in.",
    "users": "Administering users.",
    "tenants": "The group of users that one belongs to.",
    "conversations": "Make, list, change and delete conversations.",
    "messages": "Send a message and get its answer, whole or as a stream.",
    "runs": "Look at runs, follow one, cancel one.",
    "providers": "Connect models.",
    "tools": "Which tools there are, and running one by hand.",
    "settings": "The signed-in user's defaults.",
    "admin": "For administrators of the whole server.",
}
REFUSALS = {
    "400": ("BadRequest", "What was sent is not valid; `detail.fields` names each wrong place."),
    "401": ("NotSignedIn", "No token, or one that has expired or was revoked."),
    "403": ("NotAllowed", "Signed in, but not allowed; or a host or origin that is not."),
    "404": ("NotFound", "Missing, or someone else's: there is no telling which."),
    "409": ("Conflict", "The state does not allow it now."),
    "413": ("TooLarge", "The body is larger than the server takes."),
    "429": ("TooMany", "A limit was reached; `Retry-After` says in how many seconds to try again."),
    "502": (
        "UpstreamFailed",
        "The model's server failed for good; `detail.run_id` names the run, if one began.",
    ),
    "503": ("Unavailable", "A part of the server is not there; try later."),
    "default": ("Failed", "Any other failure, in the same envelope."),
}
ASKS_UPSTREAM = frozenset({"messages", "providers"})


class LoggedEvents(msgspec.Struct, frozen=True, kw_only=True):
    """Logged events, oldest first; each also has its `seq`."""

    events: list[Event]
    has_more: bool


STREAMS: dict[tuple[str, str], tuple[int, Any, str]] = {
    ("POST", "/messages/stream"): (202, Success[Run], "the run"),
    ("GET", "/runs/{run_id}/events"): (200, Success[LoggedEvents], "a page of the log"),
}
"""Routes that stream events, and what they answer instead with `Accept: application/json`."""

LAST_EVENT_ID: Json = {
    "name": "Last-Event-ID",
    "in": "header",
    "required": False,
    "description": "the last `id` that was received; the stream goes on after it",
    "schema": {"type": "string", "pattern": "^[0-9]{0,9}$"},
}


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """A route's handler for one method; `answer` is the type of what it answers."""

    method: str
    path: str
    handler: HTTPRouteHandler
    parameters: list[tuple[FieldDefinition, str]]
    body: Any
    answer: Any

    @property
    def is_public(self) -> bool:
        return bool(self.handler.opt.get(PUBLIC))

    @property
    def tags(self) -> list[str]:
        return sorted(self.handler.resolve_tags())


def build_document(app: Litestar, *, title: str, version: str) -> Json:
    """OpenAPI 3.1 of all routes of the application."""
    operations = list(_operations(app))
    types = _Types(operations)
    paths: dict[str, Json] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _describe(operation, types)
    tags = sorted({tag for operation in operations for tag in operation.tags}, key=_place_of_tag)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": title,
            "version": version,
            "description": "People and AI agents, working together.",
        },
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}],
        "tags": [{"name": tag, "description": TAGS.get(tag, "")} for tag in tags],
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": types.components,
            "responses": {name: _refusal(types, status) for status, (name, _) in REFUSALS.items()},
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The `access_token` of POST /auth/login.",
                }
            },
        },
    }


def _place_of_tag(tag: str) -> tuple[int, str]:
    names = list(TAGS)
    return (names.index(tag) if tag in names else len(names), tag)


# Reading routes


def _operations(app: Litestar) -> Iterator[Operation]:
    for route in app.routes:
        if not isinstance(route, HTTPRoute):
            continue
        for handler in route.route_handlers:
            for method in sorted(handler.http_methods):
                if method != "OPTIONS" and handler.resolve_include_in_schema():
                    yield _operation(route, handler, str(method))


def _operation(route: HTTPRoute, handler: HTTPRouteHandler, method: str) -> Operation:
    given = handler.parsed_fn_signature.parameters
    hidden = RESERVED | set(handler.resolve_dependencies())
    in_path = set(route.path_parameters)
    annotation = handler.parsed_fn_signature.return_type.annotation
    return Operation(
        method=method,
        path=route.path_format or "/",
        handler=handler,
        parameters=[
            (field, "path" if name in in_path else "query")
            for name, field in given.items()
            if name not in hidden or name in in_path
        ],
        body=given[BODY].annotation if BODY in given else None,
        answer=get_args(annotation)[0] if get_origin(annotation) is Response else annotation,
    )


# Types


class _Types:
    """JSON schemas of all types that operations speak of, under short names."""

    def __init__(self, operations: list[Operation]) -> None:
        wanted = [Failure, RunState, Event, *(answer for _, answer, _ in STREAMS.values())]
        for operation in operations:
            wanted += [_parameter_type(field) for field, _ in operation.parameters]
            wanted += [one for one in (operation.body, operation.answer) if _is_shape(one)]
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


def _is_shape(kind: Any) -> bool:
    """Whether a type is one of ours, and not bytes, text or anything."""
    named = get_origin(kind) or kind
    return isinstance(named, type) and issubclass(named, msgspec.Struct)


def _parameter_type(field: FieldDefinition) -> Any:
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


# Describing


def _describe(operation: Operation, types: _Types) -> Json:
    handler = operation.handler
    said = inspect.cleandoc(handler.fn.__doc__ or "")
    summary = handler.summary or said.partition("\n")[0].rstrip(".")
    described: Json = {
        "tags": operation.tags,
        "operationId": f"{'_'.join(operation.tags)}_{handler.fn.__name__}",
        "summary": summary,
        "description": said,
        "parameters": [_parameter(field, place, types) for field, place in operation.parameters],
    }
    if operation.is_public:
        described["security"] = []
    if operation.body is not None:
        content = {"application/json": {"schema": types.of(operation.body)}}
        described["requestBody"] = {"required": True, "content": content}
    stream = STREAMS.get((operation.method, operation.path))
    described["responses"] = _answers(operation, types)
    if stream is not None:
        described["responses"] = _stream_answers(*stream, types) | described["responses"]
        described["description"] = f"{said}\n\n{_event_table()}"
        if operation.method == "GET":
            described["parameters"].append(LAST_EVENT_ID)
    described["responses"] |= {
        status: {"$ref": f"#/components/responses/{REFUSALS[status][0]}"} for status in _refusals(operation)
    }
    return described


def _parameter(field: FieldDefinition, place: str, types: _Types) -> Json:
    told = field.kwarg_definition
    name = field.name
    described: Json = {"in": place, "required": place == "path" or field.is_required}
    if isinstance(told, ParameterKwarg):
        name = told.name or told.query or told.header or name
        place = "header" if isinstance(told, HeaderParameter) else place
        described["in"] = place
        if told.description:
            described["description"] = told.description
    schema = types.of(_parameter_type(field))
    if place == "query" and not field.is_required and field.default is not None:
        schema = {**schema, "default": field.default}
    return {"name": name, **described, "schema": schema}


def _answers(operation: Operation, types: _Types) -> Json:
    if (operation.method, operation.path) in STREAMS:
        return {}
    media = str(getattr(operation.handler.media_type, "value", operation.handler.media_type))
    if _is_shape(operation.answer):
        content = {"application/json": {"schema": types.of(operation.answer)}}
    else:
        content = {media: {"schema": {"type": "object" if media == "application/json" else "string"}}}
    answers: Json = {str(operation.handler.status_code): {"description": "Done.", "content": content}}
    if operation.path == "/":
        answers["303"] = {"description": "A browser (`Accept: text/html`) is sent to the pages."}
    return answers


def _stream_answers(status: int, answer: Any, what: str, types: _Types) -> Json:
    events = {"text/event-stream": {"schema": {"type": "string"}}}
    whole = {"application/json": {"schema": types.of(answer)}}
    instead = f"with `Accept: application/json` {what}"
    if status == 200:
        return {"200": {"description": f"The stream; {instead}.", "content": events | whole}}
    return {
        "200": {"description": "The stream.", "content": events},
        str(status): {"description": f"Started; {instead}.", "content": whole},
    }


def _event_table() -> str:
    """What a stream says, from the events' own docstrings."""
    rows = [
        f"| `{_tag(kind)}` | {_first_line(kind)} | {', '.join(f'`{name}`' for name in _own_fields(kind))} |"
        for kind in (RunState, *get_args(Event))
    ]
    return "\n".join(["| event | what | fields |", "| --- | --- | --- |", *rows])


def _tag(kind: type[msgspec.Struct]) -> str:
    return str(kind.__struct_config__.tag)


def _first_line(kind: type[msgspec.Struct]) -> str:
    return inspect.cleandoc(kind.__dict__.get("__doc__") or "").partition("\n")[0]


def _own_fields(kind: type[msgspec.Struct]) -> list[str]:
    return [name for name in kind.__struct_fields__ if name not in ("run_id", "timestamp")]


def _refusals(operation: Operation) -> list[str]:
    """The statuses that may come instead; 400 and 403 may always, for a wrong Host."""
    is_sign_in = operation.path.startswith("/auth/")
    may = {
        "400": True,
        "401": not operation.is_public or is_sign_in,
        "403": True,
        "404": not operation.is_public and bool(operation.parameters or operation.body),
        "409": operation.method != "GET" and (not operation.is_public or is_sign_in),
        "413": operation.body is not None,
        "429": not operation.is_public or is_sign_in,
        "502": bool(ASKS_UPSTREAM & set(operation.tags)),
        "503": True,
        "default": True,
    }
    return [status for status, can in may.items() if can]


def _refusal(types: _Types, status: str) -> Json:
    answer: Json = {
        "description": REFUSALS[status][1],
        "content": {"application/json": {"schema": types.of(Failure)}},
    }
    if status == "429":
        seconds = {"description": "seconds", "schema": {"type": "integer", "minimum": 1}}
        answer["headers"] = {"Retry-After": seconds}
    return answer
