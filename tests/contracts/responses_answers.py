"""Random answers of the Responses dialect: their items, and their stream."""

import json
from typing import Any

from histories import names, objects, said
from hypothesis import strategies as st

Json = dict[str, Any]


@st.composite
def answers(draw: st.DrawFn) -> list[Json]:
    """The items of one answer: reasoning, texts with and without a phase, a refusal, hosted tools, calls."""
    return [_item(draw, at) for at in range(draw(st.integers(1, 6)))]


def _item(draw: st.DrawFn, at: int) -> Json:
    match draw(st.sampled_from(["reasoning", "open", "text", "phase", "search", "call", "custom"])):
        case "reasoning":
            summary = [{"type": "summary_text", "text": text} for text in draw(st.lists(said, max_size=2))]
            return {"type": "reasoning", "id": f"rs_{at}", "summary": summary, "encrypted_content": f"g{at}"}
        case "open":
            content = [{"type": "reasoning_text", "text": draw(said)}]
            return {"type": "reasoning", "id": f"rs_{at}", "summary": [], "content": content}
        case "text":
            return _message(at, draw(said))
        case "phase":
            phase = draw(st.sampled_from(["commentary", "final_answer"]))
            return {**_message(at, draw(said)), "phase": phase}
        case "search":
            action = {"type": "search", "query": draw(said)}
            return {"type": "web_search_call", "id": f"ws_{at}", "status": "completed", "action": action}
        case "call":
            call = {"type": "function_call", "id": f"fc_{at}", "call_id": f"call_{at}", "name": draw(names)}
            return {**call, "arguments": json.dumps(draw(objects)), "status": "completed"}
        case _:
            call = {"type": "custom_tool_call", "id": f"ct_{at}", "call_id": f"call_{at}"}
            return {**call, "name": draw(names), "input": draw(said)}


def _message(at: int, text: str) -> Json:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {
        "type": "message",
        "id": f"msg_{at}",
        "role": "assistant",
        "status": "completed",
        "content": content,
    }


def stream_of(items: list[Json], status: str = "completed") -> bytes:
    """The answer as its server streams it."""
    events: list[Json] = [{"type": "response.created", "response": {"status": "in_progress"}}]
    for index, item in enumerate(items):
        hollow = {key: value for key, value in item.items() if key not in ("content", "arguments", "input")}
        if "encrypted_content" in hollow:
            hollow["encrypted_content"] = "another"
        events.append({"type": "response.output_item.added", "output_index": index, "item": hollow})
        events += [{**delta, "output_index": index} for delta in _deltas(item)]
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    response = {"status": status, "output": items, "usage": {"input_tokens": 7, "output_tokens": 9}}
    events.append({"type": f"response.{status}", "response": response})
    return b"".join(event(value) for value in events)


def _deltas(item: Json) -> list[Json]:
    match item["type"]:
        case "reasoning" if "content" in item:
            return [
                {"type": "response.reasoning_text.delta", "content_index": 0, "delta": part["text"]}
                for part in item["content"]
            ]
        case "reasoning":
            kind = "response.reasoning_summary_text.delta"
            return [
                {"type": kind, "summary_index": at, "delta": part["text"]}
                for at, part in enumerate(item["summary"])
            ]
        case "message":
            return [
                {"type": "response.output_text.delta", "content_index": 0, "delta": part["text"]}
                for part in item["content"]
            ]
        case "function_call":
            text = item["arguments"]
            kind = "response.function_call_arguments.delta"
            return [{"type": kind, "delta": part} for part in (text[:3], text[3:]) if part]
        case "custom_tool_call":
            return [{"type": "response.custom_tool_call_input.delta", "delta": item["input"]}]
        case _:
            return []


def event(value: Json) -> bytes:
    return f"event: {value['type']}\ndata: {json.dumps(value)}\n\n".encode()
