"""A small stream for each way in which Gemini differs from the other dialects, and from itself."""

import json
from typing import Any

import pytest
from wire_reading import Reading, read_in_pieces

from luxx.errors import (
    MalformedStream,
    Overloaded,
    ProviderFailed,
    StreamInterrupted,
)
from luxx.providers.gemini.adapter import GeminiParser
from luxx.wire.turn import FinishReason, TextDelta, Usage, UsageDelta

SIZES = pytest.mark.parametrize("size", [1, 7, 4096])
FRAMINGS = pytest.mark.parametrize("framing", ["events", "array"])


def numbered_parser() -> GeminiParser:
    numbers = iter(range(100))
    return GeminiParser(lambda: f"made-{next(numbers)}")


def chunk(*parts: dict[str, Any], finish: str | None = None, **beside: Any) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    if finish is not None:
        candidate["finishReason"] = finish
    return {"candidates": [candidate], **beside}


def text(said: str, **beside: Any) -> dict[str, Any]:
    return {"text": said, **beside}


def function_call(**fields: Any) -> dict[str, Any]:
    return {"functionCall": fields}


def path_value(path: str, *, more: bool = False, **value: Any) -> dict[str, Any]:
    return {"jsonPath": path, **value, **({"willContinue": True} if more else {})}


