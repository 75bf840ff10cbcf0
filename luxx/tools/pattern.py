"""Patterns that users and models write: regular expressions, file globs and wildcards.

All of them run on RE2, in linear time.
"""

import re
from functools import lru_cache
from typing import Any, Protocol, cast

import re2

from luxx.errors import InvalidInput, ToolFailed

MAX_PATTERN_LENGTH = 1000
_RE2: Any = re2
# Memory limit of one compiled pattern, in bytes; the library caches up to 128 of them.
_MAX_MEMORY = 1 << 20
# Characters times instructions. In the worst case it takes one or two seconds; a search cannot be cancelled.
_MAX_WORK = 100_000_000


class CompiledPattern(Protocol):
    """The methods of a compiled RE2 pattern that Luxx uses."""

    def search(self, text: Any) -> Any: ...

    def fullmatch(self, text: Any) -> Any: ...

    @property
    def programsize(self) -> int: ...


def compile_regex(pattern: str, *, ignore_case: bool = False) -> CompiledPattern:
    """Raises ToolFailed for what RE2 does not support (look-around, back-references) or finds too big."""
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise ToolFailed(f"the pattern is longer than {MAX_PATTERN_LENGTH} characters")
    options = _options(_MAX_MEMORY)
    # Callers need only the position of the match, and capturing groups multiply the work.
    options.never_capture = True
    options.case_sensitive = not ignore_case
    try:
        return cast(CompiledPattern, _RE2.compile(pattern, options))
    except (_RE2.error, UnicodeEncodeError) as error:
        message: Any = cast(Exception, error).args[0]
        text = message.decode("utf-8", "replace") if isinstance(message, bytes) else str(message)
        raise ToolFailed(
            f"the pattern is not a regular expression RE2 can run ({text}); "
            "it has no look-around and no back-references"
        ) from error


def max_searchable_length(pattern: CompiledPattern) -> int:
    """How many characters may be searched at once: a whole file with a small pattern, some thousand with the
    largest."""
    return max(_MAX_WORK // max(pattern.programsize, 1), 1)


def compile_glob(glob: str) -> CompiledPattern:
    """Compile a glob over a relative path with `/`: `*`, `?`, `[a-z]`, `[!a]`, `{a,b}` and `**`."""
    return compile_regex(_glob_to_regex(glob))


_GLOB_TOKEN = re.compile(r"\*\*/|\*\*|\[.[^\]]*\]|.", re.DOTALL)


def _glob_to_regex(glob: str) -> str:
    parts = ["(?s)"]
    depth = 0
    for token in _GLOB_TOKEN.findall(glob):
        depth += (token == "{") - (token == "}" and depth > 0)
        match token:
            case "**/":
                parts.append("(?:.*/)?")
            case "**":
                parts.append(".*")
            case "*":
                parts.append("[^/]*")
            case "?":
                parts.append("[^/]")
            case "{":
                parts.append("(?:")
            case "}":
                parts.append(")")
            case "," if depth:
                parts.append("|")
            case _:
                parts.append(_glob_class(token[1:-1]) if len(token) > 1 else cast(str, _RE2.escape(token)))
    return "".join(parts)


def _glob_class(content: str) -> str:
    negated = content.startswith(("!", "^"))
    body = content[1:] if negated else content
    escaped = body.replace("\\", "\\\\").replace("[", "\\[").replace("^", "\\^")
    return f"[^/{escaped}]" if negated else f"[{escaped}]"


MAX_WILDCARDS = 20
"""Limit for one pattern: each wildcard makes a match slower, and a call is matched with many patterns."""

_WILDCARD_MEMORY = 8 << 20
_ANY_WORDS = r"(?:\x00[^\x00]*)*"


def matches_wildcards(pattern: str, text: str) -> bool:
    """Whether the pattern matches the whole text."""
    if pattern == "*":
        return True
    if "*" not in pattern and "?" not in pattern:
        return pattern == text
    return _compiled(pattern).fullmatch(text) is not None


def join_words(words: tuple[str, ...]) -> str:
    """The words as one text, each after a NUL character."""
    return "".join(f"\0{word}" for word in words)


def matches_words(pattern: tuple[str, ...], text: str) -> bool:
    """Match word by word a text made by `join_words`. A `*` that is a word of its own matches any number of
    words, including none."""
    return _compiled_words(pattern).fullmatch(text) is not None


def check_wildcards(pattern: str) -> None:
    """Raises InvalidInput for a pattern that cannot be compiled or has too many wildcards."""
    if sum(map(_collapse_stars(pattern).count, "*?")) > MAX_WILDCARDS:
        raise InvalidInput(f"this pattern has more than {MAX_WILDCARDS} wildcards")
    try:
        _compiled(pattern)
    except (_RE2.error, UnicodeEncodeError) as error:
        raise InvalidInput("this pattern is too large or contains invalid characters") from error


@lru_cache(maxsize=4096)
def _compiled_words(pattern: tuple[str, ...]) -> CompiledPattern:
    parts: list[str] = []
    for word in pattern:
        if word != "*":
            parts.append("\\x00" + "".join(map(_word_regex, _collapse_stars(word))))
        elif not parts or parts[-1] != _ANY_WORDS:
            parts.append(_ANY_WORDS)
    return cast(CompiledPattern, _RE2.compile("(?s)" + "".join(parts), _options(_WILDCARD_MEMORY)))


def _word_regex(char: str) -> str:
    return {"*": "[^\\x00]*", "?": "[^\\x00]"}.get(char) or cast(str, _RE2.escape(char))


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> CompiledPattern:
    parts = [
        {"*": ".*", "?": "."}.get(char) or cast(str, _RE2.escape(char)) for char in _collapse_stars(pattern)
    ]
    return cast(CompiledPattern, _RE2.compile("(?s)" + "".join(parts), _options(_WILDCARD_MEMORY)))


def _options(max_memory: int) -> Any:
    options: Any = _RE2.Options()
    options.max_mem = max_memory
    options.log_errors = False
    return options


def _collapse_stars(pattern: str) -> str:
    """Replace consecutive stars by one, which matches the same at a lower cost."""
    while "**" in pattern:
        pattern = pattern.replace("**", "*")
    return pattern
