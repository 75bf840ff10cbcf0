"""A small stream for each quirk of the Anthropic dialect, and of servers that imitate it."""

from typing import Any

import pytest
from anthropic_answers import event
from wire_reading import Reading, read_in_pieces

from luxx.errors import (
    MalformedStream,
)
from luxx.providers.anthropic.adapter import AnthropicParser
from luxx.wire.turn import FinishReason

Json = dict[str, Any]
SIZES = pytest.mark.parametrize("size", [1, 7, 4096])
STOP = event({"type": "message_stop"})
PING = event({"type": "ping"})


def numbered_parser() -> AnthropicParser:
    numbers = iter(range(100))
    return AnthropicParser(lambda: f"made-{next(numbers)}")


def message_start(**usage: Any) -> bytes:
    return event({"type": "message_start", "message": {"model": "m", "content": [], "usage": usage}})


def start_block(index: int, **block: Any) -> bytes:
    return event({"type": "content_block_start", "index": index, "content_block": block})


def block_delta(index: int, kind: str, **fields: Any) -> bytes:
    return event({"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}})


def stop_block(index: int) -> bytes:
    return event({"type": "content_block_stop", "index": index})


def message_end(reason: str | None = "end_turn", usage: Json | None = None, **more: Any) -> bytes:
    delta = {"stop_reason": reason, **more}
    return event({"type": "message_delta", "delta": delta, "usage": usage or {"output_tokens": 2}}) + STOP


def text(index: int, *parts: str) -> bytes:
    grown = b"".join(block_delta(index, "text_delta", text=part) for part in parts)
    return start_block(index, type="text", text="") + grown + stop_block(index)


def call(index: int, name: str, *parts: str, call_id: str = "toolu_1", **block: Any) -> bytes:
    grown = b"".join(block_delta(index, "input_json_delta", partial_json=part) for part in parts)
    fields = {"type": "tool_use", "id": call_id, "name": name, "input": {}, **block}
    return start_block(index, **fields) + grown + stop_block(index)


def read(stream: bytes, size: int = 4096) -> Reading:
    return read_in_pieces(numbered_parser, stream, size)


def calls_of(stream: bytes) -> list[tuple[str, str, str]]:
    reading = read(message_start() + stream + message_end("tool_use"))
    assert reading.error is None
    return [(call["id"], call["name"], call["arguments"]) for call in reading.calls]


@SIZES
def test_thinking_is_shown_and_its_signature_kept(size: int) -> None:
    stream = message_start() + start_block(0, type="thinking", thinking="", signature="")
    stream += block_delta(0, "thinking_delta", thinking="be") + block_delta(
        0, "thinking_delta", thinking="cause"
    )
    stream += (
        block_delta(0, "signature_delta", signature="sig==") + stop_block(0) + text(1, "So.") + message_end()
    )

    reading = read(stream, size)

    assert (reading.thinking, reading.text) == ("because", "So.")
    assert reading.replay["anthropic_content"] == [
        {"type": "thinking", "thinking": "because", "signature": "sig=="},
        {"type": "text", "text": "So."},
    ]


def test_redacted_thinking_is_kept_and_not_shown() -> None:
    redacted = {"type": "redacted_thinking", "data": "secret=="}

    reading = read(
        message_start() + start_block(0, **redacted) + stop_block(0) + text(1, "So.") + message_end()
    )

    assert (reading.thinking, reading.text) == ("", "So.")
    assert reading.replay["anthropic_content"][0] == redacted


def test_server_tools_between_text_are_no_calls_and_keep_their_order() -> None:
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    search_result = {
        "type": "web_search_tool_result",
        "tool_use_id": "srvtoolu_1",
        "content": [{"encrypted": "x"}],
    }
    stream = message_start() + text(0, "I look. ")
    stream += (
        start_block(1, **search)
        + block_delta(1, "input_json_delta", partial_json='{"query":"a"}')
        + stop_block(1)
    )
    stream += start_block(2, **search_result) + stop_block(2) + text(3, "Found.") + message_end()

    reading = read(stream)

    assert (reading.text, reading.calls) == ("I look. Found.", [])
    assert reading.replay["anthropic_content"] == [
        {"type": "text", "text": "I look. "},
        {**search, "input": {"query": "a"}},
        search_result,
        {"type": "text", "text": "Found."},
    ]


def test_pause_is_reported_and_the_content_kept_even_if_it_is_plain() -> None:
    reading = read(message_start() + text(0, "So far") + message_end("pause_turn"))

    assert reading.finish is not None
    assert reading.finish.reason is FinishReason.PAUSED
    assert reading.replay["anthropic_content"] == [{"type": "text", "text": "So far"}]


def test_citations_and_compaction_are_kept() -> None:
    stream = message_start() + start_block(0, type="compaction", content=None)
    stream += block_delta(0, "compaction_delta", content="Earlier: a.", encrypted_content="x==") + stop_block(
        0
    )
    stream += start_block(1, type="text", text="", citations=[])
    stream += block_delta(1, "citations_delta", citation={"cited_text": "c"}) + block_delta(
        1, "text_delta", text="T"
    )
    stream += stop_block(1) + message_end()

    assert read(stream).replay["anthropic_content"] == [
        {"type": "compaction", "content": "Earlier: a.", "encrypted_content": "x=="},
        {"type": "text", "text": "T", "citations": [{"cited_text": "c"}]},
    ]


@pytest.mark.parametrize(
    ("stream", "arguments"),
    [
        (call(0, "now"), "{}"),
        (call(0, "now", "", ""), "{}"),
        (start_block(0, type="tool_use", id="toolu_1", name="now"), "{"),
        (start_block(0, type="tool_use", id="toolu_1", name="now", input={"x": 1}), '{"x":1}'),
        (call(0, "now", "{}", '{"x":', "1}"), '{"x":1}'),
        (call(0, "now", "{}"), "{}"),
        (call(0, "now", input={"x": 1}), '{"x":1}'),
        (call(0, "now", '{"x"', ": 2}", input={"x": 1}), '{"x": 2}'),
        (call(0, "now", "{broken"), "{broken"),
    ],
)
def test_arguments_are_read_from_every_field_and_may_be_missing(stream: bytes, arguments: str) -> None:
    assert calls_of(stream) == [("toolu_1", "now", arguments)]


def test_parallel_calls_are_each_a_call_and_interleaved_fragments_find_theirs() -> None:
    stream = start_block(0, type="tool_use", id="a", name="add", input={})
    stream += start_block(1, type="tool_use", id="b", name="mul", input={})
    stream += block_delta(1, "input_json_delta", partial_json='{"y"')
    stream += block_delta(0, "input_json_delta", partial_json='{"x":1}')
    stream += block_delta(1, "input_json_delta", partial_json=":2}") + stop_block(0) + stop_block(1)

    assert calls_of(stream) == [("a", "add", '{"x":1}'), ("b", "mul", '{"y":2}')]


def test_calls_without_an_id_or_with_one_id_are_distinguished() -> None:
    stream = call(0, "add", call_id="") + call(1, "mul", call_id="same") + call(2, "mul", call_id="same")

    assert [call[0] for call in calls_of(stream)] == ["toolu_made0", "same", "toolu_made1"]


def test_calls_give_the_finish_reason_tool_calls_whatever_the_server_reports() -> None:
    reading = read(message_start() + call(0, "add") + message_end("end_turn"))

    assert reading.finish is not None
    assert reading.finish.reason is FinishReason.TOOL_CALLS


def test_message_after_an_ended_one_changes_neither_usage_nor_text() -> None:
    stream = (
        message_start(input_tokens=5)
        + message_start(input_tokens=6)
        + text(0, "one")
        + STOP
        + message_start(input_tokens=99)
        + text(0, "two")
        + message_end()
    )

    reading = read(stream)

    assert (reading.text, reading.finishes) == ("onetwo", 1)
    assert reading.usage == {"prompt": 5, "completion": 2}


def test_closed_input_is_not_extended_by_a_second_message() -> None:
    first = call(0, "add", '{"x":1}', call_id="a") + message_end("tool_use")
    stream = first + message_start() + call(0, "add", '{"x":2}', call_id="b")

    # The fragment went to the index of the closed call, so the arguments of the second one did not arrive.
    assert calls_of(stream) == [("a", "add", '{"x":1}'), ("b", "add", "{")]


@SIZES
def test_message_that_begins_within_another_is_an_error_and_adds_nothing(size: int) -> None:
    cut = start_block(0, type="tool_use", id="a", name="add", input={})
    cut += block_delta(0, "input_json_delta", partial_json='{"x":')

    reading = read(message_start() + cut + message_start() + call(0, "add", '{"x":2}') + message_end(), size)

    assert type(reading.error) is MalformedStream
    assert "second message" in reading.error.message
    assert [call["arguments"] for call in reading.calls] == ['{"x":']
    assert reading.finish is None


def test_delta_without_an_index_belongs_to_the_newest_block() -> None:
    stream = event({"type": "content_block_start", "content_block": {"type": "text", "text": ""}})
    stream += event({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "hi"}})

    assert read(message_start() + stream + message_end()).text == "hi"


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        ({"input_tokens": 9, "output_tokens": 1}, {"output_tokens": 4}, (9, 4, 0)),
        ({"input_tokens": 9}, {"input_tokens": 20, "output_tokens": 4}, (20, 4, 0)),
        (
            {"input_tokens": 1, "cache_read_input_tokens": 7, "cache_creation_input_tokens": 2},
            {"output_tokens": 4},
            (10, 4, 7),
        ),
        ({"input_tokens": 9, "cache_read_input_tokens": 7}, {"cache_read_input_tokens": 0}, (9, 0, 0)),
        ({"input_tokens": "9"}, {"output_tokens": 4.0, "input_tokens": None}, (9, 4, 0)),
    ],
)
def test_later_usage_replaces_earlier_usage(first: Json, last: Json, expected: tuple[int, int, int]) -> None:
    reading = read(message_start(**first) + text(0, "x") + message_end(usage=last))

    assert reading.usage is not None
    assert (reading.usage["prompt"], reading.usage["completion"], reading.cached) == expected


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("max_tokens", FinishReason.LENGTH),
        ("model_context_window_exceeded", FinishReason.CONTEXT_FULL),
        ("stop_sequence", FinishReason.STOP),
        ("refusal", FinishReason.REFUSAL),
        ("compaction", FinishReason.PAUSED),
        ("of_a_later_version", FinishReason.UNKNOWN),
    ],
)
def test_every_stop_reason_is_reported(reason: str, expected: FinishReason) -> None:
    finish = read(message_start() + text(0, "x") + message_end(reason)).finish

    assert finish is not None
    assert (finish.reason, finish.raw) == (expected, reason)


