"""Invalid JSON bodies: which errors are reported, and that reporting them costs little."""

import asyncio
import sys
from collections.abc import Callable
from types import FrameType
from typing import Annotated, Any

import msgspec
import pytest

from luxx.api.http.authentication import PUBLIC
from luxx.api.http.request_input import MAX_REPORTED_FIELDS, NUL_MESSAGE, REPEATED_MESSAGE, read_body
from luxx.api.http.security import PUBLIC_BODY_BYTES, PUBLIC_POST_PATHS, protection
from luxx.api.routes.auth import AuthController
from luxx.api.routes.setup import SetupController
from luxx.errors import InvalidInput
from luxx.infra.config.schema import Config
from luxx.infra.observe import Metrics
from luxx.infra.strict_json import MAX_DIGITS, MAX_VALUES, has_duplicate_key


class ExpectedBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(max_length=10)] = ""
    count: int = 0
    ratio: float = 0.5
    tags: list[str] = []


def decode_error(body: bytes) -> InvalidInput:
    with pytest.raises(InvalidInput) as raised:
        read_body(body, ExpectedBody)
    return raised.value


@pytest.mark.parametrize(
    ("body", "paths"),
    [
        (b'{"name": "a", "name": "b"}', ["$.name"]),
        (b'{"name": "a", "na\\u006de": "b"}', ["$.name"]),
        (b'{"name": "a","name" :"a"}', ["$.name"]),
        (b'{"name": "a", "tags": ["b", ":c"], "count": 1, "count": 2, "name": "d"}', ["$.count", "$.name"]),
    ],
)
def test_a_duplicate_member_is_refused_by_its_path(body: bytes, paths: list[str]) -> None:
    assert decode_error(body).detail["fields"] == dict.fromkeys(paths, REPEATED_MESSAGE)


@pytest.mark.parametrize("name", ["x", ":x", 'x"y', '\\"', "ä", "\\", ""])
def test_a_nested_duplicate_member_is_found_whatever_its_name(name: str) -> None:
    member = msgspec.json.encode({name: 1})[1:-1]
    for between in (b"", b'"n": "\\"x\\": 1",', b'"n": [":", "a", {"x": 1}], '):
        twice = b'{"a": [{%s, %s%s}]}' % (member, between, member)
        assert has_duplicate_key(twice), twice
        assert not has_duplicate_key(b'{"a": [{%s}, {%s}]}' % (member, member))


def test_a_body_may_have_a_hundred_thousand_values_and_numbers_of_64_digits() -> None:
    def body(values: int, digits: int) -> bytes:
        text = msgspec.json.encode("[{,1" * 300_000 + "7" * 100 + '\\"')
        texts = b",".join([text, *[b'""'] * (values - 4)])
        return b'{"name": "a", "tags": [%s], "count": 1%s}' % (texts, b"0" * (digits - 1))

    assert len(read_body(body(MAX_VALUES, 18), ExpectedBody).tags) == MAX_VALUES - 3
    assert "100,000 values" in str(decode_error(body(MAX_VALUES + 1, 18)))
    assert "64 digits" in str(decode_error(body(10, MAX_DIGITS + 1)))
    assert read_body(body(10, MAX_DIGITS), ExpectedBody).count == 10 ** (MAX_DIGITS - 1)


@pytest.mark.parametrize("ending", ["", "\\", '"', '\\"', '\\\\"'])
def test_a_member_is_found_twice_in_a_large_body_whatever_its_texts(ending: str) -> None:
    text = msgspec.json.encode('":' * 50_000 + ending)
    assert not has_duplicate_key(b'{"a": %s, "b": "\\":"}' % text)
    assert has_duplicate_key(b'{"a": %s, "b": {"c\\\\": 1, "c\\u005c": 2}}' % text)
    assert has_duplicate_key(b'{"a": %s, "b": {"c": 1, "c": 2}}' % text)


def test_texts_that_look_like_members_are_no_members() -> None:
    said = {"name": '"a":', "tags": ['"a": 1, "a": 2', ":", ": x"]}
    assert read_body(msgspec.json.encode(said), ExpectedBody).tags == said["tags"]


