"""The adapter and the stream parser of the Anthropic Messages dialect.

`request.py` builds requests, `content.py` decodes events and assembles content blocks.
"""

from collections.abc import Callable
from typing import Any, cast
from urllib.parse import quote

import msgspec

from luxx.errors import MalformedStream
from luxx.infra.clock import new_id
from luxx.providers.adapter import Adapter, EventStreamParser, Target, UpstreamRequest, with_origin
from luxx.providers.anthropic.content import (
    AnthropicEvent,
    ContentReader,
    EventUsage,
    decode_event,
    message_of,
)
from luxx.providers.anthropic.request import build_message_request, build_models_request
from luxx.providers.anthropic.turns import CONTENT_KEY, MODEL_KEY
from luxx.providers.failures import as_provider_error, read_error, read_error_body, truncate
from luxx.providers.parsing import (
    SseEvent,
    decode_body,
    finish_reason,
    incomplete_error,
    json_objects,
    unknown_finish,
)
from luxx.wire.turn import (
    CUT_SHORT,
    WITHHELD,
    Delta,
    FinishDelta,
    FinishReason,
    ReplayDelta,
    Usage,
    UsageDelta,
)

_REASONS = {
    "end_turn": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "tool_use": FinishReason.TOOL_CALLS,
    "max_tokens": FinishReason.LENGTH,
    "model_context_window_exceeded": FinishReason.CONTEXT_FULL,
    "refusal": FinishReason.REFUSAL,
    "content_filter": FinishReason.CONTENT_FILTER,
    "sensitive": FinishReason.CONTENT_FILTER,
    "guardrail_intervened": FinishReason.CONTENT_FILTER,
    "pause_turn": FinishReason.PAUSED,
    "compaction": FinishReason.PAUSED,
}
_STATUS_OF_ERROR = {
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
}
"""The status that the vendor documents per error type; inside a stream an error has only its type."""


