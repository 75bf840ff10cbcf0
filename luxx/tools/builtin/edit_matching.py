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

MAX_SPOTS = 100_000
"""More places are not looked for: a list of them would take more memory than the file."""

MAX_NEAR_CHARACTERS = 1_000_000
"""In longer texts nothing is looked for but the exact text; the near strategies hold a text several times."""

_MIN_BLOCK_LIKENESS = 0.5
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


class Spot(NamedTuple):
    """The characters from `start` to before `end` are to become `new`."""

    start: int
    end: int
    new: str


class Found(msgspec.Struct, frozen=True):
    """At least one spot, none touching another, in order; at most MAX_SPOTS and one."""

    strategy: Strategy
    spots: list[Spot]


def find(text: str, old: str, new: str, *, wants_all: bool = False) -> Found | None:
    """Where `old` stands, and what `new` is to be there. `old` is not empty.

    With `wants_all` nothing is chosen among several places that are as near.
    """
    if spots := _exact(text, old, new):
        return Found(Strategy.SIMPLE, spots)
    if spots := _unescaped(text, old, new):
        return Found(Strategy.ESCAPE_NORMALIZED, spots)
    if max(len(text), len(old)) > MAX_NEAR_CHARACTERS or not old.strip():
        return None
    lines = _Lines(text)
    if places := _escaped_places(lines, old):
        # Any other strategy would put `new` there without the escapes that it needs.
        spots = _escaped_lines(lines, places, old, new)
        return Found(Strategy.ESCAPE_NORMALIZED, spots) if spots else None
    if found := _trimmed(lines, old, new, wants_all=wants_all):
        return found
    if spots := _any_whitespace(text, old, new):
        return Found(Strategy.WHITESPACE_NORMALIZED, spots)
    if spots := _anchored(lines, old, new):
        return Found(Strategy.BLOCK_ANCHOR, spots)
    return None


def likeness(one: Counter[str], other: Counter[str]) -> float:
    """From 0, nothing in common, to 1, the same words, however often and in whatever order."""
    size = one.total() + other.total()
    return 2 * (one & other).total() / size if size else 1.0


def words(text: str) -> list[str]:
    return _WORD.findall(text)


class _Lines:
    """A text by lines; `starts` are their places in it."""

    def __init__(self, text: str) -> None:
        self.bodies = text.split("\n")
        self.starts = [0, *accumulate(len(body) + 1 for body in self.bodies)]

    def spot(self, first: int, count: int, new: str, *, with_end: bool) -> Spot:
        """The lines from `first` on, with the newline after the last one if wanted and there."""
        last = first + count - 1
        end = self.starts[last] + len(self.bodies[last])
        return Spot(self.starts[first], end + (with_end and last + 1 < len(self.bodies)), new)


class _Sought(NamedTuple):
    """`old` as lines, without the newline at its end; `new` as lines to take their place."""

    old: list[str]
    new: list[str]
    with_end: bool
    """Whether the newline after the lines goes too."""


def _sought(old: str, new: str) -> _Sought:
    with_end = old.endswith("\n") and not new.endswith("\n")
    if old.endswith("\n") and new.endswith("\n"):
        new = new[:-1]
    while old.startswith("\n") and new.startswith("\n"):
        old, new = old[1:], new[1:]
    return _Sought(old.removesuffix("\n").split("\n"), new.split("\n"), with_end)


# --- exactly, and by escapes ------------------------------------------------------------------------


def _exact(text: str, old: str, new: str) -> list[Spot]:
    spots: list[Spot] = []
    place = text.find(old)
    while place != -1 and len(spots) <= MAX_SPOTS:
        spots.append(Spot(place, place + len(old), new))
        place = text.find(old, place + len(old))
    return spots


def _unescaped(text: str, old: str, new: str) -> list[Spot]:
    """`old` was escaped once too often: then so was `new`. Spaces alone do not say which ones are meant."""
    meant, instead = (_ESCAPE.sub(_letter, given).replace("\r\n", "\n") for given in (old, new))
    return _exact(text, meant, instead) if meant.strip() and meant != old else []


def _escaped_places(lines: _Lines, old: str) -> list[int]:
    """Where the text escapes, within its lines, what `old` has as it is."""

    def plain(body: str) -> str:
        return _ESCAPE_WITHIN_LINE.sub(_letter, body)

    if not any("\\" in body for body in lines.bodies):
        return []
    return _windows(lines, _sought(old, "").old, plain)


def _escaped_lines(lines: _Lines, places: list[int], old: str, new: str) -> list[Spot]:
    """What `old` and `new` have in common keeps the escapes it has in the text; what differs becomes as `new`
    has it. Nothing where that would have to be escaped, which cannot be done without knowing the language."""
    if len(new) > MAX_NEAR_CHARACTERS:
        return []
    sought = _sought(old, new)
    gone, fresh = (_LETTER_OR_ESCAPE.findall("\n".join(side)) for side in (sought.old, sought.new))
    most = min(len(gone), len(fresh))
    head = next((at for at in range(most) if gone[at] != fresh[at]), most)
    tail = next((at for at in range(most - head) if gone[-1 - at] != fresh[-1 - at]), most - head)
    middle = fresh[head : len(fresh) - tail]
    spots: list[Spot] = []
    for at in places:
        spot = lines.spot(at, len(sought.old), "", with_end=sought.with_end)
        real = _LETTER_OR_ESCAPE.findall("\n".join(lines.bodies[at : at + len(sought.old)]))
        escaped = {_ESCAPES[letter[1]] for letter in real if len(letter) == 2}
        if not escaped.isdisjoint(middle):
            return []
        instead = "".join([*real[:head], *middle, *real[len(real) - tail :]])
        spots.append(spot._replace(new=instead))
    return spots


