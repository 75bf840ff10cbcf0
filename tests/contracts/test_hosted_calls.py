"""Tools that run at Anthropic and Gemini are calls that are only shown, as those of the Responses API are."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from anthropic_answers import event
from wire_reading import read_in_pieces

from luxx.providers.adapter import StreamParser
from luxx.providers.anthropic.adapter import AnthropicParser
from luxx.providers.gemini.adapter import GeminiParser


def hosted(parser: Callable[[], StreamParser], stream: bytes, size: int) -> list[tuple[str, str, Any]]:
    reading = read_in_pieces(parser, stream, size)
    assert (reading.error, reading.calls) == (None, [])
    return [(call.call_id, call.name, json.loads(call.arguments)) for call in reading.hosted]


@pytest.mark.parametrize("size", [1, 7, 4096])
@pytest.mark.parametrize("kind", ["server_tool_use", "mcp_tool_use"])
def test_anthropics_own_tools(size: int, kind: str) -> None:
    block: dict[str, Any] = {"type": kind, "id": "srvtoolu_1", "name": "web_search", "input": {}}
    delta = {"type": "input_json_delta", "partial_json": '{"query": "leeks"}'}
    result: dict[str, Any] = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"model": "m", "content": []}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": result},
        {"type": "content_block_stop", "index": 1},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    ]
    stream = b"".join(event(each) for each in events)
    assert hosted(AnthropicParser, stream, size) == [("srvtoolu_1", "web_search", {"query": "leeks"})]


@pytest.mark.parametrize("size", [7, 4096])
def test_geminis_own_tools(size: int) -> None:
    code = {"executableCode": {"id": "c1", "language": "PYTHON", "code": "print(1)"}}
    tool = {"toolCall": {"id": "t1", "toolType": "URL_CONTEXT", "args": {"urls": ["http://a.example"]}}}
    found = {"webSearchQueries": ["leeks", "leeks in winter"]}
    chunks: list[dict[str, Any]] = [
        {"candidates": [{"content": {"parts": [code, tool]}}]},
        {"candidates": [{"content": {"parts": [{"text": "In March."}]}, "groundingMetadata": found}]},
        {"candidates": [{"content": {"parts": []}, "finishReason": "STOP", "groundingMetadata": found}]},
    ]
    stream = b"".join(b"data: " + json.dumps(each).encode() + b"\r\n\r\n" for each in chunks)
    assert hosted(GeminiParser, stream, size) == [
        ("c1", "code_execution", {"language": "PYTHON", "code": "print(1)"}),
        ("t1", "url_context", {"urls": ["http://a.example"]}),
        ("", "google_search", {"queries": ["leeks", "leeks in winter"]}),
    ]
