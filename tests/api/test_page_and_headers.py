"""Hosts, origins, security headers and metrics; the pages load nothing from other sites."""

import re
import socket
from typing import Any, cast, get_args

import pytest
from bs4 import BeautifulSoup
from openapi_spec_validator import OpenAPIV31SpecValidator

from api.client import ApiClient
from api.schema import Document
from api.server_process import ServerProcess
from luxx.api.openapi.types import DESCRIPTIONS
from luxx.web.files import WebFiles
from luxx.wire import event
from luxx.wire.event import Event, RunSnapshot
from luxx.wire.turn import EventBase

METRICS = re.compile(
    r'[a-zA-Z_:][a-zA-Z0-9_:]*(\{([a-z_]+="[^"]*",?)*\})? [0-9.eE+-]+(\s\d+)?|# (HELP|TYPE) .*|# EOF|'
)


def test_the_document_is_valid_openapi_3_1(document: Document) -> None:
    assert document.content["openapi"].startswith("3.1")
    assert [error.message for error in OpenAPIV31SpecValidator(document.content).iter_errors()] == []


def test_every_operation_says_what_it_answers_and_how_it_fails(document: Document) -> None:
    for operation in document.operations:
        responses = operation.about["responses"]
        assert any(status.startswith("2") for status in responses), operation
        assert operation.about.get("summary"), operation
        assert operation.about.get("description"), operation
        if not operation.is_public:
            assert "401" in responses, operation
        if operation.names("path"):
            assert "404" in responses, operation
        if operation.about.get("requestBody") is not None or operation.parameters:
            assert "400" in responses, operation
        for status, about in responses.items():
            if status.startswith(("4", "5")):
                schema = document.resolve(about)["content"]["application/json"]["schema"]
                failure = document.resolve(schema)
                form = {"error"} if operation.template.startswith("/v1/") else {"success", "error", "code"}
                assert form <= set(failure["required"]), f"{operation} {status}"


def test_every_parameter_and_every_field_has_a_description(document: Document) -> None:
    lacking: list[str] = []
    for operation in document.operations:
        lacking += [f"{operation} {each['name']}" for each in operation.parameters if not each["description"]]
    used: set[str] = set()

    def walk(value: Any, at: str) -> None:
        if isinstance(value, list):
            for item in cast("list[Any]", value):
                walk(item, at)
        elif isinstance(value, dict):
            members = cast("dict[str, Any]", value)
            for name, field in members.get("properties", {}).items():
                used.add(name)
                if not field.get("description"):
                    lacking.append(f"{at}.{name}")
            for name, item in members.items():
                walk(item, f"{at}/{name}")

    walk(document.content["paths"], "")
    walk(document.content["components"], "")
    assert not lacking, "\n".join(lacking)
    parameters = {each["name"] for operation in document.operations for each in operation.parameters}
    assert DESCRIPTIONS["parameters"].keys() <= parameters
    schemas = document.content["components"]["schemas"]
    for schema, fields in DESCRIPTIONS.items():
        if schema == "any":
            assert fields.keys() <= used, fields.keys() - used
        elif schema != "parameters":
            assert fields.keys() <= schemas[schema]["properties"].keys(), schema


