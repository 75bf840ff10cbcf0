"""Whatever is left out of a prompt, it stays valid for each dialect, and what must be sent is sent."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import pytest
from dialects import ROWS
from histories import said, turns
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from luxx.domain.context.messages import PastMessage
from luxx.domain.context.prompt import HistorySection, Prompt, SectionKind, TextSection
from luxx.domain.usage.ledger import estimated_tokens
from luxx.errors import ContextTooLong
from luxx.providers.adapter import CompletionRequest
from luxx.providers.failures import as_provider_error, read_error_body
from luxx.providers.scripted.http import overflow_body
from luxx.providers.scripted.script import ScriptedRequest
from luxx.wire.message import (
    AssistantPrompt,
    ContextRecord,
    PromptMessage,
    SystemPrompt,
    ToolPrompt,
    UserContent,
    UserPrompt,
)
from luxx.wire.turn import Step, StepType, step_id

LONG = "x" * 2_000


def steps_of(messages: list[PromptMessage]) -> Iterator[Step]:
    """The steps of a turn; its results are long or short."""
    index = 0
    for message in messages:
        parts: list[dict[str, Any]] = []
        if isinstance(message, AssistantPrompt):
            parts += [{"type": StepType.TEXT, "content": message.text}] if message.text else []
            parts += [
                {"type": StepType.TOOL_CALL, "id_ref": c.call_id, "name": c.name, "arguments": c.arguments}
                for c in message.tool_calls
            ]
        elif isinstance(message, ToolPrompt):
            content = message.content if len(message.call_id) % 2 else message.content + LONG
            parts = [{"type": StepType.TOOL_RESULT, "id_ref": message.call_id, "name": message.name}]
            parts[0] |= {"content": content, "success": message.success}
        for part in parts:
            yield Step(id=step_id(index), index=index, **part)
            index += 1


class DrawnPrompt(NamedTuple):
    system: str
    history: HistorySection

    @property
    def prompt(self) -> Prompt:
        system = TextSection(kind=SectionKind.SYSTEM, owner="tests", text=self.system)
        return Prompt([self.history, system], estimated_tokens)


@st.composite
def prompts(draw: st.DrawFn) -> DrawnPrompt:
    """A chat, or a room with its task: past turns, and a turn in progress that waits for the model."""
    past: list[PastMessage] = []
    for turn in draw(st.lists(turns(), max_size=5)):
        past += [user_message(turn), PastMessage(steps=tuple(steps_of(turn[1:])))]
    last = draw(turns())
    current = tuple(steps_of([one for one in last[1:] if isinstance(one, ToolPrompt) or one.tool_calls]))
    has_task = draw(st.booleans())
    task = [PastMessage(user=UserContent(text="The task: talk."))] if has_task else []
    history = HistorySection(
        owner="tests",
        past=[*task, *past, user_message(last)],
        steps=current,
        has_task=has_task,
        read_tool=draw(st.sampled_from(["", "result_read"])),
    )
    return DrawnPrompt(draw(said), history)


def user_message(turn: list[PromptMessage]) -> PastMessage:
    assert isinstance(turn[0], UserPrompt)
    return PastMessage(user=UserContent(text=turn[0].text))


records = st.builds(
    ContextRecord,
    messages=st.integers(0, 12), results=st.integers(0, 5), window=st.sampled_from([0, 50, 4_000]),
    estimated=st.integers(0, 500), counted=st.integers(0, 500),
)  # fmt: skip
windows = st.none() | st.integers(10, 4_000)


@pytest.mark.parametrize("dialect", ROWS)
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=20)
@given(data=st.data())
def test_a_prompt_that_was_cut_obeys_the_rules_of_each_dialect(dialect: str, data: st.DataObject) -> None:
    drawn, context, window = data.draw(prompts()), data.draw(records), data.draw(windows)
    limit = data.draw(st.none() | st.floats(0, 2_000))
    row = ROWS[dialect]

    fitted = drawn.prompt.fitted(context, window, limit, (limit or 0) * 0.7)

    model = data.draw(st.sampled_from(row.models))
    asked = CompletionRequest(model=model, messages=fitted.messages, max_tokens=2_000)
    provider = row.provider_types[0]
    row.rules(row.accepts(row.body(asked, provider), provider), asked)
    first, *others = fitted.messages
    assert first == SystemPrompt(text=drawn.system)
    assert isinstance(others[0], UserPrompt)
    users = [message.text for message in others if isinstance(message, UserPrompt)]
    last = drawn.history.past[-1].user
    assert last is not None
    assert users[-1] == last.text
    assert not drawn.history.has_task or users[0] == "The task: talk."


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=15)
@given(drawn=prompts(), context=records, window=windows, limit=st.floats(0, 3_000))
def test_what_was_left_out_once_is_left_out_again_and_no_more_than_needed(
    drawn: DrawnPrompt, context: ContextRecord, window: int | None, limit: float
) -> None:
    prompt = drawn.prompt
    fitted = prompt.fitted(context, window, limit, limit * 0.7)

    assert prompt.messages(fitted.context) == fitted.messages
    if fitted.before <= limit:
        assert fitted.after == fitted.before
    again = prompt.fitted(fitted.context, window, limit, limit * 0.7)
    if fitted.after <= limit:
        assert again.messages == fitted.messages


VENDORS = ["openai", "anthropic", "gemini"]


@pytest.mark.parametrize("dialect", VENDORS)
@pytest.mark.parametrize("tokens", [3_900, 4_100])
def test_the_error_of_each_vendor_for_a_full_window_is_known(dialect: str, tokens: int) -> None:
    request = ScriptedRequest(dialect=dialect, tokens=tokens, max_tokens=500)
    error = read_error_body(msgspec.json.encode(overflow_body(request, 4_000)))
    error = msgspec.structs.replace(error, status=400)
    assert isinstance(as_provider_error(error), ContextTooLong)
