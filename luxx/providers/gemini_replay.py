"""What goes back to Gemini unchanged: which part carried which signature, and parts that are not ours.

Written by the parser beside an answer, read when that answer is a part of a later prompt. Text is not
stored twice: a note holds how many characters of the message's own text each part had.
"""

from collections.abc import Callable
from typing import Any, cast

import msgspec

from luxx.wire.message import AssistantPrompt
from luxx.wire.tool import ToolCall

KEY = "gemini"
"""The dialect's key in a ReplayDelta; its value is a list of notes, one per part, in order."""

MAX_PART_BYTES = 256 * 1024
"""A part that is not ours and larger is not stored: generated pictures are megabytes."""

Part = dict[str, Any]


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
            part = cast("Part", note["part"]) if isinstance(note["part"], dict) else None
        elif "thought" in note:
            text = prompt.thinking[thought : thought + _length(note, "thought")]
            thought += len(text)
            # Thoughts alone are only a summary for people; with a signature they are the model's own.
            part = {"text": text, "thought": True} if has_thoughts and "signature" in note else None
        else:
            text = prompt.text[said : said + _length(note, "text")]
            said += len(text)
            part = {"text": text} if text or "signature" in note else None
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
    return length if isinstance(length, int) else 0


def _signed(part: Part, note: dict[str, Any]) -> Part:
    signature = note.get("signature")
    return {**part, "thoughtSignature": signature} if isinstance(signature, str) else part
