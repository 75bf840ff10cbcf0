"""Every recorded stream reads as the vendors' own SDKs read it, however the network cuts it."""

from typing import Any

import pytest
import recorded
from wire_reading import as_json, read_in_pieces, values_at_paths

from luxx.providers.gemini import GeminiAdapter
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


@pytest.mark.parametrize("size", PIECE_SIZES)
@pytest.mark.parametrize("entry", recorded.entries("gemini"), ids=lambda entry: entry["file"])
def test_gemini_stream_reads_as_its_sdk_reads_it(entry: dict[str, Any], size: int) -> None:
    reading = read_in_pieces(GeminiAdapter().parser, recorded.stream_of(entry), size)

    assert (reading.text, reading.thinking) == (entry["expected_text"], entry["expected_reasoning"])
    expected = _joined_calls(entry["expected_tool_calls"])
    assert [call["name"] for call in reading.calls] == [call["name"] for call in expected]
    for call, told in zip(reading.calls, expected, strict=True):
        assert call["id"] == told["id"] or (not told["id"] and call["id"])
        assert values_at_paths(as_json(call["arguments"])) == told["values"]
    notes = reading.replay.get("gemini", [])
    assert sum(_has_signature(note) for note in notes) == entry["expected_thought_signatures"]
    if entry["expected_usage"]:
        told = {key: value or 0 for key, value in entry["expected_usage"].items()}
        # Prompts of the server's own tools are counted apart by the SDK, as prompt tokens by us.
        of_tools = told["total"] - told["prompt"] - told["completion"] - told["thoughts"]
        assert reading.spent.prompt_tokens in (told["prompt"], told["prompt"] + of_tools)
        assert reading.spent.completion_tokens == told["completion"] + told["thoughts"]
        assert reading.spent.reasoning_tokens == told["thoughts"]
        assert reading.spent.total_tokens == told["total"]
    if entry["expected_error"] is not None:
        assert entry["expected_error"]["message"] in str(reading.error)
    elif reading.error is not None:
        # The SDK hands some broken answers on as if they were whole.
        assert entry["expected_finish"] in reading.error.message
    else:
        assert reading.finish is not None
        assert reading.finish.raw == entry["expected_finish"]
        assert reading.finishes == 1


def _joined_calls(told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The calls as a reader joins them: what the SDK gives of a streamed call are its fragments."""
    calls: list[dict[str, Any]] = []
    for fragment in told:
        if fragment["name"]:
            whole = values_at_paths(fragment["arguments"] or {})
            calls.append({"id": fragment["id"], "name": fragment["name"], "values": whole})
        for item in fragment.get("partial_args") or []:
            kind = next((key for key in item if key.endswith("_value")), None)
            if kind is None:
                continue
            values, path = calls[-1]["values"], item["json_path"]
            old = values.get(path)
            values[path] = old + item[kind] if isinstance(old, str) else item[kind]
    return calls


def _has_signature(note: dict[str, Any]) -> bool:
    return "signature" in note or "thoughtSignature" in note.get("part", {})
