"""Builds the OpenAPI document from the routes, and from what signatures do not contain: streams, errors and
public routes. msgspec, which decodes the requests, makes the type schemas. `page.py` renders the document."""

import inspect
import re
from collections.abc import Iterator, Sequence
from typing import Any, get_args, get_origin

import msgspec
from litestar import Litestar, Response
from litestar.handlers import HTTPRouteHandler
from litestar.params import HeaderParameter, ParameterKwarg
from litestar.routes import HTTPRoute
from litestar.typing import FieldDefinition

from luxx.api.http.authentication import PUBLIC
from luxx.api.http.envelope import OPENAI_PREFIX, Failure, OpenAIFailure, Success
from luxx.api.http.request_input import (
    BODY,
    OPENAPI_EXTRA,
    body_type,
    declared_parameters,
    parameter_type,
    with_openapi_extra,
)
from luxx.api.openapi.types import (
    DESCRIPTIONS,
    DOWNLOAD_ROUTES,
    EXAMPLES,
    OPENAI_ROUTES,
    TAGS,
    TEXT_ROUTES,
    JsonObject,
    TypeSchemas,
    is_list,
    is_struct_type,
)
from luxx.api.routes.runs import LoggedEvents
from luxx.api.routes.setup import SetupBody
from luxx.domain.conversations.views import MessageView
from luxx.features.knowledge.documents import DocumentBody
from luxx.features.tasks.models import PlanView
from luxx.wire.event import Event, RunSnapshot
from luxx.wire.queue import QueuedMessage
from luxx.wire.run import Run
from luxx.wire.socket import ClientMessage, ServerMessage

CREDENTIALS = (
    "The `access_token` of POST /auth/login, or an API key of POST /keys. A key with the scope `read` may "
    "send GET and HEAD requests and POST /auth/ticket; with `chat` also what changes conversations, "
    "projects, agents, rooms, tasks, prompts, files and runs; with `admin` all that its user may do. No "
    "key may create keys, change the password or sign out."
)
"""What the Authorization header may have."""

ERROR_RESPONSES = {
    "400": ("BadRequest", "The request is not valid; `detail.fields` names each wrong field."),
    "401": ("NotSignedIn", "The token or API key is missing, expired or revoked."),
    "403": ("NotAllowed", "The user, the host or the origin is not allowed to do this."),
    "404": ("NotFound", "Missing, or owned by someone else; the response does not say which."),
    "409": ("Conflict", "The current state does not allow the request."),
    "410": ("Gone", "Deleted because of its age."),
    "413": ("TooLarge", "The body is larger than the server accepts."),
    "429": ("TooMany", "A limit is reached; `Retry-After` gives the seconds to wait."),
    "502": (
        "UpstreamFailed",
        "The provider failed, also after retries; `detail.run_id` names the run, if one started.",
    ),
    "503": ("Unavailable", "A part of the server is unavailable; try later."),
    "default": ("Failed", "Any other error, in the same envelope."),
}
OPENAI = "OpenAI"
"""The prefix of the names of responses to failed requests of the OpenAI-compatible API."""

UPSTREAM_TAGS = frozenset({"openai", "agents", "messages", "providers", "tasks"})

STREAM_ROUTES: dict[tuple[str, str], tuple[int, Any, str]] = {
    ("POST", "/artifacts/{artifact_id}/regenerate"): (202, Success[Run], "the run"),
    ("POST", "/agents/{agent_id}/invoke"): (200, Success[MessageView], "or any other, the complete message"),
    ("POST", "/conversations/{conversation_id}/compress"): (202, Success[Run], "the run"),
    ("POST", "/messages/stream"): (202, Success[Run], "the run"),
    ("POST", "/messages/{message_id}/regenerate"): (202, Success[Run], "the run"),
    ("GET", "/runs/{run_id}/events"): (200, Success[LoggedEvents], "a page of the log"),
    ("GET", "/tasks/{task_id}/events"): (200, Success[LoggedEvents], "a page of the log"),
    ("POST", "/tasks/plan"): (200, Success[PlanView], "or any other, the plan"),
    ("POST", "/tasks/{task_id}/execute"): (202, Success[Run], "the run"),
    ("POST", "/tasks/{task_id}/resume"): (202, Success[Run], "the run"),
    ("GET", "/chat-rooms/{room_id}/events"): (200, Success[LoggedEvents], "a page of the log"),
    ("POST", "/chat-rooms/{room_id}/start"): (202, Success[Run], "the run"),
    ("POST", "/chat-rooms/{room_id}/resume"): (202, Success[Run], "the run"),
}
"""Routes that stream events: status, type and description of the response to `Accept: application/json`."""

