"""No body stops the server: while the worst of each route is worked on, `/health` answers another client at
once."""

import http.client
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.parse import quote

import pytest
from recorded_upstream import Answer, RecordedUpstream
from websockets.exceptions import ConnectionClosed

from api import health_waits
from api.client import ApiClient
from api.conftest import KEY
from api.owned_ids import NO_UUID, IdsByName, create_all
from api.schema import Document, Operation
from api.server_process import ServerProcess
from api.socket_client import open_socket
from api.worst_answers import ANSWERS, ANTHROPIC, GEMINI, JSON_HEADERS, MODEL_LISTS, OPENAI
from api.worst_bodies import JSON, MODELS, ROUTES, SEARCHES, WORST, WORST_PARAMETERS, Body, largest
from luxx.providers.scripted import ScriptedProvider

MAX_WAIT = 0.3
ATTEMPTS = 3
"""The best one counts: a collection of garbage may fall into a wait."""

AFTERMATH = 0.2
"""Seconds in which a server may still work on a request that it has answered."""

ALWAYS = (
    "POST /chat-rooms",
    "POST /chat-rooms/{room_id}/messages",
    "POST /conversations",
    "POST /v1/responses",
)
"""The routes that `make test` tries; `make test-heavy` tries all."""

ALWAYS_ANSWERED = (
    "tags in a text",
    "calls",
    "empty calls",
    "error of gemini",
    "refused with key",
    "compressed twice",
)
"""The answers of providers that `make test` tries."""

PROVIDERS = {
    "scripted": ("openai_compatible", "/v1"),
    "anthropic": ("anthropic", ""),
    "gemini": ("gemini", ""),
    "responses": ("openai", "/v1"),
}
"""The type and the path of the provider of each name in MODELS."""


