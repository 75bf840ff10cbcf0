"""A conversation of one dialect continues with a model of any other, which receives none of its notes."""

from collections.abc import Callable
from typing import Any, NamedTuple

import anthropic_answers
import gemini_answers
import openai_answers
import pytest
import recorded
import responses_answers
from dialects import ROWS
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from wire_reading import Reading, read_in_pieces

from luxx.providers.adapter import CompletionRequest
from luxx.wire.message import AssistantPrompt, PromptMessage, ToolPrompt, UserPrompt
from luxx.wire.tool import ToolCall

UNHURRIED = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Source(NamedTuple):
    answers: st.SearchStrategy[Any]
    stream_of: Callable[[Any], bytes]


SOURCES = {
    "openai": Source(openai_answers.answers(), openai_answers.stream_of),
    "openai-responses": Source(responses_answers.answers(), responses_answers.stream_of),
    "anthropic": Source(anthropic_answers.answers(), anthropic_answers.stream_of),
    "gemini": Source(gemini_answers.answers, gemini_answers.stream_of),
}
KINDS = [(dialect, provider) for dialect, row in ROWS.items() for provider in row.provider_types]
FOREIGN = [(source, *kind) for source in SOURCES for kind in KINDS if source != kind[0]]
STRICT = ["openai", "azure_openai", "mistral", "groq"]
"""Providers of the OpenAI dialect that refuse a request with an unknown key in its messages."""


def history(reading: Reading, *, with_notes: bool) -> list[PromptMessage]:
    """The answer in a turn that continues after its calls, or in a finished turn."""
    calls = [ToolCall(call_id=c["id"], name=c["name"], arguments=c["arguments"]) for c in reading.calls]
    refusal = reading.replay.get("refusal", "")
    answer = AssistantPrompt(
        text=reading.text or refusal,  # The text of a refusal is stored as text.
        thinking=reading.thinking,
        tool_calls=calls,
        replay=reading.replay if with_notes else {},
    )
    results = [ToolPrompt(call_id=call.call_id, name=call.name, content="{}") for call in calls]
    user_message = UserPrompt(text="Go on.")
    return [user_message, answer, *results] if calls else [user_message, answer, user_message]


def check_continues_without_notes(reading: Reading, dialect: str, provider: str) -> None:
    row = ROWS[dialect]
    for model in row.models:
        request, bare = (
            CompletionRequest(
                model=model, messages=history(reading, with_notes=with_notes), thinking_enabled=True
            )
            for with_notes in (True, False)
        )
        sent = row.body(request, provider)
        row.rules(row.accepts(sent, provider), request)
        assert sent == row.body(bare, provider)


@pytest.mark.parametrize("source", SOURCES)
@UNHURRIED
@given(data=st.data())
def test_answer_of_another_dialect_is_sent_as_text_and_calls_only(source: str, data: st.DataObject) -> None:
    answers, stream_of = SOURCES[source]
    stream = stream_of(data.draw(answers))
    reading = read_in_pieces(ROWS[source].adapter.parser, stream, 4096)

    for answered_by, dialect, provider in FOREIGN:
        if answered_by == source:
            note(f"sent to {provider}")
            check_continues_without_notes(reading, dialect, provider)


@UNHURRIED
@given(answer=openai_answers.answers())
def test_strict_providers_are_sent_no_reasoning_of_their_own_dialect(answer: Any) -> None:
    reading = read_in_pieces(ROWS["openai"].adapter.parser, openai_answers.stream_of(answer), 4096)

    for provider in STRICT:
        note(f"sent to {provider}")
        check_continues_without_notes(reading, "openai", provider)


@UNHURRIED
@given(answer=openai_answers.answers())
def test_reasoning_is_sent_to_compatible_servers_in_their_own_keys(answer: Any) -> None:
    row = ROWS["openai"]
    reading = read_in_pieces(row.adapter.parser, openai_answers.stream_of(answer), 4096)
    request = CompletionRequest(model="m", messages=history(reading, with_notes=True), thinking_enabled=True)

    for provider in row.provider_types:
        note(f"sent to {provider}")
        body = row.accepts(row.body(request, provider), provider)

        row.rules(body, request)
        details = body["messages"][1].get("reasoning_details", [])
        takes_details = provider in ("openrouter", "openai_compatible")
        assert details == (reading.replay.get("reasoning_details", []) if takes_details else [])


@pytest.mark.parametrize(
    "entry",
    [
        entry
        for entry in recorded.all_entries()
        if entry["expected_error"] is None and entry["api"] in recorded.BUILT
    ],
    ids=recorded.name_of,
)
def test_recorded_answer_continues_with_every_other_dialect(entry: dict[str, Any]) -> None:
    reading = read_in_pieces(ROWS[entry["api"]].adapter.parser, recorded.stream_of(entry), 4096)

    for source, dialect, provider in FOREIGN:
        if source == entry["api"]:
            check_continues_without_notes(reading, dialect, provider)


def test_names_and_ids_of_another_dialects_calls_fit_openais_bounds() -> None:
    call = ToolCall(call_id="toolu_" + "x" * 60, name="default_api:add." + "y" * 80, arguments="{}")
    result = ToolPrompt(call_id=call.call_id, name=call.name, content="{}")
    messages = [UserPrompt(text="Go on."), AssistantPrompt(tool_calls=[call]), result]
    request = CompletionRequest(model="gpt-5", messages=messages)
    row = ROWS["openai"]

    body = row.accepts(row.body(request, "openai"), "openai")

    row.rules(body, request)
    sent = body["messages"][1]["tool_calls"][0]
    assert len(sent["id"]) <= 40
    assert sent["function"]["name"] == "default_api_add_" + "y" * 48
