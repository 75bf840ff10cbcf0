"""The maximum usage of a call, and the headroom that limits leave for it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luxx.domain.context.tokens import prompt_size
from luxx.domain.usage.reserve import (
    MIN_ANSWER_TOKENS,
    PREFERRED_ANSWER_TOKENS,
    LimitHeadroom,
    PlannedCall,
    ReserveVerdict,
    SpendingLimit,
    check_price,
    fit_call,
)
from luxx.errors import InvalidInput
from luxx.infra.config.schema import LimitsConfig
from luxx.providers.adapter import CompletionRequest
from luxx.providers.catalog import UNKNOWN, Catalog, ModelCard, embedded_card
from luxx.runs.turn.spending import worst_case
from luxx.wire.message import AssistantPrompt, PromptImage, SystemPrompt, ToolPrompt, UserPrompt
from luxx.wire.tool import ToolCall, ToolSpec

USUAL = {
    "English: a token for each word and mark": ("The quick brown fox jumps over the lazy dog.", 10),
    "a program: for each word, mark, line and indentation": ("def add(a, b):\n    return a + b\n", 14),
    "digits: each one, as some open models count them": ("3.14159265358979", 16),
    "Chinese: three for two characters, as older models count it": ("今天天气很好，我们去公园散步吧。", 24),
    "Russian: for every two letters": ("Привет, как дела?", 9),
    "JSON: for each word and each mark": ('{"name": "Ann", "age": 42}', 16),
    "emoji: two for each": ("🦉🎉👍", 6),
}
"""Ordinary texts, with a generous estimate of their tokens in today's models."""


@pytest.mark.parametrize(("text", "tokens"), USUAL.values(), ids=USUAL)
def test_the_bound_is_not_below_what_models_count_for_usual_text(text: str, tokens: int) -> None:
    size = prompt_size([UserPrompt(text=text * 20)], [])
    empty = prompt_size([UserPrompt(text="")], [])
    assert size.bound - empty.bound >= 20 * tokens


@given(st.text(max_size=300))
def test_the_bound_lies_between_half_a_token_and_a_token_per_byte(text: str) -> None:
    said = prompt_size([UserPrompt(text=text)], []).bound - prompt_size([UserPrompt(text="")], []).bound
    size = len(text.encode("utf-8", "replace"))
    assert size / 2 <= said <= size


def test_everything_that_is_sent_counts() -> None:
    plain = prompt_size([UserPrompt(text="hello")], [])
    image = PromptImage(media_type="image/png", data=b"x")
    call = ToolCall(call_id="c", name="look", arguments="{}")
    tool = ToolSpec(name="look", description="Looks.", parameters={"type": "object"})
    for more in (
        prompt_size([UserPrompt(text="hello", images=(image,))], []),
        prompt_size([SystemPrompt(text="s"), UserPrompt(text="hello")], []),
        prompt_size([UserPrompt(text="hello"), AssistantPrompt(tool_calls=[call])], []),
        prompt_size([UserPrompt(text="hello"), AssistantPrompt(replay={"signature": "abc"})], []),
        prompt_size([UserPrompt(text="hello"), ToolPrompt(call_id="c", name="look", content="{}")], []),
        prompt_size([UserPrompt(text="hello")], [tool]),
        prompt_size([UserPrompt(text="hello")], [], {"type": "object"}),
    ):
        assert more.bound > plain.bound
        assert more.bound >= more.estimate


CARD = ModelCard(
    pattern="m", context_window=10_000, max_output=2_000, input_price=1.0, output_price=4.0,
    cached_input_price=0.1, cache_write_price=1.25,
)  # fmt: skip


def request(text: str, max_tokens: int | None = None) -> CompletionRequest:
    return CompletionRequest(model="m", messages=[UserPrompt(text=text)], max_tokens=max_tokens)


def test_the_longest_answer_is_what_was_asked_for_or_what_the_model_gives_within_its_window() -> None:
    assert worst_case(request("hi"), CARD).answer_tokens == 2_000
    assert worst_case(request("hi", 50), CARD).answer_tokens == 50
    # The estimate may be too low by a tenth.
    assert worst_case(request("word " * 7_200), CARD).answer_tokens == 10_000 - int(7_920 * 1.1)
    assert worst_case(request("word " * 70_000), CARD).answer_tokens == MIN_ANSWER_TOKENS


