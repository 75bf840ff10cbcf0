"""What a link shows of a stored message."""

import msgspec

from luxx.domain.conversations.models import MessageRow
from luxx.domain.conversations.views import message_view
from luxx.features.shares.content import shared_message
from luxx.infra.clock import utc_now
from luxx.wire.message import AssistantContent
from luxx.wire.source import Source
from luxx.wire.turn import Step, StepType


def test_link_shows_the_text_of_an_answer_and_nothing_of_its_thinking_and_tools() -> None:
    source = Source(url="https://example.org/a", title="A page", snippet="SECRET snippet")
    steps = [
        Step(id="step-0", index=0, type=StepType.THINKING, content="SECRET thought"),
        Step(id="step-1", index=1, type=StepType.TOOL_CALL, name="read", arguments='{"path": "SECRET"}'),
        Step(id="step-2", index=2, type=StepType.TOOL_RESULT, name="read", content='{"data": "SECRET"}'),
        Step(id="step-3", index=3, type=StepType.TEXT, content="The answer.", sources=[source]),
    ]
    content = AssistantContent(steps=steps, memories_used=["SECRET memory"])
    row = MessageRow(
        id="SECRET id", user_id=7, conversation_id="SECRET conversation", role="assistant", token_count=3,
        content=msgspec.json.encode(content).decode(), status="complete", provider_id=7,
        provider_name="SECRET provider", model="SECRET model", created_at=utc_now(),
    )  # fmt: skip
    shown = msgspec.to_builtins(shared_message(1, message_view(row)))
    assert "SECRET" not in msgspec.json.encode(shown).decode()
    assert set(shown) == {"number", "role", "sender", "text", "images", "citations", "created_at"}
    assert shown["text"] == "The answer."
    assert shown["citations"] == [{"index": 1, "title": "A page", "url": "https://example.org/a"}]
