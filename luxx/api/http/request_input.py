"""What requests carry: parameters of path and query, and JSON bodies; types, checks, and decoding.

Bodies are decoded strictly: no conversion from text to numbers, and an error for each wrong field. The
decoder stops at the first error; a second pass over the invalid body finds the others. Anybody may send an
invalid body, so that pass reads at most MAX_INSPECTED_BYTES and reports at most MAX_REPORTED_FIELDS.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from math import isfinite
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, cast, get_args, get_origin

import msgspec
from litestar import Litestar, Request, Response
from litestar.di import NamedDependency
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, ParameterKwarg, QueryParameter
from litestar.routes import HTTPRoute
from litestar.typing import FieldDefinition
from msgspec import Meta

from luxx.api.http.validation import field_errors, first_error, readable_part, unknown
from luxx.domain.accounts.caller import Caller
from luxx.errors import InvalidInput, LuxxError
from luxx.infra.documents.yaml_text import parse_yaml
from luxx.infra.field_errors import MAX_REPORTED_FIELDS, FieldErrors
from luxx.infra.strict_json import (
    SMALL_BYTES,
    check_size,
    decoder,
    duplicate_key_paths,
    has_duplicate_key,
    without_escapes,
    without_lone_surrogates,
)

DocumentFormat = Annotated[Literal["yaml", "json"], QueryParameter(description="the format of the document")]


def document_body(name: str, description: str) -> dict[str, Any]:
    """What the OpenAPI document says of a route that reads the document of this name."""
    schema = {"schema": {"$ref": f"#/components/schemas/{name}"}}
    content = dict.fromkeys(("application/json", "application/yaml"), schema)
    return {"requestBody": {"required": True, "description": description, "content": content}}


BODY = "data"
"""The parameter of handlers for the body."""

_NUL_ESCAPE = rb"\u0000"
"""PostgreSQL cannot store NUL in text. In valid JSON it can appear only as this escape."""

NUL_MESSAGE = "text must not contain the character NUL"

TAKES_CUT_TEXT = "takes_cut_text"
"""The option of a route of messages: half of a character in a text becomes U+FFFD, instead of a refusal."""

HAS_CUT_TEXT = "has_cut_text"
"""The key in the scope of a request whose body had half of a character."""

REPEATED_MESSAGE = "this field appears twice; send it once"

T = TypeVar("T")

MAX_INSPECTED_BYTES = 64 * 1024
"""The largest invalid body that is inspected. For a larger one only the first error is reported."""

SMALL_DOCUMENT_BYTES = 4 * 1024
"""YAML costs more than JSON: it is parsed value by value."""

_threads = ThreadPoolExecutor(2, thread_name_prefix="large-bodies")
"""Two, because each thread that works makes the event loop wait longer for the interpreter's lock."""


class JsonRequest(Request[Any, Any, Any]):
    """A request whose body is decoded strictly to the handler's Struct."""

    async def json(self) -> Any:
        """The body as the type of the handler's `data`. Raises InvalidInput.

        If `data` has a default, an empty body means the default. For a GivenDocument it is the part of the
        body that can be read.
        """
        parameter = self.route_handler.parsed_fn_signature.parameters[BODY]
        body = await self.body()
        if self.route_handler.opt.get(TAKES_CUT_TEXT):
            # Clients and people cut texts without regard to emoji.
            given, body = body, without_lone_surrogates(body)
            self._body, cast("dict[str, Any]", self.scope)[HAS_CUT_TEXT] = body, body != given
        if parameter.has_default and not body:
            return parameter.default
        if get_origin(parameter.annotation) is GivenDocument:
            return await parse_document(body, body_type(parameter.annotation), is_json=True)
        return await parse_body(body, parameter.annotation)


def has_cut_text(request: Request[Any, Any, Any]) -> bool:
    """Whether a text of the body had half of a character, in place of which stands U+FFFD now."""
    return cast("dict[str, Any]", request.scope).get(HAS_CUT_TEXT) is True


async def parse_body(body: bytes, expected_type: Any) -> Any:
    """`read_body`, in a thread if the body is large."""
    if len(body) <= SMALL_BYTES:
        return read_body(body, expected_type)
    return await _in_thread(read_body, body, expected_type)


async def parse_document(
    body: bytes, expected_type: type[T], *, max_characters: int = 0, is_json: bool = False
) -> "GivenDocument[T]":
    """`read_document`, in a thread if the document is large."""
    options: dict[str, Any] = {"max_characters": max_characters, "is_json": is_json}
    if len(body) <= (SMALL_BYTES if is_json else SMALL_DOCUMENT_BYTES):
        return read_document(body, expected_type, **options)
    return await _in_thread(read_document, body, expected_type, **options)


async def work_on(body: bytes, work: Callable[..., T], *arguments: Any) -> T:
    """The result of `work` with what was read from this body; in a thread if the body is large."""
    return work(*arguments) if len(body) <= SMALL_BYTES else await _in_thread(work, *arguments)


async def _in_thread(work: Callable[..., T], *arguments: Any, **options: Any) -> T:
    return await asyncio.get_running_loop().run_in_executor(_threads, partial(work, *arguments, **options))


