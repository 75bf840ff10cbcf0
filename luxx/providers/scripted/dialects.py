"""Writes the dialects for the scripted provider: streams, complete bodies and errors."""

from dataclasses import dataclass, field
from typing import Any, assert_never

import msgspec

from luxx.providers.scripted.responses import ResponsesWriter, responses_body
from luxx.providers.scripted.script import (
    Call,
    Counts,
    DialectEvent,
    DialectWriter,
    Fail,
    Finish,
    ReplyEvent,
    ScriptedRequest,
    Text,
    Thinking,
    arguments_text,
    complete_reply,
)

_ANTHROPIC_REASONS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}
_GEMINI_REASONS = {"stop": "STOP", "tool_calls": "STOP", "length": "MAX_TOKENS"}


def dialect_writer_for(request: ScriptedRequest, *, is_crlf: bool) -> DialectWriter:
    line = b"\r\n" if is_crlf else b"\n"
    match request.dialect:
        case "openai":
            return OpenAIWriter(request.model, line)
        case "openai_responses":
            return ResponsesWriter(request.model, line)
        case "anthropic":
            return AnthropicWriter(request.model, line)
        case _:
            return GeminiWriter(request.model, line, is_array=request.dialect == "gemini_array")


def error_body(request: ScriptedRequest | None, status: int, message: str) -> dict[str, Any]:
    """The body of an HTTP error in the request's dialect."""
    match request.dialect if request is not None else "openai":
        case "openai" | "openai_responses":
            return {"error": {"message": message, "type": "scripted", "code": status}}
        case "anthropic":
            return {"type": "error", "error": {"type": "scripted", "message": message}}
        case _:
            return {"error": {"code": status, "message": message, "status": "SCRIPTED"}}


