"""How an edit finds its text: each strategy on texts that stricter ones do not find, and texts that
none finds.
"""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luxx.tools.builtin.edit_matching import MAX_NEAR_CHARACTERS, MAX_TEXT_EDITS, Strategy, TextEdit, find

BLOCK = """\
class Shop:
    def total(self):
        count = 0
        for item in self.items:
            count += item.price
        return count

    def empty(self):
        return not self.items
"""


def apply_edits(text: str, text_edits: list[TextEdit]) -> str:
    for text_edit in reversed(text_edits):
        text = text[: text_edit.start] + text_edit.new + text[text_edit.end :]
    return text


def edit(text: str, old: str, new: str) -> tuple[Strategy, str] | None:
    match_result = find(text, old, new)
    return (
        None if match_result is None else (match_result.strategy, apply_edits(text, match_result.text_edits))
    )


def test_the_strategies_have_the_documented_order() -> None:
    assert list(Strategy) == [
        "simple",
        "escape_normalized",
        "line_trimmed",
        "indentation_flexible",
        "whitespace_normalized",
        "block_anchor",
    ]


def test_an_exact_match_is_found_in_the_middle_of_a_line() -> None:
    assert edit("one two three", "two", "2") == (Strategy.SIMPLE, "one 2 three")


def test_an_exact_match_is_preferred_to_a_likelier_one() -> None:
    text = "  a = 1\n\\ta = 1\n"
    assert edit(text, "\\ta = 1", "b") == (Strategy.SIMPLE, "  a = 1\nb\n")


@pytest.mark.parametrize(
    ("old", "new", "after"),
    [
        ("one\\ntwo", "three\\nfour", "three\nfour\n"),
        ("one\\n", "", "two\n"),
        ("one\\ntwo\\n", '\\t\\"x\\"\\\\n\\n', '\t"x"\\n\n'),
    ],
)
def test_a_search_text_escaped_once_too_often_is_unescaped_with_its_replacement(
    old: str, new: str, after: str
) -> None:
    assert edit("one\ntwo\n", old, new) == (Strategy.ESCAPE_NORMALIZED, after)


def test_an_escaped_text_is_found_by_an_unescaped_search_for_its_lines() -> None:
    text = 'x = 1\nprint("a\\tb")\ny = 2\n'
    assert edit(text, 'print("a\tb")', "pass") == (Strategy.ESCAPE_NORMALIZED, "x = 1\npass\ny = 2\n")


@pytest.mark.parametrize("old", ["\\n", "\\t", "\\n\\n", "\\t\\n", "\\r\\n"])
def test_escaped_spaces_alone_do_not_match_the_spaces_of_the_text(old: str) -> None:
    assert find("a\nb\n\n\tc\n", old, "x") is None
    assert find("a\nb\n\n\tc\n", old, "x", wants_all=True) is None


def test_an_escaped_line_end_of_two_characters_is_one_line_end() -> None:
    assert edit("a\tb\nc\n", "a\\tb", "a\\r\\nb") == (Strategy.ESCAPE_NORMALIZED, "a\nb\nc\n")
    assert edit("a\nb\nc\n", "a\\r\\nb", "d") == (Strategy.ESCAPE_NORMALIZED, "d\nc\n")


@pytest.mark.parametrize(
    ("text", "old", "new", "after"),
    [
        (
            'print("say \\"hi\\" now")\nx\n',
            'print("say "hi" now")',
            'print("say "bye" now")',
            'print("say \\"bye\\" now")\nx\n',
        ),
        ("echo '\\$a'\necho b\n", "echo '$a'\n", "echo '$abc'\n", "echo '\\$abc'\necho b\n"),
        ('a("\\"")\nb()\n', 'a(""")\n', "", "b()\n"),
        ('a("\\t", x)\n', 'a("\t", x)', 'a("\t", "y")', 'a("\\t", "y")\n'),
    ],
)
def test_the_unchanged_rest_of_an_escaped_text_keeps_its_escapes(
    text: str, old: str, new: str, after: str
) -> None:
    assert edit(text, old, new) == (Strategy.ESCAPE_NORMALIZED, after)


