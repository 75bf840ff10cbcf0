"""What servers of every dialect do: streams cut anywhere, no or too many blank lines, broken characters, and
errors of many shapes. What only one dialect has is in `test_<dialect>_quirks.py`.
"""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from wire_reading import Reading, read_in_pieces

from luxx.errors import (
    ContextTooLong,
    KeyRefused,
    MalformedStream,
    OutOfCredit,
    Overloaded,
    ProviderError,
    ProviderFailed,
    ProviderRefused,
    RateLimited,
    StreamInterrupted,
)
from luxx.providers.adapter import StreamParser
from luxx.providers.anthropic.adapter import AnthropicParser
from luxx.providers.gemini.adapter import GeminiParser
from luxx.providers.openai_chat.adapter import OpenAIParser
from luxx.providers.openai_responses.adapter import ResponsesParser
from luxx.wire.turn import FinishReason, TextDelta

Json = dict[str, Any]
SIZES = pytest.mark.parametrize("size", [1, 7, 4096])


class Dialect(NamedTuple):
    """`beginning`, one `said` for each text and `end` are the events of an answer, `failed` is the event of
    an error, and `whole` an answer that is not streamed."""

    make_parser: Callable[[Callable[[], str]], StreamParser]
    beginning: list[Json]
    said: Callable[[str], Json]
    end: list[Json]
    raw_end: str
    failed: Callable[[Any], Json]
    whole: Json

    def events(self, *texts: str) -> list[Json]:
        """Those of an answer that has not ended."""
        return [*self.beginning, *map(self.said, texts)]

    def read(self, stream: bytes, size: int = 4096) -> Reading:
        return read_in_pieces(self.parser, stream, size)

    def parser(self) -> StreamParser:
        numbers = iter(range(100))
        return self.make_parser(lambda: f"made-{next(numbers)}")


def framed(*events: Json) -> bytes:
    return b"".join(
        (f"event: {event['type']}\n" if "type" in event else "").encode()
        + b"data: "
        + json.dumps(event).encode()
        + b"\n\n"
        for event in events
    )


OPENAI_CALL = {"id": "a", "function": {"name": "add", "arguments": '{"x":1}'}}
RESPONSE = {
    "object": "response",
    "status": "completed",
    "output": [
        {"type": "message", "content": [{"type": "output_text", "text": "whole"}]},
        {"type": "function_call", "call_id": "a", "name": "add", "arguments": '{"x":1}'},
    ],
    "usage": {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
}
DIALECTS = {
    "openai": Dialect(
        OpenAIParser,
        [],
        lambda text: {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]},
        [{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}],
        "stop",
        lambda error: {"error": error},
        {
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": "whole", "tool_calls": [OPENAI_CALL]},
                    "finish_reason": "tool_calls",
                }
            ],
            "usage": {"prompt_tokens": 1, "completion_tokens": 2},
        },
    ),
    "anthropic": Dialect(
        AnthropicParser,
        [
            {"type": "message_start", "message": {"model": "m", "content": [], "usage": {}}},
            {"type": "ping"},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        ],
        lambda text: {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": text},
        },
        [
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
            {"type": "message_stop"},
        ],
        "end_turn",
        lambda error: {"type": "error", "error": error},
        {
            "type": "message",
            "model": "m",
            "content": [
                {"type": "text", "text": "whole"},
                {"type": "tool_use", "id": "a", "name": "add", "input": {"x": 1}},
            ],
            "stop_reason": "tool_use",
            "usage": {"input_tokens": 1, "output_tokens": 2},
        },
    ),
    "gemini": Dialect(
        GeminiParser,
        [],
        lambda text: {"candidates": [{"content": {"role": "model", "parts": [{"text": text}]}, "index": 0}]},
        [{"candidates": [{"content": {"role": "model", "parts": []}, "finishReason": "STOP", "index": 0}]}],
        "STOP",
        lambda error: {"error": error},
        {
            "candidates": [
                {
                    "content": {
                        "parts": [
                            {"text": "whole"},
                            {"functionCall": {"id": "a", "name": "add", "args": {"x": 1}}},
                        ]
                    },
                    "finishReason": "STOP",
                }
            ],
            "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 2},
        },
    ),
    "responses": Dialect(
        ResponsesParser,
        [{"type": "response.created", "response": {"status": "in_progress"}}],
        lambda text: {"type": "response.output_text.delta", "output_index": 0, "delta": text},
        [{"type": "response.completed", "response": {"status": "completed", "output": []}}],
        "completed",
        lambda error: {"type": "error", "error": error},
        RESPONSE,
    ),
}


