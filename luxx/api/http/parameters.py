"""What is looked at before any handler: a query that gives one thing twice, and what a path can be asked."""

from collections.abc import Mapping
from typing import Annotated, Any, get_args

from litestar import Litestar, Request, Response
from litestar.di import NamedDependency
from litestar.params import FromPath, ParameterKwarg, PathParameter, QueryParameter
from litestar.routes import HTTPRoute

from luxx.api.http.bodies import refusal
from luxx.domain.accounts.caller import Caller


async def before_handling(request: Request[Any, Any, Any]) -> Response[None] | None:
    """Put it on the app. Raises InvalidInput for a parameter that stands in the query twice, or as `null`."""
    if request.method == "OPTIONS":
        allowed = _methods(request.app, request.scope["path_template"])
        return Response(None, status_code=204, headers={"Allow": ", ".join(sorted(allowed))})
    if request.scope["query_string"]:
        _check_query(request)
    return None


def asked_as(request: Request[Any, Any, Any], name: str) -> str:
    """The name under which a request gives what the handler calls `name`."""
    field = request.route_handler.parsed_fn_signature.parameters.get(name)
    told = None if field is None else field.kwarg_definition
    return (told.name if isinstance(told, ParameterKwarg) else None) or name


def _check_query(request: Request[Any, Any, Any]) -> None:
    given = request.query_params
    wrong: dict[str, str] = {}
    for name, field in request.route_handler.parsed_fn_signature.parameters.items():
        asked = asked_as(request, name)
        values = given.getall(asked, [])
        if len(values) > 1 and not field.is_non_string_sequence:
            wrong[asked] = "given more than once"
        elif "null" in values and str not in (field.annotation, *get_args(field.annotation)):
            # Litestar would take it for None, as if it had not been given.
            wrong[asked] = "leave it out instead"
    if wrong:
        raise refusal(wrong)


def _methods(app: Litestar, path: str) -> set[str]:
    """Litestar's own answer to OPTIONS names only the methods of the handler that it read first."""
    routes = [route for route in app.routes if isinstance(route, HTTPRoute)]
    return {method for route in routes if (route.path_format or "/") == path for method in route.methods}


GivenCaller = NamedDependency[Caller]

PageNumber = Annotated[int, QueryParameter(ge=1, le=1_000_000, description="counts from 1")]
PageSize = Annotated[int, QueryParameter(ge=1, le=100, description="items per page")]
Limit = Annotated[int | None, QueryParameter(ge=1, le=100, description="with `before`: how many")]
Before = Annotated[
    str | None, QueryParameter(min_length=1, max_length=64, description="only items before this id")
]
Seq = Annotated[int, QueryParameter(ge=0, le=2**31 - 1)]
TextId = FromPath[str]
RowId = Annotated[int, PathParameter(ge=0, le=2**31 - 1)]
"""An integer id in a path; past 31 bits no database has one."""


DESCRIBED = "described"
"""The `opt` of a handler: `opt={DESCRIBED: {"requestBody": …, "parameters": […], "responses": {…}}}`."""


def with_described(operation: dict[str, Any], opt: Mapping[str, Any]) -> dict[str, Any]:
    """The operation with the handler's parts added; of a response of the same status the handler's counts."""
    parts: Mapping[str, Any] = opt.get(DESCRIBED, {})
    for name, more in parts.items():
        known = operation.get(name)
        match known:
            case None:
                operation[name] = more
            case list():
                operation[name] = [*known, *more]
            case _:
                operation[name] = {**known, **more}
    return operation
