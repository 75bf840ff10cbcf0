"""What MCP servers ask people in the middle of a call: the questions, what they may contain, and the answers.

Not here: how a run asks, and where a question and its answer are kept (`owners/eliciting`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import date, datetime
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec

from luxx.errors import ConfigError, ToolFailed
from luxx.tools.schema import ArgumentCheck
from luxx.wire.run import ElicitationChoice, Question, QuestionKind

MOST_FIELDS = 20
MOST_SCHEMA_BYTES = 16 * 1024
MOST_MESSAGE = 2000
MOST_URL = 2000
MOST_VALUE_BYTES = 64 * 1024
"""Bytes of the values of one answer."""

MOST_STATE_BYTES = 256 * 1024
"""Bytes of what a server wants back with the answers."""

MOST_ASKED = 5
"""How often a server may ask during one call."""

ANSWER_SECONDS = 600
"""How long a question waits for its answer; then it is cancelled."""

_TYPES = ("string", "number", "integer", "boolean", "array")
_KEPT = (
    "type", "title", "description", "default", "enum", "enumNames", "oneOf", "format", "minLength",
    "maxLength", "minimum", "maximum", "minItems", "maxItems", "items",
)  # fmt: skip
_KEPT_IN_ITEMS = ("type", "enum", "anyOf")
_REFUSED = "asks for something that Luxx does not ask a person for"
_encode = msgspec.json.Encoder().encode


class Elicitation(msgspec.Struct, frozen=True, kw_only=True):
    """What a server asks. `key`: its own name of the question, where it asks several. `schema` is that of
    the values in the answer; None: the person is to open `url`. `id`: set when a run asks it."""

    key: str = ""
    message: str
    schema: dict[str, Any] | None = None
    url: str = ""
    id: str = ""


class ElicitationAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`content`: the values, with `accept` where the server asked for some."""

    action: ElicitationChoice
    content: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return f"ElicitationAnswer({self.action})"


CANCELLED = ElicitationAnswer(action=ElicitationChoice.CANCEL)


class AskedOfUser(msgspec.Struct, frozen=True, kw_only=True):
    """The questions that a call waits for. `state`: what its server wants back with the answers; `rounds`:
    how often it has asked. `is_refusal`: it refused the call with an error until its user has opened pages,
    and wants no answers."""

    questions: list[Elicitation]
    state: str | None = None
    rounds: int = 1
    is_refusal: bool = False


class Continued(msgspec.Struct, frozen=True, kw_only=True):
    """The answers by key with which a call is made again, and the state of its server. `is_refusal`: as in
    AskedOfUser."""

    answers: dict[str, ElicitationAnswer]
    state: str | None
    rounds: int
    is_refusal: bool = False


Elicit = Callable[[Elicitation], Awaitable[ElicitationAnswer]]
AskAll = Callable[[AskedOfUser], Awaitable[Continued]]


def read_elicitation(params: Any, key: str = "", hidden: Callable[[str], str] = str) -> Elicitation:
    """The question in a request of the SDK. `hidden`: removes secrets from a text.

    Raises ToolFailed with a predicate that follows the server's name.
    """
    message = hidden(" ".join(str(params.message).split()))[:MOST_MESSAGE]
    if not message or "\0" in message:
        raise ToolFailed(f"{_REFUSED}: its question has no text")
    if params.mode == "url":
        return Elicitation(key=key, message=message, url=_checked_url(params.url))
    return Elicitation(key=key, message=message, schema=checked_schema(params.requested_schema))


def question_of_server(server: str, asked: Elicitation) -> dict[str, Any]:
    """The question to the run's user."""
    form = {} if asked.schema is None else {"requested_schema": asked.schema}
    address = {"url": asked.url} if asked.url else {}
    return {
        "kind": QuestionKind.ELICITATION.value,
        "prompt": f"The MCP server {server} asks: {asked.message}",
        "server": server,
        "elicitation_id": asked.id,
        "timeout_seconds": ANSWER_SECONDS,
        **form,
        **address,
    }


