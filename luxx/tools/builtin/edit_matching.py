"""Finds the text to replace in a file, exactly or approximately, because models misquote text. Pure.

It tries six strategies from the strictest on and takes the first that finds something. Line ends are `\\n`.
The replacement of an approximate match gets the match's indentation and escapes.
"""

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from itertools import accumulate
from typing import NamedTuple

import msgspec

MAX_TEXT_EDITS = 100_000
"""Limit for the matches, because their list takes more memory than the file."""

MAX_NEAR_CHARACTERS = 1_000_000
"""Longer texts get only the exact strategies, because the others hold several copies of a text."""

_MIN_BLOCK_SIMILARITY = 0.5
_MAX_BLOCK_LINES = 1000
_MAX_BLOCKS = 1000
_MAX_COMPARED_CHARACTERS = 4_000_000
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "'": "'", '"': '"', "`": "`", "\\": "\\", "$": "$", "\n": "\n"}
_ESCAPE = re.compile(r"\\([ntr'\"`\\$\n])")
_ESCAPE_WITHIN_LINE = re.compile(r"\\([t'\"`\\$])")
_LETTER_OR_ESCAPE = re.compile(r"\\[t'\"`\\$]|[\s\S]")
_INDENT = re.compile(r"[ \t]*")
_WORD = re.compile(r"\w+|[^\w\s]")


class Strategy(StrEnum):
    """In the order in which they are tried."""

    SIMPLE = "simple"
    ESCAPE_NORMALIZED = "escape_normalized"
    LINE_TRIMMED = "line_trimmed"
    INDENTATION_FLEXIBLE = "indentation_flexible"
    WHITESPACE_NORMALIZED = "whitespace_normalized"
    BLOCK_ANCHOR = "block_anchor"


class TextEdit(NamedTuple):
    """Replace the characters [start, end) by `new`."""

    start: int
    end: int
    new: str


class MatchResult(msgspec.Struct, frozen=True):
    """One or more edits in order, without overlaps; at most MAX_TEXT_EDITS + 1."""

    strategy: Strategy
    text_edits: list[TextEdit]


def find(text: str, old: str, new: str, *, wants_all: bool = False) -> MatchResult | None:
    """The edits that replace `old`, which is not empty, by `new`; None if it is not found.

    Without `wants_all`, indentation may select one of several matches.
    """
    if text_edits := _exact(text, old, new):
        return MatchResult(Strategy.SIMPLE, text_edits)
    if text_edits := _unescaped(text, old, new):
        return MatchResult(Strategy.ESCAPE_NORMALIZED, text_edits)
    if max(len(text), len(old)) > MAX_NEAR_CHARACTERS or not old.strip():
        return None
    lines = _Lines(text)
    if positions := _escaped_positions(lines, old):
        # Any other strategy would insert `new` without the escapes that it needs there.
        text_edits = _escaped_lines(lines, positions, old, new)
        return MatchResult(Strategy.ESCAPE_NORMALIZED, text_edits) if text_edits else None
    if trimmed_match := _trimmed(lines, old, new, wants_all=wants_all):
        return trimmed_match
    if text_edits := _any_whitespace(text, old, new):
        return MatchResult(Strategy.WHITESPACE_NORMALIZED, text_edits)
    if text_edits := _anchored(lines, old, new):
        return MatchResult(Strategy.BLOCK_ANCHOR, text_edits)
    return None


def similarity(one: Counter[str], other: Counter[str]) -> float:
    """From 0, nothing in common, to 1, the same words in any order."""
    size = one.total() + other.total()
    return 2 * (one & other).total() / size if size else 1.0


def common_ends(old: list[str], new: list[str]) -> tuple[int, int]:
    """How many parts are the same at the begin, and how many of the others at the end."""
    head = _common_length(old, new)
    return head, _common_length(old[head:][::-1], new[head:][::-1])


def _common_length(old: Sequence[str], new: Sequence[str]) -> int:
    """The length of the common prefix."""
    pairs = enumerate(zip(old, new, strict=False))
    return next((at for at, pair in pairs if pair[0] != pair[1]), min(len(old), len(new)))


def split_words(text: str) -> list[str]:
    # Not with `findall`, which holds the interpreter's lock until the end of the text.
    return [word[0] for word in _WORD.finditer(text)]


class _Lines:
    """A text by lines; `starts` are the offsets of the lines."""

    def __init__(self, text: str) -> None:
        self.bodies = text.split("\n")
        self.starts = [0, *accumulate(len(body) + 1 for body in self.bodies)]

    def text_edit(self, first: int, count: int, new: str, *, with_end: bool) -> TextEdit:
        """Replace `count` lines from `first` on. `with_end`: and the newline after the last, if any."""
        last = first + count - 1
        end = self.starts[last] + len(self.bodies[last])
        return TextEdit(self.starts[first], end + (with_end and last + 1 < len(self.bodies)), new)


