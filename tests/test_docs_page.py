"""`/openapi.json` and `/docs`: complete, consistent with the routes, and a page without a script."""

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

import jsonschema
import msgspec
import pytest
from bs4 import BeautifulSoup
from litestar import Litestar
from litestar.routes import HTTPRoute

from luxx.api.http.authentication import PUBLIC
from luxx.api.openapi.document import STREAM_ROUTES, TAGS, build_document
from luxx.api.openapi.page import PAGE_POLICY, STYLE, render
from luxx.api.openapi.types import EXAMPLES, OPENAI_ROUTES
from luxx.app.application import create_app
from luxx.app.container import Services
from luxx.infra.config.schema import Config


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Litestar]:
    services = Services(Config(data_dir=str(tmp_path_factory.mktemp("data"))), {})
    yield create_app(services)
    services.release()


@pytest.fixture(scope="module")
def document(app: Litestar) -> dict[str, Any]:
    document = build_document(app, title="Luxx", version="1")
    # Encoded and decoded, because clients get JSON.
    return msgspec.json.decode(msgspec.json.encode(document))


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for item in value.values():
            yield from references(item)
    elif isinstance(value, list):
        for item in value:
            yield from references(item)


def test_every_route_is_described_and_nothing_else(app: Litestar, document: dict[str, Any]) -> None:
    real = {
        (str(method), route.path_format or "/")
        for route in app.routes
        if isinstance(route, HTTPRoute)
        for handler in route.route_handlers
        if handler.resolve_include_in_schema()
        for method in handler.http_methods
        if method not in {"OPTIONS", "HEAD"}  # HEAD answers wherever GET does
    }
    assert {(method, path) for method, path, _ in operations(document)} == real


def test_litestar_serves_no_pages_of_its_own(app: Litestar) -> None:
    assert [route.path for route in app.routes if route.path.startswith(("/openapi/", "/schema"))] == []


def test_every_reference_resolves_and_every_component_is_a_schema(document: dict[str, Any]) -> None:
    for reference in references(document):
        target: Any = document
        for key in reference.removeprefix("#/").split("/"):
            target = target[key]
        assert target
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_names_are_short_and_operations_have_names_of_their_own(document: dict[str, Any]) -> None:
    assert [name for name in document["components"]["schemas"] if not re.fullmatch(r"\w+", name)] == []
    names = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(names) == len(set(names))


def test_every_failure_is_the_envelope(document: dict[str, Any]) -> None:
    for method, path, operation in operations(document):
        failures = {status for status in operation["responses"] if not status.startswith(("2", "3"))}
        assert {"400", "default"} <= failures, (method, path)
        assert all("$ref" in operation["responses"][status] for status in failures)
    for name, response in document["components"]["responses"].items():
        form = "OpenAIFailure" if name.startswith("OpenAI") else "Failure"
        assert response["content"]["application/json"]["schema"] == {"$ref": f"#/components/schemas/{form}"}
    for _, path, operation in operations(document):
        references = {answer.get("$ref", "") for answer in operation["responses"].values()}
        is_openai = {"/responses/OpenAI" in reference for reference in references if reference}
        assert is_openai == {path.startswith("/v1/")}, path
    assert "Retry-After" in document["components"]["responses"]["TooMany"]["headers"]


def test_only_public_routes_need_no_token(app: Litestar, document: dict[str, Any]) -> None:
    public = {
        (str(method), route.path_format or "/")
        for route in app.routes
        if isinstance(route, HTTPRoute)
        for handler in route.route_handlers
        if handler.opt.get(PUBLIC)
        for method in handler.http_methods
    }
    for method, path, operation in operations(document):
        assert (operation.get("security") == []) == ((method, path) in public)
        assert ("401" in operation["responses"]) or ((method, path) in public)
    assert document["security"] == [{"bearer": []}]


def test_every_answer_has_a_type(document: dict[str, Any]) -> None:
    for method, path, operation in operations(document):
        for status, answer in operation["responses"].items():
            for body in answer.get("content", {}).values():
                assert body["schema"], (method, path, status)


def test_each_route_that_streams_is_described_as_one(app: Litestar) -> None:
    streaming = {
        (str(method), route.path_format)
        for route in app.routes
        if isinstance(route, HTTPRoute)
        for handler in route.route_handlers
        if "streams" in handler.parsed_fn_signature.parameters
        for method in handler.http_methods - {"HEAD", "OPTIONS"}
    }
    assert streaming == set(STREAM_ROUTES) | set(OPENAI_ROUTES)