class Health:
    """The waits of another client, measured by a process of its own."""

    def __init__(self, server: ServerProcess) -> None:
        address, pid = server.url.removeprefix("http://"), str(server.process.pid)
        command = [sys.executable, health_waits.__file__, address, pid]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def longest(self) -> float:
        """The longest wait since the last call, in seconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder: Path = tmp_path_factory.mktemp("server")
    with ServerProcess(folder, LUXX_DEMO__ENABLED="true") as running:
        yield running


@pytest.fixture(scope="module")
def health(server: ServerProcess) -> Iterator[Health]:
    health = Health(server)
    yield health
    health.close()


@pytest.fixture(scope="module")
def attacker(admin: ApiClient, upstream: ScriptedProvider) -> ApiClient:
    """The operator, so that no route is refused, with providers of all dialects."""
    for name in MODELS:
        kind, path = PROVIDERS[name]
        provider = {
            "name": name,
            "provider_type": kind,
            "base_url": f"{upstream.url}{path}",
            "api_key": KEY,
            "default_model": "scripted",
            "is_default": name == "scripted",
        }
        admin.good("POST", "/providers", json=provider)
    return admin


@pytest.fixture(scope="module")
def ids(attacker: ApiClient) -> IdsByName:
    return {**create_all(attacker, "worst").ids, "tenant_id": 1, "change_id": NO_UUID, "name": "file_read"}


def test_every_route_that_takes_a_body_is_tried(document: Document) -> None:
    assert {str(one) for one in document.operations if "requestBody" in one.about} == set(ROUTES)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "route", [route if route in ALWAYS else pytest.param(route, marks=pytest.mark.heavy) for route in ROUTES]
)
def test_the_worst_body_of_a_route_keeps_no_other_client_waiting(
    attacker: ApiClient, document: Document, health: Health, ids: IdsByName, route: str
) -> None:
    operation = next(one for one in document.operations if str(one) == route)
    generated = [largest(document, operation)] if document.body_schema(operation) else []
    waits = {
        body.name: wait_during(attacker, health, operation, body, ids)
        for body in [*generated, *WORST.get(route, list)()]
    }
    assert {name: wait for name, wait in waits.items() if wait > MAX_WAIT} == {}


def wait_during(
    attacker: ApiClient, health: Health, operation: Operation, body: Body, ids: IdsByName
) -> float:
    """How long another client waited, in the best of some attempts."""
    path = re.sub(r"\{(\w+)\}", lambda name: str(ids[name[1]]), body.path or operation.template)
    content = body.encoded(ids)
    return best_wait(health, lambda: send(attacker, operation.method, path, content, body.media_type))


def best_wait(health: Health, attack: Callable[[], object]) -> float:
    """How long another client waited during the attack, in the best of some attempts."""
    best = float("inf")
    for _ in range(ATTEMPTS):
        health.longest()
        attack()
        best = min(best, health.longest())
        if best <= MAX_WAIT:
            break
    return best


@pytest.mark.timeout(600)
def test_the_worst_parameters_of_a_route_keep_no_other_client_waiting(
    attacker: ApiClient, document: Document, health: Health, ids: IdsByName
) -> None:
    waits: dict[str, float] = {}
    for operation in document.operations:
        if operation.method == "GET" and operation.parameters:
            attack = partial(send_parameters, attacker, operation, ids)
            waits[str(operation)] = best_wait(health, attack)
    assert {route: wait for route, wait in waits.items() if wait > MAX_WAIT} == {}


def send_parameters(attacker: ApiClient, operation: Operation, ids: IdsByName) -> None:
    """Sends each of the worst values at every parameter, with ids that exist in the path and without."""
    known = re.sub(r"\{(\w+)\}", lambda name: str(ids.get(name[1], 1)), operation.template)
    for value in (*WORST_PARAMETERS, *(SEARCHES if "q" in operation.names("query") else ())):
        query = "&".join(f"{name}={value}" for name in operation.names("query"))
        for path in (known, re.sub(r"\{\w+\}", value, operation.template)):
            send(attacker, "GET", f"{path}?{query}", b"", JSON, **{"last-event-id": value[:4_000]})


def frames() -> Iterator[tuple[str, str | bytes, int]]:
    """Messages for a socket: a name, the message, and how often it is sent."""
    yield "pings", '{"type": "ping"}', 5_000
    yield "brackets", "[" * 60_000, 100
    yield "lists", '{"type": "ping", "a": [' + "[]," * 20_000 + "1]}", 100
    yield "digits", '{"type": "ping", "a": ' + "9" * 60_000 + "}", 100
    yield "long id", '{"type": "subscribe", "session_id": "' + "a" * 60_000 + '"}', 100
    yield "marks", '{"type": "subscribe", "session_id": "' + "\u0f71\u0f72" * 10_000 + '"}', 100
    yield "many fields", "{" + ",".join(f'"k{number}": 1' for number in range(5_000)) + "}", 100
    yield "large", "a" * 10_000_000, 2
    yield "bytes", b"\0" * 60_000, 100


@pytest.mark.timeout(600)
def test_the_worst_messages_of_a_socket_keep_no_other_client_waiting(
    attacker: ApiClient, health: Health
) -> None:
    def flood(message: str | bytes, count: int) -> None:
        with open_socket(attacker) as socket, suppress(ConnectionClosed, OSError):
            for _ in range(count):  # It reads no answer.
                socket.send(message)

    waits = {name: best_wait(health, partial(flood, message, count)) for name, message, count in frames()}
    assert {name: wait for name, wait in waits.items() if wait > MAX_WAIT} == {}


@pytest.fixture(scope="module")
def hostile() -> Iterator[RecordedUpstream]:
    lists = {name: Answer(body, headers=JSON_HEADERS) for name, body in MODEL_LISTS.items()}
    with RecordedUpstream({**{name: answer for name, (_, answer) in ANSWERS.items()}, **lists}) as upstream:
        yield upstream


def connect_hostile(person: ApiClient, hostile: RecordedUpstream, name: str, kind: str) -> int:
    """Creates a provider whose address is that of the answer with this name. Returns its id."""
    path = {ANTHROPIC: "", GEMINI: "/v1beta"}.get(kind, "/v1")
    provider = {
        "name": name,
        "provider_type": kind,
        "base_url": f"{hostile.url(quote(name))}{path}",
        "api_key": KEY,
        "default_model": "hostile",
    }
    provider_id: int = person.good("POST", "/providers", json=provider)["id"]
    return provider_id


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name",
    [name if name in ALWAYS_ANSWERED else pytest.param(name, marks=pytest.mark.heavy) for name in ANSWERS],
)
def test_the_worst_answer_of_a_provider_keeps_no_other_client_waiting(
    attacker: ApiClient, health: Health, hostile: RecordedUpstream, name: str
) -> None:
    provider_id = connect_hostile(attacker, hostile, name, ANSWERS[name][0])

    def ask() -> None:
        hostile.asked.clear()
        conversation = attacker.good("POST", "/conversations", json={"provider_id": provider_id})["id"]
        body = json.dumps({"conversation_id": conversation, "content": "x"}).encode()
        send(attacker, "POST", "/messages", body, JSON)

    assert best_wait(health, ask) <= MAX_WAIT


def test_an_answer_with_too_many_calls_is_cut_and_the_run_says_so(
    attacker: ApiClient, hostile: RecordedUpstream
) -> None:
    provider_id = connect_hostile(attacker, hostile, "more calls", OPENAI)
    conversation = attacker.good("POST", "/conversations", json={"provider_id": provider_id})["id"]
    body = {"conversation_id": conversation, "content": "x"}
    answer = attacker.http.post("/messages", json=body)
    assert "more than 3,000 steps" in answer.text


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", MODEL_LISTS)
def test_the_worst_list_of_models_keeps_no_other_client_waiting(
    attacker: ApiClient, health: Health, hostile: RecordedUpstream, name: str
) -> None:
    provider_id = connect_hostile(attacker, hostile, name, OPENAI)

    def work() -> None:
        send(attacker, "GET", f"/providers/{provider_id}/models", b"", JSON)
        body = json.dumps({"provider_id": provider_id, "model": "ab" * 90}).encode()
        send(attacker, "POST", "/conversations", body, JSON)

    assert best_wait(health, work) <= MAX_WAIT


def send(
    attacker: ApiClient, method: str, path: str, content: bytes, media_type: str, **headers: str
) -> None:
    address = attacker.server.url.removeprefix("http://")
    headers |= {"authorization": f"Bearer {attacker.token}", "content-type": media_type, "accept": JSON}
    connection = http.client.HTTPConnection(address, timeout=120)
    try:
        connection.request(method, path, content, headers)
        response = connection.getresponse()
        response.read()
    except ConnectionError:
        return  # A body past the limit is not read to its end.
    finally:
        connection.close()
    assert response.status < 500 or response.status == 502, f"{method} {path}: {response.status}"
