"""A Gemini answer comes back in the next request with each signature on its part; any prompt is valid."""

from typing import Any

from dialects import ROWS
from gemini_answers import answers, stream_of
from histories import histories
from hypothesis import HealthCheck, given, settings
from wire_reading import read_in_pieces

from luxx.providers.adapter import CompletionRequest
from luxx.providers.gemini.adapter import GEMINI
from luxx.wire.message import AssistantPrompt, PromptMessage, SystemPrompt, ToolPrompt, UserPrompt
from luxx.wire.tool import ToolCall

RELAXED = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""The SDK builds its models on first use, and a busy machine generates examples slowly."""


def sent(messages: list[PromptMessage]) -> list[dict[str, Any]]:
    """The contents of a request with this history; checks the vendor's types and rules."""
    row = ROWS["gemini"]
    request = CompletionRequest(model="gemini-2.5-flash", messages=messages)
    body = row.accepts(row.body(request, "gemini"), "gemini")
    row.rules(body, request)
    return body["contents"]


@RELAXED
@given(messages=histories())
def test_prompt_that_begins_with_the_model_gets_a_user_turn_before_it(
    messages: list[PromptMessage],
) -> None:
    answer = AssistantPrompt(text="As I said.")

    sent([answer, *messages])


def test_empty_prompt_is_a_valid_request() -> None:
    for messages in ([], [SystemPrompt(text="Be brief.")], [UserPrompt(text="")], [AssistantPrompt()]):
        sent(messages)


@RELAXED
@given(parts=answers)
def test_answer_is_sent_back_with_each_signature_on_its_part(parts: list[dict[str, Any]]) -> None:
    reading = read_in_pieces(GEMINI.parser, stream_of(parts), 4096)
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
    """Neighbouring texts without a signature as one, however they were split."""
    merged: list[dict[str, Any]] = []
    for part in parts:
        if merged and part.keys() == merged[-1].keys() == {"text"}:
            merged[-1] = {"text": merged[-1]["text"] + part["text"]}
        else:
            merged.append(part)
    return merged
