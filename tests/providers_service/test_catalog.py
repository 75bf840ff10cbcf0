"""What is known of models by name."""

import pytest

from luxx.providers.catalog import BUILT_IN, UNKNOWN, Catalog, ModelCard


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
def test_model_is_found_by_its_most_special_pattern(model: str, pattern: str) -> None:
    assert Catalog().find(model).pattern == pattern


@pytest.mark.parametrize("model", ["SmolLM2:360m", "llama3.2:1b", "qwen2.5-0.5b-instruct"])
def test_tiny_model_gets_no_tools(model: str) -> None:
    assert not Catalog().find(model).tools


def test_unknown_model_gets_tools_and_no_invented_price() -> None:
    assert UNKNOWN.tools
    assert Catalog().find("nobody-knows-me").cost(1_000, 1_000) is None


def test_cost_is_tokens_times_price() -> None:
    assert Catalog().find("gpt-4o").cost(1_000_000, 100_000) == pytest.approx(3.5)


def test_own_cards_come_before_the_built_in_ones() -> None:
    mine = ModelCard(pattern="gpt-4o", context_window=1, max_output=1)
    assert Catalog((mine, *BUILT_IN)).find("gpt-4o") == mine


def test_no_card_is_hidden_by_an_earlier_one() -> None:
    catalog = Catalog()
    for card in BUILT_IN:
        if "[" in card.pattern or card.pattern.startswith("*"):
            continue
        assert catalog.find(card.pattern.replace("*", "-zzz")) == card
