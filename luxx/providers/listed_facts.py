"""A provider's list of models: the names, and what it says of each: window, longest answer, abilities and
prices.

The names of the fields are those of OpenRouter, Mistral, Groq, vLLM, Together, Moonshot, xAI, llama.cpp,
Anthropic and Gemini. A list without them says nothing.
"""

from collections.abc import Callable, Iterable
from typing import Any, cast

import msgspec

from luxx.providers.adapter import Adapter, Target, UpstreamRequest
from luxx.providers.catalog import ModelCard, model_view
from luxx.providers.models import ModelView
from luxx.providers.parsing import check_values, json_objects

MAX_LISTED = 10_000
MAX_NAME_CHARACTERS = 200  # As in requests.
MAX_TOKENS = 100_000_000
MAX_PRICE = 1_000_000.0
"""US dollars per million tokens."""

JsonObject = dict[str, Any]

_WINDOWS = (
    "context_length", "context_window", "max_context_length", "max_model_len", "max_input_tokens",
    "inputTokenLimit", "n_ctx",
)  # fmt: skip
_ANSWERS = ("max_completion_tokens", "max_output_tokens", "max_output_length", "outputTokenLimit")
_ABILITIES = {
    "tools": ("tools", "function_calling", "supports_tools", "supports_function_calling"),
    "images": ("image", "vision", "supports_image_in", "supports_image_input", "supports_vision"),
    "thinking": ("reasoning", "thinking", "supports_reasoning"),
    "structured": ("structured_outputs", "supports_structured_outputs"),
}
"""The words for each ability: keys that are true, or items of a list of parameters or of input types."""

_PRICES = {
    "input_price": ("prompt", "input"),
    "output_price": ("completion", "output"),
    "cached_input_price": ("input_cache_read",),
    "cache_write_price": ("input_cache_write",),
}


class ModelsPage(msgspec.Struct, frozen=True):
    """A page of a list. `facts`: see `facts_in`."""

    names: list[str]
    facts: dict[str, JsonObject]
    next_request: UpstreamRequest | None


def read_page(adapter: Adapter, target: Target, body: bytes) -> ModelsPage:
    """A page of a list, without names that no request can have. Raises ProviderError."""
    check_values(body)
    names = [name for name in adapter.parse_models(body) if len(name) <= MAX_NAME_CHARACTERS]
    return ModelsPage(names, facts_in(body), adapter.next_models_request(target, body))


def facts_in(body: bytes) -> dict[str, JsonObject]:
    """The fields of a `ModelCard` that the list gives for each of its models, by name; those it leaves out
    are absent."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    if isinstance(value, dict):
        fields = cast("JsonObject", value)
        value = fields.get("data", fields.get("models"))
    return {name: facts for item in json_objects(value) if (name := _name(item)) and (facts := _facts(item))}


def with_facts(card: ModelCard, facts: JsonObject | None) -> ModelCard:
    """The card, with what its provider says of the model if the catalogue does not know it."""
    if not facts or not card.is_unknown:
        return card
    window = facts.get("context_window")
    if window is not None and "max_output" not in facts:
        facts = {**facts, "max_output": min(card.max_output, window)}
    return msgspec.structs.replace(card, **facts)


def listed_views(
    names: list[str], facts: dict[str, JsonObject], card_of: Callable[[str], ModelCard]
) -> list[ModelView]:
    """The properties of the models, with what their provider says of them."""
    return [model_view(name, with_facts(card_of(name), facts.get(name))) for name in names]


def _name(item: JsonObject) -> str:
    name = item.get("id") or item.get("name") or item.get("model")
    return name.removeprefix("models/") if isinstance(name, str) else ""


def _facts(item: JsonObject) -> JsonObject:
    objects = [item, *(_object(item.get(key)) for key in ("top_provider", "capabilities", "meta"))]
    said = {
        "context_window": _count(objects, _WINDOWS),
        "max_output": _count(objects, _ANSWERS),
        **{ability: _ability(item, objects, words) for ability, words in _ABILITIES.items()},
        **{price: _price(_object(item.get("pricing")), keys) for price, keys in _PRICES.items()},
    }
    return {key: value for key, value in said.items() if value is not None}


def _object(value: object) -> JsonObject:
    return cast("JsonObject", value) if isinstance(value, dict) else {}


def _count(objects: Iterable[JsonObject], keys: tuple[str, ...]) -> int | None:
    counts = (fields.get(key) for fields in objects for key in keys)
    return next((count for count in counts if type(count) is int and 0 < count <= MAX_TOKENS), None)


def _ability(item: JsonObject, objects: list[JsonObject], words: tuple[str, ...]) -> bool | None:
    """Whether the model has it; None if the item says nothing on it."""
    flags = [fields[word] for fields in objects for word in words if isinstance(fields.get(word), bool)]
    inputs = _object(item.get("architecture")).get("input_modalities")
    lists = [item.get("supported_parameters"), inputs, item.get("capabilities")]
    listed = [cast("list[object]", each) for each in lists if isinstance(each, list)]
    if not flags and not listed:
        return None
    return any(flags) or any(word in each for each in listed for word in words)


def _price(pricing: JsonObject, keys: tuple[str, ...]) -> float | None:
    """US dollars per million tokens; the lists have those of one token, as text."""
    text = next((pricing[key] for key in keys if isinstance(pricing.get(key), str)), None)
    try:
        price = float(text) * 1_000_000 if text is not None else None
    except ValueError:
        return None
    return price if price is not None and 0 <= price <= MAX_PRICE else None
