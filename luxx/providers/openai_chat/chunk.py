"""The chunks of the OpenAI dialect as Structs, with only the fields that `adapter.py` reads.

Chunks are decoded strictly, or field by field if a server breaks the schema.
"""

import json
from typing import Any, cast

import msgspec

from luxx.errors import MalformedStream


class ChunkFunction(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | None = None


class ChunkToolCall(msgspec.Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: ChunkFunction | None = None


class ContentPart(msgspec.Struct):
    """An item of `content` if a server sends a list: text, or thinking with its own items."""

    type: str = ""
    text: str | None = None
    thinking: "str | list[ContentPart] | None" = None


class ChunkMessage(msgspec.Struct):
    content: str | list[ContentPart] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: list[dict[str, Any]] | None = None
    refusal: str | None = None
    tool_calls: list[ChunkToolCall] | None = None


class ChunkChoice(msgspec.Struct):
    index: int | None = None
    delta: ChunkMessage | None = None
    message: ChunkMessage | None = None
    finish_reason: str | None = None
    error: Any = None


class PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class CompletionDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class ChunkUsage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    reasoning_tokens: int | None = None
    cached_tokens: int | None = None
    prompt_cache_hit_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None


class GroqExtra(msgspec.Struct):
    usage: ChunkUsage | None = None
    error: Any = None


class OpenAIChunk(msgspec.Struct):
    choices: list[ChunkChoice] | None = None
    usage: ChunkUsage | None = None
    x_groq: GroqExtra | None = None
    error: Any = None
    object: str | None = None
    message: Any = None
    code: Any = None
    type: Any = None


_decode = msgspec.json.Decoder(OpenAIChunk).decode


def decode_chunk(data: bytes) -> OpenAIChunk:
    """One chunk, or a complete response. Raises MalformedStream if it is not a JSON object."""
    try:
        return _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _decode_leniently(data)


def _decode_leniently(data: bytes) -> OpenAIChunk:
    try:
        value = json.loads(data.decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError) as error:
        preview = data[:80].decode("utf-8", "replace")
        raise MalformedStream(f"The provider sent invalid JSON: {preview!r}") from error
    if value is None:
        return OpenAIChunk()
    if isinstance(value, list) and value:
        value = cast("object", value[0])
    if not isinstance(value, dict):
        raise MalformedStream(
            f"The provider sent JSON that is not an object: {str(cast('object', value))[:80]!r}"
        )
    fields = cast("dict[str, Any]", value)
    groq = _object(fields.get("x_groq"))
    return OpenAIChunk(
        choices=[_choice(item) for item in _objects(fields.get("choices"))],
        usage=_usage(fields.get("usage")),
        x_groq=GroqExtra(usage=_usage(groq.get("usage")), error=groq.get("error")),
        error=fields.get("error"),
        object=_text(fields.get("object")),
        message=fields.get("message"),
        code=fields.get("code"),
        type=fields.get("type"),
    )


def _choice(fields: dict[str, Any]) -> ChunkChoice:
    delta, message = fields.get("delta"), fields.get("message")
    return ChunkChoice(
        index=_number(fields.get("index")),
        delta=_message(cast("dict[str, Any]", delta)) if isinstance(delta, dict) else None,
        message=_message(cast("dict[str, Any]", message)) if isinstance(message, dict) else None,
        finish_reason=_text(fields.get("finish_reason")),
        error=fields.get("error"),
    )


def _message(fields: dict[str, Any]) -> ChunkMessage:
    content = fields.get("content")
    return ChunkMessage(
        content=_parts(cast("list[object]", content)) if isinstance(content, list) else _text(content),
        reasoning_content=_text(fields.get("reasoning_content")),
        reasoning=_text(fields.get("reasoning")),
        reasoning_details=_objects(fields.get("reasoning_details")),
        refusal=_text(fields.get("refusal")),
        tool_calls=[_tool_call(item) for item in _objects(fields.get("tool_calls"))],
    )


def _parts(items: list[object]) -> list[ContentPart]:
    parts: list[ContentPart] = []
    for item in items:
        if isinstance(item, str):
            parts.append(ContentPart(type="text", text=_text(item)))
        elif isinstance(item, dict):
            fields = cast("dict[str, Any]", item)
            inner = fields.get("thinking")
            thinking = _parts(cast("list[object]", inner)) if isinstance(inner, list) else _text(inner)
            parts.append(
                ContentPart(
                    type=_text(fields.get("type")) or "", text=_text(fields.get("text")), thinking=thinking
                )
            )
    return parts


def _tool_call(fields: dict[str, Any]) -> ChunkToolCall:
    function = _object(fields.get("function"))
    arguments = function.get("arguments")
    if isinstance(arguments, dict | list):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return ChunkToolCall(
        index=_number(fields.get("index")),
        id=_text(fields.get("id")),
        function=ChunkFunction(name=_text(function.get("name")), arguments=_text(arguments)),
    )


def _usage(value: object) -> ChunkUsage | None:
    if not isinstance(value, dict):
        return None
    fields = cast("dict[str, Any]", value)
    prompt = _object(fields.get("prompt_tokens_details"))
    completion = _object(fields.get("completion_tokens_details"))
    return ChunkUsage(
        prompt_tokens=_number(fields.get("prompt_tokens")),
        completion_tokens=_number(fields.get("completion_tokens")),
        total_tokens=_number(fields.get("total_tokens")),
        reasoning_tokens=_number(fields.get("reasoning_tokens")),
        cached_tokens=_number(fields.get("cached_tokens")),
        prompt_cache_hit_tokens=_number(fields.get("prompt_cache_hit_tokens")),
        prompt_tokens_details=PromptDetails(cached_tokens=_number(prompt.get("cached_tokens"))),
        completion_tokens_details=CompletionDetails(
            reasoning_tokens=_number(completion.get("reasoning_tokens"))
        ),
    )


def _object(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _objects(value: object) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        return []
    return [cast("dict[str, Any]", item) for item in cast("list[object]", value) if isinstance(item, dict)]


def _text(value: object) -> str | None:
    if isinstance(value, str):
        # Some servers send lone surrogates, which cannot be encoded in UTF-8.
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return None


def _number(value: object) -> int | None:
    if isinstance(value, str) and value.isdecimal():
        return int(value)
    if isinstance(value, int | float) and value == value and abs(value) < 2**53:
        return int(value)
    return None
