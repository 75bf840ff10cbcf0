"""The content of the Responses dialect: events as Structs, and the output items that they build.

Events belong to an item by `output_index`: some servers change the item's id from event to event. A stream
may start in the middle of an item, and servers leave out deltas, so what no delta gave is read from the
complete item.
"""

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from luxx.providers.parsing import (
    CUT_ARGUMENTS,
    check_values,
    decode_leniently,
    json_objects,
    parse_arguments,
)
from luxx.wire.source import source_of
from luxx.wire.turn import (
    CitationDelta,
    Delta,
    HostedCallDelta,
    ImageDelta,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
)

CALL_TYPES = frozenset({"function_call", "custom_tool_call"})
"""The items that are calls of the client's tools; a custom tool takes free text."""

HOSTED_ARGUMENTS = {
    "code_interpreter_call": ("code",),
    "file_search_call": ("queries",),
    "image_generation_call": ("revised_prompt",),
    "mcp_call": ("server_label",),
    "mcp_list_tools": ("server_label",),
    "web_search_call": ("action",),
}
"""The calls of tools that run at the provider, and which of their fields are shown as arguments."""

_BETWEEN_PARTS = "\n\n"


class InputCounts(msgspec.Struct, gc=False):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class OutputCounts(msgspec.Struct, gc=False):
    reasoning_tokens: int | None = None


class ResponsesUsage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    input_tokens_details: InputCounts | None = None
    output_tokens_details: OutputCounts | None = None


class IncompleteDetails(msgspec.Struct, gc=False):
    reason: str | None = None


class ResponsesObject(msgspec.Struct):
    """A response, in the events of its life and as a body. `output` has its items."""

    object: str | None = None
    status: str | None = None
    output: list[dict[str, Any]] | None = None
    error: Any = None
    incomplete_details: IncompleteDetails | None = None
    usage: ResponsesUsage | None = None


class ResponsesEvent(msgspec.Struct):
    type: str | None = None
    output_index: int | None = None
    content_index: int | None = None
    summary_index: int | None = None
    delta: str | None = None
    item: dict[str, Any] | None = None
    annotation: dict[str, Any] | None = None
    response: ResponsesObject | None = None
    error: Any = None


_decode_event = msgspec.json.Decoder(ResponsesEvent).decode
_decode_response = msgspec.json.Decoder(ResponsesObject).decode


