"""Refused requests of `/v1`: the form of OpenAI's errors, the status, and a sentence that says what to do."""

import base64
import json
from typing import Any

import httpx
import openai
import pytest
from api.client import INSIDES

from luxx.providers.scripted import ScriptedProvider
from openai_api.conftest import IMAGE_URL, Person, png
from openai_api.test_chat import HELLO, MODEL, WEATHER

CHAT = "/v1/chat/completions"
TOOL = WEATHER[0]
CALL = {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
ASKED = {"role": "assistant", "content": None, "tool_calls": [CALL]}


def check(
    response: httpx.Response, status: int, param: str | None, code: str | None = None
) -> dict[str, Any]:
    """The error of a refused request."""
    assert response.status_code == status, response.text
    assert set(response.json()) == {"error"}, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param, error
    assert code is None or error["code"] == code, error
    assert len(error["message"]) > 10
    assert not [word for word in INSIDES if word in response.text]
    return error


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}]}


def image(url: str) -> dict[str, Any]:
    return user({"type": "image_url", "image_url": {"url": url}})


BAD: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": "hello"}, "messages"),
    ({"messages": [{"role": "wizard", "content": "hello"}]}, "messages[0].role"),
    ({"messages": [{"content": "hello"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "system", "content": " "}]}, "messages"),
    ({"messages": [*HELLO, {"role": "tool", "tool_call_id": "a", "content": "x"}]}, "messages[1]"),
    ({"messages": [*HELLO, ASKED]}, "messages[1].tool_calls"),
    (
        {"messages": [*HELLO, ASKED, {"role": "tool", "tool_call_id": "b", "content": "x"}]},
        "messages[1].tool_calls",
    ),
    (user({"type": "input_audio", "input_audio": {}}), "messages[0].content[0].type"),
    (image("https://example.org/a.png"), "messages[0].content[0].image_url.url"),
    (image("data:image/png;base64,%%%"), "messages[0].content[0].image_url.url"),
    (image("data:image/png;base64,aGVsbG8="), "messages[0].content[0].image_url.url"),
    ({"model": ""}, "model"),
    ({"model": 3}, "model"),
    ({"n": 2}, "n"),
    ({"temperature": 3}, "temperature"),
    ({"temperature": "warm"}, "temperature"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"stream": "yes"}, "stream"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "web_search"}, {"type": "function"}]}, "tools[1].function"),
    ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
    ({"tools": [TOOL, TOOL]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    (
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "other"}}},
        "tool_choice",
    ),
    ({"response_format": {"type": "json_schema"}}, "response_format"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"logprobs": True}, "logprobs"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"guided_json": {"type": "object"}}, "guided_json"),
    ({"continue_final_message": True}, "continue_final_message"),
    ({"reasoning_effort": "a lot"}, "reasoning_effort"),
    ({"metadata": {"conversation_id": ["x"]}}, "metadata.conversation_id"),
    ({"model": "agent/Code", "tools": [TOOL]}, "tools"),
]


@pytest.mark.parametrize(("wrong", "param"), BAD, ids=lambda value: json.dumps(value)[:60])
def test_wrong_field_is_named(ann: Person, wrong: dict[str, Any], param: str) -> None:
    body = {"model": MODEL, "messages": HELLO, **wrong}
    error = check(ann.api.http.post(CHAT, json=body), 400, param)
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("content", ["", "{", "[]", "model=x", b"\xff\xfe", '{"model": "a", "model": "b"}'])
def test_body_that_is_no_json_object_is_refused(ann: Person, content: str | bytes) -> None:
    response = ann.api.http.post(CHAT, content=content)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "model", ["scripted/", "scripted/unlisted", "nobody/model", "agent/Nobody", "room/Nowhere", "gpt-99"]
)
def test_unknown_model_is_not_found(ann: Person, model: str) -> None:
    ann.api.http.get("/v1/models")  # A model is only refused once the list of its provider is known.
    response = ann.api.http.post(CHAT, json={"model": model, "messages": HELLO})
    error = check(response, 404, "model", "model_not_found")
    assert model.removeprefix("scripted/") in error["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/nothing", 404), ("GET", "/v1", 404), ("POST", "/v1/embeddings", 404), ("GET", CHAT, 405)],
)
def test_unknown_path_has_the_form_too(ann: Person, method: str, path: str, status: int) -> None:
    check(ann.api.http.request(method, path), status, None)


