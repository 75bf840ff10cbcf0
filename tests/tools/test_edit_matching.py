"""Where an edit finds its place: each strategy on what the stricter ones do not find, and what none finds."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luxx.tools.builtin.edit_matching import MAX_NEAR_CHARACTERS, MAX_SPOTS, Spot, Strategy, find

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


def replaced(text: str, spots: list[Spot]) -> str:
    for spot in reversed(spots):
        text = text[: spot.start] + spot.new + text[spot.end :]
    return text


def edit(text: str, old: str, new: str) -> tuple[Strategy, str] | None:
    found = find(text, old, new)
    return None if found is None else (found.strategy, replaced(text, found.spots))


def test_the_strategies_are_those_agreed_in_their_order() -> None:
    assert list(Strategy) == [
        "simple",
        "escape_normalized",
        "line_trimmed",
        "indentation_flexible",
        "whitespace_normalized",
        "block_anchor",
    ]


def test_an_exact_place_is_found_in_the_middle_of_a_line() -> None:
    assert edit("one two three", "two", "2") == (Strategy.SIMPLE, "one 2 three")


def test_an_exact_place_is_preferred_to_a_likelier_one() -> None:
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


def test_a_text_that_escapes_what_was_sought_plainly_is_found_by_its_lines() -> None:
    text = 'x = 1\nprint("a\\tb")\ny = 2\n'
    assert edit(text, 'print("a\tb")', "pass") == (Strategy.ESCAPE_NORMALIZED, "x = 1\npass\ny = 2\n")


def test_lines_that_differ_at_their_ends_are_found_and_keep_their_indentation() -> None:
    old = "def empty(self):   \nreturn not self.items"
    new = "def empty(self):\nreturn len(self.items) == 0"
    done = edit(BLOCK, old, new)
    assert done is not None
    assert done[0] == Strategy.LINE_TRIMMED
    assert "    def empty(self):\n    return len" in done[1]
    whole = "def empty(self):\n    return not self.items\n"
    done = edit(BLOCK, whole, "def empty(self):\n    if self.items:\n        return False\n    return True\n")
    assert done is not None
    assert done[1].endswith(
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


def test_of_several_trimmed_places_the_one_indented_alike_is_taken() -> None:
    text = "    if a:\n        go()\n\nif a:\n  go()\n"
    assert edit(text, "\tif a:\n\t  go()", "\tif a:\n\t  stop()") == (
        Strategy.INDENTATION_FLEXIBLE,
        "    if a:\n        go()\n\nif a:\n  stop()\n",
    )


def test_several_trimmed_places_that_are_indented_alike_are_all_found() -> None:
    found = find("  a\n    b\n\n      a\n        b\n", "a \n  b", "c")
    assert found is not None
    assert (found.strategy, len(found.spots)) == (Strategy.LINE_TRIMMED, 2)


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


def test_a_block_is_found_by_its_first_and_last_line_if_most_of_it_is_like_it() -> None:
    old = (
        "def total(self):\n    count = 0\n    for item in items:\n        count += item.price * 1\n"
        "    return count"
    )
    done = edit(BLOCK, old, "def total(self):\n    return sum(item.price for item in self.items)")
    assert done is not None
    strategy, text = done
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
def test_what_is_not_there_is_not_found_by_force(old: str) -> None:
    text = BLOCK.replace("\n\n", "\n")
    assert find(text, old, "x") is None


def test_likest_blocks_of_two_places_are_two_places() -> None:
    one = "begin\n  a b c d\n  e f g h\nend\n"
    found = find(one + "\n" + one, "begin\n  a b c d\n  e f g x\nend", "x")
    assert found is not None
    assert (found.strategy, len(found.spots)) == (Strategy.BLOCK_ANCHOR, 2)


@given(
    st.text(st.sampled_from("ab \n\t\\n"), max_size=60),
    st.text(st.sampled_from("ab \n\t\\n"), min_size=1, max_size=8),
)
def test_places_never_overlap_and_lie_within_the_text(text: str, old: str) -> None:
    found = find(text, old, "x")
    if old in text:
        assert found is not None
        assert found.strategy == Strategy.SIMPLE
        assert replaced(text, found.spots) == text.replace(old, "x")
    if found is not None:
        place = 0
        for spot in found.spots:
            assert place <= spot.start <= spot.end <= len(text)
            place = spot.end


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
def test_looking_for_a_text_made_to_be_slow_takes_its_bounds(text: str, old: str) -> None:
    start = time.monotonic()
    found = find(text, old, "new")
    assert time.monotonic() - start < SECONDS
    assert found is None or len(found.spots) <= MAX_SPOTS + 1
    assert found is None or len(text) < MAX_NEAR_CHARACTERS or found.strategy == Strategy.SIMPLE