def decode_event(data: bytes) -> ResponsesEvent:
    """One event. Raises MalformedStream if it is not a JSON object."""
    check_values(data)
    try:
        return _decode_event(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        events = decode_leniently(data, ResponsesEvent)
        return events[0] if events else ResponsesEvent()


def decode_response(data: bytes) -> ResponsesObject:
    """The body of a request that did not stream. Raises MalformedStream if it is not a JSON object."""
    check_values(data)
    try:
        return _decode_response(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        responses = decode_leniently(data, ResponsesObject)
        return responses[0] if responses else ResponsesObject()


@dataclass(slots=True, eq=False)
class OutputItem:
    """An item while its events arrive. The counts are of characters and citations that were returned."""

    kind: str = ""
    text_length: int = 0
    thinking_part: tuple[str, int] | None = None
    citations: int = 0
    refusal: list[str] = field(default_factory=list[str])
    slot: int | None = None
    call_id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list[str])
    final: dict[str, Any] | None = None


class OutputReader:
    """Reads the items of one response; `items` are by their index."""

    def __init__(self, new_call_id: Callable[[], str]) -> None:
        self.items: dict[int, OutputItem] = {}
        self._new_id = new_call_id
        self._call_ids: set[str] = set()
        self._calls = 0
        self._last_index = 0
        self._has_thinking = False

    @property
    def has_calls(self) -> bool:
        """Whether the response calls tools of the client."""
        return self._calls > 0

    @property
    def refusal(self) -> str:
        """The model's own words with which it declined."""
        return "".join(part for item in self._in_order() for part in item.refusal)

    def at(self, index: int | None) -> OutputItem:
        """The item of an event; without an index, that of the event before it."""
        if index is None:
            index = self._last_index
        self._last_index = index
        item = self.items.get(index)
        if item is None:
            item = self.items[index] = OutputItem()
        return item

    def add_thinking(self, event: ResponsesEvent, kind: str, out: list[Delta]) -> None:
        """A fragment of a summary or of open reasoning."""
        if not event.delta:
            return
        item = self.at(event.output_index)
        index = event.summary_index if kind == "summary" else event.content_index
        self._emit_thinking(item, (kind, index or 0), event.delta, out)

    def add_citation(self, event: ResponsesEvent, out: list[Delta]) -> None:
        """A source of the text so far."""
        self.at(event.output_index).citations += 1
        _emit_citation(event.annotation or {}, out)

    def add_arguments(self, event: ResponsesEvent, out: list[Delta]) -> None:
        """A fragment of a call's arguments; it is returned once the call's name is known."""
        if not event.delta:
            return
        item = self.at(event.output_index)
        item.arguments.append(event.delta)
        if item.slot is not None:
            out.append(_call_delta(item, event.delta))

    def begin(self, event: ResponsesEvent, out: list[Delta]) -> None:
        """An item begins. Its fields are not complete yet, apart from the name and the id of a call."""
        fields = event.item or {}
        item = self.at(event.output_index)
        item.kind = str(fields.get("type") or "")
        if item.kind in CALL_TYPES:
            self._begin_call(item, fields, out)

    def finish(self, fields: dict[str, Any], index: int | None, out: list[Delta]) -> None:
        """The complete item; returns what no delta gave. Only the first complete form of an item counts."""
        item = self.at(index)
        if item.final is not None:
            return
        item.final = fields
        item.kind = str(fields.get("type") or item.kind)
        match item.kind:
            case "message":
                self._finish_message(item, fields, out)
            case "reasoning":
                self._finish_reasoning(item, fields, out)
            case "function_call" | "custom_tool_call":
                self._finish_call(item, fields, out)
            case kind if kind in HOSTED_ARGUMENTS:
                _emit_hosted_call(fields, out)
                _emit_image(fields, out)
            case _:
                pass

    def complete(self, output: list[dict[str, Any]], out: list[Delta]) -> None:
        """The items in the last event; they count where the stream gave none, or not the complete one."""
        is_empty = not self.items
        for index, fields in enumerate(output):
            item = self.items.get(index)
            if is_empty or (item is not None and item.kind in ("", fields.get("type"))):
                self.finish(fields, index, out)

    def close(self, out: list[Delta], *, is_cut: bool) -> None:
        """The response ended; `is_cut`: maybe within a call, so one without arguments gets invalid JSON."""
        for item in self._in_order():
            if item.kind in CALL_TYPES and item.slot is None:
                self._begin_call(item, item.final or {}, out, is_last=True)
            if item.slot is not None and is_cut and not "".join(item.arguments).strip():
                out.append(_call_delta(item, CUT_ARGUMENTS))

    def _in_order(self) -> list[OutputItem]:
        return [self.items[index] for index in sorted(self.items)]

    def _emit_thinking(self, item: OutputItem, part: tuple[str, int], text: str, out: list[Delta]) -> None:
        if item.thinking_part != part and self._has_thinking:
            out.append(ThinkingDelta(text=_BETWEEN_PARTS))
        item.thinking_part = part
        self._has_thinking = True
        out.append(ThinkingDelta(text=text))

    def _begin_call(
        self, item: OutputItem, fields: dict[str, Any], out: list[Delta], *, is_last: bool = False
    ) -> None:
        """Returns the first delta of a call once its name is known, at the latest with the last event."""
        name = fields.get("name")
        if item.slot is not None or not (name or is_last):
            return
        item.name = str(name or "")
        call_id = str(fields.get("call_id") or fields.get("id") or "")
        if not call_id or call_id in self._call_ids:
            call_id = f"call_{self._new_id().replace('-', '')}"
        self._call_ids.add(call_id)
        item.call_id, item.slot = call_id, self._calls
        self._calls += 1
        out.append(_call_delta(item, "".join(item.arguments)))

    def _finish_call(self, item: OutputItem, fields: dict[str, Any], out: list[Delta]) -> None:
        self._begin_call(item, fields, out, is_last=True)
        whole = fields.get("arguments" if item.kind == "function_call" else "input")
        if isinstance(whole, str) and whole and not item.arguments:
            item.arguments.append(whole)
            out.append(_call_delta(item, whole))

    def _finish_message(self, item: OutputItem, fields: dict[str, Any], out: list[Delta]) -> None:
        parts = json_objects(fields.get("content"))
        if not item.text_length:
            text = "".join(str(part.get("text") or "") for part in parts if part.get("type") != "refusal")
            if text:
                item.text_length = len(text)
                out.append(TextDelta(text=text))
        if not item.refusal:
            item.refusal = [str(part["refusal"]) for part in parts if part.get("refusal")]
        annotations = [each for part in parts for each in json_objects(part.get("annotations"))]
        for annotation in annotations[item.citations :]:
            _emit_citation(annotation, out)

    def _finish_reasoning(self, item: OutputItem, fields: dict[str, Any], out: list[Delta]) -> None:
        if item.thinking_part is not None:
            return
        for kind, key in (("summary", "summary"), ("text", "content")):
            for index, part in enumerate(json_objects(fields.get(key))):
                if isinstance(text := part.get("text"), str) and text:
                    self._emit_thinking(item, (kind, index), text, out)


def _call_delta(item: OutputItem, arguments: str) -> ToolCallDelta:
    assert item.slot is not None
    return ToolCallDelta(slot=item.slot, call_id=item.call_id, name=item.name, arguments=arguments)


def _emit_citation(annotation: dict[str, Any], out: list[Delta]) -> None:
    url, title = annotation.get("url"), annotation.get("title") or annotation.get("filename")
    if url or title:
        out.append(CitationDelta(source=source_of(str(url or ""), str(title or ""), "")))


def _emit_hosted_call(fields: dict[str, Any], out: list[Delta]) -> None:
    kind = str(fields["type"])
    arguments = {name: fields[name] for name in HOSTED_ARGUMENTS[kind] if fields.get(name) is not None}
    if isinstance(called := fields.get("arguments"), str):
        arguments |= parse_arguments(called)
    name = fields.get("name") if kind == "mcp_call" else None
    out.append(
        HostedCallDelta(
            call_id=str(fields.get("id") or ""),
            name=str(name or kind.removesuffix("_call")),
            arguments=msgspec.json.encode(arguments).decode(),
        )
    )


def _emit_image(fields: dict[str, Any], out: list[Delta]) -> None:
    result = fields.get("result") if fields["type"] == "image_generation_call" else None
    if not isinstance(result, str) or not result:
        return
    try:
        data = b64decode(result)
    except (Base64Error, ValueError):
        return
    out.append(ImageDelta(media_type=f"image/{fields.get('output_format') or 'png'}", data=data))
