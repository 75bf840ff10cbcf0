"""Applies edits to the text of a file and computes the diff. Pure.

`EditedText` maps each line to its original line. So it keeps mixed line ends and finds the diff in one pass.
Inside, line ends are `\\n`.
"""

import difflib
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import NamedTuple

import msgspec

from luxx.errors import ToolFailed
from luxx.tools.builtin.edit_matching import (
    MAX_NEAR_CHARACTERS,
    MAX_TEXT_EDITS,
    MatchResult,
    Strategy,
    TextEdit,
    common_ends,
    find,
    split_words,
)
from luxx.tools.builtin.file import shorten_line, split_lines
from luxx.tools.files.workspace import MAX_FILE_BYTES

_MAX_CHARACTERS = 1_000_000
_MAX_FINE_CHARACTERS = 100_000
_MAX_SEARCH_LINES = 200
_MAX_SEARCH_CHARACTERS = 20_000
_MIN_SIMILARITY = 0.3
_MAX_LINES = 8
_MAX_NEAREST_LINE = 100


class Nearest(msgspec.Struct, frozen=True):
    """`first` and `last` count from 1, both inclusive; `shown` holds the first lines, numbered."""

    first: int
    last: int
    shown: str


def nearest(text: str, search_text: str) -> Nearest | None:
    """The block most similar to `search_text`; None if nothing is similar or the text is too long."""
    if len(text) > _MAX_CHARACTERS:
        return None
    lines = text.removesuffix("\n").split("\n")
    expected_lines = search_text.strip("\n")[:_MAX_SEARCH_CHARACTERS].split("\n")[:_MAX_SEARCH_LINES]
    parts = _trigrams if len(text) <= _MAX_FINE_CHARACTERS else split_words
    first = _most_similar(lines, expected_lines, parts)
    if first is None:
        return None
    last = min(first + len(expected_lines), len(lines))
    shown = [f"{number}: {_cut(lines[number - 1])}" for number in range(first + 1, last + 1)[:_MAX_LINES]]
    return Nearest(first + 1, last, "\n".join(shown))


def _most_similar(
    lines: list[str], expected_lines: list[str], parts: Callable[[str], list[str]]
) -> int | None:
    """The index where the block begins that shares most parts with the expected lines."""
    expected = Counter(part for line in expected_lines for part in parts(line.strip()))
    span = len(expected_lines)
    of_lines: list[list[str]] = []
    sizes: list[int] = []
    for line in lines:
        line_parts = parts(line.strip())
        sizes.append(len(line_parts))
        of_lines.append([part for part in line_parts if part in expected])
    window: Counter[str] = Counter()
    shared = size = 0
    best, best_at = _MIN_SIMILARITY, None
    for at, entering in enumerate(of_lines):
        for part in entering:
            shared += window[part] < expected[part]
            window[part] += 1
        size += sizes[at]
        if at >= span:
            for part in of_lines[at - span]:
                window[part] -= 1
                shared -= window[part] < expected[part]
            size -= sizes[at - span]
        score = 2 * shared / (size + expected.total() or 1)
        if score > best:
            best, best_at = score, max(at - span + 1, 0)
    return best_at


def _trigrams(text: str) -> list[str]:
    """All sequences of three characters, so that one wrong character leaves most parts equal."""
    return [text[at : at + 3] for at in range(max(len(text) - 2, 1))] if text else []


def _cut(line: str) -> str:
    return line if len(line) <= _MAX_NEAREST_LINE else f"{line[:_MAX_NEAREST_LINE]}…"


MAX_LINES = 300_000
"""Limit for an edited file, before and after: a short line takes ten times the memory of its text."""

_NEW = -1
_MAX_LINES_NAMED = 5
# Old lines times new lines of one change. A larger change shows all its lines as removed and added, because
# the time of a comparison grows with this product.
_MAX_COMPARED = 10_000
# The same for all changes of a file together.
_MAX_TOTAL_COMPARED = 500_000


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """The strategy that found `old_string`, and the number of replacements."""

    strategy: Strategy
    replacements: int


