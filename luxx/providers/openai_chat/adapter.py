"""The adapter and the stream parser of the OpenAI chat completions dialect and of compatible servers.

`request.py` builds requests, `content.py` has the Structs of chunks and assembles tool calls, `reasoning.py`
has what must be sent back.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import msgspec

from luxx.errors import MalformedStream, ProviderFailed
from luxx.infra.clock import new_id
from luxx.providers.adapter import Adapter, EventStreamParser, with_origin
from luxx.providers.citations import Citations, GeneratedImages
from luxx.providers.failures import as_provider_error, read_error, read_error_body, truncate
from luxx.providers.inline_thinking import InlineState, InlineThinking
from luxx.providers.openai_chat.content import (
    ChunkChoice,
    ChunkMessage,
    ChunkUsage,
    ContentPart,
    OpenAIChunk,
    ToolCallReader,
    parse_models,
    usage_of,
)
from luxx.providers.openai_chat.reasoning import (
    FIELD_KEY,
    INLINE_FIELD,
    SIGNATURES_KEY,
    ReasoningDetails,
    google_signature,
    is_google_thought,
)
from luxx.providers.openai_chat.request import build_completion_request, build_models_request
from luxx.providers.parsing import (
    SseEvent,
    check_values,
    decode_body,
    decode_leniently,
    finish_reason,
    incomplete_error,
    unknown_finish,
)
from luxx.wire.turn import (
    CUT_SHORT,
    REASONING_DETAILS_KEY,
    WITHHELD,
    Delta,
    FinishDelta,
    FinishReason,
    ReplayDelta,
    TextDelta,
    ThinkingDelta,
    UsageDelta,
)

_REASONS = {
    "stop": FinishReason.STOP,
    "eos": FinishReason.STOP,
    "end_turn": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "tool_calls": FinishReason.TOOL_CALLS,
    "tool_use": FinishReason.TOOL_CALLS,
    "function_call": FinishReason.TOOL_CALLS,
    "length": FinishReason.LENGTH,
    "max_tokens": FinishReason.LENGTH,
    "model_length": FinishReason.CONTEXT_FULL,
    "model_context_window_exceeded": FinishReason.CONTEXT_FULL,
    "context_length_exceeded": FinishReason.CONTEXT_FULL,
    "content_filter": FinishReason.CONTENT_FILTER,
    "content_filtered": FinishReason.CONTENT_FILTER,
    "guardrail_intervened": FinishReason.CONTENT_FILTER,
    "safety": FinishReason.CONTENT_FILTER,
    "recitation": FinishReason.CONTENT_FILTER,
    "prohibited_content": FinishReason.CONTENT_FILTER,
    "sensitive": FinishReason.CONTENT_FILTER,
    "refusal": FinishReason.REFUSAL,
}
"""By the lower-case name. Gateways pass the names of other dialects through; `model_length` is Mistral's,
`model_context_window_exceeded` Anthropic's and Z.ai's, `sensitive` Z.ai's."""

_FAILED_REASONS = frozenset(
    {
        "error",
        "insufficient_system_resource",
        "malformed_function_call",
        "malformed_response",
        "missing_thought_signature",
        "network_error",
        "unexpected_tool_call",
        "upstream_error",
    }
)
"""Finish reasons without a usable completion, of OpenRouter and Mistral, DeepSeek, Google, Z.ai, and of
gateways."""

_REASONING_PARTS = frozenset({"reasoning", "thinking"})


_decode = msgspec.json.Decoder(OpenAIChunk).decode


def decode_chunk(data: bytes) -> OpenAIChunk:
    """One chunk, or a complete response. Raises MalformedStream if it is not a JSON object."""
    check_values(data)
    try:
        return _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        chunks = decode_leniently(data, OpenAIChunk)
        return chunks[0] if chunks else OpenAIChunk()