def test_refusal_without_text_is_explained() -> None:
    details = {"type": "refusal", "category": None, "explanation": "I must not."}

    reading = read(message_start() + message_end("refusal", stop_details=details))

    assert reading.finish is not None
    assert (reading.finish.notice, reading.replay) == (
        "The provider declined to answer this: I must not.", {},
    )  # fmt: skip


@pytest.mark.parametrize("stream", [b"{}", b"[]"])
def test_an_empty_message_is_garbled(stream: bytes) -> None:
    assert isinstance(read(stream).error, MalformedStream)


@pytest.mark.parametrize("ending", [STOP, message_end().removesuffix(STOP)])
def test_message_stop_or_a_stop_reason_alone_completes_an_answer(ending: bytes) -> None:
    assert read(message_start() + text(0, "x") + ending).error is None


def test_unknown_events_blocks_and_deltas_are_ignored() -> None:
    stream = message_start() + event({"type": "of_a_later_version", "x": 1})
    stream += (
        start_block(0, type="new_block", x=1)
        + block_delta(0, "new_delta", y=2)
        + stop_block(0)
        + text(1, "hi")
        + message_end()
    )

    reading = read(stream)

    assert reading.text == "hi"
    assert reading.replay["anthropic_content"][0] == {"type": "new_block", "x": 1}
