"""Cutting of results: bounded and valid UTF-8; the shape is kept if possible, and what fits is not cut."""

import asyncio
import time
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from luxx.tools.core import ToolResult
from luxx.tools.output import (
    MAX_LINE_LENGTH,
    MAX_OUTPUT_BYTES,
    cut_lines,
    cut_output,
    cut_output_async,
    truncate_to_bytes,
)

READ_ON = "Read on with more."
LETTERS = st.sampled_from(["a", "é", "漢", "😀", "\n", '"', "\\", "\x00", "\x7f", "\ud800"])
BIG_TEXT = st.builds(lambda unit, times: unit * times, st.text(LETTERS, min_size=1), st.integers(1, 30_000))
VALUES: st.SearchStrategy[Any] = st.recursive(
    BIG_TEXT | st.integers() | st.booleans() | st.none() | st.floats(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=8,
)


@given(VALUES, st.none() | BIG_TEXT, st.text(LETTERS, max_size=2000))
@example(data="a\n" * 30_000, error="\0" * 1000, read_on_hint="")
def test_every_result_becomes_valid_utf8_json_within_the_bound(
    data: Any, error: str | None, read_on_hint: str
) -> None:
    result = ToolResult(success=error is None, data=data, error=error)
    cut = cut_output(result, read_on_hint.replace("\ud800", "?"))
    encoded = msgspec.json.encode(cut.result)
    encoded.decode("utf-8")
    assert len(encoded) <= MAX_OUTPUT_BYTES
    assert msgspec.json.decode(encoded, type=ToolResult).success == (error is None)


@given(BIG_TEXT.filter(lambda text: "\ud800" not in text))
def test_the_whole_is_returned_exactly_when_something_was_cut(text: str) -> None:
    cut = cut_output(ToolResult.ok(text), READ_ON)
    if cut.full is None:
        assert cut.result.data == text
        assert all(len(line) <= MAX_LINE_LENGTH for line in text.split("\n"))
    else:
        assert cut.full == text
        assert READ_ON in cut.result.data


@given(st.text(LETTERS.filter(lambda letter: letter != "\ud800")), st.integers(0, 200))
def test_the_longest_beginning_that_fits_is_kept(text: str, budget: int) -> None:
    beginning = truncate_to_bytes(text, budget)
    assert text.startswith(beginning)
    assert len(msgspec.json.encode(beginning)) - 2 <= budget
    if beginning != text:
        assert len(msgspec.json.encode(text[: len(beginning) + 1])) - 2 > budget


def test_a_result_at_the_bound_is_left_alone() -> None:
    free_bytes = MAX_OUTPUT_BYTES - len(msgspec.json.encode(ToolResult.ok("")))
    line = "x" * 99 + " "
    fits = (line * free_bytes)[: free_bytes - free_bytes % 100]
    text = "\n".join(fits[start : start + 1000] for start in range(0, len(fits), 1000))[: free_bytes - 200]
    assert cut_output(ToolResult.ok(text), READ_ON).full is None


def test_a_long_line_is_cut_and_says_by_how_much() -> None:
    short = cut_lines("a\n" + "b" * 2500 + "\nc")
    assert short == "a\n" + "b" * 2000 + "… [line cut: 500 more characters]\nc"


def test_a_dict_keeps_its_shape_when_shorter_texts_are_enough() -> None:
    data = {"exit_code": 3, "stdout": "line\n" * 30_000, "nested": [{"stderr": "e\n" * 10}]}
    cut = cut_output(ToolResult.ok(data), READ_ON)
    assert cut.result.data["exit_code"] == 3
    assert cut.result.data["nested"] == data["nested"]
    assert cut.result.data["stdout"].startswith("line\n")
    assert READ_ON in cut.result.data["output_cut"]
    assert msgspec.json.decode(cut.full or "") == data


def test_data_of_too_many_pieces_is_given_as_the_beginning_of_its_json() -> None:
    cut = cut_output(ToolResult.ok(list(range(100_000))), READ_ON)
    assert cut.result.data["beginning"].startswith("[\n  0,\n  1,")
    assert msgspec.json.decode(cut.full or "") == list(range(100_000))


def test_a_deeply_nested_answer_does_not_become_gigabytes_of_indentation() -> None:
    deep: Any = list(range(20_000))
    for _ in range(300):
        deep = [deep]
    cut = cut_output(ToolResult.ok(deep), READ_ON)
    assert len(cut.full or "") < 1_000_000


@pytest.mark.parametrize("depth", [900, 5000])
def test_an_extremely_nested_result_does_not_crash(depth: int) -> None:
    deep: Any = "x" * 3000
    for _ in range(depth):
        deep = [deep]
    result = cut_output(ToolResult.ok(deep), READ_ON).result
    assert len(msgspec.json.encode(result)) <= MAX_OUTPUT_BYTES


def test_a_large_answer_of_small_chunks_is_read_once() -> None:
    began = time.monotonic()
    cut = cut_output(ToolResult.ok({"x": [{"a": {}}] * 100_000}), READ_ON)
    assert cut.result.data["beginning"].startswith("{")
    # Measuring the text again for each tried length takes five times as long.
    assert time.monotonic() - began < 2


async def test_cutting_a_large_result_does_not_block_the_event_loop() -> None:
    data: dict[str, Any] = {"x": [{"a": {}}] * 300_000}

    began = time.monotonic()
    cutting = asyncio.create_task(cut_output_async(ToolResult.ok(data), READ_ON))
    longest, before = 0.0, time.monotonic()
    while not cutting.done():
        await asyncio.sleep(0.005)
        longest, before = max(longest, (now := time.monotonic()) - before), now
    assert cutting.result() == cut_output(ToolResult.ok(data), READ_ON)
    assert longest < (time.monotonic() - began) / 3