QUEUE_ROUTES = frozenset({("POST", "/messages"), ("POST", "/messages/stream")})
"""Routes that answer 202 with `QueuedMessage` for a message that waits."""

PAGE_ROUTES = frozenset({("GET", "/setup"), ("POST", "/setup")})
"""Routes that send a page to a browser (`Accept: text/html`)."""

SOCKET_TICKET_ROUTE = ("POST", "/auth/ticket")
"""OpenAPI cannot describe WebSockets, so the description of this route contains the table of messages."""

LAST_EVENT_ID: JsonObject = {
    "name": "Last-Event-ID",
    "in": "header",
    "required": False,
    "description": "the last `id` that the client received; the stream continues after it",
    "schema": {"type": "string", "pattern": r"^[0-9]{0,9}$(?!\n)"},
}


OTHER_BODIES: list[Any] = [DocumentBody]
"""The types of JSON bodies that their handlers decode themselves."""

SENTENCE_END = re.compile(r"(?<=[.!?]) (?=[A-Z`])")


class ApiOperation(msgspec.Struct, frozen=True, kw_only=True):
    """A route's handler for one method. `response` is the type of its response."""

    method: str
    path: str
    handler: HTTPRouteHandler
    parameters: list[tuple[FieldDefinition, str]]
    body: Any
    is_body_optional: bool
    response: Any

    @property
    def key(self) -> tuple[str, str]:
        return self.method, self.path

    @property
    def is_public(self) -> bool:
        return bool(self.handler.opt.get(PUBLIC))

    @property
    def has_body(self) -> bool:
        return self.body is not None or "requestBody" in self.handler.opt.get(OPENAPI_EXTRA, {})

    @property
    def tags(self) -> list[str]:
        return sorted(self.handler.resolve_tags())


def build_document(app: Litestar, *, title: str, version: str) -> JsonObject:
    """The OpenAPI 3.1 document of all routes of the application."""
    operations = list(_operations(app))
    bodies = [*OTHER_BODIES, *(operation.body for operation in operations)]
    types = TypeSchemas([*OTHER_BODIES, *_documented_types(operations)], bodies)
    paths: dict[str, JsonObject] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _describe(operation, types)
    used_tags = {tag for operation in operations for tag in operation.tags}
    tags = [*(tag for tag in TAGS if tag in used_tags), *sorted(used_tags - TAGS.keys())]
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
            "responses": {
                f"{prefix}{name}": _error_response(types, status, failure)
                for prefix, failure in (("", Failure), (OPENAI, OpenAIFailure))
                for status, (name, _) in ERROR_RESPONSES.items()
            },
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": CREDENTIALS,
                }
            },
        },
    }


def _documented_types(operations: list[ApiOperation]) -> list[Any]:
    documented: list[Any] = [
        Failure,
        OpenAIFailure,
        *OPENAI_ROUTES.values(),
        RunSnapshot,
        SetupBody,
        Event,
        ClientMessage,
        ServerMessage,
        Success[QueuedMessage],
        *(response for _, response, _ in STREAM_ROUTES.values()),
    ]
    documented += [document for document, *_ in DOWNLOAD_ROUTES.values()]
    for operation in operations:
        documented += [parameter_type(field) for field, _ in operation.parameters]
        documented += [operation.response] if is_struct_type(operation.response) else []
        documented += [operation.body] if is_struct_type(operation.body) or is_list(operation.body) else []
    return documented


# Reading routes


def _operations(app: Litestar) -> Iterator[ApiOperation]:
    for route in app.routes:
        if not isinstance(route, HTTPRoute):
            continue
        for handler in route.route_handlers:
            for method in sorted(handler.http_methods):
                if method not in ("HEAD", "OPTIONS") and handler.resolve_include_in_schema():
                    yield _operation(route, handler, str(method))


