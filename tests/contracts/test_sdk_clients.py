"""The vendors' own SDKs read what the scripted provider serves in each dialect, streamed and not."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import anthropic
import openai
import pytest
from google import genai
from openai.lib.streaming.chat import ChatCompletionStreamState

from luxx.providers.scripted import Call, Counts, Finish, Rule, Script, ScriptedProvider, Text, Thinking, When

ARGUMENTS = {"city": "Oslo"}
REPLY = [
    Thinking(text="I look it up."),
    Text(text="One moment, please."),
    Call(name="weather", arguments=ARGUMENTS, id="call_1"),
    Counts(prompt=40, completion=12),
]
CUT = [Text(text="One two"), Finish(reason="length"), Counts(prompt=40, completion=2)]


class Read(NamedTuple):
    """What an SDK read; `finish` in the dialect's word."""

    thinking: str
    text: str
    calls: list[tuple[str, Any]]
    tokens: tuple[int, int]
    finish: str


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedProvider]:
    rules = [Rule(when=When(user="cut"), reply=CUT), Rule(reply=REPLY)]
    with ScriptedProvider(Script(rules=rules)) as server:
        yield server


def read_chat(url: str, prompt: str, *, stream: bool) -> Read:
    messages: Any = [{"role": "user", "content": prompt}]
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        if stream:
            # `create` parses the chunks; `stream` raises an error for an answer that was cut.
            state: Any = ChatCompletionStreamState()
            for chunk in client.chat.completions.create(model="m", messages=messages, stream=True):
                state.handle_chunk(chunk)
            answer: Any = state.current_completion_snapshot
        else:
            answer = client.chat.completions.create(model="m", messages=messages)
    message = answer.choices[0].message
    calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or []]
    tokens = (answer.usage.prompt_tokens, answer.usage.completion_tokens)
    thinking = (message.model_extra or {}).get("reasoning_content") or ""
    return Read(thinking, message.content, calls, tokens, answer.choices[0].finish_reason)


def read_responses(url: str, prompt: str, *, stream: bool) -> Read:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        if stream:
            with client.responses.stream(model="m", input=prompt) as events:
                answer: Any = list(events)[-1].response
        else:
            answer = client.responses.create(model="m", input=prompt)
    thinking = "".join(
        part.text for item in answer.output if item.type == "reasoning" for part in item.summary
    )
    calls = [(item.name, item.arguments) for item in answer.output if item.type == "function_call"]
    details = answer.incomplete_details
    tokens = (answer.usage.input_tokens, answer.usage.output_tokens)
    return Read(thinking, answer.output_text, calls, tokens, details.reason if details else answer.status)


def read_anthropic(url: str, prompt: str, *, stream: bool) -> Read:
    messages: Any = [{"role": "user", "content": prompt}]
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        if stream:
            with client.messages.stream(model="m", max_tokens=99, messages=messages) as events:
                answer: Any = events.get_final_message()
        else:
            answer = client.messages.create(model="m", max_tokens=99, messages=messages)
    return Read(
        "".join(part.thinking for part in answer.content if part.type == "thinking"),
        "".join(part.text for part in answer.content if part.type == "text"),
        [(part.name, part.input) for part in answer.content if part.type == "tool_use"],
        (answer.usage.input_tokens, answer.usage.output_tokens),
        answer.stop_reason,
    )


def read_gemini(url: str, prompt: str, *, stream: bool) -> Read:
    client = genai.Client(api_key="none", http_options={"base_url": url})
    if stream:
        chunks: list[Any] = list(client.models.generate_content_stream(model="m", contents=prompt))
    else:
        chunks = [client.models.generate_content(model="m", contents=prompt)]
    client.close()
    candidates = [candidate for chunk in chunks for candidate in chunk.candidates or []]
    parts = [part for candidate in candidates for part in candidate.content.parts]
    usage = chunks[-1].usage_metadata
    return Read(
        "".join(part.text for part in parts if part.thought),
        "".join(part.text or "" for part in parts if not part.thought),
        [(part.function_call.name, part.function_call.args) for part in parts if part.function_call],
        (usage.prompt_token_count, usage.candidates_token_count),
        candidates[-1].finish_reason.value,
    )


TEXT_OF_ARGUMENTS = '{"city":"Oslo"}'


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize(
    ("read", "arguments", "finish", "cut"),
    [
        (read_chat, TEXT_OF_ARGUMENTS, "tool_calls", "length"),
        (read_responses, TEXT_OF_ARGUMENTS, "completed", "max_output_tokens"),
        (read_anthropic, ARGUMENTS, "tool_use", "max_tokens"),
        (read_gemini, ARGUMENTS, "STOP", "MAX_TOKENS"),
    ],
    ids=["chat", "responses", "anthropic", "gemini"],
)
def test_official_sdk_reads_the_scripted_reply(
    server: ScriptedProvider, read: Any, arguments: Any, finish: str, cut: str, stream: bool
) -> None:
    whole = read(server.url, "hi", stream=stream)
    shortened = read(server.url, "cut it", stream=stream)

    assert whole == Read("I look it up.", "One moment, please.", [("weather", arguments)], (40, 12), finish)
    assert shortened == Read("", "One two", [], (40, 2), cut)