@pytest.fixture(params=list(DIALECTS))
def dialect(request: pytest.FixtureRequest) -> Dialect:
    return DIALECTS[request.param]


@SIZES
def test_plain_answer_is_read_in_pieces_of_any_size_and_needs_no_note(dialect: Dialect, size: int) -> None:
    reading = dialect.read(framed(*dialect.events("Grüße, ", "世界 🌍"), *dialect.end), size)

    assert (reading.text, reading.error, reading.replay) == ("Grüße, 世界 🌍", None, {})
    assert reading.finish is not None
    assert (reading.finish.reason, reading.finish.raw) == (FinishReason.STOP, dialect.raw_end)


@pytest.mark.parametrize("dialect", ["openai", "gemini"], indirect=True)
@SIZES
def test_events_without_a_name_need_no_blank_line_between_them(dialect: Dialect, size: int) -> None:
    events = [*dialect.events("a", "b"), *dialect.end]
    stream = b"".join(b"data: " + json.dumps(event).encode() + b"\n" for event in events)

    reading = dialect.read(stream + b"\n", size)

    assert (reading.text, reading.error) == ("ab", None)


@SIZES
def test_comments_crlf_and_no_final_blank_line(dialect: Dialect, size: int) -> None:
    comment = b": PROCESSING\r\n\r\n"
    stream = comment + framed(*dialect.events("yes")).replace(b"\n", b"\r\n")
    stream += comment + framed(*dialect.end).replace(b"\n", b"\r\n").removesuffix(b"\r\n")

    reading = dialect.read(stream, size)

    assert (reading.text, reading.error) == ("yes", None)


@SIZES
def test_plain_json_answer_to_a_streaming_request_is_read(dialect: Dialect, size: int) -> None:
    reading = dialect.read(b"\n" + json.dumps(dialect.whole, indent=1).encode(), size)

    assert (reading.text, reading.usage) == ("whole", {"prompt": 1, "completion": 2})
    assert reading.calls == [{"id": "a", "name": "add", "arguments": '{"x":1}'}]


@pytest.mark.parametrize("size", [1, 4096])
def test_stream_that_ends_in_the_middle_is_dropped(dialect: Dialect, size: int) -> None:
    half = framed(*dialect.events("half"))
    for stream in (
        b"",
        b": hello\n\n",
        b"event: mess",
        half,
        half[:-20],
        json.dumps(dialect.whole)[:18].encode(),
    ):
        assert isinstance(dialect.read(stream, size).error, StreamInterrupted), stream


@pytest.mark.parametrize("stream", [b"<html>no</html>", b"data: {]\n\n", b'data: "text"\n\n', b"Not found\n"])
def test_an_invalid_completion_is_garbled(dialect: Dialect, stream: bytes) -> None:
    assert isinstance(dialect.read(stream).error, MalformedStream)


@pytest.mark.parametrize("broken", [b"a\\ud83d", b"a\xff"], ids=["half a surrogate pair", "invalid UTF-8"])
def test_broken_characters_do_not_break_the_stream(dialect: Dialect, broken: bytes) -> None:
    stream = framed(*dialect.events("HERE", "b"), *dialect.end).replace(b"HERE", broken)

    assert dialect.read(stream).text == "a\ufffdb"


@SIZES
def test_error_after_status_200_keeps_what_came_before(dialect: Dialect, size: int) -> None:
    failure = dialect.failed({"message": "it broke", "code": 500})

    reading = dialect.read(framed(*dialect.events("so far"), failure), size)

    assert (reading.text, reading.finish) == ("so far", None)
    assert isinstance(reading.error, ProviderFailed)
    assert "it broke" in reading.error.message


