"""The wildcards of permission rules: `*` for any text, `?` for one character, everything else for itself.

Run by RE2, so that no pattern and no argument can make a match slow.
"""

from functools import lru_cache
from typing import Any, cast

import re2

from luxx.errors import InvalidInput
from luxx.tools.pattern import Pattern

_RE2: Any = re2
_MAX_MEMORY = 8 << 20


def fits(pattern: str, text: str) -> bool:
    """Whether the whole text is as the pattern says."""
    if pattern == "*":
        return True
    if "*" not in pattern and "?" not in pattern:
        return pattern == text
    return _compiled(pattern).fullmatch(text) is not None


def check(pattern: str) -> None:
    """Raises InvalidInput for a pattern that cannot be run."""
    try:
        _compiled(pattern)
    except (_RE2.error, UnicodeEncodeError) as error:
        raise InvalidInput("this pattern is too large, or holds what is no text") from error


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> Pattern:
    options: Any = _RE2.Options()
    options.max_mem = _MAX_MEMORY
    options.log_errors = False
    parts = [{"*": ".*", "?": "."}.get(char) or cast(str, _RE2.escape(char)) for char in _joined(pattern)]
    return cast(Pattern, _RE2.compile("(?s)" + "".join(parts), options))


def _joined(pattern: str) -> str:
    """With each row of stars as one: they mean the same, and cost less."""
    while "**" in pattern:
        pattern = pattern.replace("**", "*")
    return pattern
