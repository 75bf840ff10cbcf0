"""What is looked at before any handler: a query that gives one thing twice, and what a path can be asked."""

from collections.abc import Mapping
from typing import Annotated, Any, get_args

from litestar import Litestar, Request, Response
from litestar.di import NamedDependency
from litestar.params import FromPath, ParameterKwarg, PathParameter, QueryParameter
from litestar.routes import HTTPRoute

from luxx.api.http.bodies import invalid_fields
from luxx.domain.accounts.caller import Caller


async def before_request(request: Request[Any, Any, Any]) -> Response[None] | None:
    """Put it on the app. Raises InvalidInput for a parameter that stands in the query twice, or as `null`."""
    if request.method == "OPTIONS":
        allowed = _allowed_methods(request.app, request.scope["path_template"])
        return Response(None, status_code=204, headers={"Allow": ", ".join(sorted(allowed))})
    if request.scope["query_string"]:
        _check_query(request)
    return None


def parameter_name(request: Request[Any, Any, Any], name: str) -> str:
    """The name under which a request gives what the handler calls `name`."""
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
            # Litestar would take it for None, as if it had not been given.
            problems[public_name] = "leave it out instead"
    if problems:
        raise invalid_fields(problems)


def _allowed_methods(app: Litestar, path: str) -> set[str]:
    """Litestar's own answer to OPTIONS names only the methods of the handler that it read first."""
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
RowId = Annotated[int, PathParameter(ge=0, le=2**31 - 1)]
"""An integer id in a path; past 31 bits no database has one."""


OPENAPI_EXTRA = "described"
"""The `opt` of a handler: `opt={DESCRIBED: {"requestBody": …, "parameters": […], "responses": {…}}}`."""


def with_openapi_extra(operation: dict[str, Any], opt: Mapping[str, Any]) -> dict[str, Any]:
    """The operation with the handler's parts added; of a response of the same status the handler's counts."""
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