def _operation(route: HTTPRoute, handler: HTTPRouteHandler, method: str) -> ApiOperation:
    signature_parameters = handler.parsed_fn_signature.parameters
    in_path = set(route.path_parameters)
    annotation = handler.parsed_fn_signature.return_type.annotation
    return ApiOperation(
        method=method,
        path=route.path_format or "/",
        handler=handler,
        parameters=[
            (field, "path" if name in in_path else "query")
            for name, field in declared_parameters(handler).items()
        ],
        body=body_type(signature_parameters[BODY].annotation) if BODY in signature_parameters else None,
        is_body_optional=BODY in signature_parameters and signature_parameters[BODY].has_default,
        response=get_args(annotation)[0] if get_origin(annotation) is Response else annotation,
    )


# Describing


def _describe(operation: ApiOperation, types: TypeSchemas) -> JsonObject:
    handler = operation.handler
    docstring = inspect.cleandoc(handler.fn.__doc__ or "")
    described: JsonObject = {
        "tags": operation.tags,
        "operationId": f"{'_'.join(operation.tags)}_{handler.fn.__name__}",
        "summary": handler.summary or _first_sentence(docstring),
        "description": docstring,
        "parameters": [_parameter(field, location, types) for field, location in operation.parameters],
    }
    if operation.is_public:
        described["security"] = []
    if operation.body is not None:
        content = {"application/json": {"schema": types.of(operation.body)}}
        described["requestBody"] = {"required": not operation.is_body_optional, "content": content}
    if operation.key == SOCKET_TICKET_ROUTE:
        described["description"] = f"{docstring}\n\n{_message_table()}"
    stream = STREAM_ROUTES.get(operation.key)
    described["responses"] = _responses(operation, types)
    if stream is not None:
        described["responses"] = _stream_responses(*stream, types) | described["responses"]
        described["description"] = f"{docstring}\n\n{_event_table()}"
        if operation.method == "GET":
            described["parameters"].append(LAST_EVENT_ID)
    if operation.key in QUEUE_ROUTES:
        waits = types.of(Success[QueuedMessage])
        content = described["responses"].get("202", {}).get("content", {}).get("application/json")
        schema = waits if content is None else {"anyOf": [content["schema"], waits]}
        described["responses"]["202"] = {
            "description": "The message waits (`when_busy`), or with `Accept: application/json` the run.",
            "content": {"application/json": {"schema": schema}},
        }
    prefix = OPENAI if operation.path.startswith(OPENAI_PREFIX) else ""
    described["responses"] |= {
        status: {"$ref": f"#/components/responses/{prefix}{ERROR_RESPONSES[status][0]}"}
        for status in _error_statuses(operation)
    }
    return _with_example(with_openapi_extra(described, handler.opt), operation)


def _first_sentence(docstring: str) -> str:
    paragraph = " ".join(docstring.partition("\n\n")[0].split())
    return SENTENCE_END.split(paragraph, maxsplit=1)[0].rstrip(".")


def _with_example(described: JsonObject, operation: ApiOperation) -> JsonObject:
    body = described.get("requestBody", {}).get("content", {}).get("application/json")
    if body is not None and (example := EXAMPLES.get(" ".join(operation.key))) is not None:
        body["example"] = example
    return described


def _parameter(field: FieldDefinition, location: str, types: TypeSchemas) -> JsonObject:
    parameter = field.kwarg_definition
    name = field.name
    described: JsonObject = {"in": location, "required": location == "path" or field.is_required}
    if isinstance(parameter, ParameterKwarg):
        name = parameter.name or parameter.query or parameter.header or name
        location = "header" if isinstance(parameter, HeaderParameter) else location
        described["in"] = location
        described["description"] = parameter.description
    described["description"] = described.get("description") or _description_of(name)
    schema = types.of(parameter_type(field))
    if location == "query" and not field.is_required and field.default is not None:
        schema = {**schema, "default": field.default}
    return {"name": name, **described, "schema": schema}


def _description_of(parameter: str) -> str:
    noun = parameter.removesuffix("_id").replace("_", " ")
    default = f"the id of the {noun}" if parameter.endswith("_id") else ""
    return DESCRIPTIONS["parameters"].get(parameter, default)


