"""The adapter and the stream parser of OpenAI's Responses API.

`request.py` builds requests, `content.py` decodes events and builds output items, `notes.py` has what is sent
back in later requests.
"""

from collections.abc import Callable

from luxx.errors import MalformedStream, ProviderError, ProviderFailed
from luxx.infra.clock import new_id
from luxx.providers.adapter import Adapter, EventStreamParser
from luxx.providers.failures import as_provider_error, read_error, read_error_body
from luxx.providers.openai_chat.content import parse_models
from luxx.providers.openai_responses.content import (
    OutputReader,
    ResponsesEvent,
    ResponsesObject,
    ResponsesUsage,
    decode_event,
    decode_response,
)
from luxx.providers.openai_responses.notes import note_of
from luxx.providers.openai_responses.request import build_models_request, build_response_request
from luxx.providers.parsing import (
    SseEvent,
    decode_body,
    incomplete_error,
)
from luxx.wire.turn import (
    CUT_SHORT,
    WITHHELD,
    Delta,
    FinishDelta,
    FinishReason,
    ReplayDelta,
    TextDelta,
    Usage,
    UsageDelta,
)

_INCOMPLETE_REASONS = {
    "max_output_tokens": FinishReason.LENGTH,
    "max_tokens": FinishReason.LENGTH,
    "max_messages": FinishReason.LENGTH,
    "content_filter": FinishReason.CONTENT_FILTER,
    "steered": FinishReason.STOP,
}
_ENDS = frozenset({"completed", "incomplete", "failed", "cancelled"})
_TEXT_DELTA = "response.output_text.delta"
_TEXT_HEAD = f"event: {_TEXT_DELTA}\ndata: ".encode()


class ResponsesParser(EventStreamParser):
    """Parses one response, which is complete with the event that has its final status.

    `origin`: whose encrypted reasoning it is, see `notes.py`.
    """

    def __init__(self, new_call_id: Callable[[], str] = new_id, origin: str = "") -> None:
        super().__init__()
        self._output = OutputReader(new_call_id)
        self._origin = origin
        self._has_begun = False
        self._has_ended = False

    @property
    def is_done(self) -> bool:
        """Whether the final status arrived; the body may still be open."""
        return self._has_ended

    def _read_piece(self, piece: bytes, out: list[Delta]) -> None:
        data = self._splitter.single_event(piece, _TEXT_HEAD)
        self._read_events(self._splitter.feed(piece) if data is None else [(b"", data)], out)

    def close(self) -> list[Delta]:
        out: list[Delta] = []
        self._read_rest(out)
        if not self._has_ended:
            raise incomplete_error(self._splitter.unparsed, has_begun=self._has_begun)
        return out

    def _read_body(self, body: bytes, out: list[Delta]) -> None:
        self._read_end(decode_body(decode_response, body), out)

    def _read_events(self, events: list[SseEvent], out: list[Delta]) -> None:
        for name, data in events:
            if self._has_ended or not data or data.startswith(b"[DONE]"):
                continue
            event = decode_event(data)
            if event.type == _TEXT_DELTA:
                if event.delta:
                    self._output.at(event.output_index).text_length += len(event.delta)
                    out.append(TextDelta(text=event.delta))
                continue
            if name == b"error" or event.type == "error" or (event.type is None and event.error):
                self._failure = as_provider_error(read_error_body(data))
                return
            if event.delta is None or "reasoning" not in (event.type or ""):
                self._retained.event_bytes = len(data)
                self._retained.retain_event()
            self._read_event(event, out)
            if self._failure is not None:
                return

    def _read_event(self, event: ResponsesEvent, out: list[Delta]) -> None:
        match event.type:
            case "response.reasoning_summary_text.delta":
                self._output.add_thinking(event, "summary", out)
            case "response.reasoning_text.delta":
                self._output.add_thinking(event, "text", out)
            case "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta":
                self._output.add_arguments(event, out)
            case "response.output_item.added":
                self._output.begin(event, out)
            case "response.output_item.done" if event.item is not None:
                self._output.finish(event.item, event.output_index, out)
            case "response.output_text.annotation.added":
                self._output.add_citation(event, out)
            case "response.refusal.delta" if event.delta:
                self._output.at(event.output_index).refusal.append(event.delta)
            case _ if event.response is not None:
                self._has_begun = True
                if event.response.status in _ENDS:
                    self._read_end(event.response, out)
            case _:
                pass  # Pings, parts that their deltas already gave, states of hosted tools, unknown events.

    def _read_end(self, response: ResponsesObject, out: list[Delta]) -> None:
        if response.error or response.status not in _ENDS:
            self._failure = _failure_of(response)
            return
        self._output.complete(response.output or [], out)
        if response.usage is not None:
            out.append(UsageDelta(usage=_usage(response.usage)))
        if response.status in ("failed", "cancelled"):
            self._failure = _failure_of(response)
            return
        self._has_ended = True
        details = response.incomplete_details
        raw = (details.reason if details else None) or response.status or ""
        reason = self._reason(response.status or "", raw)
        self._output.close(out, is_cut=reason in CUT_SHORT or reason in WITHHELD)
        replay = note_of(self._output, self._origin)
        if replay:
            out.append(ReplayDelta(data=replay))
        out.append(FinishDelta(reason=reason, raw=raw, refusal=self._output.refusal))

    def _reason(self, status: str, raw: str) -> FinishReason:
        if status == "incomplete":
            return _INCOMPLETE_REASONS.get(raw, FinishReason.UNKNOWN)
        if self._output.refusal:
            return FinishReason.REFUSAL
        return FinishReason.TOOL_CALLS if self._output.has_calls else FinishReason.STOP


def _failure_of(response: ResponsesObject) -> ProviderError:
    if response.error:
        return as_provider_error(read_error({"error": response.error}))
    if response.status in _ENDS:
        return ProviderFailed(f"The provider ended its response with the status '{response.status}'.")
    return MalformedStream("The provider's response contains no text, thinking or tool call.")


def _usage(reported: ResponsesUsage) -> Usage:
    prompt, completion = reported.input_tokens or 0, reported.output_tokens or 0
    of_input, of_output = reported.input_tokens_details, reported.output_tokens_details
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=reported.total_tokens or prompt + completion,
        reasoning_tokens=(of_output.reasoning_tokens or 0) if of_output else 0,
        cached_tokens=(of_input.cached_tokens or 0) if of_input else 0,
        cache_write_tokens=(of_input.cache_write_tokens or 0) if of_input else 0,
    )


RESPONSES = Adapter(
    dialect="openai_responses",
    build_request=build_response_request,
    parser=ResponsesParser,
    models_request=build_models_request,
    parse_models=parse_models,
    next_models_request=lambda _target, _body: None,  # The list has one page.
)
