"""The list of skills and agents in a prompt: their names, and as many descriptions as fit its budget."""

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from luxx.domain.context.tokens import text_tokens

SHARE = 0.02
"""Of the context window of the model that the list takes at most. The names are always in it."""

USUAL_WINDOW = 128_000
"""The window of a model that is not known."""

CUT = "({} of {} are listed without their description, to save room.)"


class ListedPart(msgspec.Struct, frozen=True, kw_only=True):
    """What stands before the entries, and their names and descriptions: those that lose their description
    first come last."""

    introduction: str
    entries: tuple[tuple[str, str], ...]


@lru_cache(maxsize=50)
def listing(parts: tuple[ListedPart, ...], window: int | None) -> str:
    """The list within its budget; empty without entries. Kept, because a caller mostly has the same parts."""
    parts = tuple(part for part in parts if part.entries)
    if not parts:
        return ""
    budget = SHARE * (window or USUAL_WINDOW)
    total = sum(len(part.entries) for part in parts)
    whole = _text(parts, total, total)
    if text_tokens(whole) <= budget:
        return whole
    fitting, too_many = 0, total
    while too_many - fitting > 1:
        middle = (fitting + too_many) // 2
        if text_tokens(_text(parts, middle, total)) <= budget:
            fitting = middle
        else:
            too_many = middle
    return _text(parts, fitting, total)


def _text(parts: Sequence[ListedPart], described: int, total: int) -> str:
    """The list in which so many entries have their descriptions, of each part its share."""
    texts: list[str] = []
    left, rest = described, total
    for part in parts:
        count = len(part.entries)
        with_description = left * count // rest if rest else 0
        left, rest = left - with_description, rest - count
        lines = [
            f"- {name}: {text}" if text and at < with_description else f"- {name}"
            for at, (name, text) in enumerate(part.entries)
        ]
        texts.append("\n".join([part.introduction, "", *lines]))
    if described < total:
        texts.append(CUT.format(total - described, total))
    return "\n\n".join(texts)
