"""Edits of a text: line ends are kept, and the diff shows exactly the changes."""

import difflib
import random
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luxx.errors import ToolFailed
from luxx.tools.builtin.edit_text import MAX_DIFF_BYTES, EditedText, diff_of, nearest
from luxx.tools.files.workspace import MAX_FILE_BYTES

HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@\n")
ENDS = ["\n", "\r\n"]


def edit(text: str, *edits: tuple[str, str], replace_all: bool = False) -> EditedText:
    edited = EditedText(text)
    for old, new in edits:
        edited.apply(old, new, replace_all=replace_all, where="a.txt")
    return edited


def edit_error(text: str, old: str, new: str = "x", *, replace_all: bool = False) -> str:
    with pytest.raises(ToolFailed) as caught:
        edit(text, (old, new), replace_all=replace_all)
    return caught.value.message


def apply_diff(before: str, diff: str) -> str:
    """The text after a unified diff; checks each line and number in the diff."""
    lines = before.splitlines(keepends=True)
    now: list[str] = []
    position = 0
    pieces = HUNK.split(diff)
    assert pieces[0] == ("--- a/a.txt\n+++ b/a.txt\n")
    for number in range(1, len(pieces), 5):
        old_from, old_count, new_from, new_count = (int(piece or 1) for piece in pieces[number : number + 4])
        start = old_from - 1 if old_count else old_from
        now += lines[position:start]
        position = start
        assert len(now) == (new_from - 1 if new_count else new_from)
        size = len(now)
        body = pieces[number + 4].replace("\n\\ No newline at end of file\n", "\0\n")
        for marked in body.splitlines(keepends=True):
            line = marked.replace("\0\n", "")
            if line[0] in " -":
                assert lines[position] == line[1:]
                position += 1
            if line[0] in " +":
                now.append(line[1:])
        assert (position - start, len(now) - size) == (old_count, new_count)
    return "".join([*now, *lines[position:]])


# --- line ends --------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("other", ENDS)
def test_the_files_line_ends_stay_whatever_the_edit_is_written_with(end: str, other: str) -> None:
    text = f"one{end}two{end}three{end}"
    edited = edit(text, (f"one{other}two{other}", f"1{other}1.5{other}2{other}"))
    assert edited.result() == f"1{end}1.5{end}2{end}three{end}"


def test_in_a_mixed_file_each_line_keeps_its_own_end() -> None:
    text = "a\r\nb\nc\r\nd\ne"
    assert edit(text, ("b\nc", "B\nC")).result() == "a\r\nB\nC\r\nd\ne"
    assert edit(text, ("c\nd\n", "")).result() == "a\r\nb\ne"
    assert edit(text, ("c", "c1\nc2")).result() == "a\r\nb\nc1\r\nc2\r\nd\ne"
    assert edit(text, ("e", "e\nf")).result().startswith("a\r\nb\nc\r\nd\ne")


def test_a_file_without_any_line_end_takes_those_of_the_edit() -> None:
    assert edit("one", ("one", "1\r\n2")).result() == "1\r\n2"
    assert edit("one", ("one", "1\n2")).result() == "1\n2"


def test_a_lone_carriage_return_is_an_ordinary_character() -> None:
    assert edit("a\rb\r\nc\r", ("b", "B")).result() == "a\rB\r\nc\r"
    assert edit("a\r\r\nb", ("b", "B")).result() == "a\r\r\nB"


LINES = st.lists(
    st.tuples(st.sampled_from(["a", "b", "a b", "", "  c", "d\re"]), st.sampled_from(ENDS)), max_size=12
)


@given(
    LINES,
    st.sampled_from(["", "z", "d\r"]),
    st.integers(0, 12),
    st.integers(0, 3),
    st.text("xy\n", max_size=5),
)
def test_an_edit_changes_only_its_text_and_the_diff_shows_it(
    lines: list[tuple[str, str]], last: str, first: int, count: int, new: str
) -> None:
    text = "".join(f"{body}{end}" for body, end in lines) + last
    plain = text.replace("\r\n", "\n")
    bodies = plain.split("\n")
    old = "\n".join(bodies[first : first + count])
    if not old or old == new:
        return
    edited = edit(text, (old, new), replace_all=True)
    assert edited.result().replace("\r\n", "\n") == plain.replace(old, new)
    if plain.replace(old, new).startswith(bodies[0] + "\n") and lines:
        assert edited.result().startswith("".join(lines[0]))
    diff = diff_of(edited, "a.txt")
    shown = plain.replace("\r", "?")
    assert apply_diff(shown, diff.text.replace("\r", "?")) == plain.replace(old, new).replace("\r", "?")
    prefixes = [line[0] for line in diff.text.splitlines()[2:] if line]
    assert (prefixes.count("+"), prefixes.count("-")) == (diff.added, diff.removed)


# --- the diff ---------------------------------------------------------------------------------------


def test_the_diff_is_a_unified_diff() -> None:
    before = "".join(f"line {n}\n" for n in range(30)) + "end"
    edited = edit(
        before, ("line 5\n", ""), ("line 9\n", "line 9\nnew\n"), ("line 25", "LINE"), ("end", "END\n")
    )
    expected = "".join(
        difflib.unified_diff(
            before.splitlines(keepends=True), edited.result().splitlines(keepends=True), "a/a.txt", "b/a.txt"
        )
    ).replace("-end+END", "-end\n\\ No newline at end of file\n+END")
    diff = diff_of(edited, "a.txt")
    assert diff.text == expected
    assert (diff.added, diff.removed, diff.is_cut) == (3, 3, False)