def _checked_url(url: str) -> str:
    is_plain = len(url) <= MOST_URL and all(32 < ord(letter) < 127 for letter in url)
    try:
        parts = urlsplit(url)
        is_web = parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc
    except ValueError:
        is_web = False
    if not is_plain or not is_web:
        raise ToolFailed(f"{_REFUSED}: an address that is not one of the web")
    return url


def checked_schema(given: Any) -> dict[str, Any]:
    """A flat schema of texts, numbers, booleans and choices, with what Luxx knows of it.

    Raises ToolFailed with a predicate that follows the server's name.
    """
    schema = _object(given)
    properties = _object(schema.get("properties"))
    if schema.get("type") != "object" or len(properties) > MOST_FIELDS:
        raise ToolFailed(f"{_REFUSED}: it must be an object with at most {MOST_FIELDS} values")
    required = schema.get("required")
    names = cast("list[Any]", required) if isinstance(required, list) else []
    checked: dict[str, Any] = {
        "type": "object",
        "properties": {_name(name): _field(name, value) for name, value in properties.items()},
        "required": [name for name in names if isinstance(name, str) and name in properties],
        "additionalProperties": False,
    }
    if len(_encode(checked)) > MOST_SCHEMA_BYTES:
        raise ToolFailed(f"{_REFUSED}: its form is larger than {MOST_SCHEMA_BYTES // 1024} KiB")
    try:
        ArgumentCheck("elicitation", checked)
    except ConfigError as error:
        raise ToolFailed(f"{_REFUSED}: its form is not a JSON schema") from error
    return checked


