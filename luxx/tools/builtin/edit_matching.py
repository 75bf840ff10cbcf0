"""Where a piece of text stands in another, for edits: exactly, or nearly as a model remembers it. Pure.

Six strategies, from the strictest on; the first that finds something decides. Line ends are `\\n` here.
What replaces a near match is fitted to it: indented as the place is, unescaped where the search text was.
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
"""More places are not looked for: a list of them would take more memory than the file."""

MAX_NEAR_CHARACTERS = 1_000_000
"""In longer texts nothing is looked for but the exact text; the near strategies hold a text several times."""

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
    """The characters from `start` to before `end` are to become `new`."""

    start: int
    end: int
    new: str


class MatchResult(msgspec.Struct, frozen=True):
    """At least one spot, none touching another, in order; at most MAX_SPOTS and one."""

    strategy: Strategy
    text_edits: list[TextEdit]


def find(text: str, old: str, new: str, *, wants_all: bool = False) -> MatchResult | None:
    """Where `old` stands, and what `new` is to be there. `old` is not empty.

    With `wants_all` nothing is chosen among several places that are as near.
    """
    if text_edits := _exact(text, old, new):
        return MatchResult(Strategy.SIMPLE, text_edits)
    if text_edits := _unescaped(text, old, new):
        return MatchResult(Strategy.ESCAPE_NORMALIZED, text_edits)
    if max(len(text), len(old)) > MAX_NEAR_CHARACTERS or not old.strip():
        return None
    lines = _Lines(text)
    if positions := _escaped_places(lines, old):
        # Any other strategy would put `new` there without the escapes that it needs.
        text_edits = _escaped_lines(lines, positions, old, new)
        return MatchResult(Strategy.ESCAPE_NORMALIZED, text_edits) if text_edits else None
    if found := _trimmed(lines, old, new, wants_all=wants_all):
        return found
    if text_edits := _any_whitespace(text, old, new):
        return MatchResult(Strategy.WHITESPACE_NORMALIZED, text_edits)
    if text_edits := _anchored(lines, old, new):
        return MatchResult(Strategy.BLOCK_ANCHOR, text_edits)
    return None


def similarity(one: Counter[str], other: Counter[str]) -> float:
    """From 0, nothing in common, to 1, the same words, however often and in whatever order."""
    size = one.total() + other.total()
    return 2 * (one & other).total() / size if size else 1.0


def split_words(text: str) -> list[str]:
    return _WORD.findall(text)


class _Lines:
    """A text by lines; `starts` are their places in it."""

    def __init__(self, text: str) -> None:
        self.bodies = text.split("\n")
        self.starts = [0, *accumulate(len(body) + 1 for body in self.bodies)]

    def text_edit(self, first: int, count: int, new: str, *, with_end: bool) -> TextEdit:
        """The lines from `first` on, with the newline after the last one if wanted and there."""
        last = first + count - 1
        end = self.starts[last] + len(self.bodies[last])
        return TextEdit(self.starts[first], end + (with_end and last + 1 < len(self.bodies)), new)


class _Searched(NamedTuple):
    """`old` as lines, without the newline at its end; `new` as lines to take their place."""

    old: list[str]
    new: list[str]
    with_end: bool
    """Whether the newline after the lines goes too."""


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
    """`old` was escaped once too often: then so was `new`. Spaces alone do not say which ones are meant."""
    unescaped_old, replacement = (
        _ESCAPE.sub(_letter, original_text).replace("\r\n", "\n") for original_text in (old, new)
    )
    return _exact(text, unescaped_old, replacement) if unescaped_old.strip() and unescaped_old != old else []


def _escaped_places(lines: _Lines, old: str) -> list[int]:
    """Where the text escapes, within its lines, what `old` has as it is."""

    def plain(body: str) -> str:
        return _ESCAPE_WITHIN_LINE.sub(_letter, body)

    if not any("\\" in body for body in lines.bodies):
        return []
    return _find_lines(lines, _searched(old, "").old, plain)


def _escaped_lines(lines: _Lines, positions: list[int], old: str, new: str) -> list[TextEdit]:
    """What `old` and `new` have in common keeps the escapes it has in the text; what differs becomes as `new`
    has it. Nothing where that would have to be escaped, which cannot be done without knowing the language."""
    if len(new) > MAX_NEAR_CHARACTERS:
        return []
    searched = _searched(old, new)
    old_parts, new_parts = (
        _LETTER_OR_ESCAPE.findall("\n".join(side)) for side in (searched.old, searched.new)
    )
    max_common = min(len(old_parts), len(new_parts))
    head = next((at for at in range(max_common) if old_parts[at] != new_parts[at]), max_common)
    tail = next(
        (at for at in range(max_common - head) if old_parts[-1 - at] != new_parts[-1 - at]), max_common - head
    )
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
    """Where lines stand that are the sought ones once all are changed; none overlapping another."""
    changed = [change(body) for body in lines.bodies]
    starts = [0, *accumulate(len(body) + 1 for body in changed)]
    expected = [change(body) for body in searched]
    return [bisect_right(starts, position) - 1 for position in _find_sequence(changed, expected, "\n")]


def _find_sequence(pieces: list[str], expected: list[str], between: str) -> list[int]:
    """Where the wanted pieces stand, whole and in a row, in all of them joined; none overlapping another."""
    text = between.join(["", *pieces, ""])
    row = between.join(["", *expected, ""])
    found: list[int] = []
    position = text.find(row)
    while position != -1 and len(found) <= MAX_TEXT_EDITS:
        found.append(position)
        # What ends one may be what is before the next.
        position = text.find(row, position + len(row) - 1)
    return found


def _trimmed(lines: _Lines, old: str, new: str, *, wants_all: bool) -> MatchResult | None:
    """Lines that differ at their ends only. If several do and one is wanted, it is the one that is indented
    as they are among themselves."""
    searched = _searched(old, new)
    count = len(searched.old)
    positions = _find_lines(lines, searched.old, str.strip)
    if not positions:
        return None
    strategy = Strategy.LINE_TRIMMED
    if len(positions) > 1 and not wants_all:
        shape = _dedented(searched.old)
        same_shape = [at for at in positions if _dedented(lines.bodies[at : at + count]) == shape]
        if len(same_shape) == 1:
            strategy, positions = Strategy.INDENTATION_FLEXIBLE, same_shape
    text_edits: list[TextEdit] = []
    for at in positions:
        fitted = _indented(searched.new, zip(searched.old, lines.bodies[at : at + count], strict=True))
        text_edits.append(lines.text_edit(at, count, fitted, with_end=searched.with_end))
    return MatchResult(strategy, text_edits)


def _dedented(bodies: Sequence[str]) -> list[str]:
    """The lines without the indentation that all have, and without what follows their last letter."""
    indents = [_indent(body) for body in bodies if body.strip()]
    # What the first and the last have in common by order, all between them have.
    first, last = min(indents, default=""), max(indents, default="")
    shared = next(
        (at for at, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first)
    )
    return [body[shared:].rstrip() for body in bodies]


def _indented(new: list[str], pairs: Iterable[tuple[str, str]]) -> str:
    """The new lines, indented as those in the text are. `pairs`: a line as it was sought, as it is."""
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
    found = _INDENT.match(body)
    return found[0] if found else ""


# --- by words ---------------------------------------------------------------------------------------


def _any_whitespace(text: str, old: str, new: str) -> list[TextEdit]:
    """The same words with other whitespace between them, over the ends of lines too. A word is all that is
    between two spaces, and none is found within another; one alone has nothing between to differ in."""
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
    """Blocks that begin and end with the same lines as `old` and have at least half of their words in common
    with it; of those that begin at one line, the one most like it."""
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
    """Compares blocks with the one that is sought, as long as that is not too much work."""

    def __init__(self, bodies: list[str], middle: list[str], last: str) -> None:
        self._bodies = bodies
        self._offsets = [0, *accumulate(len(body) + 1 for body in bodies)]
        self._ends = [at for at, body in enumerate(bodies) if body == last]
        self._lines = len(middle)
        self._wanted = Counter(split_words("\n".join(middle)))
        self._left = _MAX_COMPARED_CHARACTERS

    @property
    def is_over_budget(self) -> bool:
        return self._left < 0

    def most_similar_end(self, first: int) -> int | None:
        """Where the block ends that begins here, has half to twice as many lines, and is most like it."""
        nearest, farthest = first + 1 + max(1, self._lines // 2), first + 1 + 2 * self._lines
        best, best_end = _MIN_BLOCK_SIMILARITY, None
        for end in self._ends[bisect_left(self._ends, nearest) : bisect_right(self._ends, farthest)]:
            self._left -= self._offsets[end] - self._offsets[first]
            if self._left < 0:
                return None
            score = similarity(self._wanted, Counter(split_words("\n".join(self._bodies[first + 1 : end]))))
            if score > best or (score == best and best_end is None):
                best, best_end = score, end
        return best_end