class OpenAIWriter:
    def __init__(self, model: str, line: bytes) -> None:
        self._head = {"id": "chatcmpl-scripted", "object": "chat.completion.chunk", "model": model}
        self._line = line
        self._calls = 0

    def begin(self) -> list[Any]:
        return [self._chunk({"role": "assistant", "content": ""})]

    def event(self, event: DialectEvent) -> list[Any]:
        match event:
            case Thinking():
                return [self._chunk({"reasoning_content": event.text})]
            case Text():
                return [self._chunk({"content": event.text})]
            case Call():
                return [self._chunk({"tool_calls": [fragment]}) for fragment in self._fragments(event)]
            case Counts():
                return [{**self._head, "choices": [], "usage": _openai_usage(event)}]
            case Finish():
                return [self._chunk({}, finish=event.reason)]
            case Fail():
                return [{"error": {"message": event.message, "type": event.kind, "code": event.code}}]
            case _:
                assert_never(event)

    def end(self) -> list[Any]:
        return ["[DONE]"]

    def frame(self, value: Any) -> bytes:
        data = value.encode() if isinstance(value, str) else msgspec.json.encode(value)
        return b"data: " + data + self._line * 2

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {**self._head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    def _fragments(self, event: Call) -> list[dict[str, Any]]:
        index, text = self._calls, arguments_text(event)
        self._calls += 1
        half = len(text) // 2
        named = {
            "index": index,
            "id": _call_id(event, index),
            "type": "function",
            "function": {"name": event.name, "arguments": ""},
        }
        parts = [{"index": index, "function": {"arguments": part}} for part in (text[:half], text[half:])]
        return [named, *parts]


@dataclass(eq=False)
class AnthropicWriter:
    _model: str
    _line: bytes
    _blocks: int = 0
    _calls: int = 0
    _open: str = ""
    _usage: Counts = field(default_factory=Counts)
    _reason: str = "end_turn"

    def begin(self) -> list[Any]:
        message: dict[str, Any] = {
            "id": "msg_scripted",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 0, "output_tokens": 0},
        }
        return [{"type": "message_start", "message": message}, {"type": "ping"}]

    def event(self, event: DialectEvent) -> list[Any]:
        match event:
            case Thinking():
                block = {"type": "thinking", "thinking": "", "signature": ""}
                return self._append_delta(block, {"type": "thinking_delta", "thinking": event.text})
            case Text():
                return self._append_delta(
                    {"type": "text", "text": ""}, {"type": "text_delta", "text": event.text}
                )
            case Call():
                return self._call(event)
            case Counts():
                self._usage = event
                return []
            case Finish():
                self._reason = _ANTHROPIC_REASONS.get(event.reason, event.reason)
                return []
            case Fail():
                return [{"type": "error", "error": {"type": event.kind, "message": event.message}}]
            case _:
                assert_never(event)

    def end(self) -> list[Any]:
        usage = _anthropic_usage(self._usage)
        delta = {"stop_reason": self._reason, "stop_sequence": None}
        return [
            *self._close_block(),
            {"type": "message_delta", "delta": delta, "usage": usage},
            {"type": "message_stop"},
        ]

    def frame(self, value: Any) -> bytes:
        head = b"event: " + str(value["type"]).encode() + self._line
        return head + b"data: " + msgspec.json.encode(value) + self._line * 2

    def _call(self, event: Call) -> list[Any]:
        text = arguments_text(event)
        block: dict[str, Any] = {
            "type": "tool_use",
            "id": _call_id(event, self._calls),
            "name": event.name,
            "input": {},
        }
        self._calls += 1
        half = len(text) // 2
        opened = self._close_block()
        self._open = "tool_use"
        opened.append({"type": "content_block_start", "index": self._blocks, "content_block": block})
        parts = [
            self._delta({"type": "input_json_delta", "partial_json": p}) for p in (text[:half], text[half:])
        ]
        return [*opened, *parts, *self._close_block()]

    def _append_delta(self, block: dict[str, Any], delta: dict[str, Any]) -> list[Any]:
        opened: list[Any] = []
        if self._open != block["type"]:
            opened = self._close_block()
            self._open = str(block["type"])
            opened.append({"type": "content_block_start", "index": self._blocks, "content_block": block})
        return [*opened, self._delta(delta)]

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": self._blocks, "delta": delta}

    def _close_block(self) -> list[Any]:
        if not self._open:
            return []
        closing: list[Any] = []
        if self._open == "thinking":
            closing.append(self._delta({"type": "signature_delta", "signature": "scripted-signature"}))
        closing.append({"type": "content_block_stop", "index": self._blocks})
        self._open = ""
        self._blocks += 1
        return closing


@dataclass(eq=False)
class GeminiWriter:
    """With `is_array`, it writes one JSON array instead of events, like the API without `alt=sse`."""

    _model: str
    _line: bytes
    is_array: bool
    _has_item: bool = False
    _usage: Counts = field(default_factory=Counts)
    _reason: str = "STOP"

    def begin(self) -> list[Any]:
        return []

    def event(self, event: DialectEvent) -> list[Any]:
        match event:
            case Thinking():
                return [self._chunk({"text": event.text, "thought": True})]
            case Text():
                return [self._chunk({"text": event.text})]
            case Call():
                arguments = event.arguments if isinstance(event.arguments, dict) else {}
                call = {"name": event.name, "args": arguments, **({"id": event.id} if event.id else {})}
                return [self._chunk({"functionCall": call, "thoughtSignature": "c2NyaXB0ZWQ="})]
            case Counts():
                self._usage = event
                return []
            case Finish():
                self._reason = _GEMINI_REASONS.get(event.reason, event.reason)
                return []
            case Fail():
                code = event.code if isinstance(event.code, int) else 500
                return [{"error": {"code": code, "message": event.message, "status": event.kind}}]
            case _:
                assert_never(event)

    def end(self) -> list[Any]:
        last = self._chunk({"text": ""})
        last["candidates"][0]["finishReason"] = self._reason
        last["usageMetadata"] = _gemini_usage(self._usage)
        return [last, "]"] if self.is_array else [last]

    def frame(self, value: Any) -> bytes:
        if not self.is_array:
            return b"data: " + msgspec.json.encode(value) + self._line * 2
        if value == "]":
            return b"]"
        start = b"," + self._line if self._has_item else b"["
        self._has_item = True
        return start + msgspec.json.encode(value)

    def _chunk(self, part: dict[str, Any]) -> dict[str, Any]:
        content = {"role": "model", "parts": [part]}
        return {"candidates": [{"content": content, "index": 0}], "modelVersion": self._model}