def streamed_call(*items: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return function_call(partialArgs=list(items), willContinue=True, **fields)


def events(*chunks: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\r\n\r\n" for chunk in chunks)


def frame_chunks(framing: str, *chunks: Any) -> bytes:
    if framing == "events":
        return events(*chunks)
    return b"[" + b",\r\n".join(json.dumps(chunk, indent=2).encode() for chunk in chunks) + b"\n]\n"


def read(stream: bytes, size: int = 4096) -> Reading:
    return read_in_pieces(numbered_parser, stream, size)


def calls_of(*chunks: Any) -> list[tuple[str, str, Any]]:
    reading = read(events(*chunks, chunk(text(""), finish="STOP")))
    assert reading.error is None
    return [(call["id"], call["name"], json.loads(call["arguments"])) for call in reading.calls]


@SIZES
@FRAMINGS
def test_plain_answer_is_read_in_either_framing_and_pieces_of_any_size(framing: str, size: int) -> None:
    stream = frame_chunks(
        framing,
        chunk(text("I ponder [", thought=True)),
        chunk(text('Grüße, "')),
        chunk(text("世界 🌍\\} "), finish="STOP"),
    )

    reading = read(stream, size)

    assert reading.error is None
    assert (reading.thinking, reading.text) == ("I ponder [", 'Grüße, "世界 🌍\\} ')
    assert reading.finish is not None
    assert (reading.finish.reason, reading.finish.raw) == (FinishReason.STOP, "STOP")
    assert reading.replay == {}


@SIZES
def test_answer_to_a_request_without_stream_is_read(size: int) -> None:
    assert read(json.dumps(chunk(text("whole"), finish="STOP"), indent=1).encode(), size).text == "whole"


def test_unframed_utf_8_and_escapes_in_an_array_are_read() -> None:
    stream = b'\n [ {"candidates":[{"content":{"parts":[{"text":"\\u00fc\\"\xc3\xbc\\\\"}]}}]} , '
    stream += b'{"candidates":[{"finishReason":"STOP"}]}]'

    assert [read(stream, size).text for size in (1, 2, 3, 4096)] == ['ü"ü\\'] * 4


@SIZES
@FRAMINGS
def test_stop_together_with_a_call_finishes_as_tool_calls(framing: str, size: int) -> None:
    stream = frame_chunks(
        framing, chunk(function_call(name="add", args={"x": 1, "y": [2.5, None]}), finish="STOP")
    )

    reading = read(stream, size)

    assert [(call["name"], json.loads(call["arguments"])) for call in reading.calls] == [
        ("add", {"x": 1, "y": [2.5, None]})
    ]
    assert reading.finish is not None
    assert (reading.finish.reason, reading.finish.raw) == (FinishReason.TOOL_CALLS, "STOP")


def test_parallel_calls_get_ids_of_their_own() -> None:
    parts = [
        function_call(name="add", args={"x": 1}),
        function_call(name="add", args={"x": 1}),
        function_call(name="now"),
        function_call(name="now", id="", args=None),
        function_call(name="mul", id="a", args={}),
        function_call(name="mul", id="a", args={}),
    ]

    assert calls_of(chunk(*parts[:2]), chunk(*parts[2:])) == [
        ("call_made0", "add", {"x": 1}),
        ("call_made1", "add", {"x": 1}),
        ("call_made2", "now", {}),
        ("call_made3", "now", {}),
        ("a", "mul", {}),
        ("call_made4", "mul", {}),
    ]


@SIZES
@FRAMINGS
def test_streamed_arguments_are_put_together_from_their_paths(framing: str, size: int) -> None:
    stream = frame_chunks(
        framing,
        chunk({**function_call(name="cook", willContinue=True), "thoughtSignature": "c2ln"}),
        chunk(streamed_call(path_value("$.recipe.steps[0]", stringValue="Boil", more=True))),
        chunk(streamed_call(path_value("$.recipe.steps[0]", stringValue=" it.", more=True))),
        chunk(streamed_call(path_value("$.recipe.steps[0]", stringValue=""))),
        chunk(
            streamed_call(
                path_value("$.recipe.steps[1]", stringValue="Eat."), path_value("$.serves", numberValue=4.0)
            )
        ),
        chunk(
            streamed_call(
                path_value("$.recipe.parts[1].name", stringValue="salt"), path_value("$.hot", boolValue=False)
            )
        ),
        chunk(
            streamed_call(
                path_value("$.recipe.parts[0].grams", numberValue=2.5),
                path_value("$.with", nullValue="NULL_VALUE"),
            )
        ),
        chunk(function_call(), finish="STOP"),
    )

    (call,) = read(stream, size).calls

    assert json.loads(call["arguments"]) == {
        "recipe": {"steps": ["Boil it.", "Eat."], "parts": [{"grams": 2.5}, {"name": "salt"}]},
        "serves": 4,
        "hot": False,
        "with": None,
    }
    assert '"serves":4,' in call["arguments"]
    assert read(stream, size).replay == {"gemini": [{"call": call["id"], "signature": "c2ln"}]}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("$", "scalar"),
        ("$['a b'][\"c.d\"]", {"a b": {"c.d": "v"}}),
        ("$['it\\'s']", {"it's": "v"}),
        ("a.b", {"a": {"b": "v"}}),
        ("$.a[1]", {"a": [None, "v"]}),
        ("$.naïve-key.键", {"naïve-key": {"键": "v"}}),
    ],
)
def test_paths_of_every_spelling_are_followed(path: str, value: Any) -> None:
    ((_, _, arguments),) = calls_of(
        chunk(function_call(name="f", willContinue=True)),
        chunk(streamed_call(path_value(path, stringValue="v"))),
        chunk(function_call()),
    )

    assert arguments == ("v" if value == "scalar" else value)


@pytest.mark.parametrize("path", ["$.a[99999999]", "$.a[", "$..a", "$.a[*]", "$" + ".a" * 1000, None, 7])
def test_path_that_cannot_be_followed_breaks_the_arguments_and_nothing_else(path: Any) -> None:
    item = {"jsonPath": path, "stringValue": "v"}

    reading = read(
        events(chunk(function_call(name="f", partialArgs=[item])), chunk(text("on"), finish="STOP"))
    )

    assert (reading.text, reading.error) == ("on", None)
    with pytest.raises(ValueError, match=r"Expecting|delimiter|Unterminated"):
        json.loads(reading.calls[0]["arguments"])


