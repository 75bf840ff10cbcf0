"""What a provider's list of models says of models that the catalogue does not know."""

import json
from typing import Any

import pytest

from luxx.providers.catalog import UNKNOWN, Catalog
from luxx.providers.model_lists import facts_in, with_facts

ITEMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "OpenRouter": (
        {
            "id": "a/b",
            "context_length": 200_000,
            "architecture": {"input_modalities": ["text", "image"]},
            "supported_parameters": ["tools", "reasoning"],
            "top_provider": {"max_completion_tokens": 64_000},
            "pricing": {"prompt": "0.000003", "completion": "0.000015", "input_cache_read": "0.0000003"},
        },
        {
            "context_window": 200_000,
            "max_output": 64_000,
            "tools": True,
            "images": True,
            "thinking": True,
            "structured": False,
            "input_price": pytest.approx(3.0),
            "output_price": pytest.approx(15.0),
            "cached_input_price": pytest.approx(0.3),
        },
    ),
    "Mistral": (
        {
            "id": "a/b",
            "max_context_length": 32_768,
            "capabilities": {"function_calling": True, "vision": False},
        },
        {"context_window": 32_768, "tools": True, "images": False},
    ),
    "Groq": (
        {"id": "a/b", "context_window": 131_072, "max_completion_tokens": 8192},
        {"context_window": 131_072, "max_output": 8192},
    ),
    "vLLM": ({"id": "a/b", "max_model_len": 8192}, {"context_window": 8192}),
    "Moonshot": (
        {"id": "a/b", "context_length": 262_144, "supports_image_in": True, "supports_reasoning": True},
        {"context_window": 262_144, "images": True, "thinking": True},
    ),
    "Gemini": (
        {"name": "models/a/b", "inputTokenLimit": 1_048_576, "outputTokenLimit": 65_536, "thinking": True},
        {"context_window": 1_048_576, "max_output": 65_536, "thinking": True},
    ),
    "nothing of use": (
        {"id": "a/b", "context_length": -1, "max_model_len": "many", "pricing": {"prompt": "x"}},
        {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("vendor", ITEMS)
def test_the_list_of_each_vendor_is_read(vendor: str) -> None:
    item, expected = ITEMS[vendor]

    for body in ({"data": [item, "b"]}, {"models": [item]}, [item]):
        assert facts_in(json.dumps(body).encode()) == ({"a/b": expected} if expected else {})


def test_a_list_that_is_none_says_nothing() -> None:
    assert [facts_in(body) for body in (b"<html>", b"5", b'{"data": 5}', b"[" * 100_000)] == [{}] * 4


def test_facts_complete_the_card_of_an_unknown_model_only() -> None:
    facts = {"context_window": 2048, "tools": True}

    card = with_facts(UNKNOWN, facts)

    assert (card.context_window, card.max_output, card.tools, card.is_unknown) == (2048, 2048, True, True)
    known = Catalog().find("gpt-4.1")
    assert with_facts(known, facts) is known
    assert with_facts(UNKNOWN, None) is UNKNOWN
