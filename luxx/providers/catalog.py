"""The model catalog: context windows, capabilities and prices by model name, whichever provider serves it.

The vendors published these figures on their model and price pages at the end of 2025. An unknown price is
null, never 0. Open models have no price: it depends on who serves them.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase

import msgspec

from luxx.infra.config.schema import ModelConfig
from luxx.providers.models import ModelView
from luxx.wire.delta import Usage

CACHE_PRICE_RATIOS = {
    "gpt-4o*": (0.5, 1.0),
    "gpt-4.1*": (0.25, 1.0),
    "gpt-5*": (0.1, 1.0),
    "o3-mini*": (0.5, 1.0),
    "o3-pro*": (1.0, 1.0),
    "o[34]*": (0.25, 1.0),
    "deepseek-*": (0.1, 1.0),
    # A cache that lives for five minutes, Anthropic's default.
    "claude-*": (0.1, 1.25),
    "gemini-2.5-*": (0.1, 1.0),
    "gemini-2.0-*": (0.25, 1.0),
    "glm-4*": (0.11 / 0.60, 1.0),
    "*": (1.0, 1.0),
}
"""The prices of reading and of writing cached tokens, as multiples of the input price; the first matching
pattern applies."""


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """`pattern` is matched against the lower-case name, without a vendor's prefix (`openai/…`) unless the
    pattern has one.

    Windows are in tokens, prices in US dollars per million tokens. The prices of cache reads and writes
    default to the input price.
    """

    pattern: str
    context_window: int
    max_output: int
    tools: bool = True
    thinking: bool = False
    images: bool = False
    structured: bool = False
    input_price: float | None = None
    output_price: float | None = None
    cached_input_price: float | None = None
    cache_write_price: float | None = None

    @property
    def may_take_images(self) -> bool:
        """True also for an unknown model: its server rejects images if it does not take them."""
        return self.images or self.pattern == "*"

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


UNKNOWN = ModelCard(pattern="*", context_window=32_768, max_output=4_096)
"""The card of an unknown model: most current models take tools, and few windows are below 32k."""

EMBEDDED_CONTEXT = 8_192
"""The context window of the embedded model, which SmolLM2 was trained for."""


def _card(
    pattern: str,
    window: int,
    output: int,
    capabilities: str,
    prices: tuple[float, float] | None = None,
) -> ModelCard:
    enabled = capabilities.split()
    read, write = next(ratio for key, ratio in CACHE_PRICE_RATIOS.items() if fnmatchcase(pattern, key))
    input_price, output_price = prices or (None, None)
    return ModelCard(
        pattern=pattern,
        context_window=window,
        max_output=output,
        **{name: name in enabled for name in ("tools", "thinking", "images", "structured")},
        input_price=input_price,
        output_price=output_price,
        cached_input_price=None if input_price is None else input_price * read,
        cache_write_price=None if input_price is None else input_price * write,
    )


BUILT_IN: tuple[ModelCard, ...] = (
    # Too small to use tools reliably.
    _card("smollm*", EMBEDDED_CONTEXT, 2_048, "structured"),
    _card("*[-:_]135m*", EMBEDDED_CONTEXT, 2_048, "structured"),
    _card("*[-:_]360m*", EMBEDDED_CONTEXT, 2_048, "structured"),
    _card("*[-:_]0.[5-8]b*", 32_768, 4_096, "structured"),
    _card("*[-:_]1b*", 32_768, 4_096, "structured"),
    # OpenAI
    _card("gpt-4o-mini*", 128_000, 16_384, "tools images structured", (0.15, 0.60)),
    _card("gpt-4o*", 128_000, 16_384, "tools images structured", (2.50, 10.00)),
    _card("gpt-4.1-nano*", 1_047_576, 32_768, "tools images structured", (0.10, 0.40)),
    _card("gpt-4.1-mini*", 1_047_576, 32_768, "tools images structured", (0.40, 1.60)),
    _card("gpt-4.1*", 1_047_576, 32_768, "tools images structured", (2.00, 8.00)),
    _card("gpt-5-nano*", 400_000, 128_000, "tools thinking images structured", (0.05, 0.40)),
    _card("gpt-5-mini*", 400_000, 128_000, "tools thinking images structured", (0.25, 2.00)),
    _card("gpt-5-pro*", 400_000, 128_000, "tools thinking images structured"),
    _card("gpt-5", 400_000, 128_000, "tools thinking images structured", (1.25, 10.00)),
    _card("gpt-5-20*", 400_000, 128_000, "tools thinking images structured", (1.25, 10.00)),
    _card("gpt-5*", 400_000, 128_000, "tools thinking images structured"),
    _card("o3-mini*", 200_000, 100_000, "tools thinking structured", (1.10, 4.40)),
    _card("o3-pro*", 200_000, 100_000, "tools thinking images structured", (20.00, 80.00)),
    _card("o3*", 200_000, 100_000, "tools thinking images structured", (2.00, 8.00)),
    _card("o4-mini*", 200_000, 100_000, "tools thinking images structured", (1.10, 4.40)),
    # DeepSeek (V3.2, prices without a cache hit)
    _card("deepseek-chat*", 128_000, 8_192, "tools", (0.28, 0.42)),
    _card("deepseek-reasoner*", 128_000, 65_536, "tools thinking", (0.28, 0.42)),
    _card("deepseek-r1*", 128_000, 32_768, "thinking"),
    # Anthropic (as of autumn 2026)
    _card("claude-fable-5*", 1_000_000, 128_000, "tools thinking images structured", (10.00, 50.00)),
    _card("claude-mythos-*", 1_000_000, 128_000, "tools thinking images structured"),
    _card("claude-opus-5-5*", 1_000_000, 128_000, "tools thinking images structured", (4.00, 20.00)),
    _card("claude-opus-5*", 1_000_000, 128_000, "tools thinking images structured", (5.00, 25.00)),
    _card("claude-sonnet-5*", 1_000_000, 128_000, "tools thinking images structured", (2.00, 10.00)),
    _card("claude-haiku-5*", 1_000_000, 128_000, "tools thinking images structured"),
    _card("claude-opus-4-[678]*", 1_000_000, 128_000, "tools thinking images structured", (5.00, 25.00)),
    _card("claude-opus-4-5*", 200_000, 64_000, "tools thinking images structured", (5.00, 25.00)),
    _card("claude-opus-4*", 200_000, 32_000, "tools thinking images", (15.00, 75.00)),
    _card("claude-sonnet-4-[56]*", 200_000, 64_000, "tools thinking images structured", (3.00, 15.00)),
    _card("claude-sonnet-4*", 200_000, 64_000, "tools thinking images", (3.00, 15.00)),
    _card("claude-haiku-4-5*", 200_000, 64_000, "tools thinking images structured", (1.00, 5.00)),
    _card("claude-3-7-sonnet*", 200_000, 64_000, "tools thinking images", (3.00, 15.00)),
    _card("claude-3-5-sonnet*", 200_000, 8_192, "tools images", (3.00, 15.00)),
    _card("claude-3-5-haiku*", 200_000, 8_192, "tools images", (0.80, 4.00)),
    _card("claude-*", 200_000, 8_192, "tools images"),
    # Google (prices of prompts up to 200k tokens)
    _card("gemini-3-pro-image*", 65_536, 32_768, "images"),
    _card("gemini-3-pro*", 1_048_576, 65_536, "tools thinking images structured", (2.00, 12.00)),
    _card("gemini-3-flash*", 1_048_576, 65_536, "tools thinking images structured", (0.50, 3.00)),
    _card("gemini-3*", 1_048_576, 65_536, "tools thinking images structured"),
    _card("gemini-2.5-flash-image*", 32_768, 32_768, "images"),
    _card("gemini-2.5-flash-lite*", 1_048_576, 65_536, "tools thinking images structured", (0.10, 0.40)),
    _card("gemini-2.5-flash*", 1_048_576, 65_536, "tools thinking images structured", (0.30, 2.50)),
    _card("gemini-2.5-pro*", 1_048_576, 65_536, "tools thinking images structured", (1.25, 10.00)),
    _card("gemini-2.0-flash*", 1_048_576, 8_192, "tools images structured", (0.10, 0.40)),
    _card("gemini-*-latest", 1_048_576, 65_536, "tools thinking images structured"),
    _card("gemini-*", 1_048_576, 8_192, "tools images structured"),
    # Zhipu
    _card("glm-4.[56]v*", 64_000, 16_384, "tools thinking images"),
    _card("glm-4.6*", 200_000, 128_000, "tools thinking", (0.60, 2.20)),
    _card("glm-4.5", 128_000, 96_000, "tools thinking", (0.60, 2.20)),
    _card("glm-4*", 128_000, 4_096, "tools"),
    # Open models; a local server may run them with a smaller window than they were trained for.
    _card("qwq*", 32_768, 8_192, "tools thinking"),
    _card("qwen*vl*", 32_768, 8_192, "tools images"),
    _card("qwen3*", 32_768, 8_192, "tools thinking"),
    _card("qwen*", 32_768, 8_192, "tools"),
    _card("llama*vision*", 128_000, 4_096, "images"),
    _card("llama3.[1-3]*", 128_000, 4_096, "tools"),
    _card("llama-3.[1-3]*", 128_000, 4_096, "tools"),
    _card("llama-4*", 128_000, 4_096, "tools images"),
    _card("llama4*", 128_000, 4_096, "tools images"),
    _card("llama*", 8_192, 2_048, ""),
)


class Catalog:
    """Looks up a model by name; the first card whose pattern matches wins."""

    def __init__(self, cards: Sequence[ModelCard] = BUILT_IN) -> None:
        self._cards = tuple(cards)

    def find(self, model: str) -> ModelCard:
        """The card of `model`, or `UNKNOWN`."""
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


def model_view(name: str, card: ModelCard) -> ModelView:
    properties = msgspec.structs.asdict(card)
    del properties["pattern"]
    return ModelView(name=name, is_known=card is not UNKNOWN, **properties)