def test_streamed_calls_follow_one_another_and_may_name_themselves_again() -> None:
    assert calls_of(
        chunk(function_call(name="f", willContinue=True)),
        chunk(streamed_call(path_value("$.x", stringValue="1"), name="f")),
        chunk(function_call(name="f", willContinue=True)),
        chunk(streamed_call(path_value("$.x", stringValue="2"))),
        chunk(function_call()),
        chunk(function_call()),
        chunk(function_call(name="g", partialArgs=[path_value("$.y", numberValue=3)])),
        chunk(function_call(name="g", args={"y": 4})),
    ) == [
        ("call_made0", "f", {"x": "1"}),
        ("call_made1", "f", {"x": "2"}),
        ("call_made2", "g", {"y": 3}),
        ("call_made3", "g", {"y": 4}),
    ]


def test_streamed_calls_with_ids_may_interleave() -> None:
    assert calls_of(
        chunk(function_call(name="f", id="a", willContinue=True)),
        chunk(function_call(name="f", id="b", willContinue=True)),
        chunk(streamed_call(path_value("$.x", stringValue="1"), id="a")),
        chunk(streamed_call(path_value("$.x", stringValue="2"), id="b")),
        chunk(function_call(id="a")),
        chunk(function_call(id="b")),
    ) == [("a", "f", {"x": "1"}), ("b", "f", {"x": "2"})]


def test_streamed_call_may_bring_its_arguments_whole_at_the_end() -> None:
    assert calls_of(
        chunk(function_call(name="f", willContinue=True)), chunk(function_call(args={"x": 1}))
    ) == [("call_made0", "f", {"x": 1})]


@pytest.mark.parametrize("finish", ["MAX_TOKENS", "SAFETY"])
def test_half_a_streamed_call_is_no_valid_call(finish: str) -> None:
    stream = events(
        chunk(function_call(name="rm", willContinue=True)),
        chunk(streamed_call(path_value("$.path", stringValue="/tmp", more=True))),
        chunk(text(""), finish=finish),
    )

    (call,) = read(stream).calls

    assert call["arguments"] == '{"path":"/tmp"'


def test_call_without_a_name_is_still_given() -> None:
    assert calls_of(chunk(function_call(args={"x": 1}))) == [("call_made0", "", {"x": 1})]


def test_usage_is_the_last_ones_with_thoughts_and_tools_counted_in() -> None:
    counts = {"promptTokenCount": 10, "totalTokenCount": 10}
    last = {
        "promptTokenCount": 10,
        "toolUsePromptTokenCount": 5,
        "cachedContentTokenCount": 4,
        "candidatesTokenCount": 3,
        "thoughtsTokenCount": 2,
        "totalTokenCount": 20,
    }

    reading = read(
        events(
            chunk(text("a"), usageMetadata=counts),
            chunk(text("b"), usageMetadata=last),
            chunk(text(""), finish="STOP", usageMetadata={"trafficType": "ON_DEMAND"}),
        )
    )

    assert reading.spent == Usage(
        prompt_tokens=15, completion_tokens=5, total_tokens=20, reasoning_tokens=2, cached_tokens=4
    )


def test_usage_comes_with_the_first_text_and_not_before() -> None:
    parser = numbered_parser()
    usage = {"promptTokenCount": 7}

    assert parser.feed(events(chunk(text(""), usageMetadata=usage))) == []
    assert parser.feed(events(chunk(text("hi")))) == [
        TextDelta(text="hi"),
        UsageDelta(usage=Usage(prompt_tokens=7, total_tokens=7)),
    ]


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("STOP", FinishReason.STOP),
        ("MAX_TOKENS", FinishReason.LENGTH),
        ("SAFETY", FinishReason.CONTENT_FILTER),
        ("RECITATION", FinishReason.CONTENT_FILTER),
        ("IMAGE_SAFETY", FinishReason.CONTENT_FILTER),
        ("OTHER", FinishReason.UNKNOWN),
        ("SOMETHING_NEW", FinishReason.UNKNOWN),
    ],
)
def test_finish_reasons_are_reported_with_the_servers_own_value(finish: str, reason: FinishReason) -> None:
    finish_read = read(events(chunk(text("words"), finish=finish))).finish

    assert finish_read is not None
    assert (finish_read.reason, finish_read.raw) == (reason, finish)


