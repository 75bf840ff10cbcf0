"""`response_format`: every call of the run sends the schema to the model."""

from collections.abc import Iterator

import pytest
from branching_client import STRUCTURED, BranchingClient, branching_client

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FORMAT = {"type": "json_schema", "schema": SCHEMA}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BranchingClient]:
    with branching_client(tmp_path_factory.mktemp("schemas")) as client:
        yield client


def test_the_answer_is_requested_in_the_schema(client: BranchingClient) -> None:
    chat = client.chat(model=STRUCTURED)
    chat.send("where", response_format=FORMAT)
    assert client.sent()["response_format"]["json_schema"]["schema"] == SCHEMA
    chat.send("where now")
    assert "response_format" not in client.sent()


def test_a_regenerated_answer_may_have_a_named_schema(client: BranchingClient) -> None:
    chat = client.chat(model=STRUCTURED)
    first = chat.send("where")
    chat.again(first["id"], response_format=FORMAT | {"name": "place"})
    assert client.sent()["response_format"]["json_schema"]["schema"] == {"title": "place", **SCHEMA}


def test_a_streamed_message_accepts_a_schema(client: BranchingClient) -> None:
    chat = client.chat(model=STRUCTURED)
    body = {"conversation_id": chat.id, "content": "where", "response_format": FORMAT}
    with client.person.http.stream("POST", "/messages/stream", json=body) as response:
        assert "event: done" in response.read().decode()
    assert client.sent()["response_format"]["json_schema"]["schema"] == SCHEMA


def test_a_model_that_nobody_described_gets_the_schema_too(client: BranchingClient) -> None:
    chat = client.chat()
    chat.send("where", response_format=FORMAT)
    assert client.sent()["response_format"]["json_schema"]["schema"] == SCHEMA
