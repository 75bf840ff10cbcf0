"""Every recorded stream reads like in the vendors' own SDKs, however the network splits it."""

from typing import Any

import pytest
import recorded
from optional_fields import assert_optional_fields, assert_usage_details, reported_usage
from wire_reading import (
    Reading,
    as_sdk_arguments,
    as_sdk_speech,
    joined_calls,
    read_in_pieces,
    values_at_paths,
    without_blanks,
)

from luxx.providers.anthropic.adapter import ANTHROPIC
from luxx.providers.gemini.adapter import GEMINI
from luxx.providers.openai_chat.adapter import OPENAI
from luxx.providers.openai_responses.adapter import RESPONSES
from luxx.providers.openai_responses.notes import NOTE_KEY, RESENT_TYPES

PIECE_SIZES = (1, 7, 4096)


def test_recorded_streams_exist() -> None:
    folders = recorded.folders()
    if not folders and recorded.may_skip():
        pytest.skip("LUXX_WIRE_FIXTURES names no folder of recorded provider streams")
    assert folders, "LUXX_FORBID_SKIPS=1, but LUXX_WIRE_FIXTURES is not set"
    for folder in folders:
        assert recorded.entries_of(folder), f"{folder} holds no manifest.json with fixtures"


@pytest.mark.parametrize("size", PIECE_SIZES)
@pytest.mark.parametrize("entry", recorded.entries("openai"), ids=recorded.name_of)
def test_openai_stream_reads_as_its_sdk_reads_it(entry: dict[str, Any], size: int) -> None:
    reading = read_in_pieces(OPENAI.parser, recorded.stream_of(entry), size)

    assert as_sdk_speech(reading.text, reading.thinking, entry) == (
        entry["expected_text"],
        entry["expected_reasoning"],
    )
    assert [(call["name"], as_sdk_arguments(call["arguments"], entry)) for call in reading.calls] == [
        (call["name"], as_sdk_arguments(call["arguments"], entry)) for call in entry["expected_tool_calls"]
    ]
    for call, expected in zip(reading.calls, entry["expected_tool_calls"], strict=True):
        assert call["id"] == expected["id"] or (not expected["id"] and call["id"])
    usage = entry["expected_usage"] or entry.get("expected_usage_x_groq")
    assert reported_usage(reading, entry) == usage
    assert_usage_details(reading, entry)
    assert_optional_fields(reading, entry)
    if entry["expected_error"] is None:
        assert reading.error is None
        assert reading.finish is not None
        assert reading.finish.raw == (entry["expected_finish"] or "")
        assert reading.finishes == 1
    else:
        assert reading.error is not None
        assert entry["expected_error"]["message"] in reading.error.message
        assert reading.finish is None


@pytest.mark.parametrize("size", PIECE_SIZES)
@pytest.mark.parametrize("entry", recorded.entries("anthropic"), ids=recorded.name_of)
def test_anthropic_stream_reads_as_its_sdk_reads_it(entry: dict[str, Any], size: int) -> None:
    reading = read_in_pieces(ANTHROPIC.parser, recorded.stream_of(entry), size)

    if recorded.begins_within_another(entry):
        assert "second message" in str(reading.error)
        assert entry["expected_text"].startswith(reading.text)
        assert reading.finish is None
        return
    assert (reading.text, reading.thinking) == (entry["expected_text"], entry["expected_reasoning"])
    assert [
        {"id": call["id"], "name": call["name"], "arguments": as_sdk_arguments(call["arguments"], entry)}
        for call in reading.calls
    ] == entry["expected_tool_calls"]
    assert _usage_as_the_sdk_counts_it(reading) == _with_numbers(entry["expected_usage"])
    _assert_content_is_kept(reading, entry)
    assert_optional_fields(reading, entry)
    if entry["expected_error"] is None:
        assert reading.error is None
        assert reading.finish is not None
        assert reading.finish.raw == (entry["expected_finish"] or "")
        assert reading.finishes == 1
    else:
        assert reading.error is not None
        assert entry["expected_error"]["message"] in reading.error.message
        assert reading.finish is None


def _assert_content_is_kept(reading: Reading, entry: dict[str, Any]) -> None:
    """The notes have every block in order with unchanged signatures, or nothing beside text and calls."""
    blocks = reading.replay.get("anthropic_content")
    if blocks is None:
        assert reading.error is not None or set(entry["expected_blocks"]) <= {"text", "tool_use"}
        return
    assert [block["type"] for block in blocks] == entry["expected_blocks"]
    thinking = [block.get("signature") for block in blocks if block["type"] == "thinking"]
    assert thinking == entry.get("expected_signatures", [])
    redacted = [block["data"] for block in blocks if block["type"] == "redacted_thinking"]
    assert redacted == entry.get("expected_redacted", [])
    served = [block for block in blocks if block["type"] in ("server_tool_use", "mcp_tool_use")]
    assert [
        {"id": block["id"], "name": block["name"], "arguments": block["input"]} for block in served
    ] == entry["expected_server_tool_calls"]


