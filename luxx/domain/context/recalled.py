"""The part of a prompt with remembered facts: which of them fit, and how they are written.

It stands behind the history, where a provider's cache ends, because other facts fit each message. A fact is
text that somebody wrote once, perhaps a web page; so each is one quoted line, which nothing in it can end.
"""

from collections.abc import Iterable

import msgspec

from luxx.domain.context.prompt import SectionKind, TextSection
from luxx.domain.context.tokens import text_tokens
from luxx.wire.memory import RECALLED_TITLE, RecalledFact

RECALLED_TOKENS = 1500
"""The most tokens of the section."""

UNTRUSTED = "(from a source that nobody has checked) "

_OWNER = "memory"
_encode = msgspec.json.Encoder().encode
_LINE_BREAKS = {ord(each): f"\\u{ord(each):04x}" for each in "\x85\u2028\u2029"}
"""JSON leaves these as they are, but some readers take them for the end of a line."""


def fitting(facts: Iterable[RecalledFact]) -> list[RecalledFact]:
    """The facts that fit the section, the first ones first; one that is too long is passed over."""
    left = RECALLED_TOKENS - text_tokens(RECALLED_TITLE)
    found: list[RecalledFact] = []
    for fact in facts:
        tokens = text_tokens(_line(fact)) + 1
        if tokens <= left:
            left -= tokens
            found.append(fact)
    return found


def recalled_section(facts: Iterable[RecalledFact]) -> TextSection:
    """The section of facts that fit."""
    text = "\n".join([RECALLED_TITLE, *map(_line, facts)])
    return TextSection(kind=SectionKind.MEMORY, owner=_OWNER, text=text)


def _line(fact: RecalledFact) -> str:
    mark = "" if fact.is_trusted else UNTRUSTED
    return f"- {mark}{_encode(fact.text).decode().translate(_LINE_BREAKS)}"
