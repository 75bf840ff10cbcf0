"""A hypothesis strategy of random histories of a conversation, which every adapter must be able to send."""

import json
from typing import Any

from hypothesis import strategies as st

from luxx.wire.message import (
    AssistantPrompt,
    PromptImage,
    PromptMessage,
    SystemPrompt,
    ToolPrompt,
    UserPrompt,
)
from luxx.wire.tool import ToolCall

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360000000000200"
    "01e221bc330000000049454e44ae426082"
)
"""A valid PNG of one pixel."""

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
said = texts.filter(lambda text: text.strip() != "")
names = st.from_regex(r"[a-z][a-z0-9_]{0,20}", fullmatch=True)
objects = st.dictionaries(
    st.text("abc_", min_size=1, max_size=5), st.none() | st.integers() | texts, max_size=3
)
arguments = objects.map(json.dumps) | st.sampled_from(
    ["", "{", "not json", "[1]", '"text"', "null", "[" * 100_000]
)
"""Arguments as models write them: mostly objects, sometimes invalid JSON."""

images = st.builds(PromptImage, media_type=st.just("image/png"), data=st.just(PIXEL))
results = objects.map(lambda data: json.dumps({"success": True, "data": data, "error": None}))


@st.composite
def turns(draw: st.DrawFn) -> list[PromptMessage]:
    """A user message; completions with parallel calls and their results; sometimes a final answer."""
    user_message = UserPrompt(text=draw(said), images=tuple(draw(st.lists(images, max_size=2))))
    messages: list[PromptMessage] = [user_message]
    for _ in range(draw(st.integers(0, 3))):
        called = draw(st.lists(st.tuples(names, arguments), min_size=1, max_size=3))
        calls = [
            ToolCall(call_id=f"call_{draw(st.integers(0, 10**9))}_{at}", name=name, arguments=written)
            for at, (name, written) in enumerate(called)
        ]
        messages.append(AssistantPrompt(text=draw(texts), thinking=draw(texts), tool_calls=calls))
        messages += [
            ToolPrompt(
                call_id=call.call_id, name=call.name, content=draw(results), success=draw(st.booleans())
            )
            for call in calls
        ]
    if draw(st.booleans()):
        messages.append(AssistantPrompt(text=draw(said), thinking=draw(texts)))
    return messages


@st.composite
def histories(draw: st.DrawFn) -> list[PromptMessage]:
    """A complete prompt: sometimes a system text, then some turns, and a user message or results at the end.

    Two user messages may follow each other: a run that failed left no answer.
    """
    system: list[PromptMessage] = [SystemPrompt(text=draw(said))] if draw(st.booleans()) else []
    past: list[Any] = draw(st.lists(turns(), max_size=4))
    last: list[PromptMessage] = draw(turns())
    if isinstance(last[-1], AssistantPrompt):
        last.append(UserPrompt(text=draw(said)))
    return [*system, *(message for turn in past for message in turn), *last]