def _responses(operation: ApiOperation, types: TypeSchemas) -> JsonObject:
    if operation.key in STREAM_ROUTES:
        return {}
    content: JsonObject
    media = str(getattr(operation.handler.media_type, "value", operation.handler.media_type))
    if operation.key in OPENAI_ROUTES:
        whole = {"application/json": {"schema": types.of(OPENAI_ROUTES[operation.key])}}
        content = {**whole, "text/event-stream": {"schema": {"type": "string"}}}
    elif operation.key in DOWNLOAD_ROUTES:
        document, *others = DOWNLOAD_ROUTES[operation.key]
        schema = types.of(document)
        content = {"application/json": {"schema": schema}}
        for other in others:
            content[other] = {"schema": schema if other == "application/yaml" else {"type": "string"}}
    elif is_struct_type(operation.response):
        content = {"application/json": {"schema": types.of(operation.response)}}
    else:
        content = {media: {"schema": {"type": "object" if media == "application/json" else "string"}}}
    content |= {text: {"schema": {"type": "string"}} for text in TEXT_ROUTES.get(operation.key, ())}
    if operation.key in PAGE_ROUTES:
        content["text/html"] = {"schema": {"type": "string"}}
    responses: JsonObject = {str(operation.handler.status_code): {"description": "Done.", "content": content}}
    if operation.path == "/":
        responses["303"] = {"description": "Redirects a browser (`Accept: text/html`) to the page."}
    return responses


def _stream_responses(status: int, response: Any, about: str, types: TypeSchemas) -> JsonObject:
    events = {"text/event-stream": {"schema": {"type": "string"}}}
    json_content = {"application/json": {"schema": types.of(response)}}
    instead = f"with `Accept: application/json` {about}"
    if status == 200:
        return {"200": {"description": f"The stream; {instead}.", "content": events | json_content}}
    return {
        "200": {"description": "The stream.", "content": events},
        str(status): {"description": f"Started; {instead}.", "content": json_content},
    }


def _event_table() -> str:
    """A table of the events of a stream, from their docstrings."""
    rows = [_row(kind, hidden=("seq", "run_id", "timestamp")) for kind in (RunSnapshot, *get_args(Event))]
    return "\n".join(["| event | what | fields |", "| --- | --- | --- |", *rows])


def _message_table() -> str:
    """A table of the messages on a socket, from their docstrings."""
    senders = (("client", ClientMessage), ("server", ServerMessage))
    rows = [f"| {sender} {_row(kind)}" for sender, kinds in senders for kind in get_args(kinds)]
    return "\n".join(["| sender | `type` | what | fields |", "| --- | --- | --- | --- |", *rows])


def _row(kind: type[msgspec.Struct], *, hidden: Sequence[str] = ()) -> str:
    about = " ".join(inspect.cleandoc(kind.__dict__.get("__doc__") or "").partition("\n\n")[0].split())
    fields = ", ".join(f"`{name}`" for name in kind.__struct_fields__ if name not in hidden)
    return f"| `{kind.__struct_config__.tag}` | {about} | {fields} |"


def _error_statuses(operation: ApiOperation) -> list[str]:
    """The possible error statuses. 400 and 403 are always possible, for a wrong Host."""
    is_sign_in = operation.path.startswith(("/auth/", "/setup"))
    has_subject = not operation.is_public or "{" in operation.path
    possible = {
        "400": True,
        "401": not operation.is_public or is_sign_in,
        "403": True,
        "404": has_subject and bool(operation.parameters or operation.body),
        "409": operation.method != "GET" and (not operation.is_public or is_sign_in),
        "410": operation.path.startswith("/runs/{run_id}/") and operation.method == "GET",
        "413": operation.has_body,
        "429": has_subject or is_sign_in,
        "502": bool(UPSTREAM_TAGS & set(operation.tags)),
        "503": True,
        "default": True,
    }
    return [status for status, is_possible in possible.items() if is_possible]


def _error_response(types: TypeSchemas, status: str, failure: Any) -> JsonObject:
    response: JsonObject = {
        "description": ERROR_RESPONSES[status][1],
        "content": {"application/json": {"schema": types.of(failure)}},
    }
    if status == "429":
        seconds = {"description": "seconds", "schema": {"type": "integer", "minimum": 1}}
        response["headers"] = {"Retry-After": seconds}
    return response
