"""Path and query parameters: types, checks before any handler, additions to the OpenAPI document."""

from collections.abc import Mapping
from typing import Annotated, Any, Union, cast, get_args

from litestar import Litestar, Request, Response
from litestar.di import NamedDependency
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, ParameterKwarg, QueryParameter
from litestar.routes import HTTPRoute
from litestar.typing import FieldDefinition
from msgspec import Meta

from luxx.api.http.json_body import BODY, invalid_fields
from luxx.api.http.validation import unknown
from luxx.domain.accounts.caller import Caller

RESERVED = frozenset({"request", "socket", "state", "scope", "headers", "cookies", "query", "body", BODY})
"""The parameters of handlers for which Litestar passes a part of the request."""

UUID = r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$(?!\n)"
"""The form of the ids that are text."""

IGNORES_QUERY = "ignores_query"
"""The `opt` of a handler that accepts unknown query parameters: browsers and monitoring may add some."""

OPENAPI_EXTRA = "openapi_extra"
"""The `opt` of a handler: `opt={OPENAPI_EXTRA: {"requestBody": …, "parameters": […], "responses": {…}}}`."""

EMPTY_BODIES = (b"", b"{}")
"""Bodies that a route without a body accepts: some clients send an empty object with every POST."""


async def before_request(request: Request[Any, Any, Any]) -> Response[None] | None:
    """The app's hook: answers OPTIONS. Raises InvalidInput for query parameters that are unknown, sent twice
    or sent as `null`, and for a body that the route does not take."""
    if request.method == "OPTIONS":
        allowed = _allowed_methods(request.app, request.scope["path_template"])
        return Response(None, status_code=204, headers={"Allow": ", ".join(sorted(allowed))})
    if request.scope["query_string"]:
        _check_query(request)
    headers = request.headers
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        await _check_body(request)
    return None


def declared_parameters(handler: HTTPRouteHandler) -> dict[str, FieldDefinition]:
    """The path and query parameters of a handler, by their names in Python."""
    hidden = RESERVED | set(handler.resolve_dependencies())
    signature = handler.parsed_fn_signature.parameters
    return {name: field for name, field in signature.items() if name not in hidden}


def public_name(field: FieldDefinition) -> str:
    """The name of a parameter in requests."""
    parameter = field.kwarg_definition
    return (parameter.name if isinstance(parameter, ParameterKwarg) else None) or field.name


def parameter_type(field: FieldDefinition) -> Any:
    """The parameter's type with its constraints and without None, which a path or query cannot express."""
    options = [option for option in get_args(field.annotation) if option is not type(None)]
    kind: Any = Union[tuple(options)] if field.is_optional else field.annotation  # noqa: UP007 - made at run time
    definition = field.kwarg_definition
    if not isinstance(definition, ParameterKwarg):
        return kind
    names = ("gt", "ge", "lt", "le", "min_length", "max_length", "pattern")
    bounds = {name: getattr(definition, name) for name in names}
    bounds["description"] = definition.description if definition.pattern else None
    constraints = {name: bound for name, bound in bounds.items() if bound is not None}
    return Annotated[kind, Meta(**cast("Mapping[str, Any]", constraints))] if constraints else kind


def _check_query(request: Request[Any, Any, Any]) -> None:
    query, handler = request.query_params, request.route_handler
    fields = {
        public_name(field): field
        for name, field in declared_parameters(handler).items()
        if name not in request.path_params
    }
    problems: dict[str, str] = {}
    for name in query:
        field = fields.get(name)
        if field is None:
            if not handler.opt.get(IGNORES_QUERY):
                problems[name] = unknown(name, list(fields), "parameter")
            continue
        values = query.getall(name, [])
        if len(values) > 1 and not field.is_non_string_sequence:
            problems[name] = "given more than once"
        elif "null" in values and str not in (field.annotation, *get_args(field.annotation)):
            # Litestar would convert it to None, as if it were missing.
            problems[name] = "leave it out instead"
    if problems:
        raise invalid_fields(problems)


async def _check_body(request: Request[Any, Any, Any]) -> None:
    handler = request.route_handler
    if BODY in handler.parsed_fn_signature.parameters or "requestBody" in handler.opt.get(OPENAPI_EXTRA, {}):
        return
    if (await request.body()).strip() not in EMPTY_BODIES:
        raise invalid_fields({"$": "this route takes no body; leave it out"})


def _allowed_methods(app: Litestar, path: str) -> set[str]:
    """All methods of a path. Litestar's own response to OPTIONS has only those of one handler."""
    routes = [route for route in app.routes if isinstance(route, HTTPRoute)]
    return {method for route in routes if (route.path_format or "/") == path for method in route.methods}


InjectedCaller = NamedDependency[Caller]

PageNumber = Annotated[int, QueryParameter(ge=1, le=1_000_000, description="counts from 1")]
PageSize = Annotated[int, QueryParameter(ge=1, le=100, description="items per page")]
LimitParameter = Annotated[int | None, QueryParameter(ge=1, le=100, description="with `before`: how many")]
BeforeId = Annotated[
    str | None, QueryParameter(pattern=UUID, description="the id of an item; only items before it")
]
Seq = Annotated[int, QueryParameter(ge=0, le=2**31 - 1)]
TextId = FromPath[str]


def with_openapi_extra(operation: dict[str, Any], opt: Mapping[str, Any]) -> dict[str, Any]:
    """The operation with the handler's additions. For the same status, the handler's response wins."""
    parts: Mapping[str, Any] = opt.get(OPENAPI_EXTRA, {})
    for name, extra in parts.items():
        existing = operation.get(name)
        match existing:
            case None:
                operation[name] = extra
            case list():
                operation[name] = [*existing, *extra]
            case _:
                operation[name] = {**existing, **extra}
    return operation
