"""Answers of `POST /v1/responses`: the whole one, and the events of a stream."""

import time
from typing import Any, Literal

import msgspec

from luxx.api.openai.answer import Answer, AnswerFailure, AnswerReader, CollectedAnswer
from luxx.api.openai.responses_request import ResponsesBody
from luxx.api.openai.speakers import Speakers
from luxx.runs.log.channel import Frame, OpenStep
from luxx.wire.turn import StepType, Usage

_encode = msgspec.json.Encoder().encode
JsonObject = dict[str, Any]


class ResponseObject(msgspec.Struct, frozen=True, kw_only=True):
    """An answer. `id` is `resp_` and the id of the run. `output`: the reasoning, where the model shows it, a
    message, and the calls of the client's tools. The fields from `instructions` on repeat the request."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: str
    error: JsonObject | None = None
    incomplete_details: JsonObject | None = None
    model: str
    output: list[JsonObject] = []
    usage: JsonObject | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: JsonObject = {}
    parallel_tool_calls: bool = True
    previous_response_id: None = None
    reasoning: JsonObject = {}
    store: bool = False
    temperature: float | None = None
    text: JsonObject = {}
    tool_choice: Any = "auto"
    tools: list[JsonObject] = []
    top_p: float | None = None
    truncation: str = "disabled"


def begun_response(body: ResponsesBody, run_id: str) -> ResponseObject:
    """The response of a run that begins."""
    effort = None if body.reasoning is None else body.reasoning.effort
    format_ = None if body.text is None else body.text.format
    return ResponseObject(
        id=f"resp_{run_id}",
        created_at=int(time.time()),
        status="in_progress",
        model=body.model,
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        metadata=body.metadata or {},
        parallel_tool_calls=body.parallel_tool_calls is not False,
        reasoning={"effort": effort, "summary": None},
        temperature=body.temperature,
        text={"format": {"type": "text"} if format_ is None else msgspec.to_builtins(format_)},
        tool_choice=msgspec.to_builtins(body.tool_choice or "auto"),
        tools=[{"strict": False, "parameters": {}, **_without_none(tool)} for tool in body.functions],
    )


def _without_none(tool: msgspec.Struct) -> JsonObject:
    fields: JsonObject = msgspec.to_builtins(tool)
    return {name: value for name, value in fields.items() if value is not None}


def ended_response(begun: ResponseObject, answer: Answer, output: list[JsonObject]) -> ResponseObject:
    """The response of a run that has ended."""
    reasons = {
        "length": "max_output_tokens",
        "content_filter": "content_filter",
        "unknown": "unknown",
        "schema_not_met": "schema_not_met",
    }
    reason = reasons.get(answer.finish)
    return msgspec.structs.replace(
        begun,
        status="completed" if reason is None else "incomplete",
        incomplete_details=None if reason is None else {"reason": reason},
        output=output,
        usage=response_usage(answer.usage),
    )


def response_usage(usage: Usage) -> JsonObject:
    """The usage in the form of responses."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }


def collected_response(body: ResponsesBody, collected: CollectedAnswer, answer: Answer) -> ResponseObject:
    """The whole answer."""
    run_id = collected.run_id
    output = [_reasoning(run_id, collected.thinking, "completed")] if collected.thinking else []
    if collected.text or not collected.calls:
        output.append(_message(run_id, collected.text, "completed"))
    for position, (call_id, name, arguments) in enumerate(collected.calls):
        output.append(_call(run_id, position, call_id, name, arguments, "completed"))
    return ended_response(begun_response(body, run_id), answer, output)


def _message(run_id: str, text: str, status: str) -> JsonObject:
    content = [] if status == "in_progress" else [_part(text)]
    return {
        "id": f"msg_{run_id}",
        "type": "message",
        "status": status,
        "role": "assistant",
        "content": content,
    }


def _reasoning(run_id: str, text: str, status: str) -> JsonObject:
    content = [] if status == "in_progress" else [_reasoning_part(text)]
    return {"id": f"rs_{run_id}", "type": "reasoning", "status": status, "summary": [], "content": content}


def _reasoning_part(text: str) -> JsonObject:
    return {"type": "reasoning_text", "text": text}


def _part(text: str) -> JsonObject:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _call(run_id: str, position: int, call_id: str, name: str, arguments: str, status: str) -> JsonObject:
    return {
        "id": f"fc_{run_id}_{position}",
        "type": "function_call",
        "status": status,
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
    }