def read_body(body: bytes, expected_type: Any) -> Any:
    """`body` as `expected_type`. Raises InvalidInput with the path of each wrong field in `detail.fields`."""
    if not body:
        raise FieldErrors({"$": "a JSON object is needed as the body"}).refusal()
    try:
        check_size(body)
        if _NUL_ESCAPE in body and _NUL_ESCAPE in without_escapes(body):
            raise _error_at(body, NUL_MESSAGE, lambda body: _nul_paths("$", msgspec.json.decode(body)))
        value = _decode(body, expected_type)
        if has_duplicate_key(body):
            raise _error_at(body, REPEATED_MESSAGE, duplicate_key_paths)
        return value
    except RecursionError as error:
        raise FieldErrors({"$": "nested too deeply"}).refusal() from error
    except ValueError as error:
        # Not JSON, or not UTF-8.
        raise FieldErrors({"$": f"not readable as JSON: {error}"}).refusal() from error


class GivenDocument(msgspec.Struct, Generic[T], frozen=True):
    """What can be read of a document. `wrong`: a sentence for each wrong field, which it does not have; the
    service refuses the document with these and with the problems that it finds itself."""

    document: T
    wrong: dict[str, str]


def body_type(annotation: Any) -> Any:
    """The type of the JSON that a handler's `data` is read from."""
    return get_args(annotation)[0] if get_origin(annotation) is GivenDocument else annotation


def read_document(
    body: bytes, expected_type: type[T], *, max_characters: int = 0, is_json: bool = False
) -> GivenDocument[T]:
    """A document in YAML or, with `is_json`, only in JSON.

    Raises InvalidInput like `read_body` where nothing of it can be read.
    """
    if is_json:
        try:
            return GivenDocument(read_body(body, expected_type), {})
        except InvalidInput as error:
            if "$" in error.fields:
                raise
            value = msgspec.json.Decoder(float_hook=_number).decode(body)
            return _partly(value, expected_type, error.fields, error)
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise FieldErrors({"$": "the document is not text in UTF-8"}).refusal() from error
    value = parse_yaml(text, max_characters=max_characters)
    try:
        return GivenDocument(msgspec.convert(value, expected_type), {})
    except msgspec.ValidationError as error:
        errors = dict(islice(field_errors("$", value, expected_type), MAX_REPORTED_FIELDS + 1))
        errors = errors or dict([first_error("$", error, expected_type)])
        return _partly(value, expected_type, errors, FieldErrors(errors).refusal())


def _partly(
    value: Any, expected_type: type[T], wrong: dict[str, str], refusal: LuxxError
) -> GivenDocument[T]:
    """Raises `refusal` if nothing of the document can be read."""
    try:
        return GivenDocument(readable_part(value, expected_type), wrong)
    except (msgspec.ValidationError, RecursionError):
        raise refusal from None


def _error_at(body: bytes, problem: str, find_paths: Callable[[bytes], Iterator[str]]) -> LuxxError:
    """The same problem at each path that `find_paths` finds; a large body is not inspected."""
    if len(body) > MAX_INSPECTED_BYTES:
        return FieldErrors({"$": problem}).refusal()
    return FieldErrors(dict.fromkeys(islice(find_paths(body), MAX_REPORTED_FIELDS + 1), problem)).refusal()


def _decode(body: bytes, expected_type: Any) -> Any:
    try:
        return decoder(expected_type).decode(body)
    except msgspec.ValidationError as error:
        is_inspected = len(body) <= MAX_INSPECTED_BYTES
        if not is_inspected and "got `float`" not in str(error):
            raise FieldErrors(dict([first_error("$", error, expected_type)])).refusal() from error
        value = msgspec.json.Decoder(float_hook=_number).decode(body)
        errors = (
            dict(islice(field_errors("$", value, expected_type), MAX_REPORTED_FIELDS + 1))
            if is_inspected
            else {}
        )
        if errors:
            raise FieldErrors(errors).refusal() from error
    try:
        return msgspec.convert(value, expected_type)
    except msgspec.ValidationError as error:
        raise FieldErrors(dict([first_error("$", error, expected_type)])).refusal() from error


def _number(literal: str) -> int | float:
    """JSON has one number type, so 5.0 is accepted as the integer 5."""
    value = float(literal)
    if not isfinite(value):
        raise ValueError("a number is out of range")
    return int(value) if value.is_integer() else value


def _nul_paths(path: str, value: Any) -> Iterator[str]:
    """The paths of the texts with a NUL; for a key with a NUL, the path of its object."""
    if isinstance(value, str) and "\0" in value:
        yield path
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[Any]", value)):
            yield from _nul_paths(f"{path}[{index}]", item)
    elif isinstance(value, dict):
        for name, item in cast("dict[str, Any]", value).items():
            yield from [path] if "\0" in name else _nul_paths(f"{path}.{name}", item)


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
        raise FieldErrors(problems).refusal()


async def _check_body(request: Request[Any, Any, Any]) -> None:
    handler = request.route_handler
    if BODY in handler.parsed_fn_signature.parameters or "requestBody" in handler.opt.get(OPENAPI_EXTRA, {}):
        return
    if (await request.body()).strip() not in EMPTY_BODIES:
        raise FieldErrors({"$": "this route takes no body; leave it out"}).refusal()


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