def test_streams_are_event_streams_with_the_table_of_events(document: dict[str, Any]) -> None:
    streaming = {
        (method, path): operation
        for method, path, operation in operations(document)
        if "text/event-stream" in operation["responses"].get("200", {}).get("content", {})
    }
    assert set(streaming) == set(STREAM_ROUTES) | set(OPENAI_ROUTES)
    for operation in (streaming[key] for key in STREAM_ROUTES):
        assert all(f"| `{kind}` |" in operation["description"] for kind in ("run", "process_step", "done"))


def test_bodies_refuse_unknown_fields_and_keep_their_bounds(document: dict[str, Any]) -> None:
    body = document["components"]["schemas"]["MessageBody"]
    assert body["additionalProperties"] is False
    jsonschema.validate(
        {"conversation_id": "a", "content": "b", "tools": ["file_read"]}, _with(document, body)
    )
    for wrong in ({"content": "b"}, {"conversation_id": "a", "content": "b", "tools": 3}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, _with(document, body))


def _with(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    return {**schema, "components": document["components"]}


def test_times_are_dates_and_queries_have_bounds_and_no_null(document: dict[str, Any]) -> None:
    run = document["components"]["schemas"]["Run"]["properties"]
    assert run["created_at"] == {
        "type": "string",
        "format": "date-time",
        "description": "when it was created",
    }
    assert {"type": "string", "format": "date-time"} in run["finished_at"]["anyOf"]
    parameters = {
        parameter["name"]: parameter for parameter in document["paths"]["/runs"]["get"]["parameters"]
    }
    assert parameters["status"]["schema"] == {"$ref": "#/components/schemas/RunStatus"}
    assert parameters["page_size"]["schema"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 100,
        "default": 20,
    }


def test_every_tag_is_described(document: dict[str, Any]) -> None:
    assert [tag["name"] for tag in document["tags"] if not TAGS.get(tag["name"])] == []


def test_the_page_names_every_operation_and_schema_and_has_no_script(document: dict[str, Any]) -> None:
    page = BeautifulSoup(render(document), "lxml")
    for _, _, operation in operations(document):
        assert page.find("details", id=operation["operationId"]) is not None
    anchors = {element["id"] for element in page.find_all(id=True)}
    links = [str(link["href"]) for link in page.find_all(href=True)]
    assert {link[1:] for link in links if link.startswith("#")} <= anchors
    assert page.script is None
    loaded = [str(element["src"]) for element in page.find_all(src=True)]
    assert not [address for address in links + loaded if re.match(r"(?:https?:)?//", address)]
    attributes = {name for element in page.find_all() for name in element.attrs}
    assert not [name for name in attributes if name.startswith("on") or name == "style"]
    assert [style.string for style in page.find_all("style")] == [STYLE]
    assert "script-src" not in PAGE_POLICY
    assert "default-src 'none'" in PAGE_POLICY


def test_descriptions_are_escaped(document: dict[str, Any]) -> None:
    spoiled = {**document, "info": {"title": "<img src=x onerror=alert(1)>", "version": "1"}}
    assert "<img" not in render(spoiled)


def test_operations_with_a_body_show_it(document: dict[str, Any]) -> None:
    with_body = {path for method, path, operation in operations(document) if "requestBody" in operation}
    assert {"/auth/login", "/conversations", "/messages", "/messages/stream", "/providers"} <= with_body


def test_every_json_body_has_an_example_that_its_schema_accepts(document: dict[str, Any]) -> None:
    with_body = set()
    for method, path, operation in operations(document):
        body = operation.get("requestBody", {}).get("content", {}).get("application/json")
        if body is not None:
            with_body.add(f"{method} {path}")
            jsonschema.validate(body["example"], _with(document, body["schema"]))
    assert set(EXAMPLES) == with_body


def test_the_page_shows_calls_that_a_shell_can_run(document: dict[str, Any]) -> None:
    page = BeautifulSoup(render(document), "lxml")
    calls = [pre.get_text() for pre in page.find_all("pre") if pre.get_text().startswith("curl ")]
    assert len(calls) == len(operations(document))
    words = [shlex.split(call) for call in calls]
    (message,) = [call for call in words if call[:4] == ["curl", "-X", "POST", "$LUXX/messages"]]
    assert json.loads(message[message.index("-d") + 1])["content"] == "Say hello."
    (deletion,) = [call for call in words if "$LUXX/keys/$KEY_ID" in call]
    assert deletion[1:3] == ["-X", "DELETE"]


def test_summaries_are_whole_sentences(app: Litestar, document: dict[str, Any]) -> None:
    given = {
        handler.summary
        for route in app.routes
        if isinstance(route, HTTPRoute)
        for handler in route.route_handlers
    }
    for method, path, operation in operations(document):
        if operation["summary"] in given:
            continue
        first = " ".join(operation["description"].partition("\n\n")[0].split())
        assert first.startswith(operation["summary"]), (method, path)
        assert first[len(operation["summary"]) :][:1] in ("", ".", "!", "?"), (method, path)