def calls_of(work: Callable[[], object]) -> int:
    """How many Python functions this calls or resumes."""
    count = 0

    def look(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def body_with_unknown_members(count: int) -> bytes:
    return b"{" + b",".join(b'"%x":1' % index for index in range(count)) + b"}"


WRONG: dict[str, Callable[[int], bytes]] = {
    "names that nobody knows": body_with_unknown_members,
    "zeros": lambda count: b'{"tags":[' + b",".join([b"0"] * count) + b"]}",
    "NULs": lambda count: b'{"tags":[' + b",".join([b'"\\u0000"'] * count) + b"]}",
}


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("count", [1_000, 200_000])
def test_a_body_full_of_mistakes_is_refused_in_a_few_words_and_steps(kind: str, count: int) -> None:
    body = WRONG[kind](count)
    error = decode_error(body)
    assert 1 <= len(error.detail["fields"]) <= MAX_REPORTED_FIELDS
    assert len(str(error)) + len(str(error.detail)) < 10_000
    assert calls_of(lambda: decode_error(body)) < 1_000


def test_a_short_body_has_all_its_mistakes_named_and_a_long_one_the_first() -> None:
    wrong = b'{"count": "1", "name": 2, "other": 3, "tags": ["a", 4], "ratio": 1}'
    assert set(decode_error(wrong).detail["fields"]) == {"$.count", "$.name", "$.other", "$.tags[1]"}
    assert set(decode_error(b" " * 100_000 + wrong).detail["fields"]) == {"$.count"}
    assert decode_error(b" " * 100_000 + b'{"name": "\\u0000"}').detail["fields"] == {"$": NUL_MESSAGE}


def test_of_many_mistakes_the_first_are_named_and_it_is_said_that_there_are_more() -> None:
    assert not str(decode_error(body_with_unknown_members(MAX_REPORTED_FIELDS))).endswith("and more")
    assert str(decode_error(body_with_unknown_members(MAX_REPORTED_FIELDS + 1))).endswith("and more")


def test_an_unknown_name_is_not_repeated_in_full() -> None:
    for length in (10_000, 1_000_000):
        error = decode_error(b'{"' + b"x" * length + b'": 1}')
        assert len(str(error)) + len(str(error.detail)) < 2_000


@pytest.mark.parametrize("blanks", [0, 100_000])
def test_an_integer_is_accepted_in_every_notation(blanks: int) -> None:
    assert read_body(b" " * blanks + b'{"count": 5.0, "ratio": 1.0}', ExpectedBody) == ExpectedBody(
        count=5, ratio=1.0
    )
    assert set(decode_error(b" " * blanks + b'{"count": 5.5}').detail["fields"]) == {"$.count"}
    assert "range" in str(decode_error(b" " * blanks + b'{"count": 5.0, "ratio": 1e999}'))


def test_every_public_route_accepts_short_bodies_only() -> None:
    public_paths = {
        f"{controller.path}{path}".removesuffix("/")
        for controller in (AuthController, SetupController)
        for handler in vars(controller).values()
        if "POST" in getattr(handler, "http_methods", ())
        and (handler.opt.get(PUBLIC) or PUBLIC in vars(controller).get("opt", {}))
        for path in handler.paths
    }
    assert public_paths == set(PUBLIC_POST_PATHS)


@pytest.mark.parametrize("path", [*PUBLIC_POST_PATHS, "//auth//login/"])
def test_a_public_body_past_64_kib_is_refused(path: str) -> None:
    assert [status_of(path, size) for size in (PUBLIC_BODY_BYTES, PUBLIC_BODY_BYTES + 1)] == [200, 413]


def status_of(path: str, size: int) -> int:
    """The status that the protection gives an application which accepts everything."""
    sent: list[dict[str, Any]] = []

    async def fine(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> dict[str, Any]:
        raise AssertionError("nothing of the body is asked for")

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-length", str(size).encode())]
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "server": ("127.0.0.1", 80)}
    guarded = protection(Config(), Metrics())(fine)  # pyright: ignore[reportArgumentType]
    asyncio.run(guarded(scope, receive, send))  # type: ignore
    return sent[0]["status"]
