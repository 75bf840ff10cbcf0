"""What providers may answer that is costly to read: streams of all dialects, errors and lists of models.
`test_event_loop.py` lets a server read them."""

import gzip
import json
from collections.abc import Iterable
from typing import Any

from recorded_upstream import Answer

from luxx.runs.turn.completion import MAX_STEPS

M = 1_000_000
JSON_HEADERS = {"content-type": "application/json"}
GZIPPED = {"content-type": "text/event-stream", "content-encoding": "gzip"}

OPENAI, ANTHROPIC, GEMINI, RESPONSES = "openai_compatible", "anthropic", "gemini", "openai"


def event(content: Any) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


def chunk(delta: dict[str, Any]) -> bytes:
    return event({"choices": [{"index": 0, "delta": delta}]})


def call(index: int, **function: str) -> bytes:
    """A fragment of a tool call."""
    return chunk({"tool_calls": [{"index": index, "id": f"c{index}", "function": function}]})


def part(**content: Any) -> bytes:
    return event({"candidates": [{"content": {"parts": [content]}}]})


def block(**content: Any) -> bytes:
    return event({"type": "content_block_start", "index": 0, "content_block": content})


END = event({"choices": [{"delta": {}, "finish_reason": "stop"}]}) + b"data: [DONE]\n\n"
CALLS_END = event({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}) + b"data: [DONE]\n\n"


def openai_streams() -> Iterable[tuple[str, bytes]]:
    """Streams of the dialect that most servers speak."""
    yield "tags in a text", chunk({"content": "`" + "</think>" * 900_000}) + END
    yield "letters", b"".join(chunk({"content": letter}) for letter in "abcdefgh" * 10_000) + END
    yield "thoughts", b"".join([chunk({"reasoning_content": "a"})] * 80_000) + END
    yield "turns", b"".join([chunk({"reasoning": "a"}) + chunk({"content": "b"})] * 2_000) + END
    yield "marks", chunk({"content": "\u0f71\u0f72" * 900_000}) + END
    yield "growing arguments", call(0, name="f") + call(0, arguments="a") * 60_000 + CALLS_END
    yield (
        "interleaved calls",
        b"".join(call(number % MAX_STEPS, name="f", arguments="{") for number in range(15_000)) + CALLS_END,
    )
    for name, count in (("calls", MAX_STEPS), ("more calls", 3 * MAX_STEPS)):
        yield name, b"".join(call(number, name="f", arguments="{}") for number in range(count)) + CALLS_END
    yield "quotes", b"".join([
        call(0, name="f", arguments="{" + chr(34) * 3_900_000 + "}"), call(0, name="f", arguments="{}"),
    ]) + CALLS_END  # fmt: skip
    yield "escapes", call(0, name="f", arguments='{"a": "' + "\\ud800" + "\\n" * 1_900_000) + CALLS_END
    yield "brackets", call(0, name="f", arguments="[" * 3_900_000) + CALLS_END
    yield "empty calls", b'data: {"choices":[{"delta":{"tool_calls":[' + b"{}," * 2 * M + b"{}]}}]}\n\n"
    yield "details", chunk({"reasoning_details": [{"type": "a", "text": "b"}]}) * 60_000 + END
    yield "citations", event({"citations": [f"https://a.example/{number}" for number in range(90_000)]}) + END
    yield "search", event({
        "citations": [f"https://a.example/{number}" for number in range(20_000)],
        "search_results": [{"url": f"https://b.example/{number}"} for number in range(20_000)],
    }) + END  # fmt: skip


def streams() -> Iterable[tuple[str, str, bytes]]:
    """Name, type of the provider, bytes."""
    for name, stream in openai_streams():
        yield name, OPENAI, stream
    for kind in (OPENAI, ANTHROPIC, GEMINI, RESPONSES):
        yield f"lists of {kind}", kind, b"data: [" + b"[]," * 2 * M + b"1]\n\n"
        yield f"nulls of {kind}", kind, b"data: null\n\n" * 200_000
        yield f"lines of {kind}", kind, b"data: null\n" * 700_000
        yield f"body of {kind}", kind, b'{"a": [' + b"[]," * 3 * M
        yield f"error of {kind}", kind, b"event: error\ndata: " + b"<" * 7 * M + b"\n\n"
        yield f"other text of {kind}", kind, b'{"error": ' + b"<" * 7 * M + b"\n\n"
    paths = [{"jsonPath": "$" + ".a" * 60, "stringValue": "b"}] * 5_000
    yield "paths", GEMINI, part(functionCall={"name": "f", "willContinue": True, "partialArgs": paths})
    long = [{"jsonPath": "['" + "a" * 6 * M, "stringValue": "b"}]
    yield "long path", GEMINI, part(functionCall={"name": "f", "willContinue": True, "partialArgs": long})
    yield "array", GEMINI, b"[" + b'{"candidates":[{"content":{"parts":[{"text":"a"}]}}]},' * 60_000
    yield "array of quotes", GEMINI, b'[{"a":' + b'"",' * 2 * M
    yield "blocks", ANTHROPIC, block(type="a") * 100_000 + event({"type": "message_stop"})
    yield "input", ANTHROPIC, block(type="tool_use", id="a", name="f") + event({
        "type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": "a"},
    }) * 60_000  # fmt: skip
    yield (
        "items",
        RESPONSES,
        b"".join(
            event(
                {
                    "type": "response.output_item.added",
                    "output_index": number,
                    "item": {"type": "function_call"},
                }
            )
            for number in range(60_000)
        ),
    )


def errors() -> Iterable[tuple[str, Answer]]:
    """Answers with a status that says that the request failed."""
    texts = {
        "angles": b"<" * 65_000,
        "key": b'{"error": {"message": "sk-' + b"a" * 65_000 + b'"}}',
        "blanks": b'{"error": {"message": "key' + b" " * 65_000 + b'"}}',
        "brackets": b"[" * 65_000,
        "errors": b'{"error": ' * 6_000,
        "exceed": b'{"error": {"message": "' + b"exceed " * 9_000 + b'"}}',
    }
    for name, text in texts.items():
        yield name, Answer(text, 400, JSON_HEADERS)


def compressed() -> Iterable[tuple[str, Answer]]:
    """Answers of some kilobytes that are many megabytes."""
    once = gzip.compress(event({"choices": []}) * 200_000)
    yield "compressed", Answer(once, headers=GZIPPED)
    yield (
        "compressed twice",
        Answer(gzip.compress(once), headers={**GZIPPED, "content-encoding": "gzip, gzip"}),
    )


ANSWERS: dict[str, tuple[str, bytes | Answer]] = {
    **{name: (kind, stream) for name, kind, stream in streams()},
    "small chunks": (OPENAI, Answer(chunk({"content": "abc"}) * 20_000 + END, piece=1)),
    **{f"refused with {name}": (OPENAI, answer) for name, answer in errors()},
    **{name: (OPENAI, answer) for name, answer in compressed()},
}
"""By name: the type of the provider, and what it answers to a request for a completion. After a stream the
next requests get a short answer."""

NAMES = [{"id": f"{number:05}" + "ab" * 90} for number in range(9_000)]
MODEL_LISTS = {
    "digits": json.dumps({"data": [{"id": "-123" * 500_000 + "x"}]}).encode(),
    "lists": b'{"data": [' + b"[]," * 4 * M + b"1]}",
    "brackets": b"[" * 10 * M,
    "names": json.dumps({"data": NAMES}).encode(),
    "facts": json.dumps({"data": [{**name, "capabilities": ["a"] * 8} for name in NAMES]}).encode(),
}
"""What a provider answers to a request for its list of models, by name."""