class Change(NamedTuple):
    """Lines [old_from, old_to) became lines [new_from, new_to), counted from 0."""

    old_from: int
    old_to: int
    new_from: int
    new_to: int


class EditedText:
    """The text of a file and the edits made to it. Raises ToolFailed for too many lines."""

    def __init__(self, text: str) -> None:
        _require_few(text.count("\n"))
        self._is_crlf = [line.endswith("\r") for line in text.split("\n")]
        self._is_crlf[-1] = sum(self._is_crlf[:-1]) * 2 > len(self._is_crlf) - 1
        self._has_ends = len(self._is_crlf) > 1
        self._text = self._original = text.replace("\r\n", "\n")
        self._origins = list(range(len(self._is_crlf)))

    def apply(self, old: str, new: str, *, replace_all: bool, where: str) -> Applied:
        """Replace the only occurrence of `old`, or all. Changes nothing if it raises ToolFailed.

        `where` names the file in messages.
        """
        if not old:
            raise ToolFailed("old_string is empty; file_write writes a whole file")
        if not self._has_ends and "\r\n" in new:
            self._is_crlf = [True]
        old, new = old.replace("\r\n", "\n"), new.replace("\r\n", "\n")
        if old == new:
            raise ToolFailed("old_string and new_string are the same (line ends are kept as they are)")
        match_result = find(self._text, old, new, wants_all=replace_all)
        if match_result is None:
            raise ToolFailed(self._not_found_message(old, where))
        if len(match_result.text_edits) > 1 and not replace_all:
            raise ToolFailed(self._ambiguous_message(match_result, where))
        if len(match_result.text_edits) > MAX_TEXT_EDITS:
            raise ToolFailed(
                f"old_string is in more than {MAX_TEXT_EDITS:,} places of {where}; give more of it"
            )
        self._replace(match_result.text_edits)
        return Applied(strategy=match_result.strategy, replacements=len(match_result.text_edits))

    def result(self) -> str:
        """The whole edited text with the file's line ends."""
        bodies = self._text.split("\n")
        ends = ["\r\n" if is_crlf else "\n" for is_crlf in self._is_crlf[:-1]]
        return "".join(part for pair in zip(bodies, [*ends, ""], strict=True) for part in pair)

    def lines_before(self) -> list[str]:
        """The original lines with their line ends; the last may have none."""
        return split_lines(self._original)

    def lines_after(self) -> list[str]:
        return split_lines(self._text)

    def changes(self) -> Iterator[Change]:
        """The changed line ranges from top to bottom; no two are adjacent."""
        before, after = self.lines_before(), self.lines_after()
        return _refined(self._changed_ranges(before, after), before, after)

    def _changed_ranges(self, before: list[str], after: list[str]) -> Iterator[Change]:
        old_from = new_from = 0
        for at, origin in enumerate(self._origins):
            if origin == _NEW or at >= len(after) or origin >= len(before) or after[at] != before[origin]:
                continue
            if origin > old_from or at > new_from:
                yield Change(old_from, origin, new_from, at)
            old_from, new_from = origin + 1, at + 1
        if old_from < len(before) or new_from < len(after):
            yield Change(old_from, len(before), new_from, len(after))

    def _replace(self, text_edits: list[TextEdit]) -> None:
        size = len(self._text) + sum(len(edit.new) - (edit.end - edit.start) for edit in text_edits)
        if size > MAX_FILE_BYTES:
            raise ToolFailed(
                f"the file would have {size:,} characters; at most {MAX_FILE_BYTES:,} are written"
            )
        ends = sum(edit.new.count("\n") - self._text.count("\n", edit.start, edit.end) for edit in text_edits)
        _require_few(self._text.count("\n") + ends)
        bodies = self._text.split("\n")
        starts = [0, *accumulate(len(body) + 1 for body in bodies)]
        pieces: list[str] = []
        origins: list[int] = []
        is_crlf: list[bool] = []
        line = position = 0
        for first, last, group in _regions(starts, text_edits):
            begin, end = starts[first], starts[last] + len(bodies[last])
            new_lines = _spliced(self._text, begin, end, group).split("\n")
            pieces += [self._text[position:begin], "\n".join(new_lines)]
            kept_origins = _origins_of(new_lines, bodies[first : last + 1], self._origins[first : last + 1])
            origins += [*self._origins[line:first], *kept_origins]
            is_crlf += [
                *self._is_crlf[line:first],
                *_fit_line_ends(self._is_crlf[first : last + 1], len(new_lines)),
            ]
            line, position = last + 1, end
        self._text = "".join([*pieces, self._text[position:]])
        self._origins = [*origins, *self._origins[line:]]
        self._is_crlf = [*is_crlf, *self._is_crlf[line:]]

    def _ambiguous_message(self, match_result: MatchResult, where: str) -> str:
        edits, count = match_result.text_edits, len(match_result.text_edits)
        numbers = [str(self._text.count("\n", 0, edit.start) + 1) for edit in edits[:_MAX_LINES_NAMED]]
        named = ", ".join(numbers) + (", …" if count > _MAX_LINES_NAMED else "")
        many = f"more than {MAX_TEXT_EDITS:,}" if count > MAX_TEXT_EDITS else f"{count:,}"
        how = "" if match_result.strategy == Strategy.SIMPLE else f", found by {match_result.strategy}"
        return (
            f"old_string is in {many} places of {where} (lines {named}{how}); give more of the lines "
            "around the one you mean, or set replace_all to change all of them"
        )

    def _not_found_message(self, old: str, where: str) -> str:
        if len(self._text) > MAX_NEAR_CHARACTERS:
            return f"old_string is not in {where}; in a file this long it must be exactly what stands there"
        nearest_lines = nearest(self._text, old)
        if nearest_lines is None:
            return f"old_string is not in {where}, nor anything like it; read the file again"
        first, last = nearest_lines.first, nearest_lines.last
        lines = f"line {first}" if first == last else f"lines {first} to {last}"
        return f"old_string is not in {where}; nearest to it is {lines}:\n{nearest_lines.shown}"


