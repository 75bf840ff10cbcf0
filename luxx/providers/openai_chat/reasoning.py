"""The reasoning of the OpenAI dialect: what must be sent back, and thinking that is inline in the content.

A replay note names the field of the reasoning text (`FIELD_KEY`), the blocks of `reasoning_details`, and the
signatures that Google's models put on calls and texts (`SIGNATURES_KEY`).
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, cast

from luxx.providers.parsing import json_objects
from luxx.wire.turn import Delta, TextDelta, ThinkingDelta

FIELD_KEY = "reasoning_field"
DETAILS_KEY = "reasoning_details"
SIGNATURES_KEY = "google_signatures"
"""The keys in `replay`."""

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
    START = "start"
    THINKING = "thinking"
    TEXT = "text"


class InlineThinking:
    """Splits content into thinking and text at `<think>` tags; the thinking is kept verbatim."""

    def __init__(self) -> None:
        self.state = InlineState.START
        self.has_thinking = False
        self._pending = ""

    def read(self, text: str, out: list[Delta]) -> None:
        text = self._pending + text
        self._pending = ""
        if self.state is InlineState.START:
            text = self._read_start(text)
        if self.state is InlineState.THINKING and text:
            text = self._read_thinking(text, out)
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
        if stripped.startswith(_OPEN_TAG):
            self.state = InlineState.THINKING
            self.has_thinking = True
            return stripped[len(_OPEN_TAG) :]
        if _OPEN_TAG.startswith(stripped) and len(text) <= MAX_BLANKS:
            self._pending = text
            return ""
        self.state = InlineState.TEXT
        return text

    def _read_thinking(self, text: str, out: list[Delta]) -> str:
        thinking, tag, rest = text.partition(_CLOSE_TAG)
        if tag:
            self.state = InlineState.TEXT
        else:
            thinking, self._pending = _without_tag_start(text)
        if thinking:
            out.append(ThinkingDelta(text=thinking))
        return rest


_OPEN_TAG = "<think>"
_CLOSE_TAG = "</think>"


def _without_tag_start(text: str) -> tuple[str, str]:
    """The text before a possible beginning of `</think>` at its end, and that beginning."""
    start = text.rfind("<", max(0, len(text) - len(_CLOSE_TAG) + 1))
    if start >= 0 and _CLOSE_TAG.startswith(text[start:]):
        return text[:start], text[start:]
    return text, ""
