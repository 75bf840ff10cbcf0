"""The model catalog: capabilities and prices by the name of a model."""

import pytest

from luxx.infra.config.schema import ModelConfig
from luxx.providers.catalog import BUILT_IN, UNKNOWN, Catalog, ModelCard, configured_catalog
from luxx.wire.turn import Usage


def usage(prompt: int, completion: int, **more: int) -> Usage:
    return Usage(prompt_tokens=prompt, completion_tokens=completion, **more)


@pytest.mark.parametrize(
    ("model", "pattern"),
    [
        ("gpt-4o-mini-2024-07-18", "gpt-4o-mini*"),
        ("openai/gpt-4o", "gpt-4o*"),
        ("GPT-4.1-Nano", "gpt-4.1-nano*"),
        ("gpt-5", "gpt-5"),
        ("gpt-5-mini", "gpt-5-mini*"),
        ("gpt-5.9-imagined", "gpt-5*"),
        ("claude-3-5-haiku-20241022", "claude-3-5-haiku*"),
        ("anthropic/claude-sonnet-4-5", "claude-sonnet-4-[56]*"),
        ("claude-sonnet-4-20250514", "claude-sonnet-4*"),
        ("claude-opus-5-5", "claude-opus-5-5*"),
        ("gemini-2.5-flash-lite", "gemini-2.5-flash-lite*"),
        ("models/gemini-2.5-flash-image", "gemini-2.5-flash-image*"),
        ("gemini-3-pro-preview", "gemini-3-pro*"),
        ("gemini-3.1-flash-lite", "gemini-3*"),
        ("gemini-flash-latest", "gemini-*-latest"),
        ("qwen2.5:0.5b", "*[-:_]0.[5-8]b*"),
        ("qwen2.5:14b", "qwen*"),
        ("gpt-oss-120b", "*"),
        ("somebody/else", "*"),
    ],
)
def test_model_is_found_by_its_most_specific_pattern(model: str, pattern: str) -> None:
    assert Catalog().find(model).pattern == pattern


@pytest.mark.parametrize("model", ["SmolLM2:360m", "llama3.2:1b", "qwen2.5-0.5b-instruct"])
def test_tiny_model_gets_no_tools(model: str) -> None:
    assert not Catalog().find(model).tools


def test_unknown_model_has_no_tools_and_no_price() -> None:
    assert not UNKNOWN.tools
    assert Catalog().find("nobody-knows-me").cost(usage(1_000, 1_000)) is None


def test_cost_is_tokens_times_price() -> None:
    assert Catalog().find("gpt-4o").cost(usage(1_000_000, 100_000)) == pytest.approx(3.5)


@pytest.mark.parametrize(
    ("model", "used_tokens", "cost"),
    [
        ("gpt-4o", usage(1_000_000, 0, cached_tokens=400_000), 0.6 * 2.50 + 0.4 * 1.25),
        ("gpt-5-nano", usage(1_000_000, 0, cached_tokens=1_000_000), 0.005),
        ("deepseek-chat", usage(1_000_000, 0, cached_tokens=500_000), 0.5 * 0.28 + 0.5 * 0.028),
        ("gemini-2.5-pro", usage(1_000_000, 0, cached_tokens=1_000_000), 0.125),
        (
            "claude-sonnet-4-5",
            usage(1_000_000, 0, cached_tokens=600_000, cache_write_tokens=300_000),
            0.1 * 3.00 + 0.6 * 0.30 + 0.3 * 3.75,
        ),
        ("o3-pro", usage(1_000_000, 0, cached_tokens=1_000_000), 20.00),
        # More cached tokens than prompt tokens: a server cannot make the cost negative.
        ("gpt-4o", usage(1_000_000, 0, cached_tokens=9_000_000, cache_write_tokens=9_000_000), 1.25),
    ],
)
def test_tokens_of_the_cache_have_their_own_price(model: str, used_tokens: Usage, cost: float) -> None:
    assert Catalog().find(model).cost(used_tokens) == pytest.approx(cost)


def test_a_card_without_prices_has_none_for_the_cache() -> None:
    card = Catalog().find("gpt-5-pro")
    assert (card.input_price, card.cached_input_price, card.cache_write_price) == (None, None, None)


def test_the_cards_of_the_configuration_come_first_and_their_case_does_not_matter() -> None:
    mine = ModelConfig(pattern="GPT-4o*", context_window=9_000, max_output=10, input_price=1, output_price=2)
    routed = ModelConfig(pattern="openrouter/*/gpt-4.1", context_window=9_001, max_output=10)
    catalog = configured_catalog([mine, routed])
    assert catalog.find("openai/gpt-4o-2024").context_window == 9_000
    assert catalog.find("gpt-4o").cost(usage(1_000_000, 0, cached_tokens=1_000_000)) == 1.0
    assert catalog.find("OpenRouter/openai/GPT-4.1").context_window == 9_001
    assert catalog.find("openai/gpt-4.1").context_window == 1_047_576


def test_own_cards_come_before_the_built_in_ones() -> None:
    mine = ModelCard(pattern="gpt-4o", context_window=1, max_output=1)
    assert Catalog((mine, *BUILT_IN)).find("gpt-4o") == mine


def test_no_card_is_shadowed_by_an_earlier_one() -> None:
    catalog = Catalog()
    for card in BUILT_IN:
        if "[" in card.pattern or card.pattern.startswith("*"):
            continue
        assert catalog.find(card.pattern.replace("*", "-zzz")) == card
