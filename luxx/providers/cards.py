"""Cards that no pattern gives, and cards as people see them. What is known by name is `catalog.py`'s."""

from luxx.providers.catalog import EMBEDDED_CONTEXT, UNKNOWN, ModelCard
from luxx.providers.views import ModelView


def embedded_card(name: str) -> ModelCard:
    """It costs nothing, and it gets no tools unless somebody asks for them, whichever file it runs."""
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
    """What the card says of the model of this name."""
    return ModelView(
        name=name,
        is_known=card is not UNKNOWN,
        context_window=card.context_window,
        max_output=card.max_output,
        tools=card.tools,
        thinking=card.thinking,
        images=card.images,
        structured=card.structured,
        input_price=card.input_price,
        output_price=card.output_price,
        cached_input_price=card.cached_input_price,
        cache_write_price=card.cache_write_price,
    )
