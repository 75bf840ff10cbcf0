"""What a Gemini answer held comes back in the next request, each signature on its part; any prompt is one."""

from typing import Any

from dialects import ROWS
from gemini_answers import answers, stream_of
from histories import histories
from hypothesis import HealthCheck, given, settings
from wire_reading import read_in_pieces

from luxx.providers.adapter import CompletionRequest
from luxx.providers.gemini.adapter import GeminiAdapter
from luxx.wire.message import AssistantPrompt, PromptMessage, SystemPrompt, ToolPrompt, UserPrompt
from luxx.wire.tool import ToolCall

UNHURRIED = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""The SDK builds its models when they are first used, and a busy machine draws slowly."""


def sent(messages: list[PromptMessage]) -> list[dict[str, Any]]:
    """The contents of a request with this history, which the vendor's types and rules accept."""
    row = ROWS["gemini"]
    asked = CompletionRequest(model="gemini-2.5-flash", messages=messages)
    body = row.accepts(row.body(asked, "gemini"), "gemini")
    row.rules(body, asked)
    return body["contents"]


@UNHURRIED
@given(messages=histories())
def test_prompt_that_begins_with_the_models_words_gets_a_persons_before(
    messages: list[PromptMessage],
) -> None:
    answer = AssistantPrompt(text="As I said.")

    sent([answer, *messages])


def test_prompt_without_a_word_is_still_a_prompt() -> None:
    for messages in ([], [SystemPrompt(text="Be brief.")], [UserPrompt(text="")], [AssistantPrompt()]):
        sent(messages)


@UNHURRIED
@given(parts=answers)
def test_what_the_model_sent_goes_back_with_each_signature_on_its_part(parts: list[dict[str, Any]]) -> None:
    reading = read_in_pieces(GeminiAdapter().parser, stream_of(parts), 4096)
    calls = [
        ToolCall(call_id=call["id"], name=call["name"], arguments=call["arguments"]) for call in reading.calls
    ]
    answer = AssistantPrompt(
        text=reading.text, thinking=reading.thinking, tool_calls=calls, replay=reading.replay
    )
    results = [ToolPrompt(call_id=call.call_id, name=call.name, content="{}") for call in calls]

    contents = sent([UserPrompt(text="go"), answer, *results])

    back = [part for content in contents if content["role"] == "model" for part in content["parts"]]
    assert _merged(_without_ids(back)) == _merged([part for part in parts if _goes_back(part)])


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