def test_text_before_an_error_in_the_same_piece_is_given_first(dialect: Dialect) -> None:
    parser = dialect.parser()
    failure = dialect.failed({"message": "broke", "code": 500})

    assert parser.feed(framed(*dialect.events("so far"), failure)) == [TextDelta(text="so far")]
    with pytest.raises(ProviderFailed, match="broke"):
        parser.feed(b": more\n\n")


@pytest.mark.parametrize("size", [1, 4096])
@pytest.mark.parametrize(
    "failure",
    [
        b'event: error\ndata: {"message": "named"}\n\n',
        b'event: error\ndata: {"error": {"message": "named"}}\n\n',
        b'data: {"error": {"message": "named", "code": 500}}\n\n',
        b'{"error": {"message": "named"}}\n',
    ],
    ids=["event of its own", "wrapped", "data", "bare JSON"],
)
def test_error_of_every_shape_is_reported_with_its_message(
    dialect: Dialect, failure: bytes, size: int
) -> None:
    assert "named" in str(dialect.read(failure, size).error)
    after_text = dialect.read(framed(*dialect.events("so far")) + failure, size)
    assert after_text.text == "so far"
    assert "named" in str(after_text.error)


@pytest.mark.parametrize(
    ("name", "error", "kind", "retryable"),
    [
        ("openai", {"message": "slow down", "code": "rate_limit_exceeded"}, RateLimited, True),
        ("openai", {"message": "slow down", "code": 429}, RateLimited, True),
        ("openai", {"message": "no money", "code": 429, "type": "insufficient_quota"}, OutOfCredit, False),
        ("openai", {"message": "This model's maximum context length is 8192 tokens", "code": 400},
         ContextTooLong, False),
        ("openai", {"message": "bad field", "type": "invalid_request_error"}, ProviderRefused, False),
        ("openai", {"message": "overloaded", "type": "overloaded_error"}, Overloaded, True),
        ("openai", "just a sentence", ProviderFailed, True),
        ("anthropic", {"message": "Internal server error", "type": "api_error"}, ProviderFailed, True),
        ("anthropic", {"message": "Overloaded", "type": "overloaded_error"}, Overloaded, True),
        ("anthropic", {"message": "slow down", "type": "rate_limit_error"}, RateLimited, True),
        ("anthropic", {"message": "invalid x-api-key", "type": "authentication_error"}, KeyRefused, False),
        ("anthropic", {"message": "not yours", "type": "permission_error"}, ProviderRefused, False),
        ("anthropic", {"message": "model: claude-9", "type": "not_found_error"}, ProviderRefused, False),
        ("anthropic", {"message": "no credits", "type": "billing_error"}, OutOfCredit, False),
        ("anthropic", {"message": "messages: at least one", "type": "invalid_request_error"},
         ProviderRefused, False),
        ("anthropic", {"message": "prompt is too long: 9 tokens > 8 maximum",
                       "type": "invalid_request_error"}, ContextTooLong, False),
        ("anthropic", {"message": "too many bytes", "type": "request_too_large"}, ContextTooLong, False),
        ("gemini", {"message": "overloaded", "code": 503, "status": "UNAVAILABLE"}, Overloaded, True),
        ("gemini", {"message": "slow down", "code": 429, "status": "RESOURCE_EXHAUSTED"}, RateLimited, True),
        ("gemini", {"message": "slow down", "status": "RESOURCE_EXHAUSTED"}, RateLimited, True),
        ("gemini", {"message": "The input token count (9) exceeds the maximum number of tokens allowed (8).",
                    "code": 400}, ContextTooLong, False),
        ("responses", {"message": "named", "code": "server_error"}, ProviderFailed, True),
    ],
)  # fmt: skip
def test_error_in_the_stream_has_its_class(
    name: str, error: Any, kind: type[ProviderError], retryable: bool
) -> None:
    dialect = DIALECTS[name]

    reading = dialect.read(framed(*dialect.events("so far"), dialect.failed(error)))

    assert reading.text == "so far"
    assert reading.error is not None
    assert (type(reading.error), reading.error.retryable) == (kind, retryable)
    assert (error if isinstance(error, str) else error["message"]) in str(reading.error)