@pytest.mark.parametrize(
    ("finish", "retryable"),
    [("MALFORMED_FUNCTION_CALL", True), ("MISSING_THOUGHT_SIGNATURE", False), ("OTHER", True)],
)
def test_finish_without_an_answer_is_a_retryable_error(finish: str, retryable: bool) -> None:
    broken = chunk(finish=finish, usageMetadata={"promptTokenCount": 5})
    broken["candidates"][0]["finishMessage"] = "Malformed function call: print("
    parser = numbered_parser()

    # No delta precedes it: that would rule out another attempt.
    assert parser.feed(events(broken)) == []
    with pytest.raises(ProviderFailed, match=rf"{finish}: Malformed function call: print\(") as raised:
        parser.close()
    assert raised.value.retryable is retryable


def test_finish_reason_with_every_chunk_ends_nothing_early() -> None:
    reading = read(events(chunk(text("a"), finish="STOP"), chunk(text("b"), finish="STOP")))

    assert (reading.text, reading.finishes) == ("ab", 1)


@SIZES
@FRAMINGS
def test_blocked_prompt_is_refused_in_clear_words(framing: str, size: int) -> None:
    feedback = {"blockReason": "PROHIBITED_CONTENT", "blockReasonMessage": "Not here."}
    stream = frame_chunks(
        framing, {"promptFeedback": feedback, "usageMetadata": {"promptTokenCount": 3, "totalTokenCount": 3}}
    )

    reading = read(stream, size)

    assert reading.finish is not None
    assert (reading.finish.reason, reading.finish.raw) == (FinishReason.CONTENT_FILTER, "PROHIBITED_CONTENT")
    assert reading.finish.notice == (
        "The provider did not pass this on to the model: prohibited content (PROHIBITED_CONTENT). Not here."
    )
    assert reading.usage == {"prompt": 3, "completion": 0}


def test_answer_withheld_whole_is_refused_in_clear_words() -> None:
    reading = read(events({"candidates": [{"finishReason": "SAFETY", "index": 0}]}))

    assert reading.finish is not None
    assert reading.finish.notice == "The provider gave no answer to this: its safety filter (SAFETY)."


def test_answer_cut_by_a_filter_keeps_its_own_words() -> None:
    reading = read(events(chunk(text("so far")), chunk(finish="RECITATION")))

    assert (reading.text, reading.replay) == ("so far", {})


