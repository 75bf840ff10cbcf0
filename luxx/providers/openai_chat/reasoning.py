"""The reasoning of the OpenAI dialect: what must be sent back, and thinking that is inline in the content.

A replay note names the field of the reasoning text (`FIELD_KEY`), the blocks of `reasoning_details`, and the
signatures that Google's models put on calls and texts (`SIGNATURES_KEY`).
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, cast

from luxx.providers.parsing import json_objects
from luxx.wire.turn import Delta, TextDelta, TextWasThinking, ThinkingDelta

FIELD_KEY = "reasoning_field"
SIGNATURES_KEY = "google_signatures"
"""The keys in `replay`, besides REASONING_DETAILS_KEY."""

INLINE_FIELD = "inline"
"""The value at FIELD_KEY of reasoning between `<think>` tags in the content."""

MAX_BLANKS = 1_000
"""Characters of leading whitespace to hold back while waiting for a tag; past it, everything is text."""

_JOINED_FIELDS = ("text", "summary")
_VENDORS = ("google", "vertex")
"""The keys of `extra_content` under which Google's endpoints and gateways to them send signatures."""


def google_signature(extra: object) -> dict[str, str] | None:
    """The signature in the `extra_content` of a message or a call, as a note; None if there is none."""
    if not isinstance(extra, dict):
        return None
    fields = cast("dict[str, Any]", extra)
    for vendor in _VENDORS:
        inner = fields.get(vendor)
        signature = (
            cast("dict[str, Any]", inner).get("thought_signature") if isinstance(inner, dict) else None
        )
        if isinstance(signature, str) and signature:
            return {"vendor": vendor, "signature": signature}
    return None


def is_google_thought(extra: dict[str, Any]) -> bool:
    """Whether the `extra_content` of a message marks its content as a thought."""
    google = extra.get("google")
    return isinstance(google, dict) and cast("dict[str, Any]", google).get("thought") is True


