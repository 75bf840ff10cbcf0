"""What becomes of a provider's values before they are kept: fragments and counts. Pure."""

from collections.abc import Iterator
from itertools import groupby
from typing import cast

from luxx.infra.surrogates import replace_lone_surrogates
from luxx.wire.turn import Delta, TextDelta, ThinkingDelta, Usage

MAX_TOKENS = 100_000_000
"""More than any context window; larger counts of a provider are reduced to this."""


REPLACEMENT = "\ufffd"


def readable_escapes(json_text: str) -> str:
    """JSON text in which the escape of a lone surrogate, which no encoding has, is that of U+FFFD."""
    if "\\ud" not in json_text and "\\uD" not in json_text:
        return json_text
    return replace_lone_surrogates(json_text.encode("utf-8", "replace")).decode()


def clamped(usage: Usage) -> Usage:
    """The usage with counts that a database column can hold: the provider may send any number."""
    counts = {name: min(max(getattr(usage, name), 0), MAX_TOKENS) for name in usage.__struct_fields__}
    return Usage(**counts)


def merge_fragments(deltas: list[Delta]) -> list[Delta]:
    """Merges neighbouring fragments of the same kind."""
    if len(deltas) == 1:
        return deltas
    merged: list[Delta] = []
    for kind, group in groupby(deltas, type):
        if kind is TextDelta or kind is ThinkingDelta:
            fragments = cast("Iterator[TextDelta | ThinkingDelta]", group)
            merged.append(kind(text="".join(delta.text for delta in fragments)))
        else:
            merged.extend(group)
    return merged
