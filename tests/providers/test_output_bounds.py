"""Completions that their providers do not end: beyond their limit of tokens, or in a loop."""

from itertools import cycle, islice

import pytest
from provider_calls import ASK, CallResult, calling, target_of

from luxx.providers.parsing import CHARACTERS_PER_TOKEN
from luxx.providers.scripted import Pause, Rule, Script, ScriptedProvider, Text
from luxx.wire.turn import FinishDelta, FinishReason

SENTENCE = "The answer to your question is that it is so. "
VERSES = "".join(f"Verse {number} tells of the day number {number * 7}. {SENTENCE}" for number in range(5))


async def answer(text: str, kind: str, max_tokens: int | None = None) -> CallResult:
    """The answer of a provider that sends this text, one word at a time, and then nothing for a minute."""
    rule = Rule(reply=[Text(text=text), Pause(seconds=60.0)])
    request = (
        ASK
        if max_tokens is None
        else type(ASK)(model=ASK.model, messages=ASK.messages, max_tokens=max_tokens)
    )
    async with ScriptedProvider(Script(rules=[rule])) as provider, calling() as caller:
        return await caller.call(target_of(provider.url, kind), request)


def finish(called: CallResult) -> FinishReason | None:
    return next((delta.reason for delta in called.deltas if isinstance(delta, FinishDelta)), None)


@pytest.mark.parametrize("kind", ["openai_compatible", "anthropic"])
async def test_an_answer_far_beyond_its_limit_is_cut(kind: str) -> None:
    called = await answer("word " * 5_000, kind, max_tokens=100)
    assert (called.error, finish(called)) == (None, FinishReason.LENGTH)
    assert 100 * CHARACTERS_PER_TOKEN <= len(called.text) < 20_000


async def test_the_embedded_model_stops_where_it_repeats_itself() -> None:
    called = await answer(VERSES + SENTENCE * 200, "local", max_tokens=2_048)
    assert (called.error, finish(called)) == (None, FinishReason.LENGTH)
    assert called.text.startswith(VERSES)
    assert called.text.count(SENTENCE) < 30


async def test_one_word_without_end_is_a_repetition() -> None:
    called = await answer("ha " * 1_000, "local", max_tokens=2_048)
    assert finish(called) == FinishReason.LENGTH
    assert len(called.text.split()) < 150


async def test_a_list_with_a_common_pattern_is_no_repetition() -> None:
    items = "".join(f"{number}. The square of {number} is {number**2}.\n" for number in range(1, 120))
    rule = Rule(reply=[Text(text=items)])
    async with ScriptedProvider(Script(rules=[rule])) as provider, calling() as caller:
        called = await caller.call(target_of(provider.url, "local"))
    assert (called.text, finish(called)) == (items, FinishReason.STOP)


async def test_a_provider_that_is_not_embedded_may_repeat_itself() -> None:
    text = " ".join(islice(cycle(["ha"]), 1_000))
    rule = Rule(reply=[Text(text=text)])
    async with ScriptedProvider(Script(rules=[rule])) as provider, calling() as caller:
        called = await caller.call(target_of(provider.url))
    assert (called.text, finish(called)) == (text, FinishReason.STOP)
