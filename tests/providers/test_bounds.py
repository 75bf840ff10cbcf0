"""What a malicious provider can make a parser store is bounded, and costs no more than it sends."""

import tracemalloc
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import msgspec
import pytest

from luxx.errors import MalformedStream
from luxx.providers.adapter import StreamParser
from luxx.providers.anthropic.adapter import AnthropicParser
from luxx.providers.gemini.adapter import GeminiParser
from luxx.providers.gemini.content import MAX_OPEN_CALLS
from luxx.providers.inline_thinking import MAX_BLANKS
from luxx.providers.openai_chat.adapter import OpenAIParser
from luxx.providers.parsing import MAX_BLANK_BYTES, MAX_RETAINED_BYTES, SseSplitter
from luxx.wire.turn import ReplayDelta, TextDelta, ToolCallDelta

PARSERS: dict[str, Callable[[Callable[[], str]], StreamParser]] = {
    "openai": OpenAIParser,
    "anthropic": AnthropicParser,
    "gemini": GeminiParser,
}
LONG = "x" * 200_000


def parser_of(dialect: str) -> StreamParser:
    numbers = count()
    return PARSERS[dialect](lambda: f"id{next(numbers)}")


def feed_all(parser: StreamParser, pieces: list[bytes]) -> None:
    for piece in pieces:
        parser.feed(piece)


def event(value: Any) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def openai_event(delta: dict[str, Any]) -> bytes:
    return event({"choices": [{"index": 0, "delta": delta}]})


def gemini_event(*parts: dict[str, Any]) -> bytes:
    return event({"candidates": [{"content": {"parts": parts}}]})


def anthropic_event(delta: dict[str, Any]) -> bytes:
    return event({"type": "content_block_delta", "index": 0, "delta": delta})


def block_start(block: dict[str, Any]) -> bytes:
    return event({"type": "content_block_start", "index": 0, "content_block": block})


