"""Chat completions with the official SDK of OpenAI."""

import json
import time
from typing import Any

import openai
import pytest

from luxx.providers.scripted import ScriptedProvider
from openai_api.conftest import IMAGE_URL, Person

MODEL = "scripted/scripted"
HELLO: list[Any] = [{"role": "user", "content": "Say hello."}]
WEATHER: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]


def last_body(upstream: ScriptedProvider) -> dict[str, Any]:
    return json.loads(upstream.requests[-1].body)


def test_models_are_listed_by_provider_and_agent(client: openai.OpenAI) -> None:
    names = {model.id: model.owned_by for model in client.models.list()}
    assert names[MODEL] == "scripted"
    assert names["scripted/other-model"] == "scripted"
    assert names["agent/Code"] == "agent"
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nobody/nothing")


def test_chat_answers_with_its_usage(client: openai.OpenAI, upstream: ScriptedProvider) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "system", "content": "Be brief."}, *HELLO],
        temperature=0.3,
        max_completion_tokens=50,
        stop=["END"],
        user="ann",
        top_p=0.9,
    )
    assert answer.object == "chat.completion"
    assert answer.model == MODEL
    assert answer.choices[0].message.content == "Hello there, friend."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (
        12,
        4,
        16,
    )
    body = last_body(upstream)
    assert body["messages"] == [{"role": "system", "content": "Be brief."}, *HELLO]
    assert (body["temperature"], body["max_completion_tokens"], body["stop"]) == (0.3, 50, ["END"])
    assert "tools" not in body


def test_models_that_only_make_embeddings_are_offered_to_no_chat(client: openai.OpenAI, ann: Person) -> None:
    assert "scripted/text-embedding-3-small" not in [model.id for model in client.models.list()]
    (provider,) = [one for one in ann.api.good("GET", "/providers")["items"] if one["name"] == "scripted"]
    cards = ann.api.good("GET", f"/providers/{provider['id']}/models")["cards"]
    chat = {card["name"]: card["chat"] for card in cards}
    assert (chat["text-embedding-3-small"], chat["scripted"]) == (False, True)


def test_providers_and_agents_with_the_same_name_are_named_by_id(client: openai.OpenAI, ann: Person) -> None:
    (first,) = [one for one in ann.api.good("GET", "/providers")["items"] if one["name"] == "scripted"]
    same = {name: first[name] for name in ("name", "provider_type", "base_url", "default_model")}
    second = ann.api.good(
        "POST", "/providers", json={**same, "api_key": "sk-another-key", "is_default": False}
    )
    ids = [ann.api.good("POST", "/agents", json={"name": "Twin"})["id"] for _ in range(2)]
    try:
        for name, candidates in (
            (MODEL, [f"{one['id']}/scripted" for one in (first, second)]),
            ("agent/twin", [f"agent/{one}" for one in ids]),
        ):
            with pytest.raises(openai.BadRequestError) as refused:
                client.chat.completions.create(model=name, messages=HELLO)
            assert refused.value.code == "model_ambiguous"
            assert all(one in refused.value.message for one in candidates)
            for one in candidates:
                assert client.chat.completions.create(model=one, messages=HELLO).choices[0].message.content
        assert MODEL not in [model.id for model in client.models.list()]
        document = {"version": 1, "name": "Copy", "provider": "scripted"}
        problem = ann.api.bad("POST", "/agents/import", 400, json=document)["detail"]["fields"]["$.provider"]
        assert f"(ids {first['id']}, {second['id']})" in problem
    finally:
        ann.api.good("DELETE", f"/providers/{second['id']}")
        for one in ids:
            ann.api.good("DELETE", f"/agents/{one}")


def test_bare_name_of_a_model_is_enough_where_it_is_unique(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="other-model", messages=HELLO)
    assert answer.choices[0].message.content == "Hello there, friend."


