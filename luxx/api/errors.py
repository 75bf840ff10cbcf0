"""The error tree as HTTP: the only place that knows which error is which status.

Whatever happens, the answer is the envelope with a sentence; what nobody foresaw is logged whole and
answered with a 500 that tells nothing of the inside.
"""

import re
from typing import Any

import msgspec
import structlog
from litestar import Request, Response
from litestar.exceptions import ClientException, HTTPException, ValidationException
from litestar.utils.scope.state import ScopeState
from sqlalchemy.exc import OperationalError

from luxx.api.envelope import Failure
from luxx.errors import (
    Conflict,
    InvalidInput,
    LuxxError,
    NotAllowed,
    NotFound,
    NotSignedIn,
    ProviderError,
    TooLarge,
    TooMany,
    Unavailable,
)

STATUS: tuple[tuple[type[LuxxError], int], ...] = (
    (TooLarge, 413),
    (InvalidInput, 400),
    (NotSignedIn, 401),
    (NotAllowed, 403),
    (NotFound, 404),
    (Conflict, 409),
    (TooMany, 429),
    (ProviderError, 502),
    (Unavailable, 503),
)
"""The first row whose class fits decides."""

PLAIN = {
    404: ("there is nothing at this path; GET /openapi.json lists what there is", "no_such_route"),
    405: ("this path does not take this method; GET /openapi.json lists what it takes", "method_not_allowed"),
    413: ("the body is too large", "too_large"),
}
BODY = "data"
_AT = re.compile(r" - at `\$(.*)`$")

logger = structlog.get_logger()


def status_of(error: LuxxError) -> int:
    """The HTTP status of an error of ours."""
    return next((status for kind, status in STATUS if isinstance(error, kind)), 500)


def failure(status: int, error: str, kind: str, **detail: Any) -> Response[Failure]:
    """The envelope of a refusal."""
    return Response(
        Failure(error=error, code=status, detail={"kind": kind, **detail}),
        status_code=status,
        media_type="application/json",
    )


def _ours(_request: Request[Any, Any, Any], error: LuxxError) -> Response[Failure]:
    response = failure(status_of(error), error.message, error.kind, **error.detail)
    if isinstance(error, TooMany):
        response.headers["Retry-After"] = str(max(1, error.retry_after))
    if isinstance(error, NotSignedIn):
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _invalid(request: Request[Any, Any, Any], error: ValidationException) -> Response[Failure]:
    fields: dict[str, str] = {}
    for item in error.extra if isinstance(error.extra, list) else []:
        if item.get("source") == "body":
            fields.update(_wrong_fields(request))
        else:
            fields[str(item.get("key", "?"))] = str(item.get("message", ""))
    if not fields:
        fields["$"] = "not what this route takes"
    named = "; ".join(f"{path}: {problem}" for path, problem in fields.items())
    return failure(400, f"the request is not valid: {named}", "invalid_input", fields=fields)


def _wrong_fields(request: Request[Any, Any, Any]) -> dict[str, str]:
    """Every wrong field of a JSON body by its path, where the decoder names only the first."""
    body = ScopeState.from_scope(request.scope).body
    wanted = request.route_handler.parsed_fn_signature.parameters[BODY].annotation
    if not isinstance(body, bytes) or not body:
        return {"$": "a JSON object is needed as the body"}
    try:
        given = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError as problem:
        return {"$": str(problem)}
    known = {field.encode_name: field for field in msgspec.structs.fields(wanted)}
    wrong = {f"$.{name}": "unknown field" for name in given if name not in known}
    for name, field in known.items():
        if name not in given:
            if field.required:
                wrong[f"$.{name}"] = "this field is required"
            continue
        try:
            msgspec.convert(given[name], field.type)
        except msgspec.ValidationError as problem:
            message = str(problem)
            at = _AT.search(message)
            wrong[f"$.{name}{at.group(1) if at else ''}"] = _AT.sub("", message)
    return wrong


def _malformed(_request: Request[Any, Any, Any], error: ClientException) -> Response[Failure]:
    return failure(error.status_code, f"the body cannot be read: {error.detail}", "invalid_input")


def _http(_request: Request[Any, Any, Any], error: HTTPException) -> Response[Failure]:
    if error.status_code >= 500:
        return _unforeseen(_request, error)
    sentence, kind = PLAIN.get(error.status_code, (str(error.detail), "invalid_input"))
    response = failure(error.status_code, sentence, kind)
    for name, value in (error.headers or {}).items():
        response.headers[name] = str(value)
    return response


def _too_deep(_request: Request[Any, Any, Any], _error: RecursionError) -> Response[Failure]:
    return failure(400, "the body is nested too deeply", "invalid_input", fields={"$": "nested too deeply"})


def _database(request: Request[Any, Any, Any], error: OperationalError) -> Response[Failure]:
    logger.error("database_failed", path=request.url.path, error=str(error.orig))
    return failure(503, "the database does not answer; try again in a moment", "database_unavailable")


def _unforeseen(request: Request[Any, Any, Any], error: Exception) -> Response[Failure]:
    logger.error("request_broke", path=request.url.path, method=request.method, exc_info=error)
    return failure(500, "the server made a mistake; its log says more", "internal_error")


HANDLERS: dict[int | type[Exception], Any] = {
    LuxxError: _ours,
    ValidationException: _invalid,
    ClientException: _malformed,
    HTTPException: _http,
    RecursionError: _too_deep,
    OperationalError: _database,
    Exception: _unforeseen,
}
