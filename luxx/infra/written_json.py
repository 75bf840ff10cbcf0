"""Reads the JSON that models write somewhere in a text: in a code block, with comments, trailing commas or
single quotes. Pure; the time is bounded by the length of the text."""

import json
import re
from collections.abc import Iterator
from typing import Any

MAX_TEXT = 200_000
"""Characters of a text that are searched."""

MAX_FAILURES = 200
"""Brackets that begin no JSON value; each may cost as much as reading the whole text."""

_FENCE = re.compile(r"```[a-zA-Z0-9]*[ \t]*\n(.*?)```", re.DOTALL)
_START = re.compile(r"[{\[]")
_LIKE_JSON = re.compile(r"""[{\[]\s*["'{\[]|\{\s*(?:\}|/[/*]|[A-Za-z_]+\s*:)""")
_STRING = r'"(?:[^"\\]|\\.)*+"' + r"|'(?:[^'\\]|\\.)*+'"
_COMMENT = r"//[^\n]*+|/\*.*?\*/|\#[^\n]*+"
_LENIENT = re.compile(rf"{_STRING}|{_COMMENT}|\b(?:True|False|None)\b", re.DOTALL)
_TRAILING_COMMA = re.compile(rf"{_STRING}|,(?=\s*[}}\]])", re.DOTALL)
_BRACKETS = re.compile(rf"{_STRING}|{_COMMENT}|[{{}}\[\]]", re.DOTALL)
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
_decoder = json.JSONDecoder(strict=False)


def written_values(text: str) -> Iterator[Any]:
    """The JSON objects and lists in the text that are not part of another, then those in its code blocks."""
    text = text[:MAX_TEXT]
    for candidate in (text, *_FENCE.findall(text)):
        yield from _values(candidate)


def _values(text: str) -> Iterator[Any]:
    """The JSON objects and lists in a text that are not part of another; what is between them is skipped.

    A value that cannot be read is skipped whole: what is inside it may be a part of what was meant.
    """
    position = failures = 0
    while failures < MAX_FAILURES and (match := _START.search(text, position)) is not None:
        start = match.start()
        try:
            value, position = _decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            failures += 1
            if _LIKE_JSON.match(text, start) is None:
                position = start + 1
                continue
            position = _end_of_value(text, start)
            try:
                value = _decoder.raw_decode(_as_json(text[start:position]))[0]
            except (ValueError, RecursionError):
                continue
        yield value


def _end_of_value(text: str, start: int) -> int:
    """Where the bracket at `start` is closed; the end of the text if it is not."""
    depth = 0
    for match in _BRACKETS.finditer(text, start):
        character = match.group()
        depth += (character in ("{", "[")) - (character in ("}", "]"))
        if depth == 0:
            return match.end()
    return len(text)


def _as_json(text: str) -> str:
    """The text without comments and trailing commas, with double quotes and the constants of JSON."""
    return _TRAILING_COMMA.sub(
        lambda match: "" if match.group() == "," else match.group(), _LENIENT.sub(_json_token, text)
    )


def _json_token(match: re.Match[str]) -> str:
    token = match.group()
    if token.startswith('"'):
        return token
    if token.startswith("'"):
        inner = token[1:-1].replace("\\'", "'").replace('\\"', '"').replace('"', '\\"')
        return f'"{inner}"'
    return _PYTHON_WORDS.get(token, "")
