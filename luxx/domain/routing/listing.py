"""The list of skills and agents in a prompt: their names, and as many descriptions as fit its budget.

The prompts of a conversation keep the list of its first run, because a provider caches a prompt from its
beginning; what has changed since stands behind the history.
"""

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from luxx.domain.context.tokens import text_tokens
from luxx.wire.message import KeptList

SHARE = 0.02
"""Of the context window of the model that the list takes at most. The names are always in it."""

USUAL_WINDOW = 128_000
"""The window of a model that is not known."""

CUT = "({} of {} are listed without their description, to save room.)"

CHANGED = "(From Luxx, not from the person.) Since the list above was made: {}"

MOST_CHANGES = 10
"""Entries that have changed since a list was made. After more, the list is made anew."""


class ListedPart(msgspec.Struct, frozen=True, kw_only=True):
    """What stands before the entries, of which each is a `noun`, and their names and descriptions.

    `ranks`: how much each entry is used, as `use_rank` has it, in the order of the entries; without it none
    is. Those that are used least lose their description first, of equal ones the last.
    """

    noun: str
    introduction: str
    entries: tuple[tuple[str, str], ...]
    ranks: tuple[int, ...] = ()

    def described(self, count: int) -> set[int]:
        """The indexes of the entries that keep their description, if so many do."""
        ranks = self.ranks or (0,) * len(self.entries)
        return set(sorted(range(len(ranks)), key=lambda index: -ranks[index])[:count])


def use_rank(uses: int) -> int:
    """0, 1, 2, 3 … for 0, 1, 2 to 3, 4 to 7 … uses: coarse, so that few uses change a list, because a
    provider's cache begins with it."""
    return uses.bit_length()


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


def continued(
    parts: tuple[ListedPart, ...], window: int | None, kept: KeptList | None, made_for: str
) -> tuple[str, str]:
    """The list, and a line with what has changed since it was made: the one that was kept, if it was made for
    the same and little has changed."""
    if kept is not None and kept.made_for == made_for != "":
        changes = _changes(kept.text, parts)
        if changes is not None and text_tokens(changes) <= SHARE * (window or USUAL_WINDOW):
            return kept.text, changes
    return listing(parts, window), ""


@lru_cache(maxsize=50)
def _changes(text: str, parts: tuple[ListedPart, ...]) -> str | None:
    """A line with what is new, different or gone since this list; empty: nothing is. None: too much."""
    found: list[str] = []
    for part in parts:
        _, introduction, rest = f"\n\n{text}".partition(f"\n\n{part.introduction}\n\n")
        if not introduction and part.entries:
            return None
        lines = set(rest.partition("\n\n")[0].splitlines())
        changed = [entry for entry in part.entries if not lines.intersection(_lines(*entry))]
        lines -= {line for entry in part.entries for line in _lines(*entry)}
        for name, description in changed:
            earlier = {line for line in lines if line.startswith(f"- {name}: ")}
            lines -= earlier
            found.append(f"{'changed' if earlier else 'new'} {part.noun} {name}: {description}")
        names = sorted(line.removeprefix("- ").partition(": ")[0] for line in lines)
        found += [f"the {part.noun} {name} cannot be used any more" for name in names]
    if len(found) > MOST_CHANGES:
        return None
    return CHANGED.format("; ".join(found)) if found else ""


def _lines(name: str, description: str) -> tuple[str, str]:
    """How an entry stands in a list, with its description and without."""
    return f"- {name}: {description}" if description else f"- {name}", f"- {name}"


def _text(parts: Sequence[ListedPart], described: int, total: int) -> str:
    """The list in which so many entries have their descriptions, of each part its share."""
    texts: list[str] = []
    left, rest = described, total
    for part in parts:
        count = len(part.entries)
        with_description = left * count // rest if rest else 0
        left, rest = left - with_description, rest - count
        kept = part.described(with_description)
        lines = [_lines(*entry)[index not in kept] for index, entry in enumerate(part.entries)]
        texts.append("\n".join([part.introduction, "", *lines]))
    if described < total:
        texts.append(CUT.format(total - described, total))
    return "\n\n".join(texts)
