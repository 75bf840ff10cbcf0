"""The model catalog: context windows, capabilities and prices by model name, from `catalog.toml`; and the
choice of a provider and a model."""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from importlib.resources import files

import msgspec

from luxx.infra.config.schema import ModelConfig
from luxx.providers.adapter import Target
from luxx.providers.models import ModelView, ProviderRow
from luxx.wire.turn import Usage


class ModelCard(ModelConfig, frozen=True, kw_only=True):
    """The properties of the models whose lower-case names match `pattern`, without a vendor's prefix
    (`openai/…`) unless the pattern has one. The prices of cache reads and writes default to the input price.
    """

    @property
    def is_unknown(self) -> bool:
        """Whether it is the card of a model that nobody described."""
        return self.pattern == "*"

    @property
    def known_window(self) -> int | None:
        """The context window in tokens; None: it is not known."""
        return None if self.is_unknown else self.context_window

    @property
    def may_take_images(self) -> bool:
        """True also for an unknown model: its server rejects images if it does not take them."""
        return self.images or self.is_unknown

    def cost(self, usage: Usage) -> float | None:
        """The cost of a completion in US dollars, None if the price is unknown."""
        if self.input_price is None or self.output_price is None:
            return None
        read = min(usage.cached_tokens, usage.prompt_tokens)
        written = min(usage.cache_write_tokens, usage.prompt_tokens - read)
        cost = (usage.prompt_tokens - read - written) * self.input_price
        cost += read * _price_or_default(self.cached_input_price, self.input_price)
        cost += written * _price_or_default(self.cache_write_price, self.input_price)
        return (cost + usage.completion_tokens * self.output_price) / 1_000_000


def _price_or_default(price: float | None, default: float) -> float:
    return default if price is None else price


UNKNOWN = ModelCard(pattern="*", context_window=32_768, max_output=4_096, tools=False)
"""The card of an unknown model: few windows are below 32k. It gets tools only where somebody asks for them:
many small models misuse them, and some servers refuse a request with tools."""

EMBEDDED_CONTEXT = 8_192
"""The context window of the embedded model, which SmolLM2 was trained for."""


class _CardRow(msgspec.Struct, frozen=True, array_like=True):
    pattern: str
    context_window: int
    max_output: int
    capabilities: str
    input_price: float | None = None
    output_price: float | None = None


class _CatalogFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    cards: list[_CardRow]
    cache_prices: dict[str, tuple[float, float]]


def _read_built_in() -> tuple[ModelCard, ...]:
    text = files("luxx.providers").joinpath("catalog.toml").read_bytes()
    catalog = msgspec.toml.decode(text, type=_CatalogFile)
    return tuple(_card(row, catalog.cache_prices) for row in catalog.cards)


def _card(row: _CardRow, cache_prices: dict[str, tuple[float, float]]) -> ModelCard:
    read, write = next(
        ratios for pattern, ratios in cache_prices.items() if fnmatchcase(row.pattern, pattern)
    )
    fields = msgspec.structs.asdict(row)
    enabled = fields.pop("capabilities").split()
    fields |= {name: name in enabled for name in ("tools", "thinking", "images", "structured")}
    return ModelCard(
        **fields,
        cached_input_price=None if row.input_price is None else row.input_price * read,
        cache_write_price=None if row.input_price is None else row.input_price * write,
    )


BUILT_IN = _read_built_in()


KEPT_MODELS = 1000
"""Names of models whose card is kept: looking one up compares it with all patterns."""


class Catalog:
    """Looks up a model by name; the first card whose pattern matches wins."""

    def __init__(self, cards: Sequence[ModelCard] = BUILT_IN) -> None:
        self._cards = tuple(cards)
        self._found = lru_cache(maxsize=KEPT_MODELS)(self._look_up)

    def find(self, model: str) -> ModelCard:
        """The card of `model`, or `UNKNOWN`."""
        return self._found(model)

    def _look_up(self, model: str) -> ModelCard:
        full_name = model.lower().strip()
        name = full_name.rsplit("/", 1)[-1]
        for card in self._cards:
            if fnmatchcase(full_name if "/" in card.pattern else name, card.pattern):
                return card
        return UNKNOWN


def configured_catalog(models: Sequence[ModelConfig]) -> Catalog:
    """The operator's configured cards, which take precedence, and the built-in ones."""
    configured = [
        msgspec.structs.replace(ModelCard(**msgspec.structs.asdict(model)), pattern=model.pattern.lower())
        for model in models
    ]
    return Catalog((*configured, *BUILT_IN))


DEFAULT_MODELS = {
    "openai": "gpt-4.1-mini",
    "deepseek": "deepseek-chat",
    "anthropic": "claude-sonnet-5-5",
    "gemini": "gemini-2.5-flash",
    "glm": "glm-4.6",
}
"""The default model of a provider discovered at the first start: capable and not the most expensive."""


def embedded_card(name: str) -> ModelCard:
    """The card of the embedded model, whichever file it runs: it is free and gets no tools by default."""
    return ModelCard(
        pattern=name.lower(),
        context_window=EMBEDDED_CONTEXT,
        max_output=EMBEDDED_CONTEXT // 4,
        tools=False,
        structured=True,
        input_price=0.0,
        output_price=0.0,
    )


DEMO_CARD = ModelCard(
    pattern="demo", context_window=128_000, max_output=4_096, input_price=0.0, output_price=0.0
)
"""The card of the demo provider, whatever the name of the model: it is free."""


class ProviderChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The provider and model of a run, and their limits."""

    provider_id: int
    name: str
    model: str
    max_tokens: int | None
    card: ModelCard


class ProviderSelection(msgspec.Struct, frozen=True, kw_only=True):
    """A choice with its row, whose key is still encrypted."""

    choice: ProviderChoice
    row: ProviderRow


class ResolvedProvider(msgspec.Struct, frozen=True, kw_only=True):
    """A choice and its target. `target` contains the key: never store it."""

    choice: ProviderChoice
    target: Target


_NO_CHAT = re.compile(r"embed|rerank|(?:^|/)(?:bge|e5|gte|all-minilm|sentence-)[-:_]?", re.IGNORECASE)


def can_chat(name: str) -> bool:
    """Whether a model of this name may answer: models that only make embeddings or rank texts cannot."""
    return _NO_CHAT.search(name) is None


def model_view(name: str, card: ModelCard) -> ModelView:
    """The properties of a model for the API."""
    properties = msgspec.structs.asdict(card)
    del properties["pattern"]
    return ModelView(name=name, is_known=not card.is_unknown, chat=can_chat(name), **properties)
