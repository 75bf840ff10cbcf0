"""Text in Unicode's composed form (NFC), in time that grows with the text only."""

import re
import unicodedata
from functools import cache

MAX_MARKS = 30
"""How many combining marks may follow a letter: the bound of Unicode's stream-safe form (UAX #15). Sorting a
run of them takes quadratic time, and holds the interpreter's lock meanwhile."""

PIECE = 50_000
"""So many characters are searched for marks at once, so that other threads get the interpreter's lock."""

_MARKS_IN = range(0x300, 0x20000)
"""Where Unicode has combining marks."""


def composed(text: str) -> str:
    """The text with letter and accent combined into one character where Unicode has one. Of a run of marks
    that have to be sorted, most of those past MAX_MARKS are left out."""
    if unicodedata.is_normalized("NFC", text):
        return text
    # A run that spans two pieces keeps up to MAX_MARKS in each.
    pieces = [text[start : start + PIECE] for start in range(0, len(text), PIECE)]
    cut = "".join(_long_run().sub(lambda run: run[0][:MAX_MARKS], piece) for piece in pieces)
    return unicodedata.normalize("NFC", cut)


@cache
def _long_run() -> re.Pattern[str]:
    """Matches more than MAX_MARKS characters in a row that are marks, or begin with one when decomposed."""
    codes = {code for code in _MARKS_IN if _is_mark(chr(code))}
    starts = sorted(code for code in codes if code - 1 not in codes)
    ends = sorted(code for code in codes if code + 1 not in codes)
    marks = "".join(f"{chr(start)}-{chr(end)}" for start, end in zip(starts, ends, strict=True))
    return re.compile(f"[{marks}]{{{MAX_MARKS + 1},}}")


def _is_mark(char: str) -> bool:
    return unicodedata.combining(unicodedata.normalize("NFD", char)[0]) != 0