def _openai_usage(counts: Counts) -> dict[str, Any]:
    return {
        "prompt_tokens": counts.prompt,
        "completion_tokens": counts.completion,
        "total_tokens": counts.prompt + counts.completion,
        "prompt_tokens_details": {"cached_tokens": counts.cached},
        "completion_tokens_details": {"reasoning_tokens": counts.reasoning},
    }


def _anthropic_usage(counts: Counts) -> dict[str, Any]:
    """The dialect counts the tokens of the cache beside those of the input."""
    cache = {"cache_read_input_tokens": counts.cached, "cache_creation_input_tokens": counts.cache_write}
    return {
        "input_tokens": counts.prompt - counts.cached - counts.cache_write,
        "output_tokens": counts.completion,
        **(cache if any(cache.values()) else {}),
    }


def _gemini_usage(counts: Counts) -> dict[str, Any]:
    return {
        "promptTokenCount": counts.prompt,
        "candidatesTokenCount": counts.completion,
        "totalTokenCount": counts.prompt + counts.completion,
        **({"cachedContentTokenCount": counts.cached} if counts.cached else {}),
    }


def whole_body(request: ScriptedRequest, reply: list[ReplyEvent]) -> dict[str, Any]:
    """The JSON body of a reply that does not stream."""
    events = complete_reply(reply)
    for event in events:
        if isinstance(event, Fail):
            return error_body(request, 500, event.message)
    match request.dialect:
        case "openai":
            return _openai(request, events)
        case "openai_responses":
            return responses_body(request.model, events)
        case "anthropic":
            return _anthropic(request, events)
        case _:
            return _gemini(request, events)


def _openai(request: ScriptedRequest, events: list[ReplyEvent]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": _text(events) or None}
    if thinking := _thinking(events):
        message["reasoning_content"] = thinking
    calls = [
        {
            "id": _call_id(call, number),
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
        "model": request.model,
        "choices": [{"index": 0, "message": message, "finish_reason": _reason(events)}],
        "usage": _openai_usage(_counts(events)),
    }


def _anthropic(request: ScriptedRequest, events: list[ReplyEvent]) -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    if thinking := _thinking(events):
        content.append({"type": "thinking", "thinking": thinking, "signature": "scripted-signature"})
    if text := _text(events):
        content.append({"type": "text", "text": text})
    for number, call in enumerate(_calls(events)):
        arguments = call.arguments if isinstance(call.arguments, dict) else {}
        content.append(
            {"type": "tool_use", "id": _call_id(call, number), "name": call.name, "input": arguments}
        )
    return {
        "id": "msg_scripted",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": content,
        "stop_reason": _ANTHROPIC_REASONS.get(_reason(events), "end_turn"),
        "usage": _anthropic_usage(_counts(events)),
    }


def _gemini(request: ScriptedRequest, events: list[ReplyEvent]) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    if thinking := _thinking(events):
        parts.append({"text": thinking, "thought": True})
    if text := _text(events):
        parts.append({"text": text})
    for call in _calls(events):
        arguments = call.arguments if isinstance(call.arguments, dict) else {}
        parts.append({"functionCall": {"name": call.name, "args": arguments}})
    reason = "MAX_TOKENS" if _reason(events) == "length" else "STOP"
    content = {"role": "model", "parts": parts}
    return {
        "candidates": [{"content": content, "finishReason": reason, "index": 0}],
        "usageMetadata": _gemini_usage(_counts(events)),
        "modelVersion": request.model,
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


def _call_id(event: Call, number: int) -> str:
    return event.id or f"call_{number}"
