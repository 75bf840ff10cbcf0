"""Reasoning that open models write inline: `<think>…</think>` at the very start of the text.

Anywhere else the tag is text: an answer may well talk about it.
"""

from enum import StrEnum

from luxx.wire.delta import Delta, TextDelta, ThinkingDelta

_OPEN = "<think>"
_CLOSE = "</think>"

MAX_BLANKS = 1_000
"""Characters before a tag that are waited for; past them, what comes is text."""


class TextPlace(StrEnum):
    START = "start"
    THINKING = "thinking"
    TEXT = "text"


class InlineThinking:
    """Splits text into thinking and text; every character between the tags is kept as it came."""

    def __init__(self) -> None:
        self.place = TextPlace.START
        self._held = ""

    def read(self, text: str, out: list[Delta]) -> None:
        text = self._held + text
        self._held = ""
        if self.place is TextPlace.START:
            text = self._read_start(text)
        if self.place is TextPlace.THINKING and text:
            text = self._read_thinking(text, out)
        if self.place is TextPlace.TEXT and text:
            out.append(TextDelta(text=text))

    def flush(self, out: list[Delta]) -> None:
        """What was held back because a tag might have begun there; no tag can begin after this."""
        held, self._held = self._held, ""
        if self.place is TextPlace.THINKING:
            if held:
                out.append(ThinkingDelta(text=held))
            return
        self.place = TextPlace.TEXT
        if held:
            out.append(TextDelta(text=held))

    def _read_start(self, text: str) -> str:
        begun = text.lstrip()
        if begun.startswith(_OPEN):
            self.place = TextPlace.THINKING
            return begun[len(_OPEN) :]
        if _OPEN.startswith(begun) and len(text) <= MAX_BLANKS:
            self._held = text
            return ""
        self.place = TextPlace.TEXT
        return text

    def _read_thinking(self, text: str, out: list[Delta]) -> str:
        thinking, tag, rest = text.partition(_CLOSE)
        if tag:
            self.place = TextPlace.TEXT
        else:
            thinking, self._held = _without_tag_start(text)
        if thinking:
            out.append(ThinkingDelta(text=thinking))
        return rest


def _without_tag_start(text: str) -> tuple[str, str]:
    at = text.rfind("<", max(0, len(text) - len(_CLOSE) + 1))
    if at >= 0 and _CLOSE.startswith(text[at:]):
        return text[:at], text[at:]
    return text, ""
