"""The lines of a text most like what somebody looked for in vain, to be shown to them. Pure, and bounded."""

from collections import Counter
from collections.abc import Callable

import msgspec

from luxx.tools.builtin.edit_matching import words

_MAX_CHARACTERS = 1_000_000
_MAX_FINE_CHARACTERS = 100_000
_MAX_SOUGHT_LINES = 200
_MAX_SOUGHT_CHARACTERS = 20_000
_MIN_LIKENESS = 0.3
_MAX_LINES = 8
_MAX_LINE = 100


class Nearest(msgspec.Struct, frozen=True):
    """Lines counted from 1, both included; `shown` is some of them, numbered."""

    first: int
    last: int
    shown: str


def nearest(text: str, sought: str) -> Nearest | None:
    """The lines most like `sought`, as many as it has; None where nothing is like it or there is too much
    to look through."""
    if len(text) > _MAX_CHARACTERS:
        return None
    lines = text.removesuffix("\n").split("\n")
    wanted_lines = sought.strip("\n")[:_MAX_SOUGHT_CHARACTERS].split("\n")[:_MAX_SOUGHT_LINES]
    parts = _triples if len(text) <= _MAX_FINE_CHARACTERS else words
    first = _likest(lines, wanted_lines, parts)
    if first is None:
        return None
    last = min(first + len(wanted_lines), len(lines))
    shown = [f"{number}: {_cut(lines[number - 1])}" for number in range(first + 1, last + 1)[:_MAX_LINES]]
    return Nearest(first + 1, last, "\n".join(shown))


def _likest(lines: list[str], wanted_lines: list[str], parts: Callable[[str], list[str]]) -> int | None:
    """The first of as many lines as are wanted that have most parts in common with them."""
    wanted = Counter(part for line in wanted_lines for part in parts(line.strip()))
    span = len(wanted_lines)
    of_lines: list[list[str]] = []
    sizes: list[int] = []
    for line in lines:
        found = parts(line.strip())
        sizes.append(len(found))
        of_lines.append([part for part in found if part in wanted])
    window: Counter[str] = Counter()
    shared = size = 0
    best, best_at = _MIN_LIKENESS, None
    for at, entering in enumerate(of_lines):
        for part in entering:
            shared += window[part] < wanted[part]
            window[part] += 1
        size += sizes[at]
        if at >= span:
            for part in of_lines[at - span]:
                window[part] -= 1
                shared -= window[part] < wanted[part]
            size -= sizes[at - span]
        degree = 2 * shared / (size + wanted.total() or 1)
        if degree > best:
            best, best_at = degree, max(at - span + 1, 0)
    return best_at


def _triples(text: str) -> list[str]:
    """Three letters each, one letter further; so that a wrong letter leaves most as they were."""
    return [text[at : at + 3] for at in range(max(len(text) - 2, 1))] if text else []


def _cut(line: str) -> str:
    return line if len(line) <= _MAX_LINE else f"{line[:_MAX_LINE]}…"
