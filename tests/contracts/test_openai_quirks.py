"""A small stream for each way in which servers differ from the OpenAI dialect."""

import json
from typing import Any

import pytest
from wire_reading import Reading, read_in_pieces

from luxx.errors import (
    ProviderFailed,
)
from luxx.providers.openai_chat.adapter import OpenAIParser
from luxx.wire.turn import FinishReason

DONE = b"data: [DONE]\n\n"
SIZES = pytest.mark.parametrize("size", [1, 7, 4096])


def numbered_parser() -> OpenAIParser:
    numbers = iter(range(100))
    return OpenAIParser(lambda: f"made-{next(numbers)}")


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def chunk(delta: dict[str, Any], finish: str | None = None, **beside: Any) -> bytes:
    return event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **beside})


def call_chunk(*calls: dict[str, Any]) -> bytes:
    return chunk({"tool_calls": list(calls)})


def read(stream: bytes, size: int = 4096) -> Reading:
    return read_in_pieces(numbered_parser, stream, size)


def calls_of(stream: bytes) -> list[tuple[str, str, str]]:
    reading = read(stream + chunk({}, "tool_calls") + DONE)
    assert reading.error is None
    return [(call["id"], call["name"], call["arguments"]) for call in reading.calls]


def function(name: str | None, arguments: str | None) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": arguments}}


def test_error_beside_choices_comes_after_their_text() -> None:
    reading = read(chunk({"content": "last words"}, error={"message": "cut off", "code": 502}))

    assert reading.text == "last words"
    assert isinstance(reading.error, ProviderFailed)


def test_groqs_own_error_is_raised_beside_usage() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2}

    reading = read(chunk({"content": "a"}, "stop", usage=usage, x_groq={"error": "over capacity"}) + DONE)

    assert (reading.text, reading.usage) == ("a", {"prompt": 3, "completion": 2})
    assert "over capacity" in str(reading.error)


def test_error_in_a_choice_is_raised() -> None:
    choice = {"delta": {"content": ""}, "finish_reason": "error", "error": {"message": "upstream died"}}

    assert "upstream died" in str(read(event({"choices": [choice]}) + DONE).error)


@pytest.mark.parametrize(
    "stream",
    [
        b'error: {"code": 500, "message": "named"}\n\n',
        b'data: {"object": "error", "message": "named", "code": 500}\n\n',
        b'[{"error": {"message": "named"}}]',
        b'data: {"message": "named", "type": "too_many_requests_error", "code": "queue"}\n\n',
    ],
)
def test_error_of_a_shape_of_its_own_is_reported_with_its_message(stream: bytes) -> None:
    assert "named" in str(read(stream).error)


def test_calls_without_index_are_distinguished_by_id() -> None:
    stream = call_chunk({"id": "a", **function("add", '{"x":')}) + call_chunk(function(None, "1}"))
    stream += call_chunk({"id": "b", **function("mul", "{}")})

    assert calls_of(stream) == [("a", "add", '{"x":1}'), ("b", "mul", "{}")]


def test_calls_all_at_index_0_are_distinguished_by_id_and_name() -> None:
    stream = call_chunk({"index": 0, "id": "a", **function("add", "{}")})
    stream += call_chunk({"index": 0, "id": "b", **function("add", "{}")})

    assert calls_of(stream) == [("a", "add", "{}"), ("b", "add", "{}")]


def test_id_and_name_on_every_fragment_are_one_call() -> None:
    fragments = ["", '{"x"', ": ", "1}", ""]
    stream = b"".join(call_chunk({"index": 0, "id": "a", **function("add", part)}) for part in fragments)

    assert calls_of(stream) == [("a", "add", '{"x": 1}')]


def test_name_on_every_fragment_without_ids_is_one_call() -> None:
    stream = b"".join(call_chunk({"index": 0, **function("add", part)}) for part in ['{"x"', ": 1", "}"])

    assert calls_of(stream) == [("call_made0", "add", '{"x": 1}')]