@pytest.mark.parametrize("dialect", PARSERS)
@pytest.mark.parametrize("blanks", [b" ", b"\n", b" \r\n\t" * 100])
def test_blanks_before_an_answer_are_dropped_and_refused_past_the_bound(dialect: str, blanks: bytes) -> None:
    parser = parser_of(dialect)
    for _ in range(MAX_BLANK_BYTES // len(blanks)):
        assert parser.feed(blanks) == []
    with pytest.raises(MalformedStream, match="blank"):
        feed_all(parser, [blanks] * (1 + len(blanks)))


@pytest.mark.parametrize("dialect", PARSERS)
def test_blanks_before_an_answer_do_not_change_it(dialect: str) -> None:
    answer = {
        "openai": openai_event({"content": "hi"}),
        "anthropic": block_start({"type": "text", "text": "hi"}),
        "gemini": gemini_event({"text": "hi"}),
    }[dialect]
    parser = parser_of(dialect)
    assert parser.feed(b" \n") == parser.feed(b"\r\n") == []
    assert parser.feed(b"\n " + answer[:3]) == []
    assert parser.feed(answer[3:]) == [TextDelta(text="hi")]


BUFFERED_DATA: dict[str, tuple[str, bytes, bytes]] = {
    "a call without a name": (
        "openai",
        b"",
        openai_event({"tool_calls": [{"function": {"arguments": LONG}}]}),
    ),
    "reasoning details": ("openai", b"", openai_event({"reasoning_details": [{"type": "a", "text": LONG}]})),
    "words of a refusal": ("openai", b"", openai_event({"refusal": LONG})),
    "the input of a server's tool": (
        "anthropic",
        block_start({"type": "server_tool_use"}),
        anthropic_event({"type": "input_json_delta", "partial_json": LONG}),
    ),
    "blocks that are not shown": ("anthropic", b"", block_start({"type": "other", "data": LONG})),
    "an open call": (
        "gemini",
        b"",
        gemini_event(
            {
                "functionCall": {
                    "name": "a",
                    "willContinue": True,
                    "partialArgs": [{"jsonPath": "$.a", "stringValue": LONG}],
                }
            }
        ),
    ),
    "parts that are not shown": ("gemini", b"", gemini_event({"executableCode": {"code": LONG}})),
    "signatures": ("gemini", b"", gemini_event({"thoughtSignature": LONG})),
}
"""What parsers buffer: the dialect, what comes first, and what is then sent again and again."""


@pytest.mark.parametrize("kind", BUFFERED_DATA)
def test_data_buffered_beside_the_text_is_bounded(kind: str) -> None:
    dialect, opening, repeated = BUFFERED_DATA[kind]
    parser = parser_of(dialect)
    parser.feed(opening)
    feed_all(parser, [repeated] * (MAX_RETAINED_BYTES // len(repeated) - 1))
    with pytest.raises(MalformedStream, match="besides its text"):
        feed_all(parser, [repeated] * 3)


def test_an_event_counts_once_however_many_of_its_parts_are_kept() -> None:
    parser = parser_of("gemini")
    parts = [{"executableCode": {"code": "x" * 1000}} for _ in range(1000)]
    for _ in range(MAX_RETAINED_BYTES // len(gemini_event(*parts))):
        parser.feed(gemini_event(*parts))


def test_calls_that_are_opened_and_never_closed_are_bounded() -> None:
    opening = [
        gemini_event({"functionCall": {"id": f"{index}", "name": "a", "willContinue": True}})
        for index in range(MAX_OPEN_CALLS + 1)
    ]
    with pytest.raises(MalformedStream, match="calls"):
        feed_all(parser_of("gemini"), opening)


def test_gaps_in_streamed_arrays_do_not_multiply_what_is_sent() -> None:
    parser = parser_of("gemini")
    items = [{"jsonPath": f"$.a[{index}]", "nullValue": None} for index in range(900, 500_000, 900)]
    call = {"functionCall": {"name": "a", "partialArgs": items}}
    # 555 items with gaps of 900: filling the gaps would make an array of half a million elements.
    assert sum(len(delta.arguments) for delta in calls(parser.feed(gemini_event(call)))) < 1_000


def calls(deltas: list[Any]) -> Iterator[ToolCallDelta]:
    return (delta for delta in deltas if isinstance(delta, ToolCallDelta))


def test_blanks_where_thinking_could_begin_are_given_out_past_a_bound() -> None:
    parser = parser_of("openai")
    deltas = [parser.feed(openai_event({"content": " "})) for _ in range(MAX_BLANKS + 1)]
    assert not any(deltas[:-1])
    assert deltas[-1] == [TextDelta(text=" " * (MAX_BLANKS + 1))]


def peak_allocation(feed: Callable[[], object]) -> int:
    """The most bytes that one call allocates temporarily, beside what it keeps."""
    tracemalloc.start()
    try:
        feed()
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return peak - kept


def test_a_line_of_a_long_event_is_added_without_copying_the_event() -> None:
    splitter = SseSplitter()
    splitter.feed(b"data: " + b"x" * 1_000_000 + b"\n")
    splitter.feed(b"data: y\n")
    assert peak_allocation(lambda: splitter.feed(b"data: y\n")) < 100_000
    assert splitter.feed(b"\n") == [(b"", b"x" * 1_000_000 + b"\ny\ny")]


def test_a_fragment_of_reasoning_details_is_added_without_copying_the_rest() -> None:
    parser = parser_of("openai")
    fragment = openai_event({"reasoning_details": [{"type": "a", "text": "b", "signature": None}]})
    parser.feed(openai_event({"reasoning_details": [{"type": "a", "text": "b" * 1_000_000}]}))
    parser.feed(fragment)
    assert peak_allocation(lambda: parser.feed(fragment)) < 100_000
    replays = [delta for delta in parser.feed(b"data: [DONE]\n\n") if isinstance(delta, ReplayDelta)]
    assert replays[0].data["reasoning_details"] == [{"type": "a", "text": "b" * 1_000_002, "signature": None}]


def test_a_piece_of_a_streamed_string_is_added_without_copying_the_rest() -> None:
    def piece(text: str) -> bytes:
        items = [{"jsonPath": "$.a", "stringValue": text}]
        return gemini_event({"functionCall": {"name": "a", "willContinue": True, "partialArgs": items}})

    parser = parser_of("gemini")
    parser.feed(piece("b" * 1_000_000))
    parser.feed(piece("b"))
    assert peak_allocation(lambda: parser.feed(piece("b"))) < 100_000
    ended = list(calls(parser.feed(gemini_event({"functionCall": {}}))))
    assert msgspec.json.decode(ended[0].arguments) == {"a": "b" * 1_000_002}


def test_complete_arguments_are_recognized_without_joining_them_each_time() -> None:
    parser = parser_of("openai")

    def fragment(arguments: str) -> bytes:
        return openai_event({"tool_calls": [{"function": {"name": "a", "arguments": arguments}}]})

    parser.feed(fragment('{"a": "' + "b" * 1_000_000))
    parser.feed(fragment("}"))
    parser.feed(fragment("}"))  # Here they are scanned.
    assert peak_allocation(lambda: parser.feed(fragment('}\\"\\'))) < 100_000
    assert peak_allocation(lambda: parser.feed(fragment('"}'))) < 100_000
    assert {delta.slot for delta in calls(parser.feed(fragment('"}')))} == {0}
    assert {delta.slot for delta in calls(parser.feed(fragment("{}")))} == {1}


def test_a_citation_is_added_without_copying_the_others() -> None:
    parser = parser_of("anthropic")
    cited = anthropic_event({"type": "citations_delta", "citation": {"a": 1}})
    parser.feed(block_start({"type": "text", "text": "", "citations": [1] * 90_000}))
    parser.feed(cited)
    assert peak_allocation(lambda: parser.feed(cited)) < 100_000
