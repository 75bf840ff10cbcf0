"""A scripted model and two users with API keys per module, on one server that most modules share."""

import base64
import struct
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import openai
import pytest
from api.client import ApiClient
from api.conftest import connect, numbers
from api.server_process import ServerProcess
from process_environment import scripted_models

from luxx.providers.scripted import (
    Call,
    Counts,
    Fail,
    Finish,
    Gate,
    Rule,
    Script,
    ScriptedProvider,
    Text,
    Thinking,
    When,
)

DETAIL_PARTS = (
    '{"type": "reasoning.text", "text": "I must ", "index": 0, "format": "unknown"}',
    '{"type": "reasoning.text", "text": "look.", "signature": "s1", "index": 0}',
)
DETAILS = [
    {"type": "reasoning.text", "text": "I must look.", "index": 0, "format": "unknown", "signature": "s1"}
]
"""The parts, joined as servers want them back."""

SCRIPT = Script(
    models=["scripted", "other-model", "gpt-4.1-mini", "text-embedding-3-small"],
    rules=[
        Rule(when=When(system="You are Hill in"), reply=[
            Text(text="Hills: yes."), Counts(prompt=5, completion=2)]),
        Rule(when=When(system="You are Lake in"), reply=[
            Text(text="Lakes: no."), Counts(prompt=7, completion=3)]),
        Rule(when=When(system="You are Slow in"), reply=[
            Text(text="Let me"), Gate(name="slow"), Text(text=" think."), Counts(prompt=5, completion=2)]),
        Rule(when=When(system="You are Late in"), reply=[
            Text(text="Let me"), Gate(name="late"), Text(text=" think."), Counts(prompt=5, completion=2)]),
        Rule(when=When(system="You are Thinker in"), reply=[Text(text="I am"), Gate(name="thought")]),
        Rule(when=When(system="You choose who speaks next", user="By a part"), reply=[Text(text="Lakeside")]),
        Rule(when=When(system="You choose who speaks next", user="By a word"), reply=[
            Text(text="Also good: Lake")]),
        Rule(when=When(system="You choose who speaks next", user="In Chinese"), reply=[
            Text(text="我选小红。")]),
        Rule(when=When(system="You choose who speaks next"), reply=[Text(text="I choose Lake!")]),
        *(Rule(when=When(system="You are Fetcher", call=number), reply=[
            Call(name="web_fetch", arguments={"url": "http://127.0.0.1:1/"}, id="call_fetch")])
          for number in (1, 3, 5)),
        Rule(when=When(system="You are Fetcher"), reply=[Text(text="Tried.")]),
        Rule(when=When(system="You are Forger in"), reply=[
            Text(text="Yes.\n\n*"), Text(text="*La"), Text(text="ke:**\n\nI "), Text(text="agree.")]),
        Rule(when=When(system="You are Lister in", has_tool_result=False), reply=[
            Call(name="file_list", arguments={}, id="call_list")]),
        Rule(when=When(system="You are Lister in"), reply=[Text(text="Listed.")]),
        Rule(when=When(system="You are Mute in"), status=401, message="wrong key"),
        Rule(when=When(user="weather", has_tool_result=False), reply=[
            Call(name="get_weather", arguments={"city": "Oslo"}, id="call_a"),
            Call(name="get_weather", arguments={"city": "Rome"}, id="call_b"),
            Counts(prompt=20, completion=9),
        ]),
        Rule(when=When(user="weather"), reply=[Text(text="It rains in Oslo.")]),
        Rule(when=When(user="think"), reply=[
            Thinking(text="Hm, so."), Text(text="Thought."),
            Counts(prompt=10, completion=8, reasoning=4, cached=6),
        ]),
        Rule(when=When(user="ponder", has_tool_result=False), reply=[
            Thinking(text="I need the weather."),
            Call(name="get_weather", arguments={"city": "Oslo"}, id="call_p"),
        ]),
        Rule(when=When(user="ponder"), reply=[Thinking(text="I have it."), Text(text="It rains.")]),
        Rule(when=When(user="break off"), reply=[
            Text(text="One"), Gate(name="broken"), Fail(message="it broke")]),
        Rule(when=When(user="break at once"), reply=[Text(text="One"), Fail(message="it broke")]),
        Rule(when=When(user="go on for ever"), reply=[Text(text="One two END three"), Gate(name="never")]),
        Rule(when=When(user="go into details", has_tool_result=False), body="".join(
            f'data: {{"choices": [{{"index": 0, "delta": {delta}, "finish_reason": {finish}}}]}}\n\n'
            for delta, finish in (
                (f'{{"reasoning_details": [{DETAIL_PARTS[0]}]}}', "null"),
                (f'{{"reasoning_details": [{DETAIL_PARTS[1]}]}}', "null"),
                ('{"tool_calls": [{"index": 0, "id": "call_a", "function": '
                 '{"name": "get_weather", "arguments": "{}"}}]}', '"tool_calls"'),
            )) + "data: [DONE]\n\n"),
        Rule(when=When(user="wait here"), reply=[Text(text="I am"), Gate(name="open"), Text(text=" back.")]),
        Rule(when=When(user="wait silently"), reply=[Gate(name="silent"), Text(text="Late.")]),
        Rule(when=When(user="be cut"), reply=[Text(text="One two"), Finish(reason="length")]),
        Rule(when=When(user="be full"), reply=[Text(text="One"), Finish(reason="model_length")]),
        Rule(when=When(user="be filtered"), reply=[Text(text="One"), Finish(reason="content_filter")]),
        Rule(when=When(user="end strangely"), reply=[Text(text="One"), Finish(reason="eaten_by_a_bear")]),
        Rule(when=When(user="call nothing"), body=(
            'data: {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "id": "call_a", '
            '"function": {"name": "get_weather", "arguments": ""}}]}}]}\n\n'
            'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}\n\n'
            "data: [DONE]\n\n"
        )),
        Rule(when=When(user="in words"), reply=[Text(text='{"town": "Oslo"}')]),
        Rule(when=When(user="half a pair"), body=(
            'data: {"choices": [{"index": 0, "delta": {"content": "One \\ud83d two"}}]}\n\n'
            'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
        )),
        Rule(when=When(user="as JSON"), reply=[Text(text='{"city": "Oslo"}')]),
        Rule(when=When(user="refuse this"), status=401, message="wrong key"),
        Rule(when=When(user="too many"), status=429, message="slow down", headers={"retry-after": "0"}),
        Rule(when=When(user="too long"), status=400,
             body='{"error": {"message": "too long", "code": "context_length_exceeded"}}'),
        Rule(when=When(user="list my files, then wait", has_tool_result=True), reply=[
            Gate(name="listed"), Text(text="None.")]),
        Rule(when=When(user="list my files", has_tool_result=False), reply=[
            Text(text="Let me see. "), Call(name="file_list", arguments={})]),
        Rule(when=When(user="list my files"), reply=[Text(text="None.")]),
        Rule(when=When(system="You are Pirate"), reply=[Text(text="Arr!"), Counts(prompt=3, completion=2)]),
        Rule(reply=[Text(text="Hello there, friend."), Counts(prompt=12, completion=4)]),
    ],
)  # fmt: skip


