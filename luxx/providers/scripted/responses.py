"""Writes the Responses dialect for the scripted provider: streams of typed events, and complete bodies."""

from dataclasses import dataclass, field
from typing import Any, assert_never

import msgspec

from luxx.providers.scripted.script import (
    Call,
    Counts,
    DialectEvent,
    Fail,
    Finish,
    ReplyEvent,
    Text,
    Thinking,
    arguments_text,
)

ENCRYPTED = "scripted-reasoning"
"""The encrypted reasoning of every reasoning item; the one in the item's first event is another."""

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}

Json = dict[str, Any]


@dataclass(eq=False)
class ResponsesWriter:
    """Text, thinking and calls become items; an item ends where another kind of content begins."""

    _model: str
    _line: bytes
    _output: list[Json] = field(default_factory=list[Json])
    _open: Json | None = None
    _text: list[str] = field(default_factory=list[str])
    _usage: Counts = field(default_factory=Counts)
    _reason: str = "stop"
    _sequence: int = 0

    def begin(self) -> list[Any]:
        response = _response(self._model, [], "in_progress")
        return [
            {"type": "response.created", "response": response},
            {"type": "response.in_progress", "response": response},
        ]

    def event(self, event: DialectEvent) -> list[Any]:
        match event:
            case Thinking():
                return [*self._begin_item("reasoning"), self._delta(event.text)]
            case Text():
                return [*self._begin_item("message"), self._delta(event.text)]
            case Call():
                return [*self._close_item(), *self._call(event)]
            case Counts():
                self._usage = event
                return []
            case Finish():
                self._reason = event.reason
                return []
            case Fail():
                error = {"type": event.kind, "code": str(event.code), "message": event.message, "param": None}
                failed = _response(self._model, self._output, "failed")
                failed["error"] = {"code": event.kind, "message": event.message}
                return [
                    {"type": "error", "error": error},
                    {"type": "response.failed", "response": failed},
                ]
            case _:
                assert_never(event)

    def end(self) -> list[Any]:
        closing = self._close_item()
        response = _finished(self._model, self._output, self._reason, self._usage)
        return [*closing, {"type": f"response.{response['status']}", "response": response}]

    def frame(self, value: Any) -> bytes:
        head = b"event: " + str(value["type"]).encode() + self._line
        numbered = {**value, "sequence_number": self._sequence}
        self._sequence += 1
        return head + b"data: " + msgspec.json.encode(numbered) + self._line * 2

    def _begin_item(self, kind: str) -> list[Any]:
        if self._open is not None and self._open["type"] == kind:
            return []
        closing = self._close_item()
        item = _item(kind, len(self._output))
        self._open, self._text = item, []
        first = {**item, "status": "in_progress"} if kind == "message" else item
        if kind == "reasoning":
            first = {**item, "encrypted_content": "incomplete"}
        return [*closing, self._of_item("response.output_item.added", item=first), self._part("added", "")]

    def _delta(self, text: str) -> Json:
        self._text.append(text)
        if self._open is not None and self._open["type"] == "reasoning":
            return self._of_part("response.reasoning_summary_text.delta", delta=text)
        return self._of_part("response.output_text.delta", delta=text, logprobs=[])

    def _close_item(self) -> list[Any]:
        item = self._open
        if item is None:
            return []
        text, index = "".join(self._text), len(self._output)
        whole = _with_text(item, text)
        is_reasoning = item["type"] == "reasoning"
        kind = "reasoning_summary_text" if is_reasoning else "output_text"
        closing = [
            self._of_part(f"response.{kind}.done", text=text, **({} if is_reasoning else {"logprobs": []})),
            self._part("done", text),
            {"type": "response.output_item.done", "output_index": index, "item": whole},
        ]
        self._open = None
        self._output.append(whole)
        return closing

    def _call(self, event: Call) -> list[Any]:
        text = arguments_text(event)
        calls = sum(item["type"] == "function_call" for item in self._output)
        item = _call_item(event, calls, len(self._output), text)
        half = len(text) // 2
        begun = {**item, "arguments": "", "status": "in_progress"}
        place = {"output_index": len(self._output), "item_id": item["id"]}
        kind = "response.function_call_arguments"
        self._output.append(item)
        return [
            {"type": "response.output_item.added", "output_index": place["output_index"], "item": begun},
            *({"type": f"{kind}.delta", **place, "delta": part} for part in (text[:half], text[half:])),
            {"type": f"{kind}.done", **place, "name": event.name, "arguments": text},
            {"type": "response.output_item.done", "output_index": place["output_index"], "item": item},
        ]

    def _part(self, verb: str, text: str) -> Json:
        assert self._open is not None
        if self._open["type"] == "reasoning":
            part: Json = {"type": "summary_text", "text": text}
            return self._of_part(f"response.reasoning_summary_part.{verb}", part=part)
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        return self._of_part(f"response.content_part.{verb}", part=part)

    def _of_part(self, kind: str, **fields: Any) -> Json:
        assert self._open is not None
        index = "summary_index" if self._open["type"] == "reasoning" else "content_index"
        return self._of_item(kind, item_id=self._open["id"], **{index: 0}, **fields)

    def _of_item(self, kind: str, **fields: Any) -> Json:
        return {"type": kind, "output_index": len(self._output), **fields}


