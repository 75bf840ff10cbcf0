"""Random answers of the Anthropic dialect: their blocks, their stream, and their form in the next request."""

import json
from typing import Any, NamedTuple

from histories import names, objects, said, texts
from hypothesis import strategies as st

Json = dict[str, Any]


class AnswerBlock(NamedTuple):
    """One content block: its start, its deltas, and its form in the next request."""

    start: Json
    deltas: list[Json]
    whole: Json


@st.composite
def blocks(draw: st.DrawFn, at: int) -> list[AnswerBlock]:
    """A block of any kind; a server tool's call comes with its result."""
    text, key = draw(said), f"{draw(texts)}={at}"
    match draw(st.sampled_from(["text", "cited", "thinking", "redacted", "call", "search"])):
        case "text":
            whole = {"type": "text", "text": text}
            return [AnswerBlock({**whole, "text": ""}, [{"type": "text_delta", "text": text}], whole)]
        case "cited":
            citation = {
                "type": "web_search_result_location", "url": "https://a.example", "title": "A",
                "cited_text": text, "encrypted_index": key,
            }  # fmt: skip
            whole = {"type": "text", "text": text, "citations": [citation]}
            deltas = [{"type": "citations_delta", "citation": citation}, {"type": "text_delta", "text": text}]
            return [AnswerBlock({"type": "text", "text": "", "citations": []}, deltas, whole)]
        case "thinking":
            whole = {"type": "thinking", "thinking": text, "signature": key}
            deltas = [
                {"type": "thinking_delta", "thinking": text},
                {"type": "signature_delta", "signature": key},
            ]
            return [AnswerBlock({"type": "thinking", "thinking": "", "signature": ""}, deltas, whole)]
        case "redacted":
            whole = {"type": "redacted_thinking", "data": key}
            return [AnswerBlock(whole, [], whole)]
        case "call":
            return [_call("tool_use", f"toolu_{at}", draw(names), draw(objects))]
        case _:
            result = {
                "type": "web_search_tool_result",
                "tool_use_id": f"srvtoolu_{at}",
                "content": [
                    {
                        "type": "web_search_result", "url": "https://a.example", "title": "A",
                        "encrypted_content": key, "page_age": None,
                    }
                ],
            }  # fmt: skip
            called = _call("server_tool_use", f"srvtoolu_{at}", "web_search", draw(objects))
            return [called, AnswerBlock(result, [], result)]


def _call(kind: str, call_id: str, name: str, given_input: Json) -> AnswerBlock:
    whole = {"type": kind, "id": call_id, "name": name, "input": given_input}
    written = json.dumps(given_input) if given_input else ""
    return AnswerBlock({**whole, "input": {}}, [{"type": "input_json_delta", "partial_json": written}], whole)


@st.composite
def answers(draw: st.DrawFn) -> list[AnswerBlock]:
    return [part for at in range(draw(st.integers(1, 6))) for part in draw(blocks(at))]


def stream_of(
    answer: list[AnswerBlock], stop_reason: str = "end_turn", model: str = "claude-sonnet-4-5-20250929"
) -> bytes:
    """The answer as its server streams it."""
    usage = {"input_tokens": 7, "output_tokens": 1}
    events: list[Json] = [
        {"type": "message_start", "message": {"model": model, "content": [], "usage": usage}}
    ]
    for index, part in enumerate(answer):
        events.append({"type": "content_block_start", "index": index, "content_block": part.start})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in part.deltas]
        events.append({"type": "content_block_stop", "index": index})
    end = {"stop_reason": stop_reason, "stop_sequence": None}
    events.append({"type": "message_delta", "delta": end, "usage": {"output_tokens": 9}})
    events.append({"type": "message_stop"})
    return b"".join(event(value) for value in events)


def event(value: Json) -> bytes:
    return f"event: {value['type']}\ndata: {json.dumps(value)}\n\n".encode()