def _require_few(line_ends: int) -> None:
    if line_ends > MAX_LINES:
        raise ToolFailed(f"a file that is edited may have {MAX_LINES:,} lines; this would be {line_ends:,}")


def _regions(starts: list[int], text_edits: list[TextEdit]) -> Iterator[tuple[int, int, list[TextEdit]]]:
    """Groups the edits by the lines they touch: first line, last line, and the edits in them."""
    first = last = -1
    group: list[TextEdit] = []
    for text_edit in text_edits:
        begin, end = bisect_right(starts, text_edit.start) - 1, bisect_right(starts, text_edit.end) - 1
        if group and begin > last:
            yield first, last, group
            group = []
        if not group:
            first = begin
        last = max(end, last)
        group.append(text_edit)
    if group:
        yield first, last, group


def _spliced(text: str, begin: int, end: int, text_edits: list[TextEdit]) -> str:
    pieces: list[str] = []
    for text_edit in text_edits:
        pieces += [text[begin : text_edit.start], text_edit.new]
        begin = text_edit.end
    return "".join([*pieces, text[begin:end]])


def _origins_of(new_lines: list[str], bodies: list[str], origins: list[int]) -> list[int]:
    """The original line of each new line; only equal lines at the begin and at the end have one."""
    head, tail = common_ends(bodies, new_lines)
    middle = [_NEW] * (len(new_lines) - head - tail)
    return [*origins[:head], *middle, *origins[len(origins) - tail :]]


