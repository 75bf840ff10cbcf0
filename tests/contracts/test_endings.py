"""How an answer ends: every reason of every dialect, calls that were cut, and errors after the last event."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from wire_reading import Reading, read_in_pieces

from luxx.errors import ProviderFailed
from luxx.providers.adapter import CompletionRequest, StreamParser, Target
from luxx.providers.anthropic.adapter import ANTHROPIC
from luxx.providers.gemini.adapter import GEMINI
from luxx.providers.openai_chat.adapter import OPENAI
from luxx.wire.message import AssistantPrompt, UserPrompt
from luxx.wire.turn import CompletionEnd, FinishReason, with_end

Json = dict[str, Any]
SIZES = pytest.mark.parametrize("size", [1, 7, 4096])
PARSERS: dict[str, Callable[[], StreamParser]] = {
    "openai": OPENAI.parser,
    "anthropic": ANTHROPIC.parser,
    "gemini": GEMINI.parser,
}


def events(*values: Json) -> bytes:
    return b"".join(b"data: " + json.dumps(value).encode() + b"\n\n" for value in values)


def openai(reason: str | None, text: str = "so far", calls: list[Json] | None = None) -> bytes:
    delta: Json = {"content": text} if text else {}
    return events(
        {"choices": [{"index": 0, "delta": {**delta, "tool_calls": calls} if calls else delta}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
    )


def anthropic(reason: str, text: str = "so far", calls: list[Json] | None = None) -> bytes:
    blocks: list[Json] = [{"type": "text", "text": text}] if text else []
    blocks += [{"type": "tool_use", "id": "a", "name": "add", "input": {}} for _ in calls or []]
    content: list[Json] = []
    for index, block in enumerate(blocks):
        content += [
            {"type": "content_block_start", "index": index, "content_block": block},
            {"type": "content_block_stop", "index": index},
        ]
    end = {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 2}}
    return events({"type": "message_start", "message": {"model": "m"}}, *content, end)


def gemini(reason: str, text: str = "so far", **more: Any) -> bytes:
    parts = [{"text": text}] if text else []
    return events({"candidates": [{"index": 0, "content": {"parts": parts}, "finishReason": reason, **more}]})


STREAMS: dict[str, Callable[..., bytes]] = {"openai": openai, "anthropic": anthropic, "gemini": gemini}


def read(dialect: str, stream: bytes, size: int = 4096) -> Reading:
    return read_in_pieces(PARSERS[dialect], stream, size)


@pytest.mark.parametrize(
    ("dialect", "reasons", "expected"),
    [
        ("openai", ["stop", "eos", "STOP"], FinishReason.STOP),
        ("openai", ["length", "max_tokens", "MAX_TOKENS"], FinishReason.LENGTH),
        ("openai", ["model_length", "model_context_window_exceeded"], FinishReason.CONTEXT_FULL),
        ("openai", ["content_filter", "sensitive", "SAFETY"], FinishReason.CONTENT_FILTER),
        ("openai", ["refusal"], FinishReason.REFUSAL),
        ("openai", ["of_a_later_version"], FinishReason.UNKNOWN),
        ("anthropic", ["end_turn", "stop_sequence"], FinishReason.STOP),
        ("anthropic", ["max_tokens"], FinishReason.LENGTH),
        ("anthropic", ["model_context_window_exceeded"], FinishReason.CONTEXT_FULL),
        ("anthropic", ["refusal"], FinishReason.REFUSAL),
        ("anthropic", ["sensitive"], FinishReason.CONTENT_FILTER),
        ("anthropic", ["pause_turn", "compaction"], FinishReason.PAUSED),
        ("anthropic", ["of_a_later_version"], FinishReason.UNKNOWN),
        ("gemini", ["STOP"], FinishReason.STOP),
        ("gemini", ["MAX_TOKENS", "CONTINUATION"], FinishReason.LENGTH),
        (
            "gemini",
            ["SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR",
             "ESCALATION", "PUP_LIMITED_DISABLED", "IMAGE_SAFETY"],
            FinishReason.CONTENT_FILTER,
        ),
        ("gemini", ["OTHER", "NO_IMAGE"], FinishReason.UNKNOWN),
    ],
)  # fmt: skip
def test_every_reason_of_a_dialect_has_its_meaning(
    dialect: str, reasons: list[str], expected: FinishReason
) -> None:
    for reason in reasons:
        reading = read(dialect, STREAMS[dialect](reason))

        assert reading.error is None, reason
        assert reading.finish is not None
        assert (reading.finish.reason, reading.finish.raw) == (expected, reason)


@pytest.mark.parametrize("dialect", list(STREAMS))
def test_an_unknown_reason_without_an_answer_is_an_error_that_names_it(dialect: str) -> None:
    error = read(dialect, STREAMS[dialect]("new_reason", text="")).error

    assert type(error) is ProviderFailed
    assert "new_reason" in error.message
    assert error.retryable


@pytest.mark.parametrize("reason", ["error", "network_error", "insufficient_system_resource"])
def test_a_reason_that_is_a_failure_is_an_error_after_the_text(reason: str) -> None:
    reading = read("openai", openai(reason))

    assert reading.text == "so far"
    assert reason in str(reading.error)


@SIZES
@pytest.mark.parametrize("dialect", list(STREAMS))
def test_error_as_bare_json_after_a_finish_reason_is_reported(dialect: str, size: int) -> None:
    error = (
        b'{\n  "error": {\n    "code": 499,\n    "message": "It was cancelled.",\n    "status": "X"\n  }\n}\n'
    )
    reading = read(dialect, STREAMS[dialect]({"gemini": "STOP"}.get(dialect, "length")) + error, size)

    assert reading.text == "so far"
    assert "It was cancelled." in str(reading.error)
    assert reading.finish is None


def one_call(arguments: str | None, **more: Any) -> list[Json]:
    return [{"index": 0, "id": "a", "function": {"name": "add", "arguments": arguments}, **more}]


@pytest.mark.parametrize(
    ("dialect", "stream", "arguments"),
    [
        ("openai", openai("tool_calls", calls=one_call(None)), ""),
        ("openai", openai("length", calls=one_call(None)), "{"),
        ("openai", openai("content_filter", calls=one_call("")), "{"),
        ("openai", openai(None, calls=one_call("")) + b"data: [DONE]\n\n", "{"),
        ("openai", openai("length", calls=one_call('{"x":1}')), '{"x":1}'),
        ("anthropic", anthropic("tool_use", calls=[{}]), "{}"),
        ("anthropic", anthropic("max_tokens", calls=[{}]), "{"),
        ("anthropic", anthropic("refusal", calls=[{}]), "{"),
        ("anthropic", anthropic("model_context_window_exceeded", calls=[{}]), "{"),
    ],
)
def test_a_call_whose_arguments_may_not_have_arrived_has_no_valid_ones(
    dialect: str, stream: bytes, arguments: str
) -> None:
    assert [call["arguments"] for call in read(dialect, stream).calls] == [arguments]


def fragment(**more: Any) -> bytes:
    return events({"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, **more}]}}]})


@pytest.mark.parametrize(
    "again",
    [{}, {"id": "a"}, {"id": "a", "name": "add"}, {"name": "add"}],
    ids=["no head", "id", "id and name", "name"],
)
@pytest.mark.parametrize("parts", [['{"x":1}'], ['{"x"', ":1}"]])
def test_an_empty_object_before_the_arguments_is_not_part_of_them(again: Json, parts: list[str]) -> None:
    head = {key: value for key, value in again.items() if key == "id"}
    name = {"name": again["name"]} if "name" in again else {}
    first, *rest = parts
    stream = fragment(id="a", function={"name": "add", "arguments": "{}"})
    stream += fragment(**head, function={**name, "arguments": first})
    stream += b"".join(fragment(function={"arguments": part}) for part in rest)

    reading = read("openai", stream + openai("tool_calls", ""))

    assert [call["arguments"] for call in reading.calls] == ['{"x":1}']


def test_an_empty_object_alone_is_the_arguments() -> None:
    stream = fragment(id="a", function={"name": "now", "arguments": "{}"}) + fragment(
        function={"arguments": ""}
    )

    assert [call["arguments"] for call in read("openai", stream + openai("tool_calls", "")).calls] == ["{}"]


def test_a_continuation_of_gemini_pauses_and_is_continued_with_its_token() -> None:
    reading = read("gemini", gemini("CONTINUATION", continuationToken="dG9rZW4="))
    assert reading.finish is not None
    assert reading.finish.reason is FinishReason.PAUSED
    paused = AssistantPrompt(text="so far", replay=with_end(reading.replay, CompletionEnd(is_paused=True)))
    request = CompletionRequest(model="gemini-3-pro", messages=[UserPrompt(text="Go"), paused])

    sent = GEMINI.build_request(
        request, Target(provider_id=1, provider_type="gemini", base_url="https://g.example", api_key="k"),
        stream=True,
    )  # fmt: skip

    body = json.loads(sent.body)
    assert body["continuationToken"] == "dG9rZW4="
    assert body["contents"] == [{"role": "user", "parts": [{"text": "Go"}]}]


def test_a_refusal_without_details_needs_none() -> None:
    reading = read("anthropic", anthropic("refusal", text=""))

    assert reading.error is None
    assert reading.finish is not None
    assert (reading.finish.reason, reading.replay) == (FinishReason.REFUSAL, {})