@pytest.mark.parametrize("around", ["", "begin\n"])
def test_a_replacement_that_needs_escapes_is_not_written_unescaped(around: str) -> None:
    end = around.replace("begin", "end")
    text = f'{around}print("say \\"hi\\" now")\n{end}x\n'
    assert (
        find(text, f'{around}print("say "hi" now")\n{end}', f'{around}print("he "says" so")\n{end}') is None
    )


def test_lines_that_differ_at_their_ends_are_found_and_keep_their_indentation() -> None:
    old = "def empty(self):   \nreturn not self.items"
    new = "def empty(self):\nreturn len(self.items) == 0"
    edited = edit(BLOCK, old, new)
    assert edited is not None
    assert edited[0] == Strategy.LINE_TRIMMED
    assert "    def empty(self):\n    return len" in edited[1]
    whole = "def empty(self):\n    return not self.items\n"
    edited = edit(
        BLOCK, whole, "def empty(self):\n    if self.items:\n        return False\n    return True\n"
    )
    assert edited is not None
    assert edited[1].endswith(
        "    def empty(self):\n        if self.items:\n            return False\n        return True\n"
    )


def test_tabs_where_spaces_were_sought_stay_tabs() -> None:
    text = "func a() {\n\tif b {\n\t\tc()\n\t}\n}\n"
    old = "    if b {\n        c()\n    }\n"
    new = "    if b {\n        d()\n        e()\n    }\n"
    assert edit(text, old, new) == (
        Strategy.LINE_TRIMMED,
        "func a() {\n\tif b {\n\t\td()\n\t\te()\n\t}\n}\n",
    )


def test_of_several_trimmed_matches_the_one_with_equal_indentation_is_used() -> None:
    text = "    if a:\n        go()\n\nif a:\n  go()\n"
    assert edit(text, "\tif a:\n\t  go()", "\tif a:\n\t  stop()") == (
        Strategy.INDENTATION_FLEXIBLE,
        "    if a:\n        go()\n\nif a:\n  stop()\n",
    )


def test_all_trimmed_matches_with_equal_indentation_are_found() -> None:
    match_result = find("  a\n    b\n\n      a\n        b\n", "a \n  b", "c")
    assert match_result is not None
    assert (match_result.strategy, len(match_result.text_edits)) == (Strategy.LINE_TRIMMED, 2)


def test_no_single_match_is_chosen_if_all_are_wanted() -> None:
    text = "    if a:\n        go()\n\nif a:\n  go()\n"
    match_result = find(text, "\tif a:\n\t  go()", "\tif a:\n\t  stop()", wants_all=True)
    assert match_result is not None
    assert match_result.strategy == Strategy.LINE_TRIMMED
    assert apply_edits(text, match_result.text_edits) == "    if a:\n        stop()\n\nif a:\n  stop()\n"


@pytest.mark.parametrize(
    ("text", "old"),
    [
        ("config = load()\nmain()\n", "\n  on\n"),
        ("uuid = 10\nlimit = 3\n", "id  = 1"),
        ("prefix_total = 1\nz = 2\n", " total = 1\n"),
        ("x = compute_id(a, b)\n", "id(a,  b)"),
        ("x == 1, 2\n", "= 1,  2"),
        ("a on b\n", " on\n"),
        ("x = y\n", "x =\ny z"),
    ],
)
def test_words_are_not_found_within_other_words(text: str, old: str) -> None:
    assert find(text, old, "x") is None
    assert find(text, old, "x", wants_all=True) is None


def test_a_space_may_end_one_match_and_begin_the_next() -> None:
    assert edit("a b a  b\na b c", "a\tb", "x") == (Strategy.WHITESPACE_NORMALIZED, "x x\nx c")