def test_every_event_is_in_the_document_and_in_the_table_of_events(document: Document) -> None:
    kinds = [kind for kind in vars(event).values() if isinstance(kind, type) and issubclass(kind, EventBase)]
    events = {str(kind.__struct_config__.tag): kind for kind in kinds if kind is not EventBase}
    assert set(events.values()) == {RunSnapshot, *get_args(Event)}
    streams = [each for each in document.operations if "| event | what |" in each.about["description"]]
    assert {str(each) for each in streams} == {
        "POST /messages/stream",
        "POST /messages/{message_id}/regenerate",
        "POST /conversations/{conversation_id}/compress",
        "GET /runs/{run_id}/events",
        "POST /agents/{agent_id}/invoke",
        "GET /chat-rooms/{room_id}/events",
        "POST /chat-rooms/{room_id}/start",
        "POST /chat-rooms/{room_id}/resume",
        "POST /tasks/plan",
        "GET /tasks/{task_id}/events",
        "POST /tasks/{task_id}/execute",
        "POST /tasks/{task_id}/resume",
        "POST /artifacts/{artifact_id}/regenerate",
    }
    for tag, kind in events.items():
        assert document.content["components"]["schemas"][kind.__name__]["properties"]["type"]["enum"] == [tag]
        for operation in streams:
            row = re.search(rf"^\| `{tag}` \| (.*) \| .*\|$", operation.about["description"], re.MULTILINE)
            assert row, f"{operation}: {tag}"
            assert row[1].strip(), f"{tag} has no docstring"


def test_operation_ids_and_bodies_are_good_for_generated_clients(document: Document) -> None:
    ids = [operation.about["operationId"] for operation in document.operations]
    assert len(ids) == len(set(ids))
    for operation in document.operations:
        schema = document.body_schema(operation)
        if schema is not None and schema.get("type") == "object":
            is_refused = schema.get("additionalProperties") is False
            # OpenAI's clients send what Luxx leaves out with a warning of the run.
            assert is_refused != str(operation).startswith("POST /v1/"), f"{operation}: unknown fields"


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "10.0.0.1",
        "evil.example:80",
        "[::2]",
    ],
)
def test_a_foreign_host_is_refused_on_every_path(nobody: ApiClient, host: str) -> None:
    for path in ("/", "/health", "/auth/login", "/docs", "/ui/", "/nothing", "/metrics", "/openapi.json"):
        response = nobody.ask("GET", path, headers={"host": host})
        assert response.status_code == 403
        assert response.json()["detail"]["kind"] == "host_not_allowed"


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "[::1]", "LOCALHOST"])
def test_loopback_names_are_answered(nobody: ApiClient, server: ServerProcess, name: str) -> None:
    port = server.url.rsplit(":", 1)[1]
    nobody.good("GET", "/health", headers={"host": f"{name}:{port}"})


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1:1", "file://", ""])
def test_a_foreign_origin_changes_nothing(anna: ApiClient, origin: str) -> None:
    before = anna.state()
    for method, path, body in (
        ("POST", "/conversations", {"title": "planted"}),
        ("PUT", "/settings", {"temperature": 1.0}),
        ("POST", "/auth/login", {"username": anna.user["username"], "password": "x"}),
    ):
        failure = anna.bad(method, path, 403, json=body, headers={"origin": origin})
        assert failure["detail"]["kind"] == "origin_not_allowed"
    assert anna.state() == before


def test_the_own_origin_is_allowed_and_no_response_allows_others(
    anna: ApiClient, server: ServerProcess
) -> None:
    conversation = anna.ask("POST", "/conversations", json={"title": "own"}, headers={"origin": server.url})
    assert conversation.status_code == 201
    for method in ("GET", "OPTIONS"):
        headers = {"origin": "http://evil.example", "access-control-request-method": "POST"}
        response = anna.http.request(method, "/conversations", headers=headers)
        assert not [name for name in response.headers if name.startswith("access-control-")]


def test_security_headers_are_on_answers_of_every_kind(
    anna: ApiClient, nobody: ApiClient, server: ServerProcess
) -> None:
    """`ApiClient.ask` checks the headers; this test sends one request for each kind of answer."""
    name = anna.user["username"]
    kinds = {
        200: nobody.ask("GET", "/health"),
        201: anna.ask("POST", "/conversations", json={}),
        303: nobody.ask("GET", "/", headers={"accept": "text/html"}),
        400: anna.ask("POST", "/conversations", json={"title": 5}),
        401: nobody.ask("GET", "/auth/me"),
        403: anna.ask("GET", "/auth/users"),
        404: anna.ask("GET", "/nothing"),
        405: anna.ask("DELETE", "/health"),
        409: nobody.ask("POST", "/auth/register", json={"username": name, "password": "x" * 12}),
        413: anna.ask("POST", "/conversations", content=b" " * 11_000_000),
    }
    assert {status: answer.status_code for status, answer in kinds.items()} == {each: each for each in kinds}
    for answer in kinds.values():
        policy = answer.headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "default-src" in policy
        assert "server" not in answer.headers
        assert "x-powered-by" not in answer.headers
    assert kinds[303].headers["location"] == "/ui/"


