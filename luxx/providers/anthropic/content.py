"""Decodes events of the Anthropic dialect and assembles content blocks: as deltas, and complete for replay.

Only the client's own tools (`tool_use`) become calls; server tools and their results stay in the content.
"""

from collections.abc import Callable
from typing import Any, cast

import msgspec

from luxx.errors import MalformedStream
from luxx.providers.citations import Citations
from luxx.providers.parsing import (
    CUT_ARGUMENTS,
    check_values,
    json_objects,
    parse_arguments,
    parse_objects,
)
from luxx.wire.turn import Delta, HostedCallDelta, TextDelta, ThinkingDelta, ToolCallDelta

ContentBlock = dict[str, Any]


class OutputDetails(msgspec.Struct):
    thinking_tokens: int | None = None


class CacheCreation(msgspec.Struct):
    """The tokens written to the cache, by the time that they live there."""

    ephemeral_5m_input_tokens: int | None = None
    ephemeral_1h_input_tokens: int | None = None


class EventUsage(msgspec.Struct):
    """Cumulative counts; an absent count keeps its previous value."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_creation: CacheCreation | None = None
    output_tokens_details: OutputDetails | None = None

    @property
    def written_tokens(self) -> int:
        """The tokens written to the cache; some servers report only their parts."""
        parts = self.cache_creation or CacheCreation()
        in_parts = (parts.ephemeral_5m_input_tokens or 0) + (parts.ephemeral_1h_input_tokens or 0)
        return self.cache_creation_input_tokens or in_parts


class EventDelta(msgspec.Struct):
    """The delta of a block, or (`stop_reason`, `stop_details`) of the message."""

    type: str = ""
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    signature: str | None = None
    citation: Any = None
    content: Any = None
    encrypted_content: Any = None
    stop_reason: str | None = None
    stop_details: dict[str, Any] | None = None


class EventMessage(msgspec.Struct):
    model: str | None = None
    content: list[ContentBlock] | None = None
    usage: EventUsage | None = None


class AnthropicEvent(msgspec.Struct):
    """An event; also a complete message, which a server sends if it does not stream."""

    type: str = ""
    index: int | None = None
    delta: EventDelta | None = None
    content_block: ContentBlock | None = None
    message: Any = None
    usage: EventUsage | None = None
    error: Any = None
    model: str | None = None
    content: list[ContentBlock] | None = None
    stop_reason: str | None = None
    stop_details: dict[str, Any] | None = None


_decode = msgspec.json.Decoder(AnthropicEvent).decode


def decode_event(data: bytes) -> AnthropicEvent:
    """Raises MalformedStream if `data` is not a JSON object that can be an event."""
    check_values(data)
    try:
        return _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        objects = parse_objects(data)
    try:
        return msgspec.convert(objects[0] if objects else {}, AnthropicEvent, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        preview = data[:80].decode("utf-8", "replace")
        raise MalformedStream(f"The provider sent JSON that is not a message event: {preview!r}") from error


def message_of(event: AnthropicEvent) -> EventMessage:
    """The message in an event: that of `message_start`, or the event itself."""
    if event.type == "message":
        return EventMessage(model=event.model, content=event.content, usage=event.usage)
    try:
        return msgspec.convert(event.message, EventMessage, strict=False)
    except (msgspec.ValidationError, RecursionError):
        return EventMessage()


_EMPTY_INPUT = "{}"
_HOSTED = frozenset({"server_tool_use", "mcp_tool_use"})
_TAKES_INPUT = frozenset({"tool_use", *_HOSTED})


class OpenBlock:
    """A content block. `slot` numbers the calls, None for other blocks; `parts` is its text or its input."""

    __slots__ = ("fields", "is_closed", "is_input_emitted", "parts", "slot", "type")

    def __init__(self, fields: ContentBlock, slot: int | None) -> None:
        self.fields = fields
        self.type = str(fields.get("type", ""))
        self.slot = slot
        self.parts: list[str] = []
        self.is_input_emitted = False
        self.is_closed = False


class ContentReader:
    """Assembles blocks by their position; `new_id` makes the id of a call that has none.

    Positions continue when a second message begins in one stream. A delta's index selects the block at that
    position in all messages, as in the vendor's SDK.
    """

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._blocks: list[OpenBlock] = []
        self._calls = 0
        self._call_ids: set[str] = set()
        self._citations = Citations()

    @property
    def has_calls(self) -> bool:
        return self._calls > 0

    @property
    def has_text(self) -> bool:
        return any(block.type == "text" and any(block.parts) for block in self._blocks)

    def begin(self, fields: ContentBlock, out: list[Delta]) -> None:
        is_call = fields.get("type") == "tool_use"
        block = OpenBlock(fields, self._calls if is_call else None)
        self._blocks.append(block)
        if is_call:
            self._calls += 1
            fields["id"] = self._unique_id(_text(fields, "id"))
            fields["name"] = _text(fields, "name")
            out.append(_call_delta(block, ""))
        elif block.type == "text":
            _emit_text(block, _text(fields, "text"), TextDelta, out)
            for citation in json_objects(fields.get("citations")):
                self._cite(citation, out)
        elif block.type == "thinking":
            _emit_text(block, _text(fields, "thinking"), ThinkingDelta, out)

    def append(self, index: int | None, delta: EventDelta, out: list[Delta]) -> None:
        """Appends a delta to its block; a delta of the wrong type is ignored."""
        block = self._block_at(index)
        if block is None:
            return
        match delta.type, block.type:
            case "text_delta", "text":
                _emit_text(block, delta.text, TextDelta, out)
            case "thinking_delta", "thinking":
                _emit_text(block, delta.thinking, ThinkingDelta, out)
            case "signature_delta", "thinking":
                block.fields["signature"] = delta.signature or ""
            case "citations_delta", "text":
                citations = block.fields.get("citations")
                if not isinstance(citations, list):
                    citations = block.fields["citations"] = []
                cast("list[Any]", citations).append(delta.citation)
                self._cite(delta.citation, out)
            case "compaction_delta", "compaction":
                block.fields["content"] = delta.content
                if delta.encrypted_content is not None:
                    block.fields["encrypted_content"] = delta.encrypted_content
            case "input_json_delta", kind if (
                kind in _TAKES_INPUT and delta.partial_json and not block.is_closed
            ):
                self._append_input(block, delta.partial_json, out)
            case _:
                pass

    def _cite(self, citation: object, out: list[Delta]) -> None:
        """A citation of a page, or of a document, which is known by its title."""
        for fields in json_objects([citation]):
            url = fields.get("url") or fields.get("source")
            title = fields.get("title") or fields.get("document_title")
            self._citations.add(out, url, title, fields.get("cited_text"))

    def cite_results(self, out: list[Delta]) -> None:
        """Emits the pages that the server's search found, for an answer that cites none of them."""
        if not self._citations.has_any:
            for block in self._blocks:
                if block.type == "web_search_tool_result":
                    self._citations.add_listed(out, block.fields.get("content"))

    def stop(self, index: int | None, out: list[Delta]) -> None:
        block = self._block_at(index)
        if block is not None:
            self._emit_hosted(block, out)
            # The input is complete; what a second message adds at this index belongs to another call.
            block.is_closed = True

    def close(self, out: list[Delta], *, is_cut: bool) -> None:
        """Emits the arguments of calls that no delta brought. `is_cut`: the answer may have ended in a call.

        A call has no arguments only if its block was closed, in an answer that ended regularly. Else it gets
        invalid JSON, so that it is not run.
        """
        for block in self._blocks:
            self._emit_hosted(block, out)
            if block.slot is None or block.is_input_emitted:
                continue
            block.is_input_emitted = True
            given = block.fields.get("input")
            if block.parts:
                arguments = "".join(block.parts)
            elif given:
                arguments = msgspec.json.encode(given).decode()
            else:
                arguments = "{}" if block.is_closed and not is_cut else CUT_ARGUMENTS
            out.append(_call_delta(block, arguments))

    def _emit_hosted(self, block: OpenBlock, out: list[Delta]) -> None:
        """A call of a tool that ran at the provider, once, when its input is complete."""
        if block.type not in _HOSTED or block.is_input_emitted:
            return
        block.is_input_emitted = True
        arguments = msgspec.json.encode(_complete_block(block)["input"]).decode()
        name = _text(block.fields, "name") or block.type
        out.append(HostedCallDelta(call_id=_text(block.fields, "id"), name=name, arguments=arguments))

    def content(self) -> list[ContentBlock]:
        """The complete blocks, in order, as they must be sent back."""
        return [_complete_block(block) for block in self._blocks]

    def is_plain(self) -> bool:
        """Whether text and calls contain everything, so that the blocks need not be stored."""
        return all(_is_plain(block) for block in self._blocks)

    def _append_input(self, block: OpenBlock, fragment: str, out: list[Delta]) -> None:
        """Appends a fragment. An empty object is held back: with some servers the arguments follow it."""
        if block.parts == [_EMPTY_INPUT] and fragment.lstrip().startswith("{"):
            block.parts.clear()
        block.parts.append(fragment)
        if block.slot is None or block.parts == [_EMPTY_INPUT]:
            return
        out.append(_call_delta(block, fragment if block.is_input_emitted else "".join(block.parts)))
        block.is_input_emitted = True

    def _unique_id(self, call_id: str) -> str:
        # The same id for two calls would make their results indistinguishable.
        if not call_id or call_id in self._call_ids:
            call_id = f"toolu_{self._new_id().replace('-', '')}"
        self._call_ids.add(call_id)
        return call_id

    def _block_at(self, index: int | None) -> OpenBlock | None:
        if index is None or not 0 <= index < len(self._blocks):
            # With a wrong index, the newest block is meant.
            return self._blocks[-1] if self._blocks else None
        return self._blocks[index]


def _complete_block(block: OpenBlock) -> ContentBlock:
    fields = dict(block.fields)
    if block.type in ("text", "thinking"):
        fields[block.type] = "".join(block.parts)
    elif block.type in _TAKES_INPUT:
        fields["input"] = parse_arguments("".join(block.parts)) if block.parts else fields.get("input") or {}
    if not fields.get("citations", True):
        del fields["citations"]
    return fields


def _is_plain(block: OpenBlock) -> bool:
    match block.type:
        case "text":
            return not block.fields.get("citations")
        case "tool_use":
            caller = block.fields.get("caller")
            return not caller or caller == {"type": "direct"}
        case _:
            return False


def _call_delta(block: OpenBlock, arguments: str) -> ToolCallDelta:
    return ToolCallDelta(
        slot=block.slot or 0, call_id=block.fields["id"], name=block.fields["name"], arguments=arguments
    )


def _emit_text(
    block: OpenBlock, text: str | None, kind: type[TextDelta] | type[ThinkingDelta], out: list[Delta]
) -> None:
    if text:
        block.parts.append(text)
        out.append(kind(text=text))


def _text(fields: ContentBlock, name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""