class AnthropicParser(EventStreamParser):
    """Parses one completion, which is complete after its stop reason.

    It ends with the body, because one stream may contain several messages.
    """

    drain_seconds = 2.0

    def __init__(self, new_call_id: Callable[[], str] = new_id, origin: str = "") -> None:
        super().__init__()
        self._origin = origin
        self._content = ContentReader(new_call_id)
        self._usage = EventUsage()
        self._has_started = False
        self._is_open = False  # Whether the newest message has content and no end.
        self._has_stopped = False
        self._model = ""
        self._finish = ""
        self._explanation = ""

    @property
    def is_done(self) -> bool:
        """Whether a message ended. Usually nothing follows, but the body may still be open."""
        return self._has_stopped

    def close(self) -> list[Delta]:
        out: list[Delta] = []
        self._read_rest(out)
        if not self._finish and not self._has_stopped:
            raise incomplete_error(self._splitter.unparsed, has_begun=self._has_started)
        reason = finish_reason(_REASONS, self._finish, has_calls=self._content.has_calls)
        if reason is FinishReason.UNKNOWN and self._finish and not self._content.has_text:
            raise unknown_finish(self._finish)
        self._content.close(out, is_cut=reason in CUT_SHORT or reason in WITHHELD)
        if reason is FinishReason.STOP:
            self._content.cite_results(out)
        if not self._content.is_plain() or reason is FinishReason.PAUSED:
            data = {CONTENT_KEY: self._content.content(), MODEL_KEY: self._model}
            out.append(ReplayDelta(data=with_origin(data, self._origin)))
        out.append(FinishDelta(reason=reason, raw=self._finish, notice=self._notice()))
        return out

    def _read_events(self, events: list[SseEvent], out: list[Delta]) -> None:
        for name, data in events:
            if not data or name == b"ping" or data.startswith(b"[DONE]"):
                continue
            if name == b"error":
                self._fail(data)
            else:
                event = decode_event(data)
                if event.delta is None or event.delta.type not in ("text_delta", "thinking_delta"):
                    self._retained.event_bytes = len(data)
                    self._retained.retain_event()
                self._read_event(event, data, out)
            if self._failure is not None:
                return

    def _read_event(self, event: AnthropicEvent, data: bytes, out: list[Delta]) -> None:
        match event.type:
            case "content_block_delta" if event.delta is not None:
                self._content.append(event.index, event.delta, out)
            case "content_block_start" if event.content_block is not None:
                self._has_started = self._is_open = True
                self._content.begin(event.content_block, out)
            case "content_block_stop":
                self._content.stop(event.index, out)
            case "message_start" | "message":
                self._read_message(event, out)
            case "message_delta":
                self._read_end(event, out)
            case "message_stop":
                self._has_stopped = True
                self._is_open = False
            case "error":
                self._fail(data)
            case _:
                # Pings and unknown events are ignored; some servers send errors under another type.
                if event.error:
                    self._fail(data)

    def _read_message(self, event: AnthropicEvent, out: list[Delta]) -> None:
        if self._is_open:
            raise MalformedStream(
                "The provider began a second message before the first one ended.", retryable=False
            )
        if self._has_started:
            return  # A repeated beginning, or a message after one that ended: only its blocks are read.
        self._has_started = True
        message = message_of(event)
        self._model = message.model or ""
        for index, block in enumerate(message.content or []):
            self._content.begin(block, out)
            if event.type == "message" and block.get("type") != "tool_use":
                self._content.stop(index, out)
        if message.usage is not None:
            self._read_usage(message.usage, out)
        if event.type == "message":
            self._has_stopped = True
            self._finish = event.stop_reason or ""
            self._read_refusal(event.stop_details)

    def _read_end(self, event: AnthropicEvent, out: list[Delta]) -> None:
        if event.delta is not None and event.delta.stop_reason:
            self._finish = event.delta.stop_reason
            self._is_open = False
            self._read_refusal(event.delta.stop_details)
        if event.usage is not None:
            self._read_usage(event.usage, out)

    def _read_refusal(self, details: dict[str, Any] | None) -> None:
        explanation = (details or {}).get("explanation")
        self._explanation = explanation if isinstance(explanation, str) else ""

    def _read_usage(self, reported: EventUsage, out: list[Delta]) -> None:
        latest = self._usage
        for name in reported.__struct_fields__:
            value = getattr(reported, name)
            if value is not None:
                setattr(latest, name, value)
        read, written = latest.cache_read_input_tokens or 0, latest.written_tokens
        prompt = (latest.input_tokens or 0) + read + written
        completion = latest.output_tokens or 0
        output_details = latest.output_tokens_details
        if not prompt and not completion:
            return
        usage = Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            reasoning_tokens=(output_details.thinking_tokens or 0) if output_details else 0,
            cached_tokens=read,
            cache_write_tokens=written,
        )
        out.append(UsageDelta(usage=usage))

    def _notice(self) -> str:
        if not self._explanation or self._content.has_text:
            return ""
        return f"The provider declined to answer this: {truncate(self._explanation)}"

    def _fail(self, data: bytes) -> None:
        upstream_error = read_error_body(data)
        if upstream_error.status is None:
            status = next((s for name, s in _STATUS_OF_ERROR.items() if name in upstream_error.code), None)
            upstream_error = msgspec.structs.replace(upstream_error, status=status)
        self._failure = as_provider_error(upstream_error)

    def _read_body(self, body: bytes, out: list[Delta]) -> None:
        event = decode_body(decode_event, body)
        self._read_event(event, body, out)
        if self._failure is None and event.type != "message":
            raise MalformedStream("The provider's response contains no text, thinking or tool call.")


def _parse_models(body: bytes) -> list[str]:
    items = _page(body).get("data")
    if not isinstance(items, list):
        raise MalformedStream("The provider's list of models does not contain a list.")
    return [str(model["id"]) for model in json_objects(cast("object", items)) if model.get("id")]


def _next_models_request(target: Target, body: bytes) -> UpstreamRequest | None:
    page = _page(body)
    last = page.get("last_id")
    if not page.get("has_more") or not isinstance(last, str) or not last:
        return None
    return build_models_request(target, after=f"&after_id={quote(last, safe='')}")


def _page(body: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedStream("The provider's list of models is not JSON.") from error
    if isinstance(value, list):
        return {"data": value}
    if not isinstance(value, dict):
        raise MalformedStream("The provider's list of models does not contain a list.")
    fields = cast("dict[str, Any]", value)
    if fields.get("error"):
        raise as_provider_error(read_error(fields))
    return fields


ANTHROPIC = Adapter(
    dialect="anthropic",
    build_request=build_message_request,
    parser=AnthropicParser,
    models_request=build_models_request,
    parse_models=_parse_models,
    next_models_request=_next_models_request,
)
