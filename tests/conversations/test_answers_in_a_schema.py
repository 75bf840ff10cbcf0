"""`response_format`: the schema reaches the model on every call of the run, or the request is refused."""

from collections.abc import Iterator

import pytest
from branching import STRUCTURED, Desk, desk_in

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FORMAT = {"type": "json_schema", "schema": SCHEMA}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with desk_in(tmp_path_factory.mktemp("schemas")) as made:
        yield made


def test_the_answer_is_asked_for_in_the_schema(desk: Desk) -> None:
    chat = desk.chat(model=STRUCTURED)
    chat.send("where", response_format=FORMAT)
    assert desk.sent()["response_format"]["json_schema"]["schema"] == SCHEMA
    chat.send("where now")
    assert "response_format" not in desk.sent()


def test_another_answer_may_be_asked_for_in_a_schema_and_named(desk: Desk) -> None:
    chat = desk.chat(model=STRUCTURED)
    first = chat.send("where")
    chat.again(first["id"], response_format=FORMAT | {"name": "place"})
    assert desk.sent()["response_format"]["json_schema"]["schema"] == {"title": "place", **SCHEMA}


def test_a_stream_takes_a_schema_too(desk: Desk) -> None:
    chat = desk.chat(model=STRUCTURED)
    body = {"conversation_id": chat.id, "content": "where", "response_format": FORMAT}
    with desk.person.http.stream("POST", "/messages/stream", json=body) as response:
        assert "event: done" in response.read().decode()
    assert desk.sent()["response_format"]["json_schema"]["schema"] == SCHEMA


def test_a_model_that_keeps_to_no_schema_is_not_asked_and_nothing_is_stored(desk: Desk) -> None:
    chat = desk.chat()
    requests = len(desk.upstream.requests)
    body = {"conversation_id": chat.id, "content": "where", "response_format": FORMAT}
    failure = desk.person.bad("POST", "/messages", 400, json=body)
    assert failure["detail"]["kind"] == "response_format_unsupported"
    assert "scripted" in failure["error"]
    assert chat.messages() == []
    assert len(desk.upstream.requests) == requests
