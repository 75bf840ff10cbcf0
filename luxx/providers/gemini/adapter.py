"""The Gemini `generateContent` dialect: its adapter and its stream parser.

Requests are built in `gemini_request.py`, chunks decoded in `gemini_chunk.py`, function calls read in
`gemini_calls.py`, what goes back unchanged kept in `gemini_replay.py`. No network.
"""

from collections.abc import Callable
from typing import Any, cast

import msgspec

from luxx.errors import Dropped, Garbled, ProviderError, ProviderFailed
from luxx.infra.clock import new_id
from luxx.providers.adapter import CompletionRequest, Held, Opening, Target, UpstreamRequest
from luxx.providers.failures import as_provider_error, cut, read_error, read_error_body
from luxx.providers.gemini.calls import FunctionCallReader
from luxx.providers.gemini.chunk import ArraySplitter, Candidate, Chunk, UsageCounts, decode_chunks
from luxx.providers.gemini.request import (
    KEPT_PARTS,
    PartNotes,
    build_completion_request,
    build_models_request,
)
from luxx.providers.sse import SseSplitter
from luxx.wire.delta import (
    Delta,
    FinishDelta,
    FinishReason,
    ReplayDelta,
    TextDelta,
    ThinkingDelta,
    Usage,
    UsageDelta,
)

_REASONS = {
    "STOP": FinishReason.STOP,
    "MAX_TOKENS": FinishReason.LENGTH,
    "SAFETY": FinishReason.REFUSED,
    "RECITATION": FinishReason.REFUSED,
    "LANGUAGE": FinishReason.REFUSED,
    "BLOCKLIST": FinishReason.REFUSED,
    "PROHIBITED_CONTENT": FinishReason.REFUSED,
    "SPII": FinishReason.REFUSED,
    "MODEL_ARMOR": FinishReason.REFUSED,
    "IMAGE_SAFETY": FinishReason.REFUSED,
    "IMAGE_PROHIBITED_CONTENT": FinishReason.REFUSED,
    "IMAGE_RECITATION": FinishReason.REFUSED,
}
_FAILED = {
    "MALFORMED_FUNCTION_CALL": True,
    "MALFORMED_RESPONSE": True,
    "UNEXPECTED_TOOL_CALL": True,
    "TOO_MANY_TOOL_CALLS": False,
    "MISSING_THOUGHT_SIGNATURE": False,
}
"""Reasons that mean there is no answer, and whether another try may bring one."""

_WHY = {
    "SAFETY": "its safety filter",
    "RECITATION": "it repeats a protected text",
    "LANGUAGE": "the language is not supported",
    "BLOCKLIST": "a word on a block list",
    "PROHIBITED_CONTENT": "prohibited content",
    "SPII": "personal information",
    "MODEL_ARMOR": "a filter of the project",
    "JAILBREAK": "an attempt to get around the rules",
}
_REFUSAL = "refusal"
"""The key of a replay note whose words stand for an answer that was refused (`runs/completion.py`)."""


class GeminiAdapter:
    dialect = "gemini"

    def __init__(self, new_call_id: Callable[[], str] = new_id) -> None:
        self._new_call_id = new_call_id

    def build_request(self, request: CompletionRequest, target: Target, *, stream: bool) -> UpstreamRequest:
        return build_completion_request(request, target, stream=stream)

    def parser(self) -> "GeminiParser":
        return GeminiParser(self._new_call_id)

    def models_request(self, target: Target) -> UpstreamRequest:
        return build_models_request(target)

    def parse_models(self, body: bytes) -> list[str]:
        """The names, without `models/`, of those in one page that answer prompts."""
        listed = _list_of(body)
        models = listed.get("models", listed.get("publisherModels", []))
        if not isinstance(models, list):
            raise Garbled("The provider's list of models has no list in it.")
        return [name for item in cast("list[object]", models) if (name := _model_name(item))]

    def next_models_request(self, target: Target, body: bytes) -> UpstreamRequest | None:
        """The GET of the page after this one; None after the last."""
        token = _list_of(body).get("nextPageToken")
        return build_models_request(target, token) if isinstance(token, str) and token else None


