"""Whatever a conversation holds, the request made of it is one that Google's own SDK takes."""

import json
from base64 import b64encode
from typing import Any

from google.genai.types import Content, GenerateContentConfig
from histories import histories, objects, said
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wire_reading import reading_of

from luxx.providers.adapter import CompletionRequest, Target
from luxx.providers.gemini import GeminiAdapter
from luxx.wire.message import AssistantPrompt, PromptMessage, SystemPrompt, ToolPrompt, UserPrompt
from luxx.wire.tool import ToolCall, ToolSpec

TARGET = Target(provider_id=1, provider_type="gemini", base_url="http://host", api_key="secret")
MODELS = (
    "gemini-2.0-flash",
    "gemini-2.5-flash",
    "gemini-2.5-pro",
    "gemini-3-pro-preview",
    "gemini-flash-latest",
)
TOOL = ToolSpec(
    name="add",
    description="Adds.",
    parameters={"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
)

UNHURRIED = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""The SDK builds its models when they are first used, and a busy machine draws slowly."""

base64 = st.binary(min_size=3, max_size=30).map(lambda data: b64encode(data).decode())


def built(**fields: Any) -> dict[str, Any]:
    request = CompletionRequest(**{"model": "gemini-2.5-flash", **fields})
    return json.loads(GeminiAdapter().build_request(request, TARGET, stream=True).body)


def check(body: dict[str, Any]) -> list[Content]:
    """The contents as the SDK reads them; unknown keys and wrong types are refused."""
    flat = {key: body[key] for key in ("systemInstruction", "tools") if key in body}
    GenerateContentConfig.model_validate({**flat, **body.get("generationConfig", {})})
    assert body.keys() <= {"contents", "systemInstruction", "tools", "generationConfig"}
    return [Content.model_validate_json(json.dumps(content)) for content in body["contents"]]


def check_roles_and_pairs(contents: list[Content]) -> None:
    assert [content.role for content in contents] == [
        "model" if at % 2 else "user" for at in range(len(contents))
    ]
    asked: list[tuple[str | None, str | None]] = []
    for content in contents:
        assert content.parts
        answered = [
            (part.function_response.id, part.function_response.name)
            for part in content.parts
            if part.function_response is not None
        ]
        if content.role == "user":
            assert answered == asked
            asked = []
        else:
            assert not answered
            calls = [part.function_call for part in content.parts if part.function_call is not None]
            asked = [(call.id, call.name) for call in calls]
            assert all(isinstance(call.args, dict) for call in calls)
    assert asked == []


@UNHURRIED
@given(
    messages=histories(),
    model=st.sampled_from(MODELS),
    tools=st.sampled_from([[], [TOOL]]),
    thinking=st.booleans(),
    temperature=st.none() | st.floats(0, 2),
    max_tokens=st.none() | st.integers(1, 10**6),
    schema=st.none() | st.just(TOOL.parameters),
)
def test_any_history_makes_a_request_the_sdk_takes(
    messages: list[PromptMessage],
    model: str,
    tools: list[ToolSpec],
    thinking: bool,
    temperature: float | None,
    max_tokens: int | None,
    schema: dict[str, Any] | None,
) -> None:
    body = built(
        model=model,
        messages=messages,
        tools=tools,
        thinking_enabled=thinking,
        temperature=temperature,
        max_tokens=max_tokens,
        response_schema=schema,
    )

    contents = check(body)
    check_roles_and_pairs(contents)
    spoken = [text for message in messages if (text := _spoken(message))]
    sent = [part.text for content in contents for part in content.parts or [] if part.text]
    assert [text for text in sent if text in spoken] == spoken
    assert body.get("systemInstruction", {"parts": [{"text": ""}]})["parts"] == [
        {"text": "\n\n".join(message.text for message in messages if isinstance(message, SystemPrompt))}
    ]


def _spoken(message: PromptMessage) -> str:
    return message.text if isinstance(message, UserPrompt | AssistantPrompt) else ""


@UNHURRIED
@given(messages=histories())
def test_prompt_that_begins_with_the_models_words_gets_a_persons_before(
    messages: list[PromptMessage],
) -> None:
    answer = AssistantPrompt(text="As I said.")

    contents = check(built(messages=[answer, *messages]))

    check_roles_and_pairs(contents)


def test_prompt_without_a_word_is_still_a_prompt() -> None:
    for messages in ([], [SystemPrompt(text="Be brief.")], [UserPrompt(text="")], [AssistantPrompt()]):
        check_roles_and_pairs(check(built(messages=messages)))


text_parts = st.builds(
    lambda text, thought, signature: {
        "text": text,
        **({"thought": True} if thought else {}),
        **({"thoughtSignature": signature} if signature else {}),
    },
    said,
    st.booleans(),
    st.none() | base64,
)
call_parts = st.builds(
    lambda name, args, signature: {
        "functionCall": {"name": name, "args": args},
        **({"thoughtSignature": signature} if signature else {}),
    },
    st.sampled_from(["add", "mul"]),
    objects,
    st.none() | base64,
)
other_parts = st.builds(
    lambda code, signature: {
        "executableCode": {"language": "PYTHON", "code": code},
        **({"thoughtSignature": signature} if signature else {}),
    },
    said,
    st.none() | base64,
)
bare_parts = base64.map(lambda signature: {"text": "", "thoughtSignature": signature})


@UNHURRIED
@given(parts=st.lists(text_parts | call_parts | other_parts | bare_parts, min_size=1, max_size=8))
def test_what_the_model_sent_goes_back_with_each_signature_on_its_part(parts: list[dict[str, Any]]) -> None:
    parser = GeminiAdapter().parser()
    deltas = []
    for part in parts:
        chunk = {"candidates": [{"content": {"role": "model", "parts": [part]}}]}
        deltas += parser.feed(b"data: " + json.dumps(chunk).encode() + b"\n\n")
    deltas += parser.feed(b'data: {"candidates": [{"finishReason": "STOP"}]}\n\n')
    reading = reading_of(deltas + parser.close())
    calls = [
        ToolCall(call_id=call["id"], name=call["name"], arguments=call["arguments"]) for call in reading.calls
    ]
    answer = AssistantPrompt(
        text=reading.text, thinking=reading.thinking, tool_calls=calls, replay=reading.replay
    )
    results = [ToolPrompt(call_id=call.call_id, name=call.name, content="{}") for call in calls]

    body = built(messages=[UserPrompt(text="go"), answer, *results])

    check_roles_and_pairs(check(body))
    sent = [part for content in body["contents"] if content["role"] == "model" for part in content["parts"]]
    assert _merged(_without_ids(sent)) == _merged([part for part in parts if _goes_back(part)])


def _goes_back(part: dict[str, Any]) -> bool:
    return not part.get("thought") or "thoughtSignature" in part


def _without_ids(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {**part, "functionCall": {key: part["functionCall"][key] for key in ("name", "args")}}
        if "functionCall" in part
        else part
        for part in parts
    ]


def _merged(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Neighbouring texts without a signature are one, however they were cut."""
    merged: list[dict[str, Any]] = []
    for part in parts:
        if merged and part.keys() == merged[-1].keys() == {"text"}:
            merged[-1] = {"text": merged[-1]["text"] + part["text"]}
        else:
            merged.append(part)
    return merged
