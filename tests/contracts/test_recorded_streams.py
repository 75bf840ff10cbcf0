"""Every recorded stream reads as the vendors' own SDKs read it, however the network cuts it."""

from typing import Any

import pytest
import recorded
from wire_reading import as_json, read_in_pieces

from luxx.providers.openai import OpenAIAdapter

PIECE_SIZES = (1, 7, 4096)


def test_recorded_streams_are_there() -> None:
    where = recorded.folder()
    if where is None and recorded.may_skip():
        pytest.skip("LUXX_WIRE_FIXTURES names no folder of recorded provider streams")
    assert where is not None, "LUXX_FORBID_SKIPS=1, but LUXX_WIRE_FIXTURES is not set"
    assert recorded.all_entries(), f"{where} holds no manifest.json with fixtures"


@pytest.mark.parametrize("size", PIECE_SIZES)
@pytest.mark.parametrize("entry", recorded.entries("openai"), ids=lambda entry: entry["file"])
def test_openai_stream_reads_as_its_sdk_reads_it(entry: dict[str, Any], size: int) -> None:
    reading = read_in_pieces(OpenAIAdapter().parser, recorded.stream_of(entry), size)

    assert _as_the_sdk_sees_it(reading.text, reading.thinking, entry) == (
        entry["expected_text"],
        entry["expected_reasoning"],
    )
    assert [(call["name"], as_json(call["arguments"])) for call in reading.calls] == [
        (call["name"], as_json(call["arguments"])) for call in entry["expected_tool_calls"]
    ]
    for call, expected in zip(reading.calls, entry["expected_tool_calls"], strict=True):
        assert call["id"] == expected["id"] or (not expected["id"] and call["id"])
    assert reading.usage == (entry["expected_usage"] or entry.get("expected_usage_x_groq"))
    if entry["expected_error"] is None:
        assert reading.error is None
        assert reading.finish is not None
        assert reading.finish.raw == (entry["expected_finish"] or "")
        assert reading.finishes == 1
    else:
        assert reading.error is not None
        assert entry["expected_error"]["message"] in reading.error.message
        assert reading.finish is None


def _as_the_sdk_sees_it(text: str, thinking: str, entry: dict[str, Any]) -> tuple[str, str]:
    # The SDKs leave inline thinking in the text; we take it out, losing no character.
    if thinking and not entry["expected_reasoning"]:
        return f"<think>{thinking}</think>{text}", ""
    return text, thinking
