"""A small stream for each way in which servers differ from the Responses dialect."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from responses_answers import answers, event, stream_of
from wire_reading import Reading, read_in_pieces

from luxx.errors import ContextTooLong, MalformedStream, ProviderFailed, RateLimited, StreamInterrupted
from luxx.providers.adapter import CompletionRequest, Target
from luxx.providers.openai_responses.adapter import RESPONSES, ResponsesParser
from luxx.wire.message import AssistantPrompt, PromptMessage, ToolPrompt, UserPrompt
from luxx.wire.tool import ToolCall
from luxx.wire.turn import FinishReason

SIZES = pytest.mark.parametrize("size", [1, 7, 4096])
MESSAGE = {"type": "message", "content": [{"type": "output_text", "text": "Hello"}]}
CALL = {"type": "function_call", "call_id": "call_1", "name": "add", "arguments": '{"x": 1}'}


def numbered_parser() -> ResponsesParser:
    numbers = iter(range(100))
    return ResponsesParser(lambda: f"made-{next(numbers)}")


def read(stream: bytes, size: int = 4096) -> Reading:
    return read_in_pieces(numbered_parser, stream, size)


def end(*items: Any, status: str = "completed", **fields: Any) -> bytes:
    return event({"type": f"response.{status}", "response": {"status": status, "output": items, **fields}})


def text(delta: str, index: int | None = 0) -> bytes:
    return event({"type": "response.output_text.delta", "output_index": index, "delta": delta})


def calls_of(reading: Reading) -> list[tuple[str, str, str]]:
    assert reading.error is None
    return [(call["id"], call["name"], call["arguments"]) for call in reading.calls]


@SIZES
@pytest.mark.parametrize(
    "stream",
    [
        text("Hel") + text("lo") + end(MESSAGE),
        (text("Hel") + text("lo") + end(MESSAGE)).replace(b"event: ", b": "),
        b": PROCESSING\r\n\r\n" + (text("Hello") + end()).replace(b"\n", b"\r\n") + b"data: [DONE]\r\n\r\n",
        text("Hello") + event({"type": "keepalive"}) + event({"type": "response.new.kind"}) + end(MESSAGE),
        text("Hello", index=None) + end(),
        event({"type": "response.output_item.done", "output_index": 0, "item": MESSAGE}) + end(MESSAGE),
        end(MESSAGE),
        end(MESSAGE).removesuffix(b"\n\n"),
        json.dumps({"object": "response", "status": "completed", "output": [MESSAGE]}).encode(),
    ],
    ids=[
        "deltas", "no event lines", "comments, CRLF and DONE", "keepalive and unknown events", "no index",
        "only the complete item", "only the last event", "no final blank line", "one JSON body",
    ],
)  # fmt: skip
def test_text_is_read_once(stream: bytes, size: int) -> None:
    reading = read(stream, size)

    assert (reading.text, reading.error) == ("Hello", None)
    assert reading.finish is not None
    assert (reading.finish.reason, reading.finish.raw) == (FinishReason.STOP, "completed")


@pytest.mark.parametrize(
    "events",
    [
        [("output_item.added", {"item": {**CALL, "arguments": ""}}), ("delta", '{"x"'), ("delta", ": 1}")],
        [("output_item.added", {"item": CALL}), ("delta", '{"x": 1}')],
        [("delta", '{"x"'), ("delta", ": 1}"), ("output_item.done", {"item": CALL})],
        [("output_item.added", {"item": {"type": "function_call"}}), ("output_item.done", {"item": CALL})],
        [("output_item.done", {"item": CALL})],
        [],
    ],
    ids=["deltas", "arguments in the first event", "name last", "hollow", "whole", "last event"],
)
def test_call_is_read_once_whatever_part_the_stream_leaves_out(events: list[Any]) -> None:
    stream = b""
    for kind, fields in events:
        if kind == "delta":
            kind, fields = "function_call_arguments.delta", {"delta": fields, "item_id": f"id_{len(stream)}"}
        stream += event({"type": f"response.{kind}", "output_index": 0, **fields})

    reading = read(stream + end(CALL))

    assert calls_of(reading) == [("call_1", "add", '{"x": 1}')]
    assert reading.finish is not None
    assert reading.finish.reason is FinishReason.TOOL_CALLS


def test_calls_without_ids_or_with_the_same_get_their_own() -> None:
    nameless = {"type": "function_call", "arguments": "{}"}

    assert calls_of(read(end(CALL, CALL, {**CALL, "call_id": ""}, nameless))) == [
        ("call_1", "add", '{"x": 1}'),
        ("call_made0", "add", '{"x": 1}'),
        ("call_made1", "add", '{"x": 1}'),
        ("call_made2", "", "{}"),
    ]


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("max_output_tokens", FinishReason.LENGTH),
        ("content_filter", FinishReason.CONTENT_FILTER),
        ("something_new", FinishReason.UNKNOWN),
    ],
)
def test_incomplete_response_says_why(reason: str, finish: FinishReason) -> None:
    reading = read(text("Hel") + end(MESSAGE, status="incomplete", incomplete_details={"reason": reason}))

    assert reading.text == "Hel"
    assert reading.finish is not None
    assert (reading.finish.reason, reading.finish.raw) == (finish, reason)


def test_call_that_was_cut_before_its_arguments_has_no_valid_ones() -> None:
    begun = {"type": "response.output_item.added", "output_index": 0, "item": {**CALL, "arguments": ""}}
    details = {"reason": "max_output_tokens"}

    assert calls_of(read(event(begun) + end(status="incomplete", incomplete_details=details))) == [
        ("call_1", "add", "{")
    ]


@pytest.mark.parametrize("is_streamed", [True, False])
def test_refusal_is_kept_apart_from_the_text(is_streamed: bool) -> None:
    delta = event({"type": "response.refusal.delta", "output_index": 0, "delta": "I cannot."})
    message = {"type": "message", "content": [{"type": "refusal", "refusal": "I cannot."}]}

    reading = read((delta if is_streamed else b"") + end(message))

    assert (reading.text, reading.replay["refusal"]) == ("", "I cannot.")
    assert reading.finish is not None
    assert reading.finish.reason is FinishReason.REFUSAL


@SIZES
@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (event({"type": "error", "error": {"code": "server_error", "message": "named"}}), ProviderFailed),
        (event({"type": "error", "code": "rate_limit_exceeded", "message": "named"}), RateLimited),
        (
            end(status="failed", error={"code": "context_length_exceeded", "message": "named"}),
            ContextTooLong,
        ),
        (b'data: {"error": {"message": "named", "code": 500}}\n\n', ProviderFailed),
    ],
)
def test_error_is_raised_once_after_what_came_before(
    failure: bytes, kind: type[Exception], size: int
) -> None:
    both = failure + end(status="failed", error={"code": "server_error", "message": "named again"})

    reading = read(text("so far") + both, size)

    assert reading.text == "so far"
    assert type(reading.error) is kind
    assert "named" in str(reading.error)
    assert "again" not in str(reading.error)
    assert reading.finish is None


@SIZES
@pytest.mark.parametrize("ending", [b"", end(MESSAGE)])
def test_bare_json_error_at_the_end_is_reported(ending: bytes, size: int) -> None:
    reading = read(text("so far") + ending + b'{"error": {"message": "fell over"}}\n', size)

    assert reading.text == "so far"
    assert "fell over" in str(reading.error)


@pytest.mark.parametrize(
    ("stream", "kind"),
    [
        (text("Hel"), StreamInterrupted),
        (event({"type": "response.created", "response": {"status": "in_progress"}}), StreamInterrupted),
        (b"", StreamInterrupted),
        (end(status="cancelled"), ProviderFailed),
        (b'{"choices": []}', MalformedStream),
    ],
)
def test_response_without_an_end_is_an_error(stream: bytes, kind: type[Exception]) -> None:
    assert type(read(stream).error) is kind


def test_usage_counts_cached_written_and_reasoning_tokens() -> None:
    usage = {
        "input_tokens": 40,
        "input_tokens_details": {"cached_tokens": 10, "cache_write_tokens": 5},
        "output_tokens": 9,
        "output_tokens_details": {"reasoning_tokens": 4},
        "total_tokens": 49,
    }

    spent = read(end(MESSAGE, usage=usage)).spent

    assert (spent.prompt_tokens, spent.completion_tokens, spent.total_tokens) == (40, 9, 49)
    assert (spent.cached_tokens, spent.cache_write_tokens, spent.reasoning_tokens) == (10, 5, 4)


def test_thinking_of_several_parts_has_a_blank_line_between_them() -> None:
    kind = "response.reasoning_summary_text.delta"
    parts = [(0, 0, "One"), (0, 0, " and"), (0, 1, "Two"), (2, 0, "Three")]
    stream = b"".join(
        event({"type": kind, "output_index": index, "summary_index": part, "delta": delta})
        for index, part, delta in parts
    )

    assert read(stream + end(MESSAGE)).thinking == "One and\n\nTwo\n\nThree"


def test_citations_of_the_text_are_read_once_whether_streamed_or_not() -> None:
    page = {"type": "url_citation", "url": "https://a.example/", "title": "A"}
    file = {"type": "file_citation", "file_id": "file_1", "filename": "b.txt"}
    message = {
        "type": "message",
        "content": [{"type": "output_text", "text": "Hi", "annotations": [page, file]}],
    }
    added = event({"type": "response.output_text.annotation.added", "output_index": 0, "annotation": page})

    sources = read(text("Hi") + added + end(message)).sources

    assert [(source.url, source.title) for source in sources] == [("https://a.example/", "A"), ("", "b.txt")]


TARGET = Target(provider_id=1, provider_type="openai_responses", base_url="https://api.openai.com/v1")


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(items=answers())
def test_answer_is_sent_back_with_its_reasoning_and_in_its_order(items: list[dict[str, Any]]) -> None:
    request = CompletionRequest(model="gpt-5.4", messages=[UserPrompt(text="Go on.")])
    reading = read_in_pieces(lambda: RESPONSES.parser_for(request, TARGET), stream_of(items), 4096)
    calls = [ToolCall(call_id=c["id"], name=c["name"], arguments=c["arguments"]) for c in reading.calls]
    answer = AssistantPrompt(
        text=reading.text, thinking=reading.thinking, tool_calls=calls, replay=reading.replay
    )
    results = [ToolPrompt(call_id=call.call_id, name=call.name, content="{}") for call in calls]
    messages: list[PromptMessage] = [UserPrompt(text="Go on."), answer, *results, UserPrompt(text="And?")]

    asked = CompletionRequest(model="gpt-5.4-mini", messages=messages)
    sent = json.loads(RESPONSES.build_request(asked, TARGET, stream=True).body)["input"][1:-1]

    back = [item for item in sent if not item["type"].endswith("_output")]
    assert "".join(item["content"] for item in back if item["type"] == "message") == reading.text
    kept = [
        item
        for at, item in enumerate(items)
        if item["type"] != "reasoning" or ("encrypted_content" in item and _leads_on(items[at + 1 :]))
    ]
    if reading.replay:
        assert [item["type"] for item in back] == [item["type"] for item in kept]
        assert [item for item in back if item["type"] in ("reasoning", "web_search_call")] == [
            item for item in kept if item["type"] in ("reasoning", "web_search_call")
        ]
        assert [item.get("phase") for item in back] == [item.get("phase") for item in kept]


def _leads_on(following: list[dict[str, Any]]) -> bool:
    return any(item["type"] != "reasoning" for item in following)