def test_answers_with_somebodys_data_are_not_kept_by_caches(anna: ApiClient) -> None:
    response = anna.ask("GET", "/conversations")
    assert "public" not in response.headers.get("cache-control", "")


def test_metrics_are_prometheus_text_for_loopback_only(nobody: ApiClient) -> None:
    response = nobody.http.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    lines = response.text.splitlines()
    assert len(lines) > 10
    assert not [line for line in lines if not METRICS.fullmatch(line)]
    for header in ("x-forwarded-for", "forwarded", "x-real-ip", "via"):
        nobody.bad("GET", "/metrics", 403, headers={header: "203.0.113.9"})
        nobody.bad("GET", "/metrics", 403, headers={header: "127.0.0.1"})


def test_metrics_name_routes_and_no_ids(anna: ApiClient, nobody: ApiClient) -> None:
    conversation_id = anna.good("POST", "/conversations", json={})["id"]
    anna.good("GET", f"/conversations/{conversation_id}")
    anna.ask("GET", "/no-such-place-at-all")
    text = nobody.http.get("/metrics").text
    assert conversation_id not in text
    assert "no-such-place-at-all" not in text
    assert "anna" not in text


@pytest.mark.parametrize("path", ["/docs", "/ui/"])
def test_the_pages_take_nothing_from_elsewhere_and_have_no_inline_script(
    nobody: ApiClient, path: str
) -> None:
    response = nobody.ask("GET", path, headers={"accept": "text/html"})
    is_missing = path == "/ui/" and WebFiles().problem() is not None
    assert response.status_code == (503 if is_missing else 200)
    assert response.headers["content-type"].startswith("text/html")
    policy = response.headers["content-security-policy"]
    assert "http:" not in policy
    assert "https:" not in policy
    assert "unsafe" not in policy
    assert "javascript:" not in response.text.lower()
    elements = BeautifulSoup(response.text, "lxml").find_all()
    assert not [element for element in elements if element.name == "script" and not element.get("src")]
    assert not [name for element in elements for name in element.attrs if name.startswith("on")]
    loading = [element for element in elements if element.name != "a"]
    loaded = [str(element[name]) for element in loading for name in ("src", "href") if element.get(name)]
    assert not [address for address in loaded if re.match(r"(?:[a-z]+:)?//", address)]


def test_a_browser_is_sent_to_the_pages_and_a_program_gets_json(nobody: ApiClient) -> None:
    browser = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
    response = nobody.ask("GET", "/", headers=browser)
    assert response.is_redirect
    assert response.headers["location"] == "/ui/"
    for accept in ("application/json", "*/*"):
        assert nobody.good("GET", "/", headers={"accept": accept})


@pytest.mark.parametrize(
    "lines",
    [
        ["GET /health HTTP/1.1"],
        ["GET /health HTTP/1.1", "Host: localhost", "Host: evil.example"],
        ["GET /health HTTP/1.1", "Host: local host"],
        ["GET /health HTTP/1.1", "Host: localhost/../"],
    ],
)
def test_none_two_or_broken_hosts_are_refused(server: ServerProcess, lines: list[str]) -> None:
    address: Any = server.url.removeprefix("http://").rsplit(":", 1)
    with socket.create_connection((address[0], int(address[1])), timeout=10) as connection:
        connection.sendall("\r\n".join([*lines, "Connection: close", "", ""]).encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 400 ")
