"""Whole answers of the scripted provider, for requests that do not stream, in the three dialects."""

from typing import Any

from luxx.providers.scripted_dialects import arguments_text, call_id, complete_reply
from luxx.providers.scripted_script import Asked, Call, Counts, Fail, Finish, ReplyEvent, Text, Thinking
from luxx.providers.scripted_speakers import error_body, openai_usage


def whole_body(asked: Asked, reply: list[ReplyEvent]) -> dict[str, Any]:
    """The JSON a server answers when it was not asked to stream."""
    events = complete_reply(reply)
    for event in events:
        if isinstance(event, Fail):
            return error_body(asked, 500, event.message)
    match asked.dialect:
        case "openai":
            return _openai(asked, events)
        case "anthropic":
            return _anthropic(asked, events)
        case _:
            return _gemini(asked, events)


def _openai(asked: Asked, events: list[ReplyEvent]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": _text(events) or None}
    if thinking := _thinking(events):
        message["reasoning_content"] = thinking
    calls = [
        {
            "id": call_id(call, number),
            "type": "function",
            "function": {"name": call.name, "arguments": arguments_text(call)},
        }
        for number, call in enumerate(_calls(events))
    ]
    if calls:
        message["tool_calls"] = calls
    return {
        "id": "chatcmpl-scripted",
        "object": "chat.completion",
        "model": asked.model,
        "choices": [{"index": 0, "message": message, "finish_reason": _reason(events)}],
        "usage": openai_usage(_counts(events)),
    }


def _anthropic(asked: Asked, events: list[ReplyEvent]) -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    if thinking := _thinking(events):
        content.append({"type": "thinking", "thinking": thinking, "signature": "scripted-signature"})
    if text := _text(events):
        content.append({"type": "text", "text": text})
    for number, call in enumerate(_calls(events)):
        arguments = call.arguments if isinstance(call.arguments, dict) else {}
        content.append(
            {"type": "tool_use", "id": call_id(call, number), "name": call.name, "input": arguments}
        )
    counts = _counts(events)
    reasons = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}
    return {
        "id": "msg_scripted",
        "type": "message",
        "role": "assistant",
        "model": asked.model,
        "content": content,
        "stop_reason": reasons.get(_reason(events), "end_turn"),
        "usage": {"input_tokens": counts.prompt, "output_tokens": counts.completion},
    }


def _gemini(asked: Asked, events: list[ReplyEvent]) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    if thinking := _thinking(events):
        parts.append({"text": thinking, "thought": True})
    if text := _text(events):
        parts.append({"text": text})
    for call in _calls(events):
        arguments = call.arguments if isinstance(call.arguments, dict) else {}
        parts.append({"functionCall": {"name": call.name, "args": arguments}})
    counts = _counts(events)
    reason = "MAX_TOKENS" if _reason(events) == "length" else "STOP"
    content = {"role": "model", "parts": parts}
    return {
        "candidates": [{"content": content, "finishReason": reason, "index": 0}],
        "usageMetadata": {
            "promptTokenCount": counts.prompt,
            "candidatesTokenCount": counts.completion,
            "totalTokenCount": counts.prompt + counts.completion,
        },
        "modelVersion": asked.model,
    }


def _text(events: list[ReplyEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, Text))


def _thinking(events: list[ReplyEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, Thinking))


def _calls(events: list[ReplyEvent]) -> list[Call]:
    return [event for event in events if isinstance(event, Call)]


def _counts(events: list[ReplyEvent]) -> Counts:
    return next((event for event in events if isinstance(event, Counts)), Counts())


def _reason(events: list[ReplyEvent]) -> str:
    return next((event.reason for event in events if isinstance(event, Finish)), "stop")