def _fit_line_ends(is_crlf: list[bool], count: int) -> list[bool]:
    """The line ends for `count` lines that replace these. Further lines get the end of the last but one,
    because the last keeps its own."""
    *before, last = is_crlf
    if count <= len(before):
        return [*before[: count - 1], last]
    common_end = before[-1] if before else last
    return [*before, *([common_end] * (count - 1 - len(before))), last]


def _refined(changes: Iterable[Change], before: list[str], after: list[str]) -> Iterator[Change]:
    """The changes, split at their unchanged lines where they are small enough to compare."""
    remaining = _MAX_TOTAL_COMPARED
    for change in changes:
        old_from, old_to, new_from, new_to = change
        size = (old_to - old_from) * (new_to - new_from)
        remaining -= min(size, _MAX_COMPARED)
        if size > _MAX_COMPARED or remaining < 0:
            yield change
            continue
        sides = before[old_from:old_to], after[new_from:new_to]
        for kind, old_a, old_b, new_a, new_b in difflib.SequenceMatcher(None, *sides, False).get_opcodes():
            if kind != "equal":
                yield Change(old_from + old_a, old_from + old_b, new_from + new_a, new_from + new_b)


MAX_DIFF_BYTES = 40 * 1024
_CONTEXT = 3
_NO_END = "\\ No newline at end of file\n"


class Diff(msgspec.Struct, frozen=True, kw_only=True):
    """A unified diff. `text` is incomplete if `is_cut`; `added` and `removed` count all lines."""

    text: str
    added: int
    removed: int
    is_cut: bool


def diff_of(edited: EditedText, path: str) -> Diff:
    """The unified diff between the original and the edited text, without line ends, which do not change."""
    before, after = edited.lines_before(), edited.lines_after()
    added = removed = size = 0
    pieces = [f"--- a/{path}\n+++ b/{path}\n"]
    is_cut = False
    for hunk in _hunks(list(edited.changes())):
        removed += sum(change.old_to - change.old_from for change in hunk)
        added += sum(change.new_to - change.new_from for change in hunk)
        if is_cut:
            continue
        for line in _hunk_lines(before, after, hunk):
            size += len(msgspec.json.encode(line)) - 2
            is_cut = size > MAX_DIFF_BYTES
            if is_cut:
                break
            pieces.append(line)
    return Diff(text="".join(pieces), added=added, removed=removed, is_cut=is_cut)


def _hunks(changes: list[Change]) -> Iterator[list[Change]]:
    """Groups changes whose context lines would touch."""
    hunk: list[Change] = []
    for change in changes:
        if hunk and change.old_from - hunk[-1].old_to > 2 * _CONTEXT:
            yield hunk
            hunk = []
        hunk.append(change)
    if hunk:
        yield hunk


def _hunk_lines(before: list[str], after: list[str], hunk: list[Change]) -> Iterator[str]:
    lead = min(_CONTEXT, hunk[0].old_from)
    trail = min(_CONTEXT, len(before) - hunk[-1].old_to)
    old_from, new_from = hunk[0].old_from - lead, hunk[0].new_from - lead
    old_to, new_to = hunk[-1].old_to + trail, hunk[-1].new_to + trail
    yield f"@@ -{_range(old_from, old_to)} +{_range(new_from, new_to)} @@\n"
    line_index = old_from
    for change in hunk:
        yield from (_line(" ", line) for line in before[line_index : change.old_from])
        yield from (_line("-", line) for line in before[change.old_from : change.old_to])
        yield from (_line("+", line) for line in after[change.new_from : change.new_to])
        line_index = change.old_to
    yield from (_line(" ", line) for line in before[line_index:old_to])


def _range(first: int, end: int) -> str:
    """A range in unified diff format; an empty range names the line before it."""
    count = end - first
    if count == 1:
        return str(first + 1)
    return f"{first + 1 if count else first},{count}"


def _line(prefix: str, line: str) -> str:
    shown = prefix + shorten_line(line.removesuffix("\n")) + "\n"
    return shown if line.endswith("\n") else f"{shown}{_NO_END}"