def png(red: int = 255) -> bytes:
    """A PNG image of one pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes([0, red, 0, 0]))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


IMAGE_URL = "data:image/png;base64," + base64.b64encode(png()).decode()


class Person(NamedTuple):
    """A user with a key for chatting and one for reading."""

    api: ApiClient
    key: str
    read_key: str

    @property
    def name(self) -> str:
        return str(self.api.user["username"])

    @property
    def base_url(self) -> str:
        return f"{self.api.server.url}/v1"

    def sdk(self, key: str | None = None, **more: Any) -> openai.OpenAI:
        http = httpx.Client(trust_env=False, timeout=30)
        options: dict[str, Any] = {"max_retries": 0, "http_client": http, **more}
        return openai.OpenAI(base_url=self.base_url, api_key=key or self.key, **options)

    def async_sdk(self) -> openai.AsyncOpenAI:
        http: Any = httpx.AsyncClient(trust_env=False, timeout=30)
        return openai.AsyncOpenAI(base_url=self.base_url, api_key=self.key, max_retries=0, http_client=http)


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedProvider]:
    with scripted_models(SCRIPT) as provider:
        yield provider


@pytest.fixture(scope="session")
def small_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Takes bodies of one megabyte. Do not stop it."""
    with ServerProcess(
        tmp_path_factory.mktemp("server"),
        LUXX_SERVER__MAX_BODY_MB="1",
        LUXX_SERVER__CORS_ORIGINS='["http://app.example"]',
    ) as running:
        yield running


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """For modules that look at everything that a server stores."""
    with ServerProcess(tmp_path_factory.mktemp("own")) as running:
        yield running


@pytest.fixture(scope="module")
def server(small_server: ServerProcess) -> ServerProcess:
    """Shared with other modules, whose users differ. A module may override it."""
    return small_server


@pytest.fixture(scope="module")
def admin(server: ServerProcess, upstream: ScriptedProvider) -> Iterator[ApiClient]:
    with ApiClient(server, None).sign_in() as person:
        person.good("PUT", "/admin/allowed-hosts", json={"hosts": [upstream.url.removeprefix("http://")]})
        yield person


def new_person(server: ServerProcess, name: str, upstream: ScriptedProvider) -> Person:
    api = ApiClient(server, None).register(name)
    connect(api, upstream)
    keys = [
        api.good("POST", "/keys", json={"name": scope, "scopes": [scope]})["key"]
        for scope in ("chat", "read")
    ]
    return Person(api, *keys)


@pytest.fixture(scope="module")
def ann(server: ServerProcess, admin: ApiClient, upstream: ScriptedProvider) -> Iterator[Person]:
    person = new_person(server, f"ann{next(numbers)}", upstream)
    with person.api:
        yield person


@pytest.fixture(scope="module")
def ben(server: ServerProcess, admin: ApiClient, upstream: ScriptedProvider) -> Iterator[Person]:
    person = new_person(server, f"ben{next(numbers)}", upstream)
    with person.api:
        yield person


@pytest.fixture(scope="module")
def client(ann: Person) -> Iterator[openai.OpenAI]:
    """Ann's official SDK."""
    with ann.sdk() as sdk:
        yield sdk