def _object(given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise ToolFailed(f"{_REFUSED}: its form is not a JSON schema of type object")
    return cast("dict[str, Any]", given)


def _name(name: str) -> str:
    if not 0 < len(name) <= 100 or "\0" in name:
        raise ToolFailed(f"{_REFUSED}: a name that is empty or too long")
    return name


def _field(name: str, given: Any) -> dict[str, Any]:
    field = {key: value for key, value in _object(given).items() if key in _KEPT}
    kind = field.get("type")
    if kind not in _TYPES:
        raise ToolFailed(f"{_REFUSED}: {name[:100]} is no text, number, boolean or choice")
    if kind != "array":
        field.pop("items", None)
        return field
    items = {key: value for key, value in _object(field.get("items")).items() if key in _KEPT_IN_ITEMS}
    if not ({"enum", "anyOf"} & items.keys()):
        raise ToolFailed(f"{_REFUSED}: {name[:100]} is a list of something else than choices")
    return {**field, "items": items}


def value_problems(question: Question, values: dict[str, Any] | None) -> dict[str, str]:
    """What is wrong with the values of an answer, by JSON path; empty if nothing is."""
    schema = question.requested_schema
    if not isinstance(schema, dict):
        return {} if not values else {"arguments": "this question takes no values"}
    if values is None:
        return {"arguments": "the values are missing that the question asks for"}
    values = with_defaults(question, values)
    if len(_encode(values)) > MOST_VALUE_BYTES:
        return {"arguments": f"the values have more than {MOST_VALUE_BYTES // 1024} KiB"}
    problems = ArgumentCheck("elicitation", schema).problems(values)
    if problems:
        return {f"arguments.{path}": problem for path, problem in problems.items()}
    return {
        f"arguments.{name}": problem
        for name, value in values.items()
        if (problem := _format_problem(schema["properties"][name].get("format"), value))
    }


def with_defaults(question: Question, values: dict[str, Any]) -> dict[str, Any]:
    """The values, with the defaults of the server for those that were left out."""
    schema = question.requested_schema
    properties: dict[str, Any] = schema["properties"] if isinstance(schema, dict) else {}
    defaults = {name: field["default"] for name, field in properties.items() if "default" in field}
    return {**defaults, **values}


def _format_problem(wanted: Any, value: Any) -> str:
    if not isinstance(value, str) or not isinstance(wanted, str):
        return ""
    try:
        match wanted:
            case "date":
                date.fromisoformat(value)
            case "date-time":
                datetime.fromisoformat(value)
            case "email":
                user, _, host = value.partition("@")
                if not user or not host or "@" in host or any(letter.isspace() for letter in value):
                    raise ValueError
            case "uri":
                if not urlsplit(value).scheme or any(letter.isspace() for letter in value):
                    raise ValueError
            case _:
                pass
    except ValueError:
        return f"must be a {wanted}"
    return ""


class CallInProgress:
    """A call that the server may ask about. `asks_too_often`: it was ended for that."""

    def __init__(self, elicit: Elicit | None, limit: asyncio.Timeout) -> None:
        self.elicit = elicit
        self.limit = limit
        self.asked = 0
        self.waiting = 0
        self.remaining = 0.0
        self.asks_too_often = False

    @contextmanager
    def paused(self) -> Generator[None]:
        """The time of a person does not count."""
        loop = asyncio.get_running_loop()
        if self.waiting == 0:
            self.remaining = (self.limit.when() or loop.time()) - loop.time()
            self.limit.reschedule(None)
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1
            if self.waiting == 0:
                self.limit.reschedule(loop.time() + max(self.remaining, 0.0))

    async def ask_each(self, asked: AskedOfUser) -> Continued:
        """Asks while the connection stays open; all is cancelled where nobody can be asked."""
        answers: list[ElicitationAnswer] = []
        for question in asked.questions:
            if self.elicit is None:
                answers.append(CANCELLED)
            else:
                with self.paused():
                    answers.append(await self.elicit(question))
        return answers_of(asked, answers)


_call: ContextVar[CallInProgress | None] = ContextVar("call_of_server", default=None)
"""The call in whose answer a message came; the SDK keeps it over HTTP."""


class CallsInProgress:
    """The calls over one connection. A question in between belongs to the one in whose answer it came, or to
    the only one; else nobody knows who is to be asked, and it is cancelled."""

    def __init__(self, types: Any, hidden: Callable[[str], str]) -> None:
        self._types = types
        self._hidden = hidden
        self._open: list[CallInProgress] = []

    @contextmanager
    def during(self, elicit: Elicit | None, limit: asyncio.Timeout) -> Generator[CallInProgress]:
        """`limit`: that of the call, which stops while a person is asked."""
        call = CallInProgress(elicit, limit)
        self._open.append(call)
        token = _call.set(call)
        try:
            yield call
        finally:
            _call.reset(token)
            self._open.remove(call)

    async def answer(self, _context: Any, params: Any) -> Any:
        """The callback of the SDK for a question of the server."""
        call = _call.get()
        if call not in self._open:
            call = self._open[0] if len(self._open) == 1 else None
        if call is None or call.elicit is None:
            return self._result(CANCELLED)
        try:
            elicitation = read_elicitation(params, hidden=self._hidden)
        except ToolFailed as error:
            return self._types.ErrorData(code=self._types.INVALID_PARAMS, message=error.message)
        call.asked += 1
        if call.asked > MOST_ASKED:
            # It would ask without end.
            call.asks_too_often = True
            call.limit.reschedule(asyncio.get_running_loop().time())
            return self._result(CANCELLED)
        with call.paused():
            return self._result(await call.elicit(elicitation))

    def _result(self, answer: ElicitationAnswer) -> Any:
        return result_of(self._types, answer)


def answers_of(asked: AskedOfUser, answers: Sequence[ElicitationAnswer]) -> Continued:
    keys = [question.key for question in asked.questions]
    return Continued(
        answers=dict(zip(keys, answers, strict=True)),
        state=asked.state,
        rounds=asked.rounds,
        is_refusal=asked.is_refusal,
    )


def result_of(types: Any, answer: ElicitationAnswer) -> Any:
    return types.ElicitResult(action=answer.action.value, content=answer.content)
