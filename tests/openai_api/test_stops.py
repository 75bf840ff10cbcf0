"""Stops end an answer at every model, also where its API takes none."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from luxx.providers.scripted import ScriptedProvider
from openai_api.conftest import Person
from openai_api.test_true_endings import chunks_of, warnings_of_newest

TYPES = {"openai_responses": "/v1", "anthropic": "", "openai_compatible": "/v1"}


@pytest.fixture(scope="module", params=TYPES)
def model(request: pytest.FixtureRequest, ann: Person, upstream: ScriptedProvider) -> Iterator[str]:
    """The name of a model behind each API. The scripted provider itself knows no stops."""
    body = {"name": request.param, "provider_type": request.param, "api_key": "k" * 20}
    body |= {"base_url": upstream.url + TYPES[request.param], "default_model": "scripted"}
    provider_id = ann.api.good("POST", "/providers", json=body)["id"]
    yield f"{request.param}/scripted"
    ann.api.good("DELETE", f"/providers/{provider_id}")


def answered(ann: Person, is_streamed: bool, content: str, **more: Any) -> tuple[list[str], str]:
    """The fragments of the text, and how it ended."""
    body = {"messages": [{"role": "user", "content": content}], **more}
    if is_streamed:
        choices = [chunk["choices"][0] for chunk in chunks_of(ann, body)]
        fragments = [choice["delta"].get("content") for choice in choices]
        return [fragment for fragment in fragments if fragment], choices[-1]["finish_reason"]
    answer = ann.api.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    return [choice["message"]["content"]], choice["finish_reason"]


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("stop", "text"),
    [
        ("friend", "Hello there, "),
        ("re, fr", "Hello the"),
        (["nobody", "nd.", "there"], "Hello "),
        (["friend.!", "Hello!"], "Hello there, friend."),
        ("\n", "Hello there, friend."),
        ("Hello", ""),
    ],
)
def test_an_answer_ends_before_the_first_stop(
    ann: Person, model: str, stop: str | list[str], text: str, is_streamed: bool
) -> None:
    fragments, finish = answered(ann, is_streamed, "Say hello.", model=model, stop=stop)
    assert ("".join(fragments), finish) == (text, "stop")


def test_a_stop_ends_the_call_and_its_usage_is_an_estimate(
    ann: Person, upstream: ScriptedProvider, model: str
) -> None:
    before = ann.api.good("GET", "/usage")["sums"]["estimated"]
    fragments, finish = answered(ann, True, "go on for ever", model=model, stop=["END", "\n"])
    assert ("".join(fragments), finish) == ("One two ", "stop")
    assert ann.api.good("GET", "/usage")["sums"]["estimated"] == before + 1
    upstream.wait_closed(upstream.requests[-1], 10)


def test_only_what_may_begin_a_stop_is_held_back(ann: Person, upstream: ScriptedProvider, model: str) -> None:
    body = {"model": model, "stop": "back!", "stream": True}
    body |= {"messages": [{"role": "user", "content": "wait here"}]}
    with ann.api.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = answer.iter_lines()
        shown = ""
        # The two words may come in one fragment, in two, or with the rest.
        while re.search(r'am( back\.)?"', shown) is None:
            shown += next(lines)
        upstream.release("open")
        shown += "".join(lines)
    assert "back." in shown


def test_text_that_was_held_back_is_not_lost_where_the_call_fails(ann: Person, model: str) -> None:
    conversation = ann.api.good("POST", "/conversations", json={})["id"]
    body = {"messages": [{"role": "user", "content": "break at once"}], "model": model, "stop": "One more"}
    ann.api.http.post("/v1/chat/completions", json=body | {"metadata": {"conversation_id": conversation}})
    message = ann.api.good("GET", f"/messages?conversation_id={conversation}")["items"][0]
    assert (message["text"], message["status"]) == ("One", "partial")
    assert warnings_of_newest(ann) == []


def test_a_stop_has_a_bounded_length(ann: Person, model: str) -> None:
    body = {"messages": [{"role": "user", "content": "Say hello."}], "model": model, "stop": "a" * 1001}
    answer = ann.api.http.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "stop")
