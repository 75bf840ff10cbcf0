"""The reasoning of the OpenAI dialect that must be sent back.

A replay note names the field of the reasoning text (`FIELD_KEY`), the blocks of `reasoning_details`, and the
signatures that Google's models put on calls and texts (`SIGNATURES_KEY`).
"""

from dataclasses import dataclass, field
from typing import Any, cast

from luxx.providers.parsing import json_objects

FIELD_KEY = "reasoning_field"
SIGNATURES_KEY = "google_signatures"
"""The keys in `replay`, besides REASONING_DETAILS_KEY."""

INLINE_FIELD = "inline"
"""The value at FIELD_KEY of reasoning between `<think>` tags in the content."""

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
