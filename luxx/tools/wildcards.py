"""The wildcards of permission rules: `*` for any text, `?` for one character, everything else for itself.

Run by RE2, so that no pattern and no argument can make a match slow.
"""

from functools import lru_cache
from typing import Any, cast

import re2

from luxx.errors import InvalidInput
from luxx.tools.pattern import Pattern

_RE2: Any = re2
MOST_WILDCARDS = 20
"""In one pattern: each makes a match slower, and a call may be matched with many."""

_MAX_MEMORY = 8 << 20
_ANY_WORDS = r"(?:\x00[^\x00]*)*"


def fits(pattern: str, text: str) -> bool:
    """Whether the whole text is as the pattern says."""
    if pattern == "*":
        return True
    if "*" not in pattern and "?" not in pattern:
        return pattern == text
    return _compiled(pattern).fullmatch(text) is not None


def joined(words: tuple[str, ...]) -> str:
    """Words as one text in which they stay apart."""
    return "".join(f"\0{word}" for word in words)


def fits_words(pattern: tuple[str, ...], text: str) -> bool:
    """Word by word, of words that are `joined`; a `*` that stands alone is any number of words, none too."""
    return _compiled_words(pattern).fullmatch(text) is not None


def check(pattern: str) -> None:
    """Raises InvalidInput for a pattern that cannot be run, or not fast."""
    if sum(map(_joined(pattern).count, "*?")) > MOST_WILDCARDS:
        raise InvalidInput(f"this pattern has more than {MOST_WILDCARDS} wildcards")
    try:
        _compiled(pattern)
    except (_RE2.error, UnicodeEncodeError) as error:
        raise InvalidInput("this pattern is too large, or holds what is no text") from error


@lru_cache(maxsize=4096)
def _compiled_words(pattern: tuple[str, ...]) -> Pattern:
    parts: list[str] = []
    for word in pattern:
        if word != "*":
            parts.append("\\x00" + "".join(map(_in_word, _joined(word))))
        elif not parts or parts[-1] != _ANY_WORDS:
            parts.append(_ANY_WORDS)
    return cast(Pattern, _RE2.compile("(?s)" + "".join(parts), _options()))


def _in_word(char: str) -> str:
    return {"*": "[^\\x00]*", "?": "[^\\x00]"}.get(char) or cast(str, _RE2.escape(char))


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> Pattern:
    parts = [{"*": ".*", "?": "."}.get(char) or cast(str, _RE2.escape(char)) for char in _joined(pattern)]
    return cast(Pattern, _RE2.compile("(?s)" + "".join(parts), _options()))


def _options() -> Any:
    options: Any = _RE2.Options()
    options.max_mem = _MAX_MEMORY
    options.log_errors = False
    return options


def _joined(pattern: str) -> str:
    """With each row of stars as one: they mean the same, and cost less."""
    while "**" in pattern:
        pattern = pattern.replace("**", "*")
    return pattern