def _letter(escape: re.Match[str]) -> str:
    return _ESCAPES[escape[1]]


# --- by lines ---------------------------------------------------------------------------------------


def _windows(lines: _Lines, sought: list[str], change: Callable[[str], str]) -> list[int]:
    """Where lines stand that are the sought ones once all are changed; none overlapping another."""
    changed = [change(body) for body in lines.bodies]
    starts = [0, *accumulate(len(body) + 1 for body in changed)]
    wanted = [change(body) for body in sought]
    return [bisect_right(starts, place) - 1 for place in _enclosed(changed, wanted, "\n")]


def _enclosed(pieces: list[str], wanted: list[str], between: str) -> list[int]:
    """Where the wanted pieces stand, whole and in a row, in all of them joined; none overlapping another."""
    text = between.join(["", *pieces, ""])
    row = between.join(["", *wanted, ""])
    found: list[int] = []
    place = text.find(row)
    while place != -1 and len(found) <= MAX_SPOTS:
        found.append(place)
        # What ends one may be what is before the next.
        place = text.find(row, place + len(row) - 1)
    return found


def _trimmed(lines: _Lines, old: str, new: str, *, wants_all: bool) -> Found | None:
    """Lines that differ at their ends only. If several do and one is wanted, it is the one that is indented
    as they are among themselves."""
    sought = _sought(old, new)
    count = len(sought.old)
    places = _windows(lines, sought.old, str.strip)
    if not places:
        return None
    strategy = Strategy.LINE_TRIMMED
    if len(places) > 1 and not wants_all:
        shape = _dedented(sought.old)
        alike = [at for at in places if _dedented(lines.bodies[at : at + count]) == shape]
        if len(alike) == 1:
            strategy, places = Strategy.INDENTATION_FLEXIBLE, alike
    spots: list[Spot] = []
    for at in places:
        fitted = _indented(sought.new, zip(sought.old, lines.bodies[at : at + count], strict=True))
        spots.append(lines.spot(at, count, fitted, with_end=sought.with_end))
    return Found(strategy, spots)


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
    for sought, body in pairs:
        if sought.strip():
            real.setdefault(_indent(sought), _indent(body))
    known = sorted(real, key=len, reverse=True)

    def fit(line: str) -> str:
        if not line.strip():
            return line
        nearest = next((indent for indent in known if line.startswith(indent)), None)
        return line if nearest is None else real[nearest] + line[len(nearest) :]

    return "\n".join(fit(line) for line in new)


def _indent(body: str) -> str:
    found = _INDENT.match(body)
    return found[0] if found else ""


# --- by words ---------------------------------------------------------------------------------------


def _any_whitespace(text: str, old: str, new: str) -> list[Spot]:
    """The same words with other whitespace between them, over the ends of lines too. A word is all that is
    between two spaces, and none is found within another; one alone has nothing between to differ in."""
    wanted = old.split()
    if len(wanted) < 2:
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
    firsts = (bisect_right(starts, place) - 1 for place in _enclosed(pieces, wanted, " "))
    return [Spot(spans[first][0], spans[first + len(wanted) - 1][1], new) for first in firsts]


def _anchored(lines: _Lines, old: str, new: str) -> list[Spot]:
    """Blocks that begin and end with the same lines as `old` and have at least half of their words in common
    with it; of those that begin at one line, the one most like it."""
    sought = _sought(old, new)
    bodies = [body.strip() for body in lines.bodies]
    first, *middle, last = [body.strip() for body in sought.old] if len(sought.old) > 1 else ["", ""]
    begins = [at for at, body in enumerate(bodies) if body == first]
    if not first or not last or not middle or len(middle) > _MAX_BLOCK_LINES or len(begins) > _MAX_BLOCKS:
        return []
    blocks = _Blocks(bodies, middle, last)
    spots: list[Spot] = []
    free_from = 0
    for at in begins:
        if at >= free_from and (end := blocks.likest_end(at)) is not None:
            pair = [(sought.old[0], lines.bodies[at]), (sought.old[-1], lines.bodies[end])]
            fitted = _indented(sought.new, pair)
            spots.append(lines.spot(at, end - at + 1, fitted, with_end=sought.with_end))
            free_from = end + 1
    return [] if blocks.are_too_many else spots


class _Blocks:
    """Compares blocks with the one that is sought, as long as that is not too much work."""

    def __init__(self, bodies: list[str], middle: list[str], last: str) -> None:
        self._bodies = bodies
        self._places = [0, *accumulate(len(body) + 1 for body in bodies)]
        self._ends = [at for at, body in enumerate(bodies) if body == last]
        self._lines = len(middle)
        self._wanted = Counter(words("\n".join(middle)))
        self._left = _MAX_COMPARED_CHARACTERS

    @property
    def are_too_many(self) -> bool:
        return self._left < 0

    def likest_end(self, first: int) -> int | None:
        """Where the block ends that begins here, has half to twice as many lines, and is most like it."""
        nearest, farthest = first + 1 + max(1, self._lines // 2), first + 1 + 2 * self._lines
        best, best_end = _MIN_BLOCK_LIKENESS, None
        for end in self._ends[bisect_left(self._ends, nearest) : bisect_right(self._ends, farthest)]:
            self._left -= self._places[end] - self._places[first]
            if self._left < 0:
                return None
            degree = likeness(self._wanted, Counter(words("\n".join(self._bodies[first + 1 : end]))))
            if degree > best or (degree == best and best_end is None):
                best, best_end = degree, end
        return best_end