def test_stream_has_the_chunks_of_openai(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    first, *rest = list(stream)
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    texts = [chunk.choices[0].delta.content for chunk in rest if chunk.choices]
    assert "".join(text or "" for text in texts) == "Hello there, friend."
    assert len(texts) >= 2
    finish, usage = rest[-2:]
    assert finish.choices[0].finish_reason == "stop"
    assert usage.choices == []
    assert usage.usage is not None
    assert usage.usage.total_tokens == 16
    assert len({chunk.id for chunk in [first, *rest]}) == 1
    assert all(chunk.usage is None for chunk in [first, *rest[:-1]])


def test_stream_without_usage_ends_with_done(ann: Person) -> None:
    body = {"model": MODEL, "messages": HELLO, "stream": True}
    response = ann.api.http.post("/v1/chat/completions", json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in response.text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert not any("usage" in chunk for chunk in chunks)
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[-2:]] == [None, "stop"]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_tools_of_the_client_are_called_by_the_client(
    client: openai.OpenAI, upstream: ScriptedProvider, is_streamed: bool
) -> None:
    messages: list[Any] = [{"role": "user", "content": "How is the weather?"}]
    arguments: Any = {
        "model": MODEL,
        "tools": WEATHER,
        "tool_choice": "required",
        "parallel_tool_calls": True,
    }
    if is_streamed:
        with client.chat.completions.stream(**arguments, messages=messages) as stream:
            asked = stream.get_final_completion()
    else:
        asked = client.chat.completions.create(**arguments, messages=messages)
    assert asked.choices[0].finish_reason == "tool_calls"
    calls = asked.choices[0].message.tool_calls or []
    assert [(call.id, call.function.name, json.loads(call.function.arguments)) for call in calls] == [
        ("call_a", "get_weather", {"city": "Oslo"}),
        ("call_b", "get_weather", {"city": "Rome"}),
    ]
    body = last_body(upstream)
    assert body["tools"][0]["function"] == WEATHER[0]["function"]
    assert (body["tool_choice"], body["parallel_tool_calls"]) == ("required", True)
    messages += [
        asked.choices[0].message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": "call_b", "content": "sun"},
        {"role": "tool", "tool_call_id": "call_a", "content": [{"type": "text", "text": "rain"}]},
    ]
    answer = client.chat.completions.create(model=MODEL, tools=WEATHER, messages=messages)
    assert answer.choices[0].message.content == "It rains in Oslo."
    sent = last_body(upstream)["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "tool"]
    assert [message["content"] for message in sent[2:]] == ["rain", "sun"]


def test_streamed_chat_with_a_tool_and_an_image(client: openai.OpenAI, upstream: ScriptedProvider) -> None:
    parts = [{"type": "text", "text": "weather"}, {"type": "image_url", "image_url": {"url": IMAGE_URL}}]
    messages: list[Any] = [{"role": "user", "content": parts}]
    with client.chat.completions.stream(model=MODEL, tools=WEATHER, messages=messages) as stream:
        asked = stream.get_final_completion().choices[0]
    assert asked.finish_reason == "tool_calls"
    messages.append(asked.message.model_dump(exclude_none=True, exclude={"parsed"}))
    for call in asked.message.tool_calls or []:
        messages.append({"role": "tool", "tool_call_id": call.id, "content": "rain"})
    with client.chat.completions.stream(model=MODEL, tools=WEATHER, messages=messages) as stream:
        texts = [event.delta for event in stream if event.type == "content.delta"]
    assert "".join(texts) == "It rains in Oslo."
    sent = last_body(upstream)["messages"]
    assert {"type": "image_url", "image_url": {"url": IMAGE_URL}} in sent[0]["content"]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "tool"]


def test_image_in_a_data_url_reaches_the_model(client: openai.OpenAI, upstream: ScriptedProvider) -> None:
    parts: Any = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": IMAGE_URL, "detail": "low"}},
    ]
    client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": parts}])
    content = last_body(upstream)["messages"][0]["content"]
    assert {"type": "image_url", "image_url": {"url": IMAGE_URL}} in content
    assert {"type": "text", "text": "What is this?"} in content


def test_thinking_and_its_tokens_are_reported(client: openai.OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "think"}]
    answer = client.chat.completions.create(model=MODEL, messages=messages, reasoning_effort="low")
    assert answer.choices[0].message.content == "Thought."
    assert answer.choices[0].message.model_extra == {"reasoning_content": "Hm, so."}
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.reasoning_tokens == 4
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 6


def test_answer_that_was_cut_finishes_with_length(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "be cut"}])
    assert answer.choices[0].finish_reason == "length"