def test_a_prompt_costs_at_most_the_dearest_of_its_prices() -> None:
    call = worst_case(request("hi", 100), CARD)
    assert call.cost(100) == pytest.approx((call.prompt_tokens * 1.25 + 100 * 4.0) / 1e6)


def headroom(
    left: float, reserved: float = 0, limit: SpendingLimit = SpendingLimit.TOKENS_PER_DAY
) -> LimitHeadroom:
    return LimitHeadroom(limit=limit, amount=10_000, spent=10_000 - left, reserved=reserved)


LONG = PlannedCall(prompt_tokens=1_000, answer_tokens=8_000)


@pytest.mark.parametrize(
    ("left", "reserved", "may_wait", "verdict", "tokens"),
    [
        (10_000, 0, True, ReserveVerdict.FITS, 8_000),
        (6_000, 0, True, ReserveVerdict.FITS, 5_000),
        (1_000 + MIN_ANSWER_TOKENS, 0, True, ReserveVerdict.FITS, MIN_ANSWER_TOKENS),
        (999 + MIN_ANSWER_TOKENS, 0, True, ReserveVerdict.NEVER, 0),
        (500, 0, True, ReserveVerdict.NEVER, 0),
        (10_000, 4_000, True, ReserveVerdict.FITS, 5_000),
        (10_000, 8_000, True, ReserveVerdict.WAITS, 0),
        (10_000, 8_000, False, ReserveVerdict.FITS, 1_000),
        (10_000, 9_000, False, ReserveVerdict.NEVER, 0),
        (1_000 + MIN_ANSWER_TOKENS, 1, True, ReserveVerdict.WAITS, 0),
    ],
)
def test_a_call_fits_waits_or_never_fits(
    left: float, reserved: float, may_wait: bool, verdict: ReserveVerdict, tokens: int
) -> None:
    answer = fit_call(LONG, [headroom(left, reserved)], may_wait=may_wait)
    assert (answer.verdict, answer.tokens) == (verdict, tokens)


@given(
    st.builds(
        PlannedCall,
        prompt_tokens=st.integers(1, 5_000), answer_tokens=st.integers(1, 9_000),
        prompt_price=st.sampled_from([0.0, 1e-6]), answer_price=st.sampled_from([0.0, 4e-6]),
    ),
    st.lists(
        st.builds(
            LimitHeadroom,
            limit=st.sampled_from(SpendingLimit),
            amount=st.floats(0.001, 20_000),
            spent=st.floats(0, 9_000),
            reserved=st.floats(0, 9_000),
        ),
        min_size=1, max_size=4,
    ),
    st.booleans(),
)  # fmt: skip
def test_a_call_that_fits_exceeds_no_limit(
    call: PlannedCall, headrooms: list[LimitHeadroom], may_wait: bool
) -> None:
    answer = fit_call(call, headrooms, may_wait=may_wait)
    if answer.verdict != ReserveVerdict.FITS:
        assert answer.tokens == 0
        return
    assert 0 < answer.tokens <= call.answer_tokens
    for each in headrooms:
        taken = call.cost(answer.tokens) if each.limit.is_money else call.prompt_tokens + answer.tokens
        whole = each.spent + each.reserved + taken
        assert whole <= each.amount or math.isclose(whole, each.amount)


def test_a_short_requested_answer_needs_no_more_headroom_than_it_takes() -> None:
    short = PlannedCall(prompt_tokens=10, answer_tokens=5)
    assert fit_call(short, [headroom(15)], may_wait=False).tokens == 5
    assert fit_call(short, [headroom(14)], may_wait=False).verdict == ReserveVerdict.NEVER
    assert PREFERRED_ANSWER_TOKENS > MIN_ANSWER_TOKENS > short.answer_tokens


def test_where_money_is_limited_a_price_must_be_known_and_the_embedded_model_is_free() -> None:
    limits = LimitsConfig(cost_per_run=1)
    with pytest.raises(InvalidInput, match="price of who"):
        check_price(UNKNOWN, limits, "who")
    check_price(UNKNOWN, LimitsConfig(tokens_per_run=1), "who")
    check_price(Catalog().find("gpt-4o"), limits, "gpt-4o")
    check_price(embedded_card("any.gguf"), limits, "any.gguf")
    free = worst_case(request("hi"), embedded_card("any.gguf"))
    assert (
        fit_call(free, [headroom(0.01, limit=SpendingLimit.COST_PER_DAY)], may_wait=False).tokens
        == free.answer_tokens
    )
