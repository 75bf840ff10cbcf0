"""Thinking that stands in the content of an answer is thinking, however its tags are split over chunks."""

import json
from typing import Any

import pytest
from wire_reading import Reading, read_in_pieces

from luxx.providers.openai_chat.adapter import OPENAI

CASES = {
    "<think>I add.</think>2": ("I add.", "2"),
    "\n<thinking>I add.</thinking>\n2": ("I add.", "\n2"),
    "<thought>I add.</thought>2": ("I add.", "2"),
    "[THINK]I add.[/THINK]2": ("I add.", "2"),
    "I add.\n</think>\n\n2": ("I add.\n", "\n\n2"),
    "</think>2": ("", "2"),
    "I add.</think>Write <think>x</think>": ("I add.", "Write <think>x</think>"),
    "I add `1` and `1`.</think>2": ("I add `1` and `1`.", "2"),
    "<think>I close with `</think>": ("I close with `", ""),
    # These are text.
    "Write `</think>` at its end.": ("", "Write `</think>` at its end."),
    "```\n</think>\n```": ("", "```\n</think>\n```"),
    "Write <think>x</think>": ("", "Write <think>x</think>"),
    "1 < 2 </thinks>": ("", "1 < 2 </thinks>"),
    "[THIN] air": ("", "[THIN] air"),
}
"""The content of an answer, and its thinking and its text."""


def answer(*contents: Any, **beside: Any) -> Reading:
    """What is read from an answer whose deltas have these contents."""
    deltas = [{"content": content, **beside} for content in contents]
    chunks = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    stream = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)
    return read_in_pieces(OPENAI.parser, stream + b"data: [DONE]\n\n", 4096)


@pytest.mark.parametrize("content", CASES)
def test_tags_may_be_split_anywhere(content: str) -> None:
    splits = [(content[:at], content[at:]) for at in range(len(content))]

    readings = [answer(*split) for split in [*splits, tuple(content)]]

    assert {(reading.thinking, reading.text) for reading in readings} == {CASES[content]}


@pytest.mark.parametrize(
    "part",
    [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "I add.", "signature": "c2ln"}]},
        {"type": "thinking", "thinking": [{"type": "text", "text": "I add."}]},
        {"type": "reasoning", "text": "I add."},
    ],
    ids=["Databricks", "Mistral", "text"],
)
def test_parts_with_reasoning_are_thinking(part: dict[str, Any]) -> None:
    reading = answer([part], [{"type": "text", "text": "2"}])

    assert (reading.thinking, reading.text) == ("I add.", "2")


def test_content_that_google_marks_as_a_thought_is_thinking() -> None:
    marked = answer("I add.", extra_content={"google": {"thought": True}})
    tagged = answer("<thought>I ", "add.", extra_content={"google": {"thought": True}})

    assert [(reading.thinking, reading.text) for reading in (marked, tagged)] == [("I add.", "")] * 2


def test_a_closing_tag_after_reasoning_in_its_own_field_is_text() -> None:
    reading = answer("Write </think>", reasoning_content="I add.")

    assert (reading.thinking, reading.text) == ("I add.", "Write </think>")
