"""The content of the OpenAI dialect: chunks as Structs, token counts, tool calls, and the list of models.

Of tool calls, servers are known to send: no index, index 0 for every call, id and name on every fragment,
empty ids and names, null arguments, complete calls in one chunk, one id for several calls. Of token counts,
they differ in the fields for the cache, and in whether the prompt includes the tokens of the cache and the
completion those of the reasoning. The total and the sizes of the parts show which of them are counted beside.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, cast

import msgspec

from luxx.errors import MalformedStream
from luxx.providers.openai_chat.reasoning import google_signature
from luxx.providers.parsing import CUT_ARGUMENTS
from luxx.wire.turn import Delta, ToolCallDelta, Usage


class PromptDetails(msgspec.Struct):
    """`cache_write_tokens`: OpenRouter, Azure and OpenAI; `cache_creation_input_tokens`: Qwen;
    `cache_creation_tokens`: LiteLLM."""

    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_creation_tokens: int | None = None


class CompletionDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class ChunkUsage(msgspec.Struct):
    """`cached_tokens`: Moonshot and Together; `num_cached_tokens` and `prompt_token_details`: Mistral;
    `prompt_cache_hit_tokens`: DeepSeek; the `cache_…_input_tokens`: Databricks and gateways to Anthropic."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    reasoning_tokens: int | None = None
    cached_tokens: int | None = None
    num_cached_tokens: int | None = None
    prompt_cache_hit_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    prompt_token_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None


def usage_of(reported: ChunkUsage) -> Usage | None:
    """The counts with the cache in the prompt and the reasoning in the completion; None if there are none."""
    prompt, completion = _count(reported.prompt_tokens), _count(reported.completion_tokens)
    if not prompt and not completion:
        return None
    read, written = _cache_counts(reported)
    details = reported.completion_tokens_details
    reasoning = _count(details.reasoning_tokens if details else None, reported.reasoning_tokens)
    beside = max(0, _count(reported.total_tokens) - prompt - completion)
    cache = read + written
    if cache > prompt or (cache and beside in (cache, cache + reasoning)):
        prompt += cache
        beside = max(0, beside - cache)
    if reasoning > completion or 0 < reasoning <= beside:
        completion += reasoning
    elif beside and not reasoning:
        # Google's compatible endpoint reports its thoughts only as a part of the total.
        completion += beside
        reasoning = beside
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=max(_count(reported.total_tokens), prompt + completion),
        reasoning_tokens=reasoning,
        cached_tokens=read,
        cache_write_tokens=written,
    )


def _cache_counts(reported: ChunkUsage) -> tuple[int, int]:
    details = reported.prompt_tokens_details or reported.prompt_token_details or PromptDetails()
    read = _count(
        details.cached_tokens,
        reported.cached_tokens,
        reported.num_cached_tokens,
        reported.prompt_cache_hit_tokens,
        reported.cache_read_input_tokens,
    )
    written = _count(
        details.cache_write_tokens,
        details.cache_creation_input_tokens,
        details.cache_creation_tokens,
        reported.cache_creation_input_tokens,
    )
    return read, written


def _count(*reported: int | None) -> int:
    """The first count that is reported and not 0; some servers report one in several fields."""
    return next((count for count in reported if count and count > 0), 0)


MAX_BRACKETS = 100_000  # Of a fragment; no call has more.
_NO_BRACKETS = re.compile(r"[^{}\[\]]+")
_DEPTH_STEPS = {"{": 1, "[": 1, "}": -1, "]": -1}
_EMPTY_OBJECT = "{}"


class ChunkFunction(msgspec.Struct, gc=False):
    """`arguments` is a fragment of JSON text; some servers send the complete object instead."""

    name: str | None = None
    arguments: str | dict[str, Any] | list[Any] | None = None


class ChunkToolCall(msgspec.Struct, gc=False):
    """`extra_content` has the signature of a call of Google's models."""

    index: int | None = None
    id: str | None = None
    function: ChunkFunction | None = None
    extra_content: dict[str, Any] | None = None


class ContentPart(msgspec.Struct):
    """An item of `content` if a server sends a list: text, or reasoning with its own items.

    Mistral has the reasoning in `thinking`, Databricks in `summary`.
    """

    type: str | None = None
    text: str | None = None
    image_url: Any = None
    summary: "str | list[ContentPart | str] | None" = None
    thinking: "str | list[ContentPart | str] | None" = None