def responses_body(model: str, events: list[ReplyEvent]) -> Json:
    """The body of a reply that does not stream."""
    output: list[Json] = []
    for event in events:
        if isinstance(event, Thinking | Text):
            kind = "message" if isinstance(event, Text) else "reasoning"
            if output and output[-1]["type"] == kind:
                output[-1] = _with_text(output[-1], _text_of(output[-1]) + event.text)
            else:
                output.append(_with_text(_item(kind, len(output)), event.text))
        elif isinstance(event, Call):
            calls = sum(item["type"] == "function_call" for item in output)
            output.append(_call_item(event, calls, len(output), arguments_text(event)))
    counts = next((event for event in events if isinstance(event, Counts)), Counts())
    reason = next((event.reason for event in events if isinstance(event, Finish)), "stop")
    return _finished(model, output, reason, counts)


def _item(kind: str, index: int) -> Json:
    if kind == "reasoning":
        return {"type": "reasoning", "id": f"rs_{index}", "summary": [], "encrypted_content": ENCRYPTED}
    return {
        "type": "message",
        "id": f"msg_{index}",
        "role": "assistant",
        "status": "completed",
        "content": [],
    }


def _with_text(item: Json, text: str) -> Json:
    if item["type"] == "reasoning":
        return {**item, "summary": [{"type": "summary_text", "text": text}]}
    return {**item, "content": [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]}


def _text_of(item: Json) -> str:
    return "".join(part["text"] for part in item["summary" if item["type"] == "reasoning" else "content"])


def _call_item(call: Call, number: int, index: int, arguments: str) -> Json:
    return {
        "type": "function_call",
        "id": f"fc_{index}",
        "call_id": call.id or f"call_{number}",
        "name": call.name,
        "arguments": arguments,
        "status": "completed",
    }


def _finished(model: str, output: list[Json], reason: str, counts: Counts) -> Json:
    incomplete = _INCOMPLETE.get(reason)
    response = _response(model, output, "completed" if incomplete is None else "incomplete")
    if incomplete is not None:
        response["incomplete_details"] = {"reason": incomplete}
    response["usage"] = {
        "input_tokens": counts.prompt,
        "input_tokens_details": {"cached_tokens": counts.cached, "cache_write_tokens": counts.cache_write},
        "output_tokens": counts.completion,
        "output_tokens_details": {"reasoning_tokens": counts.reasoning},
        "total_tokens": counts.prompt + counts.completion,
    }
    return response


def _response(model: str, output: list[Json], status: str) -> Json:
    return {
        "id": "resp_scripted",
        "object": "response",
        "created_at": 0,
        "status": status,
        "model": model,
        "output": list(output),
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "usage": None,
        "store": False,
    }