def test_answer_in_a_schema(client: openai.OpenAI, upstream: ScriptedProvider) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    answer = client.chat.completions.create(
        model="scripted/gpt-4.1-mini",
        messages=[{"role": "user", "content": "as JSON"}],
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "city", "schema": schema, "strict": True},
        },
    )
    assert json.loads(answer.choices[0].message.content or "") == {"city": "Oslo"}
    assert last_body(upstream)["response_format"]["json_schema"]["schema"] == schema


def test_call_is_in_the_usage_report(client: openai.OpenAI, ann: Person) -> None:
    def tokens() -> int:
        return ann.api.good("GET", "/usage")["sums"]["total_tokens"]

    before = tokens()
    client.chat.completions.create(model=MODEL, messages=HELLO)
    assert tokens() == before + 16


def test_conversation_keeps_the_last_message_and_the_answer(
    client: openai.OpenAI, ann: Person, upstream: ScriptedProvider
) -> None:
    talk = ann.api.good("POST", "/conversations", json={"title": "kept"})["id"]
    metadata = {"conversation_id": talk}
    client.chat.completions.create(model=MODEL, messages=HELLO, metadata=metadata)
    history: list[Any] = [
        {"role": "user", "content": "not this"},
        {"role": "assistant", "content": "nor this"},
    ]
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[*history, {"role": "user", "content": "And again."}],
        metadata=metadata,
        stream=True,
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == "Hello there, friend."
    messages = ann.api.good("GET", f"/messages?conversation_id={talk}")["items"]
    assert [message["text"] for message in reversed(messages)] == [
        "Say hello.", "Hello there, friend.", "And again.", "Hello there, friend.",
    ]  # fmt: skip
    # After the list of agents.
    sent = [message["content"] for message in last_body(upstream)["messages"][1:]]
    assert sent == ["Say hello.", "Hello there, friend.", "And again."]


def test_agent_answers_with_its_own_prompt_and_tools(client: openai.OpenAI, ann: Person) -> None:
    ann.api.good("POST", "/agents", json={"name": "Pirate", "role": "a sailor", "tools": []})
    answer = client.chat.completions.create(model="agent/Pirate", messages=HELLO)
    assert answer.choices[0].message.content == "Arr!"
    ann.api.good("POST", "/agents", json={"name": "Clerk", "tools": ["file_list"]})
    messages: list[Any] = [{"role": "user", "content": "list my files"}]
    stream = client.chat.completions.create(model="agent/Clerk", messages=messages, stream=True)
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Let me see. None."
    assert not any(chunk.choices[0].delta.tool_calls for chunk in chunks)


async def test_async_client_streams(ann: Person) -> None:
    async with ann.async_sdk() as client:
        stream = await client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
        texts = [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert "".join(texts) == "Hello there, friend."
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(model=MODEL, messages=HELLO, n=2)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_disconnecting_stops_the_call_to_the_model(
    ann: Person, upstream: ScriptedProvider, is_streamed: bool
) -> None:
    text = "wait here" if is_streamed else "wait silently"
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "stream": is_streamed}
    if is_streamed:
        with ann.api.http.stream("POST", "/v1/chat/completions", json=body) as response:
            assert any(' am"' in line for line in response.iter_lines())
    else:
        with ann.sdk(timeout=1.0) as impatient, pytest.raises(openai.APITimeoutError):
            impatient.chat.completions.create(model=MODEL, messages=body["messages"])
    upstream.wait_closed(upstream.requests[-1], 10)
    until = time.monotonic() + 10
    while ann.api.good("GET", "/runs?page_size=1")["items"][0]["status"] != "cancelled":
        assert time.monotonic() < until, "the run was not cancelled"


@pytest.mark.parametrize(
    ("content", "finish", "text"),
    [("be cut", "length", "One two"), ("be full", "length", "One"), ("be filtered", "content_filter", "One")],
)
def test_the_end_of_an_answer_has_openais_words(
    client: openai.OpenAI, content: str, finish: str, text: str
) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": content}])
    response = client.responses.create(model=MODEL, input=content)

    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (text, finish)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    reason = {"length": "max_output_tokens"}.get(finish, finish)
    assert (response.output_text, response.incomplete_details.reason) == (text, reason)