@SIZES
@FRAMINGS
def test_error_after_status_200_keeps_what_came_before(framing: str, size: int) -> None:
    error = {"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}

    reading = read(frame_chunks(framing, chunk(text("so far")), {"error": error}), size)

    assert (reading.text, reading.finish) == ("so far", None)
    assert type(reading.error) is Overloaded
    assert "overloaded" in str(reading.error)


@pytest.mark.parametrize(
    "stream",
    [
        events([{"error": {"code": 500, "message": "named"}}]),
        b'[{"error": {"message": "named", "code": 500}}\n]',
        events(chunk(text("a"))) + b'{"error": {"message": "named"}}\n',
        events(chunk(text("a"))) + b'[{"error": {"message": "named"}}]\n',
        events(chunk(text("a"), finish="STOP", error={"message": "named"})),
    ],
)
def test_error_of_every_shape_is_reported_with_its_message(stream: bytes) -> None:
    for size in (1, 4096):
        assert "named" in str(read(stream, size).error)


@pytest.mark.parametrize(
    "stream",
    [
        frame_chunks("array", chunk(text("half")))[:-5],
        frame_chunks("array", chunk(text("half"), finish="STOP"), chunk(text("more")))[:-20],
        b"[",
    ],
)
def test_stream_that_ends_in_the_middle_is_dropped(stream: bytes) -> None:
    for size in (1, 4096):
        assert isinstance(read(stream, size).error, StreamInterrupted)


@pytest.mark.parametrize(
    "stream",
    [b"[]", b"{}", b'[{"a":]}]'],
)
def test_an_invalid_completion_is_garbled(stream: bytes) -> None:
    assert isinstance(read(stream).error, MalformedStream)


def test_endless_object_is_garbled() -> None:
    assert "more than" in str(read(b'[{"a": "' + b"x" * 9 * 1024 * 1024, 1024 * 1024).error)


def test_array_marks_its_end_and_events_with_done_too() -> None:
    array, marked = numbered_parser(), numbered_parser()
    array.feed(frame_chunks("array", chunk(text("a"), finish="STOP")))
    marked.feed(events(chunk(text("a"), finish="STOP")) + b"data: [DONE]\n\n")

    assert array.is_done
    assert marked.is_done


def test_values_of_wrong_but_convertible_types_are_read() -> None:
    stream = events(
        {"candidates": [{"content": None, "index": "0", "finishReason": None}], "usageMetadata": None},
        {"candidates": [{"content": {"parts": [None, {"text": None}, {"text": "x"}]}, "index": 0.0}]},
        {"candidates": None, "promptFeedback": {}, "usageMetadata": {"promptTokenCount": "4"}},
        chunk(finish="STOP"),
    )

    reading = read(stream)

    assert (reading.error, reading.text, reading.usage) == (None, "x", {"prompt": 4, "completion": 0})


def test_only_the_first_of_several_candidates_is_read() -> None:
    def candidate(index: int, said: str) -> dict[str, Any]:
        return {"index": index, "content": {"parts": [text(said)]}, "finishReason": "STOP"}

    stream = events(
        {"candidates": [candidate(0, "a"), candidate(1, "x")]}, {"candidates": [candidate(1, "y")]}
    )

    assert read(stream).text == "a"


def test_signatures_and_unknown_parts_are_noted_in_order() -> None:
    code = {"executableCode": {"language": "PYTHON", "code": "1+1"}, "thoughtSignature": "YQ=="}
    result = {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "2\n"}}

    reading = read(
        events(
            chunk(text("hm", thought=True)),
            chunk(code),
            chunk(result),
            chunk(text("It ")),
            chunk(text("is")),
            chunk(text(" 2", thoughtSignature="Yg==")),
            chunk(text(".")),
            chunk(function_call(name="f", id="c", args={}) | {"thoughtSignature": "Yw=="}),
            chunk({"thoughtSignature": "ZA=="}, finish="STOP"),
        )
    )

    assert reading.text == "It is 2."
    assert reading.replay == {
        "gemini": [
            {"thought": 2},
            {"part": code},
            {"part": result},
            {"text": 5},
            {"text": 2, "signature": "Yg=="},
            {"text": 1},
            {"call": "c", "signature": "Yw=="},
            {"text": 0, "signature": "ZA=="},
        ]
    }


def test_generated_picture_is_not_stored_in_the_notes() -> None:
    picture = {"inlineData": {"mimeType": "image/png", "data": "A" * 300_000}}

    assert read(events(chunk(picture), chunk(text("There."), finish="STOP"))).replay == {}


def test_grounding_and_unknown_fields_are_ignored() -> None:
    stream = events(
        chunk(text("a"), {"somethingNew": {"x": 1}}, {}, groundingMetadata={"webSearchQueries": ["q"]}),
        chunk(text("b"), finish="STOP", urlContextMetadata={}),
    )

    assert (read(stream).text, read(stream).replay) == ("ab", {})
