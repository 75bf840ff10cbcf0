"""With any replay note the request is valid: calls and results pair, and no text is missing."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from dialects import ROWS, Row
from histories import histories, said
from hostile_notes import any_notes, spoiled, well_formed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from whole_prompt import prompt_messages

from luxx.domain.context.messages import PastMessage
from luxx.providers.adapter import CompletionRequest
from luxx.wire.message import AssistantPrompt, PromptMessage, ToolPrompt
from luxx.wire.turn import Step, StepStatus, StepType, step_id

UNHURRIED = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def with_notes(draw: Any, messages: list[PromptMessage], notes: Any) -> list[PromptMessage]:
    """The history as the store returns it, where notes are JSON."""
    return [
        msgspec.structs.replace(
            message, replay=msgspec.json.decode(msgspec.json.encode(draw(notes(message))))
        )
        if isinstance(message, AssistantPrompt)
        else message
        for message in messages
    ]


def requests_of_every_dialect(draw: Any, notes: Any) -> Iterator[tuple[Row, str, CompletionRequest]]:
    """One history with notes, which takes long to draw, as a request to a provider of each dialect."""
    messages = with_notes(draw, draw(histories()), notes)
    is_thinking = draw(st.booleans())
    for row in ROWS.values():
        model, provider = draw(st.sampled_from(row.models)), draw(st.sampled_from(row.provider_types))
        yield row, provider, CompletionRequest(model=model, messages=messages, thinking_enabled=is_thinking)


@UNHURRIED
@given(data=st.data())
def test_valid_notes_give_a_request_that_obeys_the_vendors_types_and_rules(data: st.DataObject) -> None:
    for row, provider, asked in requests_of_every_dialect(data.draw, well_formed):
        row.rules(row.accepts(row.body(asked, provider), provider), asked)


@pytest.mark.parametrize("notes", [spoiled, lambda _: any_notes], ids=["one value replaced", "any JSON"])
@UNHURRIED
@given(data=st.data())
def test_notes_of_any_shape_give_a_valid_request(notes: Any, data: st.DataObject) -> None:
    for row, provider, asked in requests_of_every_dialect(data.draw, notes):
        row.rules(msgspec.json.decode(row.body(asked, provider)), asked)


@st.composite
def steps(draw: st.DrawFn) -> list[Step]:
    """Steps of an assistant message: texts, and calls with their results."""
    made: list[Step] = []
    for kind in draw(st.lists(st.sampled_from(StepType), max_size=6)):
        calls = {
            StepType.TOOL_CALL: {"name": "add", "arguments": "{}", "id_ref": f"c{len(made)}"},
            StepType.TOOL_RESULT: {"name": "add", "success": True, "id_ref": f"c{len(made) - 1}"},
        }.get(kind, {})
        made.append(
            Step(
                id=step_id(len(made)),
                index=len(made),
                type=kind,
                content=draw(said),
                status=StepStatus.DONE,
                **calls,
            )
        )
    return made


@UNHURRIED
@given(past=st.lists(st.tuples(steps(), st.lists(any_notes, max_size=5)), max_size=3))
def test_stored_notes_of_any_shape_make_a_prompt(past: list[tuple[list[Step], list[Any]]]) -> None:
    stored = msgspec.json.encode([notes for _, notes in past])
    messages = [
        PastMessage(steps=tuple(steps), replay=tuple(notes))
        for (steps, _), notes in zip(past, msgspec.json.decode(stored), strict=True)
    ]

    prompt = prompt_messages("", messages)

    contents = [step.content for steps, _ in past for step in steps if step.type == StepType.TEXT]
    assert "".join(message.text for message in prompt if isinstance(message, AssistantPrompt)) == "".join(
        contents
    )
    called = [
        call.call_id
        for message in prompt
        if isinstance(message, AssistantPrompt)
        for call in message.tool_calls
    ]
    answered = {message.call_id for message in prompt if isinstance(message, ToolPrompt)}
    assert set(called) <= answered
    assert msgspec.json.encode([list(message.replay) for message in messages]) == stored
    for row in ROWS.values():
        request = CompletionRequest(model=row.models[0], messages=prompt)
        msgspec.json.decode(row.body(request, row.provider_types[0]))


def test_very_many_paused_notes_are_joined_quickly() -> None:
    notes = tuple({"paused": True, f"key_{at}": at, "anthropic_content": [at]} for at in range(100_000))

    prompt = prompt_messages("", [PastMessage(replay=notes)])

    assert [len(message.replay) for message in prompt if isinstance(message, AssistantPrompt)] == [100_002]
    assert notes[0]["anthropic_content"] == [0]


def test_very_many_blocks_of_an_imported_note_are_sent_quickly() -> None:
    blocks = [
        block
        for at in range(20_000)
        for block in (
            {"type": "server_tool_use", "id": f"a{at}", "name": "b", "input": {}},
            {"type": "web_search_tool_result", "tool_use_id": f"a{at}", "content": []},
        )
    ]
    row = ROWS["anthropic"]
    answer = AssistantPrompt(text="So.", replay={"anthropic_content": blocks})

    sent = row.body(CompletionRequest(model="claude-sonnet-4-5", messages=[answer]), "anthropic")

    assert len(msgspec.json.decode(sent)["messages"][-1]["content"]) == 40_001
