"""Rules for the query string of every route, and the methods that a path supports."""

import re
from typing import Any

import pytest

from api.client import ApiClient
from api.schema import Document


@pytest.mark.parametrize(
    ("path", "query", "wrong"),
    [
        ("/runs", [("status", "failed"), ("status", "running")], "status"),
        ("/runs", [("page", "1"), ("page", "1")], "page"),
        ("/runs", [("status", "null")], "status"),
        ("/usage", [("from", "null")], "from"),
        ("/usage", [("from", "2026-01-01"), ("from", "2026-01-02")], "from"),
    ],
)
def test_a_parameter_is_given_once_and_with_a_value(
    anna: ApiClient, path: str, query: Any, wrong: str
) -> None:
    refused = anna.bad("GET", path, 400, params=query)
    assert set(refused["detail"]["fields"]) == {wrong}


def test_null_is_an_ordinary_word_in_a_text_parameter(anna: ApiClient) -> None:
    assert anna.good("GET", "/tool-calls", params={"tool": "null"})["items"] == []
    assert anna.good("GET", "/usage", params={"conversation_id": "null"})["items"] == []


def test_an_integer_may_be_written_with_a_decimal_point(anna: ApiClient) -> None:
    conversation = anna.good("POST", "/conversations", json={"max_tokens": 5.0, "temperature": 1.0})
    assert (conversation["max_tokens"], conversation["temperature"]) == (5, 1.0)
    refused = anna.bad("POST", "/conversations", 400, json={"max_tokens": 5.5})
    assert set(refused["detail"]["fields"]) == {"$.max_tokens"}


def test_options_names_every_method_of_a_path(admin: ApiClient, document: Document) -> None:
    paths: dict[str, set[str]] = {}
    for operation in document.operations:
        paths.setdefault(operation.template, {"OPTIONS"}).add(operation.method)
    for path, methods in paths.items():
        filled = re.sub(
            r"\{(agent_id|provider_id|seat_id|user_id|tenant_id|index|page_index|number)\}", "1", path
        )
        answer = admin.http.request("OPTIONS", filled)
        assert answer.status_code == 204, path
        assert set(answer.headers["allow"].split(", ")) - {"HEAD"} == methods, path