class _Searched(NamedTuple):
    """`old` as lines, without the newline at its end, and `new` as lines that replace them."""

    old: list[str]
    new: list[str]
    with_end: bool
    """Whether the newline after the lines is replaced, too."""


def _searched(old: str, new: str) -> _Searched:
    with_end = old.endswith("\n") and not new.endswith("\n")
    if old.endswith("\n") and new.endswith("\n"):
        new = new[:-1]
    while old.startswith("\n") and new.startswith("\n"):
        old, new = old[1:], new[1:]
    return _Searched(old.removesuffix("\n").split("\n"), new.split("\n"), with_end)


# --- exactly, and by escapes ------------------------------------------------------------------------


def _exact(text: str, old: str, new: str) -> list[TextEdit]:
    text_edits: list[TextEdit] = []
    position = text.find(old)
    while position != -1 and len(text_edits) <= MAX_TEXT_EDITS:
        text_edits.append(TextEdit(position, position + len(old), new))
        position = text.find(old, position + len(old))
    return text_edits


def _unescaped(text: str, old: str, new: str) -> list[TextEdit]:
    """Unescape both texts, if `old` was escaped once too often. Ignores an `old` of only whitespace."""
    unescaped_old, replacement = (
        _ESCAPE.sub(_letter, original_text).replace("\r\n", "\n") for original_text in (old, new)
    )
    return _exact(text, unescaped_old, replacement) if unescaped_old.strip() and unescaped_old != old else []


def _escaped_positions(lines: _Lines, old: str) -> list[int]:
    """The first lines of matches in which the text has escapes and `old` has none."""

    def plain(body: str) -> str:
        return _ESCAPE_WITHIN_LINE.sub(_letter, body)

    if not any("\\" in body for body in lines.bodies):
        return []
    return _find_lines(lines, _searched(old, "").old, plain)


def _escaped_lines(lines: _Lines, positions: list[int], old: str, new: str) -> list[TextEdit]:
    """Edits that keep the escapes of what `old` and `new` have in common at begin and end. Empty if the rest
    of `new` needs escapes, because these depend on the language."""
    if len(new) > MAX_NEAR_CHARACTERS:
        return []
    searched = _searched(old, new)
    old_parts, new_parts = (
        _LETTER_OR_ESCAPE.findall("\n".join(side)) for side in (searched.old, searched.new)
    )
    head, tail = common_ends(old_parts, new_parts)
    middle = new_parts[head : len(new_parts) - tail]
    text_edits: list[TextEdit] = []
    for at in positions:
        text_edit = lines.text_edit(at, len(searched.old), "", with_end=searched.with_end)
        real = _LETTER_OR_ESCAPE.findall("\n".join(lines.bodies[at : at + len(searched.old)]))
        escaped = {_ESCAPES[letter[1]] for letter in real if len(letter) == 2}
        if not escaped.isdisjoint(middle):
            return []
        replacement = "".join([*real[:head], *middle, *real[len(real) - tail :]])
        text_edits.append(text_edit._replace(new=replacement))
    return text_edits


def _letter(escape: re.Match[str]) -> str:
    return _ESCAPES[escape[1]]


# --- by lines ---------------------------------------------------------------------------------------


def _find_lines(lines: _Lines, searched: list[str], change: Callable[[str], str]) -> list[int]:
    """First lines of the matches, without overlaps, after `change` was applied to all lines."""
    changed = [change(body) for body in lines.bodies]
    starts = [0, *accumulate(len(body) + 1 for body in changed)]
    expected = [change(body) for body in searched]
    return [bisect_right(starts, position) - 1 for position in _find_sequence(changed, expected, "\n")]


def _find_sequence(pieces: list[str], expected: list[str], between: str) -> list[int]:
    """Offsets, in the joined pieces, of the expected sequence of whole pieces; without overlaps."""
    text = between.join(["", *pieces, ""])
    row = between.join(["", *expected, ""])
    positions: list[int] = []
    position = text.find(row)
    while position != -1 and len(positions) <= MAX_TEXT_EDITS:
        positions.append(position)
        # The separator at the end may be the separator before the next match.
        position = text.find(row, position + len(row) - 1)
    return positions


def _trimmed(lines: _Lines, old: str, new: str, *, wants_all: bool) -> MatchResult | None:
    """Lines that differ only in leading and trailing whitespace. Of several matches, if one is wanted, the
    only one with the same relative indentation."""
    searched = _searched(old, new)
    count = len(searched.old)
    positions = _find_lines(lines, searched.old, str.strip)
    if not positions:
        return None
    strategy = Strategy.LINE_TRIMMED
    if len(positions) > 1 and not wants_all:
        dedented = _dedented(searched.old)
        same_indents = [at for at in positions if _dedented(lines.bodies[at : at + count]) == dedented]
        if len(same_indents) == 1:
            strategy, positions = Strategy.INDENTATION_FLEXIBLE, same_indents
    text_edits: list[TextEdit] = []
    for at in positions:
        fitted = _indented(searched.new, zip(searched.old, lines.bodies[at : at + count], strict=True))
        text_edits.append(lines.text_edit(at, count, fitted, with_end=searched.with_end))
    return MatchResult(strategy, text_edits)