def test_empty_ids_and_names_continue_the_call() -> None:
    stream = call_chunk({"index": 0, "id": "a", **function("add", "")})
    stream += call_chunk({"index": 0, "id": "", **function("", '{"x": 1}')})

    assert calls_of(stream) == [("a", "add", '{"x": 1}')]


def test_whole_calls_without_ids_in_one_chunk_are_each_a_call() -> None:
    stream = call_chunk(function("add", '{"x": 1}'), function("add", '{"x": 2}'))

    assert calls_of(stream) == [("call_made0", "add", '{"x": 1}'), ("call_made1", "add", '{"x": 2}')]


def test_one_id_for_two_calls_is_made_two() -> None:
    stream = call_chunk({"index": 0, "id": "same", **function("add", "{}")})
    stream += call_chunk({"index": 1, "id": "same", **function("mul", "{}")})

    assert calls_of(stream) == [("same", "add", "{}"), ("call_made0", "mul", "{}")]


def test_interleaved_calls_keep_their_arguments() -> None:
    stream = call_chunk({"index": 0, "id": "a", **function("add", '{"x"')})
    stream += call_chunk({"index": 1, "id": "b", **function("mul", '{"y"')})
    stream += call_chunk({"index": 0, **function(None, ":1}")}) + call_chunk(
        {"index": 1, **function(None, ":2}")}
    )

    assert calls_of(stream) == [("a", "add", '{"x":1}'), ("b", "mul", '{"y":2}')]


def test_null_and_object_arguments_are_text() -> None:
    stream = call_chunk({"index": 0, "id": "a", **function("now", None)})
    stream += call_chunk({"index": 1, "id": "b", "function": {"name": "add", "arguments": {"x": 1}}})

    assert calls_of(stream) == [("a", "now", ""), ("b", "add", '{"x": 1}')]


def test_call_without_a_name_is_still_given() -> None:
    assert calls_of(call_chunk({"index": 0, "id": "a", **function(None, "{}")})) == [("a", "", "{}")]


@pytest.mark.parametrize("finish", ["stop", None, "eos"])
def test_calls_give_the_finish_reason_tool_calls(finish: str | None) -> None:
    call = {"index": 0, "id": "a", **function("add", "{}")}

    reading = read(call_chunk(call) + chunk({}, finish) + DONE)

    assert reading.finish is not None
    assert reading.finish.reason is FinishReason.TOOL_CALLS
    assert reading.finish.raw == (finish or "")


@pytest.mark.parametrize(
    "ending",
    [
        event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}) + DONE,
        chunk({}, "stop", usage={"prompt_tokens": 3, "completion_tokens": 2}) + DONE,
        chunk({}, "stop", x_groq={"usage": {"prompt_tokens": 3, "completion_tokens": 2}}) + DONE,
        chunk({}, None, usage={"prompt_tokens": 3, "completion_tokens": 1})
        + chunk({}, "stop", usage={"prompt_tokens": 3, "completion_tokens": 2})
        + DONE,
        chunk({}, "stop", usage={"prompt_tokens": 3.0, "completion_tokens": "2", "total_tokens": None})
        + DONE,
        chunk({}, "stop", usage={"prompt_tokens": 3, "completion_tokens": 2})
        + event({"choices": [], "usage": {"prompt_tokens": 0, "completion_tokens": 0}})
        + DONE,
    ],
)
def test_usage_is_read_from_every_known_field(ending: bytes) -> None:
    assert read(chunk({"content": "hi"}) + ending).usage == {"prompt": 3, "completion": 2}


@pytest.mark.parametrize(
    "delta",
    [
        {"reasoning_content": "why"},
        {"reasoning": "why"},
        {"reasoning": "why", "reasoning_content": "why"},
        {"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "why"}]},
        {"reasoning": "why", "reasoning_details": [{"type": "reasoning.text", "text": "why"}]},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "why"}]}]},
        {"content": "<think>why</think>"},
    ],
)
@SIZES
def test_reasoning_is_read_from_every_known_field(delta: dict[str, Any], size: int) -> None:
    reading = read(chunk(delta) + chunk({"content": "answer"}) + chunk({}, "stop") + DONE, size)

    assert (reading.thinking, reading.text) == ("why", "answer")