def test_words_with_other_spaces_between_them_are_found_over_the_ends_of_lines() -> None:
    text = "x = call(first,   second,\n         third)\ny = 1\n"
    assert edit(text, "call(first, second, third)", "call()") == (
        Strategy.WHITESPACE_NORMALIZED,
        "x = call()\ny = 1\n",
    )
    assert edit("  a  =  1\n  b\n", "\n a = 1\n", "\n c = 2\n") == (
        Strategy.WHITESPACE_NORMALIZED,
        "  c = 2\n  b\n",
    )


def test_a_block_is_found_by_its_first_and_last_line_if_most_of_it_is_similar() -> None:
    old = (
        "def total(self):\n    count = 0\n    for item in items:\n        count += item.price * 1\n"
        "    return count"
    )
    edited = edit(BLOCK, old, "def total(self):\n    return sum(item.price for item in self.items)")
    assert edited is not None
    strategy, text = edited
    assert strategy == Strategy.BLOCK_ANCHOR
    assert text.startswith(
        "class Shop:\n    def total(self):\n        return sum(item.price for item in self.items)\n\n"
    )


@pytest.mark.parametrize(
    "old",
    [
        "def total(self):\n    something\n    wholly = different\n    as_can_be()\n    return count",
        "def total(self):\n    return count",
        "\n\n\n",
        "no such text",
        "\t \t",
        "def total(self):\n" + "    x = 1\n" * 40 + "    return count",
    ],
)
def test_a_missing_text_is_not_matched_to_unrelated_lines(old: str) -> None:
    text = BLOCK.replace("\n\n", "\n")
    assert find(text, old, "x") is None


def test_equally_similar_blocks_are_two_matches() -> None:
    single_block = "begin\n  a b c d\n  e f g h\nend\n"
    match_result = find(single_block + "\n" + single_block, "begin\n  a b c d\n  e f g x\nend", "x")
    assert match_result is not None
    assert (match_result.strategy, len(match_result.text_edits)) == (Strategy.BLOCK_ANCHOR, 2)


@given(
    st.text(st.sampled_from("ab \n\t\\n"), max_size=60),
    st.text(st.sampled_from("ab \n\t\\n"), min_size=1, max_size=8),
)
def test_matches_never_overlap_and_lie_within_the_text(text: str, old: str) -> None:
    match_result = find(text, old, "x")
    if old in text:
        assert match_result is not None
        assert match_result.strategy == Strategy.SIMPLE
        assert apply_edits(text, match_result.text_edits) == text.replace(old, "x")
    if match_result is not None:
        position = 0
        for text_edit in match_result.text_edits:
            assert position <= text_edit.start <= text_edit.end <= len(text)
            position = text_edit.end


SECONDS = 5.0


@pytest.mark.parametrize(
    ("text", "old"),
    [
        ("a" * 10_000_000, "a"),
        ("a" * 1_000_000, "a" * 500_000 + "b"),
        ("\n" * 900_000, "\n" * 400_000 + "x"),
        (" x\n" * 300_000, "x\n" * 100_000 + "y"),
        ("{\n" * 400_000, "{\na\n}"),
        ("{\na b\n}\n" * 100_000, "{\na c d\nb\n}"),
        ("{\n" + "a " * 400_000 + "\n}\n", "{\na c d\nb\n}"),
        ("{\n" + "}\n" * 2000 + "a b " * 200_000 + "\n}\n", "{\n" + "a b\n" * 900 + "}"),
        ("\\" * 900_000, "\\" * 400_000 + "x"),
        (" " * 900_000, " " * 400_000 + "x"),
        ("a b\n" * 200_000, "a  c " * 100_000),
        ("a" * 10_000_000, " a"),
        ("a b\n" * 1000, "a c\n" * 2_500_000),
        ("a b\n" * 1000, "\\n" * 2_500_000),
    ],
    ids=range(14),
)
def test_a_search_for_a_text_made_to_be_slow_is_bounded(text: str, old: str) -> None:
    start = time.monotonic()
    match_result = find(text, old, "new")
    assert time.monotonic() - start < SECONDS
    assert match_result is None or len(match_result.text_edits) <= MAX_TEXT_EDITS + 1
    assert match_result is None or len(text) < MAX_NEAR_CHARACTERS or match_result.strategy == Strategy.SIMPLE