class ChunkMessage(msgspec.Struct):
    content: str | list[ContentPart | str] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: list[dict[str, Any]] | None = None
    refusal: str | None = None
    annotations: list[dict[str, Any]] | None = None
    images: list[dict[str, Any]] | None = None
    extra_content: dict[str, Any] | None = None
    tool_calls: list[ChunkToolCall] | None = None


class ChunkChoice(msgspec.Struct):
    """Moonshot reports `usage` here. `native_finish_reason`: the word of the provider behind OpenRouter."""

    index: int | None = None
    delta: ChunkMessage | None = None
    message: ChunkMessage | None = None
    finish_reason: str | None = None
    native_finish_reason: str | None = None
    usage: ChunkUsage | None = None
    error: Any = None


class GroqExtra(msgspec.Struct):
    usage: ChunkUsage | None = None
    error: Any = None


class OpenAIChunk(msgspec.Struct):
    """`citations` (addresses or objects) and `search_results`: Perplexity and xAI."""

    choices: list[ChunkChoice] | None = None
    usage: ChunkUsage | None = None
    x_groq: GroqExtra | None = None
    citations: Any = None
    search_results: Any = None
    error: Any = None
    object: str | None = None
    message: Any = None
    code: Any = None
    type: Any = None


class ToolCallReader:
    """Turns fragments into ToolCallDeltas; `new_id` makes the id of a call that has none."""

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._calls: list[_OpenAICall] = []
        self._by_index: dict[int, _OpenAICall] = {}
        self._by_id: dict[str, _OpenAICall] = {}

    @property
    def signatures(self) -> list[dict[str, str]]:
        """The signatures of the calls, as notes."""
        return [{"call": call.call_id, **call.signature} for call in self._calls if call.signature]

    def read(self, fragments: list[ChunkToolCall], out: list[Delta]) -> None:
        for position, fragment in enumerate(fragments):
            name, arguments = _name_and_arguments(fragment)
            call = self._call_of(fragment, position, name, arguments)
            if fragment.extra_content:
                call.signature = google_signature(fragment.extra_content) or call.signature
            self._append(call, name, arguments, out)

    def close(self, out: list[Delta], *, is_cut: bool) -> None:
        """Emits calls that never got a name, so that the run can answer them with an error.

        `is_cut`: the answer may have ended within a call, so one without arguments gets invalid JSON.
        """
        for call in self._calls:
            held_back = "".join(call.arguments) if call.is_held_back else ""
            if is_cut and not "".join(call.arguments).strip():
                held_back = CUT_ARGUMENTS
                call.arguments.append(held_back)
            call.is_held_back = False
            if not call.is_emitted:
                self._emit_first(call, out)
            elif held_back:
                out.append(call.delta(held_back))

    def _call_of(self, fragment: ChunkToolCall, position: int, name: str, arguments: str) -> "_OpenAICall":
        index, call_id = fragment.index, fragment.id or ""
        if index is not None:
            call = self._by_index.get(index)
        elif position and name and not call_id:
            call = None
        else:
            call = self._by_id.get(call_id) or (self._calls[-1] if self._calls else None)
        if call is None or _starts_new_call(call, call_id, name, arguments):
            # The same id for two calls would make their results indistinguishable.
            call = _OpenAICall(len(self._calls), "" if call_id in self._by_id else call_id)
            self._calls.append(call)
        elif call_id and not call.call_id and call_id not in self._by_id:
            call.call_id = call_id
        if call.call_id:
            self._by_id[call.call_id] = call
        if index is not None:
            self._by_index[index] = call
        return call

    def _append(self, call: "_OpenAICall", name: str, arguments: str, out: list[Delta]) -> None:
        held_back = "".join(call.arguments) if call.is_held_back else ""
        if arguments:
            if held_back and arguments.lstrip().startswith("{"):
                # The empty object stood in for the arguments, which begin here.
                call.arguments.clear()
                held_back = ""
            call.arguments.append(arguments)
            call.is_held_back = call.arguments == [_EMPTY_OBJECT]
        if call.is_emitted:
            if arguments and not call.is_held_back:
                out.append(call.delta(held_back + arguments))
        elif name:
            call.name = name
            self._emit_first(call, out)

    def _emit_first(self, call: "_OpenAICall", out: list[Delta]) -> None:
        call.is_emitted = True
        # OpenAI accepts ids of at most 40 characters.
        call.call_id = call.call_id or f"call_{self._new_id().replace('-', '')}"
        out.append(call.delta("" if call.is_held_back else "".join(call.arguments)))