def signed_content(replay: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The `extra_content` to send back, by the id of its call; that of the message at an empty id.

    The notes may come from an imported file, so invalid ones are dropped.
    """
    by_call: dict[str, dict[str, Any]] = {}
    for note in json_objects(replay.get(SIGNATURES_KEY)):
        vendor, signature, call_id = note.get("vendor"), note.get("signature"), note.get("call", "")
        if vendor in _VENDORS and isinstance(signature, str) and signature and isinstance(call_id, str):
            by_call[call_id] = {vendor: {"thought_signature": signature}}
    return by_call


class ReasoningDetails:
    """Collects the `reasoning_details` of all chunks, read in order."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []

    def read(self, details: list[dict[str, Any]]) -> None:
        """Joins fragments of one reasoning block: the same type and index, and no `data`."""
        for detail in details:
            last = self._blocks[-1] if self._blocks else None
            if last is None or "data" in detail or not last.continues_with(detail):
                last = _Block()
                self._blocks.append(last)
            last.append(detail)

    def blocks(self) -> list[dict[str, Any]]:
        """The blocks as they must be sent back."""
        return [block.to_json() for block in self._blocks]


@dataclass(slots=True, eq=False)
class _Block:
    """A reasoning block. The pieces of `_texts` replace the fields of the same name in `to_json`."""

    _fields: dict[str, Any] = field(default_factory=dict[str, Any])
    _texts: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def continues_with(self, detail: dict[str, Any]) -> bool:
        return all(self._fields.get(key) == detail.get(key) for key in ("type", "index"))

    def append(self, detail: dict[str, Any]) -> None:
        for key, value in detail.items():
            if key in _JOINED_FIELDS and isinstance(value, str):
                self._texts.setdefault(key, []).append(value)
                self._fields[key] = None  # Keeps the order of the keys.
            elif value is not None or key not in self._fields:
                self._fields[key] = value

    def to_json(self) -> dict[str, Any]:
        return self._fields | {key: "".join(parts) for key, parts in self._texts.items()}


class InlineState(StrEnum):
    """`UNTAGGED`: text that a closing tag alone would make thinking; `TEXT`: text that stays text."""

    START = "start"
    THINKING = "thinking"
    UNTAGGED = "untagged"
    TEXT = "text"


class InlineThinking:
    """Splits content into thinking and text at tags such as `<think>`; the thinking is kept verbatim.

    Templates of some models contain the opening tag, so that their content has the closing tag alone: all
    text before it was thinking. A closing tag in code does not count.
    """

    def __init__(self) -> None:
        self.state = InlineState.START
        self.has_thinking = False
        self._pending = ""
        self._close_tag = _TAGS["<think>"]
        self._has_text = False
        self._backticks = 0

    def read(self, text: str, out: list[Delta]) -> None:
        if self.state is InlineState.UNTAGGED and not self._pending and "<" not in text:
            self._backticks += text.count("`")
            self._emit_untagged(text, out)
            return
        text = self._pending + text
        self._pending = ""
        if self.state is InlineState.START:
            text = self._read_start(text)
        if self.state is InlineState.THINKING and text:
            text = self._read_thinking(text, out)
        if self.state is InlineState.UNTAGGED and text:
            text = self._read_untagged(text, out)
        if self.state is InlineState.TEXT and text:
            out.append(TextDelta(text=text))

    def flush(self, out: list[Delta]) -> None:
        """Emits text that was held back as a possible tag start. Later content cannot start a tag."""
        pending, self._pending = self._pending, ""
        if self.state is InlineState.THINKING:
            if pending:
                out.append(ThinkingDelta(text=pending))
            return
        self.state = InlineState.TEXT
        if pending:
            out.append(TextDelta(text=pending))

    def _read_start(self, text: str) -> str:
        stripped = text.lstrip()
        for tag, close_tag in _TAGS.items():
            if stripped.startswith(tag):
                self.state = InlineState.THINKING
                self.has_thinking = tag == "<think>"
                self._close_tag = close_tag
                return stripped[len(tag) :]
        if len(text) <= MAX_BLANKS and any(tag.startswith(stripped) for tag in _TAGS):
            self._pending = text
            return ""
        self.state = InlineState.UNTAGGED
        return text

    def _read_thinking(self, text: str, out: list[Delta]) -> str:
        thinking, tag, rest = text.partition(self._close_tag)
        if tag:
            self.state = InlineState.TEXT
        else:
            thinking, self._pending = _without_tag_start(text, self._close_tag)
        if thinking:
            out.append(ThinkingDelta(text=thinking))
        return rest

    def _read_untagged(self, text: str, out: list[Delta]) -> str:
        """Emits the text up to a closing tag, or all of it. Returns the text after the tag."""
        if "<think>" in text:
            self.state = InlineState.TEXT
            return text
        start = 0
        while (found := text.find(self._close_tag, start)) >= 0:
            self._backticks += text.count("`", start, found)
            start = found + len(self._close_tag)
            if self._backticks % 2 == 0:
                return self._end_untagged(text[:found], text[start:], out)
        text, self._pending = _without_tag_start(text, "<think>", self._close_tag)
        self._backticks += text.count("`", start)
        self._emit_untagged(text, out)
        return ""

    def _emit_untagged(self, text: str, out: list[Delta]) -> None:
        if text:
            self._has_text = True
            out.append(TextDelta(text=text))

    def _end_untagged(self, thinking: str, rest: str, out: list[Delta]) -> str:
        self.state = InlineState.TEXT
        if self._has_text:
            self._emit_untagged(thinking, out)
            out.append(TextWasThinking())
        elif thinking:
            out.append(ThinkingDelta(text=thinking))
        return rest


_TAGS = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",
    "[THINK]": "[/THINK]",
}
"""`<thought>`: Google's compatible endpoint; `[THINK]`: Magistral."""


def _without_tag_start(text: str, *tags: str) -> tuple[str, str]:
    """The text before a possible beginning of one of the tags at its end, and that beginning."""
    for tag in tags:
        start = text.rfind(tag[0], max(0, len(text) - len(tag) + 1))
        if start >= 0 and tag.startswith(text[start:]):
            return text[:start], text[start:]
    return text, ""