def test_inline_thinking_may_be_split_anywhere() -> None:
    parts = ["\n", "<th", "ink", ">a < b", " </thi", "nk", ">so </think>"]

    reading = read(b"".join(chunk({"content": part}) for part in parts) + DONE)

    assert (reading.thinking, reading.text) == ("a < b ", "so </think>")


def test_think_tag_later_in_the_text_is_text() -> None:
    reading = read(chunk({"content": "Use "}) + chunk({"content": "<think>x</think>"}) + DONE)

    assert (reading.thinking, reading.text) == ("", "Use <think>x</think>")


def test_text_that_only_looks_like_a_tag_is_not_lost() -> None:
    assert read(chunk({"content": "<thi"}) + DONE).text == "<thi"


def test_reasoning_beside_tool_calls_is_marked_for_replay() -> None:
    call = {"index": 0, "id": "a", **function("add", "{}")}

    reading = read(chunk({"reasoning_content": "why"}) + call_chunk(call) + chunk({}, "tool_calls") + DONE)

    assert reading.replay == {"reasoning_field": "reasoning_content"}


def test_reasoning_details_are_joined_for_replay() -> None:
    details = [
        {"type": "reasoning.text", "index": 0, "text": "be"},
        {"type": "reasoning.text", "index": 0, "text": "cause", "signature": "sig"},
        {"type": "reasoning.encrypted", "index": 1, "data": "x=="},
    ]

    reading = read(b"".join(chunk({"reasoning_details": [item]}) for item in details) + DONE)

    assert reading.replay["reasoning_details"] == [
        {"type": "reasoning.text", "index": 0, "text": "because", "signature": "sig"},
        {"type": "reasoning.encrypted", "index": 1, "data": "x=="},
    ]


def test_refusal_ends_refused_and_keeps_its_text() -> None:
    reading = read(chunk({"refusal": "I "}) + chunk({"refusal": "can't."}) + chunk({}, "stop") + DONE)

    assert reading.finish is not None
    assert reading.finish.reason is FinishReason.REFUSAL
    assert reading.replay == {"refusal": "I can't."}


def test_only_the_first_of_several_choices_is_read() -> None:
    def choice(index: int, text: str) -> bytes:
        return event({"choices": [{"index": index, "delta": {"content": text}, "finish_reason": None}]})

    assert read(choice(0, "a") + choice(1, "x") + choice(0, "b") + DONE).text == "ab"


def test_finish_without_done_is_a_complete_answer() -> None:
    assert read(chunk({"content": "x"}) + chunk({}, "stop")).error is None


def test_nothing_after_done_is_read() -> None:
    assert read(chunk({"content": "x"}) + DONE + chunk({"content": "y"})).text == "x"


@SIZES
@pytest.mark.parametrize("native", ["MALFORMED_FUNCTION_CALL", "error"])
def test_failure_that_a_gateway_calls_a_regular_end_is_an_error(size: int, native: str) -> None:
    end: dict[str, Any] = {"index": 0, "delta": {}, "finish_reason": "stop", "native_finish_reason": native}
    reading = read(chunk({"content": "so far"}) + event({"choices": [end]}) + DONE, size)
    assert reading.text == "so far"
    assert isinstance(reading.error, ProviderFailed)
    assert native in reading.error.message


@pytest.mark.parametrize(
    ("native", "reason"),
    [
        ("SAFETY", FinishReason.CONTENT_FILTER),
        ("max_tokens", FinishReason.LENGTH),
        ("refusal", FinishReason.REFUSAL),
        ("end_turn", FinishReason.STOP),
        ("something", FinishReason.STOP),
    ],
)
def test_cut_that_a_gateway_calls_a_regular_end_is_one(native: str, reason: FinishReason) -> None:
    end: dict[str, Any] = {"index": 0, "delta": {}, "finish_reason": "stop", "native_finish_reason": native}
    reading = read(chunk({"content": "so far"}) + event({"choices": [end]}) + DONE)
    assert reading.finish is not None
    assert reading.finish.reason is reason
