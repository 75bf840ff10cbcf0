"""How much a Gemini model thinks: the options by its generation."""

import re
from typing import Any

from luxx.providers.adapter import CompletionRequest
from luxx.wire.model_settings import ReasoningEffort

_GENERATION = re.compile(r"gemini-(\d+)(?:\.(\d+))?")
_MODELS_WITHOUT_THINKING = re.compile(r"image|tts|live|audio|embedding")

BUDGETS = {ReasoningEffort.LOW: 1_024, ReasoningEffort.MEDIUM: 8_192, ReasoningEffort.HIGH: 24_576}
"""The tokens of thinking of a model that takes a budget; the vendor's own values for these efforts."""


def generation_of(model: str) -> tuple[int, int]:
    """(2, 5) for gemini-2.5-flash; (3, 0) for names that follow the newest model (`…-latest`)."""
    name = model.lower()
    match = _GENERATION.search(name)
    if match is None:
        return (3, 0) if "gemini" in name and name.endswith("-latest") else (0, 0)
    return int(match[1]), int(match[2] or 0)


def thinking_config(request: CompletionRequest) -> dict[str, Any]:
    """The model's thinking options, at its minimum if no thinking is wanted; empty if it has none."""
    name, wanted, effort = request.model.lower(), request.thinking_enabled, request.reasoning_effort
    generation = generation_of(request.model)
    if _MODELS_WITHOUT_THINKING.search(name) or generation < (2, 5):
        return {}
    is_pro = "pro" in name
    if generation < (3, 0):
        if wanted:
            # -1: the model decides.
            return {"includeThoughts": True, "thinkingBudget": -1 if effort is None else BUDGETS[effort]}
        return {"thinkingBudget": 128 if is_pro else 0}  # Tokens; the pro models accept no less.
    if wanted:
        # The first pro models have no level in the middle; without one they think as much as they need.
        is_given = effort is not None and not (is_pro and effort == ReasoningEffort.MEDIUM)
        level = {"thinkingLevel": effort.value.upper()} if effort is not None and is_given else {}
        return {"includeThoughts": True, **level}
    if name.endswith("-latest"):
        return {}
    return {"thinkingLevel": "LOW" if is_pro else "MINIMAL"}