class GeminiParser:
    """One answer: server-sent events, or the JSON array of them that comes without `alt=sse`.

    An error inside the stream is raised after the deltas that came before it were given out. The
    answer is whole when it gave a finish reason, or said that the prompt is blocked. A finish reason
    is believed only at the end: older models give one with every chunk.
    """

    rest_seconds = 0.2

    def __init__(self, new_call_id: Callable[[], str] = new_id) -> None:
        self._splitter = SseSplitter()
        self._array: ArraySplitter | None = None
        self._opening = Opening()
        self._held = Held()
        self._calls = FunctionCallReader(new_call_id)
        self._notes = PartNotes()
        self._failure: ProviderError | None = None
        self._usage: UsageDelta | None = None
        self._is_marked_done = False
        self._has_chunks = False
        self._has_shown = False
        self._has_spoken = False
        self._candidate: int | None = None
        self._finish = ""
        self._finish_message = ""
        self._blocked = ""
        self._blocked_message = ""

    @property
    def is_done(self) -> bool:
        """Nothing follows, though the body may stay open; events have no mark for it, an array has."""
        return self._is_marked_done or (self._array is not None and self._array.is_done)

    def feed(self, piece: bytes) -> list[Delta]:
        if self._failure is not None:
            raise self._failure
        out: list[Delta] = []
        try:
            for name, data in self._frames(piece):
                self._read_event(name, data, out)
                if self._failure is not None:
                    break
        except ProviderError as error:
            self._failure = error
        # What came before a failure is given first; the next call raises it.
        if self._failure is not None and not out:
            raise self._failure
        self._give_usage(out)
        return out

    def close(self) -> list[Delta]:
        out: list[Delta] = []
        if self._failure is None and self._array is None:
            self._read_rest(out)
        if self._failure is None and not (self._finish or self._blocked):
            self._failure = self._broken_off()
        if self._failure is None and self._array is not None and self._array.is_within:
            self._failure = Dropped("The provider's answer ended in the middle.")
        if self._failure is None and self._is_no_answer():
            said = cut(": ".join(word for word in (self._finish, self._finish_message) if word))
            self._failure = ProviderFailed(
                f"The provider broke off its answer: {said}", retryable=_FAILED.get(self._finish, True)
            )
        if self._failure is not None:
            raise self._failure
        self._end(out)
        return out

    def _frames(self, piece: bytes) -> list[tuple[bytes, bytes]]:
        piece = self._opening.read(piece)
        if not self._opening.is_json:
            return self._splitter.feed(piece)
        if self._array is None:
            self._array = ArraySplitter()
        return [(b"", data) for data in self._array.feed(piece)]

    def _read_event(self, name: bytes, data: bytes, out: list[Delta]) -> None:
        if self._is_marked_done or not data:
            return
        if data.startswith(b"[DONE]"):
            self._is_marked_done = True
        elif name == b"error":
            self._failure = as_provider_error(read_error_body(data))
        else:
            self._held.coming = len(data)
            for chunk in self._chunks_of(data):
                self._read_chunk(chunk, out)

    def _chunks_of(self, data: bytes) -> list[Chunk]:
        try:
            return decode_chunks(data)
        except Garbled:
            if b"\n" not in data:
                raise
            # No blank line between the events of some gateways: each line is one.
            return [chunk for line in data.split(b"\n") if line for chunk in decode_chunks(line)]

    def _read_chunk(self, chunk: Chunk, out: list[Delta]) -> None:
        for candidate in chunk.candidates or []:
            self._has_chunks = True
            # Of several candidates the first one seen is the answer.
            index = candidate.index or 0
            if self._candidate is None:
                self._candidate = index
            if index == self._candidate:
                self._read_candidate(candidate, out)
        feedback = chunk.prompt_feedback
        if feedback is not None and feedback.block_reason:
            self._blocked = feedback.block_reason
            self._blocked_message = feedback.block_reason_message or ""
        if chunk.usage_metadata is not None:
            self._read_usage(chunk.usage_metadata)
        if chunk.error:
            self._failure = as_provider_error(read_error({"error": chunk.error}))

    def _read_candidate(self, candidate: Candidate, out: list[Delta]) -> None:
        if candidate.content is not None:
            for part in candidate.content.parts or []:
                self._read_part(part, out)
        if candidate.finish_reason:
            self._finish = candidate.finish_reason
            self._finish_message = candidate.finish_message or ""

    def _read_part(self, part: dict[str, Any], out: list[Delta]) -> None:
        told = part.get("thoughtSignature")
        signature = told if isinstance(told, str) else ""
        call = part.get("functionCall")
        if isinstance(call, dict):
            self._held.keep()
            call_id = self._calls.read(cast("dict[str, Any]", call), out)
            if call_id:
                self._notes.called(call_id, signature)
            return
        said = part.get("text")
        if said is None and any(kind in part for kind in KEPT_PARTS):
            self._held.keep()
            self._notes.other(part)
            return
        text = said if isinstance(said, str) else ""
        is_thought = part.get("thought") is True
        if signature:
            self._held.keep()
        self._notes.spoke(text, signature, is_thought=is_thought)
        if text and is_thought:
            out.append(ThinkingDelta(text=text))
        elif text:
            self._has_spoken = True
            out.append(TextDelta(text=text))

    def _read_usage(self, told: UsageCounts) -> None:
        prompt = (told.prompt_token_count or 0) + (told.tool_use_prompt_token_count or 0)
        thoughts = told.thoughts_token_count or 0
        completion = (told.candidates_token_count or 0) + thoughts
        if not prompt and not completion:
            return
        usage = Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=told.total_token_count or prompt + completion,
            reasoning_tokens=thoughts,
            cached_tokens=told.cached_content_token_count or 0,
        )
        self._usage = UsageDelta(usage=usage)

    def _give_usage(self, out: list[Delta]) -> None:
        # Every chunk counts tokens. Given before anything is shown, a count would rule out another try.
        self._has_shown = self._has_shown or bool(out)
        if self._has_shown and self._usage is not None:
            out.append(self._usage)
            self._usage = None

    def _end(self, out: list[Delta]) -> None:
        reason = self._reason()
        self._calls.close(out, is_whole=self._finish == "STOP")
        if self._usage is not None:
            out.append(self._usage)
        replay = self._notes.replay()
        if reason is FinishReason.REFUSED and not self._has_spoken:
            replay[_REFUSAL] = self._refusal()
        if replay:
            out.append(ReplayDelta(data=replay))
        out.append(FinishDelta(reason=reason, raw=self._finish or self._blocked))

    def _is_no_answer(self) -> bool:
        if self._finish in _FAILED:
            return True
        is_known = self._finish in _REASONS or not self._finish
        return not (is_known or self._has_spoken or self._calls.has_calls)

    def _reason(self) -> FinishReason:
        if not self._finish:
            return FinishReason.REFUSED
        reason = _REASONS.get(self._finish, FinishReason.UNKNOWN)
        if self._calls.has_calls and reason in (FinishReason.STOP, FinishReason.UNKNOWN):
            return FinishReason.TOOL_CALLS
        return reason

    def _refusal(self) -> str:
        told = self._finish or self._blocked
        why = _WHY.get(told.removeprefix("IMAGE_"), "")
        what = "gave no answer to this" if self._finish else "did not pass this on to the model"
        words = f"The provider {what}: {why} ({told})." if why else f"The provider {what} ({told})."
        message = cut(self._finish_message if self._finish else self._blocked_message)
        return f"{words} {message}" if message else words

    def _read_rest(self, out: list[Delta]) -> None:
        for name, data in self._splitter.finish():
            try:
                self._read_event(name, data, out)
            except Garbled:
                # Half an event: the stream was cut there, which `close` reports.
                return

    def _broken_off(self) -> ProviderError:
        stray = self._splitter.stray.strip()
        if stray.startswith((b"{", b"[", b"error:")):
            return as_provider_error(read_error_body(stray.removeprefix(b"error:")))
        if self._has_chunks:
            return Dropped("The provider's stream ended in the middle of the answer.")
        if self._array is not None and self._array.is_done:
            return Garbled("The provider's answer holds nothing that a model could have said.")
        if stray and not b"data:".startswith(stray[:5]):
            shown = cut(stray.decode("utf-8", "replace"))[:80]
            return Garbled(f"The provider sent what is no completion: {shown!r}")
        return Dropped("The provider's stream ended before the answer began.")


def _list_of(body: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Garbled("The provider's list of models is not a JSON object.") from error


def _model_name(item: object) -> str:
    if not isinstance(item, dict):
        return ""
    fields = cast("dict[str, Any]", item)
    verbs = fields.get("supportedGenerationMethods")
    if isinstance(verbs, list) and "generateContent" not in verbs:
        return ""
    name = fields.get("name")
    return name.rpartition("models/")[2] if isinstance(name, str) else ""
