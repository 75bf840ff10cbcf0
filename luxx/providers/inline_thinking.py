"""Thinking that stands in the text of an answer, between tags such as `<think>`: some models write it without
being asked, others because their agent asks for it (`prompted_thinking`)."""

from enum import StrEnum

from luxx.providers.adapter import StreamParser
from luxx.wire.turn import (
    CitationDelta,
    Delta,
    ImageDelta,
    ReplayDelta,
    TextDelta,
    TextWasThinking,
    ThinkingDelta,
    UsageDelta,
)

MAX_BLANKS = 1_000
"""Characters of leading whitespace to hold back while waiting for a tag; past it, everything is text."""


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
        before, opening, _ = text.partition("<think>")
        start = 0
        while (found := before.find(self._close_tag, start)) >= 0:
            self._backticks += text.count("`", start, found)
            start = found + len(self._close_tag)
            if self._backticks % 2 == 0:
                return self._end_untagged(text[:found], text[start:], out)
        if opening:
            self.state = InlineState.TEXT
            return text
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


class InlineThinkingParser:
    """A parser whose text has its thinking apart, for dialects whose own parser takes all of it for text. A
    `StreamParser`."""

    def __init__(self, parser: StreamParser) -> None:
        self._parser = parser
        self._inline = InlineThinking()
        self.drain_seconds = parser.drain_seconds

    @property
    def is_done(self) -> bool:
        return self._parser.is_done

    def feed(self, piece: bytes) -> list[Delta]:
        return self._split(self._parser.feed(piece))

    def close(self) -> list[Delta]:
        return self._split(self._parser.close())

    def _split(self, deltas: list[Delta]) -> list[Delta]:
        out: list[Delta] = []
        for delta in deltas:
            match delta:
                case TextDelta(text=text):
                    self._inline.read(text, out)
                case UsageDelta() | CitationDelta() | ImageDelta() | ReplayDelta():
                    out.append(delta)
                case _:  # What follows the text, or is no text: a call, the end, thinking of its own.
                    self._inline.flush(out)
                    out.append(delta)
        return out
