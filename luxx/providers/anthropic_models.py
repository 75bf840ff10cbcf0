"""What differs between Anthropic's models in a request: how they are told to think, and what they refuse.

By the model's name alone; windows, abilities and prices are the catalogue's.
"""

import re
from typing import Any

MIN_BUDGET = 1024
"""The least the API takes."""

MAX_BUDGET = 16_000
"""More thinking than this is seldom worth its time, and long answers need the rest."""

ADAPTIVE = (4, 6)
"""From this version on a model decides itself how much to think; others are given a budget of tokens."""

_FAMILY = re.compile(r"(opus|sonnet|haiku)-(\d{1,2})(?!\d)(?:[-.](\d{1,2})(?!\d))?")
_OLD_NAME = re.compile(r"claude-(\d)(?:[-.](\d))?(?:-|$)")
_ALWAYS_NEW = re.compile(r"fable|mythos")


def version_of(model: str) -> tuple[str, int, int]:
    """Family and version; what is not known by its name counts as old, for it takes the fewest switches."""
    name = model.lower()
    if named := _ALWAYS_NEW.search(name):
        return named.group(), 5, 0
    if found := _FAMILY.search(name):
        return found.group(1), int(found.group(2)), int(found.group(3) or 0)
    if found := _OLD_NAME.search(name):
        return "", int(found.group(1)), int(found.group(2) or 0)
    return "", 0, 0


def takes_temperature(model: str) -> bool:
    """Since Opus 4.7, and in all of the fifth generation, any but the default is an error."""
    family, *version = version_of(model)
    return tuple(version) < ((4, 7) if family == "opus" else (5, 0))


def thinking_switch(model: str, *, wanted: bool, max_tokens: int) -> dict[str, Any]:
    """The request's `thinking`, or nothing where the model's own way is what is wanted.

    Thinking is left off where `max_tokens` leaves no room for it.
    """
    if not wanted:
        off = _OFF.get(version_of(model))
        return {"thinking": {"type": off}} if off else {}
    version = version_of(model)[1:]
    if (0, 0) < version < (3, 7):
        return {}  # these do not think
    if version >= ADAPTIVE:
        # Otherwise the newer models send their thinking blocks empty.
        return {"thinking": {"type": "adaptive", "display": "summarized"}}
    budget = min(MAX_BUDGET, max(MIN_BUDGET, max_tokens // 2))
    if budget >= max_tokens:
        return {}
    return {"thinking": {"type": "enabled", "budget_tokens": budget}}


_OFF = {("opus", 5, 0): "disabled", ("sonnet", 5, 0): "disabled", ("sonnet", 5, 5): "between_tools"}
"""Models that think unless told otherwise, and can be told; the rest either do not, or cannot be stopped."""
