"""The error tree as HTTP: the only place that knows which error is which status.

Whatever happens, the answer is the envelope with a sentence; what nobody foresaw is logged whole and
answered with a 500 that tells nothing of the inside.
"""

import re
from typing import Any

import structlog
from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException
from sqlalchemy.exc import IntegrityError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from luxx.api.http.bodies import BODY, invalid_fields
from luxx.api.http.envelope import Failure
from luxx.api.http.parameters import parameter_name
from luxx.errors import (
    Conflict,
    Gone,
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
    (Gone, 410),
    (TooMany, 429),
    (ProviderError, 502),
    (Unavailable, 503),
)
"""The first row whose class fits decides."""

HTTP_MESSAGES = {
    404: ("there is nothing at this path; GET /openapi.json lists what there is", "no_such_route"),
    405: ("this path does not take this method; GET /openapi.json lists what it takes", "method_not_allowed"),
    413: ("the body is too large", "too_large"),
}
DISCONNECT_DETAIL = "client disconnected prematurely"
"""What Litestar says where a client leaves in the middle of a body; it has no class for it."""

_QUOTED = re.compile(r"'(\w+)'")

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


def _luxx_error(_request: Request[Any, Any, Any], error: LuxxError) -> Response[Failure]:
    response = failure(status_of(error), error.message, error.kind, **error.detail)
    if isinstance(error, TooMany):
        response.headers["Retry-After"] = str(max(1, error.retry_after))
    if isinstance(error, Unavailable) and error.retry_after is not None:
        response.headers["Retry-After"] = str(error.retry_after)
    if isinstance(error, NotSignedIn):
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _validation_error(request: Request[Any, Any, Any], error: ValidationException) -> Response[Failure]:
    """A path or query parameter that is wrong or missing; bodies are read in `bodies.py`."""
    items = error.extra if isinstance(error.extra, list) else []
    fields = {
        parameter_name(request, str(item.get("key", "?"))): str(item.get("message", "")) for item in items
    }
    if BODY in fields:
        fields = {"$": "a JSON object is needed as the body"}
    if not fields:
        missing = _QUOTED.search(error.detail)
        fields = {missing.group(1) if missing else "$": "this parameter is required"}
    return _luxx_error(request, invalid_fields(fields))


def _http_error(request: Request[Any, Any, Any], error: HTTPException) -> Response[Failure]:
    if error.detail == DISCONNECT_DETAIL:
        return failure(400, "the request broke off before its end; send it again", "request_broken")
    if error.status_code >= 500:
        return _unexpected_error(request, error)
    sentence, kind = HTTP_MESSAGES.get(error.status_code, (str(error.detail), "invalid_input"))
    response = failure(error.status_code, sentence, kind)
    for name, value in (error.headers or {}).items():
        response.headers[name] = str(value)
    return response


def _database_error(request: Request[Any, Any, Any], error: SQLAlchemyError) -> Response[Failure]:
    logger.error("database_failed", path=request.url.path, error=str(error))
    return failure(503, "the database does not answer; try again in a moment", "database_unavailable")


def _integrity_error(request: Request[Any, Any, Any], error: IntegrityError) -> Response[Failure]:
    logger.warning("request_clashed", path=request.url.path, error=str(error.orig))
    sentence = "something this refers to was changed or deleted a moment ago; look again and try again"
    return failure(409, sentence, "conflict")


def _unexpected_error(request: Request[Any, Any, Any], error: Exception) -> Response[Failure]:
    logger.error("request_broke", path=request.url.path, method=request.method, exc_info=error)
    return failure(500, "the server made a mistake; its log says more", "internal_error")


DATABASE_DOWN_ERRORS = (OperationalError, InterfaceError, PoolTimeoutError)
"""The database is away."""

HANDLERS: dict[int | type[Exception], Any] = {
    LuxxError: _luxx_error,
    ValidationException: _validation_error,
    HTTPException: _http_error,
    IntegrityError: _integrity_error,
    **dict.fromkeys(DATABASE_DOWN_ERRORS, _database_error),
    Exception: _unexpected_error,
}