def test_a_change_that_the_next_edit_reverts_is_not_in_the_diff() -> None:
    edited = edit("a\nb\nc\n", ("b", "x"), ("c", "y"), ("x", "b"))
    assert edited.result() == "a\nb\ny\n"
    diff = diff_of(edited, "a.txt")
    assert (diff.added, diff.removed) == (1, 1)


def test_a_diff_too_long_to_read_is_cut_but_counted_whole() -> None:
    text = "".join(f"line {n} {'x' * 1000}\n" for n in range(9000))
    start = time.monotonic()
    edited = edit(text, ("line", "LINE"), replace_all=True)
    diff = diff_of(edited, "a.txt")
    assert time.monotonic() - start < 5
    assert (diff.added, diff.removed, diff.is_cut) == (9000, 9000, True)
    assert len(diff.text) <= MAX_DIFF_BYTES
    assert all(len(line) < 600 for line in diff.text.splitlines())


def test_many_changes_far_apart_are_reported_in_time() -> None:
    text = "a\n\n\n\n\n\n\n\n\n" * 30_000
    start = time.monotonic()
    diff = diff_of(edit(text, ("a", "b"), replace_all=True), "a.txt")
    assert time.monotonic() - start < 10
    assert (diff.added, diff.removed) == (30_000, 30_000)


# --- what is refused --------------------------------------------------------------------------------


def test_an_ambiguous_text_is_refused_with_the_number_of_matches_and_what_to_do() -> None:
    words = edit_error("x = 1\ny = 2\nx = 1\n", "x = 1")
    assert "2 places of a.txt (lines 1, 3)" in words
    assert "more of the lines around" in words
    assert "replace_all" in words
    assert "lines 1, 2, 3, 4, 5, …" in edit_error("a\n" * 7, "a")
    assert "found by line_trimmed" in edit_error("  a\n    b\n  a\n    b\n", "a\n  b")


def test_replacing_all_of_a_near_match_replaces_each_in_its_own_indentation() -> None:
    text = "  a\n    b\nx\n      a\n        b\n"
    edited = edit(text, ("a \n  b", "c\n  d"), replace_all=True)
    assert edited.result() == "  c\n    d\nx\n      c\n        d\n"


def test_a_text_that_is_not_there_is_answered_with_the_nearest_lines() -> None:
    text = "import os\n\ndef compute_total(items):\n    return sum(items)\n\ndef other():\n    pass\n"
    words = edit_error(text, "def compute_totals(item):\n    return max(items)")
    assert "nearest to it is lines 3 to 4:\n3: def compute_total(items):\n4:     return sum(items)" in words
    assert "nearest to it is line 6:\n6: def other():" in edit_error(text, "def othr(  ):")
    assert "nor anything like it" in edit_error(text, "Zażółć gęślą jaźń")
    assert "nor anything like it" in edit_error("", "a")


def test_a_long_file_is_refused_without_a_search_for_similar_lines() -> None:
    assert "must be exactly" in edit_error("a b c d\n" * 200_000, "a  c")
    middle = "word and another\n" * 20_000 + "something else entirely here\n"
    near = nearest(middle, "something else entirely there")
    assert near is not None
    assert near.first == 20_001


def test_an_empty_or_ineffective_edit_is_refused_with_the_reason() -> None:
    assert "file_write" in edit_error("a", "")
    assert "the same" in edit_error("a", "a", "a")
    assert "line ends are kept" in edit_error("a\n", "a\r\n", "a\n")


def test_an_edit_that_would_make_a_huge_file_makes_nothing() -> None:
    words = edit_error("a\n" * 50_000, "a", "x" * 1000, replace_all=True)
    assert f"at most {MAX_FILE_BYTES:,}" in words
    assert "more than 100,000 places" in edit_error("a" * 200_000, "a", "b", replace_all=True)
    assert "more than 100,000 places" in edit_error("a" * 200_000, "a", "b")


def test_too_many_lines_are_refused_before_and_after_the_edit() -> None:
    assert "may have 300,000 lines; this would be 300,001" in edit_error("\n" * 300_001, "\n", "a")
    assert "may have 300,000 lines" in edit_error("a" * 1000, "a", "\n" * 400, replace_all=True)


def test_a_refused_edit_leaves_the_text_as_it_was() -> None:
    edited = EditedText("a\r\nb\n")
    with pytest.raises(ToolFailed):
        edited.apply("nothing like this", "x", replace_all=False, where="a.txt")
    assert edited.result() == "a\r\nb\n"
    assert list(edited.changes()) == []


def test_comparing_many_changed_blocks_is_bounded() -> None:
    draw = random.Random(1)
    before, after = ["\n".join(draw.choice("xy") for _ in range(98)) for _ in range(2)]
    old, new = f"S\n{before}\nE", f"Z\n{after[:-2]}\nW"
    edited = edit((old + "\nkeep\n") * 2900, (old, new), replace_all=True)
    start = time.monotonic()
    diff = diff_of(edited, "a.txt")
    assert time.monotonic() - start < 3.0
    assert (diff.added - diff.removed, diff.is_cut) == (-2900, True)