def _dedented(bodies: Sequence[str]) -> list[str]:
    """The lines without their common indentation and without trailing whitespace."""
    indents = [_indent(body) for body in bodies if body.strip()]
    # The common prefix of the smallest and the largest is the common prefix of all.
    shared = _common_length(min(indents, default=""), max(indents, default=""))
    return [body[shared:].rstrip() for body in bodies]


def _indented(new: list[str], pairs: Iterable[tuple[str, str]]) -> str:
    """The new lines with the indentation of the text. `pairs`: a searched line and the line in the text."""
    real: dict[str, str] = {}
    for searched, body in pairs:
        if searched.strip():
            real.setdefault(_indent(searched), _indent(body))
    known_indents = sorted(real, key=len, reverse=True)

    def fit(line: str) -> str:
        if not line.strip():
            return line
        nearest = next((indent for indent in known_indents if line.startswith(indent)), None)
        return line if nearest is None else real[nearest] + line[len(nearest) :]

    return "\n".join(fit(line) for line in new)


def _indent(body: str) -> str:
    indent = _INDENT.match(body)
    return indent[0] if indent else ""


# --- by words ---------------------------------------------------------------------------------------


def _any_whitespace(text: str, old: str, new: str) -> list[TextEdit]:
    """Matches with different whitespace between the words, also across lines. Words are separated by
    whitespace and match as a whole. A single word cannot match this way."""
    expected = old.split()
    if len(expected) < 2:
        return []
    spans: list[tuple[int, int]] = []
    pieces: list[str] = []
    for piece in re.finditer(r"\S+", text):
        spans.append(piece.span())
        pieces.append(piece[0])
    starts = [0, *accumulate(len(piece) + 1 for piece in pieces)]
    if old[:1].isspace():
        new = new.lstrip()
    if old[-1:].isspace():
        new = new.rstrip()
    firsts = (bisect_right(starts, position) - 1 for position in _find_sequence(pieces, expected, " "))
    return [TextEdit(spans[first][0], spans[first + len(expected) - 1][1], new) for first in firsts]


def _anchored(lines: _Lines, old: str, new: str) -> list[TextEdit]:
    """Blocks that begin and end with the same lines as `old` and share at least half of the words; of several
    with the same first line, the most similar."""
    searched = _searched(old, new)
    bodies = [body.strip() for body in lines.bodies]
    first, *middle, last = [body.strip() for body in searched.old] if len(searched.old) > 1 else ["", ""]
    begins = [at for at, body in enumerate(bodies) if body == first]
    if not first or not last or not middle or len(middle) > _MAX_BLOCK_LINES or len(begins) > _MAX_BLOCKS:
        return []
    blocks = _Blocks(bodies, middle, last)
    text_edits: list[TextEdit] = []
    free_from = 0
    for at in begins:
        if at >= free_from and (end := blocks.most_similar_end(at)) is not None:
            pair = [(searched.old[0], lines.bodies[at]), (searched.old[-1], lines.bodies[end])]
            fitted = _indented(searched.new, pair)
            text_edits.append(lines.text_edit(at, end - at + 1, fitted, with_end=searched.with_end))
            free_from = end + 1
    return [] if blocks.is_over_budget else text_edits


class _Blocks:
    """Compares blocks with the searched block, within a limit of work."""

    def __init__(self, bodies: list[str], middle: list[str], last: str) -> None:
        self._bodies = bodies
        self._offsets = [0, *accumulate(len(body) + 1 for body in bodies)]
        self._ends = [at for at, body in enumerate(bodies) if body == last]
        self._lines = len(middle)
        self._expected = Counter(split_words("\n".join(middle)))
        self._remaining = _MAX_COMPARED_CHARACTERS

    @property
    def is_over_budget(self) -> bool:
        return self._remaining < 0

    def most_similar_end(self, first: int) -> int | None:
        """The last line of the most similar block from `first` on that has half to twice as many lines."""
        nearest, farthest = first + 1 + max(1, self._lines // 2), first + 1 + 2 * self._lines
        best, best_end = _MIN_BLOCK_SIMILARITY, None
        for end in self._ends[bisect_left(self._ends, nearest) : bisect_right(self._ends, farthest)]:
            self._remaining -= self._offsets[end] - self._offsets[first]
            if self._remaining < 0:
                return None
            words = Counter(split_words("\n".join(self._bodies[first + 1 : end])))
            score = similarity(self._expected, words)
            if score > best or (score == best and best_end is None):
                best, best_end = score, end
        return best_end
