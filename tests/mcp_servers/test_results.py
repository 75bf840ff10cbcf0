"""What a model gets of an answer: text and structured content once."""

from typing import Any

import pytest
from mcp_types import CallToolResult, TextContent

from luxx.domain.mcp.results import result_of_answer

ANSWERS: dict[str, tuple[list[str], Any, Any]] = {
    "only text": (["one", "two"], None, "one\ntwo"),
    "the same as JSON": (['{"a": [1, 2]}'], {"a": [1, 2]}, {"a": [1, 2]}),
    "a wrapped value": (["3"], {"result": 3}, 3),
    "a wrapped text": (["two\npears"], {"content": "two\npears"}, "two\npears"),
    "no text": ([], {"a": 1}, {"a": 1}),
    "texts that are in the data": (
        ["a.txt", "b.txt"],
        {"files": [{"name": "a.txt"}, {"name": "b.txt"}]},
        {"files": [{"name": "a.txt"}, {"name": "b.txt"}]},
    ),
    "the data as JSON and a summary": (
        ['{"sum": 5.5}', "Two rows were read."],
        {"sum": 5.5},
        {"text": "Two rows were read.", "structured": {"sum": 5.5}},
    ),
    "another text": (["It rains."], {"rain": 3}, {"text": "It rains.", "structured": {"rain": 3}}),
}


@pytest.mark.parametrize("what", ANSWERS)
def test_what_text_and_data_both_say_is_given_once(what: str) -> None:
    texts, structured, given = ANSWERS[what]
    content = [TextContent(type="text", text=text) for text in texts]
    answer = CallToolResult(content=content, structured_content=structured)
    assert result_of_answer(answer).data == given
