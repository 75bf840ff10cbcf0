"""The adapter and the stream parser of the Gemini `generateContent` dialect.

`request.py` builds requests and records parts for replay, `content.py` decodes chunks and assembles function
calls.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import msgspec

from luxx.errors import MalformedStream, ProviderError, ProviderFailed, StreamInterrupted
from luxx.infra.clock import new_id
from luxx.providers.adapter import Adapter, Target, UpstreamRequest, with_origin
from luxx.providers.citations import Citations, GeneratedImages
from luxx.providers.failures import as_provider_error, read_error, read_error_body, truncate
from luxx.providers.gemini.content import (
    ArraySplitter,
    Candidate,
    FunctionCallReader,
    GeminiChunk,
    UsageCounts,
    decode_chunks,
)
from luxx.providers.gemini.hosted import emit_hosted_call, emit_search
from luxx.providers.gemini.request import (
    CONTINUATION_KEY,
    REPLAYED_PARTS,
    PartRecorder,
    build_completion_request,
    build_models_request,
)
from luxx.providers.parsing import (
    FramingDetector,
    RetainedBytes,
    SseEvent,
    SseSplitter,
    finish_reason,
    incomplete_error,
    json_objects,
    trailing_error,
)
from luxx.wire.turn import (
    Delta,
    FinishDelta,
    FinishReason,
    ReplayDelta,
    TextDelta,
    ThinkingDelta,
    Usage,
    UsageDelta,
)

_FINISH_REASONS = {
    "STOP": FinishReason.STOP,
    "MAX_TOKENS": FinishReason.LENGTH,
    "CONTINUATION": FinishReason.LENGTH,
    "SAFETY": FinishReason.CONTENT_FILTER,
    "RECITATION": FinishReason.CONTENT_FILTER,
    "LANGUAGE": FinishReason.CONTENT_FILTER,
    "BLOCKLIST": FinishReason.CONTENT_FILTER,
    "PROHIBITED_CONTENT": FinishReason.CONTENT_FILTER,
    "SPII": FinishReason.CONTENT_FILTER,
    "MODEL_ARMOR": FinishReason.CONTENT_FILTER,
    "ESCALATION": FinishReason.CONTENT_FILTER,
    "PUP_LIMITED_DISABLED": FinishReason.CONTENT_FILTER,
    "IMAGE_SAFETY": FinishReason.CONTENT_FILTER,
    "IMAGE_PROHIBITED_CONTENT": FinishReason.CONTENT_FILTER,
    "IMAGE_RECITATION": FinishReason.CONTENT_FILTER,
}
"""As the SDK `google-genai` lists them. `CONTINUATION` with a token pauses the answer; the token continues
it."""

_FAILED_REASONS = {
    "MALFORMED_FUNCTION_CALL": True,
    "MALFORMED_RESPONSE": True,
    "UNEXPECTED_TOOL_CALL": True,
    "TOO_MANY_TOOL_CALLS": False,
    "MISSING_THOUGHT_SIGNATURE": False,
}
"""Finish reasons without a usable completion, and whether a retry may help."""

_BLOCK_REASONS = {
    "SAFETY": "its safety filter",
    "RECITATION": "it repeats a protected text",
    "LANGUAGE": "the language is not supported",
    "BLOCKLIST": "a word on a block list",
    "PROHIBITED_CONTENT": "prohibited content",
    "SPII": "personal information",
    "MODEL_ARMOR": "a filter of the project",
    "JAILBREAK": "an attempt to get around the rules",
    "ESCALATION": "a rule of the provider",
    "PUP_LIMITED_DISABLED": "the account is limited, because of what it was used for before",
}


class GeminiParser:
    """Parses one completion: server-sent events, or the JSON array that comes without `alt=sse`.

    An error inside the stream is raised after the earlier deltas were returned. The completion is complete
    after a finish reason or a block reason. The last finish reason counts: older models send one per chunk.
    """

    drain_seconds = 0.2  # See `StreamParser`.

    def __init__(self, new_call_id: Callable[[], str] = new_id, origin: str = "") -> None:
        self._origin = origin
        self._splitter = SseSplitter()
        self._array: ArraySplitter | None = None
        self._framing = FramingDetector()
        self._retained = RetainedBytes()  # Bounds what is recorded besides text.
        self._calls = FunctionCallReader(new_call_id)
        self._recorder = PartRecorder()
        self._citations = Citations()
        self._images = GeneratedImages()
        self._queries: dict[str, None] = {}  # Of the search that Google ran, in order.
        self._failure: ProviderError | None = None
        self._usage: UsageDelta | None = None
        self._is_marked_done = False
        self._has_chunks = False
        self._has_emitted = False
        self._has_text = False
        self._candidate: int | None = None  # The index of the candidate that is read.
        self._finish_reason = ""
        self._finish_message = ""
        self._continuation = ""
        self._block_reason = ""
        self._block_message = ""

    @property
    def is_done(self) -> bool:
        """Whether an end marker came: an array's bracket, or the `[DONE]` that some gateways send."""
        return self._is_marked_done or (self._array is not None and self._array.is_done)

    def feed(self, piece: bytes) -> list[Delta]:
        if self._failure is not None:
            raise self._failure
        out: list[Delta] = []
        try:
            self._read_events(self._split(piece), out)
        except ProviderError as error:
            self._failure = error
        # Deltas before a failure are returned first; the next call raises it.
        if self._failure is not None and not out:
            raise self._failure
        self._emit_usage(out)
        return out

    def close(self) -> list[Delta]:
        """The last deltas, at the end of the body. Raises ProviderError if the completion failed."""
        out: list[Delta] = []
        if self._failure is None and self._array is None:
            with suppress(MalformedStream):  # The stream was cut within its last event.
                self._read_events(self._splitter.finish(), out)
        if self._failure is None:
            self._failure = trailing_error(self._splitter.unparsed)
        if self._failure is None and not (self._finish_reason or self._block_reason):
            self._failure = self._incomplete_error()
        if self._failure is None and self._array is not None and self._array.is_in_object:
            self._failure = StreamInterrupted("The provider's response ended in the middle.")
        if self._failure is None and self._is_failed_finish():
            reason = truncate(": ".join(item for item in (self._finish_reason, self._finish_message) if item))
            self._failure = ProviderFailed(
                f"The provider stopped its response early: {reason}",
                retryable=_FAILED_REASONS.get(self._finish_reason, True),
            )
        if self._failure is not None:
            raise self._failure
        self._emit_end(out)
        return out

    def _split(self, piece: bytes) -> list[SseEvent]:
        piece = self._framing.read(piece)
        if not self._framing.is_json:
            return self._splitter.feed(piece)
        if self._array is None:
            self._array = ArraySplitter()
        return [(b"", data) for data in self._array.feed(piece)]

    def _read_events(self, events: list[SseEvent], out: list[Delta]) -> None:
        for name, data in events:
            if self._is_marked_done or self._failure is not None:
                return
            if data.startswith(b"[DONE]"):
                self._is_marked_done = True
            elif name == b"error" and data:
                self._failure = as_provider_error(read_error_body(data))
            elif data:
                self._retained.event_bytes = len(data)
                for chunk in self._chunks_of(data):
                    self._read_chunk(chunk, out)

    def _chunks_of(self, data: bytes) -> list[GeminiChunk]:
        try:
            return decode_chunks(data)
        except MalformedStream:
            if b"\n" not in data:
                raise
            # Some gateways send no blank line between events: each line is one event.
            return [chunk for line in data.split(b"\n") if line for chunk in decode_chunks(line)]

    def _read_chunk(self, chunk: GeminiChunk, out: list[Delta]) -> None:
        for candidate in chunk.candidates or []:
            self._has_chunks = True
            # Of several candidates, only the first one received is read.
            index = candidate.index or 0
            if self._candidate is None:
                self._candidate = index
            if index != self._candidate:
                continue
            for part in (candidate.content.parts or []) if candidate.content is not None else ():
                self._read_part(part, out)
            if candidate.continuation_token:
                self._continuation = candidate.continuation_token
            self._read_sources(candidate, out)
            if candidate.finish_reason:
                self._finish_reason = candidate.finish_reason
                self._finish_message = candidate.finish_message or ""
        feedback = chunk.prompt_feedback
        if feedback is not None and feedback.block_reason:
            self._block_reason = feedback.block_reason
            self._block_message = feedback.block_reason_message or ""
        if chunk.usage_metadata is not None:
            self._read_usage(chunk.usage_metadata)
        if chunk.error:
            self._failure = as_provider_error(read_error({"error": chunk.error}))

    def _read_sources(self, candidate: Candidate, out: list[Delta]) -> None:
        grounding, recited = candidate.grounding_metadata, candidate.citation_metadata
        if grounding is not None:
            self._queries.update(dict.fromkeys(grounding.web_search_queries or ()))
        for chunk in (grounding.grounding_chunks or []) if grounding is not None else ():
            for source in json_objects(list(chunk.values())):
                self._citations.add(out, source.get("uri"), source.get("title"))
        for source in (recited.citations or recited.citation_sources or []) if recited is not None else ():
            self._citations.add(out, source.get("uri"), source.get("title"))

    def _read_part(self, part: dict[str, Any], out: list[Delta]) -> None:
        reported = part.get("thoughtSignature")
        signature = reported if isinstance(reported, str) else ""
        call = part.get("functionCall")
        if isinstance(call, dict):
            self._retained.retain_event()
            call_id = self._calls.read(cast("dict[str, Any]", call), out)
            if call_id:
                self._recorder.add_call(call_id, signature)
            return
        raw_text = part.get("text")
        if raw_text is None and any(kind in part for kind in REPLAYED_PARTS):
            self._retained.retain_event()
            self._recorder.add_replayed_part(part)
            emit_hosted_call(part, out)
            self._read_image(part, out)
            return
        text = raw_text if isinstance(raw_text, str) else ""
        is_thought = part.get("thought") is True
        if signature:
            self._retained.retain_event()
        self._recorder.add_text(text, signature, is_thought=is_thought)
        if text and is_thought:
            out.append(ThinkingDelta(text=text))
        elif text:
            self._has_text = True
            out.append(TextDelta(text=text))

    def _read_image(self, part: dict[str, Any], out: list[Delta]) -> None:
        """Images of thoughts are drafts, which are not shown."""
        image = part.get("inlineData")
        if isinstance(image, dict) and part.get("thought") is not True:
            fields = cast("dict[str, Any]", image)
            self._images.add_base64(out, fields.get("mimeType"), fields.get("data"))

    def _read_usage(self, reported: UsageCounts) -> None:
        prompt = (reported.prompt_token_count or 0) + (reported.tool_use_prompt_token_count or 0)
        thoughts = reported.thoughts_token_count or 0
        completion = (reported.candidates_token_count or 0) + thoughts
        if not prompt and not completion:
            return
        usage = Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=reported.total_token_count or prompt + completion,
            reasoning_tokens=thoughts,
            cached_tokens=reported.cached_content_token_count or 0,
        )
        self._usage = UsageDelta(usage=usage)

    def _emit_usage(self, out: list[Delta]) -> None:
        # Every chunk has usage. Emitted before other deltas, it would prevent a retry.
        self._has_emitted = self._has_emitted or bool(out)
        if self._has_emitted and self._usage is not None:
            out.append(self._usage)
            self._usage = None

    def _emit_end(self, out: list[Delta]) -> None:
        reason = (
            finish_reason(_FINISH_REASONS, self._finish_reason, has_calls=self._calls.has_calls)
            if self._finish_reason
            else FinishReason.CONTENT_FILTER
        )
        self._calls.close(out, is_complete=self._finish_reason == "STOP")
        emit_search(self._queries, out)
        if self._usage is not None:
            out.append(self._usage)
        replay = self._recorder.replay()
        if self._finish_reason == "CONTINUATION" and self._continuation:
            reason = FinishReason.PAUSED
            replay[CONTINUATION_KEY] = self._continuation
        if replay:
            out.append(ReplayDelta(data=with_origin(replay, self._origin)))
        is_withheld = reason is FinishReason.CONTENT_FILTER and not self._has_text
        notice = self._refusal() if is_withheld else ""
        out.append(FinishDelta(reason=reason, raw=self._finish_reason or self._block_reason, notice=notice))

    def _is_failed_finish(self) -> bool:
        """Whether the finish reason is a failure; an unknown one is, if there is no text and no call."""
        if self._finish_reason in _FAILED_REASONS:
            return True
        is_known = self._finish_reason in _FINISH_REASONS or not self._finish_reason
        return not (is_known or self._has_text or self._calls.has_calls)

    def _refusal(self) -> str:
        reported = self._finish_reason or self._block_reason
        why = _BLOCK_REASONS.get(reported.removeprefix("IMAGE_"), "")
        what = "gave no answer to this" if self._finish_reason else "did not pass this on to the model"
        explanation = (
            f"The provider {what}: {why} ({reported})." if why else f"The provider {what} ({reported})."
        )
        message = truncate(self._finish_message if self._finish_reason else self._block_message)
        return f"{explanation} {message}" if message else explanation

    def _incomplete_error(self) -> ProviderError:
        if self._array is not None and self._array.is_done and not self._has_chunks:
            return MalformedStream("The provider's response contains no text, thinking or tool call.")
        return incomplete_error(
            self._splitter.unparsed, has_begun=self._has_chunks, error_starts=(b"{", b"[", b"error:")
        )


def _parse_models(body: bytes) -> list[str]:
    """The names, without `models/`, of one page's models that support `generateContent`."""
    page = _decode_list(body)
    models = page.get("models", page.get("publisherModels", []))
    if not isinstance(models, list):
        raise MalformedStream("The provider's list of models does not contain a list.")
    return [name for item in cast("list[object]", models) if (name := _model_name(item))]


def _next_models_request(target: Target, body: bytes) -> UpstreamRequest | None:
    token = _decode_list(body).get("nextPageToken")
    return build_models_request(target, token) if isinstance(token, str) and token else None


def _decode_list(body: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedStream("The provider's list of models is not a JSON object.") from error


def _model_name(item: object) -> str:
    if not isinstance(item, dict):
        return ""
    fields = cast("dict[str, Any]", item)
    methods = fields.get("supportedGenerationMethods")
    if isinstance(methods, list) and "generateContent" not in methods:
        return ""
    name = fields.get("name")
    return name.rpartition("models/")[2] if isinstance(name, str) else ""


GEMINI = Adapter(
    dialect="gemini",
    build_request=build_completion_request,
    parser=GeminiParser,
    models_request=build_models_request,
    parse_models=_parse_models,
    next_models_request=_next_models_request,
)
