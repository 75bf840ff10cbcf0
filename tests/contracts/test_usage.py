"""The token counts of every dialect: the prompt includes the cache, the completion the reasoning."""

import json
from typing import Any

import pytest
from wire_reading import read_in_pieces

from luxx.providers.anthropic.adapter import ANTHROPIC
from luxx.providers.catalog import ModelCard
from luxx.providers.openai_chat.adapter import OPENAI
from luxx.wire.turn import Usage

CASES: dict[str, tuple[dict[str, Any], Usage]] = {
    "xAI: reasoning beside the completion": (
        {
            "prompt_tokens": 10,
            "completion_tokens": 5,
            "total_tokens": 45,
            "completion_tokens_details": {"reasoning_tokens": 30},
        },
        Usage(prompt_tokens=10, completion_tokens=35, total_tokens=45, reasoning_tokens=30),
    ),
    "Google's compatible endpoint: thoughts only in the total": (
        {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 45},
        Usage(prompt_tokens=10, completion_tokens=35, total_tokens=45, reasoning_tokens=30),
    ),
    "a gateway whose total leaves the thoughts out": (
        {
            "prompt_tokens": 9,
            "completion_tokens": 35,
            "total_tokens": 44,
            "completion_tokens_details": {"reasoning_tokens": 267},
        },
        Usage(prompt_tokens=9, completion_tokens=302, total_tokens=311, reasoning_tokens=267),
    ),
    "OpenAI: reasoning in the completion": (
        {
            "prompt_tokens": 10,
            "completion_tokens": 35,
            "total_tokens": 45,
            "completion_tokens_details": {"reasoning_tokens": 30},
        },
        Usage(prompt_tokens=10, completion_tokens=35, total_tokens=45, reasoning_tokens=30),
    ),
    "OpenRouter and Azure": (
        {
            "prompt_tokens": 100,
            "completion_tokens": 5,
            "total_tokens": 105,
            "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 30},
        },
        Usage(
            prompt_tokens=100,
            completion_tokens=5,
            total_tokens=105,
            cached_tokens=60,
            cache_write_tokens=30,
        ),
    ),
    "Qwen": (
        {
            "prompt_tokens": 100,
            "completion_tokens": 5,
            "total_tokens": 105,
            "prompt_tokens_details": {"cached_tokens": 0, "cache_creation_input_tokens": 90},
        },
        Usage(prompt_tokens=100, completion_tokens=5, total_tokens=105, cache_write_tokens=90),
    ),
    "Mistral": (
        {
            "prompt_tokens": 100,
            "completion_tokens": 5,
            "total_tokens": 105,
            "num_cached_tokens": 64,
            "prompt_token_details": {"cached_tokens": 64},
        },
        Usage(prompt_tokens=100, completion_tokens=5, total_tokens=105, cached_tokens=64),
    ),
    "DeepSeek": (
        {
            "prompt_tokens": 100,
            "completion_tokens": 5,
            "total_tokens": 105,
            "prompt_cache_hit_tokens": 64,
            "prompt_cache_miss_tokens": 36,
        },
        Usage(prompt_tokens=100, completion_tokens=5, total_tokens=105, cached_tokens=64),
    ),
    "Databricks and gateways to Anthropic": (
        {
            "prompt_tokens": 100,
            "completion_tokens": 5,
            "total_tokens": 105,
            "cache_read_input_tokens": 60,
            "cache_creation_input_tokens": 30,
        },
        Usage(
            prompt_tokens=100,
            completion_tokens=5,
            total_tokens=105,
            cached_tokens=60,
            cache_write_tokens=30,
        ),
    ),
    "a cache beside the prompt": (
        {
            "prompt_tokens": 10,
            "completion_tokens": 5,
            "total_tokens": 105,
            "cache_read_input_tokens": 60,
            "cache_creation_input_tokens": 30,
        },
        Usage(
            prompt_tokens=100,
            completion_tokens=5,
            total_tokens=105,
            cached_tokens=60,
            cache_write_tokens=30,
        ),
    ),
}
"""The usage as the server reports it, and as Luxx counts it."""


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("where", ["chunk", "choice"])
def test_usage_counts_the_cache_and_the_reasoning(case: str, where: str) -> None:
    reported, counted = CASES[case]
    choice = {"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}
    # Moonshot reports the usage in the choice.
    chunk = {"choices": [choice], "usage": reported}
    if where == "choice":
        chunk = {"choices": [choice | {"usage": reported}]}
    stream = b"data: " + json.dumps(chunk).encode() + b"\n\ndata: [DONE]\n\n"

    assert read_in_pieces(OPENAI.parser, stream, 7).spent == counted


def test_anthropic_writes_are_counted_by_their_parts() -> None:
    usage = {
        "input_tokens": 10,
        "output_tokens": 5,
        "cache_read_input_tokens": 20,
        "cache_creation": {"ephemeral_5m_input_tokens": 30, "ephemeral_1h_input_tokens": 40},
    }
    body = {"type": "message", "content": [], "stop_reason": "end_turn", "usage": usage}

    spent = read_in_pieces(ANTHROPIC.parser, json.dumps(body).encode(), 4096).spent

    assert spent == Usage(
        prompt_tokens=100,
        completion_tokens=5,
        total_tokens=105,
        cached_tokens=20,
        cache_write_tokens=70,
    )


def test_reasoning_and_the_cache_have_their_price() -> None:
    card = ModelCard(
        pattern="a-model",
        context_window=1000,
        max_output=100,
        input_price=2.0,
        output_price=10.0,
        cached_input_price=0.5,
        cache_write_price=4.0,
    )
    beside = CASES["xAI: reasoning beside the completion"][1]
    cached = CASES["a cache beside the prompt"][1]

    assert card.cost(beside) == pytest.approx((10 * 2.0 + 35 * 10.0) / 1_000_000)
    assert card.cost(cached) == pytest.approx((10 * 2.0 + 60 * 0.5 + 30 * 4.0 + 5 * 10.0) / 1_000_000)