class OpenAIParser(EventStreamParser):
    """Parses one completion, which is complete after [DONE], a finish reason, or the usage in a last chunk
    without choices.
    """

    def __init__(self, new_call_id: Callable[[], str] = new_id, origin: str = "") -> None:
        super().__init__()
        self._origin = origin
        self._new_call_id = new_call_id
        self._calls: ToolCallReader | None = None
        self._inline = InlineThinking()
        self._has_ended = False
        self._has_chunks = False
        self._has_delta = False
        self._has_closing_usage = False
        self._choice: int | None = None
        self._finish = ""
        self._native_finish = ""
        self._refusal: list[str] = []
        self._has_details = False
        self._signature: dict[str, str] | None = None
        self._reasoning_field = ""

    @property
    def is_done(self) -> bool:
        """Whether the stream sent its end marker; the body may still be open."""
        return self._has_ended

    @cached_property
    def _citations(self) -> Citations:
        """Few answers have any."""
        return Citations()

    @cached_property
    def _details(self) -> ReasoningDetails:
        return ReasoningDetails()

    @cached_property
    def _images(self) -> GeneratedImages:
        return GeneratedImages()

    def _read_piece(self, piece: bytes, out: list[Delta]) -> None:
        if (data := self._splitter.single_event(piece)) is not None:
            self._read_event(b"", data, out)
        else:
            self._read_events(self._splitter.feed(piece), out)

    def close(self) -> list[Delta]:
        out: list[Delta] = []
        self._read_rest(out)
        if not self._has_ended and not self._finish and not self._has_closing_usage:
            raise incomplete_error(self._splitter.unparsed, has_begun=self._has_chunks)
        self._end(out)
        if self._failure is not None:
            raise self._failure
        return out

    def _read_body(self, body: bytes, out: list[Delta]) -> None:
        self._read_chunk(decode_body(decode_chunk, body), out)
        if self._has_chunks and not self._finish:
            self._has_closing_usage = True

    def _read_events(self, events: list[SseEvent], out: list[Delta]) -> None:
        for name, data in events:
            self._read_event(name, data, out)
            if self._failure is not None:
                break

    def _read_event(self, name: bytes, data: bytes, out: list[Delta]) -> None:
        if self._has_ended or not data:
            return
        if data.startswith(b"[DONE]"):
            self._end(out)
            return
        if name == b"error":
            self._failure = as_provider_error(read_error_body(data))
            return
        self._retained.event_bytes = len(data)
        try:
            chunk = decode_chunk(data)
        except MalformedStream:
            if b"\n" not in data:
                raise
            # Some servers send no blank line between events: each line is one event.
            for line in data.split(b"\n"):
                self._read_event(name, line, out)
            return
        self._read_chunk(chunk, out)

    def _read_chunk(self, chunk: OpenAIChunk, out: list[Delta]) -> None:
        choices = chunk.choices
        if choices:
            self._has_chunks = True
            for choice in choices:
                # Of several choices (n > 1), only the first one received is read.
                if self._choice is None:
                    self._choice = choice.index
                if choice.index is None or choice.index == self._choice:
                    self._read_choice(choice, out)
        if chunk.citations or chunk.search_results:
            self._citations.add_search(out, chunk.citations, chunk.search_results)
        if chunk.usage is not None:
            self._read_usage(chunk.usage, out)
            self._has_closing_usage = self._has_chunks and not choices
        elif chunk.x_groq is not None and chunk.x_groq.usage is not None:
            self._read_usage(chunk.x_groq.usage, out)
        if chunk.x_groq is not None and chunk.x_groq.error:
            self._failure = as_provider_error(read_error(chunk.x_groq.error))
        if chunk.error:
            self._failure = as_provider_error(read_error({"error": chunk.error, "code": chunk.code}))
        elif chunk.object == "error" or (chunk.message and (chunk.code or chunk.type) and not choices):
            self._failure = as_provider_error(
                read_error({"message": chunk.message, "code": chunk.code, "type": chunk.type})
            )

    def _read_choice(self, choice: ChunkChoice, out: list[Delta]) -> None:
        if choice.delta is not None:
            self._has_delta = True
            self._read_message(choice.delta, out)
        elif choice.message is not None and not self._has_delta:
            self._read_message(choice.message, out)
        if choice.usage is not None:
            self._read_usage(choice.usage, out)
        if choice.finish_reason:
            self._finish = choice.finish_reason
        if choice.native_finish_reason:
            self._native_finish = choice.native_finish_reason
        if choice.error:
            self._failure = as_provider_error(read_error({"error": choice.error}))

    def _read_message(self, message: ChunkMessage, out: list[Delta]) -> None:
        self._read_reasoning(message, out)
        if message.extra_content and (signature := google_signature(message.extra_content)) is not None:
            self._retained.retain_event()
            self._signature = signature
        if message.content:
            self._read_content(message.content, message.extra_content, out)
        if message.annotations:
            self._retained.retain_event()
            self._citations.add_annotations(out, message.annotations)
        if message.images:
            self._retained.retain_event()
            self._images.add_parts(out, message.images, self._citations)
        if message.tool_calls:
            self._retained.retain_event()
            self._inline.flush(out)
            if self._calls is None:
                self._calls = ToolCallReader(self._new_call_id)
            self._calls.read(message.tool_calls, out)
        if message.refusal:
            self._retained.retain_event()
            self._refusal.append(message.refusal)

    def _read_reasoning(self, message: ChunkMessage, out: list[Delta]) -> None:
        if message.reasoning_content:
            self._reasoning_field = "reasoning_content"
            self._emit_thinking(message.reasoning_content, out)
        elif message.reasoning:
            self._reasoning_field = self._reasoning_field or "reasoning"
            self._emit_thinking(message.reasoning, out)
        elif message.reasoning_details:
            for detail in message.reasoning_details:
                self._emit_thinking(detail.get("text") or detail.get("summary") or "", out)
        if message.reasoning_details:
            self._retained.retain_event()
            self._has_details = True
            self._details.read(message.reasoning_details)

    def _read_content(
        self, content: str | list[ContentPart | str], extra: dict[str, Any] | None, out: list[Delta]
    ) -> None:
        if isinstance(content, list):
            self._read_parts(content, out)
        elif extra and self._is_thought(extra, content):
            self._emit_thinking(content, out)
        elif self._inline.state is InlineState.TEXT:
            out.append(TextDelta(text=content))
        else:
            self._inline.read(content, out)

    def _read_parts(self, parts: list[ContentPart | str], out: list[Delta]) -> None:
        for part in parts:
            if isinstance(part, str):
                self._inline.read(part, out)
            elif reasoning := part.thinking or part.summary:
                for inner in [reasoning] if isinstance(reasoning, str) else reasoning:
                    self._emit_thinking(inner if isinstance(inner, str) else inner.text, out)
            elif part.image_url:
                self._retained.retain_event()
                self._images.add_parts(out, [{"image_url": part.image_url}], self._citations)
            elif part.text and part.type in _REASONING_PARTS:
                self._emit_thinking(part.text, out)
            elif part.text:
                self._inline.read(part.text, out)

    def _is_thought(self, extra: dict[str, Any], content: str) -> bool:
        """Whether Google's endpoint marks the content as a thought without tags."""
        is_tagged = self._inline.state is InlineState.THINKING or content.lstrip().startswith("<")
        return not is_tagged and is_google_thought(extra)

    def _emit_thinking(self, text: object, out: list[Delta]) -> None:
        if not isinstance(text, str) or not text:
            return
        if self._inline.state in (InlineState.START, InlineState.UNTAGGED):
            # A server that sends thinking in its own field sends none inline.
            self._inline.flush(out)
        out.append(ThinkingDelta(text=text))

    def _read_usage(self, reported: ChunkUsage, out: list[Delta]) -> None:
        if (usage := usage_of(reported)) is not None:
            out.append(UsageDelta(usage=usage))

    def _end(self, out: list[Delta]) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        is_empty = self._inline.state is InlineState.START
        self._inline.flush(out)
        self._read_native_finish()
        finish = self._finish.lower()
        if finish in _FAILED_REASONS:
            self._failure = ProviderFailed(
                f"The provider stopped its response early: {truncate(self._finish)}"
            )
            return
        if not (self._has_delta or self._finish or self._has_closing_usage or self._calls is not None):
            self._failure = MalformedStream(
                "The provider's response contains no text, thinking or tool call."
            )
            return
        reason = finish_reason(_REASONS, finish, has_calls=self._calls is not None)
        if self._refusal:
            reason = FinishReason.REFUSAL
        if reason is FinishReason.UNKNOWN and finish and is_empty:
            self._failure = unknown_finish(self._finish)
            return
        if self._calls is not None:
            self._calls.close(out, is_cut=not finish or reason in CUT_SHORT or reason in WITHHELD)
        replay = self._replay()
        if replay:
            out.append(ReplayDelta(data=with_origin(replay, self._origin)))
        out.append(FinishDelta(reason=reason, raw=self._finish, refusal="".join(self._refusal)))

    def _read_native_finish(self) -> None:
        """A gateway may call a failure or a cut a regular end; the word of the provider behind it counts."""
        native = self._native_finish.lower()
        reason = _REASONS.get(native)
        is_hidden = self._finish.lower() in ("", "stop") and (reason in CUT_SHORT or reason in WITHHELD)
        if native in _FAILED_REASONS or is_hidden:
            self._finish = self._native_finish

    def _replay(self) -> dict[str, Any]:
        replay: dict[str, Any] = {}
        if self._has_details and (details := self._details.blocks()):
            replay[REASONING_DETAILS_KEY] = details
        if self._reasoning_field and self._calls is not None:
            replay[FIELD_KEY] = self._reasoning_field
        elif self._inline.has_thinking:
            replay[FIELD_KEY] = INLINE_FIELD
        signatures = [] if self._calls is None else self._calls.signatures
        if self._signature:
            signatures.append(self._signature)
        if signatures:
            replay[SIGNATURES_KEY] = signatures
        return replay


OPENAI = Adapter(
    dialect="openai",
    build_request=build_completion_request,
    parser=OpenAIParser,
    splits_thinking=True,
    models_request=build_models_request,
    parse_models=parse_models,
    next_models_request=lambda _target, _body: None,  # The list has one page.
)