def _usage_as_the_sdk_counts_it(reading: Reading) -> dict[str, int] | None:
    """The SDK's prompt tokens exclude those of the cache; Luxx's include them."""
    if reading.usage is None:
        return None
    cached = reading.cached
    return {**reading.usage, "cache_read": cached}


def _with_numbers(usage: dict[str, Any] | None) -> dict[str, int] | None:
    if usage is None:
        return None
    read, written = usage["cache_read"] or 0, usage["cache_write"] or 0
    prompt = usage["prompt"] + read + written
    return {"prompt": prompt, "completion": usage["completion"], "cache_read": read}


@pytest.mark.parametrize("size", PIECE_SIZES)
@pytest.mark.parametrize("entry", recorded.entries("openai-responses"), ids=recorded.name_of)
def test_responses_stream_reads_as_its_sdk_reads_it(entry: dict[str, Any], size: int) -> None:
    reading = read_in_pieces(RESPONSES.parser, recorded.stream_of(entry), size)

    assert reading.text == entry["expected_text"]
    assert without_blanks(reading.thinking) == without_blanks(entry["expected_reasoning"])
    assert [
        (call["id"], call["name"], as_sdk_arguments(call["arguments"], entry)) for call in reading.calls
    ] == [
        (call["id"], call["name"], as_sdk_arguments(call["arguments"], entry))
        for call in entry["expected_tool_calls"]
    ]
    assert reading.usage == entry["expected_usage"]
    assert_usage_details(reading, entry)
    assert_optional_fields(reading, entry)
    _assert_items_are_kept(reading, entry)
    assert [call.call_id for call in reading.hosted] == [
        call["id"] for call in entry["expected_server_tool_calls"]
    ]
    if entry["expected_error"] is None:
        assert reading.error is None
        assert reading.finish is not None
        assert reading.finish.raw == (entry.get("expected_incomplete_reason") or entry["expected_finish"])
        assert reading.finishes == 1
    else:
        assert reading.error is not None
        assert entry["expected_error"]["message"] in reading.error.message
        assert reading.finish is None


def _assert_items_are_kept(reading: Reading, entry: dict[str, Any]) -> None:
    """The note has the items that can be sent back, in order, also those of hosted tools."""
    kept = [item["type"] for item in reading.replay.get(NOTE_KEY, {"items": []})["items"]]
    if not kept:
        assert not RESENT_TYPES & set(entry["expected_items"])
        return
    assert [kind for kind in kept if kind != "reasoning"] == [
        kind for kind in entry["expected_items"] if kind != "reasoning"
    ]


@pytest.mark.parametrize("size", PIECE_SIZES)
@pytest.mark.parametrize("entry", recorded.entries("gemini"), ids=recorded.name_of)
def test_gemini_stream_reads_as_its_sdk_reads_it(entry: dict[str, Any], size: int) -> None:
    reading = read_in_pieces(GEMINI.parser, recorded.stream_of(entry), size)

    assert (reading.text, reading.thinking) == (entry["expected_text"], entry["expected_reasoning"])
    expected = joined_calls(entry["expected_tool_calls"])
    assert [call["name"] for call in reading.calls] == [call["name"] for call in expected]
    for call, recorded_values in zip(reading.calls, expected, strict=True):
        assert call["id"] == recorded_values["id"] or (not recorded_values["id"] and call["id"])
        assert values_at_paths(as_sdk_arguments(call["arguments"], entry)) == recorded_values["values"]
    notes = reading.replay.get("gemini", [])
    assert sum(_has_signature(note) for note in notes) == entry["expected_thought_signatures"]
    assert_optional_fields(reading, entry)
    if entry["expected_usage"]:
        recorded_values = {key: value or 0 for key, value in entry["expected_usage"].items()}
        # The SDK counts prompts of the server's own tools separately; Luxx counts them as prompt tokens.
        of_tools = (
            recorded_values["total"]
            - recorded_values["prompt"]
            - recorded_values["completion"]
            - recorded_values["thoughts"]
        )
        assert reading.spent.prompt_tokens in (
            recorded_values["prompt"],
            recorded_values["prompt"] + of_tools,
        )
        assert reading.spent.completion_tokens == recorded_values["completion"] + recorded_values["thoughts"]
        assert reading.spent.reasoning_tokens == recorded_values["thoughts"]
        assert reading.spent.total_tokens == recorded_values["total"]
    if entry["expected_error"] is not None:
        assert recorded.error_sentence(entry) in str(reading.error)
    elif reading.error is not None:
        # The SDK returns some broken answers as if they were complete.
        assert entry["expected_finish"] in reading.error.message
    else:
        assert reading.finish is not None
        assert reading.finish.raw == (entry.get("expected_block_reason") or entry["expected_finish"])
        assert reading.finishes == 1


def _has_signature(note: dict[str, Any]) -> bool:
    return "signature" in note or "thoughtSignature" in note.get("part", {})