class ResponseEvents(AnswerReader):
    """Writes the events of a stream. The items end together, when the answer does."""

    def __init__(
        self, body: ResponsesBody, *, has_calls: bool = False, speakers: Speakers | None = None
    ) -> None:
        super().__init__(has_calls=has_calls, speakers=speakers)
        self._body = body
        self._begun: ResponseObject | None = None
        self._sequence = 0
        self._texts: list[str] = []
        self._text_index = 0
        self._thoughts: list[str] = []
        self._reasoning_index = 0
        self._items = 0
        self._open_calls: list[tuple[int, str, str, list[str]]] = []
        self._text_step: OpenStep | None = None
        self._text_head = b""

    def frames(self, frames: list[Frame]) -> bytes:
        """See `FrameEncoder`. A fragment of the text that grows, the most frequent case, comes first."""
        if len(frames) == 1:
            frame = frames[0]
            step = frame.step
            if step is not None and step is self._text_step and frame.text:
                self._lengths[step.place] += len(frame.text)
                return self._text_delta(frame.text)
        written = super().frames(frames)
        last = frames[-1].step if frames else None
        is_text = last is not None and last.type is StepType.TEXT and not frames[-1].is_reset
        self._text_step = last if is_text and not self.is_over and self._speakers is None else None
        return written

    def on_text(self, text: str) -> bytes:
        head = self._begin()
        if not self._texts:
            self._text_index = self._next_index()
            self._text_head = (
                b"event: response.output_text.delta\ndata: "
                b'{"type":"response.output_text.delta","item_id":"msg_%s","output_index":%d,"content_index":0,'
                b'"logprobs":[],"sequence_number":' % (self.run_id.encode(), self._text_index)
            )
            message = _message(self.run_id, "", "in_progress")
            head += self._write("output_item.added", output_index=self._text_index, item=message)
            head += self._write("content_part.added", **self._text_place(), part=_part(""))
        return head + self._text_delta(text)

    def on_thinking(self, text: str) -> bytes:
        head = self._begin()
        if not self._thoughts:
            self._reasoning_index = self._next_index()
            item = _reasoning(self.run_id, "", "in_progress")
            head += self._write("output_item.added", output_index=self._reasoning_index, item=item)
            head += self._write("content_part.added", **self._reasoning_place(), part=_reasoning_part(""))
        self._thoughts.append(text)
        return head + self._write("reasoning_text.delta", **self._reasoning_place(), delta=text)

    def on_call(self, position: int, call_id: str, name: str) -> bytes:
        index = self._next_index()
        self._open_calls.append((index, call_id, name, []))
        item = _call(self.run_id, position, call_id, name, "", "in_progress")
        return self._begin() + self._write("output_item.added", output_index=index, item=item)

    def on_arguments(self, position: int, text: str) -> bytes:
        index, *_, parts = self._open_calls[position]
        parts.append(text)
        place = {"item_id": f"fc_{self.run_id}_{position}", "output_index": index}
        return self._write("function_call_arguments.delta", **place, delta=text)

    def on_end(self, answer: Answer) -> bytes:
        written = self._begin()
        if not self._texts and not self._open_calls:
            written += self.on_text("")
        output: dict[int, JsonObject] = {}
        if self._thoughts:
            text = "".join(self._thoughts)
            output[self._reasoning_index] = item = _reasoning(self.run_id, text, "completed")
            written += self._write("reasoning_text.done", **self._reasoning_place(), text=text)
            written += self._write("content_part.done", **self._reasoning_place(), part=_reasoning_part(text))
            written += self._write("output_item.done", output_index=self._reasoning_index, item=item)
        if self._texts:
            text = "".join(self._texts)
            output[self._text_index] = message = _message(self.run_id, text, "completed")
            written += self._write("output_text.done", **self._text_place(), text=text, logprobs=[])
            written += self._write("content_part.done", **self._text_place(), part=_part(text))
            written += self._write("output_item.done", output_index=self._text_index, item=message)
        for position, (index, call_id, name, parts) in enumerate(self._open_calls):
            output[index] = item = _call(self.run_id, position, call_id, name, "".join(parts), "completed")
            place = {"item_id": item["id"], "output_index": index}
            done = {"name": name, "arguments": item["arguments"]}
            written += self._write("function_call_arguments.done", **place, **done)
            written += self._write("output_item.done", output_index=index, item=item)
        assert self._begun is not None
        response = ended_response(self._begun, answer, [output[index] for index in sorted(output)])
        return written + self._write(response.status, response=response)

    def on_failure(self, failure: AnswerFailure) -> bytes:
        written = self._begin()
        assert self._begun is not None
        error = {"code": failure.kind, "message": failure.message}
        response = msgspec.structs.replace(self._begun, status="failed", error=error)
        return written + self._write("failed", response=response)

    def _begin(self) -> bytes:
        if self._begun is not None:
            return b""
        self._begun = begun_response(self._body, self.run_id)
        return b"".join(self._write(name, response=self._begun) for name in ("created", "in_progress"))

    def _text_delta(self, text: str) -> bytes:
        self._texts.append(text)
        sequence, self._sequence = self._sequence, self._sequence + 1
        return b'%s%d,"delta":%s}\n\n' % (self._text_head, sequence, _encode(text))

    def _next_index(self) -> int:
        index, self._items = self._items, self._items + 1
        return index

    def _text_place(self) -> JsonObject:
        return {"item_id": f"msg_{self.run_id}", "output_index": self._text_index, "content_index": 0}

    def _reasoning_place(self) -> JsonObject:
        return {"item_id": f"rs_{self.run_id}", "output_index": self._reasoning_index, "content_index": 0}

    def _write(self, name: str, /, **fields: Any) -> bytes:
        type_ = f"response.{name}"
        sequence, self._sequence = self._sequence, self._sequence + 1
        event = {"type": type_, "sequence_number": sequence, **fields}
        return b"event: %s\ndata: %s\n\n" % (type_.encode(), _encode(event))