@pytest.mark.parametrize("header", [None, "Bearer wrong", "Bearer luxx_1234_5678", "Basic YTpi"])
def test_wrong_key_is_401(ann: Person, header: str | None) -> None:
    headers = {} if header is None else {"authorization": header}
    for method, path in (("GET", "/v1/models"), ("POST", CHAT)):
        response = httpx.request(
            method,
            ann.api.server.url + path,
            headers=headers,
            json=None if method == "GET" else {},
            trust_env=False,
        )
        check(response, 401, None, "invalid_api_key")


def test_key_for_reading_lists_models_and_gets_no_answer(ann: Person) -> None:
    with ann.sdk(ann.read_key) as reader:
        assert MODEL in [model.id for model in reader.models.list()]
        with pytest.raises(openai.PermissionDeniedError, match="scope 'chat'"):
            reader.chat.completions.create(model=MODEL, messages=HELLO)


def test_conversation_of_another_user_is_refused(ann: Person, ben: Person) -> None:
    talk = ben.api.good("POST", "/conversations", json={"title": "private"})["id"]
    with ann.sdk() as client, pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model=MODEL, messages=HELLO, metadata={"conversation_id": talk})
    assert ben.api.good("GET", f"/messages?conversation_id={talk}")["total"] == 0


def test_provider_and_agent_of_another_user_do_not_exist(ann: Person, ben: Person) -> None:
    ben.api.good("POST", "/agents", json={"name": "Secret"})
    provider = ben.api.good("GET", "/providers")["items"][0]
    ben.api.good("PUT", f"/providers/{provider['id']}", json={"name": "bens"})
    names = [model["id"] for model in ann.api.http.get("/v1/models").json()["data"]]
    for model in ("agent/Secret", "bens/scripted"):
        assert model not in names
        response = ann.api.http.post(CHAT, json={"model": model, "messages": HELLO})
        check(response, 404, "model", "model_not_found")


def test_conversation_takes_no_tools_of_the_client_and_no_other_agent(ann: Person) -> None:
    talk = ann.api.good("POST", "/conversations", json={"title": "mine"})["id"]
    body = {"model": MODEL, "messages": HELLO, "metadata": {"conversation_id": talk}}
    check(ann.api.http.post(CHAT, json={**body, "tools": [TOOL]}), 400, "tools")
    check(ann.api.http.post(CHAT, json={**body, "model": "agent/Code"}), 400, "model")


def test_too_large_body_is_413(ann: Person) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "a" * 1_100_000}]}
    check(ann.api.http.post(CHAT, json=body), 413, None, "too_large")
    chunks = (piece for piece in [json.dumps(body).encode()])
    check(ann.api.http.post(CHAT, content=chunks), 413, None, "too_large")


def test_many_images_are_413(ann: Person) -> None:
    parts = [{"type": "image_url", "image_url": {"url": IMAGE_URL}}] * 21
    check(ann.api.http.post(CHAT, json={"model": MODEL, **user(*parts)}), 413, None, "too_large")


def test_an_image_of_too_many_pixels_is_413(ann: Person) -> None:
    large = png()[:16] + (10_001).to_bytes(4, "big") * 2 + png()[24:]
    url = "data:image/png;base64," + base64.b64encode(large).decode()
    check(
        ann.api.http.post(CHAT, json={"model": MODEL, **image(url)}),
        413,
        "messages[0].content[0].image_url.url",
        "too_large",
    )


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("text", "status", "code"),
    [("refuse this", 502, "provider_key_refused"), ("too long", 400, "context_length_exceeded")],
)
def test_failure_of_the_provider_has_a_status(
    ann: Person, text: str, status: int, code: str, stream: bool
) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "stream": stream}
    response = ann.api.http.post(CHAT, json=body)
    check(response, status, None, code)
    assert response.headers["x-should-retry"] == "false"


def test_failure_within_a_stream_is_an_error_of_the_stream(ann: Person, upstream: ScriptedProvider) -> None:
    with ann.sdk() as client:
        messages: Any = [{"role": "user", "content": "break off"}]
        stream = client.chat.completions.create(model=MODEL, messages=messages, stream=True)
        assert next(stream).choices[0].delta.role == "assistant"
        assert next(stream).choices[0].delta.content == "One"
        upstream.release("broken")
        with pytest.raises(openai.APIError, match="it broke"):
            next(stream)
