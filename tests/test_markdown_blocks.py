"""Markdown that is divided while it is being written: nothing is lost, and the pieces do not matter."""

import re

from hypothesis import given
from hypothesis import strategies as st

from luxx.app.cli.chat.markdown_blocks import MarkdownBlocks

LINES = [
    *("", "text of a paragraph", "# title", "---", "===", "> quote", "<div>", "    indented"),
    *("- item", "* item", "  more of it", "1. first", "3) third", "  - nested"),
    *("```python", "```", "~~~", "print(1)", "| a | b |", "| --- | --- |", "| 1 | 2 |"),
    *("**bold", "*bold*", "`code", "[link]: http://x.y", "你好。世界", "😀 A sentence. Another one!"),
]
documents = st.lists(st.sampled_from(LINES), max_size=12).map("\n".join)


@given(documents, st.lists(st.integers(1, 9), min_size=1, max_size=20))
def test_the_blocks_are_the_text_however_it_comes(text: str, sizes: list[int]) -> None:
    blocks, pieces = MarkdownBlocks(), list[str]()
    at = 0
    while at < len(text):
        for size in sizes:
            pieces += blocks.feed(text[at : at + size])
            at += size
    pieces += blocks.end()
    assert "".join("".join(pieces).split()) == "".join(text.split())
    assert blocks.tail == ""


@given(documents)
def test_a_block_that_is_cut_keeps_its_words_in_their_order(text: str) -> None:
    blocks = MarkdownBlocks()
    *_, last = ["", *blocks.feed(text), *blocks.end()]
    blocks.tail = last
    heads: list[str] = []
    while head := blocks.cut():
        heads.append(head)
        assert len(heads) <= len(last) + 1
    words = re.findall(r"[^\W\d_]+", last)
    kept = iter(re.findall(r"[^\W\d_]+", "\n".join([*heads, blocks.tail])))
    assert all(word in kept for word in words)


def test_a_block_is_ended_by_the_line_after_it_and_not_before() -> None:
    blocks = MarkdownBlocks()
    assert blocks.feed("- one\n*") == []
    assert blocks.feed("bold* text\n") == []
    assert blocks.feed("\n## Title") == []
    assert blocks.feed("\n") == ["- one\n*bold* text\n\n"]
    assert blocks.end() == ["## Title\n"]


def test_a_list_is_cut_between_items_and_its_numbers_go_on() -> None:
    blocks = MarkdownBlocks()
    blocks.feed("1. a\n1. b\n1. c\n")
    assert blocks.cut() == "1. a\n1. b\n"
    assert blocks.tail == "3. c\n"


def test_a_code_block_and_a_table_are_cut_between_lines() -> None:
    blocks = MarkdownBlocks()
    blocks.feed("```python\na\nb\nc\n")
    assert blocks.cut() == "```python\na\n```\n"
    assert blocks.tail == "```python\nb\nc\n"
    blocks = MarkdownBlocks()
    blocks.feed("| a |\n| - |\n| 1 |\n| 2 |\n")
    assert blocks.cut() == "| a |\n| - |\n| 1 |\n"
    assert blocks.tail == "| a |\n| - |\n| 2 |\n"
