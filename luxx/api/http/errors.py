"""Exception handlers: map the error tree to HTTP status codes and the error envelope.

An unexpected exception is logged with its traceback; the client gets a 500 without internal details.
"""

import re
from typing import Any

import structlog
from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException
from sqlalchemy.exc import IntegrityError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from luxx.api.http.envelope import Failure, failure_at, is_openai_path
from luxx.api.http.request_input import BODY, parameter_type, public_name
from luxx.api.http.validation import requirement_of
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
    UnlistedModel,
)
from luxx.infra.field_errors import FieldErrors

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
"""The first row with a matching class applies."""

HTTP_MESSAGES = {
    404: ("no route has this path; GET /openapi.json lists all routes", "no_such_route"),
    405: (
        "this path does not support this method; GET /openapi.json lists the methods",
        "method_not_allowed",
    ),
    413: ("the body is too large", "too_large"),
}
DISCONNECT_DETAIL = "client disconnected prematurely"
"""Litestar's message for a client that disconnects within a body. It has no exception class for this."""

_QUOTED = re.compile(r"'(\w+)'")

logger = structlog.get_logger()


def status_of(error: LuxxError) -> int:
    return next((status for kind, status in STATUS if isinstance(error, kind)), 500)


def failure(status: int, error: str, kind: str, **detail: Any) -> Response[Failure]:
    return Response(
        Failure(error=error, code=status, detail={"kind": kind, **detail}),
        status_code=status,
        media_type="application/json",
    )


def _failure(
    request: Request[Any, Any, Any], status: int, error: str, kind: str, **detail: Any
) -> Response[Any]:
    """A failure in the form of the API that the path belongs to."""
    body = failure_at(request.scope["path"], status, error, kind, detail)
    return Response(body, status_code=status, media_type="application/json")


def _luxx_error(request: Request[Any, Any, Any], error: LuxxError) -> Response[Any]:
    # OpenAI's clients look for this status.
    is_unlisted = isinstance(error, UnlistedModel) and is_openai_path(request.scope["path"])
    status = 404 if is_unlisted else status_of(error)
    response = _failure(request, status, error.message, error.kind, **error.detail)
    if isinstance(error, TooMany):
        response.headers["Retry-After"] = str(max(1, error.retry_after))
    if isinstance(error, Unavailable) and error.retry_after is not None:
        response.headers["Retry-After"] = str(error.retry_after)
    if isinstance(error, NotSignedIn):
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _validation_error(request: Request[Any, Any, Any], error: ValidationException) -> Response[Any]:
    """For an invalid or missing path or query parameter; `json_body.py` validates bodies."""
    signature = request.route_handler.parsed_fn_signature.parameters
    parameters = {public_name(field): field for name, field in signature.items() if name != BODY}
    items = error.extra if isinstance(error.extra, list) else []
    wrong = {str(item.get("key")) for item in items}
    fields = {
        name: f"must be {requirement_of(parameter_type(field))}"
        for name, field in parameters.items()
        if wrong & {name, field.name}
    }
    missing = _QUOTED.search(error.detail)
    if not fields and missing and missing.group(1) in parameters:
        name = missing.group(1)
        required = requirement_of(parameter_type(parameters[name]))
        fields = {name: f"this parameter is required and must be {required}"}
    wrong = FieldErrors(fields or {"$": "a JSON object is needed as the body"})
    return _luxx_error(request, wrong.refusal())


def _http_error(request: Request[Any, Any, Any], error: HTTPException) -> Response[Any]:
    if error.detail == DISCONNECT_DETAIL:
        return _failure(request, 400, "the request ended early; send it again", "request_broken")
    if error.status_code >= 500:
        return _unexpected_error(request, error)
    sentence, kind = HTTP_MESSAGES.get(error.status_code, (str(error.detail), "invalid_input"))
    response = _failure(request, error.status_code, sentence, kind)
    for name, value in (error.headers or {}).items():
        response.headers[name] = str(value)
    return response


def _database_error(request: Request[Any, Any, Any], error: SQLAlchemyError) -> Response[Any]:
    logger.error("database_failed", path=request.url.path, error=str(error))
    return _failure(
        request, 503, "the database does not answer; try again in a moment", "database_unavailable"
    )


def _integrity_error(request: Request[Any, Any, Any], error: IntegrityError) -> Response[Any]:
    logger.warning("request_conflicted", path=request.url.path, error=str(error.orig))
    sentence = "a referenced object was just changed or deleted; reload and try again"
    return _failure(request, 409, sentence, "conflict")


def _unexpected_error(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    logger.error("request_failed", path=request.url.path, method=request.method, exc_info=error)
    return _failure(request, 500, "internal server error; see the server's log", "internal_error")


DATABASE_DOWN_ERRORS = (OperationalError, InterfaceError, PoolTimeoutError)
"""The errors of a database that is unreachable or overloaded."""

HANDLERS: dict[int | type[Exception], Any] = {
    LuxxError: _luxx_error,
    ValidationException: _validation_error,
    HTTPException: _http_error,
    IntegrityError: _integrity_error,
    **dict.fromkeys(DATABASE_DOWN_ERRORS, _database_error),
    Exception: _unexpected_error,
}
