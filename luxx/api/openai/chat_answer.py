"""Answers of `POST /v1/chat/completions`: the whole one, and the chunks of a stream.

A chunk is made for every token, so its fixed parts are encoded once.
"""

import time
from typing import Any, Literal

import msgspec

from luxx.api.http.envelope import openai_failure
from luxx.api.openai.answer import Answer, AnswerFailure, AnswerReader, CollectedAnswer, chat_usage
from luxx.api.openai.speakers import Speakers
from luxx.runs.log.channel import Frame, OpenStep
from luxx.wire.run import Run
from luxx.wire.turn import StepType

_encode = msgspec.json.Encoder().encode
DONE = b"data: [DONE]\n\n"


class ChatCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of one of the client's tools: its `function` has `name` and `arguments`, which is JSON text."""

    id: str
    type: Literal["function"] = "function"
    function: dict[str, str]


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. `reasoning_content`: the model's thinking, where it shows it. `reasoning_details`: the same
    as its server wants it back, to be sent with the message."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    tool_calls: list[ChatCall] | msgspec.UnsetType = msgspec.UNSET
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    reasoning_details: list[dict[str, Any]] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The only choice. `finish_reason`: `stop`, `length`, `tool_calls`, `content_filter`, `unknown` where
    the provider ended the answer for a reason that Luxx does not know, or `schema_not_met` where the text
    does not follow the format that was demanded."""

    index: int = 0
    message: ChatMessage
    logprobs: None = None
    finish_reason: str


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """An answer. `id` is `chatcmpl-` and the id of the run."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: dict[str, Any]


def chat_completion(collected: CollectedAnswer, answer: Answer, model: str) -> ChatCompletion:
    """The whole answer."""
    calls = [
        ChatCall(id=call_id, function={"name": name, "arguments": arguments})
        for call_id, name, arguments in collected.calls
    ]
    message = ChatMessage(
        content=collected.text or (None if calls else ""),
        tool_calls=calls or msgspec.UNSET,
        reasoning_content=collected.thinking or msgspec.UNSET,
        reasoning_details=collected.reasoning_details,
    )
    return ChatCompletion(
        id=f"chatcmpl-{collected.run_id}",
        created=int(time.time()),
        model=model,
        choices=[ChatChoice(message=message, finish_reason=answer.finish)],
        usage=chat_usage(answer.usage),
    )


class ChatChunks(AnswerReader):
    """Writes the chunks of a stream."""

    def __init__(
        self, model: str, *, has_usage: bool, has_calls: bool = False, speakers: Speakers | None = None
    ) -> None:
        super().__init__(has_calls=has_calls, speakers=speakers)
        self._model = model
        self._has_usage = has_usage
        self._has_role = False
        self._text_step: OpenStep | None = None
        self._head = self._text_head = b""
        self._text_tail = self._tail(b"null")

    def run_state(self, run: Run) -> bytes:
        """See `FrameEncoder`."""
        self._head = (
            b'data: {"id":"chatcmpl-%s","object":"chat.completion.chunk","created":%d,"model":%s,"choices":['
            % (run.id.encode(), int(time.time()), _encode(self._model))
        )
        self._text_head = self._head + b'{"index":0,"delta":{"content":'
        return super().run_state(run)

    def frames(self, frames: list[Frame]) -> bytes:
        """See `FrameEncoder`. A fragment of the text that grows, the most frequent case, comes first."""
        if len(frames) == 1:
            frame = frames[0]
            step = frame.step
            if step is not None and step is self._text_step and frame.text:
                self._lengths[step.place] += len(frame.text)
                return b"%s%s%s" % (self._text_head, _encode(frame.text), self._text_tail)
        written = super().frames(frames)
        last = frames[-1].step if frames else None
        is_text = last is not None and last.type is StepType.TEXT and not frames[-1].is_reset
        self._text_step = last if is_text and not self.is_over and self._speakers is None else None
        return written

    def on_text(self, text: str) -> bytes:
        return self._delta(b'"content":%s' % _encode(text))

    def on_thinking(self, text: str) -> bytes:
        return self._delta(b'"reasoning_content":%s' % _encode(text))

    def on_call(self, position: int, call_id: str, name: str) -> bytes:
        function = {"name": name, "arguments": ""}
        call = {"index": position, "id": call_id, "type": "function", "function": function}
        return self._delta(b'"tool_calls":[%s]' % _encode(call))

    def on_arguments(self, position: int, text: str) -> bytes:
        call = {"index": position, "function": {"arguments": text}}
        return self._delta(b'"tool_calls":[%s]' % _encode(call))

    def on_end(self, answer: Answer) -> bytes:
        details = self.reasoning_details
        given = b"" if details is msgspec.UNSET else self._delta(b'"reasoning_details":%s' % _encode(details))
        end = given + self._delta(b"", _encode(answer.finish))
        if self._has_usage:
            end += b'%s],"usage":%s}\n\n' % (self._head, _encode(chat_usage(answer.usage)))
        return end + DONE

    def on_failure(self, failure: AnswerFailure) -> bytes:
        error = openai_failure(failure.status, failure.message, failure.kind)
        return b"data: %s\n\n" % _encode(error)

    def _delta(self, delta: bytes, finish: bytes = b"null") -> bytes:
        role = b""
        if not self._has_role:
            self._has_role = True
            first = b'{"index":0,"delta":{"role":"assistant","content":"","refusal":null}'
            role = b"%s%s%s" % (self._head, first, self._tail(b"null")[1:])
        return b'%s%s{"index":0,"delta":{%s%s' % (role, self._head, delta, self._tail(finish))

    def _tail(self, finish: bytes) -> bytes:
        usage = b',"usage":null' if self._has_usage else b""
        return b'},"logprobs":null,"finish_reason":%s}]%s}\n\n' % (finish, usage)