@dataclass(slots=True, eq=False)
class _OpenAICall:
    """A call while its fragments arrive. `is_emitted`: its first delta, with id and name, was returned.

    `is_held_back`: its arguments so far were not returned, because they are an empty object: some servers
    send one in place of the arguments, which follow.
    """

    slot: int
    call_id: str
    name: str = ""
    arguments: list[str] = field(default_factory=list[str])
    is_emitted: bool = False
    signature: dict[str, str] | None = None
    is_held_back: bool = False
    _object_reader: "_ObjectReader" = field(default_factory=lambda: _ObjectReader())
    _scanned_count: int = 0

    def delta(self, arguments: str) -> ToolCallDelta:
        return ToolCallDelta(slot=self.slot, call_id=self.call_id, name=self.name, arguments=arguments)

    def is_complete(self) -> bool:
        """Whether the arguments so far are one complete JSON object. Scans each fragment only once."""
        if not self.arguments or not self.arguments[-1].rstrip().endswith("}"):
            return False
        for fragment in self.arguments[self._scanned_count :]:
            self._object_reader.read(fragment)
        self._scanned_count = len(self.arguments)
        return self._object_reader.has_ended


@dataclass(slots=True, eq=False)
class _ObjectReader:
    """Finds where the text of a JSON object ends, fed in fragments cut anywhere."""

    _start: str = ""
    _depth: int = 0
    _end_count: int = 0
    _in_string: bool = False
    _is_escaped: bool = False

    @property
    def has_ended(self) -> bool:
        return self._start == "{" and self._end_count == 1 and self._depth == 0 and not self._in_string

    def read(self, fragment: str) -> None:
        self._start = self._start or fragment.lstrip()[:1]
        # Backslashes stand in strings only.
        text = fragment[int(self._is_escaped) :].replace("\\\\", "").replace('\\"', "")
        # The escaped character may be in the next fragment.
        self._is_escaped = text.endswith("\\")
        parts = text.split('"')
        structure = "".join(parts[int(self._in_string) :: 2])
        self._in_string ^= len(parts) % 2 == 0
        brackets = _NO_BRACKETS.sub("", structure)[:MAX_BRACKETS]
        steps = map(_DEPTH_STEPS.__getitem__, brackets)
        depths = list(accumulate(steps, initial=self._depth))
        self._end_count += depths.count(0) - (self._depth == 0)
        self._depth = depths[-1]


def _name_and_arguments(fragment: ChunkToolCall) -> tuple[str, str]:
    function = fragment.function
    if function is None:
        return "", ""
    arguments = function.arguments or ""
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return function.name or "", arguments


def _starts_new_call(call: _OpenAICall, call_id: str, name: str, arguments: str) -> bool:
    """Whether a fragment that matches `call` by index or id, or follows it, begins another call."""
    if not name or (call_id and call_id == call.call_id):
        return False
    if call_id and call.call_id:
        # A new id alone does not start a call: some servers invent one for every fragment.
        return not call.is_emitted or name != call.name or call.is_complete() or not call.arguments
    if not call.name:
        return False
    if name == call.name and call.is_held_back and arguments.strip() != _EMPTY_OBJECT:
        return False
    return name != call.name or (bool(arguments) and call.is_complete())


def parse_models(body: bytes) -> list[str]:
    """The ids of a model list: `{"data": […]}`, `{"models": […]}` or a bare array."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedStream("The provider's list of models is not JSON.") from error
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        value = fields.get("data", fields.get("models"))
    if not isinstance(value, list):
        raise MalformedStream("The provider's list of models does not contain a list.")
    return [name for item in cast("list[object]", value) if (name := _model_name(item))]


def _model_name(item: object) -> str:
    if isinstance(item, str):
        return item
    if not isinstance(item, dict):
        return ""
    fields = cast("dict[str, Any]", item)
    return str(fields.get("id") or fields.get("name") or fields.get("model") or "")
