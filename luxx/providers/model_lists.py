"""The lists of models that providers have: what they say of each model (window, longest answer, abilities and
prices), the newest ones that were fetched, and the check of names against them.

The names of the fields are those of OpenRouter, Mistral, Groq, vLLM, Together, Moonshot, xAI, llama.cpp,
Anthropic and Gemini. A list without them says nothing. A list is stored with its provider, so it is the same
at every server and after a restart. A check makes no request. Where no list is stored, every name is sent to
the provider.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, cast

import msgspec
from sqlalchemy import update
from sqlalchemy.orm import Session

from luxx.errors import UnlistedModel
from luxx.infra.clock import utc_now
from luxx.providers.adapter import Adapter, Target, UpstreamRequest
from luxx.providers.catalog import ModelCard, model_view
from luxx.providers.models import ModelView, ProviderRow
from luxx.providers.parsing import check_values, json_objects
from luxx.providers.registry import INTERNAL_TYPES

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


MAX_LISTS = 1_000
FRESH_SECONDS = 30.0  # A list of this age is not fetched again before a model is refused.
MAX_NEAR_NAMES = 5
MAX_COMPARED = 1_000  # Names that are compared with one that is not listed, each in up to half a millisecond.

_ALIAS = re.compile(r"(?:[-:@](?:latest|preview|\d{8}|\d{4}-\d\d-\d\d|\d\d-\d{4}|\d{3,4}))+$")
"""What distinguishes an alias from a dated name: `-latest`, a date, a version of three digits."""


class _ReadList(msgspec.Struct, frozen=True):
    """A list that was read when it was of this time. `stems`: its names without what aliases leave out."""

    fetched_at: datetime
    stems: frozenset[str]
    names: Sequence[str]


def store_list(session: Session, provider_id: int, names: Sequence[str]) -> None:
    """Stores the list of a provider; an empty one, or one that may be cut, means that it is not known."""
    is_known = 0 < len(names) < MAX_LISTED
    session.execute(
        update(ProviderRow)
        .where(ProviderRow.id == provider_id)
        .values(
            models=msgspec.json.encode(names).decode() if is_known else None,
            models_at=utc_now() if is_known else None,
        )
        .execution_options(synchronize_session=False)
    )


def is_fresh(row: ProviderRow) -> bool:
    """Whether the list was fetched a moment ago."""
    return row.models_at is not None and (utc_now() - row.models_at).total_seconds() < FRESH_SECONDS


class ModelLists:
    """Checks names of models. Keeps the lists that it has read, until a newer one is stored."""

    def __init__(self) -> None:
        self._lists: dict[int, _ReadList] = {}

    def check(self, row: ProviderRow, model: str | None, field: str = "$.model") -> None:
        """Raises UnlistedModel if the list is known and has neither the model nor one of its aliases.

        None or blanks: no model is named, so there is nothing to check.
        Called with the row's session open. The embedded model answers under its own name, whatever the list.
        """
        model = (model or "").strip()
        # Providers resolve some names in ways of their own.
        is_special = model.endswith("latest") or "@" in model or model.startswith("ft:")
        if not model or row.models_at is None or is_special or row.provider_type in INTERNAL_TYPES:
            return
        listed = self._read(row, row.models_at)
        if _stem(model) not in listed.stems:
            raise unlisted(row.id, row.name, model, listed.names, field)

    def _read(self, row: ProviderRow, fetched_at: datetime) -> _ReadList:
        listed = self._lists.get(row.id)
        if listed is None or listed.fetched_at != fetched_at:
            names = msgspec.json.decode(row.models or "[]", type=list[str])
            listed = self._lists[row.id] = _ReadList(fetched_at, frozenset(map(_stem, names)), names)
        if len(self._lists) > MAX_LISTS:
            del self._lists[next(iter(self._lists))]
        return listed


def unlisted(
    provider_id: int, provider_name: str, model: str, names: Sequence[str], field: str = "$.model"
) -> UnlistedModel:
    """The error that names the listed models which are most like the one that was asked for."""
    by_lower = {name.lower(): name for name in names}
    compared = list(by_lower)[:MAX_COMPARED]
    near = difflib.get_close_matches(model.lower(), compared, n=MAX_NEAR_NAMES, cutoff=0.5)
    shown = [by_lower[name] for name in near] or sorted(names)[:MAX_NEAR_NAMES]
    more = len(by_lower) - len(shown)
    others = f" and {more} more: see GET /providers/{provider_id}/models" if more else ""
    return UnlistedModel(
        f"provider '{provider_name}' has no model '{model}'; it has {', '.join(shown)}{others}",
        provider_id,
        field,
    )


def _stem(model: str) -> str:
    """The name without vendor, variant (`:free`) and version."""
    vendor, slash, name = model.lower().strip().rpartition("/")
    if slash and vendor != "models":
        name = name.partition(":")[0]
    return _ALIAS.sub("", name)
