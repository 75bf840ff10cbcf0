"""The unified diff of an edited text, as long as a model may read, and how many lines came and went. Pure."""

from collections.abc import Iterator

import msgspec

from luxx.tools.builtin.edit_text import Change, EditedText

MAX_DIFF_BYTES = 40 * 1024
_MAX_LINE = 500
_CONTEXT = 3
_NO_END = "\\ No newline at end of file\n"


class Diff(msgspec.Struct, frozen=True, kw_only=True):
    """`text` ends early where `is_cut`; `added` and `removed` count all lines."""

    text: str
    added: int
    removed: int
    is_cut: bool


def diff_of(edited: EditedText, path: str) -> Diff:
    """How the text differs from the file at `path`; line ends are left out, which stay as they are."""
    before, now = edited.lines_before(), edited.lines_now()
    added = removed = size = 0
    pieces = [f"--- a/{path}\n+++ b/{path}\n"]
    is_cut = False
    for hunk in _hunks(list(edited.changes())):
        removed += sum(change.old_to - change.old_from for change in hunk)
        added += sum(change.new_to - change.new_from for change in hunk)
        if is_cut:
            continue
        for line in _written(before, now, hunk):
            size += len(msgspec.json.encode(line)) - 2
            is_cut = size > MAX_DIFF_BYTES
            if is_cut:
                break
            pieces.append(line)
    return Diff(text="".join(pieces), added=added, removed=removed, is_cut=is_cut)


def _hunks(changes: list[Change]) -> Iterator[list[Change]]:
    """Changes whose context would touch, together."""
    hunk: list[Change] = []
    for change in changes:
        if hunk and change.old_from - hunk[-1].old_to > 2 * _CONTEXT:
            yield hunk
            hunk = []
        hunk.append(change)
    if hunk:
        yield hunk


def _written(before: list[str], now: list[str], hunk: list[Change]) -> Iterator[str]:
    lead = min(_CONTEXT, hunk[0].old_from)
    trail = min(_CONTEXT, len(before) - hunk[-1].old_to)
    old_from, new_from = hunk[0].old_from - lead, hunk[0].new_from - lead
    old_to, new_to = hunk[-1].old_to + trail, hunk[-1].new_to + trail
    yield f"@@ -{_range(old_from, old_to)} +{_range(new_from, new_to)} @@\n"
    place = old_from
    for change in hunk:
        for line in before[place : change.old_from]:
            yield _line(" ", line)
        for line in before[change.old_from : change.old_to]:
            yield _line("-", line)
        for line in now[change.new_from : change.new_to]:
            yield _line("+", line)
        place = change.old_to
    for line in before[place:old_to]:
        yield _line(" ", line)


def _range(first: int, end: int) -> str:
    """As unified diffs write it: an empty range names the line before it."""
    count = end - first
    if count == 1:
        return str(first + 1)
    return f"{first + 1 if count else first},{count}"


def _line(mark: str, line: str) -> str:
    body = line.removesuffix("\n")
    shown = body if len(body) <= _MAX_LINE else f"{body[:_MAX_LINE]}… [{len(body) - _MAX_LINE:,} more]"
    return f"{mark}{shown}\n" if line.endswith("\n") else f"{mark}{shown}\n{_NO_END}"
