"""What goes back to Gemini unchanged: which part carried which signature, and parts that are not ours.

Written by the parser beside an answer, read when that answer is a part of a later prompt. Text is not
stored twice: a note holds how many characters of the message's own text each part had.
"""

import re
from collections.abc import Callable
from typing import Any, cast

import msgspec

from luxx.wire.message import AssistantPrompt
from luxx.wire.tool import ToolCall

KEY = "gemini"
"""The dialect's key in a ReplayDelta; its value is a list of notes, one per part, in order."""

MAX_PART_BYTES = 256 * 1024
"""A part that is not ours and larger is not stored: generated pictures are megabytes."""

KEPT_PARTS = (
    "executableCode",
    "codeExecutionResult",
    "toolCall",
    "toolResponse",
    "inlineData",
    "fileData",
)
"""What a part is noted for: kinds that no delta stands for."""

Part = dict[str, Any]

_NOT_KEPT = ("text", "functionCall", "functionResponse")
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/_-]{4})*(?:[A-Za-z0-9+/_-]{2,3}={0,2})?")


class PartNotes:
    """Notes the parts of one answer as they come; neighbouring fragments without a signature are one."""

    def __init__(self) -> None:
        self._notes: list[dict[str, Any]] = []
        self._by_call: dict[str, dict[str, Any]] = {}
        self._is_needed = False

    def spoke(self, text: str, signature: str, *, is_thought: bool) -> None:
        kind = "thought" if is_thought else "text"
        # Without a note, the text of an answer goes before its calls.
        self._is_needed |= bool(text and self._by_call and not is_thought)
        last = self._notes[-1] if self._notes else {}
        if text and not signature and kind in last and "signature" not in last:
            last[kind] += len(text)
        elif text or signature:
            self._note({kind: len(text)}, signature)

    def called(self, call_id: str, signature: str) -> None:
        """A fragment of a call; of a streamed one, any fragment may bring the signature."""
        known = self._by_call.get(call_id)
        if known is None:
            self._by_call[call_id] = self._note({"call": call_id}, signature)
        elif signature:
            known["signature"] = signature
            self._is_needed = True

    def other(self, part: Part) -> None:
        """A part of a kind that no delta stands for, such as code the server ran."""
        if len(msgspec.json.encode(part)) <= MAX_PART_BYTES:
            self._is_needed = True
            self._notes.append({"part": part})

    def replay(self) -> dict[str, Any]:
        """What to store; empty where the message's own text and calls say it all."""
        return {KEY: self._notes} if self._is_needed else {}

    def _note(self, note: dict[str, Any], signature: str) -> dict[str, Any]:
        if signature:
            note["signature"] = signature
            self._is_needed = True
        self._notes.append(note)
        return note


def parts_of(prompt: AssistantPrompt, call_part: Callable[[ToolCall], Part]) -> list[Part]:
    """The parts of an earlier answer, each signature on the part it came with.

    Where the message's text is no longer the one that was noted, its text is one part, without its
    signatures; calls keep theirs.
    """
    notes = _notes(prompt)
    if sum(_length(note, "text") for note in notes) != len(prompt.text):
        notes = [{"text": len(prompt.text)}, *(note for note in notes if "call" in note)]
    has_thoughts = sum(_length(note, "thought") for note in notes) == len(prompt.thinking)
    calls = {call.call_id: call for call in prompt.tool_calls}
    parts: list[Part] = []
    said = thought = 0
    for note in notes:
        part: Part | None = None
        if "call" in note:
            call = calls.pop(str(note["call"]), None)
            part = call_part(call) if call is not None else None
        elif "part" in note:
            part = _other_part(note["part"])
        elif "thought" in note:
            text = prompt.thinking[thought : thought + _length(note, "thought")]
            thought += len(text)
            # Thoughts alone are only a summary for people; with a signature they are the model's own.
            part = {"text": text, "thought": True} if has_thoughts and _signature(note) else None
        else:
            text = prompt.text[said : said + _length(note, "text")]
            said += len(text)
            part = {"text": text} if text or _signature(note) else None
        if part is not None:
            parts.append(_signed(part, note))
    return parts + [call_part(call) for call in calls.values()]


def _notes(prompt: AssistantPrompt) -> list[dict[str, Any]]:
    kept = prompt.replay.get(KEY)
    if not isinstance(kept, list):
        return []
    return [cast("dict[str, Any]", note) for note in cast("list[object]", kept) if isinstance(note, dict)]


def _length(note: dict[str, Any], kind: str) -> int:
    length = note.get(kind)
    return max(0, length) if isinstance(length, int) else 0


def _other_part(part: object) -> Part | None:
    """A part as `other` noted it. An imported note may hold anything; a call in it would have no result."""
    if not isinstance(part, dict):
        return None
    known = cast("Part", part)
    is_kept = any(isinstance(known.get(kind), dict) for kind in KEPT_PARTS)
    return known if is_kept and all(known.get(kind) is None for kind in _NOT_KEPT) else None


def _signature(note: dict[str, Any]) -> str:
    signature = note.get("signature")
    return signature if isinstance(signature, str) and _BASE64.fullmatch(signature) else ""


def _signed(part: Part, note: dict[str, Any]) -> Part:
    signature = _signature(note)
    return {**part, "thoughtSignature": signature} if signature else part
