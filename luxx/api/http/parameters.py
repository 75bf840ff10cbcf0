"""Path and query parameters: types, checks before any handler, additions to the OpenAPI document."""

from collections.abc import Mapping
from typing import Annotated, Any, get_args

from litestar import Litestar, Request, Response
from litestar.di import NamedDependency
from litestar.params import FromPath, ParameterKwarg, QueryParameter
from litestar.routes import HTTPRoute

from luxx.api.http.json_body import invalid_fields
from luxx.domain.accounts.caller import Caller


async def before_request(request: Request[Any, Any, Any]) -> Response[None] | None:
    """The app's hook: answers OPTIONS. Raises InvalidInput for a query parameter sent twice or as `null`."""
    if request.method == "OPTIONS":
        allowed = _allowed_methods(request.app, request.scope["path_template"])
        return Response(None, status_code=204, headers={"Allow": ", ".join(sorted(allowed))})
    if request.scope["query_string"]:
        _check_query(request)
    return None


def parameter_name(request: Request[Any, Any, Any], name: str) -> str:
    """The public name of the handler's parameter `name`."""
    field = request.route_handler.parsed_fn_signature.parameters.get(name)
    parameter = None if field is None else field.kwarg_definition
    return (parameter.name if isinstance(parameter, ParameterKwarg) else None) or name


def _check_query(request: Request[Any, Any, Any]) -> None:
    query = request.query_params
    problems: dict[str, str] = {}
    for name, field in request.route_handler.parsed_fn_signature.parameters.items():
        public_name = parameter_name(request, name)
        values = query.getall(public_name, [])
        if len(values) > 1 and not field.is_non_string_sequence:
            problems[public_name] = "given more than once"
        elif "null" in values and str not in (field.annotation, *get_args(field.annotation)):
            # Litestar would convert it to None, as if it were missing.
            problems[public_name] = "leave it out instead"
    if problems:
        raise invalid_fields(problems)


def _allowed_methods(app: Litestar, path: str) -> set[str]:
    """All methods of a path. Litestar's own response to OPTIONS has only those of one handler."""
    routes = [route for route in app.routes if isinstance(route, HTTPRoute)]
    return {method for route in routes if (route.path_format or "/") == path for method in route.methods}


InjectedCaller = NamedDependency[Caller]

PageNumber = Annotated[int, QueryParameter(ge=1, le=1_000_000, description="counts from 1")]
PageSize = Annotated[int, QueryParameter(ge=1, le=100, description="items per page")]
LimitParameter = Annotated[int | None, QueryParameter(ge=1, le=100, description="with `before`: how many")]
BeforeId = Annotated[
    str | None, QueryParameter(min_length=1, max_length=64, description="only items before this id")
]
Seq = Annotated[int, QueryParameter(ge=0, le=2**31 - 1)]
TextId = FromPath[str]

OPENAPI_EXTRA = "openapi_extra"
"""The `opt` of a handler: `opt={OPENAPI_EXTRA: {"requestBody": …, "parameters": […], "responses": {…}}}`."""


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
